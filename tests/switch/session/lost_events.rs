//! A backend that no longer has events: clients get an error, until it has events again or leaves the routing table.

use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use tonic::{Code, Status};

use crate::calls::{path, stopped};
use crate::faults::{backends_ready, failing_rpcs, runc_and_kata, state_of, status, text};
use crate::logged::Logged;
use crate::server::hostile_clients::sipping;
use crate::session::events::{events, listening, next, rejected_events};
use crate::support::{Rig, frame_raw};
use crate::switch::forget::forget;
use crate::wait::until;

const EVENTS: &str = "GetContainerEvents";

/// The replies of a runtime without events: an error, or OK at once, as from CRI-O without `enable_pod_events`.
fn answers() -> [Status; 3] {
    let (well, other) = (Status::ok(""), Status::unknown("not today"));
    [Status::unimplemented("gone"), well, other]
}

/// Makes kata stop having events. A client that subscribed earlier leaves an event unread, so the error that ends its
/// stream cannot reach it, and the stream stays open.
async fn without_events(answer: Status) -> (Rig, Response<Incoming>) {
    let rig = runc_and_kata().await;
    let mut client = sipping(&rig.socket).await;
    let request = Request::post(format!("http://localhost{}", path(EVENTS)))
        .header("content-type", "application/grpc")
        .body(Full::new(frame_raw(b"")));
    let stuck = client.send_request(request.unwrap()).await.unwrap();
    until(async || rig.sims.iter().all(|sim| sim.listeners() == 1)).await;
    rig.run_pod("runc", "more-than-it-takes").await;
    rig.sim("kata").fail(EVENTS, answer);
    stopped(&rig, "kata").await;
    rig.sim("kata").start();
    assert_eq!(rejected_events(&rig).await.code(), Code::Unimplemented);
    (rig, stuck)
}

/// Whether a client that subscribes now receives the events of a new pod.
async fn receives_events(rig: &Rig) -> bool {
    let Ok(mut events) = events(rig).await else {
        return false;
    };
    let name = format!("pod-{}", rig.sim("runc").pods().len());
    let (event, _) = tokio::join!(next(&mut events), rig.run_pod("runc", &name));
    event.is_ok()
}

#[tokio::test]
async fn a_restarted_backend_is_asked_again_for_events_though_a_client_stayed_subscribed() {
    for answer in answers() {
        let (rig, _stuck) = without_events(answer).await;
        let kata = rig.sim("kata");
        kata.heal(EVENTS);
        stopped(&rig, "kata").await;
        kata.start();
        until(async || receives_events(&rig).await).await;
    }
}

#[tokio::test]
async fn a_backend_without_events_that_left_the_routing_table_blocks_no_events() {
    for answer in answers() {
        let (rig, _stuck) = without_events(answer).await;
        let left = rig.reload(|directory| text("start_wait = \"0s\"", &rig.sims[..1], directory));
        left.result.unwrap();
        until(async || receives_events(&rig).await).await;
    }
}

#[tokio::test]
async fn the_same_process_of_a_backend_without_events_is_not_asked_again() {
    for answer in answers() {
        let (rig, _stuck) = without_events(answer).await;
        let asked = || rig.sim("kata").calls(EVENTS).len();
        let before = asked();
        for _ in 0..3 {
            assert_eq!(rejected_events(&rig).await.code(), Code::Unimplemented);
        }
        // The paused clock skips the minimum time between two questions.
        crate::support::clock::later(std::time::Duration::from_secs(1)).await;
        rig.pods().await.unwrap();
        assert_eq!(asked(), before);
    }
}

#[tokio::test]
async fn a_backend_whose_streams_of_events_end_at_once_is_named_after_three_streams() {
    for answer in [Status::ok(""), Status::unknown("not today")] {
        let rig = runc_and_kata().await;
        let kata = rig.sim("kata");
        kata.fail(EVENTS, answer.clone());
        let rejected = rejected_events(&rig).await;
        assert_eq!(rejected.code(), Code::Unimplemented);
        for part in ["\"kata\"", answer.message()] {
            assert!(rejected.message().contains(part), "{rejected}");
        }
        assert_eq!(kata.calls(EVENTS).len(), 3);
    }
}

#[tokio::test]
async fn streams_that_end_between_events_do_not_count_as_missing_events() {
    let rig = runc_and_kata().await;
    let kata = rig.sim("kata");
    let mut events = listening(&rig).await;
    for name in ["one", "two", "three"] {
        let pod = rig.run_pod("kata", name).await;
        while next(&mut events).await.unwrap().container_id != pod {}
        for _ in 0..2 {
            kata.end_events(None);
            until(async || kata.listeners() == 1).await;
        }
    }
}

/// All other calls of the backend succeed, so nothing else names it.
#[tokio::test]
async fn a_backend_that_resets_each_stream_of_events_is_named_until_a_stream_stays_open() {
    let logged = Logged::here();
    let rig = runc_and_kata().await;
    let kata = rig.sim("kata");
    kata.reset(EVENTS);
    let _events = events(&rig).await.unwrap();
    until(async || failing_rpcs(&rig, "kata").await == [EVENTS]).await;
    assert_eq!(state_of(&rig, "kata").await["state"], "ready");
    let shown = status(&rig).await;
    let message = backends_ready(&shown);
    assert!(message.contains(EVENTS), "{message}");
    let words = [
        "WARN",
        "backend=kata",
        "breaks off the streams of its events",
    ];
    assert_eq!(logged.lines(&words).len(), 1);
    kata.heal(EVENTS);
    until(async || failing_rpcs(&rig, "kata").await.is_empty()).await;
    let shown = status(&rig).await;
    assert!(backends_ready(&shown).is_empty());
}

#[tokio::test]
async fn streams_of_events_that_end_with_their_connections_are_not_broken() {
    let logged = Logged::here();
    let rig = runc_and_kata().await;
    let kata = rig.sim("kata");
    let _events = events(&rig).await.unwrap();
    for _ in 0..5 {
        until(async || kata.listeners() == 1).await;
        stopped(&rig, "kata").await;
        let failing = failing_rpcs(&rig, "kata").await;
        assert!(!failing.iter().any(|rpc| rpc == EVENTS), "{failing:?}");
        kata.start();
    }
    assert_eq!(logged.lines(&["breaks off the streams"]), [""; 0]);
}

#[tokio::test]
async fn the_recovery_of_broken_streams_of_events_is_logged_after_forget_too() {
    let logged = Logged::here();
    let rig = runc_and_kata().await;
    let kata = rig.sim("kata");
    kata.reset(EVENTS);
    let _events = events(&rig).await.unwrap();
    until(async || failing_rpcs(&rig, "kata").await == [EVENTS]).await;
    stopped(&rig, "kata").await;
    forget(&rig, "kata").await.unwrap();
    assert_eq!(failing_rpcs(&rig, "kata").await, [""; 0]);
    kata.heal(EVENTS);
    kata.start();
    let words = ["INFO", EVENTS, "can be used again"];
    until(async || logged.lines(&words).len() == 1).await;
}

#[tokio::test]
async fn broken_streams_of_events_are_forgotten_with_their_last_subscriber() {
    let rig = runc_and_kata().await;
    rig.sim("kata").reset(EVENTS);
    let events = events(&rig).await.unwrap();
    until(async || failing_rpcs(&rig, "kata").await == [EVENTS]).await;
    drop(events);
    until(async || failing_rpcs(&rig, "kata").await.is_empty()).await;
}
