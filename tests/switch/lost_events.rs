//! A backend that has no events any more: nobody can listen, until it has them again or has left the table.

use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use tonic::{Code, Status};

use crate::calls::{path, stopped};
use crate::events::{events, next, refusal};
use crate::faults::{runc_and_kata, text};
use crate::hostile_clients::sipping;
use crate::support::{Rig, frame_raw};
use crate::wait::until;

const EVENTS: &str = "GetContainerEvents";

/// kata has lost its events, and somebody who listened before reads nothing, so that it goes on listening.
async fn without_events() -> (Rig, Response<Incoming>) {
    let rig = runc_and_kata().await;
    let mut client = sipping(&rig.socket).await;
    let request = Request::post(format!("http://localhost{}", path(EVENTS)))
        .header("content-type", "application/grpc")
        .body(Full::new(frame_raw(b"")));
    let stuck = client.send_request(request.unwrap()).await.unwrap();
    until(async || rig.sims.iter().all(|sim| sim.listeners() == 1)).await;
    rig.run_pod("runc", "more-than-it-takes").await;
    rig.sim("kata").fail(EVENTS, Status::unimplemented("gone"));
    stopped(&rig, "kata").await;
    rig.sim("kata").start();
    assert_eq!(refusal(&rig).await.code(), Code::Unimplemented);
    (rig, stuck)
}

/// Whether who listens now hears of a pod.
async fn hears(rig: &Rig) -> bool {
    let Ok(mut events) = events(rig).await else {
        return false;
    };
    let name = format!("pod-{}", rig.sim("runc").pods().len());
    let (event, _) = tokio::join!(next(&mut events), rig.run_pod("runc", &name));
    event.is_ok()
}

#[tokio::test]
async fn one_that_is_started_anew_is_asked_again_though_somebody_has_listened_ever_since() {
    let (rig, _stuck) = without_events().await;
    let kata = rig.sim("kata");
    kata.heal(EVENTS);
    stopped(&rig, "kata").await;
    kata.start();
    until(async || hears(&rig).await).await;
}

#[tokio::test]
async fn one_that_left_the_table_is_in_nobodys_way() {
    let (rig, _stuck) = without_events().await;
    let left = rig.reload(|directory| text("start_wait = \"0s\"", &rig.sims[..1], directory));
    left.result.unwrap();
    until(async || hears(&rig).await).await;
}

#[tokio::test]
async fn as_long_as_it_is_the_same_process_it_is_not_asked_on() {
    let (rig, _stuck) = without_events().await;
    let asked = || rig.sim("kata").calls(EVENTS).len();
    let before = asked();
    for _ in 0..3 {
        assert_eq!(refusal(&rig).await.code(), Code::Unimplemented);
    }
    // The least time between two questions.
    tokio::time::pause();
    tokio::time::advance(std::time::Duration::from_secs(1)).await;
    tokio::time::resume();
    rig.pods().await.unwrap();
    assert_eq!(asked(), before);
}
