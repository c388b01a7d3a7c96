//! Many calls that are cancelled at once affect no other call on their connection. On a client's connection they are
//! cancelled before criswitch reads them. On a backend's connection the replies come after the cancellation.

use std::sync::Arc;

use criswitch::backend::own_headers;
use criswitch::limits::places::User;
use criswitch_cri::codec::frames;
use criswitch_cri::rpc;
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::Notify;
use tonic::Code;

use crate::backend::raw::backend_of;
use crate::http2::{
    self, CANCEL, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PREFACE, RST_STREAM, SETTINGS,
    header, next,
};
use crate::support::{PATIENCE, Rig, Sim, connect, frame_raw};

/// The preface of HTTP/2, and settings that change nothing.
const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// The number of calls that the client cancels: more than one probe for each container of a full node.
const GIVEN_UP: u32 = 500;
/// The number of cancelled calls whose replies come too late: more than h2 tolerates on one connection.
const CROSSED: usize = 1100;

/// The frames of an empty request to an RPC. The HPACK header block uses no dynamic table.
fn call(stream: u32, path: &str) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let headers = [
        vec![0x83, 0x86],
        [vec![0x04], text(path)].concat(),
        [vec![0x01], text("localhost")].concat(),
        [vec![0x00], text("te"), text("trailers")].concat(),
        [vec![0x0f, 0x10], text("application/grpc")].concat(),
    ];
    let headers = http2::encoded(HEADERS, END_HEADERS, stream, &headers.concat());
    let body = http2::encoded(DATA, END_STREAM, stream, &frame_raw(b""));
    [headers, body].concat()
}

#[tokio::test]
async fn a_call_succeeds_while_very_many_others_of_its_connection_are_cancelled() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let kata = rig.sim("kata");
    kata.hold("ListContainerStats");
    let mut client = connect(&rig.socket).await.unwrap();
    client.write_all(GREETING).await.unwrap();
    let path = |rpc| format!("/runtime.v1.RuntimeService/{rpc}");
    let first = call(1, &path("ListContainerStats"));
    client.write_all(&first).await.unwrap();
    kata.until_held("ListContainerStats").await;
    let given_up = (1..=GIVEN_UP).map(|number| {
        let stream = 2 * number + 1;
        let call = call(stream, &path("ListContainers"));
        [call, http2::encoded(RST_STREAM, 0, stream, &CANCEL)].concat()
    });
    let burst: Vec<u8> = given_up.flatten().collect();
    client.write_all(&burst).await.unwrap();
    kata.release("ListContainerStats");
    let answered = async {
        loop {
            match next(&mut client).await.expect("the connection has ended") {
                (GOAWAY, ..) => panic!("the client is told to go"),
                (HEADERS, 1, _) => return,
                _ => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, answered).await.unwrap();
    rig.pods().await.unwrap();
}

/// A backend that works with raw HTTP/2 frames. It notifies `has_all` once it has received all calls. It replies to
/// each cancelled call only after the cancellation, and finally to the first call.
async fn answer_too_late(mut peer: DuplexStream, has_all: Arc<Notify>) {
    let mut preface = [0; PREFACE.len()];
    peer.read_exact(&mut preface).await.unwrap();
    peer.write_all(&http2::encoded(SETTINGS, 0, 0, &[]))
        .await
        .unwrap();
    let head = [vec![0x88], header("content-type", "application/grpc")].concat();
    let end = header("grpc-status", "0");
    let rejection = [&head[..], &header("grpc-status", "5")].concat();
    let (mut calls, mut given_up) = (0, 0);
    while given_up < CROSSED {
        let (kind, stream, _) = next(&mut peer).await.expect("the connection has ended");
        assert_ne!(kind, GOAWAY, "after {given_up} calls");
        if kind == HEADERS {
            calls += 1;
            if calls == 1 + CROSSED {
                has_all.notify_one();
            }
        }
        if kind == RST_STREAM {
            given_up += 1;
            let late = http2::encoded(HEADERS, END_HEADERS | END_STREAM, stream, &rejection);
            peer.write_all(&late).await.unwrap();
        }
    }
    let answer = [
        http2::encoded(HEADERS, END_HEADERS, 1, &head),
        http2::encoded(DATA, 0, 1, &frame_raw(b"")),
        http2::encoded(HEADERS, END_HEADERS | END_STREAM, 1, &end),
    ];
    peer.write_all(&answer.concat()).await.unwrap();
    while next(&mut peer).await.is_some() {}
}

#[tokio::test]
async fn a_call_succeeds_while_its_backend_answers_very_many_others_after_their_cancellation() {
    let has_all = Arc::new(Notify::new());
    let shown = Arc::clone(&has_all);
    let backend = backend_of(move |peer| answer_too_late(peer, Arc::clone(&shown)));
    let (connected, connection) = backend.connect().await.unwrap();
    tokio::spawn(connection);
    let headers = own_headers();
    let ask = || {
        backend.ask_over(
            connected.clone(),
            User::Own,
            &rpc::VERSION,
            &headers,
            frames::frame(b""),
        )
    };
    let mut first = Box::pin(ask());
    let others = join_all((0..CROSSED).map(|_| ask()));
    let begun = async {
        tokio::select! {
            biased;
            _ = &mut first => panic!("the first is answered"),
            _ = others => panic!("the others are answered"),
            () = has_all.notified() => {}
        }
    };
    // The end of this statement drops `others`, which cancels the other calls.
    tokio::time::timeout(PATIENCE, begun).await.unwrap();
    let answer = tokio::time::timeout(PATIENCE, first).await.unwrap();
    assert_eq!(answer.unwrap().code(), Code::Ok);
}
