//! Clients that do not read their replies: the memory that they hold is limited, and other clients are unaffected.

use std::ops::Range;

use bytes::Bytes;
use criswitch::limits::places::User;
use criswitch::limits::{MAX_CALLS, STREAM_WINDOW};
use criswitch::telemetry::counters::Reason;
use criswitch_platform::connect::Stream;
use futures_util::future::join_all;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use tokio::io::{AsyncWriteExt, DuplexStream};
use tonic::{Code, Status};

use crate::calls::{part, path, send};
use crate::faults::{node, until_state};
use crate::http2::{PREFACE, SETTINGS, call_of, encoded};
use crate::server::hostile_clients::{sipping, sipping_over};
use crate::support::{Rig, Sim, connect, frame_raw};
use crate::wait::until;

/// The limits of unread replies in bytes, for one connection and for all connections.
const ONE: usize = 32 << 20;
const ALL: usize = 64 << 20;
const LARGE: usize = 1 << 20;
/// The length of an error's text.
const LONG_TEXT: usize = 64 << 10;
const LONG_TEXTS: u32 = 64;
/// The length of a short reply. A socket's buffer holds hundreds of such replies.
const SHORT: usize = 180;
/// The number of clients. Each client begins `CALLS` calls, and leaves more than `UNREAD` replies unread.
const CLIENTS: usize = 4;
const CALLS: u32 = 2000;
const UNREAD: usize = 1050;
/// The bytes that each unread reply counts in addition to its data, headers and trailers.
const PER_REPLY: usize = 8 << 10;
/// SETTINGS_HEADER_TABLE_SIZE 0: every header is sent in full, never as a reference to an earlier one.
const NO_TABLE: [u8; 6] = [0, 1, 0, 0, 0, 0];
/// The window of one stream, and a message that fills it.
const WINDOW: usize = STREAM_WINDOW as usize;
const MESSAGE: usize = 2 * WINDOW;

/// Replies whose bodies the test has not read.
type Kept = Vec<Response<Incoming>>;

/// Begins `calls` calls of `rpc` at once, and returns the replies.
async fn begin(client: &SendRequest<Full<Bytes>>, rpc: &str, calls: usize) -> Kept {
    let begun = (0..calls).map(|_| {
        let request = Request::post(format!("http://localhost{}", path(rpc)))
            .header("content-type", "application/grpc")
            .body(Full::new(frame_raw(b"")));
        client.clone().send_request(request.unwrap())
    });
    join_all(begun).await.into_iter().flatten().collect()
}

fn rejected(replies: &Kept) -> usize {
    let ends = replies
        .iter()
        .filter_map(|reply| reply.headers().get("grpc-status"));
    ends.filter(|code| *code == "8").count()
}

/// Lists containers as another client, which reads the large reply.
async fn lists(rig: &Rig) -> Code {
    send(rig, "ListContainers", frame_raw(b"")).await.code()
}

#[tokio::test]
async fn slow_connections_block_neither_other_clients_nor_the_reconnection_of_their_backend() {
    // A long `list_timeout` keeps lists from being served from cache on a slow machine.
    let rig = node(
        "list_timeout = \"1m\"",
        [Sim::new("runc"), Sim::new("kata")],
    )
    .await;
    let (pod, _) = rig.run("kata", "web").await;
    rig.pods().await.unwrap();
    let kata = rig.sim("kata");
    kata.append_raw("ListContainers", part(100, vec![0; LARGE]));
    let mut kept = Vec::new();
    for _ in 0..5 {
        let client = sipping(&rig.socket).await;
        kept.push((begin(&client, "ListContainers", 30).await, client));
    }
    assert!(rig.unread() > ALL / 2, "{}", rig.unread());
    assert!(rig.unread() <= ALL, "{}", rig.unread());
    assert!(rig.rejected(Reason::Slow) > 0);
    for _ in 0..10 {
        assert_eq!(lists(&rig).await, Code::Ok);
    }
    kata.stop().await;
    until_state(&rig, "kata", "down").await;
    kata.start();
    until_state(&rig, "kata", "ready").await;
    rig.stop_pod(&pod).await.unwrap();
    drop(kept);
    until(async || rig.unread() == 0).await;
}

/// Many connections of another user leave replies unread, each fewer than the connection of root.
#[tokio::test]
async fn unread_replies_of_another_user_cost_no_connection_of_root() {
    let rig = node(
        "list_timeout = \"1m\"",
        [Sim::new("runc"), Sim::new("kata")],
    )
    .await;
    rig.run("kata", "web").await;
    rig.pods().await.unwrap();
    let large = part(100, vec![0; LARGE]);
    rig.sim("kata").append_raw("ListContainers", large);
    let root = sipping(&rig.socket).await;
    let kept = begin(&root, "ListContainers", 20).await;
    assert_eq!(rejected(&kept), 0);
    let mut others = Vec::new();
    for _ in 0..12 {
        let client = sipping_over(rig.connect_as(User::Other(1000))).await;
        others.push((begin(&client, "ListContainers", 6).await, client));
    }
    assert!(rig.unread() > ALL / 2, "{}", rig.unread());
    assert_eq!(lists(&rig).await, Code::Ok);
    assert_eq!(rig.rejected(Reason::Slow), 0);
    assert_eq!(rejected(&begin(&root, "ListContainers", 1).await), 0);
}

/// With one backend criswitch merges nothing, and forwards replies as they arrive.
#[tokio::test]
async fn replies_that_pass_unmerged_count_as_unread_until_they_are_read() {
    // A long `stats_timeout` keeps calls from failing on a slow machine.
    let rig = node("stats_timeout = \"1m\"", [Sim::new("runc")]).await;
    rig.pods().await.unwrap();
    let large = part(100, vec![0; LARGE]);
    rig.sim("runc").append_raw("ListContainerStats", large);
    let client = sipping(&rig.socket).await;
    let kept = begin(&client, "ListContainerStats", 40).await;
    assert!(rig.unread() <= ONE, "{}", rig.unread());
    assert_eq!(rejected(&kept), 40 - ONE / (LARGE + 64));
    assert_eq!(rig.rejected(Reason::Unread), rejected(&kept) as u64);
    drop(kept);
    until(async || rig.unread() == 0).await;
    assert_eq!(rejected(&begin(&client, "ListContainerStats", 1).await), 0);
}

/// A reply with other names for handlers is a copy of the backend's reply, or of its cached list.
#[tokio::test]
async fn rewritten_replies_count_in_the_memory_of_their_backend_until_they_are_read() {
    let large = part(100, vec![0; LARGE]);
    for names in [&["runc", "kata"][..], &["kata"]] {
        let sims = names.iter().map(|name| Sim::new(name).handlers(["k"]));
        let rig = Rig::with_config(sims, |directory| {
            let sandboxed =
                format!("sandboxed = {{ socket = \"{directory}/kata.sock\", handler = \"k\" }}\n");
            let runc = format!("k = \"{directory}/runc.sock\"\n");
            let runc = if names.len() > 1 { runc } else { String::new() };
            format!("default_handler = \"sandboxed\"\n[handlers]\n{sandboxed}{runc}")
        })
        .await;
        rig.run_pod("sandboxed", "web").await;
        rig.sim("kata").append_raw("ListPodSandbox", large.clone());
        rig.pods().await.unwrap();
        let client = sipping(&rig.socket).await;
        let before = rig.held("sandboxed");
        let kept = begin(&client, "ListPodSandbox", 4).await;
        assert_eq!(rejected(&kept), 0);
        assert!(
            rig.held("sandboxed") >= before + 4 * LARGE,
            "{}",
            rig.held("sandboxed")
        );
        drop(kept);
        until(async || rig.held("sandboxed") < before + LARGE).await;
    }
}

/// Each backend may fill its HTTP/2 window before the client reads, so an unread stream counts with all these windows.
#[tokio::test]
async fn unread_streams_count_with_the_full_windows_of_their_backends() {
    for backends in [1, 2] {
        let sims = ["runc", "kata"].map(Sim::new).into_iter().take(backends);
        // A long `list_timeout` keeps streams from failing on a slow machine.
        let rig = node("list_timeout = \"1m\"", sims).await;
        // A stream has a message for each container.
        rig.run("runc", "web").await;
        let large = part(100, vec![0; MESSAGE]);
        rig.sim("runc").append_raw("StreamContainers", large);
        let client = sipping(&rig.socket).await;
        let most = ONE / (backends * WINDOW);
        let kept = begin(&client, "StreamContainers", most + 1).await;
        // criswitch rejects a call, or ends a stream that has begun.
        until(async || rig.rejected(Reason::Unread) > 0).await;
        assert!(rig.unread() <= ONE, "{}", rig.unread());
        drop(kept);
        until(async || rig.unread() == 0).await;
    }
}

/// Connects a client that begins `calls` calls of `rpc` and reads nothing.
async fn unread(rig: &Rig, rpc: &str, calls: u32) -> Stream {
    let mut client = connect(&rig.socket).await.unwrap();
    let calls: Vec<u8> = (0..calls)
        .flat_map(|call| call_of(2 * call + 1, rpc))
        .collect();
    let greeting = encoded(SETTINGS, 0, 0, &NO_TABLE);
    let all = [PREFACE, &greeting, &calls].concat();
    client.write_all(&all).await.unwrap();
    client
}

/// A few clients leave more replies and errors unread than criswitch allows calls in flight.
#[tokio::test]
async fn unread_replies_of_a_few_clients_take_no_place_from_other_calls() {
    const { assert!(CLIENTS * UNREAD > MAX_CALLS) }
    let rig = Rig::start([Sim::new("runc")]).await;
    rig.pods().await.unwrap();
    let runc = rig.sim("runc");
    let text = "x".repeat(SHORT);
    runc.fail("ListContainerStats", Status::internal(text));
    runc.append_raw("ListPodSandboxStats", part(100, vec![0; SHORT]));
    for rpc in ["ListContainerStats", "ListPodSandboxStats"] {
        let mut clients = Vec::new();
        for before in 0..CLIENTS {
            clients.push(unread(&rig, rpc, CALLS).await);
            let least = (before + 1) * UNREAD * PER_REPLY;
            until(async || rig.unread() > least).await;
        }
        assert_eq!(lists(&rig).await, Code::Ok, "{rpc}");
        drop(clients);
        until(async || rig.unread() == 0).await;
    }
}

/// Errors are in headers, which no window of HTTP/2 limits.
#[tokio::test]
async fn errors_with_long_texts_count_as_unread_until_they_are_read() {
    let rig = Rig::start([Sim::new("runc")]).await;
    rig.pods().await.unwrap();
    let text = "x".repeat(LONG_TEXT);
    rig.sim("runc")
        .fail("ListContainerStats", Status::internal(text));
    let client = unread(&rig, "ListContainerStats", LONG_TEXTS).await;
    // The socket's buffer holds a part of the errors, which no longer count as unread.
    until(async || rig.unread() > LONG_TEXTS as usize / 2 * LONG_TEXT).await;
    drop(client);
    until(async || rig.unread() == 0).await;
}

/// The client accepts one byte of each of 200 streams. These unread streams must not delay a later call to the same
/// backend.
#[tokio::test]
async fn many_unread_streams_delay_no_other_call_to_their_backend() {
    let rig = Rig::start([Sim::new("runc")]).await;
    rig.run("runc", "web").await;
    let large = part(100, vec![0; MESSAGE]);
    rig.sim("runc")
        .append_raw("StreamContainers", large.clone());
    rig.sim("runc").append_raw("ListContainers", large);
    let client = sipping(&rig.socket).await;
    let kept = begin(&client, "StreamContainers", 200).await;
    assert_eq!(rejected(&kept), 0);
    assert_eq!(lists(&rig).await, Code::Ok);
    let mut whole = begin(&client, "StreamContainers", 1)
        .await
        .remove(0)
        .into_body();
    let first = whole.frame().await.unwrap().unwrap();
    assert!(first.is_data());
    drop(kept);
}

/// The long name of an RPC that criswitch does not know.
fn unknown_rpc() -> String {
    "x".repeat(90)
}

/// Frames that begin calls with these numbers.
fn calls_of(calls: Range<u32>, rpc: &str) -> Vec<u8> {
    calls.flat_map(|call| call_of(2 * call + 1, rpc)).collect()
}

/// Connects a client of a user other than root that begins these calls and reads nothing.
async fn unread_by_other(rig: &Rig, calls: Vec<u8>) -> DuplexStream {
    let mut client = rig.connect_as(User::Other(1000));
    let settings = encoded(SETTINGS, 0, 0, &NO_TABLE);
    let sent = [PREFACE.to_vec(), settings, calls].concat();
    client.write_all(&sent).await.unwrap();
    client
}

/// Rejections of calls that have no row or no permit.
#[tokio::test]
async fn unread_rejections_count_until_they_are_sent() {
    let rig = Rig::start([Sim::new("runc")]).await;
    let client = unread_by_other(&rig, calls_of(0..CALLS, &unknown_rpc())).await;
    until(async || rig.rejected(Reason::UnknownRpc) == u64::from(CALLS)).await;
    assert!(rig.unread() > 100 * PER_REPLY, "{}", rig.unread());
    drop(client);
    until(async || rig.unread() == 0).await;
}

#[tokio::test]
async fn a_client_whose_unread_replies_leave_no_memory_for_a_rejection_loses_its_share() {
    let rig = node("stats_timeout = \"1m\"", [Sim::new("runc")]).await;
    rig.pods().await.unwrap();
    rig.sim("runc")
        .append_raw("ListContainerStats", part(100, vec![0; LARGE]));
    let large = calls_of(0..40, "ListContainerStats");
    let mut client = unread_by_other(&rig, large).await;
    until(async || rig.rejected(Reason::Unread) > 0).await;
    assert!(rig.unread() > ONE - 2 * LARGE, "{}", rig.unread());
    // criswitch may close the connection before it has read all these calls.
    let rejected = calls_of(40..300, &unknown_rpc());
    client.write_all(&rejected).await.ok();
    until(async || rig.unread() == 0).await;
    assert_eq!(lists(&rig).await, Code::Ok);
}
