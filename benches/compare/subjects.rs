//! The subjects, which are the proxies that are compared. Each proxy has its own process.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use crate::works::Work;
use crate::{CRISWITCH, unit};

/// The file name of the program of [`Subject::Static`]. If this file is missing, the benchmark omits the subject.
pub const STATIC: &str = "criswitch-static";
/// How long a process may take until it listens and its replies are correct.
pub const START_LIMIT: Duration = Duration::from_secs(60);
/// The index of the user time in `/proc/PID/stat`, counted after the process name. The next field is the system time.
const USER_TIME: usize = 11;
/// The unit of the times in `/proc/PID/stat`, in nanoseconds: a hundredth of a second.
const TICK_NS: u64 = 10_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// No proxy.
    Direct,
    /// A proxy that only copies bytes between two sockets.
    Splice,
    Nginx,
    Haproxy,
    /// A pass-through proxy on grpc-go.
    Go,
    Criswitch,
    /// The static program of a release.
    Static,
    /// The reference for merges: a loop in one process, without a socket.
    Prost,
}

impl Subject {
    pub const ALL: [Subject; 8] = [
        Subject::Direct,
        Subject::Splice,
        Subject::Nginx,
        Subject::Haproxy,
        Subject::Go,
        Subject::Criswitch,
        Subject::Static,
        Subject::Prost,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Subject::Direct => "direct",
            Subject::Splice => "splice",
            Subject::Nginx => "nginx",
            Subject::Haproxy => "haproxy",
            Subject::Go => "go",
            Subject::Criswitch => "criswitch",
            Subject::Static => "static",
            Subject::Prost => "prost",
        }
    }

    /// Whether the subject can do the work. Only criswitch and prost merge. The other proxies would need more settings
    /// for very large messages.
    pub fn does(self, work: Work) -> bool {
        match self {
            Subject::Criswitch | Subject::Static => true,
            Subject::Prost => matches!(work, Work::Merge2 | Work::Merge4),
            Subject::Direct => work.backends() == 1,
            _ => work.backends() == 1 && !work.is_large(),
        }
    }

    /// The socket that clients call.
    pub fn socket(self, directory: &Path) -> PathBuf {
        match self {
            Subject::Direct => backend_socket(directory, 0),
            _ => directory.join(format!("{}.sock", self.name())),
        }
    }

    fn command(self, directory: &Path, work: Work, programs: &Path) -> Option<Vec<String>> {
        let at = |name: &str| directory.join(name).display().to_string();
        let program = |name: &str| programs.join(name).display().to_string();
        let (socket, backend) = (self.socket(directory), backend_socket(directory, 0));
        let (socket, backend) = (socket.display().to_string(), backend.display().to_string());
        Some(match self {
            Subject::Direct | Subject::Prost => return None,
            Subject::Splice => vec![own_program(), "splice".to_owned(), socket, backend],
            Subject::Go => vec![program("goproxy"), socket, backend],
            Subject::Nginx => {
                configure(include_str!("nginx.conf"), directory, "nginx.conf");
                let (nginx, prefix) = (program("nginx"), at(""));
                let (log, config) = (at("nginx.log"), at("nginx.conf"));
                [&nginx, "-e", &log, "-p", &prefix, "-c", &config]
                    .map(str::to_owned)
                    .into()
            }
            Subject::Haproxy => {
                configure(include_str!("haproxy.cfg"), directory, "haproxy.cfg");
                [&program("haproxy"), "-db", "-q", "-f", &at("haproxy.cfg")]
                    .map(str::to_owned)
                    .into()
            }
            Subject::Criswitch | Subject::Static => {
                let config = format!("{}.toml", self.name());
                fs::write(directory.join(&config), self.table(directory, work)).unwrap();
                let own = match self {
                    Subject::Static => program(STATIC),
                    _ => CRISWITCH.to_owned(),
                };
                [&own, "--config", &at(&config)].map(str::to_owned).into()
            }
        })
    }

    fn table(self, directory: &Path, work: Work) -> String {
        let socket = self.socket(directory);
        // Each work has its own state directory, because the backends differ, and so has each program.
        let state = directory.join(format!("state-{}-{}", self.name(), work.name()));
        let max_message = if work.is_large() { "64MiB" } else { "16MiB" };
        let mut table = format!(
            "listen = {socket:?}\nruntime_dir = {state:?}\nstate_dir = {state:?}\nmax_message = {max_message:?}\n\
             default_handler = \"h0\"\n[handlers]\n"
        );
        for number in 0..work.backends() {
            table += &format!("h{number} = {:?}\n", backend_socket(directory, number));
        }
        table
    }
}

fn configure(text: &str, directory: &Path, name: &str) {
    let text = text.replace("DIR", &directory.display().to_string());
    fs::write(directory.join(name), text).unwrap();
}

pub fn backend_socket(directory: &Path, number: usize) -> PathBuf {
    directory.join(format!("backend-{number}.sock"))
}

/// Returns the path of this benchmark's program. The same program also runs as backend, client and splice.
pub fn own_program() -> String {
    std::env::current_exe().unwrap().display().to_string()
}

/// Returns the command that runs a program on one processor.
pub fn pinned(processor: usize) -> Vec<String> {
    ["taskset", "--cpu-list", &processor.to_string()]
        .map(str::to_owned)
        .into()
}

/// Makes a command of a program and its arguments.
pub fn program(words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

/// A process, killed when it is dropped.
pub struct Process(Child);

/// The memory of a process, as the kernel reports it.
#[derive(Clone, Copy, Serialize)]
pub struct Memory {
    pub resident_kib: u64,
    pub anonymous_kib: u64,
}

impl Process {
    /// Starts a subject. `under` is a command that starts the subject's own command, such as `taskset`, or is empty.
    /// Returns `None` if the subject has no process.
    pub fn of_subject(
        subject: Subject,
        directory: &Path,
        work: Work,
        programs: &Path,
        under: &[String],
    ) -> Option<Process> {
        let command = [under, &subject.command(directory, work, programs)?].concat();
        fs::remove_file(subject.socket(directory)).ok();
        let log = fs::File::create(directory.join(format!("{}.out", subject.name()))).unwrap();
        let is_criswitch = matches!(subject, Subject::Criswitch | Subject::Static);
        let environment = is_criswitch.then(unit::environment);
        let mut command = program(&command);
        command.envs(environment.into_iter().flatten());
        let child = command.stdout(Stdio::null()).stderr(log).spawn();
        Some(Process(child.unwrap()))
    }

    /// Starts a backend, and waits until it listens.
    pub fn of_backend(directory: &Path, number: usize, work: Work, processor: usize) -> Process {
        let socket = backend_socket(directory, number);
        fs::remove_file(&socket).ok();
        let (text, number) = (socket.display().to_string(), number.to_string());
        let role = [
            own_program(),
            "backend".to_owned(),
            text,
            number,
            work.name(),
        ];
        let child = program(&[pinned(processor), role.into()].concat()).spawn();
        let process = Process(child.unwrap());
        let begin = Instant::now();
        while UnixStream::connect(&socket).is_err() {
            assert!(begin.elapsed() < START_LIMIT, "{socket:?} has no listener");
            thread::sleep(Duration::from_millis(5));
        }
        process
    }

    /// Ends the process as systemd does, and waits for its end.
    pub fn stop(mut self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).ok();
        self.0.wait().ok();
    }

    /// Returns the processor time of all threads, including threads that have ended, in nanoseconds.
    pub fn ran_ns(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let (_, fields) = stat.rsplit_once(')').unwrap();
        let times = fields.split_whitespace().skip(USER_TIME).take(2);
        let ticks: u64 = times.map(|ticks| ticks.parse::<u64>().unwrap()).sum();
        ticks * TICK_NS
    }

    pub fn memory(&self) -> Memory {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let kib = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            let number = line.and_then(|line| line.split_whitespace().next());
            number
                .and_then(|number| number.parse().ok())
                .unwrap_or_default()
        };
        Memory {
            resident_kib: kib("VmRSS:"),
            anonymous_kib: kib("RssAnon:"),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
