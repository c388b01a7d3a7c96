//! `criswitch serve` as a process: signals, exit codes, a second process, the umask.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use criswitch_cri::codec::cri;
use tempfile::TempDir;

use crate::support::{Client, PATIENCE, Sim};
use crate::wait::until;

const BINARY: &str = env!("CARGO_BIN_EXE_criswitchd");

/// A simulated runtime, and a configuration with it as the only backend.
pub struct Node {
    pub runc: Sim,
    pub client: Client,
    directory: TempDir,
}

impl Node {
    pub fn new() -> Node {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let runc = Sim::new("runc");
        runc.serve_on(&at("runc.sock"));
        let client = Client::new(&at("run/criswitch.sock"));
        let text = format!(
            "listen = {:?}\ndefault_handler = \"runc\"\n[handlers]\nrunc = {:?}\n",
            client.socket,
            at("runc.sock")
        );
        fs::write(at("criswitch.toml"), text).unwrap();
        Node {
            runc,
            client,
            directory,
        }
    }

    fn config(&self) -> PathBuf {
        self.directory.path().join("criswitch.toml")
    }

    /// The directory of criswitch's socket, with no files of other programs.
    pub fn socket_directory(&self) -> PathBuf {
        self.directory.path().join("run")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(BINARY);
        command.arg("--config").arg(self.config());
        command
    }

    /// Starts criswitch and waits until it serves.
    pub async fn serve(&self) -> Process {
        self.start(self.command()).await
    }

    async fn start(&self, mut command: Command) -> Process {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let process = Process(Some(command.spawn().unwrap()));
        until(async || {
            let version = cri::VersionRequest::default();
            self.client.runtime().version(version).await.is_ok()
        })
        .await;
        process
    }
}

/// A process that does not outlive its test.
pub struct Process(Option<Child>);

impl Process {
    pub fn signal(&self, name: &str) {
        let id = self.0.as_ref().unwrap().id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.unwrap().success());
    }

    /// Waits for the end. Returns the output and the exit status.
    pub async fn end(mut self) -> Output {
        ended(self.0.take().unwrap()).await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// Waits on another thread, so that the simulated runtime continues.
async fn ended(child: Child) -> Output {
    let process = child.id().to_string();
    let waiting = tokio::task::spawn_blocking(|| child.wait_with_output().unwrap());
    match tokio::time::timeout(PATIENCE, waiting).await {
        Ok(output) => output.unwrap(),
        Err(_) => {
            let killed = Command::new("kill").args(["-s", "KILL", &process]).status();
            panic!("process {process} did not end; killed: {killed:?}")
        }
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn criswitch_exits_with_status_0_on_sigterm_and_sigint() {
    for signal in ["TERM", "INT"] {
        let node = Node::new();
        let process = node.serve().await;
        process.signal(signal);
        let output = process.end().await;
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(!node.client.socket.exists(), "{signal}");
    }
}

#[tokio::test]
async fn a_call_in_flight_at_sigterm_finishes() {
    let node = Node::new();
    let process = node.serve().await;
    node.runc.hold("RunPodSandbox");
    let end = async {
        node.runc.until_held("RunPodSandbox").await;
        process.signal("TERM");
        until(async || !node.client.socket.exists()).await;
        node.runc.release("RunPodSandbox");
        process.end().await
    };
    let (pod, output) = tokio::join!(node.client.run_pod("", "web"), end);
    assert_eq!(pod.unwrap(), node.runc.pods()[0].id);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[tokio::test]
async fn a_second_process_fails_with_the_cause_and_the_first_one_still_serves() {
    let node = Node::new();
    let _first = node.serve().await;
    let second = node.command().stderr(Stdio::piped()).spawn().unwrap();
    let output = ended(second).await;
    assert_eq!(output.status.code(), Some(1));
    let shown = stderr(&output);
    let socket = node.client.socket.display().to_string();
    assert!(
        shown.contains(&socket) && shown.contains("another process"),
        "{shown}"
    );
    node.client.pods().await.unwrap();
}

#[tokio::test]
async fn a_process_can_start_after_one_that_was_killed() {
    let node = Node::new();
    let process = node.serve().await;
    process.signal("KILL");
    assert_eq!(process.end().await.status.code(), None);
    assert!(node.client.socket.exists());
    let _next = node.serve().await;
    node.client.pods().await.unwrap();
}

#[cfg(unix)] // Windows has no file modes.
#[tokio::test]
async fn the_modes_of_socket_and_directory_do_not_depend_on_the_umask() {
    use std::os::unix::fs::MetadataExt;

    for umask in ["000", "022", "077"] {
        let node = Node::new();
        let mut command = Command::new("sh");
        let script = format!("umask {umask}; exec \"$0\" --config \"$1\"");
        command.args(["-c", &script, BINARY]).arg(node.config());
        let _process = node.start(command).await;
        let mode = |path: &std::path::Path| fs::metadata(path).unwrap().mode() & 0o777;
        let socket = &node.client.socket;
        assert_eq!(mode(socket), 0o600, "umask {umask}");
        assert_eq!(mode(socket.parent().unwrap()), 0o700, "umask {umask}");
    }
}
