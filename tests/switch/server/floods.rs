//! Floods of HTTP/2 frames without content: criswitch closes the connection, and other connections are unaffected.

use std::path::{Path, PathBuf};

use criswitch::limits::flood::{CHEAP_BURST, SMALL_DATA};
use criswitch::telemetry::counters::Reason;
use criswitch_platform::connect::Stream;
use tokio::io::{AsyncWrite, AsyncWriteExt, copy, sink, split};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::faults::{state_of, until_state};
use crate::http2::{
    CANCEL, DATA, GOAWAY, PING, PREFACE, RST_STREAM, SETTINGS, begin, call_of, encoded, next,
};
use crate::logged::Logged;
use crate::support::{PATIENCE, Rig, Sim, connect, sockets};

const PRIORITY: u8 = 2;
const WINDOW_UPDATE: u8 = 8;
const UNKNOWN: u8 = 0xfa;
/// The number of frames in one write.
const MANY: usize = 1000;
/// The number of calls of a busy client. Each call has four cheap frames, so the calls together exceed the allowed
/// burst by far.
const CALLS: u32 = CHEAP_BURST * 6 / 10;
/// The number of calls in flight at once.
const AT_ONCE: u32 = 200;

/// Sends these frames until the peer closes the connection.
async fn flood(peer: &mut (impl AsyncWrite + Unpin), frame: &[u8]) {
    let frames = frame.repeat(MANY);
    while peer.write_all(&frames).await.is_ok() {}
}

/// The frames of a flood within a request: DATA of this length, then four PINGs.
fn among_data(stream: u32, length: u32) -> Vec<u8> {
    let pings = encoded(PING, 0, 0, &[0; 8]).repeat(4);
    let data = vec![0; length as usize];
    [encoded(DATA, 0, stream, &data), pings].concat()
}

#[tokio::test]
async fn a_client_that_floods_is_disconnected_while_another_clients_calls_succeed() {
    let logged = Logged::here();
    let rig = Rig::start([Sim::new("runc")]).await;
    rig.run("runc", "web").await;
    let one = 1u32.to_be_bytes();
    let kinds = [
        encoded(UNKNOWN, 0, 0, &[]),
        encoded(PRIORITY, 0, 3, &[0, 0, 0, 1, 1]),
        encoded(WINDOW_UPDATE, 0, 0, &one),
        encoded(PING, 0, 0, &[0; 8]),
        encoded(SETTINGS, 0, 0, &[]),
        // The last two floods are within an unfinished request.
        among_data(1, SMALL_DATA - 1),
        among_data(1, SMALL_DATA),
    ];
    for (before, cheap) in (0..).zip(&kinds) {
        let mut client = connect(&rig.socket).await.unwrap();
        client.write_all(PREFACE).await.unwrap();
        let greeting = encoded(SETTINGS, 0, 0, &[]);
        client.write_all(&greeting).await.unwrap();
        client.write_all(&begin(1, "ListPodSandbox")).await.unwrap();
        let (mut replies, mut frames) = split(client);
        let mut unread = sink();
        let flooded =
            async { tokio::join!(flood(&mut frames, cheap), copy(&mut replies, &mut unread)) };
        let others = async {
            for _ in 0..10 {
                assert_eq!(rig.pods().await.unwrap().len(), 1);
            }
        };
        let both = async { tokio::join!(flooded, others) };
        let ended = tokio::time::timeout(PATIENCE, both).await;
        assert!(ended.is_ok(), "{cheap:?}");
        assert_eq!(rig.rejected(Reason::Flood), before + 1, "{cheap:?}");
    }
    // Windows does not report the user of a client.
    let uid = if cfg!(unix) { "uid=" } else { "" };
    let pid = format!("pid={}", std::process::id());
    let closed = [
        "a client's connection is closed: it sends more than",
        uid,
        &pid,
    ];
    assert!(!logged.lines(&closed).is_empty(), "{}", logged.text());
}

/// A proxy in front of a runtime. It copies bytes both ways, and floods its client when `flooding` is set.
struct Proxy {
    flooding: watch::Sender<bool>,
    _serving: JoinSet<()>,
}

impl Proxy {
    fn serve_on(socket: &str, runtime: PathBuf) -> Proxy {
        let listener = sockets::bind(Path::new(socket));
        let flooding = watch::Sender::new(false);
        let shown = flooding.clone();
        let mut _serving = JoinSet::new();
        _serving.spawn(async move {
            while let Ok(client) = sockets::accept(&listener).await {
                let runtime = connect(&runtime).await.unwrap();
                pass_on(client, runtime, shown.subscribe()).await;
            }
        });
        Proxy { flooding, _serving }
    }
}

/// Copies bytes both ways until one side closes. When `shown` becomes true, floods the client instead of forwarding
/// replies.
async fn pass_on(client: Stream, runtime: Stream, mut shown: watch::Receiver<bool>) {
    let (mut requests, mut to_client) = split(client);
    let (mut replies, mut to_runtime) = split(runtime);
    let replies = async {
        tokio::select! {
            _ = copy(&mut replies, &mut to_client) => return,
            _ = shown.wait_for(|flooding| *flooding) => {}
        }
        flood(&mut to_client, &encoded(PING, 0, 0, &[0; 8])).await;
    };
    tokio::select! {
        _ = copy(&mut requests, &mut to_runtime) => {}
        () = replies => {}
    }
}

#[tokio::test]
async fn a_backend_that_floods_is_disconnected_and_connected_again_while_others_serve_calls() {
    let logged = Logged::here();
    let mut proxy = None;
    let rig = Rig::with_config([Sim::new("runc"), Sim::new("kata")], |directory| {
        let socket = format!("{directory}/proxy.sock");
        let runtime = format!("{directory}/kata.sock");
        proxy = Some(Proxy::serve_on(&socket, runtime.into()));
        format!(
            "default_handler = 'runc'\n[handlers]\nrunc = '{directory}/runc.sock'\nkata = '{socket}'"
        )
    }).await;
    rig.run("runc", "web").await;
    rig.run("kata", "boxed").await;
    assert_eq!(rig.pods().await.unwrap().len(), 2);
    let flooding = proxy.as_ref().unwrap().flooding.clone();
    flooding.send_replace(true);
    let down = until_state(&rig, "kata", "down").await;
    let cause = down["cause"].as_str().unwrap();
    assert!(cause.starts_with("it sends more than"), "{down}");
    assert!(rig.rejected(Reason::Flood) > 0);
    rig.run("runc", "other").await;
    // kata's part of the list is served from cache.
    assert_eq!(rig.pods().await.unwrap().len(), 3);
    flooding.send_replace(false);
    until_state(&rig, "kata", "ready").await;
    rig.run("kata", "again").await;
    let lines = logged.lines(&["WARN", "backend is down", "backend=kata", "proxy.sock"]);
    assert!(lines[0].contains("it sends more than"), "{lines:?}");
    assert!(state_of(&rig, "runc").await["transitions"] == 1);
}

/// The frames with which grpc-go makes a call, measures the round trip and cancels the call.
fn given_up(stream: u32) -> Vec<u8> {
    let one = 1u32.to_be_bytes();
    [
        call_of(stream, "Unknown"),
        encoded(WINDOW_UPDATE, 0, 0, &one),
        encoded(PING, 0, 0, &u64::from(stream).to_be_bytes()),
        encoded(RST_STREAM, 0, stream, &CANCEL),
    ]
    .concat()
}

#[tokio::test]
async fn a_busy_client_that_cancels_thousands_of_calls_is_not_disconnected() {
    let rig = Rig::start([Sim::new("runc")]).await;
    let mut client = connect(&rig.socket).await.unwrap();
    client.write_all(PREFACE).await.unwrap();
    let greeting = encoded(SETTINGS, 0, 0, &[]);
    client.write_all(&greeting).await.unwrap();
    let streams: Vec<u32> = (0..CALLS).map(|call| 2 * call + 1).collect();
    for streams in streams.chunks(AT_ONCE as usize) {
        let calls: Vec<u8> = streams
            .iter()
            .flat_map(|stream| given_up(*stream))
            .collect();
        client.write_all(&calls).await.unwrap();
        let last = u64::from(*streams.last().unwrap()).to_be_bytes();
        loop {
            let answer = tokio::time::timeout(PATIENCE, next(&mut client)).await;
            match answer.unwrap().expect("the connection has ended") {
                (GOAWAY, ..) => panic!("the client is told to go"),
                (PING, _, payload) if payload == last => break,
                _ => {}
            }
        }
    }
    assert_eq!(rig.rejected(Reason::Flood), 0);
}
