//! Container events: of all backends in one stream, or of none.

use std::collections::BTreeSet;

use criswitch::codec::cri;
use tokio_stream::StreamExt;
use tonic::{Code, Status, Streaming};

use crate::calls::stopped;
use crate::support::{PATIENCE, Rig, Sim};
use crate::wait;

/// The stream once every runtime has a listener.
pub async fn listening(rig: &Rig) -> Streaming<cri::ContainerEventResponse> {
    let events = events(rig).await.unwrap();
    wait::until(async || rig.sims.iter().all(|sim| sim.listeners() == 1)).await;
    events
}

pub async fn events(rig: &Rig) -> Result<Streaming<cri::ContainerEventResponse>, Status> {
    let request = cri::GetEventsRequest {};
    Ok(rig
        .runtime()
        .get_container_events(request)
        .await?
        .into_inner())
}

/// The next event, or how the stream ends.
pub async fn next(
    events: &mut Streaming<cri::ContainerEventResponse>,
) -> Result<cri::ContainerEventResponse, Status> {
    let event = tokio::time::timeout(PATIENCE, events.next()).await;
    event.expect("no event in time").expect("no event any more")
}

/// How a stream begins that is not to bring anything.
pub async fn refusal(rig: &Rig) -> Status {
    match events(rig).await {
        Ok(mut events) => next(&mut events).await.unwrap_err(),
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
            let event = next(&mut events).await.unwrap();
            let status = event.pod_sandbox_status.as_ref().unwrap();
            assert_eq!(status.runtime_handler, handler);
            seen.push(event.container_id);
        }
        expected.extend([pod, container]);
        assert!(seen.iter().all(|id| expected.contains(id)), "{seen:?}");
    }
    let last = rig.sim("runc").containers()[0].id.clone();
    rig.sim("runc").exit(&last, 3);
    let event = next(&mut events).await.unwrap();
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
async fn events_of_the_others_come_while_a_backend_is_down() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    stopped(&rig, "kata").await;
    let mut events = events(&rig).await.unwrap();
    wait::until(async || rig.sim("runc").listeners() == 1).await;
    let pod = rig.run_pod("runc", "web").await;
    assert_eq!(next(&mut events).await.unwrap().container_id, pod);
}

#[tokio::test]
async fn events_survive_a_backend_s_death_and_tell_what_became_of_its_pods() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let (_, container) = rig.run("kata", "web").await;
    let mut events = listening(&rig).await;
    let kata = rig.sim("kata");
    stopped(&rig, "kata").await;
    let pod = rig.run_pod("runc", "web").await;
    assert_eq!(next(&mut events).await.unwrap().container_id, pod);
    kata.exit(&container, 3);
    kata.start();
    let told = |event: &cri::ContainerEventResponse| {
        let mut statuses = event.containers_statuses.iter();
        statuses.any(|status| status.id == container && status.exit_code == 3)
    };
    while !told(&next(&mut events).await.unwrap()) {}
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
