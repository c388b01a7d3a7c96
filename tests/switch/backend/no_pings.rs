//! criswitch never pings an idle connection: a grpc-go server closes a connection that is pinged too often.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use criswitch::backend::own_headers;
use criswitch::limits::places::User;
use criswitch_cri::codec::frames;
use criswitch_cri::rpc;
use tokio::io::DuplexStream;
use tonic::Code;

use super::raw::{backend_of, frame, handshake, reply};
use crate::http2::{DATA, PING};

/// A backend that works with raw HTTP/2 frames. It answers each call with a message of 50 kB, and records the types of
/// the frames that it receives.
async fn answer(mut peer: DuplexStream, seen: Arc<Mutex<Vec<u8>>>) {
    handshake(&mut peer, &[]).await;
    loop {
        let (kind, stream) = frame(&mut peer).await;
        seen.lock().unwrap().push(kind);
        if kind == DATA {
            reply(&mut peer, stream, &[0; 50_000]).await;
        }
    }
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
        let asked = backend.ask_over(wire.clone(), User::Own, &rpc::VERSION, &headers, body);
        assert_eq!(asked.await.unwrap().code(), Code::Ok);
        // The clock is paused, so this takes no time.
        tokio::time::sleep(Duration::from_secs(3600)).await;
    }
    let seen = seen.lock().unwrap();
    assert!(seen.contains(&DATA) && !seen.contains(&PING), "{seen:?}");
}
