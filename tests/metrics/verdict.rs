//! The verdict on the node, and the time that each backend needs for its part of a call to several backends.

use std::time::Duration;

use criswitch_advice::verdict::NodeVerdict;
use criswitch_cri::codec::{admin, cri};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::page::{Page, rig, until};
use crate::support::clock::later;
use crate::support::{Rig, Sim};
use crate::values::two;

/// Waits until the metrics show this verdict on the node.
async fn until_verdict(rig: &Rig, verdict: &str) -> Page {
    let labels = [("verdict", verdict)];
    until(rig, |page| page.value("criswitch_verdict", &labels) == 1.0).await
}

/// The verdict of `criswitch status`, if clients get lists.
async fn verdict_of_status(rig: &Rig) -> NodeVerdict {
    let state = rig.admin().get_state(admin::GetStateRequest {}).await;
    NodeVerdict::of(&state.unwrap().into_inner(), Vec::new(), None)
}

/// The health of the node.
async fn health(rig: &Rig) -> ServingStatus {
    let mut health = HealthClient::new(rig.channel());
    let checked = health.check(HealthCheckRequest::default()).await.unwrap();
    checked.into_inner().status()
}

#[tokio::test]
async fn the_parts_of_merged_calls_are_timed_by_backend() {
    let rig = two().await;
    rig.pods().await.unwrap();
    let status = cri::StatusRequest::default();
    rig.runtime().status(status).await.unwrap();
    let page = Page::of(&rig).await;
    let name = "criswitch_backend_part_duration_seconds_count";
    for backend in ["runc", "kata"] {
        for rpc in ["ListPodSandbox", "Status"] {
            let labels = [("rpc", rpc), ("backend", backend)];
            assert_eq!(page.value(name, &labels), 1.0, "{rpc} {backend}");
        }
    }
}

#[tokio::test]
async fn the_verdict_is_that_of_the_status_command() {
    let rig = two().await;
    until_verdict(&rig, "serving").await;
    rig.sim("kata").stop().await;
    rig.start("nobody").await.unwrap_err();
    let page = until_verdict(&rig, "degraded").await;
    let labels = [("verdict", "serving")];
    assert_eq!(page.value("criswitch_verdict", &labels), 0.0);
}

/// With one backend, criswitch serves no cached list.
#[tokio::test]
async fn lists_fail_in_status_metrics_and_health_while_the_only_backend_is_down() {
    let rig = rig("", [Sim::new("runc")]).await;
    rig.run("runc", "web").await;
    rig.pods().await.unwrap();
    until_verdict(&rig, "serving").await;
    assert_eq!(health(&rig).await, ServingStatus::Serving);
    rig.sim("runc").stop().await;
    rig.pods().await.unwrap_err();
    let page = until_verdict(&rig, "lists failing").await;
    for list in ["pods", "containers", "images"] {
        let labels = [("backend", "runc"), ("list", list)];
        assert_eq!(page.value("criswitch_lists_failing", &labels), 1.0);
    }
    assert_eq!(health(&rig).await, ServingStatus::NotServing);
    let status = verdict_of_status(&rig).await;
    assert_eq!(status.level.as_ref(), "lists failing");
    let [reason] = status.reasons.as_slice() else {
        panic!("{status:?}");
    };
    let cause = "its cached list is not served, because no other backend takes part in lists";
    assert!(reason.contains(cause), "{reason}");
    assert!(!reason.contains("forget"), "{reason}");
    rig.sim("runc").start();
    until_verdict(&rig, "serving").await;
    assert_eq!(health(&rig).await, ServingStatus::Serving);
}

#[tokio::test]
async fn the_node_is_not_ready_in_status_metrics_and_health_after_30_s_without_the_default_backend()
{
    let rig = two().await;
    until_verdict(&rig, "serving").await;
    rig.sim("runc").stop().await;
    rig.pods().await.unwrap();
    until_verdict(&rig, "degraded").await;
    assert_eq!(health(&rig).await, ServingStatus::Serving);
    later(Duration::from_secs(30)).await;
    until_verdict(&rig, "node not ready").await;
    assert_eq!(health(&rig).await, ServingStatus::NotServing);
    let status = verdict_of_status(&rig).await;
    assert_eq!(status.level.as_ref(), "node not ready");
    rig.sim("runc").start();
    until_verdict(&rig, "serving").await;
}
