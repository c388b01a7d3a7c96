//! Container events: of all backends in one stream, or of none.

use std::collections::BTreeSet;

use criswitch::cri;
use tokio_stream::StreamExt;
use tonic::{Code, Status, Streaming};

use crate::support::{Rig, Sim};
use crate::wait;

/// The stream once every runtime has a listener.
pub async fn listening(rig: &Rig) -> Streaming<cri::ContainerEventResponse> {
    let events = events(rig).await.unwrap();
    wait::until(async || rig.sims.iter().all(|sim| sim.listeners() == 1)).await;
    events
}

async fn events(rig: &Rig) -> Result<Streaming<cri::ContainerEventResponse>, Status> {
    let request = cri::GetEventsRequest {};
    Ok(rig
        .runtime()
        .get_container_events(request)
        .await?
        .into_inner())
}

/// How a stream begins that is not to bring anything.
async fn refusal(rig: &Rig) -> Status {
    match events(rig).await {
        Ok(mut events) => events.next().await.unwrap().unwrap_err(),
        Err(status) => status,
    }
}

#[tokio::test]
async fn events_of_every_backend_come_as_they_happen() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let mut events = listening(&rig).await;
    let mut expected = BTreeSet::new();
    for handler in ["kata", "runc"] {
        let (pod, container) = rig.run(handler, "web").await;
        // Each of both is created and started.
        let mut seen = Vec::new();
        while seen.len() < 4 {
            let event = events.next().await.unwrap().unwrap();
            let status = event.pod_sandbox_status.as_ref().unwrap();
            assert_eq!(status.runtime_handler, handler);
            seen.push(event.container_id);
        }
        expected.extend([pod, container]);
        assert!(seen.iter().all(|id| expected.contains(id)), "{seen:?}");
    }
    let last = rig.sim("runc").containers()[0].id.clone();
    rig.sim("runc").exit(&last, 3);
    let event = events.next().await.unwrap().unwrap();
    assert_eq!(event.container_id, last);
    assert_eq!(event.containers_statuses[0].exit_code, 3);
}

#[tokio::test]
async fn events_are_unimplemented_if_one_backend_lacks_them() {
    for lacking in ["runc", "kata"] {
        let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
        rig.sim(lacking).clone().lacks(["GetContainerEvents"]);
        assert_eq!(refusal(&rig).await.code(), Code::Unimplemented);
        wait::until(async || rig.sims.iter().all(|sim| sim.listeners() == 0)).await;
    }
}

#[tokio::test]
async fn events_are_unavailable_by_name_while_a_backend_is_down() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    rig.pods().await.unwrap();
    rig.sim("kata").stop().await;
    rig.pods().await.unwrap_err();
    let refusal = refusal(&rig).await;
    assert_eq!(refusal.code(), Code::Unavailable);
    let socket = rig.sim("kata").socket().display().to_string();
    assert!(refusal.message().contains(&socket), "{refusal}");
}

#[tokio::test]
async fn events_end_by_name_when_a_backend_dies() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let mut events = listening(&rig).await;
    rig.sim("kata").stop().await;
    let end = events.next().await.unwrap().unwrap_err();
    assert_eq!(end.code(), Code::Unavailable);
    assert!(end.message().contains("kata"), "{end}");
    wait::until(async || rig.sim("runc").listeners() == 0).await;
}

#[tokio::test]
async fn a_client_that_goes_is_heard_at_every_backend() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let events = listening(&rig).await;
    drop(events);
    wait::until(async || rig.sims.iter().all(|sim| sim.listeners() == 0)).await;
}

#[tokio::test]
async fn a_deadline_ends_the_events_and_says_so() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let reply = rig.raw(
        "/runtime.v1.RuntimeService/GetContainerEvents",
        &[("grpc-timeout", "50m")],
        crate::support::frame_raw(b""),
    );
    assert_eq!(reply.await.code(), Code::DeadlineExceeded);
    wait::until(async || rig.sims.iter().all(|sim| sim.listeners() == 0)).await;
}
