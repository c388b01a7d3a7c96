//! A pod's pulls, with their credentials, go to the pod's backend. Another backend cannot get them by listing a pod
//! with the same uid.

use tonic::{Code, Status};

use crate::calls::stopped;
use crate::faults::{directly, node, runc_and_kata, until_state};
use crate::kubelet::{Kubelet, asked};
use crate::questions::settled;
use crate::support::misbehaving::{STOLEN, thief};
use crate::support::{Rig, Sim};

const APP: &str = "registry.k8s.io/app:1";

/// Two backends, and the pod `web` on runc, which criswitch knows only from runc's list. kata has further handlers.
async fn listed() -> Rig {
    let kata = Sim::new("kata").handlers(["kata", "runc", "default"]);
    let rig = node("start_wait = \"0s\"", [Sim::new("runc"), kata]).await;
    settled(&rig).await;
    let runc = directly(rig.sim("runc"));
    runc.run_pod("runc", "web").await.unwrap();
    rig
}

/// Makes kata list a pod `web` too, with this handler.
async fn doubled(rig: &Rig, handler: &str) -> String {
    let kata = directly(rig.sim("kata"));
    let pod = kata.run_pod(handler, "web").await.unwrap();
    rig.pods().await.unwrap();
    pod
}

async fn pull(rig: &Rig) -> Result<String, Status> {
    Kubelet::new(rig).pull("web", APP).await
}

#[track_caller]
fn assert_names(failed: &Status, words: &[&str]) {
    for word in words {
        assert!(failed.message().contains(word), "{failed}");
    }
}

#[tokio::test]
async fn a_pod_keeps_its_pulls_whatever_pods_another_backend_lists() {
    let (rig, bad) = Rig::beside_bad(Sim::new("runc").image(APP), "", thief).await;
    until_state(&rig, "bad", "ready").await;
    bad.misbehave();
    rig.run_pod("runc", "web").await;
    rig.pods().await.unwrap();
    let image = rig.sim("runc").images().remove(0);
    let kubelet = Kubelet::new(&rig);
    assert_ne!(pull(&rig).await.unwrap(), STOLEN);
    assert_eq!(kubelet.find("web", APP).await.unwrap(), Some(image));
}

#[tokio::test]
async fn of_two_created_pods_with_one_uid_the_later_gets_the_pulls() {
    let rig = runc_and_kata().await;
    for handler in ["runc", "kata", "runc"] {
        let pod = rig.run_pod(handler, "web").await;
        let reference = pull(&rig).await.unwrap();
        assert_eq!(rig.sim(handler).calls("PullImage").len(), 1);
        assert_eq!(reference, rig.sim(handler).images()[0].id);
        rig.sim(handler).forget_calls();
        // When the kubelet creates a new sandbox, the old sandbox remains in the stopped state.
        rig.stop_pod(&pod).await.unwrap();
        rig.sim(handler).forget();
    }
}

#[tokio::test]
async fn of_two_listed_pods_with_one_uid_the_ready_one_gets_the_pulls() {
    let rig = listed().await;
    let pod = doubled(&rig, "kata").await;
    directly(rig.sim("kata")).stop_pod(&pod).await.unwrap();
    rig.pods().await.unwrap();
    pull(&rig).await.unwrap();
    assert_eq!(asked(&rig, "PullImage"), ["runc"]);
}

#[tokio::test]
async fn a_backend_gets_no_pulls_for_a_handler_that_routes_to_another_backend() {
    let rig = listed().await;
    doubled(&rig, "runc").await;
    pull(&rig).await.unwrap();
    assert_eq!(asked(&rig, "PullImage"), ["runc"]);
}

#[tokio::test]
async fn two_listed_ready_pods_with_one_uid_get_no_pull_and_the_error_names_both_backends() {
    let rig = listed().await;
    doubled(&rig, "kata").await;
    let failed = pull(&rig).await.unwrap_err();
    assert_eq!(failed.code(), Code::FailedPrecondition, "{failed}");
    assert_names(&failed, &["\"uid-of-web\"", "\"runc\"", "\"kata\""]);
    assert!(asked(&rig, "PullImage").is_empty());
}

#[tokio::test]
async fn a_listed_pod_with_a_handler_takes_no_precedence_over_one_without() {
    // The runtime `runc` lists pods without a handler, as CRI-O does.
    let crio = Sim::new("runc").handlers([""]);
    let text = |directory: &str| {
        format!(
            "default_handler = \"runc\"\n[handlers]\nrunc = {{ socket = \"{directory}/runc.sock\", \
             handler = \"\" }}\nkata = \"{directory}/kata.sock\"\n"
        )
    };
    let rig = Rig::with_config([crio, Sim::new("kata")], text).await;
    settled(&rig).await;
    let runc = directly(rig.sim("runc"));
    runc.run_pod("", "web").await.unwrap();
    doubled(&rig, "kata").await;
    let failed = pull(&rig).await.unwrap_err();
    assert_eq!(failed.code(), Code::FailedPrecondition, "{failed}");
    assert!(asked(&rig, "PullImage").is_empty());
}

#[tokio::test]
async fn a_created_pod_keeps_its_pulls_after_a_restart_whatever_another_backend_lists() {
    let mut rig = node("start_wait = \"0s\"", ["runc", "kata"].map(Sim::new)).await;
    let pod = rig.run_pod("runc", "web").await;
    doubled(&rig, "kata").await;
    for _ in 0..2 {
        rig.restart_switch().await;
        rig.pods().await.unwrap();
        pull(&rig).await.unwrap();
        assert_eq!(asked(&rig, "PullImage"), ["runc"]);
        rig.sim("runc").forget_calls();
        // In the second round the sandbox is not ready.
        rig.stop_pod(&pod).await.unwrap();
    }
}

#[tokio::test]
async fn an_unknown_pod_is_looked_up_before_its_image_is_pulled() {
    let rig = runc_and_kata().await;
    settled(&rig).await;
    directly(rig.sim("kata"))
        .run_pod("kata", "web")
        .await
        .unwrap();
    pull(&rig).await.unwrap();
    assert_eq!(asked(&rig, "PullImage"), ["kata"]);
}

#[tokio::test]
async fn a_pull_for_a_pod_that_no_backend_has_goes_to_every_store() {
    let rig = runc_and_kata().await;
    settled(&rig).await;
    pull(&rig).await.unwrap();
    assert_eq!(asked(&rig, "PullImage"), ["runc", "kata"]);
}

#[tokio::test]
async fn a_pull_for_a_removed_pod_goes_to_the_backend_that_had_it() {
    let rig = runc_and_kata().await;
    let pod = rig.run_pod("kata", "web").await;
    rig.stop_pod(&pod).await.unwrap();
    rig.remove_pod(&pod).await.unwrap();
    pull(&rig).await.unwrap();
    assert_eq!(asked(&rig, "PullImage"), ["kata"]);
}

#[tokio::test]
async fn no_image_is_pulled_for_an_unknown_pod_while_a_backend_may_have_it() {
    let rig = runc_and_kata().await;
    settled(&rig).await;
    stopped(&rig, "kata").await;
    let failed = pull(&rig).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable, "{failed}");
    assert_names(&failed, &["\"uid-of-web\"", "\"kata\""]);
    assert!(asked(&rig, "PullImage").is_empty());
}

#[tokio::test]
async fn a_listed_pod_gets_no_pull_before_every_backend_has_been_listed() {
    let mut rig = runc_and_kata().await;
    rig.run_pod("runc", "web").await;
    directly(rig.sim("kata"))
        .run_pod("kata", "web")
        .await
        .unwrap();
    rig.sim("runc").stop().await;
    rig.restart_switch_without_state().await;
    until_state(&rig, "kata", "ready").await;
    let failed = pull(&rig).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable, "{failed}");
    assert_names(&failed, &["\"uid-of-web\"", "\"runc\""]);
    assert!(asked(&rig, "PullImage").is_empty());
}
