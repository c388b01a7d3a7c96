//! A client that misbehaves affects no other client, and its resources are freed.

use std::convert::Infallible;
use std::path::Path;

use bytes::Bytes;
use criswitch::limits::places::User;
use criswitch::limits::{ADMIN_LIMIT, MAX_CALLS, MAX_CONNECTIONS, REQUEST_LIMIT};
use criswitch::server::PREFACE_LIMIT;
use criswitch::telemetry::counters::Reason;
use criswitch_cri::codec::cri;
use criswitch_platform::connect::Stream;
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinSet;
use tonic::Code;

use crate::calls::{part, path, send, text_of};
use crate::http2::PREFACE;
use crate::support::{PATIENCE, RawClient, RawReply, Rig, Sim, connect, frame, frame_raw};
use crate::wait::until;

/// The number of calls in flight on one connection, fewer than criswitch allows.
const STREAMS: usize = 1000;

/// A client that begins requests and does not finish them. Dropping it closes the connection.
struct Unfinished {
    client: SendRequest<UnsyncBoxBody<Bytes, Infallible>>,
    _connection: JoinSet<()>,
    calls: JoinSet<hyper::Result<Response<Incoming>>>,
}

impl Unfinished {
    async fn connect(socket: &Path) -> Unfinished {
        Unfinished::over(connect(socket).await.unwrap()).await
    }

    async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Unfinished {
        let (client, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
        let mut driven = JoinSet::new();
        driven.spawn(async { connection.await.unwrap_or_default() });
        Unfinished {
            client,
            _connection: driven,
            calls: JoinSet::new(),
        }
    }

    /// Begins a call: sends headers and these bytes, then nothing.
    fn begin(&mut self, begun: Bytes) {
        self.begin_at(&path("ListContainers"), begun);
    }

    fn begin_at(&mut self, path: &str, begun: Bytes) {
        let frames = stream::iter([Ok(Frame::data(begun))]).chain(stream::pending());
        let request = Request::post(format!("http://localhost{path}"))
            .header("content-type", "application/grpc")
            .body(StreamBody::new(frames).boxed_unsync());
        let answered = self.client.send_request(request.unwrap());
        self.calls.spawn(answered);
    }

    /// The code of the next reply to any of its calls.
    async fn code(&mut self) -> String {
        let answered = tokio::time::timeout(PATIENCE, self.calls.join_next());
        let reply = answered.await.unwrap().unwrap().unwrap().unwrap();
        reply.headers()["grpc-status"].to_str().unwrap().to_owned()
    }
}

async fn list(rig: &Rig) -> RawReply {
    send(
        rig,
        "ListContainers",
        frame(&cri::ListContainersRequest::default()),
    )
    .await
}

async fn start() -> Rig {
    let rig = Rig::start([Sim::new("runc")]).await;
    // Connects the rig's own client.
    rig.pods().await.unwrap();
    rig
}

#[tokio::test]
async fn a_request_that_is_never_finished_is_ended() {
    let rig = start().await;
    let mut client = Unfinished::connect(&rig.socket).await;
    client.begin(Bytes::from_static(&[0, 0]));
    // This list is sent after the unfinished call. When the list returns, criswitch has received the unfinished call.
    assert_eq!(list(&rig).await.code(), Code::Ok);
    crate::support::clock::later(REQUEST_LIMIT).await;
    assert_eq!(client.code().await, "4", "DeadlineExceeded");
    assert_eq!(rig.rejected(Reason::Unfinished), 1);
    assert_eq!(list(&rig).await.code(), Code::Ok);
}

#[tokio::test]
async fn a_request_to_the_admin_service_that_is_never_finished_is_ended() {
    let rig = start().await;
    let mut client = Unfinished::connect(&rig.socket).await;
    let path = "/criswitch.admin.v1.Admin/GetState";
    client.begin_at(path, Bytes::from_static(&[0, 0]));
    assert_eq!(list(&rig).await.code(), Code::Ok);
    crate::support::clock::later(ADMIN_LIMIT).await;
    assert_eq!(client.code().await, "4", "DeadlineExceeded");
}

#[tokio::test]
async fn calls_beyond_the_limit_of_all_clients_are_rejected_until_others_have_ended() {
    let rig = start().await;
    let mut clients = Vec::new();
    for begun in 0..MAX_CALLS {
        if begun % STREAMS == 0 {
            clients.push(Unfinished::connect(&rig.socket).await);
        }
        clients.last_mut().unwrap().begin(Bytes::from_static(&[0]));
    }
    until(async || {
        // A list in flight may have taken the slot of one of the calls, so fill the slot again.
        clients.last_mut().unwrap().begin(Bytes::from_static(&[0]));
        let reply = list(&rig).await;
        let text = "ListContainers: 4096 calls are in flight already";
        reply.code() == Code::ResourceExhausted && text_of(&reply) == text
    })
    .await;
    assert!(rig.rejected(Reason::Calls) > 0);
    clients.clear();
    until(async || list(&rig).await.code() == Code::Ok).await;
}

#[tokio::test]
async fn requests_that_need_too_much_memory_are_rejected_and_small_requests_succeed() {
    let rig = start().await;
    // The limit of 96 MiB for large requests holds six of these messages, and little more.
    let large = Bytes::from(vec![0; 15 << 20]);
    let mut clients = Vec::new();
    for _ in 0..7 {
        let mut client = Unfinished::connect(&rig.socket).await;
        client.begin(large.clone());
        clients.push(client);
    }
    until(async || rig.rejected(Reason::Memory) == 1).await;
    assert_eq!(list(&rig).await.code(), Code::Ok);
    let whole = frame_raw(&part(100, large.to_vec()));
    let rejected = send(&rig, "ListContainers", whole.clone()).await;
    assert!(text_of(&rejected).contains("all memory"), "{rejected:?}");
    drop(clients);
    until(async || {
        let reply = send(&rig, "ListContainers", whole.clone()).await;
        reply.code() == Code::Ok
    })
    .await;
}

/// A connection holds at most 24 MiB of large requests.
#[tokio::test]
async fn unfinished_requests_of_one_connection_take_no_memory_from_other_connections() {
    let rig = start().await;
    let mut client = Unfinished::connect(&rig.socket).await;
    let large = Bytes::from(vec![0; 15 << 20]);
    for _ in 0..8 {
        client.begin(large.clone());
    }
    for _ in 1..8 {
        assert_eq!(client.code().await, "8", "ResourceExhausted");
    }
    assert_eq!(rig.rejected(Reason::Memory), 7);
    let whole = frame_raw(&part(100, large.to_vec()));
    let reply = send(&rig, "ListContainers", whole).await;
    assert_eq!(reply.code(), Code::Ok, "{}", text_of(&reply));
}

/// A user with 16 connections leaves requests unfinished that need more memory than all requests may take.
#[tokio::test]
async fn unfinished_requests_of_a_user_take_no_memory_from_root_or_another_user() {
    const CONNECTIONS: usize = 16;
    // The memory of one user holds at most 32 MiB of large requests, and at most 11 MiB of small ones.
    for (calls, bytes, most) in [(10, 1 << 20, 32 << 20), (60, 60 << 10, 11 << 20)] {
        let rig = start().await;
        let begun = Bytes::from(vec![0; bytes]);
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut client = Unfinished::over(rig.connect_as(User::Other(1000))).await;
            (0..calls).for_each(|_| client.begin(begun.clone()));
            clients.push(client);
        }
        let rejected = (CONNECTIONS * calls - most / bytes) as u64;
        until(async || rig.rejected(Reason::Memory) >= rejected).await;
        assert_eq!(
            list(&rig).await.code(),
            Code::Ok,
            "{bytes}: root's small request"
        );
        let largest = frame_raw(&part(100, vec![0; 15 << 20]));
        let reply = send(&rig, "ListContainers", largest.clone()).await;
        assert_eq!(reply.code(), Code::Ok, "{bytes}: {}", text_of(&reply));
        let other = RawClient::over(rig.connect_as(User::Other(1001))).await;
        let reply = other.call(&path("ListContainers"), &[], largest).await;
        assert_eq!(reply.code(), Code::Ok, "{bytes}: {}", text_of(&reply));
    }
}

/// A program, such as critest, connects for each of its calls and keeps all connections.
#[tokio::test]
async fn connections_without_a_call_keep_no_new_client_out() {
    let rig = start().await;
    let mut connections = Vec::new();
    for number in 0..MAX_CONNECTIONS + 50 {
        let mut stream = connect(&rig.socket).await.unwrap();
        assert!(gets_an_answer(&mut stream).await, "{number}");
        connections.push(stream);
    }
    // The connection of the rig's client has had no call for longest, so it has lost its place.
    rig.pods().await.unwrap();
    until(async || rig.rejected(Reason::Connections) >= 50).await;
    // criswitch closes the connection although the client does not answer the PING.
    let mut rest = Vec::new();
    let read = tokio::time::timeout(PATIENCE, connections[0].read_to_end(&mut rest));
    read.await.unwrap().ok();
    assert!(gets_an_answer(&mut connect(&rig.socket).await.unwrap()).await);
}

/// Whether criswitch sends anything to an HTTP/2 client before it closes the connection.
async fn gets_an_answer(stream: &mut Stream) -> bool {
    // A rejected connection may already be closed.
    stream.write_all(PREFACE).await.ok();
    let mut begun = [0; 9];
    let read = tokio::time::timeout(PATIENCE, stream.read(&mut begun));
    read.await.unwrap().is_ok_and(|bytes| bytes > 0)
}

/// The first 100 clients send nothing. The others send the preface without its last byte.
#[tokio::test]
async fn connections_without_a_preface_are_closed_after_a_while_and_free_their_places() {
    let rig = start().await;
    let mut silent = Vec::new();
    for number in 0..MAX_CONNECTIONS {
        let mut stream = connect(&rig.socket).await.unwrap();
        let begun = if number < 100 { 0 } else { PREFACE.len() - 1 };
        // A rejected connection may already be closed.
        stream.write_all(&PREFACE[..begun]).await.ok();
        silent.push(stream);
    }
    // The rig's own client has a place too, so a silent connection has lost its place.
    until(async || rig.rejected(Reason::Silent) > 0).await;
    crate::support::clock::later(PREFACE_LIMIT).await;
    let closed = MAX_CONNECTIONS as u64;
    until(async || rig.rejected(Reason::Silent) == closed).await;
    assert_eq!(rig.rejected(Reason::Connections), 0);
    assert!(gets_an_answer(&mut connect(&rig.socket).await.unwrap()).await);
    rig.pods().await.unwrap();
}

#[tokio::test]
async fn silent_connections_keep_no_new_client_out() {
    let rig = start().await;
    let mut silent = Vec::new();
    for _ in 0..MAX_CONNECTIONS + 50 {
        silent.push(connect(&rig.socket).await.unwrap());
    }
    assert!(gets_an_answer(&mut connect(&rig.socket).await.unwrap()).await);
    assert_eq!(rig.rejected(Reason::Connections), 0);
    assert!(rig.rejected(Reason::Silent) > 50);
    rig.pods().await.unwrap();
}

/// The connection ends within the preface, and must free its slot.
#[tokio::test]
async fn a_client_that_disconnects_within_its_preface_frees_its_place_at_once() {
    let rig = start().await;
    let before = rig.connections();
    let mut gone = connect(&rig.socket).await.unwrap();
    gone.write_all(&PREFACE[..5]).await.unwrap();
    until(async || rig.connections() > before).await;
    drop(gone);
    until(async || rig.connections() == before).await;
    assert_eq!(rig.rejected(Reason::Silent), 0);
}

#[tokio::test]
async fn headers_beyond_the_limit_are_rejected() {
    let rig = start().await;
    let client = crate::support::Client::raw(&rig).await;
    let large = "x".repeat(64 << 10);
    let request = frame(&cri::ListContainersRequest::default());
    let headers = [("large", large.as_str())];
    let reply = client
        .begin(&path("ListContainers"), &headers, request)
        .await;
    assert!(reply.is_err() || reply.unwrap().status() == 431);
    assert_eq!(list(&rig).await.code(), Code::Ok);
}

/// A client that accepts one byte of each reply, and more only when the test reads it.
pub async fn sipping(socket: &Path) -> SendRequest<Full<Bytes>> {
    sipping_over(connect(socket).await.unwrap()).await
}

/// Like [`sipping`], over `stream`.
pub async fn sipping_over(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> SendRequest<Full<Bytes>> {
    let (client, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(1)
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    client
}

/// Unread replies have a limit for each connection, which is lower than the limit for all connections. So a client that
/// reads nothing leaves memory for other clients.
#[tokio::test]
async fn a_client_that_leaves_replies_unread_gets_no_more_and_other_clients_get_theirs() {
    for rpc in ["ListContainers", "StreamContainers"] {
        let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
        rig.run("kata", "web").await;
        rig.pods().await.unwrap();
        let large = part(100, vec![0; 1 << 20]);
        rig.sim("kata").append_raw(rpc, large);
        let client = sipping(&rig.socket).await;
        let mut unread = Vec::new();
        for _ in 0..150 {
            let request = Request::post(format!("http://localhost{}", path(rpc)))
                .header("content-type", "application/grpc")
                .body(Full::new(frame_raw(b"")));
            let reply = client.clone().send_request(request.unwrap()).await;
            unread.push(reply.unwrap());
        }
        // A list succeeds once the rejected calls have freed their memory.
        until(async || send(&rig, rpc, frame_raw(b"")).await.code() == Code::Ok).await;
        let begun = unread.into_iter().map(async |reply| {
            let (head, mut body) = reply.into_parts();
            let first = tokio::time::timeout(PATIENCE, body.frame()).await.unwrap();
            (head, first.map(Result::unwrap), body)
        });
        // Read all replies concurrently: each reply that is read frees memory for another.
        let begun = join_all(begun).await;
        let ends = begun.iter().filter_map(|(head, first, _)| match first {
            Some(frame) => frame.trailers_ref(),
            None => Some(&head.headers),
        });
        let rejected: Vec<_> = ends.collect();
        // A rejected stream may have sent data first. `rejected` lacks such a stream, but criswitch counts it.
        let counted = rig.rejected(Reason::Unread);
        assert!(counted > 0, "{rpc}");
        assert!(counted >= rejected.len() as u64, "{rpc}: {counted}");
        for end in rejected {
            assert_eq!(end["grpc-status"], "8", "{rpc}: {end:?}");
            assert!(end["grpc-message"].to_str().unwrap().contains("unread"));
        }
        drop(begun);
        until(async || list(&rig).await.code() == Code::Ok).await;
    }
}
