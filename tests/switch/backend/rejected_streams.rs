//! A backend that rejects the stream of a call before it processes the call (`REFUSED_STREAM`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use criswitch::backend::own_headers;
use criswitch::limits::places::User;
use criswitch_cri::codec::frames;
use criswitch_cri::rpc;
use tokio::io::DuplexStream;
use tonic::{Code, Status};

use super::raw::{backend_of, frame, handshake, reply, send};
use crate::http2::{CANCEL, DATA, REFUSED_STREAM, RST_STREAM};

/// Resets the first `times` calls with this error, and answers the others.
async fn reset(mut peer: DuplexStream, times: usize, error: [u8; 4], calls: Arc<AtomicUsize>) {
    handshake(&mut peer, &[]).await;
    loop {
        let (kind, stream) = frame(&mut peer).await;
        if kind != DATA {
            continue;
        }
        match calls.fetch_add(1, Ordering::Relaxed) {
            call if call < times => send(&mut peer, RST_STREAM, 0, stream, &error).await,
            _ => reply(&mut peer, stream, b"").await,
        }
    }
}

/// Makes one call. Returns its result, and how many calls the backend has received.
async fn call(times: usize, error: [u8; 4]) -> (Result<Code, Status>, usize) {
    let calls = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&calls);
    let backend = backend_of(move |peer| reset(peer, times, error, Arc::clone(&counted)));
    let (wire, connection) = backend.connect().await.unwrap();
    tokio::spawn(connection);
    let (headers, body) = (own_headers(), frames::frame(b""));
    let asked = backend.ask_over(wire, User::Own, &rpc::RUN_POD_SANDBOX, &headers, body);
    let result = asked.await.map(|answer| answer.code());
    (result, calls.load(Ordering::Relaxed))
}

#[tokio::test]
async fn a_call_whose_stream_is_rejected_is_sent_again_once() {
    let (result, calls) = call(1, REFUSED_STREAM).await;
    assert_eq!((result.unwrap(), calls), (Code::Ok, 2));
    let (result, calls) = call(2, REFUSED_STREAM).await;
    let failed = result.unwrap_err();
    assert_eq!((failed.code(), calls), (Code::Unavailable, 2));
    for words in ["\"raw\"", "rejected before it was processed", "twice"] {
        assert!(failed.message().contains(words), "{failed}");
    }
}

#[tokio::test]
async fn a_call_that_is_reset_for_another_reason_is_not_sent_again() {
    let (result, calls) = call(1, CANCEL).await;
    assert_eq!((result.unwrap_err().code(), calls), (Code::Cancelled, 1));
}
