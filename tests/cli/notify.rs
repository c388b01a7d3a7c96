//! `criswitch serve` under a service manager: its notifications, even if the manager hangs or has ended.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;

use criswitch_cri::codec::cri::VersionRequest;

use crate::logged_daemon::LoggedDaemon;
use crate::serve::{Daemon, one_backend};
use crate::support::{Client, ConfigFiles, PATIENCE, Sim};
use crate::text;

fn serve(files: &ConfigFiles, manager: &Path, watchdog_usec: &str) -> Command {
    let mut command = crate::daemon(text(&files.main()));
    command.env("NOTIFY_SOCKET", manager);
    command.env("WATCHDOG_USEC", watchdog_usec);
    command
}

fn manager(files: &ConfigFiles) -> (UnixDatagram, std::path::PathBuf) {
    let path = files.main().with_file_name("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    (socket, path)
}

/// Reads messages until a line begins with `wanted`, and returns the line.
async fn notified(socket: &UnixDatagram, wanted: &'static str) -> String {
    let socket = socket.try_clone().unwrap();
    let read = move || loop {
        let mut buffer = [0; 4096];
        // A signal to the test process interrupts a read that has a timeout. The loop then reads again.
        let length = match socket.recv(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            received => received.expect(wanted),
        };
        let message = std::str::from_utf8(&buffer[..length]).unwrap();
        if let Some(line) = message.lines().find(|line| line.starts_with(wanted)) {
            return line.to_owned();
        }
    };
    tokio::task::spawn_blocking(read).await.unwrap()
}

#[tokio::test]
async fn the_service_manager_is_notified_from_the_start_to_the_end() {
    let (files, listen, backend) = one_backend();
    let (socket, path) = manager(&files);
    let sim = Sim::new("runc");
    sim.serve_on(&backend);
    let daemon = Daemon::start_as(serve(&files, &path, "300000")).await;
    notified(&socket, "READY=1").await;
    notified(&socket, "STATUS=1/1 backend ready, 0 pods").await;
    notified(&socket, "WATCHDOG=1").await;
    Client::new(&listen).run_pod("", "web").await.unwrap();
    notified(&socket, "STATUS=1/1 backend ready, 1 pod").await;
    let end = tokio::spawn(daemon.ends_after("TERM"));
    notified(&socket, "STOPPING=1").await;
    assert_eq!(end.await.unwrap(), Some(0));
}

#[tokio::test]
async fn the_service_manager_is_asked_for_as_much_time_as_the_shutdown_may_take() {
    let (files, _, _) = one_backend();
    let (socket, path) = manager(&files);
    let config = std::fs::read_to_string(files.main()).unwrap();
    std::fs::write(files.main(), format!("shutdown_timeout = '2m'\n{config}")).unwrap();
    let daemon = Daemon::start_as(serve(&files, &path, "0")).await;
    let end = tokio::spawn(daemon.ends_after("TERM"));
    let asked = notified(&socket, "EXTEND_TIMEOUT_USEC=").await;
    assert_eq!(asked, "EXTEND_TIMEOUT_USEC=125000000");
    assert_eq!(end.await.unwrap(), Some(0));
}

#[tokio::test]
async fn an_absent_service_manager_causes_one_log_line() {
    let (files, listen, backend) = one_backend();
    let sim = Sim::new("runc");
    sim.serve_on(&backend);
    let no_manager = files.main().with_file_name("nobody");
    let daemon = Daemon::start_as(serve(&files, &no_manager, "3000")).await;
    let client = Client::new(&listen);
    for n in 0..50 {
        client.run_pod("", &format!("web-{n}")).await.unwrap();
    }
    let log = daemon.whole_log("TERM").await;
    let warned = log.iter().filter(|line| line.contains("NOTIFY_SOCKET"));
    assert_eq!(warned.count(), 1, "{log:#?}");
}

#[tokio::test]
async fn a_hanging_service_manager_delays_neither_calls_nor_the_shutdown() {
    let (files, listen, backend) = one_backend();
    let (_unread, path) = manager(&files);
    Sim::new("runc").serve_on(&backend);
    // With a watchdog interval of 300 microseconds, the daemon sends more messages than the unread socket can queue.
    let daemon = Daemon::start_as(serve(&files, &path, "300")).await;
    let mut client = Client::new(&listen).runtime();
    for _ in 0..200 {
        client.version(VersionRequest::default()).await.unwrap();
    }
    assert_eq!(daemon.ends_after("TERM").await, Some(0));
}

#[tokio::test]
async fn a_reload_during_the_shutdown_does_not_report_ready_again() {
    let (files, listen, backend) = one_backend();
    let (socket, path) = manager(&files);
    let sim = Sim::new("runc");
    sim.serve_on(&backend);
    let mut daemon = LoggedDaemon::start_as(serve(&files, &path, "0"));
    notified(&socket, "READY=1").await;
    let client = Client::new(&listen);
    sim.hold("RunPodSandbox");
    let call = tokio::spawn(async move { client.run_pod("", "web").await });
    sim.until_held("RunPodSandbox").await;
    daemon.signal("TERM");
    notified(&socket, "STOPPING=1").await;
    daemon.signal("HUP");
    let reloaded = move || {
        daemon.until(" reloaded ");
        daemon
    };
    let daemon = tokio::task::spawn_blocking(reloaded).await.unwrap();
    sim.release("RunPodSandbox");
    call.await.unwrap().unwrap();
    let ends = tokio::task::spawn_blocking(|| daemon.ends());
    ends.await.unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut buffer = [0; 4096];
    while let Ok(length) = socket.recv(&mut buffer) {
        let message = std::str::from_utf8(&buffer[..length]).unwrap();
        assert!(!message.contains("READY"), "{message}");
        assert!(!message.contains("RELOADING"), "{message}");
    }
}
