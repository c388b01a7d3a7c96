//! The verdict on the node, and the time that each backend needs for its part of a call to several backends.

use criswitch_cri::codec::cri;

use crate::page::{Page, until};
use crate::support::Rig;
use crate::values::two;

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
    let verdict = async |rig: &Rig, verdict: &str| {
        until(rig, |page| {
            let labels = [("verdict", verdict)];
            page.value("criswitch_verdict", &labels) == 1.0
        })
        .await
    };
    verdict(&rig, "serving").await;
    rig.sim("kata").stop().await;
    rig.start("nobody").await.unwrap_err();
    let page = verdict(&rig, "degraded").await;
    let labels = [("verdict", "serving")];
    assert_eq!(page.value("criswitch_verdict", &labels), 0.0);
}
