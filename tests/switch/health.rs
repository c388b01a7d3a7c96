//! gRPC's health service: the node and each backend.

use tonic::{Code, Streaming};
use tonic_health::pb::health_check_response::ServingStatus::{
    self, NotServing, ServiceUnknown, Serving,
};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::calls::stopped;
use crate::faults::{runc_and_kata, text, until_state};
use crate::support::{PATIENCE, Rig};

fn request(service: &str) -> HealthCheckRequest {
    let service = service.to_owned();
    HealthCheckRequest { service }
}

async fn check(rig: &Rig, service: &str) -> Result<ServingStatus, Code> {
    let mut health = HealthClient::new(rig.channel());
    let checked = health
        .check(request(service))
        .await
        .map_err(|status| status.code())?;
    Ok(checked.into_inner().status())
}

async fn watch(rig: &Rig, service: &str) -> Streaming<HealthCheckResponse> {
    let mut health = HealthClient::new(rig.channel());
    health.watch(request(service)).await.unwrap().into_inner()
}

/// The next status; `None` if criswitch ended the stream.
async fn next(statuses: &mut Streaming<HealthCheckResponse>) -> Option<ServingStatus> {
    let next = tokio::time::timeout(PATIENCE, statuses.message())
        .await
        .expect("no status in time")
        .unwrap();
    next.map(|response| response.status())
}

#[tokio::test]
async fn a_backend_that_is_down_does_not_serve_and_the_node_does() {
    let rig = runc_and_kata().await;
    rig.run_pod("kata", "web").await;
    for service in ["", "runc", "kata"] {
        assert_eq!(check(&rig, service).await, Ok(Serving), "{service:?}");
    }
    assert_eq!(check(&rig, "nobody").await, Err(Code::NotFound));
    stopped(&rig, "kata").await;
    assert_eq!(check(&rig, "").await, Ok(Serving));
    assert_eq!(check(&rig, "runc").await, Ok(Serving));
    assert_eq!(check(&rig, "kata").await, Ok(NotServing));
}

#[tokio::test]
async fn a_node_whose_lists_fail_does_not_serve() {
    let mut rig = runc_and_kata().await;
    rig.stop_switch().await;
    rig.sim("kata").stop().await;
    rig.restart_switch_without_state().await;
    rig.pods().await.unwrap_err();
    assert_eq!(check(&rig, "").await, Ok(NotServing));
    assert_eq!(check(&rig, "kata").await, Ok(NotServing));
    assert_eq!(check(&rig, "runc").await, Ok(Serving));
}

#[tokio::test]
async fn a_node_whose_first_lists_wait_does_not_serve() {
    let mut rig = runc_and_kata().await;
    rig.stop_switch().await;
    rig.sim("kata").stop().await;
    std::fs::remove_dir_all(rig.state_directory()).unwrap();
    let waits = text(
        "start_wait = \"1h\"",
        &rig.sims,
        rig.directory().to_str().unwrap(),
    );
    rig.restart_switch_with(|_| waits).await;
    assert_eq!(check(&rig, "").await, Ok(NotServing));
    assert_eq!(check(&rig, "kata").await, Ok(NotServing));
    rig.sim("kata").start();
    until_state(&rig, "kata", "ready").await;
    assert_eq!(check(&rig, "").await, Ok(Serving));
}

#[tokio::test]
async fn a_watch_sends_each_change_until_criswitch_ends() {
    let mut rig = runc_and_kata().await;
    rig.run_pod("kata", "web").await;
    let mut statuses = watch(&rig, "kata").await;
    assert_eq!(next(&mut statuses).await, Some(Serving));
    stopped(&rig, "kata").await;
    assert_eq!(next(&mut statuses).await, Some(NotServing));
    rig.sim("kata").start();
    until_state(&rig, "kata", "ready").await;
    assert_eq!(next(&mut statuses).await, Some(Serving));
    let mut unknown = watch(&rig, "nobody").await;
    assert_eq!(next(&mut unknown).await, Some(ServiceUnknown));
    let (ended, ()) = tokio::join!(next(&mut unknown), rig.stop_switch());
    assert_eq!(ended, None);
}
