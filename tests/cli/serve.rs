//! `criswitch serve` from its start to a signal.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use criswitch_cri::codec::cri::VersionRequest;

use crate::processes;
use crate::support::{Client, ConfigFiles, Sim, native};
use crate::{beside, daemon, ended, main_file, text};

/// A daemon, which is killed if the test ends first.
pub(crate) struct Daemon {
    process: Option<Child>,
    /// The log before the daemon serves.
    pub(crate) before_serving: Vec<String>,
    log: Option<JoinHandle<Vec<String>>>,
}

impl Daemon {
    async fn start(files: &ConfigFiles) -> Daemon {
        Daemon::start_as(daemon(text(&files.main()))).await
    }

    /// Starts the daemon and waits until it logs that it serves.
    pub(crate) async fn start_as(mut serve: Command) -> Daemon {
        processes::with_own_state(&serve);
        let mut process = serve.stderr(Stdio::piped()).spawn().unwrap();
        let stderr = process.stderr.take().unwrap();
        Daemon::of(process, stderr).await
    }

    /// Waits until a started daemon logs that it serves.
    pub(crate) async fn of(process: Child, log: impl Read + Send + 'static) -> Daemon {
        let stderr = BufReader::new(log);
        let said = tokio::task::spawn_blocking(|| {
            let mut lines = stderr.lines().map(Result::unwrap);
            let said: Vec<_> = lines
                .by_ref()
                .take_while(|line| !line.contains("socket_activated"))
                .collect();
            // The log must stay open, or the daemon could not write to it.
            (said, std::thread::spawn(|| lines.collect()))
        });
        let mut daemon = Daemon {
            process: Some(process),
            before_serving: Vec::new(),
            log: None,
        };
        let said = tokio::time::timeout(crate::support::PATIENCE, said).await;
        let (before_serving, log) = said.unwrap().unwrap();
        daemon.before_serving = before_serving;
        daemon.log = Some(log);
        daemon
    }

    /// How many lines with these words the daemon wrote before it served.
    pub(crate) fn said(&self, words: &str) -> usize {
        let lines = self.before_serving.iter();
        lines.filter(|line| line.contains(words)).count()
    }

    /// Ends the daemon with a signal and returns its whole log.
    pub(crate) async fn whole_log(mut self, signal: &str) -> Vec<String> {
        let (mut lines, rest) = (std::mem::take(&mut self.before_serving), self.log.take());
        assert_eq!(self.ends_after(signal).await, Some(0));
        lines.extend(rest.unwrap().join().unwrap());
        lines
    }

    pub(crate) async fn ends_after(mut self, signal: &str) -> Option<i32> {
        let (process, signal) = (self.process.take().unwrap(), signal.to_owned());
        let ended = tokio::task::spawn_blocking(move || processes::end(process, &signal));
        tokio::time::timeout(crate::support::PATIENCE, ended)
            .await
            .unwrap()
            .unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            process.kill().ok();
            process.wait().ok();
        }
    }
}

/// A configuration with one backend; the socket of criswitch, and the socket of the backend.
pub(crate) fn one_backend() -> (ConfigFiles, PathBuf, PathBuf) {
    let files = main_file("");
    let path = files.main();
    let (listen, backend) = (
        path.with_file_name("listen"),
        path.with_file_name("backend"),
    );
    let config =
        format!("listen = {listen:?}\ndefault_handler = 'runc'\n[handlers]\nrunc = {backend:?}");
    std::fs::write(path, native(&config)).unwrap();
    (files, listen, backend)
}

#[cfg(unix)] // Windows has no signals.
#[tokio::test]
async fn serve_answers_on_its_socket_until_a_signal_and_exits_with_0() {
    for signal in ["TERM", "INT"] {
        let (files, listen, backend) = one_backend();
        Sim::new("runc").version("1.2.3").serve_on(&backend);
        let daemon = Daemon::start(&files).await;
        let mut client = Client::new(&listen).runtime();
        let version = client
            .version(VersionRequest::default())
            .await
            .unwrap()
            .into_inner();
        assert_eq!(version.runtime_version, "1.2.3");
        assert_eq!(daemon.ends_after(signal).await, Some(0), "{signal}");
        assert!(!listen.exists(), "{signal}");
    }
}

#[cfg(unix)] // Wine lets a second process create an instance of a pipe.
#[tokio::test]
async fn serve_that_cannot_listen_reports_the_reason_and_exits_with_1() {
    let (files, listen, _) = one_backend();
    let _first = Daemon::start(&files).await;
    let second = beside(daemon(text(&files.main()))).await;
    assert_eq!(second.code, 1);
    let why = format!("criswitchd: another process serves {}", listen.display());
    assert!(second.stderr.starts_with(&why), "{}", second.stderr);
}

#[tokio::test]
async fn serve_with_the_state_of_another_process_reports_a_hint_and_exits_with_1() {
    let ((first, ..), (second, ..)) = (one_backend(), one_backend());
    let state = first.main().with_file_name("state");
    for files in [&first, &second] {
        let config = std::fs::read_to_string(files.main()).unwrap();
        std::fs::write(files.main(), format!("state_dir = {state:?}\n{config}")).unwrap();
    }
    let _first = Daemon::start(&first).await;
    let second = beside(daemon(text(&second.main()))).await;
    assert_eq!(second.code, 1);
    let place = format!("{}; stop it", state.display());
    for why in ["another criswitch saves its state in ", &place] {
        assert!(second.stderr.contains(why), "{}", second.stderr);
    }
}

#[cfg(unix)] // A pipe has no file and no mode.
#[test]
fn serve_that_cannot_create_its_socket_reports_a_hint() {
    let rest = "default_handler = 'a'\n[handlers]\na = '/run/a.sock'";
    let files = ConfigFiles::of(&[("file", b""), ("c.sock.lock/x", b"")]);
    for (name, shown) in [
        (
            "file/c.sock",
            "file for the socket; create it, or change `listen`: ",
        ),
        (
            "c.sock",
            "c.sock.lock; if it is a link, remove it; otherwise run criswitch as root, or change `listen`: ",
        ),
    ] {
        let listen = files.main().with_file_name(name);
        std::fs::write(files.main(), format!("listen = {listen:?}\n{rest}")).unwrap();
        let outcome = ended(&mut daemon(text(&files.main())), false);
        assert_eq!(outcome.code, 1);
        assert!(outcome.stderr.contains(shown), "{}", outcome.stderr);
    }
}

#[cfg(unix)] // A pipe has no file and no mode.
#[test]
fn a_lock_that_is_a_link_is_not_followed() {
    let (files, listen, _) = one_backend();
    let victim = listen.with_file_name("victim");
    // The test holds the lock of the link's target. A daemon that followed the link would fail with another error.
    let held = std::fs::File::create(&victim).unwrap();
    held.lock().unwrap();
    let lock = listen.with_file_name("listen.lock");
    std::os::unix::fs::symlink(&victim, &lock).unwrap();
    let outcome = ended(&mut daemon(text(&files.main())), false);
    assert_eq!(outcome.code, 1);
    let shown = "listen.lock; if it is a link, remove it";
    assert!(outcome.stderr.contains(shown), "{}", outcome.stderr);
    assert!(!listen.exists());
}
