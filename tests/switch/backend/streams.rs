//! How the HTTP/2 connection to a backend treats calls when the backend limits its streams or sends GOAWAY.

use std::sync::{Arc, Mutex};

use criswitch::backend::wire::Wire;
use criswitch::backend::{Backend, own_headers};
use criswitch::limits::places::User;
use criswitch_cri::codec::frames;
use criswitch_cri::rpc;
use futures_util::FutureExt;
use tokio::io::DuplexStream;
use tokio::sync::Semaphore;
use tonic::Code;

use super::raw::{backend_of, frame, handshake, reply, send};
use crate::http2::{DATA, GOAWAY, HEADERS};
use crate::wait::until;

/// SETTINGS_MAX_CONCURRENT_STREAMS = 1 (RFC 9113, 6.5.1).
const ONE_STREAM: [u8; 6] = [0, 3, 0, 0, 0, 1];
/// GOAWAY with stream 1 as the last one and without an error (RFC 9113, 6.8).
const NONE_AFTER_FIRST: [u8; 8] = [0, 0, 0, 1, 0, 0, 0, 0];

/// A Version call's result.
async fn version(backend: &Backend, wire: &Wire) -> Result<Code, String> {
    let (headers, body) = (own_headers(), frames::frame(b""));
    let asked = backend
        .ask_over(wire.clone(), User::Own, &rpc::VERSION, &headers, body)
        .await
        .map(|answer| answer.code());
    asked.map_err(|failed| failed.message().to_owned())
}

/// The types of the frames that a backend has received, and a permit for each reply that it may send.
#[derive(Clone)]
struct Seen {
    frames: Arc<Mutex<Vec<u8>>>,
    replies: Arc<Semaphore>,
}

impl Seen {
    fn nothing() -> Seen {
        Seen {
            frames: Arc::default(),
            replies: Arc::new(Semaphore::new(0)),
        }
    }

    fn count(&self, kind: u8) -> usize {
        let frames = self.frames.lock().unwrap();
        frames.iter().filter(|frame| **frame == kind).count()
    }

    /// Serves a connection. `goaway` follows the first request.
    async fn serve(self, mut peer: DuplexStream, settings: &'static [u8], goaway: bool) {
        handshake(&mut peer, settings).await;
        loop {
            let (kind, stream) = frame(&mut peer).await;
            self.frames.lock().unwrap().push(kind);
            if kind == DATA {
                if goaway {
                    send(&mut peer, GOAWAY, 0, 0, &NONE_AFTER_FIRST).await;
                }
                self.replies.acquire().await.unwrap().forget();
                reply(&mut peer, stream, b"").await;
            }
        }
    }
}

#[tokio::test]
async fn goaway_ends_the_connection_for_new_calls_only() {
    let seen = Seen::nothing();
    let serve = seen.clone();
    let backend = backend_of(move |peer| serve.clone().serve(peer, &[], true));
    let (wire, connection) = backend.connect().await.unwrap();
    let driver = tokio::spawn(connection);
    let mut first = Box::pin(version(&backend, &wire));
    assert!((&mut first).now_or_never().is_none());
    until(async || seen.count(HEADERS) == 1).await;
    assert!(!driver.is_finished(), "no call was rejected yet");
    until(async || {
        let failed = version(&backend, &wire).await.unwrap_err();
        assert!(
            failed.ends_with("(GOAWAY) and takes no further calls"),
            "{failed}"
        );
        driver.is_finished()
    })
    .await;
    seen.replies.add_permits(1);
    assert_eq!(first.await, Ok(Code::Ok));
    assert!(driver.await.unwrap().is_ok());
}

#[tokio::test]
async fn calls_wait_for_a_free_stream_and_a_call_cancelled_meanwhile_is_never_sent() {
    let seen = Seen::nothing();
    let serve = seen.clone();
    let backend = backend_of(move |peer| serve.clone().serve(peer, &ONE_STREAM, false));
    let (wire, connection) = backend.connect().await.unwrap();
    tokio::spawn(connection);
    // The first reply comes after the backend's settings.
    seen.replies.add_permits(1);
    assert_eq!(version(&backend, &wire).await, Ok(Code::Ok));
    let mut calls = [(); 3].map(|()| Some(Box::pin(version(&backend, &wire))));
    for call in calls.iter_mut().flatten() {
        assert!(call.now_or_never().is_none());
    }
    until(async || seen.count(HEADERS) == 2).await;
    calls[1] = None;
    seen.replies.add_permits(2);
    for call in calls.into_iter().flatten() {
        assert_eq!(call.await, Ok(Code::Ok));
    }
    assert_eq!((seen.count(HEADERS), seen.count(DATA)), (3, 3));
}
