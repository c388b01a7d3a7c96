//! criswitch never pings an idle connection: servers of grpc-go close connections that are pinged.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use criswitch::backend::connect::Dialer;
use criswitch::backend::{Backend, own_headers};
use criswitch::codec::frames;
use criswitch::config::BackendConfig;
use criswitch::config::address::Address;
use criswitch::rpc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tonic::Code;

use crate::http2::{self, DATA, END_HEADERS, END_STREAM, HEADERS, PING, PREFACE, SETTINGS, header};

async fn send(peer: &mut DuplexStream, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let frame = http2::encoded(kind, flags, stream, payload);
    peer.write_all(&frame).await.unwrap();
}

/// The kind and the stream of the next frame, whose payload is dropped.
async fn frame(peer: &mut DuplexStream) -> (u8, u32) {
    let (kind, stream, _) = http2::next(peer).await.unwrap();
    (kind, stream)
}

/// A backend that works with raw HTTP/2 frames. It answers each call with a message of 50 kB, and records the types of
/// the frames that it receives.
async fn answer(mut peer: DuplexStream, seen: Arc<Mutex<Vec<u8>>>) {
    let mut preface = [0; PREFACE.len()];
    peer.read_exact(&mut preface).await.unwrap();
    assert_eq!(preface, PREFACE);
    send(&mut peer, SETTINGS, 0, 0, &[]).await;
    let head = [vec![0x88], header("content-type", "application/grpc")].concat();
    let message = frames::frame(&[0; 50_000]);
    loop {
        let (kind, stream) = frame(&mut peer).await;
        seen.lock().unwrap().push(kind);
        if kind == DATA {
            send(&mut peer, HEADERS, END_HEADERS, stream, &head).await;
            for piece in message.chunks(16_000) {
                send(&mut peer, DATA, 0, stream, piece).await;
            }
            let end = header("grpc-status", "0");
            send(&mut peer, HEADERS, END_HEADERS | END_STREAM, stream, &end).await;
        }
    }
}

/// A backend whose connections go to `serve`, through memory instead of a socket.
pub(crate) fn backend_of<S: Future<Output = ()> + Send + 'static>(
    serve: impl Fn(DuplexStream) -> S + Send + Sync + 'static,
) -> Backend {
    let dial = move |_: &Address| {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        tokio::spawn(serve(theirs));
        Ok(ours)
    };
    let config = BackendConfig {
        id: 0,
        name: "raw".to_owned(),
        socket: Address::parse("/raw.sock").unwrap(),
        list_timeout: Duration::from_secs(2),
        stats_timeout: Duration::from_secs(2),
        stale_lists: Duration::MAX,
        auto_register: false,
        required: true,
        user: None,
        origin: None,
    };
    Backend::new(&config, 1 << 20, Dialer::Memory(Arc::new(dial)))
}

#[tokio::test(start_paused = true)]
async fn a_backend_is_never_pinged_even_after_an_idle_hour() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let backend = backend_of(move |peer| answer(peer, Arc::clone(&noted)));
    let (wire, connection) = backend.connect().await.unwrap();
    tokio::spawn(connection);
    for _ in 0..3 {
        let (headers, body) = (own_headers(), frames::frame(b""));
        let asked = backend.ask_over(wire.clone(), &rpc::VERSION, &headers, body);
        assert_eq!(asked.await.unwrap().code(), Code::Ok);
        // The clock is paused, so this takes no time.
        tokio::time::sleep(Duration::from_secs(3600)).await;
    }
    let seen = seen.lock().unwrap();
    assert!(seen.contains(&DATA) && !seen.contains(&PING), "{seen:?}");
}
