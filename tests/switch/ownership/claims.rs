//! A backend claims a pod or container of another backend: it lists the id, reports stats or events for the id, or
//! returns the id as the id of a new pod or container. The owner keeps the id, and clients see each id once.

use std::collections::BTreeSet;
use std::path::Path;

use criswitch_cri::codec::cri;
use tonic::Code;

use crate::calls::{part, send, text_of};
use crate::faults::{backends_ready, directly, state_of, status, until_state};
use crate::logged::Logged;
use crate::questions::settled;
use crate::session::events::{events, listening, next};
use crate::support::misbehaving::{POD, thief};
use crate::support::{
    Client, IMAGE, Rig, Sim, connect, container_in, frame, frame_raw, pod_config, sockets,
};
use crate::topology::reloads::reload;
use crate::wait::until;

/// A runtime, and two runtimes that create the same ids.
fn twins() -> [Sim; 3] {
    let twin = |name| Sim::new(name).seed("same").image(IMAGE);
    [Sim::new("runc"), twin("kata"), twin("gvisor")]
}

/// kata's pod and container, created through criswitch. gvisor has the same ids, created without criswitch.
async fn claimed() -> (Rig, String, String) {
    let rig = Rig::start(twins()).await;
    let (pod, container) = rig.run("kata", "web").await;
    let direct = Client::new(&rig.sim("gvisor").socket());
    assert_eq!(direct.run_pod("", "web").await.unwrap(), pod);
    assert_eq!(direct.create(&pod, "web").await.unwrap(), container);
    (rig, pod, container)
}

#[tokio::test]
async fn an_id_is_in_every_list_and_stream_once_and_as_its_owner_lists_it() {
    let (rig, pod, container) = claimed().await;
    let pods = rig.pods().await.unwrap();
    assert_eq!(pods.iter().filter(|it| it.id == pod).count(), 1);
    let containers = rig.containers().await.unwrap();
    let states: Vec<_> = containers
        .iter()
        .filter(|it| it.id == container)
        .map(|it| it.state())
        .collect();
    assert_eq!(
        states,
        [cri::ContainerState::ContainerRunning],
        "gvisor's has not started"
    );
    for rpc in ["StreamPodSandboxes", "StreamContainers"] {
        let id = if rpc == "StreamPodSandboxes" {
            &pod
        } else {
            &container
        };
        assert_eq!(times(&rig, rpc, id).await, 1, "{rpc}");
    }
}

/// The message of the condition `BackendsReady`, which names the faults of the backends.
async fn complaint(rig: &Rig) -> String {
    backends_ready(&status(rig).await).to_owned()
}

/// The number of items with this id in the reply to `rpc`. Each message has its items in field 1.
async fn times(rig: &Rig, rpc: &str, id: &str) -> usize {
    let reply = send(rig, rpc, frame_raw(b"")).await;
    assert_eq!(reply.code(), Code::Ok, "{rpc}: {}", text_of(&reply));
    let mut times = 0;
    for message in reply.messages() {
        for item in criswitch_cri::codec::protobuf::all_bytes(&message, &[1]).unwrap() {
            let of_stats =
                criswitch_cri::codec::protobuf::string(item, &[1, 1]).unwrap_or_default();
            let own = criswitch_cri::codec::protobuf::string(item, &[1]).unwrap_or_default();
            times += usize::from(of_stats == id || own == id);
        }
    }
    times
}

#[tokio::test]
async fn stats_and_metrics_have_an_id_once() {
    let (rig, pod, container) = claimed().await;
    let direct = Client::new(&rig.sim("gvisor").socket());
    direct.start(&container).await.unwrap();
    for (rpc, id) in [
        ("ListPodSandboxStats", &pod),
        ("StreamPodSandboxStats", &pod),
        ("ListPodSandboxMetrics", &pod),
        ("StreamPodSandboxMetrics", &pod),
        ("ListContainerStats", &container),
        ("StreamContainerStats", &container),
    ] {
        assert_eq!(times(&rig, rpc, id).await, 1, "{rpc}");
    }
    assert!(state_of(&rig, "gvisor").await["droppedItems"].as_u64() >= Some(6));
}

/// The number of times that the stats of all pods contain `container`.
async fn times_inside(rig: &Rig, container: &str) -> usize {
    let request = cri::ListPodSandboxStatsRequest::default();
    let pods = rig
        .runtime()
        .list_pod_sandbox_stats(request)
        .await
        .unwrap()
        .into_inner()
        .stats;
    let inside = pods
        .iter()
        .flat_map(|pod| &pod.linux.as_ref().unwrap().containers);
    let ids = inside.map(|stats| &stats.attributes.as_ref().unwrap().id);
    ids.filter(|id| *id == container).count()
}

#[tokio::test]
async fn a_pods_stats_have_no_container_of_another_backend() {
    let [pod, own, container] = ["a", "b", "c"].map(|digit| digit.repeat(64));
    let with_ids = |name, pod: &str| {
        let sim = Sim::new(name).image(IMAGE);
        sim.next_ids([pod, &*container])
    };
    let sims = [
        Sim::new("runc"),
        with_ids("kata", &pod),
        with_ids("gvisor", &own),
    ];
    let rig = Rig::start(sims).await;
    let direct = Client::new(&rig.sim("gvisor").socket());
    rig.run("kata", "web").await;
    direct.run_pod("", "own").await.unwrap();
    direct.create(&own, "own").await.unwrap();
    direct.start(&container).await.unwrap();
    assert_eq!(rig.pods().await.unwrap().len(), 2);
    assert_eq!(times_inside(&rig, &container).await, 1);
}

#[tokio::test]
async fn a_container_stays_running_though_another_backend_lists_it_as_exited() {
    let (rig, _, container) = claimed().await;
    let direct = Client::new(&rig.sim("gvisor").socket());
    direct.start(&container).await.unwrap();
    rig.sim("gvisor").exit(&container, 1);
    let all = rig.containers().await.unwrap();
    let exited = |it: &&cri::Container| it.state() == cri::ContainerState::ContainerExited;
    assert_eq!(all.iter().filter(exited).count(), 0);
    rig.remove(&container).await.unwrap();
    assert_eq!(
        rig.sim("gvisor").containers().len(),
        1,
        "the owner's was removed"
    );
    assert!(rig.sim("kata").containers().is_empty());
}

#[tokio::test]
async fn status_names_a_backend_that_lists_pods_of_another() {
    let (rig, _, _) = claimed().await;
    rig.pods().await.unwrap();
    rig.containers().await.unwrap();
    assert_eq!(state_of(&rig, "gvisor").await["claimedItems"], 2);
    assert_eq!(state_of(&rig, "kata").await["claimedItems"], 0);
    let message = complaint(&rig).await;
    for words in [
        "gvisor",
        "lists 2 pods and containers that other backends own",
    ] {
        assert!(message.contains(words), "{message}");
    }
    rig.sim("gvisor").forget();
    rig.pods().await.unwrap();
    rig.containers().await.unwrap();
    assert_eq!(complaint(&rig).await, "");
}

#[tokio::test]
async fn events_about_another_backends_pods_are_dropped_and_counted() {
    let rig = Rig::start(twins()).await;
    let mut events = listening(&rig).await;
    let (pod, _) = rig.run("kata", "web").await;
    for _ in 0..4 {
        let event = next(&mut events).await.unwrap();
        assert_eq!(event.pod_sandbox_status.unwrap().id, pod);
    }
    let direct = Client::new(&rig.sim("gvisor").socket());
    assert_eq!(direct.run_pod("", "web").await.unwrap(), pod);
    until(async || state_of(&rig, "gvisor").await["droppedItems"].as_u64() >= Some(1)).await;
    // The next event is from runc, so criswitch has dropped gvisor's event about kata's pod.
    let (other, _) = rig.run("runc", "other").await;
    let event = next(&mut events).await.unwrap();
    assert_eq!(event.pod_sandbox_status.unwrap().id, other);
}

#[tokio::test]
async fn after_a_restart_no_backend_takes_over_a_pod_by_creating_its_id() {
    let id = "a".repeat(64);
    let [kata, gvisor] = ["kata", "gvisor"].map(|name| Sim::new(name).next_ids([&*id]));
    let mut rig = Rig::start([Sim::new("runc"), kata, gvisor]).await;
    assert_eq!(rig.run_pod("kata", "web").await, id);
    rig.restart_switch().await;
    settled(&rig).await;
    let rejected = rig.try_run("gvisor", "other").await.unwrap_err();
    assert_eq!(rejected.code(), Code::Internal, "{rejected}");
    rig.stop_pod(&id).await.unwrap();
    assert!(rig.sim("gvisor").calls("StopPodSandbox").is_empty());
    assert_eq!(rig.sim("kata").calls("StopPodSandbox").len(), 1);
}

/// Serves the socket `from` until the test ends: copies the bytes of each connection to and from the socket `to`.
async fn proxy(from: &Path, to: std::path::PathBuf) {
    let listener = sockets::bind(from);
    tokio::spawn(async move {
        while let Ok(mut client) = sockets::accept(&listener).await {
            let to = to.clone();
            tokio::spawn(async move {
                let mut server = connect(&to).await.unwrap();
                tokio::io::copy_bidirectional(&mut client, &mut server)
                    .await
                    .ok();
            });
        }
    });
}

/// One runtime with two handlers, each on a separate socket: `runc.sock`, and the socket of a proxy in front of
/// `runc.sock`.
pub async fn behind_a_proxy() -> Rig {
    let both = Sim::new("runc").handlers(["runc", "kata"]).image(IMAGE);
    let rig = Rig::with_config([both], |directory| {
        format!(
            "default_handler = 'runc'\nstart_wait = '0s'\n[handlers]\nrunc = '{directory}/runc.sock'\nkata = '{directory}/proxy.sock'"
        )
    })
    .await;
    proxy(
        &rig.directory().join("proxy.sock"),
        rig.sim("runc").socket(),
    )
    .await;
    until_state(&rig, "runc", "ready").await;
    until_state(&rig, "kata", "ready").await;
    rig
}

#[tokio::test]
async fn a_runtime_behind_two_sockets_has_each_pod_once_and_takes_calls_after_a_restart() {
    let mut rig = behind_a_proxy().await;
    let (one, first) = rig.run("runc", "one").await;
    let (two, second) = rig.run("kata", "two").await;
    for restarted in [false, true] {
        let pods: Vec<_> = rig
            .pods()
            .await
            .unwrap()
            .into_iter()
            .map(|it| it.id)
            .collect();
        assert_eq!(pods.len(), 2, "{restarted}: {pods:?}");
        let known: BTreeSet<_> = pods.into_iter().collect();
        assert_eq!(known, BTreeSet::from([one.clone(), two.clone()]));
        assert_eq!(rig.containers().await.unwrap().len(), 2);
        if !restarted {
            rig.restart_switch().await;
            until_state(&rig, "kata", "ready").await;
        }
    }
    for container in [first, second] {
        rig.stop(&container).await.unwrap();
        rig.remove(&container).await.unwrap();
    }
    for pod in [one, two] {
        rig.stop_pod(&pod).await.unwrap();
        rig.remove_pod(&pod).await.unwrap();
    }
    assert!(rig.sim("runc").pods().is_empty());
}

#[tokio::test]
async fn a_backend_that_lists_anothers_pod_after_a_restart_gets_no_call_for_it() {
    let mut rig = Rig::start(twins()).await;
    let (pod, container) = rig.run("kata", "web").await;
    rig.restart_switch().await;
    settled(&rig).await;
    // The direct client creates another pod with the same id.
    let direct = Client::new(&rig.sim("gvisor").socket());
    assert_eq!(direct.run_pod("", "other").await.unwrap(), pod);
    assert_eq!(direct.create(&pod, "other").await.unwrap(), container);
    assert_eq!(rig.pods().await.unwrap().len(), 1);
    assert_eq!(rig.containers().await.unwrap().len(), 1);
    rig.stop(&container).await.unwrap();
    rig.stop_pod(&pod).await.unwrap();
    assert!(rig.sim("gvisor").calls("StopPodSandbox").is_empty());
}

#[tokio::test]
async fn a_backend_whose_pods_another_lists_is_retained_when_its_row_is_removed() {
    let mut rig = Rig::start(twins()).await;
    let (pod, _) = rig.run("kata", "web").await;
    rig.restart_switch().await;
    settled(&rig).await;
    let direct = Client::new(&rig.sim("gvisor").socket());
    direct.run_pod("", "other").await.unwrap();
    rig.pods().await.unwrap();
    let rows = "runc = \"runc\"\ngvisor = \"gvisor\"";
    reload(&rig, "runc", rows, &["runc", "gvisor"]);
    rig.stop_pod(&pod).await.unwrap();
    assert!(rig.sim("gvisor").calls("StopPodSandbox").is_empty());
    assert_eq!(rig.sim("kata").calls("StopPodSandbox").len(), 1);
}

#[tokio::test]
async fn a_pod_not_listed_before_a_restart_keeps_its_owner_though_a_second_socket_lists_it() {
    let mut rig = behind_a_proxy().await;
    let (pod, container) = rig.run("runc", "one").await;
    rig.restart_switch().await;
    until_state(&rig, "kata", "ready").await;
    rig.pods().await.unwrap();
    rig.stop(&container).await.unwrap();
    rig.stop_pod(&pod).await.unwrap();
}

#[tokio::test]
async fn stats_have_a_pod_once_that_two_sockets_list_before_criswitch_knows_it() {
    let rig = behind_a_proxy().await;
    until_state(&rig, "kata", "ready").await;
    let pod = directly(rig.sim("runc")).run_pod("", "web").await.unwrap();
    let request = cri::ListPodSandboxStatsRequest::default();
    let stats = rig.runtime().list_pod_sandbox_stats(request).await.unwrap();
    let stats = stats.into_inner().stats.into_iter();
    let ids: Vec<_> = stats.map(|its| its.attributes.unwrap().id).collect();
    assert_eq!(ids, [pod]);
}

#[cfg(unix)] // A pipe has no links.
#[tokio::test]
async fn a_symbolic_link_to_a_socket_is_the_same_backend() {
    let both = Sim::new("runc").handlers(["runc", "kata"]);
    let mut rig = Rig::with_config([both], |directory| {
        let link = format!("{directory}/link.sock");
        std::os::unix::fs::symlink(format!("{directory}/runc.sock"), &link).unwrap();
        format!(
            "default_handler = 'runc'\n[handlers]\nrunc = '{directory}/runc.sock'\nkata = '{link}'"
        )
    })
    .await;
    until_state(&rig, "runc", "ready").await;
    let own = rig.state().await;
    assert_eq!(own["backends"].as_array().unwrap().len(), 1, "{own}");
    let pod = rig.run_pod("kata", "web").await;
    assert_eq!(rig.pods().await.unwrap().len(), 1);
    rig.restart_switch().await;
    rig.stop_pod(&pod).await.unwrap();
}

#[tokio::test]
async fn a_short_id_that_is_also_a_whole_id_of_another_backend_is_ambiguous() {
    let runc = Sim::new("runc").next_ids([POD]);
    let (rig, _bad) = Rig::beside_bad(runc, "", |_| None).await;
    until_state(&rig, "bad", "ready").await;
    let pod = rig.run_pod("runc", "web").await;
    assert!(pod.starts_with(POD) && pod.len() == 64, "{pod}");
    let rejected = rig.stop_pod(POD).await.unwrap_err();
    assert_eq!(rejected.code(), Code::Unknown, "{rejected}");
    assert!(rejected.message().contains("Multiple IDs"), "{rejected}");
    rig.stop_pod(&pod).await.unwrap();
}

#[tokio::test]
async fn a_list_by_a_uid_label_has_pods_whose_metadata_uid_differs() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    settled(&rig).await;
    for (handler, name, uid) in [("runc", "one", "U"), ("kata", "two", "other")] {
        let mut config = crate::support::pod_config(name);
        uid.clone_into(&mut config.metadata.as_mut().unwrap().uid);
        config
            .labels
            .insert("io.kubernetes.pod.uid".into(), "U".into());
        let request = cri::RunPodSandboxRequest {
            config: Some(config),
            runtime_handler: handler.into(),
        };
        rig.runtime().run_pod_sandbox(request).await.unwrap();
    }
    let filter = cri::PodSandboxFilter {
        label_selector: [("io.kubernetes.pod.uid".into(), "U".into())].into(),
        ..Default::default()
    };
    let request = cri::ListPodSandboxRequest {
        filter: Some(filter),
    };
    let listed = rig.runtime().list_pod_sandbox(request).await.unwrap();
    assert_eq!(listed.into_inner().items.len(), 2);
}

#[tokio::test]
async fn a_pod_configuration_in_two_parts_is_read_as_one() {
    use prost::Message;
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    settled(&rig).await;
    let whole = crate::support::pod_config("web");
    let uid = whole.metadata.clone().unwrap().uid;
    let first = cri::PodSandboxConfig {
        metadata: whole.metadata.clone(),
        ..Default::default()
    };
    let second = cri::PodSandboxConfig {
        metadata: None,
        ..whole.clone()
    };
    let parts = [first.encode_to_vec(), second.encode_to_vec()].map(|config| part(1, config));
    let body = [parts.concat(), part(2, b"kata".to_vec())].concat();
    let reply = send(&rig, "RunPodSandbox", frame_raw(&body)).await;
    assert_eq!(reply.code(), Code::Ok, "{}", text_of(&reply));
    let filter = cri::PodSandboxFilter {
        label_selector: [("io.kubernetes.pod.uid".into(), uid)].into(),
        ..Default::default()
    };
    let before = rig.sim("kata").calls("PullImage").len();
    let pull = cri::PullImageRequest {
        image: Some(cri::ImageSpec {
            image: IMAGE.into(),
            ..Default::default()
        }),
        auth: None,
        sandbox_config: Some(whole),
    };
    rig.images().pull_image(pull).await.unwrap();
    assert_eq!(rig.sim("kata").calls("PullImage").len(), before + 1);
    assert!(rig.sim("runc").calls("PullImage").is_empty());
    let request = frame(&cri::ListPodSandboxRequest {
        filter: Some(filter),
    });
    let reply = send(&rig, "ListPodSandbox", request).await;
    assert_eq!(reply.code(), Code::Ok);
}

#[tokio::test]
async fn a_claim_ends_with_the_first_list_that_was_requested_after_it_and_lacks_the_id() {
    let rig = Rig::start(twins()).await;
    let pod = rig.run_pod("kata", "web").await;
    // criswitch does not decode a list again that has the same bytes as the last list. Repeat the list until this
    // holds.
    for _ in 0..3 {
        rig.pods().await.unwrap();
    }
    let gvisor = rig.sim("gvisor");
    let before = gvisor.calls("ListPodSandbox").len();
    gvisor.hold_all("ListPodSandbox");
    let client = Client::clone(&rig);
    let early = tokio::spawn(async move { client.pods().await });
    until(async || gvisor.calls("ListPodSandbox").len() > before).await;
    let direct = Client::new(&gvisor.socket());
    assert_eq!(direct.run_pod("", "web").await.unwrap(), pod);
    let ready = cri::PodSandboxStateValue::default();
    let filter = Some(cri::PodSandboxFilter {
        state: Some(ready),
        ..Default::default()
    });
    let request = cri::ListPodSandboxRequest { filter };
    rig.runtime().list_pod_sandbox(request).await.unwrap();
    gvisor.forget();
    gvisor.release("ListPodSandbox");
    early.await.unwrap().unwrap();
    assert!(complaint(&rig).await.contains("gvisor"));
    rig.pods().await.unwrap();
    assert!(!complaint(&rig).await.contains("gvisor"));
}

#[tokio::test]
async fn a_pod_with_the_uid_of_another_backends_pod_is_reported_and_its_events_are_dropped() {
    let logged = Logged::here();
    let (rig, bad) = Rig::beside_bad(Sim::new("runc"), "", thief).await;
    until_state(&rig, "bad", "ready").await;
    rig.run_pod("runc", "web").await;
    bad.misbehave();
    let mut events = events(&rig).await.unwrap();
    until(async || state_of(&rig, "bad").await["droppedItems"] == 1).await;
    let pod = rig.run_pod("runc", "new").await;
    assert_eq!(next(&mut events).await.unwrap().container_id, pod);
    // The list has the pod, because it may be an old sandbox of the same pod.
    assert_eq!(rig.pods().await.unwrap().len(), 3);
    assert_eq!(state_of(&rig, "bad").await["claimedItems"], 1);
    let complaint = complaint(&rig).await;
    assert!(complaint.contains("uid of a pod"), "{complaint}");
    for words in ["uid of a pod that criswitch created", "events about a pod"] {
        let lines = logged.lines(&["WARN", "bad", words]);
        assert_eq!(lines.len(), 1, "{words}: {}", logged.text());
    }
}

/// A container with the labels that the kubelet gives to the containers of the pod `pod`.
fn container_of(pod: &str) -> cri::ContainerConfig {
    container_in(&pod_config(pod).labels, pod, IMAGE)
}

/// The number of times that this container is in the list, and in the stream of containers.
async fn shown(rig: &Rig, container: &str) -> [usize; 2] {
    let times = async |rpc| times(rig, rpc, container).await;
    [
        times("ListContainers").await,
        times("StreamContainers").await,
    ]
}

/// The kubelet assigns containers to pods by the label, so an exited container would fail the other backend's pod.
#[tokio::test]
async fn a_container_labelled_as_of_another_backends_pod_is_in_no_list_and_is_reported() {
    let logged = Logged::here();
    let rig = Rig::start(["runc", "kata"].map(|name| Sim::new(name).image(IMAGE))).await;
    let direct = Client::new(&rig.sim("kata").socket());
    let vm = direct.run_pod("", "vm").await.unwrap();
    let own = direct.create_from(&vm, container_of("vm")).await.unwrap();
    let stray = direct.create_from(&vm, container_of("web")).await.unwrap();
    rig.sim("kata").exit(&stray, 1);
    rig.pods().await.unwrap();
    assert_eq!(
        shown(&rig, &stray).await,
        [1, 1],
        "no other backend has the pod"
    );

    let web = rig.run_pod("runc", "web").await;
    let container = rig.create_from(&web, container_of("web")).await.unwrap();
    assert_eq!(shown(&rig, &stray).await, [0, 0]);
    for legitimate in [&own, &container] {
        assert_eq!(shown(&rig, legitimate).await, [1, 1]);
    }
    rig.containers().await.unwrap();
    let state = state_of(&rig, "kata").await;
    assert_eq!(state["claimedItems"], 1, "{state}");
    assert!(state["droppedItems"].as_u64() >= Some(3), "{state}");
    let complaint = complaint(&rig).await;
    assert!(
        complaint.contains("1 containers with the uid label"),
        "{complaint}"
    );
    let lines = logged.lines(&["WARN", "kata", "uid label of another backend's pod"]);
    assert_eq!(lines.len(), 1, "{}", logged.text());

    rig.remove(&container).await.unwrap();
    rig.stop_pod(&web).await.unwrap();
    rig.remove_pod(&web).await.unwrap();
    assert_eq!(
        shown(&rig, &stray).await,
        [1, 1],
        "no other backend has the pod any more"
    );
    assert_eq!(state_of(&rig, "kata").await["claimedItems"], 0);
}

#[tokio::test]
async fn the_cached_list_of_a_dead_backend_has_no_container_labelled_as_of_another_backends_pod() {
    let rig = Rig::start(["runc", "kata"].map(|name| Sim::new(name).image(IMAGE))).await;
    let direct = Client::new(&rig.sim("kata").socket());
    let vm = direct.run_pod("", "vm").await.unwrap();
    let own = direct.create_from(&vm, container_of("vm")).await.unwrap();
    let stray = direct.create_from(&vm, container_of("web")).await.unwrap();
    rig.pods().await.unwrap();
    rig.containers().await.unwrap();
    rig.sim("kata").stop().await;
    assert_eq!(shown(&rig, &stray).await, [1, 1]);
    rig.run_pod("runc", "web").await;
    assert_eq!(shown(&rig, &stray).await, [0, 0]);
    assert_eq!(shown(&rig, &own).await, [1, 1]);
}

/// The kubelet removes the old sandbox and its containers, so it must see both.
#[tokio::test]
async fn the_containers_of_a_pod_that_moved_to_another_backend_stay_in_lists_with_their_pod() {
    let mut rig = Rig::start(["runc", "kata"].map(|name| Sim::new(name).image(IMAGE))).await;
    let direct = Client::new(&rig.sim("kata").socket());
    let pod = direct.run_pod("", "web").await.unwrap();
    let container = direct.create_from(&pod, container_of("web")).await.unwrap();
    rig.run_pod("runc", "web").await;
    for ready in [true, false] {
        for _ in 0..2 {
            let pods = rig.pods().await.unwrap();
            assert!(pods.iter().any(|it| it.id == pod), "ready: {ready}");
            assert_eq!(shown(&rig, &container).await, [1, 1], "ready: {ready}");
            rig.restart_switch().await;
        }
        direct.stop_pod(&pod).await.unwrap();
    }
}
