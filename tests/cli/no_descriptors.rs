//! A daemon without free file descriptors.

use std::os::unix::net::UnixStream;
use std::path::Path;

use criswitch_cri::codec::cri::VersionRequest;
use tonic::Code;

use crate::logged_daemon::LoggedDaemon;
use crate::serve::one_backend;
use crate::support::{Client, Sim, frame_raw};
use crate::text;

/// A shell script that limits the open files of the daemon to 48 and then starts the daemon.
const FILES: &str = "ulimit -n 48; exec \"$0\" \"$@\"";
/// More connections than the limit of open files allows.
const CROWD: usize = 60;
/// The log line. It has the operating system's error text without the error number, which would only repeat the text.
const LINE: &str = "cannot accept a connection error=Too many open files omitted=";

fn crowd(listen: &Path) -> Vec<UnixStream> {
    let connect = |_| UnixStream::connect(listen).unwrap();
    (0..CROWD).map(connect).collect()
}

#[tokio::test]
async fn connections_that_cannot_be_accepted_are_logged_once_until_one_is_accepted() {
    let (files, listen, backend) = one_backend();
    let runc = Sim::new("runc");
    runc.serve_on(&backend);
    runc.hold("ListPodSandboxMetrics");
    let mut serve = std::process::Command::new("sh");
    serve.args(["-c", FILES, env!("CARGO_BIN_EXE_criswitchd")]);
    serve.args(["--config", text(&files.main())]);
    let mut shown = LoggedDaemon::start_as(serve);
    let client = Client::new(&listen).raw().await;
    let path = |rpc| format!("/runtime.v1.RuntimeService/{rpc}");
    let version = client.call(&path("Version"), &[], frame_raw(b"")).await;
    assert_eq!(version.code(), Code::Ok);

    let first = crowd(&listen);
    shown.until(LINE);
    // While this call waits for its deadline, the daemon tries to accept connections several times and fails.
    let deadline = [("grpc-timeout", "1S")];
    let list = client
        .call(&path("ListPodSandboxMetrics"), &deadline, frame_raw(b""))
        .await;
    assert_eq!(list.code(), Code::DeadlineExceeded);
    let again = shown.so_far().filter(|line| line.contains(LINE)).count();
    assert_eq!(again, 0, "it is shown again");

    drop(first);
    let mut another = Client::new(&listen).runtime();
    another.version(VersionRequest::default()).await.unwrap();
    let _second = crowd(&listen);
    shown.until(LINE);
}
