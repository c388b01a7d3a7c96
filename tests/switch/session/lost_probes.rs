//! A backend that loses single replies is ready again soon. criswitch repeats its own calls whose replies were lost.

use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use criswitch_cri::codec::cri;
use tonic::Code;

use crate::faults::{self, state_of, until_state};
use crate::session::states::FIRST_CALLS;
use crate::support::misbehaving::{Misbehaving, lost_list, lost_version};
use crate::support::{PATIENCE, Rig, Sim};

/// The time after which a probe has detected a hang: longer than the time until an idle backend is probed, plus the
/// timeout of the probe.
const FOUND_OUT: Duration = Duration::from_secs(9);
/// The time from an unanswered probe to the next.
const AGAIN: Duration = Duration::from_secs(30);

/// The backend `bad` is unresponsive after two lost probes, and would answer the next one.
async fn after_two_lost_probes() -> (Rig, Misbehaving) {
    let (rig, bad) = Rig::beside_bad(Sim::new("runc"), "", lost_version).await;
    until_state(&rig, "bad", "ready").await;
    bad.misbehave();
    tokio::time::sleep(FOUND_OUT).await;
    assert_eq!(state_of(&rig, "bad").await["state"], "unresponsive");
    bad.behave();
    (rig, bad)
}

#[tokio::test]
async fn an_unresponsive_backend_is_probed_again_after_a_while() {
    let (rig, _bad) = after_two_lost_probes().await;
    tokio::time::sleep(AGAIN).await;
    until_state(&rig, "bad", "ready").await;
}

#[tokio::test]
async fn a_reply_to_a_creation_makes_an_unresponsive_backend_ready_again() {
    let rig = faults::runc_and_kata().await;
    rig.pods().await.unwrap();
    let kata = rig.sim("kata");
    kata.hold("Version");
    kata.hold("RunPodSandbox");
    let mut run = pin!(rig.try_run("kata", "web"));
    let found = async {
        tokio::time::sleep(FOUND_OUT).await;
        assert_eq!(state_of(&rig, "kata").await["state"], "unresponsive");
        kata.release("RunPodSandbox");
    };
    let (ran, ()) = tokio::join!(&mut run, found);
    ran.unwrap();
    // The reply to `RunPodSandbox` makes criswitch call `Version` again.
    let versions = kata.calls("Version").len();
    let made_ready = kata.until(|journal| journal.calls_of("Version").count() > versions);
    let made_ready = tokio::time::timeout(AGAIN / 2, made_ready).await;
    made_ready.expect("another probe was waited for");
    kata.release("Version");
    until_state(&rig, "kata", "ready").await;
}

/// A node with a backend `bad` that never replies to `ListPodSandbox` while it misbehaves. If `lost` is true, `bad`
/// misbehaves from the start.
async fn with_lost_lists(lost: bool) -> (Rig, Misbehaving) {
    let mut bad = None;
    let rig = Rig::with_config([Sim::new("runc")], |directory| {
        let socket = Path::new(directory).join("bad.sock");
        let serving = bad.insert(Misbehaving::serve_on(&socket, lost_list));
        if lost {
            serving.misbehave();
        }
        let socket = socket.display();
        format!(
            "default_handler = 'runc'\nstart_wait = '0s'\n[handlers]\nrunc = '{directory}/runc.sock'\nbad = '{socket}'"
        )
    });
    (rig.await, bad.unwrap())
}

#[tokio::test]
async fn a_list_that_is_lost_during_the_greeting_is_asked_for_again() {
    let (rig, bad) = with_lost_lists(true).await;
    until_state(&rig, "runc", "ready").await;
    // The backend answers probes, and no call waits for its lists any more.
    tokio::time::sleep(FIRST_CALLS).await;
    until_state(&rig, "bad", "unresponsive").await;
    bad.behave();
    tokio::time::sleep(AGAIN).await;
    until_state(&rig, "bad", "ready").await;
}

#[tokio::test]
async fn a_list_that_is_lost_in_the_background_is_asked_for_again() {
    let (rig, bad) = with_lost_lists(false).await;
    rig.pods().await.unwrap();
    bad.misbehave();
    // The list is late. criswitch asks again in the background, and that reply is lost too.
    rig.pods().await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    bad.behave();
    assert!(state_of(&rig, "bad").await["staleListAgeSeconds"].is_u64());
    tokio::time::sleep(AGAIN).await;
    assert!(state_of(&rig, "bad").await["staleListAgeSeconds"].is_null());
}

#[tokio::test]
async fn a_call_for_an_unknown_id_does_not_wait_forever_for_a_lost_reply() {
    let (rig, bad) = with_lost_lists(false).await;
    until_state(&rig, "bad", "ready").await;
    let runc = rig.sim("runc");
    let lists = runc.calls("ListContainers").len();
    let ask = || {
        let mut runtime = rig.runtime();
        let request = cri::PodSandboxStatusRequest {
            pod_sandbox_id: "nosuch".to_owned(),
            verbose: false,
        };
        tokio::spawn(async move { runtime.pod_sandbox_status(request).await })
    };
    bad.misbehave();
    let lost = ask();
    runc.until(|journal| journal.calls_of("ListContainers").count() > lists)
        .await;
    let next = ask();
    tokio::task::yield_now().await;
    // The calls above are on the same connection and are sent first, so criswitch has received them when this call
    // returns.
    rig.try_run("nosuch", "web").await.unwrap_err();
    bad.behave();
    tokio::time::sleep(AGAIN).await;
    let next = tokio::time::timeout(PATIENCE, next).await;
    for call in [next.expect("it waits for ever"), lost.await] {
        let unknown = call.unwrap().unwrap_err();
        assert_eq!(unknown.code(), Code::Unavailable, "{unknown}");
    }
    // criswitch has asked again in the background.
    let answered = async || ask().await.unwrap().unwrap_err().code() == Code::NotFound;
    crate::wait::until(answered).await;
}
