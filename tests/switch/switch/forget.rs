//! A backend that criswitch forgets on request: lists omit the backend until it answers. criswitch does not forget a
//! backend that answers.

use std::time::Duration;

use criswitch_cri::codec::admin::ForgetRequest;
use serde_json::json;
use tonic::{Code, Status};

use crate::calls::stopped;
use crate::faults::{hang, hung, names, node, runc_and_kata, state_of, until_state, wake};
use crate::kubelet::Kubelet;
use crate::questions::settled;
use crate::support::{Client, IMAGE, PATIENCE, Rig, Sim};
use crate::topology::reloads::{old_alone, reload};
use crate::wait;

/// Longer than `list_timeout`: the longest time until a backend whose lists criswitch has received becomes ready.
const BECOMES_READY: Duration = Duration::from_millis(2500);
/// The time from the beginning of a hang until criswitch has noticed the hang: after `list_timeout`, criswitch probes
/// the backend for 3 s.
const NOTICED: Duration = Duration::from_millis(5100);
/// Less than a second before [`NOTICED`].
const NEARLY_NOTICED: Duration = Duration::from_millis(4500);

/// Makes criswitch forget kata, which hangs, in the first second of `call`. After that, kata answers calls of `rpc`.
pub async fn forgotten_during<C: Future>(rig: &Rig, rpc: &str, call: C) -> C::Output {
    let kata = rig.sim("kata");
    hang(kata);
    // This call gets no answer, so criswitch probes the backend.
    let probed = rig.try_run("kata", "first");
    let call = async {
        tokio::time::sleep(NEARLY_NOTICED).await;
        kata.forget_calls();
        call.await
    };
    let forgotten = async {
        tokio::time::sleep(NOTICED).await;
        assert_eq!(kata.calls(rpc).len(), 1, "{rpc}");
        forget(rig, "kata").await.unwrap();
        kata.release(rpc);
    };
    tokio::join!(probed, call, forgotten).1
}

pub async fn forget(rig: &Rig, name: &str) -> Result<(), Status> {
    let backend = name.to_owned();
    let forgotten = rig.admin().forget(ForgetRequest { backend }).await;
    forgotten.map(drop)
}

#[tokio::test]
async fn a_forgotten_backend_is_omitted_from_lists_even_after_restarts_until_it_answers() {
    let mut rig = runc_and_kata().await;
    rig.run("runc", "plain").await;
    let (pod, _) = rig.run("kata", "boxed").await;
    stopped(&rig, "kata").await;
    forget(&rig, "kata").await.unwrap();
    for _ in 0..2 {
        assert_eq!(names(&rig.pods().await.unwrap()), ["plain"]);
        assert_eq!(rig.containers().await.unwrap().len(), 1);
        rig.remove_pod(&pod).await.unwrap();
        rig.restart_switch().await;
    }
    rig.sim("kata").start();
    wait::until(async || rig.pods().await.unwrap().len() == 2).await;
    assert_eq!(names(&rig.pods().await.unwrap()), ["boxed", "plain"]);
}

#[tokio::test]
async fn a_forgotten_retiring_backend_is_removed() {
    let rig = old_alone().await;
    rig.run_pod("runc", "web").await;
    reload(&rig, "runc", "runc = \"new\"", &["new"]);
    wait::until(async || state_of(&rig, "new").await["state"] == "ready").await;
    stopped(&rig, "old").await;
    forget(&rig, "old").await.unwrap();
    assert!(rig.pods().await.unwrap().is_empty());
    let rejected = forget(&rig, "old").await.unwrap_err();
    assert_eq!(rejected.code(), Code::FailedPrecondition);
    assert!(
        rejected.message().contains("the backends are: new"),
        "{rejected}"
    );
}

#[tokio::test]
async fn a_first_list_no_longer_waits_for_a_backend_that_is_forgotten() {
    let mut rig = node("start_wait = \"1h\"", ["runc", "kata"].map(Sim::new)).await;
    rig.run("runc", "plain").await;
    rig.sim("kata").stop().await;
    rig.restart_switch_without_state().await;
    let mut first = std::pin::pin!(rig.pods());
    tokio::select! {
        listed = &mut first => panic!("it does not wait for kata: {listed:?}"),
        _ = until_state(&rig, "kata", "down") => {}
    }
    forget(&rig, "kata").await.unwrap();
    let listed = tokio::time::timeout(PATIENCE, first).await;
    assert_eq!(names(&listed.unwrap().unwrap()), ["plain"]);
}

/// If such a create succeeded, the client could not use the container's id.
#[tokio::test]
async fn a_create_fails_whose_backend_was_forgotten_and_removed_meanwhile() {
    let rig = old_alone().await;
    let pod = rig.run_pod("runc", "web").await;
    reload(&rig, "runc", "runc = \"new\"", &["new"]);
    let old = rig.sim("old");
    old.add_image(IMAGE);
    old.hold_reply("CreateContainer");
    let client = Client::new(&rig.socket);
    let forgotten = async {
        old.until_done("CreateContainer").await;
        hung(&rig, "old").await;
        forget(&rig, "old").await.unwrap();
        wake(old);
    };
    let (created, ()) = tokio::join!(client.create(&pod, "main"), forgotten);
    let failed = created.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable, "{failed}");
    assert!(failed.message().contains("was removed"), "{failed}");
}

/// No later list or call would find the created pod, even if the call was sent just before criswitch noticed the hang.
#[tokio::test]
async fn a_create_fails_whose_backend_is_forgotten_in_the_first_second_of_the_call() {
    let rig = runc_and_kata().await;
    settled(&rig).await;
    let call = rig.try_run("kata", "boxed");
    let created = forgotten_during(&rig, "RunPodSandbox", call).await;
    let failed = created.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable, "{failed}");
    assert!(failed.message().contains("was removed"), "{failed}");
}

#[tokio::test]
async fn a_backend_that_is_forgotten_while_it_becomes_ready_is_omitted_until_it_is_listed_again() {
    let rig = runc_and_kata().await;
    rig.run("runc", "plain").await;
    rig.run("kata", "boxed").await;
    stopped(&rig, "kata").await;
    let kata = rig.sim("kata");
    // criswitch asks for the status after the lists.
    kata.hold("Status");
    kata.start();
    kata.until_held("Status").await;
    forget(&rig, "kata").await.unwrap();
    kata.hold_all("ListPodSandbox");
    kata.release("Status");
    kata.forget_calls();
    tokio::time::sleep(BECOMES_READY).await;
    // criswitch has also forgotten the Status that it asked for before.
    assert_eq!(state_of(&rig, "kata").await["conditions"], json!([]));
    let listed = tokio::time::timeout(PATIENCE, rig.pods()).await;
    assert_eq!(names(&listed.unwrap().unwrap()), ["plain"]);
    kata.release("ListPodSandbox");
    wait::until(async || rig.pods().await.unwrap().len() == 2).await;
}

#[tokio::test]
async fn an_image_of_a_pod_is_unavailable_while_every_backend_is_forgotten() {
    let rig = runc_and_kata().await;
    rig.run_pod("kata", "boxed").await;
    for name in ["runc", "kata"] {
        stopped(&rig, name).await;
        forget(&rig, name).await.unwrap();
    }
    let kubelet = Kubelet::new(&rig).restarted();
    let failed = kubelet
        .find("boxed", "registry.k8s.io/app:1")
        .await
        .unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable, "{failed}");
    assert!(failed.message().contains("start the runtime"), "{failed}");
}

#[tokio::test]
async fn a_backend_that_criswitch_is_connecting_to_is_not_forgotten() {
    let mut rig = runc_and_kata().await;
    rig.run("kata", "boxed").await;
    rig.sim("kata").hold_all("ListPodSandbox");
    rig.restart_switch().await;
    let rejected = forget(&rig, "kata").await.unwrap_err();
    assert_eq!(rejected.code(), Code::FailedPrecondition);
    assert!(rejected.message().contains("is connecting"), "{rejected}");
    rig.sim("kata").release("ListPodSandbox");
    assert_eq!(names(&rig.pods().await.unwrap()), ["boxed"]);
}

#[tokio::test]
async fn a_backend_that_answers_is_not_forgotten() {
    let rig = runc_and_kata().await;
    rig.run("kata", "boxed").await;
    let rejected = forget(&rig, "kata").await.unwrap_err();
    assert_eq!(rejected.code(), Code::FailedPrecondition);
    assert!(rejected.message().contains("answers"), "{rejected}");
    assert_eq!(names(&rig.pods().await.unwrap()), ["boxed"]);
}
