//! Compares criswitch with other proxies on Unix sockets. Run it with `benches/compare/run.sh`.
//!
//! A subject is a proxy that is compared. The client, the subject and each backend have a process of their own. With
//! one call in flight, all processes are pinned to one processor, so that the time of a call is the sum of their work.
//! With several calls in flight, the subject has its own processor. Rounds of the subjects alternate. The client
//! compares every byte, and a wrong byte makes the run fail. With `--instructions`, callgrind counts the instructions
//! of a call.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    missing_docs,
    unreachable_pub,
    reason = "a benchmark may stop"
)]

mod backend;
mod client;
mod events;
mod instructions;
#[path = "../support/items.rs"]
mod items;
mod reference;
mod report;
mod round;
mod splice;
mod subjects;
#[path = "../support/unit.rs"]
mod unit;
mod works;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Instant;

use clap::{Parser, Subcommand, ValueEnum};
use criswitch_testing as support;

use client::Expected;
use report::{Measured, Report};
use round::{Round, nanoseconds_since};
use subjects::{Process, STATIC, Subject, backend_socket, own_program, pinned, program};
use works::Work;

const CRISWITCH: &str = env!("CARGO_BIN_EXE_criswitchd");
/// The HTTP/2 windows of client and backend. They are so large that a list of 10,000 containers needs no update of a
/// window.
const WINDOW: u32 = 16 << 20;
const CONNECTION_WINDOW: u32 = 64 << 20;
/// With one call in flight, all processes run on this processor. With several calls, the client and the backends run on
/// this one, and the subject on `SECOND_PROCESSOR`.
const PROCESSOR: usize = 0;
const SECOND_PROCESSOR: usize = 1;

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,
    /// The flag that `cargo bench` adds.
    #[arg(long, hide = true, global = true)]
    bench: bool,
}

#[derive(Subcommand)]
enum Role {
    /// Measures the subjects.
    Run(Run),
    /// Serves as a backend.
    Backend {
        socket: PathBuf,
        number: usize,
        work: Work,
    },
    /// Calls a socket, and prints the times as JSON.
    Client {
        socket: PathBuf,
        work: Work,
        calls: usize,
        backends: Vec<PathBuf>,
    },
    /// Merges lists with prost, and prints the times as JSON.
    Reference { work: Work, calls: usize },
    /// Copies bytes between the clients of a socket and a backend.
    Splice { socket: PathBuf, backend: PathBuf },
}

#[derive(clap::Args)]
struct Run {
    /// The directory for sockets, configurations and the JSON.
    directory: PathBuf,
    /// The directory with nginx, haproxy, goproxy and valgrind, and optionally criswitch-static.
    #[arg(long)]
    programs: PathBuf,
    /// The number of rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Divides the number of calls in each round by this number.
    #[arg(long, default_value_t = 1)]
    divide: usize,
    /// The file with the times of pods' lives on a real containerd.
    #[arg(long)]
    lives: Option<PathBuf>,
    /// Measures only this work; may be repeated.
    #[arg(long)]
    work: Vec<Work>,
    /// Measures only this subject; may be repeated.
    #[arg(long)]
    subject: Vec<Subject>,
    /// Also counts the instructions of a call.
    #[arg(long)]
    instructions: bool,
}

fn main() -> ExitCode {
    match Arguments::parse().role {
        None => println!("compare: see benches/compare/run.sh"),
        Some(Role::Run(run)) => return run.run(),
        Some(Role::Backend {
            socket,
            number,
            work,
        }) => {
            block_on(backend::serve(&socket, number, work));
        }
        Some(Role::Splice { socket, backend }) => block_on(splice::serve(&socket, &backend)),
        Some(Role::Client {
            socket,
            work,
            calls,
            backends,
        }) => print(&block_on(client::measure(&socket, work, calls, &backends))),
        Some(Role::Reference { work, calls }) => print(&reference::measure(work, calls)),
    }
    ExitCode::SUCCESS
}

fn print(round: &Round) {
    println!("{}", serde_json::to_string(round).unwrap());
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(future)
}

impl Run {
    fn run(&self) -> ExitCode {
        let works = if self.work.is_empty() {
            Work::value_variants()
        } else {
            &self.work
        };
        let mut report = Report {
            measured: Vec::new(),
            stripped_bytes: self.stripped_bytes(),
            lives: self.lives.as_ref().map(|path| {
                let times = fs::read_to_string(path).unwrap();
                serde_json::from_str(&times).unwrap()
            }),
        };
        for work in works {
            report.measured.extend(self.measure(*work));
            report.write(&self.directory.join("compare.json"));
        }
        report.print();
        let measured = report.measured.iter();
        match measured.filter(|measured| measured.fault.is_some()).count() {
            0 => ExitCode::SUCCESS,
            wrong => {
                println!("\n{wrong} subjects sent a wrong reply");
                ExitCode::FAILURE
            }
        }
    }

    /// Measures the subjects with one work. The process of a subject lives through all rounds.
    fn measure(&self, work: Work) -> Vec<Measured> {
        let backends = 0..work.backends();
        let backends =
            backends.map(|number| Process::of_backend(&self.directory, number, work, PROCESSOR));
        let backends: Vec<Process> = backends.collect();
        let aside = match work.in_flight() {
            1 => pinned(PROCESSOR),
            _ => pinned(SECOND_PROCESSOR),
        };
        let mut subjects: Vec<_> = Subject::ALL
            .into_iter()
            .filter(|subject| self.subject.is_empty() || self.subject.contains(subject))
            .filter(|subject| subject.does(work))
            .filter(|subject| *subject != Subject::Static || self.programs.join(STATIC).exists())
            .map(|subject| {
                let process = self.start(subject, work, &aside);
                (process, Measured::new(work, subject))
            })
            .collect();
        for _ in 0..self.rounds {
            for (process, measured) in &mut subjects {
                self.add_round(measured, process);
            }
        }
        let mut measured: Vec<Measured> =
            subjects.into_iter().map(|(_, measured)| measured).collect();
        if self.instructions && work.is_counted() {
            measured
                .iter_mut()
                .for_each(|measured| self.count_instructions(measured));
        }
        drop(backends);
        measured
    }

    fn add_round(&self, measured: &mut Measured, process: &mut Option<Process>) {
        let (work, subject) = (measured.work, measured.subject);
        let calls = (work.calls() / self.divide).max(work.in_flight());
        eprintln!("{} {} ({calls})", work.name(), subject.name());
        if work == Work::Start {
            let round = self.starts(subject, work, calls, process);
            return measured.add(round, None, process.as_ref().map(Process::memory));
        }
        let before = process.as_ref().map(Process::ran_ns);
        let round = self.round(subject, work, calls);
        let ran_ns = process
            .as_ref()
            .map(Process::ran_ns)
            .zip(before)
            .map(|(after, before)| after - before);
        measured.add(round, ran_ns, process.as_ref().map(Process::memory));
    }

    /// Starts a subject, and waits until all its replies are correct: criswitch listens before its backends have
    /// answered.
    fn start(&self, subject: Subject, work: Work, under: &[String]) -> Option<Process> {
        let process = Process::of_subject(subject, &self.directory, work, &self.programs, under)?;
        block_on(async {
            let expected = Expected::of(work, &self.backend_sockets(work)).await;
            client::first_replies(&subject.socket(&self.directory), &expected).await;
        });
        Some(process)
    }

    fn round(&self, subject: Subject, work: Work, calls: usize) -> Round {
        let client = self.client(subject, work, calls);
        let output = program(&[pinned(PROCESSOR), client].concat())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{text}"))
    }

    /// Returns the command that makes the calls of a round.
    fn client(&self, subject: Subject, work: Work, calls: usize) -> Vec<String> {
        let (work_name, calls) = (work.name(), calls.to_string());
        if subject == Subject::Prost {
            return vec![own_program(), "reference".to_owned(), work_name, calls];
        }
        let socket = subject.socket(&self.directory).display().to_string();
        let backends = self
            .backend_sockets(work)
            .into_iter()
            .map(|backend| backend.display().to_string());
        let client = [own_program(), "client".to_owned(), socket, work_name, calls];
        client.into_iter().chain(backends).collect()
    }

    fn backend_sockets(&self, work: Work) -> Vec<PathBuf> {
        let numbers = 0..work.backends();
        let sockets = numbers.map(|number| backend_socket(&self.directory, number));
        sockets.collect()
    }

    /// Starts the subject this many times. The time of a start ends when the first replies are correct.
    fn starts(
        &self,
        subject: Subject,
        work: Work,
        starts: usize,
        process: &mut Option<Process>,
    ) -> Round {
        let socket = subject.socket(&self.directory);
        let backends = self.backend_sockets(work);
        let expected = block_on(Expected::of(work, &backends));
        let begin = Instant::now();
        let took = (0..starts).map(|_| {
            *process = None;
            let since = Instant::now();
            *process = Process::of_subject(subject, &self.directory, work, &self.programs, &[]);
            block_on(client::first_replies(&socket, &expected));
            nanoseconds_since(since)
        });
        Round::new(took.collect(), begin.elapsed(), None)
    }

    /// Returns the size of criswitch's binary without symbols, in bytes.
    fn stripped_bytes(&self) -> u64 {
        let stripped = self.directory.join("stripped");
        let mut strip = Command::new("strip");
        strip.arg("-o").arg(&stripped).arg(CRISWITCH);
        assert!(strip.status().unwrap().success());
        fs::metadata(stripped).unwrap().len()
    }
}
