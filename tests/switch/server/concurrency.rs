//! Many calls on one connection.

use std::path::Path;

use criswitch_cri::codec::cri;
use criswitch_platform::connect::Stream;
use futures_util::future::join_all;
use tokio::io::AsyncWriteExt;
use tonic::Code;

use crate::calls::{path, send, text_of};
use crate::http2::{
    self, CANCEL, DATA, END_HEADERS, END_STREAM, HEADERS, REFUSED_STREAM, RST_STREAM, SETTINGS,
};
use crate::support::{PATIENCE, Rig, Sim, connect, frame, frame_raw};
use crate::wait::until;
use criswitch::limits::{MAX_CALLS, RESERVED_CALLS};

/// The number of calls: more than HTTP/2 servers allow by default, and more than a kubelet has pods.
const CALLS: usize = 1500;

#[tokio::test]
async fn fifteen_hundred_calls_are_in_flight_on_one_connection() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let (_, container) = rig.run("kata", "web").await;
    let kata = rig.sim("kata");
    kata.hold("ExecSync");
    let request = cri::ExecSyncRequest {
        container_id: container,
        cmd: vec!["true".to_owned()],
        timeout: 60,
    };
    let body = frame(&request);
    let path = "/runtime.v1.RuntimeService/ExecSync";
    let raw = (*rig).raw().await;
    let calls = join_all((0..CALLS).map(|_| raw.call(path, &[], body.clone())));
    let release = async {
        kata.until(|journal| journal.held.len() == CALLS).await;
        // None of these calls delays a call to another backend.
        rig.run("runc", "other").await;
        kata.release("ExecSync");
    };
    let (replies, ()) = tokio::join!(calls, release);
    for reply in replies {
        assert_eq!(reply.code(), Code::Ok, "{}", reply.text());
    }
}

/// Two clients open streams of events and read nothing, until criswitch allows no more such streams.
#[tokio::test]
async fn streams_of_events_leave_room_for_short_calls() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let (_, container) = rig.run("kata", "web").await;
    let events = path("GetContainerEvents");
    let mut streams = Vec::new();
    for _ in 0..2 {
        let client = (*rig).raw().await;
        let subscribe = || client.begin(&events, &[], frame_raw(b""));
        let begun = join_all((0..CALLS + 36).map(|_| subscribe())).await;
        streams.extend(begun.into_iter().map(|reply| reply.unwrap()));
    }
    assert_eq!(streams.len(), MAX_CALLS - RESERVED_CALLS);
    let exec = cri::ExecSyncRequest {
        container_id: container,
        cmd: vec!["true".to_owned()],
        timeout: 60,
    };
    let rejected = send(&rig, "ExecSync", frame(&exec)).await;
    let text = "ExecSync: 3072 calls of GetContainerEvents, ExecSync, PullImage and PullSecurityProfile are in flight already";
    assert_eq!(
        (rejected.code(), &*text_of(&rejected)),
        (Code::ResourceExhausted, text)
    );
    rig.run("runc", "other").await;
    drop(streams);
    until(async || send(&rig, "ExecSync", frame(&exec)).await.code() == Code::Ok).await;
}

/// criswitch sends no empty frame for a backend without pods, because clients that follow HTTP/2's advice count empty
/// frames as a flood.
#[tokio::test]
async fn a_connection_carries_any_number_of_lists_to_which_a_backend_adds_no_items() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    rig.run("kata", "web").await;
    let raw = (*rig).raw().await;
    for _ in 0..300 {
        let reply = raw.call(
            "/runtime.v1.RuntimeService/ListPodSandbox",
            &[],
            frame_raw(b""),
        );
        assert_eq!(reply.await.code(), Code::Ok);
    }
}

/// The identifier of SETTINGS_MAX_CONCURRENT_STREAMS.
const MAX_CONCURRENT_STREAMS: [u8; 2] = [0, 3];

/// A client that ignores the limits in criswitch's settings.
struct Heedless(Stream);

impl Heedless {
    async fn connect(socket: &Path) -> Heedless {
        let mut stream = connect(socket).await.unwrap();
        stream.write_all(http2::PREFACE).await.unwrap();
        let mut client = Heedless(stream);
        client.send(SETTINGS, 0, 0, b"").await;
        client
    }

    async fn send(&mut self, kind: u8, flags: u8, stream: u32, said: &[u8]) {
        let sent = http2::encoded(kind, flags, stream, said);
        self.0.write_all(&sent).await.unwrap();
    }

    /// Sends the headers of a `Version`, without the request.
    async fn begin(&mut self, stream: u32) {
        // In the HPACK block the method POST and the scheme http are indexed. Each other header has an indexed name,
        // and a value with its length.
        let path = b"/runtime.v1.RuntimeService/Version";
        let mut headers = vec![0x83, 0x86, 0x04, path.len() as u8];
        headers.extend(path);
        headers.extend(b"\x01\x09localhost\x0f\x10\x10application/grpc");
        self.send(HEADERS, END_HEADERS, stream, &headers).await;
    }

    /// The stream and payload of the next frame of this type.
    async fn next(&mut self, kind: u8) -> (u32, Vec<u8>) {
        let read = async {
            loop {
                let frame = http2::next(&mut self.0).await;
                let (came, stream, said) = frame.expect("the connection has ended");
                if came == kind {
                    return (stream, said);
                }
            }
        };
        let read = tokio::time::timeout(PATIENCE, read).await;
        read.unwrap_or_else(|_| panic!("no frame {kind} in time"))
    }
}

/// The id of a client's stream: odd numbers from 1.
fn stream(call: u32) -> u32 {
    2 * call - 1
}

#[tokio::test]
async fn a_connection_may_have_two_thousand_calls_and_a_further_one_when_one_has_ended() {
    const MOST: u32 = 2000;
    let rig = Rig::start([Sim::new("runc")]).await;
    let mut client = Heedless::connect(&rig.socket).await;
    let (_, allowed) = client.next(SETTINGS).await;
    let mut allowed = allowed.chunks(6).map(|setting| setting.split_at(2));
    let most = allowed.find(|(name, _)| *name == MAX_CONCURRENT_STREAMS);
    assert_eq!(most.unwrap().1, MOST.to_be_bytes());
    for call in 1..=MOST + 1 {
        client.begin(stream(call)).await;
    }
    let rejected = client.next(RST_STREAM).await;
    assert_eq!(rejected, (stream(MOST + 1), REFUSED_STREAM.to_vec()));
    // The limit of another connection is separate.
    rig.run("runc", "web").await;
    client.send(RST_STREAM, 0, stream(1), &CANCEL).await;
    client.begin(stream(MOST + 2)).await;
    let request = frame_raw(b"");
    client
        .send(DATA, END_STREAM, stream(MOST + 2), &request)
        .await;
    assert_eq!(client.next(HEADERS).await.0, stream(MOST + 2));
}
