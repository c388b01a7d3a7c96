//! The address of metrics, the readers that may connect, and calls that do not wait for readers.

#[cfg(unix)]
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use criswitch::backend::connect::Dialer;
use criswitch::operator::metrics;
use criswitch::switch::Switch;
use criswitch_config::Config;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::logged::Logged;
use crate::page::{Page, ask, connected, converse, rig};
use crate::support::{PATIENCE, Rig, Sim, sockets};

async fn one() -> Rig {
    rig("", [Sim::new("runc")]).await
}

#[cfg(unix)] // A pipe has no file and no mode.
#[tokio::test]
async fn the_socket_is_for_root_only_and_is_removed_at_the_end() {
    let mut rig = one().await;
    Page::of(&rig).await;
    let socket = rig.directory().join("m.sock");
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    rig.stop_switch().await;
    let gone = async {
        while socket.exists() {
            crate::support::clock::turn().await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.unwrap();
}

/// A page has the processor time that criswitch used so far, so no two pages are equal.
#[tokio::test]
async fn readers_within_a_second_get_one_page() {
    let rig = one().await;
    let socket = rig.directory().join("m.sock");
    let body = async || {
        let reply = ask(&socket, "GET /metrics").await;
        reply.split_once("\r\n\r\n").unwrap().1.to_owned()
    };
    let (first, second) = tokio::join!(body(), body());
    assert_eq!(first, second);
    rig.run_pod("runc", "web").await;
    assert_eq!(body().await, first);
    crate::support::clock::later(metrics::PAGE_AGE).await;
    assert_ne!(body().await, first);
}

#[tokio::test]
async fn only_the_page_is_served_and_only_for_reading() {
    let rig = one().await;
    let socket = rig.directory().join("m.sock");
    for (line, answer) in [
        ("GET /metrics", "200 OK"),
        ("GET /metrics?x=y", "200 OK"),
        ("HEAD /metrics", "200 OK"),
        ("GET /", "404 Not Found"),
        ("POST /", "404 Not Found"),
        ("POST /metrics", "405 Method Not Allowed"),
    ] {
        let reply = ask(&socket, line).await;
        assert!(
            reply.starts_with(&format!("HTTP/1.1 {answer}\r\n")),
            "{line}: {reply}"
        );
        let body = reply.split_once("\r\n\r\n").unwrap().1;
        assert_eq!(
            body.contains("criswitch_"),
            line.starts_with("GET /metrics"),
            "{line}"
        );
    }
}

#[tokio::test]
async fn a_reader_that_accepts_open_metrics_gets_it() {
    let rig = one().await;
    let stream = connected(&rig.directory().join("m.sock")).await;
    let accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4";
    let head = format!("GET /metrics HTTP/1.1\r\nhost: node\r\naccept: {accept}\r\n\r\n");
    let reply = converse(stream, head.as_bytes()).await;
    assert!(reply.contains("content-type: application/openmetrics-text; version=1.0.0"));
    assert!(reply.contains("\n# TYPE criswitch_connections counter\n"));
    assert!(reply.contains("\ncriswitch_connections_total "));
    assert!(reply.ends_with("\n# EOF\n"));
}

#[tokio::test]
async fn an_oversized_request_is_rejected_and_idle_readers_are_disconnected() {
    let rig = one().await;
    let socket = rig.directory().join("m.sock");
    let long = format!("GET /metrics HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(20_000));
    let reply = converse(connected(&socket).await, long.as_bytes()).await;
    assert!(
        !reply.contains("200 OK") && !reply.contains("criswitch_"),
        "{reply}"
    );
    // Connect more readers than criswitch serves at once.
    let mut silent = Vec::new();
    for _ in 0..20 {
        let mut stream = connected(&socket).await;
        stream.write_all(b"GET /metrics HT").await.unwrap();
        silent.push(stream);
    }
    // Calls succeed while these readers are connected.
    tokio::time::timeout(PATIENCE, rig.pods())
        .await
        .unwrap()
        .unwrap();
    drop(silent);
    Page::of(&rig).await;
}

/// A criswitch that serves no clients and has this address for metrics.
fn switch(directory: &std::path::Path, listen: &str) -> Arc<Switch> {
    let path = directory.join("criswitch.toml");
    let at = sockets::text(directory);
    let table = format!(
        "default_handler = \"runc\"\nmetrics.listen = \"{listen}\"\n[handlers]\nrunc = \"{at}/runc.sock\"\n"
    );
    std::fs::write(&path, table).unwrap();
    Arc::new(Switch::new(Config::load(&path).unwrap(), &Dialer::Socket))
}

async fn answered(port: u16) -> Option<String> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    Some(converse(stream, b"GET /metrics HTTP/1.1\r\nhost: node\r\n\r\n").await)
}

#[tokio::test(start_paused = true)]
async fn an_address_in_use_is_logged_once_and_retried_until_it_is_free() {
    let logged = Logged::here();
    let directory = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port();
    let switch = switch(directory.path(), &format!("127.0.0.1:{port}"));
    let _serving = metrics::keep_serving(&switch, None);
    // The test's clock is paused, so it jumps from one retry to the next.
    tokio::time::sleep(Duration::from_secs(100)).await;
    drop(taken);
    assert_eq!(answered(port).await, None);
    tokio::time::sleep(Duration::from_secs(31)).await;
    let reply = answered(port).await.unwrap();
    assert!(reply.contains("criswitch_build_info"), "{reply}");
    let address = format!("127.0.0.1:{port}");
    let shown = logged.lines(&["metrics are not served", &address]);
    assert!(shown.len() == 1 && shown[0].contains("ERROR"), "{shown:#?}");
    assert!(
        shown[0].contains("stop the process that listens there"),
        "{shown:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_does_not_send_its_whole_request_within_a_second_is_disconnected() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("m.sock");
    let listen = format!("{}/m.sock", sockets::text(directory.path()));
    let switch = switch(directory.path(), &listen);
    let _serving = metrics::keep_serving(&switch, None);
    for begun in ["", "GET /metrics HT"] {
        let stream = connected(&socket).await;
        let before = Instant::now();
        let reply = converse(stream, begun.as_bytes()).await;
        assert!(!reply.contains("200 OK"), "{reply}");
        let waited = before.elapsed();
        assert!(waited < Duration::from_secs(2), "{begun:?}: {waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn silent_readers_beyond_the_limit_delay_a_reader_for_less_than_a_second() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("m.sock");
    let listen = format!("{}/m.sock", sockets::text(directory.path()));
    let switch = switch(directory.path(), &listen);
    let _serving = metrics::keep_serving(&switch, None);
    let mut silent = Vec::new();
    // Connect five times as many readers as criswitch serves at once.
    for _ in 0..40 {
        silent.push(connected(&socket).await);
    }
    let before = Instant::now();
    let reply = ask(&socket, "GET /metrics").await;
    assert!(reply.contains("criswitch_build_info"), "{reply}");
    let waited = before.elapsed();
    assert!(waited < Duration::from_secs(1), "{waited:?}");
}
