//! Cached lists of pods and containers: complete, filtered as the runtime filters, limited in time.

use bytes::Bytes;
use criswitch::gate::MOST_PAIRS;
use criswitch_cri::codec::cri;
use tonic::{Code, Status};

use crate::calls::{assert_names_the_dead, holds, part, send, stopped};
use crate::faults::{backends_ready, directly, hung, names, node, runc_and_kata, state_of, status};
use crate::logged::Logged;
use crate::support::{IMAGE, RawReply, Rig, Sim, container_config, frame_raw, pod_config};
use crate::wait;

/// The ids of the pods and containers that [`mixed`] creates.
struct Ids {
    pod: String,
    container: String,
    stopped_pod: String,
    exited: String,
}

/// Pods and containers in every state at two backends, all listed once.
async fn mixed() -> (Rig, Ids) {
    let rig = runc_and_kata().await;
    rig.run("runc", "plain").await;
    let (pod, container) = rig.run("kata", "web").await;
    rig.create(&pod, "created").await;
    let (stopped_pod, exited) = rig.run("kata", "done").await;
    rig.stop(&exited).await.unwrap();
    rig.stop_pod(&stopped_pod).await.unwrap();
    list_both(&rig).await;
    let ids = Ids {
        pod,
        container,
        stopped_pod,
        exited,
    };
    (rig, ids)
}

async fn list_both(rig: &Rig) {
    rig.pods().await.unwrap();
    rig.containers().await.unwrap();
}

fn text(field: u32, value: &str) -> Vec<u8> {
    part(field, value.as_bytes().to_vec())
}

fn label(field: u32, key: &str, value: &str) -> Vec<u8> {
    part(field, [text(1, key), text(2, value)].concat())
}

/// A filter's field with a state. Protobuf omits a state whose value is zero.
fn state(value: u8) -> Vec<u8> {
    let value = match value {
        0 => vec![],
        value => vec![1 << 3, value],
    };
    part(2, value)
}

/// Every list with each kind of filter, and some filters combined.
fn filtered(ids: &Ids) -> Vec<(&'static str, Bytes)> {
    let mut asked = Vec::new();
    let mut add = |rpcs: [&'static str; 2], filter: &[Vec<u8>]| {
        let request = frame_raw(&part(1, filter.concat()));
        asked.extend(rpcs.map(|rpc| (rpc, request.clone())));
    };
    const PODS: [&str; 2] = ["ListPodSandbox", "StreamPodSandboxes"];
    const CONTAINERS: [&str; 2] = ["ListContainers", "StreamContainers"];
    for (rpcs, states) in [(PODS, 2), (CONTAINERS, 4)] {
        add(rpcs, &[]);
        for value in 0..states {
            add(rpcs, &[state(value)]);
        }
    }
    for id in [&ids.pod, &ids.stopped_pod] {
        add(PODS, &[text(1, id)]);
        add(PODS, &[text(1, &id[..12])]);
        add(CONTAINERS, &[text(3, id)]);
        add(CONTAINERS, &[text(3, &id[..12])]);
    }
    for id in [&ids.container, &ids.exited] {
        add(CONTAINERS, &[text(1, id)]);
        add(CONTAINERS, &[text(1, &id[..12])]);
        add(CONTAINERS, &[text(1, id), text(3, &ids.pod)]);
    }
    let web = ("io.kubernetes.pod.name", "web");
    for (rpcs, labels) in [(PODS, 3), (CONTAINERS, 4)] {
        add(rpcs, &[label(labels, web.0, web.1)]);
        add(rpcs, &[label(labels, web.0, "nobody")]);
        add(rpcs, &[label(labels, "nothing", "")]);
        add(
            rpcs,
            &[label(labels, "io.kubernetes.pod.uid", "uid-of-web")],
        );
        let namespace = label(labels, "io.kubernetes.pod.namespace", "default");
        add(rpcs, std::slice::from_ref(&namespace));
        add(rpcs, &[namespace.clone(), label(labels, web.0, web.1)]);
        add(rpcs, &[namespace, state(1)]);
    }
    asked
}

/// The items of a list or stream, without message boundaries.
fn items(reply: &RawReply) -> Vec<u8> {
    reply.messages().concat()
}

/// The test compares the bytes of each item, so it also detects a change within an item.
#[tokio::test]
async fn cached_lists_are_filtered_as_the_runtime_filters_them() {
    for death in ["dead", "hung"] {
        let (rig, ids) = mixed().await;
        let mut before = Vec::new();
        for (rpc, request) in filtered(&ids) {
            before.push(send(&rig, rpc, request).await);
        }
        match death {
            "dead" => stopped(&rig, "kata").await,
            _ => hung(&rig, "kata").await,
        }
        for ((rpc, request), before) in filtered(&ids).into_iter().zip(before) {
            let after = send(&rig, rpc, request.clone()).await;
            assert_eq!(after.code(), Code::Ok, "{death}: {rpc} {request:?}");
            let same = sorted(&items(&after)) == sorted(&items(&before));
            assert!(same, "{death}: {rpc} {request:?}: other items");
        }
    }
}

/// The entries of a list, sorted: streams have no fixed order.
fn sorted(list: &[u8]) -> Vec<Vec<u8>> {
    let fields = criswitch_cri::codec::protobuf::fields(list).map(Result::unwrap);
    let mut items: Vec<_> = fields.map(|field| field.raw.to_vec()).collect();
    items.sort();
    items
}

/// If a submessage is sent in several parts, Protobuf merges the parts, so the filter in any part counts.
#[tokio::test]
async fn a_list_whose_filter_is_split_into_parts_never_counts_as_a_full_list() {
    let (rig, _) = mixed().await;
    let (filter, nothing) = (part(1, state(1)), part(1, vec![]));
    for parts in [[&*filter, &*nothing], [&*nothing, &*filter]] {
        for rpc in ["ListPodSandbox", "StreamPodSandboxes"] {
            let reply = send(&rig, rpc, frame_raw(&parts.concat())).await;
            let listed = sorted(&items(&reply));
            assert_eq!(listed.len(), 1, "{rpc}: the stopped one alone");
        }
    }
    stopped(&rig, "kata").await;
    let pods = rig.pods().await.unwrap();
    assert_eq!(names(&pods), ["done", "plain", "web"]);
}

#[tokio::test]
async fn cached_lists_omit_pods_and_containers_removed_through_criswitch_since() {
    let (rig, ids) = mixed().await;
    rig.remove(&ids.exited).await.unwrap();
    rig.remove_pod(&ids.stopped_pod).await.unwrap();
    rig.stop(&ids.container).await.unwrap();
    rig.remove(&ids.container).await.unwrap();
    stopped(&rig, "kata").await;
    assert_eq!(names(&rig.pods().await.unwrap()), ["plain", "web"]);
    let containers = rig.containers().await.unwrap();
    let gone = [&ids.container, &ids.exited];
    assert_eq!(containers.len(), 2);
    assert!(containers.iter().all(|c| !gone.contains(&&c.id)));
}

#[tokio::test]
async fn a_container_created_without_criswitch_after_the_cached_list_fails_cached_container_lists_only()
 {
    let (rig, ids) = mixed().await;
    others_create(&rig, &ids.pod).await;
    stopped(&rig, "kata").await;
    rig.pods().await.unwrap();
    for rpc in ["ListContainers", "StreamContainers"] {
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        assert_names_the_dead(&reply, rig.sim("kata"), rpc);
        // A stream may already have sent runc's containers, but must not send kata's cached containers.
        assert!(!holds(&reply, &ids.container), "{rpc}");
    }
}

/// Creates a container at the backend directly, then lists the containers of its pod through criswitch, so that a
/// client knows the container.
async fn others_create(rig: &Rig, pod: &str) {
    let kata = rig.sim("kata");
    kata.add_image(crate::support::IMAGE);
    let container = directly(kata).create(pod, "since").await.unwrap();
    let of_pod = frame_raw(&part(1, text(3, pod)));
    assert!(holds(
        &send(rig, "ListContainers", of_pod).await,
        &container
    ));
}

#[tokio::test]
async fn a_container_listed_twice_does_not_hide_one_created_since() {
    let rig = runc_and_kata().await;
    let (pod, _) = rig.run("kata", "web").await;
    rig.containers().await.unwrap();
    let kata = rig.sim("kata");
    let again = kata.sent("ListContainers").slice(5..);
    kata.append_raw("ListContainers", again);
    assert_eq!(rig.containers().await.unwrap().len(), 1);
    others_create(&rig, &pod).await;
    stopped(&rig, "kata").await;
    let reply = send(&rig, "ListContainers", frame_raw(b"")).await;
    assert_names_the_dead(&reply, rig.sim("kata"), "ListContainers");
}

/// The kubelet crashes on a container whose pod was not listed.
#[tokio::test]
async fn cached_lists_omit_the_containers_of_a_pod_that_vanished() {
    let (rig, ids) = mixed().await;
    directly(rig.sim("kata"))
        .remove_pod(&ids.pod)
        .await
        .unwrap();
    assert_eq!(names(&rig.pods().await.unwrap()), ["done", "plain"]);
    stopped(&rig, "kata").await;
    assert_eq!(names(&rig.pods().await.unwrap()), ["done", "plain"]);
    let containers = rig.containers().await.unwrap();
    assert_eq!(containers.len(), 2);
    assert!(containers.iter().all(|c| c.pod_sandbox_id != ids.pod));
}

#[tokio::test]
async fn a_container_whose_pod_was_never_listed_makes_cached_container_lists_an_error() {
    let (rig, _) = mixed().await;
    let kata = directly(rig.sim("kata"));
    let pod = kata.run_pod("kata", "unseen").await.unwrap();
    kata.create(&pod, "unseen").await.unwrap();
    rig.containers().await.unwrap();
    stopped(&rig, "kata").await;
    rig.pods().await.unwrap();
    let reply = send(&rig, "ListContainers", frame_raw(b"")).await;
    assert_names_the_dead(&reply, rig.sim("kata"), "ListContainers");
}

/// A runtime may permanently list a container although it does not list the container's pod.
#[tokio::test]
async fn an_orphan_is_in_cached_lists_as_its_runtime_lists_it_and_is_named() {
    let (rig, ids) = mixed().await;
    // Each container in the list gets a second `pod_sandbox_id`. In protobuf the last value of a field counts.
    let orphaned = text(2, "no-such-pod");
    rig.sim("kata").append_to_items("ListContainers", orphaned);
    let mut rig = restarted(rig).await;
    list_both(&rig).await;
    list_both(&rig).await;
    let whole = rig.containers().await.unwrap().len();
    let shown = state_of(&rig, "kata").await;
    let orphans = shown["orphans"].as_array().unwrap();
    assert!(orphans.iter().any(|id| *id == *ids.container), "{shown}");
    stopped(&rig, "kata").await;
    assert_eq!(rig.containers().await.unwrap().len(), whole);
    rig.restart_switch().await;
    assert_eq!(rig.containers().await.unwrap().len(), whole);
}

/// Restarts criswitch, which then knows the containers only from lists.
async fn restarted(mut rig: Rig) -> Rig {
    rig.boot.id = "second".to_owned();
    rig.restart_switch().await;
    rig
}

#[tokio::test]
async fn pods_and_containers_created_and_removed_since_leave_cached_lists_complete() {
    let (rig, ids) = mixed().await;
    let since = rig.create(&ids.pod, "since").await;
    rig.remove(&since).await.unwrap();
    let pod = rig.run_pod("kata", "since").await;
    rig.remove_pod(&pod).await.unwrap();
    stopped(&rig, "kata").await;
    let pods = rig.pods().await.unwrap();
    assert_eq!(names(&pods), ["done", "plain", "web"]);
    assert_eq!(rig.containers().await.unwrap().len(), 4);
}

#[tokio::test]
async fn a_pod_restored_since_and_its_containers_are_in_cached_lists() {
    let (rig, ids) = mixed().await;
    let checkpoint = cri::CheckpointPodRequest {
        pod_sandbox_id: ids.pod.clone(),
        output_path: "/checkpoints/web".to_owned(),
        ..Default::default()
    };
    rig.runtime().checkpoint_pod(checkpoint).await.unwrap();
    let container = |name| container_config(name, IMAGE);
    let restore = cri::RestorePodRequest {
        checkpoint_path: "/checkpoints/web".to_owned(),
        config: Some(pod_config("restored")),
        runtime_handler: "kata".to_owned(),
        container_configs: vec![container("first"), container("second")],
        ..Default::default()
    };
    rig.runtime().restore_pod(restore).await.unwrap();
    stopped(&rig, "kata").await;
    assert!(names(&rig.pods().await.unwrap()).contains(&"restored"));
    let containers = rig.containers().await.unwrap();
    for name in ["first", "second"] {
        let of = |it: &&cri::Container| it.metadata.as_ref().unwrap().name == name;
        let found = containers.iter().find(of).unwrap();
        assert_eq!(found.state(), cri::ContainerState::ContainerCreated);
        assert_eq!(found.image.as_ref().unwrap().image, IMAGE);
    }
}

#[tokio::test]
async fn cached_pods_have_the_handler_names_of_the_routing_table() {
    let text = |directory: &str| {
        format!(
            "default_handler = \"runc\"\nstart_wait = \"0s\"\n[handlers]\nrunc = \"{directory}/runc.sock\"\n\
             gvisor = {{ socket = \"{directory}/crio.sock\", handler = \"runsc\" }}\n"
        )
    };
    let crio = Sim::new("crio").handlers(["runsc"]);
    let rig = Rig::with_config([Sim::new("runc"), crio], text).await;
    rig.run_pod("gvisor", "web").await;
    let before = rig.pods().await.unwrap();
    assert_eq!(before[0].runtime_handler, "gvisor");
    stopped(&rig, "crio").await;
    assert_eq!(rig.pods().await.unwrap(), before);
}

async fn with_stale_lists(time: &str) -> Rig {
    let keys = format!("start_wait = \"0s\"\nstale_lists = \"{time}\"");
    let rig = node(&keys, [Sim::new("runc"), Sim::new("kata")]).await;
    rig.run("kata", "web").await;
    list_both(&rig).await;
    rig
}

async fn try_images(rig: &Rig) -> Result<usize, Status> {
    let request = cri::ListImagesRequest::default();
    Ok(rig
        .images()
        .list_images(request)
        .await?
        .into_inner()
        .images
        .len())
}

#[tokio::test]
async fn no_list_is_served_from_cache_if_stale_lists_is_zero() {
    let rig = with_stale_lists("0s").await;
    try_images(&rig).await.unwrap();
    stopped(&rig, "kata").await;
    for rpc in ["ListPodSandbox", "ListContainers", "StreamPodSandboxes"] {
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        assert_names_the_dead(&reply, rig.sim("kata"), rpc);
    }
    assert_eq!(
        try_images(&rig).await.unwrap_err().code(),
        Code::Unavailable
    );
}

/// The replies of every list and its stream.
async fn every_list(rig: &Rig) -> Vec<(&'static str, RawReply)> {
    let mut said = Vec::new();
    for path in [
        "/runtime.v1.RuntimeService/ListPodSandbox",
        "/runtime.v1.RuntimeService/StreamPodSandboxes",
        "/runtime.v1.RuntimeService/ListContainers",
        "/runtime.v1.RuntimeService/StreamContainers",
        "/runtime.v1.ImageService/ListImages",
        "/runtime.v1.ImageService/StreamImages",
    ] {
        said.push((path, rig.raw(path, &[], frame_raw(b"")).await));
    }
    said
}

#[tokio::test]
async fn no_list_is_served_from_cache_for_longer_than_stale_lists() {
    let rig = with_stale_lists("1m").await;
    try_images(&rig).await.unwrap();
    stopped(&rig, "kata").await;
    assert_eq!(names(&rig.pods().await.unwrap()), ["web"]);
    for (path, reply) in every_list(&rig).await {
        assert_eq!(reply.code(), Code::Ok, "{path}");
        assert!(!items(&reply).is_empty(), "{path}");
    }
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    for (path, reply) in every_list(&rig).await {
        assert_names_the_dead(&reply, rig.sim("kata"), path);
    }
    // A list by a pod's uid is not served from cache either, although it goes only to the pod's owner.
    let uid = part(1, label(3, "io.kubernetes.pod.uid", "uid-of-web"));
    let reply = send(&rig, "ListPodSandbox", frame_raw(&uid)).await;
    assert_names_the_dead(&reply, rig.sim("kata"), "ListPodSandbox by uid");
    rig.sim("kata").start();
    wait::until(async || rig.pods().await.is_ok()).await;
}

#[tokio::test]
async fn status_and_one_log_line_report_a_stale_list_and_its_age() {
    let logged = Logged::here();
    let (rig, _) = mixed().await;
    assert!(state_of(&rig, "kata").await["staleListAgeSeconds"].is_null());
    stopped(&rig, "kata").await;
    for _ in 0..3 {
        list_both(&rig).await;
    }
    let shown = state_of(&rig, "kata").await;
    assert!(shown["staleListAgeSeconds"].is_u64(), "{shown}");
    assert_eq!(shown["listsFromCache"], 6);
    let status = status(&rig).await;
    let message = backends_ready(&status);
    assert!(message.contains(" s old"), "{message}");
    assert!(message.contains("\"kata\""), "{message}");
    assert!(state_of(&rig, "runc").await["staleListAgeSeconds"].is_null());
    let stale = ["serving its cached lists", "kata"];
    assert_eq!(logged.lines(&stale).len(), 1, "{}", logged.text());

    rig.sim("kata").start();
    wait::until(async || state_of(&rig, "kata").await["staleListAgeSeconds"].is_null()).await;
    crate::faults::until_state(&rig, "kata", "ready").await;
    let back = ["backend answers lists again", "kata"];
    assert_eq!(logged.lines(&back).len(), 1, "{}", logged.text());
    assert_eq!(backends_ready(&crate::faults::status(&rig).await), "");
}

/// Each created item takes room in the cached list until the backend's next list.
#[tokio::test]
async fn items_that_clients_have_removed_take_no_room_in_a_cached_list() {
    let keys = "start_wait = \"0s\"\nmax_message = \"8KiB\"";
    let rig = node(keys, [Sim::new("runc"), Sim::new("kata")]).await;
    let (left, _) = rig.run("kata", "left").await;
    rig.pods().await.unwrap();
    rig.containers().await.unwrap();
    for rpc in ["ListPodSandbox", "ListContainers"] {
        rig.sim("kata")
            .fail(rpc, Status::unknown("a bad container"));
    }
    for number in 0..60 {
        let (pod, container) = rig.run("kata", &format!("job-{number}")).await;
        rig.stop(&container).await.unwrap();
        if number % 2 == 0 {
            rig.remove(&container).await.unwrap();
        }
        rig.stop_pod(&pod).await.unwrap();
        rig.remove_pod(&pod).await.unwrap();
        let pods = rig.pods().await.unwrap();
        assert_eq!((pods.len(), pods[0].id.clone()), (1, left.clone()));
        assert_eq!(rig.containers().await.unwrap().len(), 1);
    }
}

/// criswitch makes the item of a new pod from the client's request, without the runtime's own list.
#[tokio::test]
async fn a_created_pod_that_no_client_could_use_is_not_served_from_cache() {
    let rig = runc_and_kata().await;
    rig.run("kata", "web").await;
    list_both(&rig).await;
    let mut config = pod_config("new");
    let labels = 0..=MOST_PAIRS;
    config
        .labels
        .extend(labels.map(|label| (format!("label-{label}"), String::new())));
    let request = cri::RunPodSandboxRequest {
        config: Some(config),
        runtime_handler: "kata".to_owned(),
    };
    rig.runtime().run_pod_sandbox(request).await.unwrap();
    stopped(&rig, "kata").await;
    let reply = send(&rig, "ListPodSandbox", frame_raw(b"")).await;
    assert_names_the_dead(&reply, rig.sim("kata"), "ListPodSandbox");
    let reply = send(&rig, "ListContainers", frame_raw(b"")).await;
    assert_eq!(reply.code(), Code::Ok, "containers have a cached list");
}
