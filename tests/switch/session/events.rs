//! Container events: one stream with the events of all backends, or an error.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use criswitch_cri::codec::cri;
use tokio_stream::StreamExt;
use tonic::{Code, Status, Streaming};

use crate::calls::stopped;
use crate::logged::Logged;
use crate::support::{PATIENCE, Rig, Sim};
use crate::wait;

/// Opens a stream of events, and waits until criswitch receives the events of every runtime.
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

/// The next event, or the status at the end of the stream.
pub async fn next(
    events: &mut Streaming<cri::ContainerEventResponse>,
) -> Result<cri::ContainerEventResponse, Status> {
    let event = tokio::time::timeout(PATIENCE, events.next()).await;
    event.expect("no event in time").expect("no event any more")
}

/// The status of a stream that must fail.
pub async fn rejected_events(rig: &Rig) -> Status {
    match events(rig).await {
        Ok(mut events) => next(&mut events).await.unwrap_err(),
        Err(status) => status,
    }
}

#[tokio::test]
async fn events_of_every_backend_arrive_as_they_happen() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let mut events = listening(&rig).await;
    let mut expected = BTreeSet::new();
    for handler in ["kata", "runc"] {
        let (pod, container) = rig.run(handler, "web").await;
        // The pod and the container are each created and started.
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
async fn an_event_that_no_client_can_decode_is_dropped_and_ends_no_stream() {
    let logged = Logged::here();
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let not_utf8 = b"\x0a\x04caf\xe9";
    rig.sim("kata")
        .append_raw("GetContainerEvents", not_utf8.as_slice());
    let mut events = listening(&rig).await;
    rig.run_pod("kata", "dropped").await;
    wait::until(async || {
        !logged
            .lines(&["WARN", "kata", "events that clients cannot use"])
            .is_empty()
    })
    .await;
    let (pod, _) = rig.run("runc", "web").await;
    assert_eq!(next(&mut events).await.unwrap().container_id, pod);
    assert_eq!(logged.lines(&["events that clients cannot use"]).len(), 1);
}

#[tokio::test]
async fn events_are_unimplemented_if_one_backend_lacks_them() {
    for lacking in ["runc", "kata"] {
        let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
        rig.sim(lacking).clone().lacks(["GetContainerEvents"]);
        assert_eq!(rejected_events(&rig).await.code(), Code::Unimplemented);
        wait::until(async || rig.sims.iter().all(|sim| sim.listeners() == 0)).await;
    }
}

#[tokio::test]
async fn events_of_other_backends_arrive_while_one_is_down() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    stopped(&rig, "kata").await;
    let mut events = events(&rig).await.unwrap();
    wait::until(async || rig.sim("runc").listeners() == 1).await;
    let pod = rig.run_pod("runc", "web").await;
    assert_eq!(next(&mut events).await.unwrap().container_id, pod);
}

#[tokio::test]
async fn events_survive_a_backends_death_and_then_report_the_state_of_its_pods() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let (_, container) = rig.run("kata", "web").await;
    let mut events = listening(&rig).await;
    let kata = rig.sim("kata");
    stopped(&rig, "kata").await;
    let pod = rig.run_pod("runc", "web").await;
    assert_eq!(next(&mut events).await.unwrap().container_id, pod);
    kata.exit(&container, 3);
    kata.start();
    let shown = |event: &cri::ContainerEventResponse| {
        let mut statuses = event.containers_statuses.iter();
        statuses.any(|status| status.id == container && status.exit_code == 3)
    };
    while !shown(&next(&mut events).await.unwrap()) {}
}

#[tokio::test]
async fn streams_of_events_end_at_every_backend_when_the_client_disconnects() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let events = listening(&rig).await;
    drop(events);
    wait::until(async || rig.sims.iter().all(|sim| sim.listeners() == 0)).await;
}

#[tokio::test]
async fn a_stream_of_events_past_its_deadline_is_deadline_exceeded() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let reply = rig.raw(
        "/runtime.v1.RuntimeService/GetContainerEvents",
        &[("grpc-timeout", "50m")],
        crate::support::frame_raw(b""),
    );
    assert_eq!(reply.await.code(), Code::DeadlineExceeded);
    wait::until(async || rig.sims.iter().all(|sim| sim.listeners() == 0)).await;
}

/// A subscriber gets no event of another backend's container, so criswitch does not wait for the subscriber meanwhile.
#[tokio::test]
async fn other_work_goes_on_between_events_that_a_backend_sends_at_once() {
    const EVENTS: usize = 500;
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let (pod, container) = rig.run("runc", "web").await;
    let (own_pod, own) = rig.run("kata", "db").await;
    let mut events = listening(&rig).await;
    let turns = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&turns);
    for _ in 0..EVENTS {
        rig.sim("kata").report(&container, &pod);
    }
    rig.sim("kata").report(&own, &own_pod);
    let other = tokio::spawn(async move {
        loop {
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    });
    while next(&mut events).await.unwrap().container_id != own {}
    other.abort();
    let turns = turns.load(Ordering::Relaxed);
    assert!(turns >= EVENTS, "{turns}");
}
