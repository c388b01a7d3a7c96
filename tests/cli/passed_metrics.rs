//! `criswitch serve` with a second passed descriptor, which is named `metrics`: a socket, or an unusable descriptor.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Command;

use criswitch_cri::codec::cri::VersionRequest;

use crate::serve::{Daemon, one_backend};
use crate::support::{Client, ConfigFiles, PATIENCE, Sim, passing, passing_both};
use crate::text;

const BINARY: &str = env!("CARGO_BIN_EXE_criswitchd");
const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nhost: node\r\n\r\n";

/// A configuration with one backend that answers, and the socket to listen on.
struct Node {
    files: ConfigFiles,
    listen: PathBuf,
    socket: UnixListener,
}

impl Node {
    fn new() -> Node {
        let (node, backend) = Node::without_backend();
        Sim::new("runc").serve_on(&backend);
        node
    }

    /// A configuration with one backend that does not run, and the backend's socket.
    fn without_backend() -> (Node, PathBuf) {
        let (files, listen, backend) = one_backend();
        let socket = UnixListener::bind(&listen).unwrap();
        let node = Node {
            files,
            listen,
            socket,
        };
        (node, backend)
    }

    fn metrics_listen(&self, place: &str) {
        let config = std::fs::read_to_string(self.files.main()).unwrap();
        let key = format!("metrics.listen = '{place}'\n");
        std::fs::write(self.files.main(), key + &config).unwrap();
    }

    /// A `serve` command that gets two descriptors: `metrics`, then the socket for clients.
    fn serve(&self, metrics: impl Into<OwnedFd>, names: &str) -> Command {
        let socket = self.socket.try_clone().unwrap().into();
        let mut command = passing_both(BINARY, [metrics.into(), socket], names);
        command.args(["--config", text(&self.files.main())]);
        command
    }

    /// The whole log of a daemon that gets `metrics` as its socket for metrics. The daemon serves one call.
    async fn log_with(&self, metrics: impl Into<OwnedFd>) -> String {
        let serve = self.serve(metrics, "metrics:criswitch.socket");
        self.log_of(Daemon::start_as(serve).await).await
    }

    /// Makes one call to the daemon, ends the daemon, and returns its whole log.
    async fn log_of(&self, daemon: Daemon) -> String {
        let mut client = Client::new(&self.listen).runtime();
        client.version(VersionRequest::default()).await.unwrap();
        daemon.whole_log("TERM").await.join("\n")
    }

    /// The error of a daemon that does not start, and exits with 1.
    fn refused(&self, mut serve: Command) -> String {
        serve.args(["--config", text(&self.files.main())]);
        let output = serve.output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    }
}

fn loopback() -> (TcpListener, SocketAddr) {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

async fn page(connected: impl Read + Write + Send + 'static) -> String {
    let mut stream = connected;
    let read = move || {
        stream.write_all(REQUEST).unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        page
    };
    let read = tokio::task::spawn_blocking(read);
    tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap()
}

async fn page_at(address: SocketAddr) -> String {
    page(TcpStream::connect(address).unwrap()).await
}

fn path_in(node: &Node, name: &str) -> PathBuf {
    node.listen.with_file_name(name)
}

#[tokio::test]
async fn a_passed_loopback_socket_serves_metrics_again_after_a_restart() {
    let node = Node::new();
    let (metrics, address) = loopback();
    for _ in 0..2 {
        let passed = metrics.try_clone().unwrap();
        let daemon = Daemon::start_as(node.serve(passed, "metrics:criswitch.socket")).await;
        assert!(page_at(address).await.contains("criswitch_build_info"));
        let mut client = Client::new(&node.listen).runtime();
        client.version(VersionRequest::default()).await.unwrap();
        assert_eq!(daemon.ends_after("TERM").await, Some(0));
    }
}

#[tokio::test]
async fn a_passed_unix_socket_serves_metrics_and_its_file_stays() {
    let node = Node::new();
    let path = path_in(&node, "metrics");
    let metrics = UnixListener::bind(&path).unwrap();
    let daemon = Daemon::start_as(node.serve(metrics, "metrics:criswitch.socket")).await;
    let reply = page(UnixStream::connect(&path).unwrap()).await;
    assert!(reply.contains("criswitch_build_info"), "{reply}");
    assert_eq!(daemon.ends_after("TERM").await, Some(0));
    assert!(path.exists());
}

#[tokio::test]
async fn the_configuration_may_name_the_passed_address() {
    let node = Node::new();
    let (metrics, address) = loopback();
    node.metrics_listen(&address.to_string());
    let daemon = Daemon::start_as(node.serve(metrics, "metrics:criswitch.socket")).await;
    assert!(page_at(address).await.contains("criswitch_build_info"));
    let log = daemon.whole_log("TERM").await.join("\n");
    assert!(!log.contains("ERROR"), "{log}");
}

#[tokio::test]
async fn a_different_configured_address_is_used_and_the_passed_one_is_reported() {
    let node = Node::new();
    let (metrics, address) = loopback();
    let path = path_in(&node, "metrics");
    node.metrics_listen(text(&path));
    let daemon = Daemon::start_as(node.serve(metrics, "metrics:criswitch.socket")).await;
    let connected = async {
        loop {
            match UnixStream::connect(&path) {
                Ok(stream) => break stream,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    let stream = tokio::time::timeout(PATIENCE, connected).await.unwrap();
    assert!(page(stream).await.contains("criswitch_build_info"));
    let log = daemon.whole_log("TERM").await.join("\n");
    let both = format!("is {address}, but `[metrics] listen` is {}", text(&path));
    assert_eq!(log.matches(&both).count(), 1, "{log}");
    assert_eq!(log.matches("ERROR").count(), 1, "{log}");
}

#[tokio::test]
async fn an_unusable_metrics_descriptor_is_reported_once_and_calls_are_served() {
    let node = Node::new();
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    let connection = UnixStream::pair().unwrap().0;
    for (passed, why) in [
        (OwnedFd::from(datagrams), "not a suitable stream socket"),
        (connection.into(), "does not listen"),
        (
            File::open("/dev/null").unwrap().into(),
            "fd 3 is not a socket",
        ),
    ] {
        let log = node.log_with(passed).await;
        assert_eq!(log.matches(why).count(), 1, "{log}");
        assert_eq!(log.matches("ERROR").count(), 1, "{log}");
        assert!(log.contains("127.0.0.1:9199"), "{log}");
    }
}

#[test]
fn criswitch_does_not_start_without_exactly_one_socket_for_clients() {
    let (node, _) = Node::without_backend();
    let metrics = || OwnedFd::from(loopback().0);
    let mut alone = passing(BINARY, metrics(), 1, "1");
    alone.env("LISTEN_FDNAMES", "metrics");
    let said = node.refused(alone);
    assert!(said.contains("start criswitch.socket too"), "{said}");

    let two = || [metrics(), metrics()];
    let said = node.refused(passing_both(BINARY, two(), "one:other"));
    assert!(
        said.contains("2 sockets were passed (LISTEN_FDS), named one, other"),
        "{said}"
    );
    assert!(said.contains("FileDescriptorName=metrics"), "{said}");

    let said = node.refused(passing_both(BINARY, two(), "one:other:third"));
    assert!(said.contains("LISTEN_FDNAMES"), "{said}");
}

#[tokio::test]
async fn a_metrics_address_in_use_is_reported_and_calls_are_served() {
    let (node, taken) = (Node::new(), loopback());
    node.metrics_listen(&taken.1.to_string());
    let mut serve = passing(BINARY, node.socket.try_clone().unwrap(), 1, "1");
    serve.args(["--config", text(&node.files.main())]);
    let daemon = Daemon::start_as(serve).await;
    let log = node.log_of(daemon).await;
    assert_eq!(log.matches("ERROR").count(), 1, "{log}");
    assert!(log.contains("stop the process that listens there"), "{log}");
}
