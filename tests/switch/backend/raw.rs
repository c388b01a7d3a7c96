//! Backends that work with raw HTTP/2 frames, for behaviour that no server library can produce.

use std::sync::Arc;
use std::time::Duration;

use criswitch::backend::Backend;
use criswitch::backend::connect::Dialer;
use criswitch_config::address::Address;
use criswitch_config::{BackendConfig, BackendId};
use criswitch_cri::codec::frames;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use crate::http2::{self, DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, header};

/// Reads the client's preface and sends the backend's settings.
pub async fn handshake(peer: &mut DuplexStream, settings: &[u8]) {
    let mut preface = [0; PREFACE.len()];
    peer.read_exact(&mut preface).await.unwrap();
    assert_eq!(preface, PREFACE);
    send(peer, SETTINGS, 0, 0, settings).await;
}

pub async fn send(peer: &mut DuplexStream, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let frame = http2::encoded(kind, flags, stream, payload);
    peer.write_all(&frame).await.unwrap();
}

/// The type and the stream of the next frame, whose payload is dropped.
pub async fn frame(peer: &mut DuplexStream) -> (u8, u32) {
    let (kind, stream, _) = http2::next(peer).await.unwrap();
    (kind, stream)
}

/// Replies to a call with one message and the status OK.
pub async fn reply(peer: &mut DuplexStream, stream: u32, message: &[u8]) {
    let head = [vec![0x88], header("content-type", "application/grpc")].concat();
    send(peer, HEADERS, END_HEADERS, stream, &head).await;
    for piece in frames::frame(message).chunks(16_000) {
        send(peer, DATA, 0, stream, piece).await;
    }
    let end = header("grpc-status", "0");
    send(peer, HEADERS, END_HEADERS | END_STREAM, stream, &end).await;
}

/// A backend whose connections go to `serve`, through memory instead of a socket.
pub fn backend_of<S: Future<Output = ()> + Send + 'static>(
    serve: impl Fn(DuplexStream) -> S + Send + Sync + 'static,
) -> Backend {
    let dial = move |_: &Address| {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        tokio::spawn(serve(theirs));
        Ok(ours)
    };
    let config = BackendConfig {
        id: BackendId::new(0),
        name: "raw".to_owned(),
        socket: Address::default_listen(),
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
