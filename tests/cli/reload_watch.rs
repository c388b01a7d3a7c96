//! Changes of the files between the start of a daemon and the first check of its watch.

use std::io::{Read, Write, pipe};
use std::process::Stdio;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::serve::{Daemon, one_backend};
use crate::support::{Client, PATIENCE, Sim};
use crate::text;

/// A full pipe: a write blocks until the pipe is read.
fn full_pipe() -> (impl Read + Send + 'static, impl Into<Stdio>) {
    let (reader, mut writer) = pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    while writer.write(b"\n").is_ok() {}
    fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

#[tokio::test]
async fn files_that_become_invalid_before_the_first_check_are_reported() {
    let (files, listen, backend) = one_backend();
    Sim::new("runc").serve_on(&backend);
    let good = std::fs::read_to_string(files.main()).unwrap();
    std::fs::write(files.main(), format!("watch = true\n{good}")).unwrap();
    let (log, stderr) = full_pipe();
    let mut serve = crate::daemon(text(&files.main()));
    let process = serve.stderr(stderr).spawn().unwrap();
    drop(serve);
    // When the socket exists, the daemon has read the files, and then waits until it can write its log.
    let begun = async {
        while !listen.exists() {
            tokio::task::yield_now().await
        }
    };
    tokio::time::timeout(PATIENCE, begun).await.unwrap();
    std::fs::write(files.main(), "watch = yes").unwrap();
    let daemon = Daemon::of(process, log).await;
    let refused = async {
        loop {
            let state = Client::new(&listen).state().await;
            if state["reloads"]["rejected"] == 1 {
                return state;
            }
        }
    };
    let state = tokio::time::timeout(PATIENCE, refused).await.unwrap();
    assert_eq!(state["reloads"]["count"], 1);
    assert_eq!(daemon.ends_after("TERM").await, Some(0));
}
