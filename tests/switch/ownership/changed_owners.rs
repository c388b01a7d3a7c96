//! The owner of a pod changes: every backend concerned is saved, every list has the pod, and no event reports the pod
//! as deleted.

use std::fs;

use criswitch_cri::codec::admin::ForgetRequest;
use criswitch_cri::codec::cri::{self, ContainerEventType};

use crate::calls::stopped;
use crate::faults::{directly, names, node, state_of, until_state};
use crate::questions::settled;
use crate::session::events::{listening, next};
use crate::support::{Client, Rig, Sim};
use crate::switch::forget::{forget, forgotten_during};
use crate::switch::saved_state::state_file;
use crate::topology::reloads::{reload, table};
use crate::wait::until;

/// A runtime, and two runtimes that create the same ids.
async fn twins() -> Rig {
    let twin = |name| Sim::new(name).seed("same");
    let rig = node(
        "start_wait = \"0s\"",
        [Sim::new("runc"), twin("kata"), twin("gvisor")],
    )
    .await;
    settled(&rig).await;
    rig
}

/// A pod that both kata and gvisor list. kata listed it first, and owns it.
async fn listed_twice() -> (Rig, String) {
    let rig = twins().await;
    let pod = directly(rig.sim("kata")).run_pod("", "web").await.unwrap();
    assert_eq!(names(&rig.pods().await.unwrap()), ["web"]);
    let copy = directly(rig.sim("gvisor")).run_pod("", "web").await;
    assert_eq!(copy.unwrap(), pod);
    rig.pods().await.unwrap();
    (rig, pod)
}

#[tokio::test]
async fn a_pod_that_passed_to_a_backend_is_listed_after_a_restart_without_this_backend() {
    let (mut rig, _) = listed_twice().await;
    rig.sim("kata").forget();
    rig.pods().await.unwrap();
    rig.sim("gvisor").stop().await;
    rig.restart_switch().await;
    assert_eq!(names(&rig.pods().await.unwrap()), ["web"]);
}

#[tokio::test]
async fn a_pod_of_a_forgotten_backend_is_listed_after_a_restart_without_the_backend_that_lists_it()
{
    let (mut rig, _) = listed_twice().await;
    stopped(&rig, "kata").await;
    let backend = "kata".to_owned();
    rig.admin().forget(ForgetRequest { backend }).await.unwrap();
    rig.sim("gvisor").stop().await;
    rig.restart_switch().await;
    assert_eq!(names(&rig.pods().await.unwrap()), ["web"]);
}

#[tokio::test]
async fn a_list_has_a_pod_of_a_forgotten_backend_that_lists_pods_again_but_not_containers() {
    let rig = twins().await;
    let kata = rig.sim("kata");
    let pod = directly(kata).run_pod("", "web").await.unwrap();
    stopped(&rig, "kata").await;
    forget(&rig, "kata").await.unwrap();
    kata.hold("ListContainers");
    kata.start();
    kata.until_held("ListContainers").await;
    let copy = directly(rig.sim("gvisor")).run_pod("", "web").await;
    assert_eq!(copy.unwrap(), pod);
    assert_eq!(names(&rig.pods().await.unwrap()), ["web"]);
}

/// Runs a list in which kata answers only after criswitch has forgotten kata. Afterwards gvisor lists the same pod.
async fn answered_when_forgotten<L>(rpc: &str, list: impl FnOnce(Client) -> L)
where
    L: Future<Output = Vec<cri::PodSandbox>>,
{
    let rig = twins().await;
    let kata = rig.sim("kata");
    let pod = directly(kata).run_pod("", "web").await.unwrap();
    forgotten_during(&rig, rpc, list(Client::clone(&rig))).await;
    let copy = directly(rig.sim("gvisor")).run_pod("", "web").await;
    assert_eq!(copy.unwrap(), pod);
    assert_eq!(names(&rig.pods().await.unwrap()), ["web"]);
}

#[tokio::test]
async fn a_list_has_a_pod_that_a_forgotten_backend_reports_in_answer_to_an_older_call() {
    let unary = async |client: Client| client.pods().await.unwrap();
    answered_when_forgotten("ListPodSandbox", unary).await;
    answered_when_forgotten("StreamPodSandboxes", streamed_pods).await;
}

/// gvisor creates a pod, and kata lists the pod's id before gvisor has answered. Returns the pod, and the content of
/// kata's state file at that moment.
async fn created_and_listed() -> (Rig, String, Vec<u8>) {
    let rig = twins().await;
    rig.sim("gvisor").hold("RunPodSandbox");
    let client = Client::clone(&rig);
    let creating = tokio::spawn(async move { client.run_pod("gvisor", "web").await });
    until(async || !rig.sim("gvisor").calls("RunPodSandbox").is_empty()).await;
    let pod = directly(rig.sim("kata")).run_pod("", "web").await.unwrap();
    assert_eq!(names(&rig.pods().await.unwrap()), ["web"]);
    let state = fs::read(state_file(&rig, "kata")).unwrap();
    rig.sim("gvisor").release("RunPodSandbox");
    assert_eq!(creating.await.unwrap().unwrap(), pod);
    (rig, pod, state)
}

#[tokio::test]
async fn a_created_pod_stays_with_its_creator_after_a_restart_though_another_backend_listed_it() {
    let (mut rig, pod, _) = created_and_listed().await;
    rig.restart_switch().await;
    rig.stop_pod(&pod).await.unwrap();
    assert_eq!(rig.sim("gvisor").calls("StopPodSandbox").len(), 1);
}

#[tokio::test]
async fn of_two_files_with_one_pod_the_file_that_says_created_counts() {
    let (mut rig, pod, state) = created_and_listed().await;
    rig.stop_switch().await;
    // Restore the earlier file of kata, as if criswitch had been killed before it wrote the file again.
    fs::write(state_file(&rig, "kata"), state).unwrap();
    rig.restart_switch().await;
    rig.stop_pod(&pod).await.unwrap();
    assert_eq!(rig.sim("gvisor").calls("StopPodSandbox").len(), 1);
}

/// Makes a list during which the owner kata reports that it lacks the pod. The answer of gvisor, which has the pod too,
/// comes first.
async fn listed_when_lost<L>(rpc: &str, list: impl FnOnce(Client) -> L) -> Vec<cri::PodSandbox>
where
    L: Future<Output = Vec<cri::PodSandbox>> + Send + 'static,
{
    let (rig, _) = listed_twice().await;
    let dropped = async || state_of(&rig, "gvisor").await["droppedItems"].as_u64();
    let before = dropped().await;
    rig.sim("kata").forget();
    rig.sim("kata").hold(rpc);
    let listing = tokio::spawn(list(Client::clone(&rig)));
    // Wait until criswitch has read gvisor's answer. At that moment the pod still belongs to kata.
    until(async || dropped().await > before).await;
    rig.sim("kata").release(rpc);
    listing.await.unwrap()
}

#[tokio::test]
async fn a_list_has_a_pod_whose_owner_reports_during_the_call_that_it_lacks_the_pod() {
    let unary = async |client: Client| client.pods().await.unwrap();
    let listed = listed_when_lost("ListPodSandbox", unary).await;
    assert_eq!(names(&listed), ["web"]);
    let listed = listed_when_lost("StreamPodSandboxes", streamed_pods).await;
    assert_eq!(names(&listed), ["web"]);
}

/// Makes a list during which the owner kata reports that it lacks the pod. The part of gvisor, which has the pod too,
/// is cached.
async fn listed_when_passed<L>(rpc: &str, list: fn(Client) -> L) -> Vec<cri::PodSandbox>
where
    L: Future<Output = Vec<cri::PodSandbox>> + Send + 'static,
{
    let (rig, _) = listed_twice().await;
    // gvisor is late with this list, so the next list has gvisor's cached part at once.
    rig.sim("gvisor").hold(rpc);
    assert_eq!(names(&list(Client::clone(&rig)).await), ["web"]);
    rig.sim("kata").hold(rpc);
    let listing = tokio::spawn(list(Client::clone(&rig)));
    rig.sim("kata").until_held(rpc).await;
    rig.sim("kata").forget();
    rig.sim("kata").release(rpc);
    listing.await.unwrap()
}

#[tokio::test]
async fn a_list_has_a_pod_that_passes_during_the_call_to_a_backend_whose_part_is_cached() {
    async fn unary(client: Client) -> Vec<cri::PodSandbox> {
        client.pods().await.unwrap()
    }
    let listed = listed_when_passed("ListPodSandbox", unary).await;
    assert_eq!(names(&listed), ["web"]);
    let listed = listed_when_passed("StreamPodSandboxes", streamed_pods).await;
    assert_eq!(names(&listed), ["web"]);
}

async fn streamed_pods(client: Client) -> Vec<cri::PodSandbox> {
    let request = cri::StreamPodSandboxesRequest::default();
    let mut stream = client
        .runtime()
        .stream_pod_sandboxes(request)
        .await
        .unwrap()
        .into_inner();
    let mut pods = Vec::new();
    while let Some(reply) = stream.message().await.unwrap() {
        pods.extend(reply.pod_sandboxes);
    }
    pods
}

#[tokio::test]
async fn a_list_has_a_cached_pod_that_passes_to_a_backend_that_joins_during_the_call() {
    let twin = |name| Sim::new(name).seed("same");
    let sims = [Sim::new("runc"), twin("kata"), twin("gvisor")];
    let rows = "runc = \"runc\"\nkata = \"kata\"";
    let first = |directory: &str| table("runc", rows, &["runc", "kata"], directory);
    let rig = Rig::with_config(sims, first).await;
    let pod = directly(rig.sim("kata")).run_pod("", "web").await.unwrap();
    assert_eq!(names(&rig.pods().await.unwrap()), ["web"]);
    // kata is late with this list, so the next list has kata's cached part at once.
    rig.sim("kata").hold("ListPodSandbox");
    assert_eq!(names(&rig.pods().await.unwrap()), ["web"]);
    rig.sim("runc").hold("ListPodSandbox");
    let client = Client::clone(&rig);
    let listing = tokio::spawn(async move { client.pods().await });
    rig.sim("runc").until_held("ListPodSandbox").await;
    let copy = directly(rig.sim("gvisor")).run_pod("", "web").await;
    assert_eq!(copy.unwrap(), pod);
    let rows = format!("{rows}\ngvisor = \"gvisor\"");
    reload(&rig, "runc", &rows, &["runc", "kata", "gvisor"]);
    until_state(&rig, "gvisor", "ready").await;
    rig.sim("kata").forget();
    rig.sim("kata").release("ListPodSandbox");
    until(async || state_of(&rig, "gvisor").await["pods"] == 1).await;
    rig.sim("runc").release("ListPodSandbox");
    assert_eq!(names(&listing.await.unwrap().unwrap()), ["web"]);
}

#[tokio::test]
async fn a_list_has_a_pod_that_passes_from_a_backend_which_has_answered_to_one_that_joins_later() {
    let twin = |name| Sim::new(name).seed("same");
    let sims = [Sim::new("runc"), twin("kata"), twin("gvisor")];
    let rows = "runc = \"runc\"\nkata = \"kata\"";
    // With a long `list_timeout`, the list waits for runc even if the clock advances.
    let patient = |rows: &str, backends: &[&str], directory: &str| {
        "list_timeout = \"1h\"\n".to_owned() + &table("runc", rows, backends, directory)
    };
    let rig = Rig::with_config(sims, |directory| {
        patient(rows, &["runc", "kata"], directory)
    })
    .await;
    let pod = directly(rig.sim("kata")).run_pod("", "web").await.unwrap();
    assert_eq!(names(&rig.pods().await.unwrap()), ["web"]);
    let asked = rig.sim("kata").calls("ListPodSandbox").len();
    rig.sim("runc").hold("ListPodSandbox");
    let client = Client::clone(&rig);
    let listing = tokio::spawn(async move { client.pods().await });
    rig.sim("runc").until_held("ListPodSandbox").await;
    until(async || rig.sim("kata").calls("ListPodSandbox").len() > asked).await;
    let copy = directly(rig.sim("gvisor")).run_pod("", "web").await;
    assert_eq!(copy.unwrap(), pod);
    let rows = format!("{rows}\ngvisor = \"gvisor\"");
    let reloaded = rig.reload(|directory| patient(&rows, &["runc", "kata", "gvisor"], directory));
    reloaded.result.unwrap();
    until_state(&rig, "gvisor", "ready").await;
    // kata has already answered the client's list. A new connection makes criswitch list kata again.
    rig.sim("kata").stop().await;
    until_state(&rig, "kata", "down").await;
    rig.sim("kata").forget();
    rig.sim("kata").start();
    until(async || state_of(&rig, "gvisor").await["pods"] == 1).await;
    rig.sim("runc").release("ListPodSandbox");
    assert_eq!(names(&listing.await.unwrap().unwrap()), ["web"]);
}

#[tokio::test]
async fn no_event_reports_a_pod_as_deleted_while_another_backend_has_it() {
    let [moved, gone] = ["a", "f"].map(|digit| digit.repeat(64));
    let kata = Sim::new("kata").next_ids([&*moved, &*gone]);
    let gvisor = Sim::new("gvisor").next_ids([&*moved]);
    let rig = Rig::start([Sim::new("runc"), kata, gvisor]).await;
    settled(&rig).await;
    for name in ["moved", "gone"] {
        rig.run_pod("kata", name).await;
    }
    let mut events = listening(&rig).await;
    stopped(&rig, "kata").await;
    rig.sim("kata").forget();
    // criswitch has not listed gvisor since gvisor created this pod.
    let direct = directly(rig.sim("gvisor"));
    assert_eq!(direct.run_pod("", "moved").await.unwrap(), moved);
    rig.sim("kata").start();
    let mut deleted = Vec::new();
    while deleted.last() != Some(&gone) {
        let event = next(&mut events).await.unwrap();
        if event.container_event_type() == ContainerEventType::ContainerDeletedEvent {
            deleted.push(event.container_id);
        }
    }
    assert_eq!(deleted, [gone], "events are in the order of the ids");
}

#[tokio::test]
async fn a_call_that_waits_for_the_owner_goes_to_the_backend_that_has_the_pod_then() {
    let rig = twins().await;
    let (kata, gvisor) = (rig.sim("kata"), rig.sim("gvisor"));
    let pod = rig.run_pod("kata", "web").await;
    assert_eq!(directly(gvisor).run_pod("", "web").await.unwrap(), pod);
    rig.pods().await.unwrap();
    stopped(&rig, "kata").await;
    kata.forget();
    kata.hold("ListPodSandbox");
    kata.start();
    kata.until_held("ListPodSandbox").await;
    let client = Client::clone(&rig);
    let stopping = tokio::spawn(async move { client.stop_pod(&pod).await });
    // This later call on the same connection is answered, so criswitch has received the earlier call.
    rig.pods().await.unwrap();
    kata.release("ListPodSandbox");
    stopping.await.unwrap().unwrap();
    assert_eq!(gvisor.calls("StopPodSandbox").len(), 1);
    assert!(kata.calls("StopPodSandbox").is_empty());
}

#[tokio::test]
async fn a_retiring_backend_that_is_ready_keeps_its_pods_though_another_backend_lists_copies() {
    let mut rig = super::claims::behind_a_proxy().await;
    let pod = directly(rig.sim("runc")).run_pod("", "web").await.unwrap();
    rig.pods().await.unwrap();
    rig.pods().await.unwrap();
    for restart in [false, true] {
        let only_kata = |directory: &str| {
            format!(
                "default_handler = 'kata'\nstart_wait = '0s'\n[handlers]\nkata = '{directory}/proxy.sock'"
            )
        };
        if !restart {
            assert!(rig.reload(only_kata).result.is_ok())
        } else {
            rig.restart_switch_with(only_kata).await
        }
        until_state(&rig, "kata", "ready").await;
        let runc = until_state(&rig, "runc", "ready").await;
        assert_eq!(runc["podIds"], serde_json::json!([pod]));
        rig.pods().await.unwrap();
        assert_eq!(
            state_of(&rig, "runc").await["podIds"],
            serde_json::json!([pod])
        );
    }
}

#[tokio::test]
async fn a_runtime_that_moved_its_socket_is_named_with_the_command_that_passes_its_pods() {
    let sims = [Sim::new("old").handlers(["runc"])];
    let rig = Rig::with_config(sims, |directory| {
        table("runc", "runc = \"old\"", &["old"], directory)
    })
    .await;
    until_state(&rig, "old", "ready").await;
    let (pod, _) = rig.run("runc", "web").await;
    rig.pods().await.unwrap();
    rig.containers().await.unwrap();
    stopped(&rig, "old").await;
    assert!(state_of(&rig, "old").await["moved"].is_null());
    reload(&rig, "runc", "runc = \"new\"", &["new"]);
    rig.sim("old").serve_on(&rig.directory().join("new.sock"));
    until_state(&rig, "new", "ready").await;
    let old = state_of(&rig, "old").await;
    assert_eq!(
        old["podIds"],
        serde_json::json!([pod]),
        "new may list copies"
    );
    let moved = old["moved"].as_str().unwrap();
    let command = "backend new lists 2 of the 2 pods and containers of backend old";
    assert!(moved.contains(command), "{moved}");
    assert!(moved.ends_with(": criswitch forget old"), "{moved}");
    let backend = "old".to_owned();
    rig.admin().forget(ForgetRequest { backend }).await.unwrap();
    assert_eq!(
        state_of(&rig, "new").await["podIds"],
        serde_json::json!([pod])
    );
    assert_eq!(names(&rig.pods().await.unwrap()), ["web"]);
    rig.stop_pod(&pod).await.unwrap();
}
