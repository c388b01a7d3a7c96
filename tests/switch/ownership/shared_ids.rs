//! An id on two backends: the backend that created the id owns it. If criswitch saw no creation, the first backend that
//! listed the id owns it.

use criswitch_cri::codec::cri;
use tonic::{Code, Status};

use crate::calls::{ID_CALLS, narrowed_to_ids, send, text_of};
use crate::faults::names;
use crate::logged::Logged;
use crate::questions::settled;
use crate::support::{Client, Rig, Sim};
use crate::topology::reloads::reload;

/// A runtime, and two runtimes that create the same ids.
fn twins() -> [Sim; 3] {
    let twin = |name| Sim::new(name).seed("same").image(crate::support::IMAGE);
    [Sim::new("runc"), twin("kata"), twin("gvisor")]
}

/// Runs a pod and a container at a runtime, without criswitch.
async fn run_at(sim: &Sim) -> (String, String) {
    let direct = Client::new(&sim.socket());
    let pod = direct.run_pod("", "web").await.unwrap();
    let container = direct.create(&pod, "web").await.unwrap();
    (pod, container)
}

#[tokio::test]
async fn an_id_that_two_backends_list_belongs_to_the_first_until_its_list_lacks_the_id() {
    let rig = Rig::start(twins()).await;
    settled(&rig).await;
    let (pod, container) = run_at(rig.sim("kata")).await;
    rig.pods().await.unwrap();
    rig.containers().await.unwrap();
    assert_eq!(run_at(rig.sim("gvisor")).await.0, pod);
    for list in narrowed_to_ids(&pod, &container) {
        let before = rig.sim("gvisor").calls(list.rpc).len();
        send(&rig, list.rpc, list.request.clone()).await;
        assert_eq!(rig.sim("gvisor").calls(list.rpc).len(), before);
    }
    rig.pods().await.unwrap();
    rig.containers().await.unwrap();
    rig.stop_pod(&pod).await.unwrap();
    assert!(rig.sim("gvisor").calls("StopPodSandbox").is_empty());
    rig.sim("kata").forget();
    rig.pods().await.unwrap();
    rig.containers().await.unwrap();
    rig.remove(&container).await.unwrap();
    rig.remove_pod(&pod).await.unwrap();
    assert!(rig.sim("gvisor").pods().is_empty());
    assert!(calls_of(&rig, "kata").is_empty());
}

fn calls_of(rig: &Rig, sim: &str) -> Vec<crate::support::Call> {
    rig.sim(sim).calls("RemovePodSandbox")
}

#[tokio::test]
async fn a_backend_that_lists_anothers_pod_is_logged_once_with_both_names() {
    let logged = Logged::here();
    let rig = Rig::start(twins()).await;
    let (pod, _) = rig.run("kata", "web").await;
    run_at(rig.sim("gvisor")).await;
    for _ in 0..3 {
        rig.pods().await.unwrap();
    }
    let words = ["WARN", "another backend owns", "gvisor", "kata", &pod];
    assert_eq!(logged.lines(&words).len(), 1, "{}", logged.text());
}

#[tokio::test]
async fn a_backend_that_returns_an_id_of_another_does_not_become_its_owner() {
    let logged = Logged::here();
    let [pod, container, second, third] = ["a", "b", "c", "d"].map(|digit| digit.repeat(64));
    let gives = [&pod, &second, &container, &third, &container];
    let gvisor = Sim::new("gvisor")
        .image(crate::support::IMAGE)
        .next_ids(gives.map(String::as_str));
    let kata = Sim::new("kata").next_ids([&*pod, &*container]);
    let rig = Rig::start([Sim::new("runc"), kata, gvisor]).await;
    rig.run("kata", "web").await;

    assert_refused(rig.try_run("gvisor", "web").await);
    assert_eq!(rig.run_pod("gvisor", "other").await, second);
    assert_refused((*rig).create(&second, "other").await);
    checkpoint(&rig, &second).await;
    assert_refused(restore(&rig).await);

    rig.stop(&container).await.unwrap();
    rig.stop_pod(&pod).await.unwrap();
    for rpc in ["StopContainer", "StopPodSandbox"] {
        assert!(rig.sim("gvisor").calls(rpc).is_empty(), "{rpc}");
        assert_eq!(rig.sim("kata").calls(rpc).len(), 1, "{rpc}");
    }
    let words = ["WARN", "another backend owns", "gvisor", "kata"];
    assert_eq!(logged.lines(&words).len(), 3, "{}", logged.text());
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(made: Result<T, Status>) {
    let status = made.unwrap_err();
    assert_eq!(status.code(), Code::Internal, "{status}");
    for name in ["kata", "gvisor"] {
        assert!(status.message().contains(name), "{status}");
    }
}

/// Checkpoints a pod of gvisor, then removes the pod.
async fn checkpoint(rig: &Rig, pod: &str) {
    let checkpoint = cri::CheckpointPodRequest {
        pod_sandbox_id: pod.to_owned(),
        output_path: "/checkpoints/other".to_owned(),
        ..Default::default()
    };
    rig.runtime().checkpoint_pod(checkpoint).await.unwrap();
    rig.remove_pod(pod).await.unwrap();
}

async fn restore(rig: &Rig) -> Result<cri::RestorePodResponse, Status> {
    let restore = cri::RestorePodRequest {
        checkpoint_path: "/checkpoints/other".to_owned(),
        runtime_handler: "gvisor".to_owned(),
        ..Default::default()
    };
    let restored = rig.runtime().restore_pod(restore).await?;
    Ok(restored.into_inner())
}

#[tokio::test]
async fn another_backend_may_reuse_the_id_of_a_removed_pod() {
    let rig = Rig::start(twins()).await;
    let (pod, _) = rig.run("kata", "web").await;
    rig.remove_pod(&pod).await.unwrap();
    assert_eq!(rig.run_pod("gvisor", "web").await, pod);
    rig.stop_pod(&pod).await.unwrap();
    assert_eq!(rig.sim("gvisor").calls("StopPodSandbox").len(), 1);
}

#[tokio::test]
async fn ids_created_through_criswitch_stay_with_their_backend() {
    let rig = Rig::start(twins()).await;
    let (pod, container) = rig.run("kata", "web").await;
    assert_eq!(
        run_at(rig.sim("gvisor")).await,
        (pod.clone(), container.clone())
    );
    rig.pods().await.unwrap();
    rig.containers().await.unwrap();
    for call in ID_CALLS {
        let reply = call.send(&rig, call.pick(&pod, &container)).await;
        assert!(!text_of(&reply).contains("gvisor"), "{}", call.rpc);
        assert!(rig.sim("gvisor").calls(call.rpc).len() < 2, "{}", call.rpc);
    }
    assert!(rig.sim("kata").pods().is_empty());
    assert_eq!(rig.sim("gvisor").pods().len(), 1);
}

#[tokio::test]
async fn of_two_removed_backends_with_the_same_pods_one_is_retained() {
    let rig = Rig::start(twins()).await;
    settled(&rig).await;
    run_at(rig.sim("kata")).await;
    run_at(rig.sim("gvisor")).await;
    assert_eq!(rig.pods().await.unwrap().len(), 1);
    let changes = reload(&rig, "runc", "runc = \"runc\"", &["runc"]);
    assert_eq!(changes.backends_removed.len(), 1, "{changes}");
    assert_eq!(names(&rig.pods().await.unwrap()), ["web"]);
}
