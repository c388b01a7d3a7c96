//! Events of a backend that was down: when it is back, events report the state of each of its pods.

use std::collections::BTreeMap;

use criswitch::gate::MOST_CONTAINERS;
use criswitch_cri::codec::cri::{self, ContainerEventType, PodSandboxState};
use tonic::{Status, Streaming};

use crate::calls::stopped;
use crate::faults::{hung, runc_and_kata, until_state, wake};
use crate::logged::Logged;
use crate::session::events::{listening, next};
use crate::support::{Client, Rig};
use crate::wait;

type Events = Streaming<cri::ContainerEventResponse>;

/// kata has a running and a stopped pod, runc has a pod, and a client listens for events.
async fn subscribed() -> (Rig, Events) {
    let rig = runc_and_kata().await;
    rig.run("kata", "web").await;
    let (done, container) = rig.run("kata", "done").await;
    rig.stop(&container).await.unwrap();
    rig.stop_pod(&done).await.unwrap();
    rig.run("runc", "plain").await;
    rig.pods().await.unwrap();
    let events = listening(&rig).await;
    (rig, events)
}

/// The next event of each of `count` pods, by the pod's name.
async fn of_pods(
    events: &mut Events,
    count: usize,
) -> BTreeMap<String, cri::ContainerEventResponse> {
    let mut shown = BTreeMap::new();
    while shown.len() < count {
        let event = next(events).await.unwrap();
        let metadata = metadata(&event);
        shown.insert(metadata.name.clone(), event);
    }
    shown
}

/// The metadata of an event's pod. The kubelet finds the pod by its uid.
#[track_caller]
fn metadata(event: &cri::ContainerEventResponse) -> &cri::PodSandboxMetadata {
    let status = event.pod_sandbox_status.as_ref().unwrap();
    let metadata = status.metadata.as_ref().unwrap();
    assert_eq!(metadata.uid, format!("uid-of-{}", metadata.name));
    assert_eq!(metadata.namespace, "default");
    metadata
}

fn state(event: &cri::ContainerEventResponse) -> PodSandboxState {
    event.pod_sandbox_status.as_ref().unwrap().state()
}

#[tokio::test]
async fn events_report_the_state_of_each_pod_of_a_backend_that_is_back() {
    let (rig, mut events) = subscribed().await;
    stopped(&rig, "kata").await;
    rig.sim("kata").start();
    let shown = of_pods(&mut events, 2).await;
    let (web, done) = (&shown["web"], &shown["done"]);
    assert_eq!(
        web.container_event_type(),
        ContainerEventType::ContainerStartedEvent
    );
    assert_eq!(state(web), PodSandboxState::SandboxReady);
    assert_eq!(web.containers_statuses.len(), 1);
    assert_eq!(
        web.containers_statuses[0].state(),
        cri::ContainerState::ContainerRunning
    );
    assert_eq!(
        done.container_event_type(),
        ContainerEventType::ContainerStoppedEvent
    );
    assert_eq!(state(done), PodSandboxState::SandboxNotready);
    assert_eq!(
        done.containers_statuses[0].state(),
        cri::ContainerState::ContainerExited
    );
    goes_on(&rig, events).await;
}

/// Asserts that new events arrive on the same stream.
async fn goes_on(rig: &Rig, mut events: Events) {
    wait::until(async || rig.sim("kata").listeners() == 1).await;
    let pod = rig.run_pod("kata", "later").await;
    while next(&mut events).await.unwrap().container_id != pod {}
}

#[tokio::test]
async fn events_report_the_deletion_of_each_pod_that_vanished() {
    let (rig, mut events) = subscribed().await;
    let ids: Vec<_> = rig
        .sim("kata")
        .pods()
        .into_iter()
        .map(|pod| pod.id)
        .collect();
    stopped(&rig, "kata").await;
    rig.sim("kata").forget();
    rig.sim("kata").start();
    let shown = of_pods(&mut events, 2).await;
    for name in ["web", "done"] {
        let event = &shown[name];
        assert_eq!(
            event.container_event_type(),
            ContainerEventType::ContainerDeletedEvent
        );
        assert!(ids.contains(&event.container_id), "{event:?}");
        assert_eq!(
            event.container_id,
            event.pod_sandbox_status.as_ref().unwrap().id
        );
        assert_eq!(state(event), PodSandboxState::SandboxNotready);
        assert!(event.containers_statuses.is_empty());
    }
    goes_on(&rig, events).await;
}

#[tokio::test]
async fn a_stream_of_events_that_ends_while_its_connection_lives_is_opened_again() {
    for status in [None, Some(Status::unknown("too slow"))] {
        let (rig, mut events) = subscribed().await;
        let kata = rig.sim("kata");
        let ids: Vec<_> = kata.pods().into_iter().map(|pod| pod.id).collect();
        // kata's stream of events ends, and kata loses its pods without an event.
        kata.end_events(status);
        kata.forget();
        let shown = of_pods(&mut events, 2).await;
        for event in shown.values() {
            let what = event.container_event_type();
            assert_eq!(what, ContainerEventType::ContainerDeletedEvent);
            assert!(ids.contains(&event.container_id), "{event:?}");
        }
        goes_on(&rig, events).await;
    }
}

#[tokio::test]
async fn events_report_the_exit_code_of_a_container_that_ended_while_its_backend_was_down() {
    let (rig, mut events) = subscribed().await;
    let kata = rig.sim("kata");
    stopped(&rig, "kata").await;
    let running = kata
        .containers()
        .into_iter()
        .find(|c| c.state() == cri::ContainerState::ContainerRunning);
    kata.exit(&running.unwrap().id, 137);
    kata.start();
    let shown = of_pods(&mut events, 2).await;
    assert_eq!(shown["web"].containers_statuses[0].exit_code, 137);
}

#[tokio::test]
async fn a_pod_removed_through_criswitch_is_not_reported_again_as_deleted() {
    let (rig, mut events) = subscribed().await;
    let pods = rig.sim("kata").pods();
    let done = pods
        .iter()
        .find(|pod| pod.metadata.as_ref().unwrap().name == "done");
    rig.remove_pod(&done.unwrap().id).await.unwrap();
    while next(&mut events).await.unwrap().container_id != done.unwrap().id {}
    stopped(&rig, "kata").await;
    rig.sim("kata").forget();
    rig.sim("kata").start();
    wait::until(async || rig.sim("kata").listeners() == 1).await;
    let later = rig.run_pod("kata", "later").await;
    let mut shown = Vec::new();
    while shown.last() != Some(&later) {
        shown.push(next(&mut events).await.unwrap().container_id);
    }
    assert!(!shown.contains(&done.unwrap().id), "{shown:?}");
}

#[tokio::test]
async fn events_of_other_backends_arrive_while_one_hangs_and_its_own_arrive_afterwards() {
    let (rig, mut events) = subscribed().await;
    hung(&rig, "kata").await;
    let pod = rig.run_pod("runc", "meanwhile").await;
    while next(&mut events).await.unwrap().container_id != pod {}
    wake(rig.sim("kata"));
    until_state(&rig, "kata", "ready").await;
    goes_on(&rig, events).await;
}

#[tokio::test]
async fn a_list_that_fails_when_events_resume_is_asked_for_again() {
    let (rig, mut events) = subscribed().await;
    stopped(&rig, "kata").await;
    let kata = rig.sim("kata");
    kata.hold("RuntimeConfig");
    kata.start();
    kata.until_held("RuntimeConfig").await;
    // This pod is created after criswitch has listed the backend, and before criswitch opens the backend's event
    // stream.
    let direct = Client::new(&kata.socket());
    direct.run_pod("kata", "late").await.unwrap();
    kata.fail("ListPodSandbox", Status::unknown("busy"));
    kata.forget_calls();
    kata.release("RuntimeConfig");
    kata.until(|journal| journal.calls_of("ListPodSandbox").count() > 0)
        .await;
    kata.heal("ListPodSandbox");
    let shown = of_pods(&mut events, 3).await;
    assert_eq!(state(&shown["late"]), PodSandboxState::SandboxReady);
}

#[tokio::test]
async fn a_list_without_an_answer_when_events_resume_is_asked_for_again() {
    let (rig, mut events) = subscribed().await;
    stopped(&rig, "kata").await;
    let kata = rig.sim("kata");
    kata.hold("RuntimeConfig");
    kata.start();
    kata.until_held("RuntimeConfig").await;
    kata.lose("ListPodSandbox");
    kata.release("RuntimeConfig");
    of_pods(&mut events, 2).await;
}

/// The old process may live on with the connection, for example while it hangs or ends gracefully.
#[cfg(unix)] // A named pipe has no file.
#[tokio::test]
async fn events_come_from_the_process_that_has_taken_over_the_socket() {
    let (rig, mut events) = subscribed().await;
    let kata = rig.sim("kata");
    let requests = kata.calls("GetContainerEvents").len();
    kata.start();
    of_pods(&mut events, 2).await;
    assert_eq!(kata.calls("GetContainerEvents").len(), requests + 1);
    wait::until(async || kata.connections() == 1).await;
    goes_on(&rig, events).await;
}

/// criswitch lists the new process while it still reads the last events of the old one.
#[cfg(unix)] // A named pipe has no file.
#[tokio::test]
async fn events_report_the_deletion_of_pods_that_the_new_process_of_a_socket_lacks() {
    let (rig, mut events) = subscribed().await;
    let kata = rig.sim("kata");
    kata.forget();
    kata.start();
    for event in of_pods(&mut events, 2).await.values() {
        let what = event.container_event_type();
        assert_eq!(what, ContainerEventType::ContainerDeletedEvent);
    }
    wait::until(async || kata.connections() == 1).await;
    goes_on(&rig, events).await;
}

#[tokio::test]
async fn a_pod_whose_status_hangs_delays_no_event_of_another_pod() {
    let (rig, mut events) = subscribed().await;
    let kata = rig.sim("kata");
    let first = kata.pods().into_iter().map(|pod| pod.id).min().unwrap();
    stopped(&rig, "kata").await;
    kata.hold_of("PodSandboxStatus", &first);
    kata.start();
    assert_ne!(next(&mut events).await.unwrap().container_id, first);
}

#[tokio::test]
async fn no_event_has_the_state_of_a_sandbox_whose_pod_another_backend_has_now() {
    let rig = runc_and_kata().await;
    let kata = rig.sim("kata");
    let direct = Client::new(&kata.socket());
    let old = direct.run_pod("kata", "web").await.unwrap();
    rig.run_pod("kata", "safe").await;
    rig.pods().await.unwrap();
    rig.run_pod("runc", "web").await;
    let mut events = listening(&rig).await;
    stopped(&rig, "kata").await;
    kata.forget_calls();
    kata.start();
    kata.until(|journal| journal.calls_of("PodSandboxStatus").count() == 2)
        .await;
    let later = rig.run_pod("kata", "later").await;
    let mut shown = Vec::new();
    while shown.last() != Some(&later) {
        shown.push(next(&mut events).await.unwrap().container_id);
    }
    assert!(!shown.contains(&old), "{shown:?}");
}

/// Without a limit, criswitch would copy millions of empty statuses before it reads the event.
#[tokio::test]
async fn the_state_of_a_pod_with_too_many_containers_is_not_sent_and_is_reported() {
    let logged = Logged::here();
    let (rig, mut events) = subscribed().await;
    // Empty statuses of containers.
    let empty = b"\x1a\0".repeat(MOST_CONTAINERS + 1);
    rig.sim("kata").append_raw("PodSandboxStatus", empty);
    stopped(&rig, "kata").await;
    rig.sim("kata").start();
    let words = [
        "WARN",
        "backend=kata",
        "the status of its pod has the statuses of",
    ];
    wait::until(async || !logged.lines(&words).is_empty()).await;
    rig.run_pod("runc", "other").await;
    let event = next(&mut events).await.unwrap();
    assert_eq!(metadata(&event).name, "other");
}

#[tokio::test]
async fn the_state_of_a_pod_that_no_client_can_decode_is_not_sent_and_is_reported() {
    let logged = Logged::here();
    let (rig, mut events) = subscribed().await;
    // A label of the pod is not UTF-8.
    let label = b"\x3a\x03\x0a\x01\xff".as_slice();
    rig.sim("kata").append_to_items("PodSandboxStatus", label);
    stopped(&rig, "kata").await;
    rig.sim("kata").start();
    let words = ["WARN", "backend=kata", "events that clients cannot use"];
    wait::until(async || !logged.lines(&words).is_empty()).await;
    rig.run_pod("runc", "other").await;
    let event = next(&mut events).await.unwrap();
    assert_eq!(metadata(&event).name, "other");
}
