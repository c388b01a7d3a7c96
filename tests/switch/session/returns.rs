//! A backend that comes back: listed before it is ready, vanished pods forgotten, new pods known.

use criswitch_cri::rpc::Kind;
use tonic::{Code, Status};

use crate::calls::{ID_CALLS, assert_names_the_dead, calls_anywhere, send, stopped};
use crate::faults::{directly, failing_rpcs, names, runc_and_kata, state_of, until_state};
use crate::support::frame_raw;
use crate::wait;

#[tokio::test]
async fn calls_for_pods_of_a_backend_that_is_down_are_unavailable_also_stop_and_remove() {
    let rig = runc_and_kata().await;
    let (pod, container) = rig.run("kata", "web").await;
    stopped(&rig, "kata").await;
    for call in ID_CALLS {
        let before = calls_anywhere(&rig, call.rpc);
        let reply = call.send(&rig, call.pick(&pod, &container)).await;
        assert_names_the_dead(&reply, rig.sim("kata"), call.rpc);
        assert_eq!(calls_anywhere(&rig, call.rpc), before, "{}", call.rpc);
    }
}

#[tokio::test]
async fn a_backend_that_is_back_is_ready_when_it_has_been_listed_and_not_before() {
    let rig = runc_and_kata().await;
    stopped(&rig, "kata").await;
    let kata = rig.sim("kata");
    kata.hold("ListContainers");
    kata.start();
    kata.until_held("ListContainers").await;
    assert_eq!(state_of(&rig, "kata").await["state"], "down");
    kata.release("ListContainers");
    until_state(&rig, "kata", "ready").await;
}

#[tokio::test]
async fn lists_come_from_cache_until_the_backend_is_ready_and_not_afterwards() {
    let rig = runc_and_kata().await;
    rig.run("kata", "web").await;
    rig.pods().await.unwrap();
    stopped(&rig, "kata").await;
    let kata = rig.sim("kata");
    // criswitch calls `RuntimeConfig` after it has listed the backend, and before the backend is ready.
    kata.hold("RuntimeConfig");
    kata.start();
    kata.until_held("RuntimeConfig").await;
    assert_eq!(names(&rig.pods().await.unwrap()), ["web"]);
    kata.release("RuntimeConfig");
    let shown = until_state(&rig, "kata", "ready").await;
    assert!(shown["staleListAgeSeconds"].is_null(), "{shown}");
}

#[tokio::test]
async fn a_backend_whose_lists_hang_after_a_connect_serves_its_pods_with_its_cached_lists() {
    let rig = runc_and_kata().await;
    let (pod, _) = rig.run("kata", "web").await;
    rig.pods().await.unwrap();
    rig.containers().await.unwrap();
    stopped(&rig, "kata").await;
    rig.sim("kata").hold("ListContainers");
    rig.sim("kata").start();
    until_state(&rig, "kata", "ready").await;
    wait::until(async || failing_rpcs(&rig, "kata").await == ["ListContainers"]).await;
    assert_eq!(names(&rig.pods().await.unwrap()), ["web"]);
    assert_eq!(rig.containers().await.unwrap().len(), 1);
    assert!(state_of(&rig, "kata").await["staleListAgeSeconds"].is_u64());
    assert!(failing_rpcs(&rig, "kata").await.is_empty());
    rig.stop_pod(&pod).await.unwrap();
    rig.sim("kata").release("ListContainers");
    wait::until(async || state_of(&rig, "kata").await["staleListAgeSeconds"].is_null()).await;
}

#[tokio::test]
async fn a_backend_whose_lists_fail_after_a_connect_serves_its_pods_with_its_cached_lists() {
    let mut rig = runc_and_kata().await;
    let (pod, _) = rig.run("kata", "web").await;
    rig.pods().await.unwrap();
    rig.containers().await.unwrap();
    stopped(&rig, "kata").await;
    rig.sim("kata")
        .fail("ListContainers", Status::unknown("a bad container"));
    rig.sim("kata").start();
    for _ in 0..2 {
        until_state(&rig, "kata", "ready").await;
        assert_eq!(names(&rig.pods().await.unwrap()), ["web"]);
        assert_eq!(rig.containers().await.unwrap().len(), 1);
        rig.stop_pod(&pod).await.unwrap();
        let failing = state_of(&rig, "kata").await["failingRpcs"].clone();
        assert_eq!(failing[0]["rpc"], "ListContainers", "{failing}");
        rig.restart_switch().await;
    }
    rig.sim("kata").heal("ListContainers");
    wait::until(async || {
        let shown = state_of(&rig, "kata").await;
        shown["state"] == "ready" && shown["staleListAgeSeconds"].is_null()
    })
    .await;
    assert_eq!(rig.sim("kata").calls("StopPodSandbox").len(), 2);
    assert!(rig.stop_pod("unknown").await.is_ok());
}

#[tokio::test]
async fn pods_that_vanished_while_their_backend_was_down_are_forgotten() {
    let rig = runc_and_kata().await;
    let (pod, container) = rig.run("kata", "web").await;
    rig.pods().await.unwrap();
    stopped(&rig, "kata").await;
    let kata = rig.sim("kata");
    kata.forget();
    kata.start();
    let shown = until_state(&rig, "kata", "ready").await;
    assert_eq!(
        (&shown["pods"], &shown["containers"]),
        (&0.into(), &0.into())
    );
    assert!(rig.pods().await.unwrap().is_empty());
    for call in ID_CALLS {
        let reply = call.send(&rig, call.pick(&pod, &container)).await;
        assert_eq!(reply.code(), call.if_gone, "{}", call.rpc);
    }
}

/// The backend's pods need no network configuration.
#[tokio::test]
async fn a_backend_that_resets_the_runtime_configuration_becomes_ready() {
    let rig = runc_and_kata().await;
    send(&rig, "UpdateRuntimeConfig", frame_raw(b"")).await;
    stopped(&rig, "kata").await;
    let kata = rig.sim("kata");
    kata.reset("UpdateRuntimeConfig");
    kata.start();
    until_state(&rig, "kata", "ready").await;
    let asked = kata.calls("UpdateRuntimeConfig").len();
    kata.heal("UpdateRuntimeConfig");
    wait::until(async || kata.calls("UpdateRuntimeConfig").len() > asked).await;
    assert_eq!(state_of(&rig, "kata").await["state"], "ready");
}

#[tokio::test]
async fn new_pods_of_a_backend_that_is_back_are_known_without_a_question_to_all() {
    let rig = runc_and_kata().await;
    stopped(&rig, "kata").await;
    let kata = rig.sim("kata");
    // The runtime serves for a while on a socket that criswitch does not use.
    let (socket, elsewhere) = (kata.socket(), rig.directory().join("elsewhere.sock"));
    kata.serve_on(&elsewhere);
    let pod = directly(kata).run_pod("kata", "new").await.unwrap();
    kata.stop().await;
    kata.serve_on(&socket);
    assert_eq!(until_state(&rig, "kata", "ready").await["pods"], 1);
    let asked = rig.sim("runc").calls("ListPodSandbox").len();
    for call in ID_CALLS.iter().filter(|call| call.kind == Kind::Pod) {
        let reply = call.send(&rig, &pod).await;
        assert_ne!(reply.code(), Code::NotFound, "{}", call.rpc);
        assert_eq!(kata.calls(call.rpc).len(), 1, "{}", call.rpc);
    }
    assert_eq!(rig.sim("runc").calls("ListPodSandbox").len(), asked);
}

#[tokio::test]
async fn lists_have_the_current_pods_of_a_backend_that_is_back() {
    let rig = runc_and_kata().await;
    rig.run("kata", "before").await;
    rig.pods().await.unwrap();
    stopped(&rig, "kata").await;
    assert_eq!(names(&rig.pods().await.unwrap()), ["before"]);
    let kata = rig.sim("kata");
    kata.forget();
    kata.start();
    until_state(&rig, "kata", "ready").await;
    rig.run("kata", "after").await;
    assert_eq!(names(&rig.pods().await.unwrap()), ["after"]);
}
