//! The states of a backend: what clients see, the time of the last change, and the next state.

use std::time::Duration;

use criswitch_cri::codec::cri;
use tokio::time::Instant;
use tonic::Code;

use crate::calls::{send, stopped, text_of};
use crate::faults::{
    backends_ready, hang, hung, names, runc_and_kata, state_of, status, until_state, wake,
};
use crate::logged::Logged;
use crate::support::{PATIENCE, Rig, Sim, clock, frame_raw};
use crate::switch::forget::forget;
use crate::wait::until;

const LISTS: [&str; 4] = [
    "ListPodSandbox",
    "StreamPodSandboxes",
    "ListContainers",
    "StreamContainers",
];

/// How long calls wait for the first lists of a backend.
pub const FIRST_CALLS: Duration = Duration::from_secs(12);

fn transitions(shown: &serde_json::Value) -> u64 {
    shown["transitions"].as_u64().unwrap()
}

fn since(shown: &serde_json::Value) -> std::time::SystemTime {
    humantime::parse_rfc3339(shown["since"].as_str().unwrap()).unwrap()
}

#[tokio::test]
async fn a_backend_that_has_not_been_listed_yet_is_connecting() {
    let kata = Sim::new("kata");
    kata.hold("ListPodSandbox");
    let rig = Rig::start([Sim::new("runc"), kata]).await;
    let kata = rig.sim("kata");
    kata.until_held("ListPodSandbox").await;
    assert_eq!(state_of(&rig, "kata").await["state"], "connecting");
    kata.release("ListPodSandbox");
    until_state(&rig, "kata", "ready").await;
}

#[tokio::test]
async fn a_backend_that_crashes_again_and_again_has_a_fault_until_it_stays_ready_for_a_minute() {
    let rig = runc_and_kata().await;
    let kata = rig.sim("kata");
    clock::later(Duration::from_secs(3600)).await;
    for crashes in 1..=4 {
        until_state(&rig, "kata", "ready").await;
        stopped(&rig, "kata").await;
        kata.start();
        until_state(&rig, "kata", "ready").await;
        let shown = status(&rig).await;
        let fault = backends_ready(&shown);
        let times = format!(
            "it has stopped being ready {crashes} times, with less than 1m ready in between"
        );
        assert_eq!(fault.contains(&times), crashes >= 3, "{crashes}: {fault}");
        assert_eq!(fault.is_empty(), crashes < 3, "{crashes}: {fault}");
        clock::later(Duration::from_secs(8)).await;
    }
    clock::later(Duration::from_secs(60)).await;
    let healthy = async || backends_ready(&status(&rig).await).is_empty();
    until(healthy).await;
    // One more crash is the first of a new series.
    stopped(&rig, "kata").await;
    kata.start();
    until_state(&rig, "kata", "ready").await;
    assert!(healthy().await);
}

#[tokio::test]
async fn a_backend_whose_first_list_hangs_holds_no_call_and_can_be_forgotten() {
    let kata = Sim::new("kata");
    kata.hold_all("ListPodSandbox");
    let rig = Rig::start([Sim::new("runc"), kata]).await;
    tokio::time::sleep(FIRST_CALLS).await;
    let shown = until_state(&rig, "kata", "unresponsive").await;
    let cause = shown["cause"].as_str().unwrap();
    assert!(cause.contains("first calls within 12s"), "{shown}");
    let begun = Instant::now();
    let failed = rig.try_run("kata", "boxed").await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable);
    assert!(failed.message().contains("first calls"), "{failed}");
    assert_eq!(rig.pods().await.unwrap_err().code(), Code::Unavailable);
    assert!(begun.elapsed() < Duration::from_secs(1));
    forget(&rig, "kata").await.unwrap();
    assert!(rig.pods().await.unwrap().is_empty());
    rig.sim("kata").release("ListPodSandbox");
    until_state(&rig, "kata", "ready").await;
}

/// Without its saved state, criswitch does not know the pod of the hung backend. A list without this pod would be
/// incomplete.
#[tokio::test]
async fn a_backend_that_hangs_from_the_start_is_connecting_until_a_probe_fails() {
    let mut rig = runc_and_kata().await;
    rig.run("runc", "plain").await;
    rig.run("kata", "boxed").await;
    rig.stop_switch().await;
    hang(rig.sim("kata"));
    rig.restart_switch_without_state().await;
    assert_eq!(state_of(&rig, "kata").await["state"], "connecting");
    rig.run("runc", "web").await;
    let (first, shown) = tokio::join!(rig.pods(), until_state(&rig, "kata", "unresponsive"));
    assert_eq!(first.unwrap_err().code(), Code::Unavailable);
    assert_eq!(transitions(&shown), 1, "{shown}");
    assert!(
        shown["cause"].as_str().unwrap().contains("probe"),
        "{shown}"
    );
    for rpc in LISTS {
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        assert_eq!(reply.code(), Code::Unavailable, "{rpc}");
        assert!(text_of(&reply).contains("\"kata\""), "{rpc}: {reply:?}");
        assert!(reply.body.is_empty(), "{rpc}");
    }
    let images = cri::ListImagesRequest::default();
    let failed = rig.images().list_images(images).await.unwrap_err();
    assert!(failed.message().contains("\"kata\""), "{failed}");
    wake(rig.sim("kata"));
    let ready = until_state(&rig, "kata", "ready").await;
    assert_eq!(transitions(&ready), 2, "{ready}");
    assert_eq!(names(&rig.pods().await.unwrap()), ["boxed", "plain", "web"]);
    assert_eq!(rig.containers().await.unwrap().len(), 3);
}

#[tokio::test]
async fn a_backend_that_refuses_connections_is_down_and_ready_when_it_is_back() {
    let rig = runc_and_kata().await;
    let ready = until_state(&rig, "kata", "ready").await;
    assert!(ready["cause"].is_null(), "{ready}");
    stopped(&rig, "kata").await;
    let down = state_of(&rig, "kata").await;
    assert_eq!(down["state"], "down");
    assert!(
        down["cause"]
            .as_str()
            .unwrap()
            .contains(crate::support::sockets::REFUSED)
    );
    assert!(since(&down) >= since(&ready));
    assert_eq!(transitions(&down), transitions(&ready) + 1);
    rig.sim("kata").start();
    let back = until_state(&rig, "kata", "ready").await;
    assert_eq!(transitions(&back), transitions(&ready) + 2);
}

#[tokio::test]
async fn a_backend_that_is_back_is_connected_without_a_call_for_it() {
    let rig = runc_and_kata().await;
    stopped(&rig, "kata").await;
    let calls = rig.sim("kata").calls("Version").len();
    rig.sim("kata").start();
    let made_ready =
        |journal: &crate::support::Journal| journal.calls_of("Version").count() > calls;
    rig.sim("kata").until(made_ready).await;
}

#[tokio::test]
async fn each_change_of_state_is_logged_once_however_many_calls_fail_meanwhile() {
    let logged = Logged::here();
    let rig = runc_and_kata().await;
    until_state(&rig, "kata", "ready").await;
    stopped(&rig, "kata").await;
    let down = state_of(&rig, "kata").await;
    for _ in 0..5 {
        (*rig).run_pod("kata", "web").await.unwrap_err();
    }
    assert_eq!(
        transitions(&state_of(&rig, "kata").await),
        transitions(&down)
    );
    rig.sim("kata").start();
    until_state(&rig, "kata", "ready").await;
    for (words, count) in [
        (["backend is down", "kata"], 1),
        (["backend is ready", "kata"], 2),
        (["backend is down", "runc"], 0),
    ] {
        let lines = logged.lines(&words);
        assert_eq!(lines.len(), count, "{words:?}: {lines:?}");
    }
}

#[tokio::test]
async fn a_backend_that_does_not_answer_a_probe_is_unresponsive_until_it_answers() {
    let logged = Logged::here();
    let rig = runc_and_kata().await;
    rig.run("kata", "web").await;
    rig.pods().await.unwrap();
    let before = state_of(&rig, "kata").await;
    hung(&rig, "kata").await;
    let shown = state_of(&rig, "kata").await;
    assert!(
        shown["cause"].as_str().unwrap().contains("probe"),
        "{shown}"
    );
    // The backend's pods continue to run, so criswitch still reports their number.
    assert_eq!(shown["pods"], 1);
    assert_eq!(transitions(&shown), transitions(&before) + 1);
    wake(rig.sim("kata"));
    let back = until_state(&rig, "kata", "ready").await;
    assert_eq!(transitions(&back), transitions(&before) + 2);
    assert_eq!(logged.lines(&["backend is unresponsive", "kata"]).len(), 1);
}

/// No call reaches the idle backend, so only criswitch's periodic probe finds the hang. This makes the test slow.
#[tokio::test]
async fn an_idle_backend_that_hangs_is_found_by_a_periodic_probe() {
    let rig = runc_and_kata().await;
    until_state(&rig, "kata", "ready").await;
    let kata = rig.sim("kata");
    hang(kata);
    kata.until(|journal| journal.held.contains(&"Version".to_owned()))
        .await;
    until_state(&rig, "kata", "unresponsive").await;
}

#[cfg(unix)] // A pipe cannot be taken over while its server lives.
#[tokio::test]
async fn criswitch_connects_to_the_runtime_that_takes_over_a_socket_though_the_old_one_lives() {
    let rig = runc_and_kata().await;
    rig.run("kata", "old").await;
    let next = Sim::new("next").handlers(["kata"]);
    next.serve_on(&rig.sim("kata").socket());
    next.until(|journal| journal.calls_of("ListContainers").count() > 0)
        .await;
    until_state(&rig, "kata", "ready").await;
    let pod = rig.run_pod("kata", "new").await;
    assert_eq!(next.pods()[0].id, pod);
    assert_eq!(names(&rig.pods().await.unwrap()), ["new"]);
}

/// A removed socket file changes nothing while the connection works.
#[tokio::test]
async fn a_backend_whose_socket_file_is_removed_continues_to_serve() {
    let rig = runc_and_kata().await;
    let (pod, _) = rig.run("kata", "web").await;
    crate::support::sockets::remove(&rig.sim("kata").socket());
    rig.create(&pod, "second").await;
    assert_eq!(state_of(&rig, "kata").await["state"], "ready");
}

#[cfg(unix)] // A pipe has no links.
/// Calls through such a backend would loop forever. The check of the configuration cannot find a link that is created
/// later, so criswitch compares the sockets before it connects.
#[tokio::test]
async fn criswitch_never_connects_to_its_own_socket_under_another_name() {
    let text = |directory: &str| {
        format!(
            "default_handler = \"runc\"\nstart_wait = \"0s\"\n[handlers]\n\
             runc = \"{directory}/runc.sock\"\nitself = \"{directory}/alias.sock\"\n"
        )
    };
    let rig = Rig::with_config([Sim::new("runc")], text).await;
    let path = |name: &str| rig.directory().join(name);
    // criswitch has already read the configuration when this link is created.
    std::os::unix::fs::symlink(path("criswitch.sock"), path("alias.sock")).unwrap();
    let mut cause = String::new();
    crate::wait::until(async || {
        let shown = until_state(&rig, "itself", "down").await;
        cause = shown["cause"].as_str().unwrap().to_owned();
        cause.contains("is the socket of criswitch itself")
    })
    .await;
    let failed = rig.try_run("itself", "web").await.unwrap_err();
    assert!(failed.message().contains(&cause), "{failed}");
    rig.run_pod("runc", "web").await;
    // runc got one `Version` call: no connection came through the alias.
    assert_eq!(rig.sim("runc").calls("Version").len(), 1);
}

/// The test sends no call to the backend, because criswitch connects at once for a call.
#[tokio::test]
async fn criswitch_connects_less_and_less_often_to_a_backend_that_dies_once_it_is_ready() {
    let rig = runc_and_kata().await;
    let kata = rig.sim("kata");
    let mut pauses = Vec::new();
    for _ in 0..6 {
        kata.stop().await;
        let made_ready = kata.calls("ListImages").len();
        let begun = Instant::now();
        kata.start();
        kata.until(|journal| journal.calls_of("ListImages").count() > made_ready)
            .await;
        pauses.push(begun.elapsed());
    }
    let [first, .., last] = pauses[..] else {
        unreachable!()
    };
    assert!(
        first < Duration::from_secs(1) && last > Duration::from_secs(1),
        "{pauses:?}"
    );
}

#[tokio::test]
async fn the_process_that_serves_a_socket_is_logged_once_however_often_criswitch_connects() {
    let logged = Logged::here();
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    for _ in 0..3 {
        until_state(&rig, "kata", "ready").await;
        rig.sim("kata").stop().await;
        until_state(&rig, "kata", "down").await;
        rig.sim("kata").start();
    }
    let words = ["kata", "connected to the backend's process"];
    let lines = logged.lines(&words);
    assert_eq!(lines.len(), 1, "{lines:?}");
    let pid = format!("pid={}", std::process::id());
    assert!(lines[0].contains(&pid), "{lines:?}");
}

/// No client can reach the old process any more, so it would never end the call.
#[cfg(unix)] // A named pipe has no file.
#[tokio::test]
async fn a_call_in_flight_ends_when_a_new_process_takes_over_the_socket_of_a_hung_one() {
    let rig = runc_and_kata().await;
    let kata = rig.sim("kata");
    kata.hold("RunPodSandbox");
    let take_over = async {
        kata.until_held("RunPodSandbox").await;
        hung(&rig, "kata").await;
        kata.start();
    };
    let created = tokio::time::timeout(PATIENCE, rig.try_run("kata", "boxed"));
    let (created, ()) = tokio::join!(created, take_over);
    assert_eq!(created.unwrap().unwrap_err().code(), Code::Unavailable);
    wake(kata);
    until_state(&rig, "kata", "ready").await;
}
