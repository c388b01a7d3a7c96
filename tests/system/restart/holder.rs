//! Holds the socket as systemd does: starts the real binary with the socket, and keeps the socket open when the binary
//! ends.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread;

use tempfile::TempDir;
use tokio::sync::watch;

use crate::support::{Client, IMAGE, PATIENCE, Sim, passing};

const BINARY: &str = env!("CARGO_BIN_EXE_criswitchd");
/// The number of pods that exist all the time, each with a container.
const PODS: usize = 5;
/// The number of lines of criswitch's log that are kept for error messages.
const KEPT: usize = 200;

/// The socket, two simulated runtimes, and criswitch as a process.
pub struct Holder {
    pub runtime: Sim,
    other_runtime: Sim,
    pub socket: PathBuf,
    pub pods: Vec<String>,
    pub containers: Vec<String>,
    listener: UnixListener,
    switch: Child,
    log: watch::Receiver<VecDeque<String>>,
    directory: TempDir,
}

impl Holder {
    pub async fn new() -> Holder {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let (runtime, other_runtime) = (Sim::new("runc").image(IMAGE), Sim::new("kata"));
        runtime.serve_on(&at("runc.sock"));
        other_runtime.serve_on(&at("kata.sock"));
        let socket = at("criswitch.sock");
        let (runc, kata) = (at("runc.sock"), at("kata.sock"));
        let text = format!(
            "listen = {socket:?}\ndefault_handler = \"runc\"\n[handlers]\nrunc = {runc:?}\nkata = {kata:?}\n"
        );
        std::fs::write(at("criswitch.toml"), text).unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        let (switch, log) = start(&listener, &directory);
        let mut holder = Holder {
            runtime,
            other_runtime,
            socket,
            pods: Vec::new(),
            containers: Vec::new(),
            listener,
            switch,
            log,
            directory,
        };
        holder.populate().await;
        holder
    }

    async fn populate(&mut self) {
        let client = Client::new(&self.socket);
        for n in 0..PODS {
            let pod = client.run_pod("runc", &format!("web-{n}")).await.unwrap();
            let container = client.create(&pod, "main").await.unwrap();
            client.start(&container).await.unwrap();
            self.pods.push(pod);
            self.containers.push(container);
        }
        let kata = client.run_pod("kata", "safe").await.unwrap();
        self.pods.push(kata);
    }

    /// Starts criswitch with the socket.
    pub fn start(&mut self) {
        (self.switch, self.log) = start(&self.listener, &self.directory);
    }

    pub fn signal(&self, name: &str) {
        let id = self.switch.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.unwrap().success());
    }

    /// Waits for a line in criswitch's log.
    pub async fn until_it_says(&mut self, words: &str) {
        let mut log = self.log.clone();
        let said = log.wait_for(|log| log.iter().any(|line| line.contains(words)));
        let waited = tokio::time::timeout(PATIENCE, said).await.map(drop);
        assert!(
            waited.is_ok(),
            "criswitch did not log {words:?}\n{}",
            self.last_lines()
        );
    }

    /// Waits until criswitch has ended, and checks that it cut off no call.
    pub async fn ended(&mut self) {
        let mut log = self.log.clone();
        // The log is closed when criswitch has ended.
        let closed = async { while log.changed().await.is_ok() {} };
        let waited = tokio::time::timeout(PATIENCE, closed).await;
        assert!(
            waited.is_ok(),
            "criswitch did not exit\n{}",
            self.last_lines()
        );
        let code = self.switch.wait().unwrap().code();
        assert_eq!(code, Some(0), "{}", self.last_lines());
        let lines = self.last_lines();
        assert!(!lines.contains("still in flight"), "{lines}");
        assert!(self.socket.exists());
    }

    pub fn last_lines(&self) -> String {
        Vec::from(self.log.borrow().clone()).join("\n")
    }

    /// Asserts that no pod was created twice or left behind.
    pub fn has_only_its_own(&self) {
        let runtimes = [&self.runtime, &self.other_runtime];
        let mut pods: Vec<_> = runtimes
            .iter()
            .flat_map(|runtime| runtime.pods())
            .map(|pod| pod.id)
            .collect();
        let mut own = self.pods.clone();
        pods.sort();
        own.sort();
        assert_eq!(pods, own);
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.switch.kill().ok();
        self.switch.wait().ok();
    }
}

fn start(
    listener: &UnixListener,
    directory: &TempDir,
) -> (Child, watch::Receiver<VecDeque<String>>) {
    let mut switch = passing(BINARY, listener.try_clone().unwrap(), 1, "1");
    switch.arg("--config");
    switch.arg(directory.path().join("criswitch.toml"));
    let mut switch = switch.stderr(Stdio::piped()).spawn().unwrap();
    let log = watch::Sender::new(VecDeque::new());
    let lines = log.subscribe();
    let stderr = switch.stderr.take().unwrap();
    thread::spawn(move || read(stderr, &log));
    (switch, lines)
}

fn read(stderr: ChildStderr, log: &watch::Sender<VecDeque<String>>) {
    for line in BufReader::new(stderr).lines() {
        log.send_modify(|log| {
            log.push_back(line.unwrap());
            if log.len() > KEPT {
                log.pop_front();
            }
        });
    }
}
