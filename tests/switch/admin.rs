//! The admin service: the state of the switch and its changes, within limits.

use criswitch::codec::admin::{ForgetRequest, GetStateRequest, State, WatchStateRequest};
use criswitch::limits::{MAX_ADMIN_CALLS, MAX_ADMIN_REQUEST};
use http_body::Body;
use tonic::{Code, Streaming};

use crate::calls::stopped;
use crate::faults::runc_and_kata;
use crate::support::{PATIENCE, RawClient, Rig, frame_raw};
use crate::wait;

async fn watch(rig: &Rig) -> Streaming<State> {
    let states = rig.admin().watch_state(WatchStateRequest {}).await;
    states.unwrap().into_inner()
}

/// The next state that a client is sent, unless the switch has ended the stream.
async fn next(states: &mut Streaming<State>) -> Option<State> {
    let state = tokio::time::timeout(PATIENCE, states.message()).await;
    state.expect("no state in time").unwrap()
}

fn state_of<'a>(state: &'a State, backend: &str) -> &'a str {
    let mut backends = state.backends.iter();
    let backend = backends.find(|row| row.name == backend).unwrap();
    &backend.state
}

#[tokio::test]
async fn a_watch_sends_the_state_now_and_again_when_it_has_changed() {
    let rig = runc_and_kata().await;
    rig.run_pod("kata", "web").await;
    let mut states = watch(&rig).await;
    let first = next(&mut states).await.unwrap();
    assert_eq!(state_of(&first, "kata"), "ready");
    assert_eq!(first.backends[1].pod_ids.len(), 1);
    stopped(&rig, "kata").await;
    let second = next(&mut states).await.unwrap();
    assert_eq!(state_of(&second, "kata"), "down");
}

#[tokio::test]
async fn a_watch_ends_when_the_switch_shuts_down() {
    let mut rig = runc_and_kata().await;
    let mut states = watch(&rig).await;
    next(&mut states).await.unwrap();
    let ended = async { while next(&mut states).await.is_some() {} };
    let ((), ()) = tokio::join!(ended, rig.stop_switch());
}

#[tokio::test]
async fn more_calls_than_there_are_places_are_rejected_until_one_ends() {
    let rig = runc_and_kata().await;
    let mut watches = Vec::new();
    for _ in 0..MAX_ADMIN_CALLS {
        watches.push(watch(&rig).await);
    }
    let refused = rig.admin().get_state(GetStateRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    // The CRI has places of its own.
    assert!(rig.pods().await.unwrap().is_empty());
    watches.pop();
    wait::until(async || rig.admin().get_state(GetStateRequest {}).await.is_ok()).await;
}

#[tokio::test]
async fn a_request_that_is_too_large_is_rejected() {
    let rig = runc_and_kata().await;
    let backend = "x".repeat(MAX_ADMIN_REQUEST);
    let refused = rig.admin().forget(ForgetRequest { backend }).await;
    assert_eq!(refused.unwrap_err().code(), Code::OutOfRange);
}

#[tokio::test]
async fn a_method_that_it_does_not_have_is_unimplemented() {
    let rig = runc_and_kata().await;
    let path = "/criswitch.admin.v1.Admin/Explode";
    let client = RawClient::connect(&rig.socket).await;
    let reply = client.begin(path, &[], frame_raw(b"")).await.unwrap();
    assert_eq!(reply.headers()["grpc-status"], "12", "Unimplemented");
    // Clients in Go read no status from the headers of a reply that has a body.
    assert!(reply.body().is_end_stream());
}
