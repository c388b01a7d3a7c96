//! The codes that a client gets if a backend resets the stream of its call (gRPC over HTTP/2: `Errors`).

use std::time::Duration;

use criswitch::backend::own_headers;
use criswitch::limits::places::User;
use criswitch_cri::codec::frames;
use criswitch_cri::rpc;
use http::HeaderValue;
use tokio::io::DuplexStream;
use tonic::{Code, Status};

use super::raw::{backend_of, frame, handshake, send};
use crate::http2::{DATA, END_HEADERS, HEADERS, RST_STREAM, header};

/// The codes for all errors of RFC 9113, 7, by their numbers, and for an unknown error.
const CODES: [Code; 15] = [
    Code::Internal,
    Code::Internal,
    Code::Internal,
    Code::Internal,
    Code::Internal,
    Code::Internal,
    Code::Internal,
    Code::Unavailable,
    Code::Cancelled,
    Code::Internal,
    Code::Internal,
    Code::ResourceExhausted,
    Code::PermissionDenied,
    Code::Internal,
    Code::Internal,
];
const CANCEL: u32 = 8;

/// When a backend resets a call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    /// Instead of a reply.
    Once,
    /// After the headers of its reply and a part of the message.
    MidReply,
    /// When the deadline of the call has passed.
    Late,
}

const TIMEOUT: Duration = Duration::from_millis(20);

/// Replies to each call with a reset for the reason `error`.
async fn reset(mut peer: DuplexStream, error: u32, at: At) {
    handshake(&mut peer, &[]).await;
    loop {
        let (kind, stream) = frame(&mut peer).await;
        if kind != DATA {
            continue;
        }
        if at == At::MidReply {
            let head = [vec![0x88], header("content-type", "application/grpc")].concat();
            send(&mut peer, HEADERS, END_HEADERS, stream, &head).await;
            send(&mut peer, DATA, 0, stream, &[0, 0, 0, 0, 9]).await;
        }
        if at == At::Late {
            tokio::time::advance(TIMEOUT).await;
        }
        send(&mut peer, RST_STREAM, 0, stream, &error.to_be_bytes()).await;
    }
}

/// The status of a call that its backend resets.
async fn status(error: u32, at: At) -> Status {
    let backend = backend_of(move |peer| reset(peer, error, at));
    let (wire, connection) = backend.connect().await.unwrap();
    tokio::spawn(connection);
    let mut headers = own_headers();
    headers.insert("grpc-timeout", HeaderValue::from_static("20m"));
    let asked = backend.ask_over(wire, User::Own, &rpc::VERSION, &headers, frames::frame(b""));
    asked.await.unwrap_err()
}

#[tokio::test(start_paused = true)]
async fn a_call_reset_by_its_backend_has_the_code_of_the_reason() {
    for (error, code) in (0..).zip(CODES) {
        for at in [At::Once, At::MidReply] {
            // A reset without an error after the headers ends the reply.
            let code = match (error, at) {
                (0, At::MidReply) => Code::Unavailable,
                _ => code,
            };
            let status = status(error, at).await;
            assert_eq!(status.code(), code, "{error} {at:?}: {status}");
            assert!(status.message().contains("\"raw\""), "{status}");
            assert!(!status.message().contains("not a result"), "{status}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_cancelled_by_its_backend_after_the_deadline_is_deadline_exceeded() {
    assert_eq!(
        status(CANCEL, At::Late).await.code(),
        Code::DeadlineExceeded
    );
    for (error, code) in (9..).zip(CODES.into_iter().skip(9)) {
        assert_eq!(status(error, At::Late).await.code(), code, "{error}");
    }
}
