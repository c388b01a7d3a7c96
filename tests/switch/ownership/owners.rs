//! Ownership of ids. criswitch learns the owner of an id from replies and lists, forgets it on removal, and asks all
//! backends for an unknown id.

use criswitch_cri::codec::cri;
use prost::Message;
use tokio_stream::StreamExt;
use tonic::{Code, Status};

use crate::calls::{ID_CALLS, calls_anywhere};
use crate::faults::{names, state_of};
use crate::questions::{Since, settled};
use crate::support::{Client, IMAGE, Rig, Sim};
use crate::wait;

async fn runc_and_kata() -> Rig {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    settled(&rig).await;
    rig
}

/// Runs a pod with a running container at a runtime, without criswitch.
async fn run_at(sim: &Sim, name: &str) -> (String, String) {
    sim.add_image(IMAGE);
    let direct = Client::new(&sim.socket());
    let pod = direct.run_pod("", name).await.unwrap();
    let container = direct.create(&pod, name).await.unwrap();
    direct.start(&container).await.unwrap();
    (pod, container)
}

/// Asserts that criswitch forwards calls for the pod and for the container, and that these calls succeed.
async fn assert_reached(rig: &Rig, pod: &str, container: &str) {
    for call in ID_CALLS.iter().filter(|call| call.rpc.ends_with("Status")) {
        let reply = call.send(rig, call.pick(pod, container)).await;
        assert_eq!(reply.code(), Code::Ok, "{}", call.rpc);
    }
}

/// Asserts that calls for the pod and the container get the reply for an unknown id, and that no backend receives them.
async fn assert_gone(rig: &Rig, pod: &str, container: &str) {
    for call in ID_CALLS {
        let before = calls_anywhere(rig, call.rpc);
        let reply = call.send(rig, call.pick(pod, container)).await;
        assert_eq!(reply.code(), call.if_gone, "{}", call.rpc);
        assert_eq!(calls_anywhere(rig, call.rpc), before, "{}", call.rpc);
    }
}

/// Asserts how many pods and containers of kata criswitch knows, and that the check causes no question to the backends.
async fn assert_known(rig: &Rig, pods: u64, containers: u64) {
    let since = Since::now(rig).await;
    let shown = state_of(rig, "kata").await;
    let known = ["pods", "containers"].map(|what| shown[what].as_u64().unwrap_or_default());
    assert_eq!(known, [pods, containers], "{shown}");
    assert_eq!(since.asked(rig), [0, 0]);
}

/// Asserts that calls for a removed pod and a removed container cause no question to the backends, and reach only kata,
/// which had both.
async fn assert_removed(rig: &Rig, pod: &str, container: &str) {
    let since = Since::now(rig).await;
    for call in ID_CALLS {
        let before = calls_anywhere(rig, call.rpc);
        let reply = call.send(rig, call.pick(pod, container)).await;
        assert_eq!(reply.code(), call.if_gone, "{}", call.rpc);
        assert_eq!(calls_anywhere(rig, call.rpc), before + 1, "{}", call.rpc);
        assert!(rig.sim("runc").calls(call.rpc).is_empty(), "{}", call.rpc);
    }
    assert_eq!(since.asked(rig), [0, 0]);
}

#[tokio::test]
async fn pods_and_containers_created_through_criswitch_are_known_at_once() {
    let rig = runc_and_kata().await;
    let since = Since::now(&rig).await;
    let (pod, container) = rig.run("kata", "web").await;
    assert_reached(&rig, &pod, &container).await;
    assert_eq!(since.asked(&rig), [0, 0]);
}

/// Checkpoints a pod of kata, removes it, and restores it.
async fn restored(rig: &Rig) -> Result<cri::RestorePodResponse, Status> {
    let (pod, _) = rig.run("kata", "web").await;
    let checkpoint = cri::CheckpointPodRequest {
        pod_sandbox_id: pod.clone(),
        output_path: "/checkpoints/web".to_owned(),
        ..Default::default()
    };
    rig.runtime().checkpoint_pod(checkpoint).await.unwrap();
    rig.remove_pod(&pod).await.unwrap();
    let restore = cri::RestorePodRequest {
        checkpoint_path: "/checkpoints/web".to_owned(),
        runtime_handler: "kata".to_owned(),
        ..Default::default()
    };
    Ok(rig.runtime().restore_pod(restore).await?.into_inner())
}

#[tokio::test]
async fn a_restored_pod_and_its_containers_are_known_at_once() {
    let rig = runc_and_kata().await;
    let since = Since::now(&rig).await;
    let restored = restored(&rig).await.unwrap();
    assert!(rig.sim("runc").calls("RestorePod").is_empty());
    let container = &restored.restored_containers[0].container_id;
    assert_reached(&rig, &restored.pod_sandbox_id, container).await;
    assert_eq!(since.asked(&rig), [0, 0]);
}

/// criswitch needs memory for each container in the reply, so it rejects a reply with too many containers.
#[tokio::test]
async fn a_restored_pod_with_too_many_containers_is_an_error() {
    let rig = runc_and_kata().await;
    let container = |number| cri::RestoredContainer {
        container_id: format!("container-{number}"),
        ..Default::default()
    };
    let reply = cri::RestorePodResponse {
        restored_containers: (0..=4096).map(container).collect(),
        ..Default::default()
    };
    rig.sim("kata")
        .append_raw("RestorePod", reply.encode_to_vec());
    let failed = restored(&rig).await.unwrap_err();
    assert_eq!(failed.code(), Code::Internal, "{failed}");
    assert!(
        failed.message().contains("more than 4096 new containers"),
        "{failed}"
    );
}

#[tokio::test]
async fn pods_and_containers_in_a_list_are_known_afterwards() {
    let rig = runc_and_kata().await;
    let (pod, container) = run_at(rig.sim("kata"), "web").await;
    rig.pods().await.unwrap();
    rig.containers().await.unwrap();
    let since = Since::now(&rig).await;
    assert_reached(&rig, &pod, &container).await;
    assert_eq!(since.asked(&rig), [0, 0]);
}

#[tokio::test]
async fn pods_and_containers_in_a_stream_are_known_afterwards() {
    let rig = runc_and_kata().await;
    let (pod, container) = run_at(rig.sim("kata"), "web").await;
    let pods = cri::StreamPodSandboxesRequest { filter: None };
    let pods = rig.runtime().stream_pod_sandboxes(pods).await.unwrap();
    assert_eq!(
        pods.into_inner()
            .filter(Result::is_ok)
            .collect::<Vec<_>>()
            .await
            .len(),
        1
    );
    let containers = cri::StreamContainersRequest { filter: None };
    let containers = rig.runtime().stream_containers(containers).await.unwrap();
    assert_eq!(
        containers
            .into_inner()
            .filter(Result::is_ok)
            .collect::<Vec<_>>()
            .await
            .len(),
        1
    );
    let since = Since::now(&rig).await;
    assert_reached(&rig, &pod, &container).await;
    assert_eq!(since.asked(&rig), [0, 0]);
}

#[tokio::test]
async fn pods_and_containers_created_without_criswitch_are_found_by_one_question() {
    let rig = runc_and_kata().await;
    let (pod, container) = run_at(rig.sim("kata"), "web").await;
    let since = Since::now(&rig).await;
    rig.stop(&container).await.unwrap();
    rig.stop_pod(&pod).await.unwrap();
    let stopped = cri::ContainerState::ContainerExited;
    assert_eq!(rig.sim("kata").containers()[0].state(), stopped);
    let not_ready = cri::PodSandboxState::SandboxNotready;
    assert_eq!(rig.sim("kata").pods()[0].state(), not_ready);
    assert_eq!(since.asked(&rig), [1, 1]);
    assert!(rig.sim("runc").calls("StopPodSandbox").is_empty());
}

#[tokio::test]
async fn a_container_can_be_created_in_a_pod_created_without_criswitch() {
    let rig = runc_and_kata().await;
    let (pod, _) = run_at(rig.sim("kata"), "web").await;
    let container = rig.create(&pod, "second").await;
    assert_eq!(rig.sim("kata").containers()[1].id, container);
    assert!(rig.sim("runc").calls("CreateContainer").is_empty());
}

#[tokio::test]
async fn a_removed_container_is_forgotten_and_its_pod_is_not() {
    let rig = runc_and_kata().await;
    let (pod, container) = rig.run("kata", "web").await;
    rig.remove(&container).await.unwrap();
    assert_known(&rig, 1, 0).await;
    rig.stop_pod(&pod).await.unwrap();
}

#[tokio::test]
async fn a_removed_pod_is_forgotten() {
    let rig = runc_and_kata().await;
    let (pod, container) = rig.run("kata", "web").await;
    rig.remove_pod(&pod).await.unwrap();
    assert_known(&rig, 0, 0).await;
    assert_removed(&rig, &pod, &container).await;
}

#[tokio::test]
async fn the_containers_of_a_removed_pod_are_forgotten_and_no_others() {
    let rig = runc_and_kata().await;
    let (pod, container) = rig.run("kata", "web").await;
    let (other_pod, other) = rig.run("kata", "other").await;
    rig.remove_pod(&pod).await.unwrap();
    assert_known(&rig, 1, 1).await;
    assert_removed(&rig, &pod, &container).await;
    assert_reached(&rig, &other_pod, &other).await;
}

#[tokio::test]
async fn a_failed_removal_does_not_end_ownership() {
    let rig = runc_and_kata().await;
    let (pod, container) = rig.run("kata", "web").await;
    let kata = rig.sim("kata");
    for rpc in ["RemoveContainer", "RemovePodSandbox"] {
        kata.fail(rpc, Status::unknown("device or resource busy"));
    }
    rig.remove(&container).await.unwrap_err();
    rig.remove_pod(&pod).await.unwrap_err();
    let since = Since::now(&rig).await;
    assert_reached(&rig, &pod, &container).await;
    assert_eq!(since.asked(&rig), [0, 0]);
}

#[tokio::test]
async fn pods_and_containers_missing_in_a_full_list_are_forgotten() {
    let rig = runc_and_kata().await;
    let (pod, container) = rig.run("kata", "web").await;
    rig.sim("kata").forget();
    rig.pods().await.unwrap();
    rig.containers().await.unwrap();
    assert_gone(&rig, &pod, &container).await;
}

#[tokio::test]
async fn pods_and_containers_missing_in_a_narrowed_list_are_not_forgotten() {
    let rig = runc_and_kata().await;
    let (pod, container) = rig.run("kata", "web").await;
    let mut runtime = rig.runtime();
    let not_ready = cri::PodSandboxFilter {
        state: Some(cri::PodSandboxStateValue { state: 1 }),
        ..Default::default()
    };
    let filter = Some(not_ready);
    let pods = runtime.list_pod_sandbox(cri::ListPodSandboxRequest { filter });
    assert!(pods.await.unwrap().into_inner().items.is_empty());
    let labelled = cri::ContainerFilter {
        label_selector: [("app".to_owned(), "none".to_owned())].into(),
        ..Default::default()
    };
    let filter = Some(labelled);
    let containers = runtime.list_containers(cri::ListContainersRequest { filter });
    assert!(containers.await.unwrap().into_inner().containers.is_empty());
    let since = Since::now(&rig).await;
    assert_reached(&rig, &pod, &container).await;
    assert_eq!(since.asked(&rig), [0, 0]);
}

#[tokio::test]
async fn after_a_restart_calls_for_a_backends_pods_succeed_while_others_are_down() {
    let mut rig = runc_and_kata().await;
    let (pod, container) = rig.run("kata", "web").await;
    rig.sim("runc").stop().await;
    rig.restart_switch().await;
    assert_reached(&rig, &pod, &container).await;
    rig.remove_pod(&pod).await.unwrap();
    assert!(rig.sim("kata").pods().is_empty());
}

#[tokio::test]
async fn after_a_restart_calls_for_known_ids_need_no_question() {
    let mut rig = runc_and_kata().await;
    let (pod, container) = rig.run("kata", "web").await;
    rig.restart_switch().await;
    let since = Since::now(&rig).await;
    assert_reached(&rig, &pod, &container).await;
    assert_eq!(since.asked(&rig), [0, 0]);
}

#[tokio::test]
async fn a_pod_stays_with_its_backend_when_the_routing_table_changes() {
    let mut rig = runc_and_kata().await;
    let (pod, container) = rig.run("kata", "web").await;
    // The handler kata now routes to runc, and the old backend has no handler.
    rig.restart_switch_with(|directory| {
        format!(
            "default_handler = \"runc\"\n[handlers]\nrunc = \"runc\"\nkata = \"runc\"\n\
             [backends]\nrunc = \"{directory}/runc.sock\"\nold = \"{directory}/kata.sock\"\n"
        )
    })
    .await;
    assert_reached(&rig, &pod, &container).await;
    assert_eq!(rig.pods().await.unwrap()[0].id, pod);
    rig.remove_pod(&pod).await.unwrap();
    assert!(rig.sim("kata").pods().is_empty());
}

#[tokio::test]
async fn pods_that_a_backend_lost_while_it_was_down_are_unknown_when_it_is_back() {
    let rig = runc_and_kata().await;
    let (pod, container) = rig.run("kata", "web").await;
    rig.sim("kata").stop().await;
    rig.sim("kata").forget();
    rig.sim("kata").start();
    // No client lists anything, so only criswitch's own lists show the loss.
    let status = ID_CALLS
        .iter()
        .find(|call| call.rpc == "ContainerStatus")
        .unwrap();
    wait::until(async || status.send(&rig, &container).await.code() == Code::NotFound).await;
    assert_gone(&rig, &pod, &container).await;
}

#[tokio::test]
async fn a_container_removed_before_the_reply_to_its_creation_is_forgotten() {
    let rig = runc_and_kata().await;
    let pod = rig.run_pod("kata", "web").await;
    let kata = rig.sim("kata");
    kata.hold_reply("CreateContainer");
    let remove = async {
        kata.until_done("CreateContainer").await;
        let container = rig.containers().await.unwrap()[0].id.clone();
        rig.remove(&container).await.unwrap();
        kata.release("CreateContainer");
    };
    let (container, ()) = tokio::join!(rig.create(&pod, "web"), remove);
    assert_eq!(names(&rig.pods().await.unwrap()), ["web"]);
    kata.stop().await;
    // kata is down, so this list has kata's cached containers. The removed container must not be among them.
    assert!(rig.containers().await.unwrap().is_empty(), "{container}");
}
