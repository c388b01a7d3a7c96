//! The admin service: the state of criswitch and its changes, within limits.

use bytes::Bytes;
use criswitch::limits::places::User;
use criswitch::limits::{MAX_ADMIN_CALLS, MAX_ADMIN_REQUEST};
use criswitch_cri::codec::admin::{ForgetRequest, GetStateRequest, State, WatchStateRequest};
use criswitch_cri::codec::cri;
use http::Request;
use http_body::Body;
use http_body_util::Full;
use serde_json::json;
use tonic::{Code, Streaming};

use crate::calls::{path, stopped};
use crate::faults::runc_and_kata;
use crate::server::hostile_clients::sipping;
use crate::support::{PATIENCE, RawClient, Rig, frame, frame_raw, pod_config};
use crate::wait::{self, until};

async fn watch(rig: &Rig) -> Streaming<State> {
    let states = rig.admin().watch_state(WatchStateRequest {}).await;
    states.unwrap().into_inner()
}

/// The next state on the stream, or `None` if criswitch ended the stream.
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
async fn a_watch_sends_the_state_at_once_and_after_each_change() {
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
async fn a_watch_ends_when_criswitch_shuts_down() {
    let mut rig = runc_and_kata().await;
    let mut states = watch(&rig).await;
    next(&mut states).await.unwrap();
    let ended = async { while next(&mut states).await.is_some() {} };
    let ((), ()) = tokio::join!(ended, rig.stop_switch());
}

#[tokio::test]
async fn admin_calls_beyond_the_limit_are_rejected_until_one_ends() {
    let rig = runc_and_kata().await;
    let mut watches = Vec::new();
    for _ in 0..MAX_ADMIN_CALLS {
        watches.push(watch(&rig).await);
    }
    let rejected = rig.admin().get_state(GetStateRequest {}).await.unwrap_err();
    assert_eq!(rejected.code(), Code::ResourceExhausted, "{rejected}");
    // CRI calls have a separate limit, so a list still succeeds.
    assert!(rig.pods().await.unwrap().is_empty());
    watches.pop();
    wait::until(async || rig.admin().get_state(GetStateRequest {}).await.is_ok()).await;
}

#[tokio::test]
async fn an_admin_request_that_is_too_large_is_rejected() {
    let rig = runc_and_kata().await;
    let backend = "x".repeat(MAX_ADMIN_REQUEST);
    let rejected = rig.admin().forget(ForgetRequest { backend }).await;
    assert_eq!(rejected.unwrap_err().code(), Code::OutOfRange);
}

#[tokio::test]
async fn an_unknown_admin_method_is_unimplemented() {
    let rig = runc_and_kata().await;
    let path = "/criswitch.admin.v1.Admin/Explode";
    let client = RawClient::connect(&rig.socket).await;
    let reply = client.begin(path, &[], frame_raw(b"")).await.unwrap();
    assert_eq!(reply.headers()["grpc-status"], "12", "Unimplemented");
    // The reply must have no body: clients in Go read no status from the headers of a reply with a body.
    assert!(reply.body().is_end_stream());
}

#[tokio::test]
async fn an_admin_reply_counts_in_the_clients_memory_until_the_client_reads_it() {
    let rig = runc_and_kata().await;
    let mut client = sipping(&rig.socket).await;
    let request = Request::post("http://localhost/criswitch.admin.v1.Admin/GetState")
        .header("content-type", "application/grpc")
        .body(Full::<Bytes>::new(frame_raw(b"")));
    let reply = client.send_request(request.unwrap()).await.unwrap();
    until(async || rig.unread() > 0).await;
    drop(reply);
    until(async || rig.unread() == 0).await;
}

#[tokio::test]
async fn the_state_names_the_containers_that_clients_stopped() {
    let rig = runc_and_kata().await;
    let (_, ended) = rig.run("runc", "ended").await;
    let (_, stopped) = rig.run("kata", "stopped").await;
    rig.sim("runc").exit(&ended, 0);
    rig.stop(&stopped).await.unwrap();
    let state = rig.state().await;
    assert_eq!(state["stoppedContainers"], json!([stopped]));
}

/// The state has the last pods that were not created. Pods of another user must not displace those of the kubelet.
#[tokio::test]
async fn the_state_names_no_failed_pod_of_another_user() {
    let rig = runc_and_kata().await;
    let of_user = RawClient::over(rig.connect_as(User::Other(1000))).await;
    let request = frame(&cri::RunPodSandboxRequest {
        config: Some(pod_config("other")),
        runtime_handler: "unknown".to_owned(),
    });
    let reply = of_user.call(&path("RunPodSandbox"), &[], request).await;
    assert_ne!(reply.code(), Code::Ok);
    rig.try_run("unknown", "web").await.unwrap_err();
    let state = rig.state().await;
    let names = state["rejections"].as_array().unwrap().iter();
    assert_eq!(names.map(|it| &it["name"]).collect::<Vec<_>>(), ["web"]);
}
