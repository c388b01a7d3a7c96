//! A pod's pulls go to the backend of the pod, with their credentials. Listing the pod's uid brings no backend a pull.

use std::path::Path;

use tonic::{Code, Status};

use crate::calls::stopped;
use crate::faults::{directly, node, runc_and_kata, until_state};
use crate::kubelet::{Kubelet, asked};
use crate::questions::settled;
use crate::support::misbehaving::{Misbehaving, STOLEN, thief};
use crate::support::{Rig, Sim};

const APP: &str = "registry.k8s.io/app:1";

/// Two backends, and the pod `web` on runc, which criswitch knows by its list alone. kata has another handler too.
async fn listed() -> Rig {
    let kata = Sim::new("kata").handlers(["kata", "runc", "default"]);
    let mut rig = node("start_wait = \"0s\"", [Sim::new("runc"), kata]).await;
    rig.run_pod("runc", "web").await;
    rig.restart_switch().await;
    rig
}

/// kata lists a pod `web` too, under this handler.
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
fn names(failed: &Status, words: &[&str]) {
    for word in words {
        assert!(failed.message().contains(word), "{failed}");
    }
}

#[tokio::test]
async fn a_pod_keeps_its_pulls_whatever_another_backend_lists_and_from_whatever_time() {
    let mut bad = None;
    let rig = Rig::with_config([Sim::new("runc").image(APP)], |directory| {
        let socket = Path::new(directory).join("bad.sock");
        bad = Some(Misbehaving::serve_on(&socket, thief));
        let bad = socket.display();
        format!(
            "default_handler = 'runc'\n[handlers]\nrunc = '{directory}/runc.sock'\nbad = '{bad}'"
        )
    });
    let rig = rig.await;
    until_state(&rig, "bad", "ready").await;
    let bad = bad.unwrap();
    bad.misbehave();
    rig.run_pod("runc", "web").await;
    rig.pods().await.unwrap();
    let image = rig.sim("runc").images().remove(0);
    let kubelet = Kubelet::new(&rig);
    assert_ne!(pull(&rig).await.unwrap(), STOLEN);
    assert_eq!(kubelet.find("web", APP).await.unwrap(), Some(image));
}

#[tokio::test]
async fn of_two_pods_that_were_created_the_later_one_pulls() {
    let rig = runc_and_kata().await;
    for handler in ["runc", "kata", "runc"] {
        let pod = rig.run_pod(handler, "web").await;
        let reference = pull(&rig).await.unwrap();
        assert_eq!(rig.sim(handler).calls("PullImage").len(), 1);
        assert_eq!(reference, rig.sim(handler).images()[0].id);
        rig.sim(handler).forget_calls();
        // The kubelet leaves the old sandbox behind, stopped, when it makes a new one.
        rig.stop_pod(&pod).await.unwrap();
        rig.sim(handler).forget();
    }
}

#[tokio::test]
async fn of_two_pods_that_are_only_listed_the_ready_one_pulls() {
    let rig = listed().await;
    let pod = doubled(&rig, "kata").await;
    directly(rig.sim("kata")).stop_pod(&pod).await.unwrap();
    rig.pods().await.unwrap();
    pull(&rig).await.unwrap();
    assert_eq!(asked(&rig, "PullImage"), ["runc"]);
}

#[tokio::test]
async fn a_backend_does_not_get_the_pulls_of_a_handler_that_the_table_has_elsewhere() {
    let rig = listed().await;
    doubled(&rig, "runc").await;
    pull(&rig).await.unwrap();
    assert_eq!(asked(&rig, "PullImage"), ["runc"]);
}

#[tokio::test]
async fn two_ready_pods_of_one_uid_pull_nothing_and_the_error_names_both_backends() {
    let rig = listed().await;
    doubled(&rig, "kata").await;
    let failed = pull(&rig).await.unwrap_err();
    assert_eq!(failed.code(), Code::FailedPrecondition, "{failed}");
    names(&failed, &["\"uid-of-web\"", "\"runc\"", "\"kata\""]);
    assert!(asked(&rig, "PullImage").is_empty());
}

#[tokio::test]
async fn a_pod_without_a_handler_is_not_outdone_by_one_with_a_handler() {
    // CRI-O lists no handlers.
    let crio = Sim::new("runc").handlers([""]);
    let text = |directory: &str| {
        format!(
            "default_handler = \"runc\"\n[handlers]\nrunc = {{ socket = \"{directory}/runc.sock\", \
             handler = \"\" }}\nkata = \"{directory}/kata.sock\"\n"
        )
    };
    let mut rig = Rig::with_config([crio, Sim::new("kata")], text).await;
    rig.run_pod("runc", "web").await;
    rig.restart_switch().await;
    doubled(&rig, "kata").await;
    let failed = pull(&rig).await.unwrap_err();
    assert_eq!(failed.code(), Code::FailedPrecondition, "{failed}");
    assert!(asked(&rig, "PullImage").is_empty());
}

#[tokio::test]
async fn a_pod_that_nobody_knows_is_asked_for_before_its_image_is_pulled() {
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
async fn a_pod_that_no_backend_has_pulls_into_every_store() {
    let rig = runc_and_kata().await;
    settled(&rig).await;
    pull(&rig).await.unwrap();
    assert_eq!(asked(&rig, "PullImage"), ["runc", "kata"]);
}

#[tokio::test]
async fn a_pull_for_a_pod_that_is_gone_goes_to_the_backend_that_had_it() {
    let rig = runc_and_kata().await;
    let pod = rig.run_pod("kata", "web").await;
    rig.stop_pod(&pod).await.unwrap();
    rig.remove_pod(&pod).await.unwrap();
    pull(&rig).await.unwrap();
    assert_eq!(asked(&rig, "PullImage"), ["kata"]);
}

#[tokio::test]
async fn nothing_is_pulled_for_an_unknown_pod_while_a_backend_may_have_it() {
    let rig = runc_and_kata().await;
    settled(&rig).await;
    stopped(&rig, "kata").await;
    let failed = pull(&rig).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable, "{failed}");
    names(&failed, &["\"uid-of-web\"", "\"kata\""]);
    assert!(asked(&rig, "PullImage").is_empty());
}

#[tokio::test]
async fn a_list_does_not_say_who_gets_a_pull_before_every_backend_was_listed() {
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
    names(&failed, &["\"uid-of-web\"", "\"runc\""]);
    assert!(asked(&rig, "PullImage").is_empty());
}
