//! A backend that dies after it executed a call and before its reply: no effect is doubled or lost.

use tonic::{Code, Status};

use crate::faults::{directly, names, runc_and_kata, until_state};
use crate::support::{IMAGE, Sim, container_config};

#[track_caller]
fn is_cut(failed: &Status, sim: &Sim) {
    assert_eq!(failed.code(), Code::Unavailable, "{failed}");
    let socket = sim.socket().display().to_string();
    for word in [sim.name(), &socket] {
        assert!(failed.message().contains(word), "{failed}");
    }
}

async fn dies_after(sim: &Sim, rpc: &str) {
    sim.hold_reply(rpc);
    sim.until_done(rpc).await;
    sim.stop().await;
}

#[tokio::test]
async fn a_pod_created_by_a_backend_that_then_died_is_listed_when_it_is_back() {
    let rig = runc_and_kata().await;
    let kata = rig.sim("kata");
    let (failed, ()) = tokio::join!(
        (*rig).run_pod("kata", "web"),
        dies_after(kata, "RunPodSandbox")
    );
    is_cut(&failed.unwrap_err(), kata);
    kata.start();
    until_state(&rig, "kata", "ready").await;
    let pods = rig.pods().await.unwrap();
    assert_eq!(names(&pods), ["web"]);
    assert_eq!(kata.calls("RunPodSandbox").len(), 1);
    // The kubelet finds the pod in the list, removes the pod and creates another one.
    rig.stop_pod(&pods[0].id).await.unwrap();
    rig.remove_pod(&pods[0].id).await.unwrap();
    assert!(kata.pods().is_empty());
}

#[tokio::test]
async fn a_container_created_by_a_backend_that_then_died_is_listed_when_it_is_back() {
    let rig = runc_and_kata().await;
    let kata = rig.sim("kata");
    kata.add_image(IMAGE);
    let pod = rig.run_pod("kata", "web").await;
    let create = rig.create_from(&pod, container_config("main", IMAGE));
    let (failed, ()) = tokio::join!(create, dies_after(kata, "CreateContainer"));
    is_cut(&failed.unwrap_err(), kata);
    kata.start();
    until_state(&rig, "kata", "ready").await;
    let containers = rig.containers().await.unwrap();
    assert_eq!(containers.len(), 1);
    assert_eq!(kata.calls("CreateContainer").len(), 1);
    rig.remove(&containers[0].id).await.unwrap();
}

/// The client does not know that the removal succeeded, and tries again.
#[tokio::test]
async fn a_removal_by_a_backend_that_then_died_can_be_repeated() {
    let rig = runc_and_kata().await;
    let kata = rig.sim("kata");
    let (pod, _) = rig.run("kata", "web").await;
    rig.pods().await.unwrap();
    let (failed, ()) = tokio::join!(rig.remove_pod(&pod), dies_after(kata, "RemovePodSandbox"));
    is_cut(&failed.unwrap_err(), kata);
    kata.start();
    until_state(&rig, "kata", "ready").await;
    rig.remove_pod(&pod).await.unwrap();
    assert!(rig.pods().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_creation_is_not_sent_again_when_its_backend_dies_during_the_call() {
    let rig = runc_and_kata().await;
    let kata = rig.sim("kata");
    kata.hold("RunPodSandbox");
    let dies = async {
        kata.until_held("RunPodSandbox").await;
        kata.stop().await;
        kata.release("RunPodSandbox");
        kata.start();
        until_state(&rig, "kata", "ready").await;
    };
    let (failed, ()) = tokio::join!((*rig).run_pod("kata", "web"), dies);
    is_cut(&failed.unwrap_err(), kata);
    assert!(rig.pods().await.unwrap().is_empty());
    assert!(directly(kata).pods().await.unwrap().is_empty());
    rig.run_pod("kata", "web").await;
    assert_eq!(kata.calls("RunPodSandbox").len(), 2);
}
