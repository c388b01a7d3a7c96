//! Handlers with a different name at the backend: requests get the backend's name, replies get the routing table's
//! name, and nothing else in a reply changes.

use bytes::Bytes;
use criswitch_cri::codec::cri;
use criswitch_cri::codec::protobuf;
use criswitch_cri::rpc::ROWS;
use tokio_stream::StreamExt;
use tonic::Code;

use crate::calls::{part, send, stopped};
use crate::session::events::{listening, next};
use crate::support::{
    RawReply, Rig, Sim, container_config, frame, frame_raw, image_spec, pod_config,
};

/// A backend kata with these handlers, and a routing table with these rows.
async fn table(handlers: &[&'static str], rows: &'static str) -> Rig {
    let sims = [
        Sim::new("runc"),
        Sim::new("kata").handlers(handlers.iter().copied()),
    ];
    Rig::with_config(sims, |directory| {
        let rows = rows.replace("KATA", &format!("{directory}/kata.sock"));
        format!("default_handler = \"runc\"\n[handlers]\nrunc = \"{directory}/runc.sock\"\n{rows}")
    })
    .await
}

/// A routing table that routes the handler `sandboxed` to kata's handler `kata-qemu`.
async fn renamed() -> Rig {
    table(
        &["kata", "kata-qemu"],
        "sandboxed = { socket = \"KATA\", handler = \"kata-qemu\" }\n",
    )
    .await
}

async fn listed_handlers(rig: &Rig) -> Vec<String> {
    let pods = rig.pods().await.unwrap().into_iter();
    pods.map(|pod| pod.runtime_handler).collect()
}

async fn handler_in_status(rig: &Rig, pod: &str) -> String {
    let request = cri::PodSandboxStatusRequest {
        pod_sandbox_id: pod.to_owned(),
        verbose: true,
    };
    let reply = rig.runtime().pod_sandbox_status(request).await.unwrap();
    reply.into_inner().status.unwrap().runtime_handler
}

async fn streamed_handlers(rig: &Rig, filter: Option<cri::PodSandboxFilter>) -> Vec<String> {
    let request = cri::StreamPodSandboxesRequest { filter };
    let mut stream = rig
        .runtime()
        .stream_pod_sandboxes(request)
        .await
        .unwrap()
        .into_inner();
    let mut handlers = Vec::new();
    while let Some(message) = stream.next().await {
        let pods = message.unwrap().pod_sandboxes.into_iter();
        handlers.extend(pods.map(|pod| pod.runtime_handler));
    }
    handlers.sort();
    handlers
}

fn by_id(pod: &str) -> Option<cri::PodSandboxFilter> {
    Some(cri::PodSandboxFilter {
        id: pod.to_owned(),
        ..Default::default()
    })
}

fn by_uid(uid: &str) -> Option<cri::PodSandboxFilter> {
    Some(cri::PodSandboxFilter {
        label_selector: [("io.kubernetes.pod.uid".to_owned(), uid.to_owned())].into(),
        ..Default::default()
    })
}

#[tokio::test]
async fn a_pod_runs_under_the_backends_handler_name_and_is_otherwise_unchanged() {
    let rig = renamed().await;
    rig.run_pod("sandboxed", "web").await;
    let calls = rig.sim("kata").calls("RunPodSandbox");
    let arrived: cri::RunPodSandboxRequest = calls[0].decode();
    assert_eq!(arrived.runtime_handler, "kata-qemu");
    assert_eq!(arrived.config, Some(pod_config("web")));
    assert_eq!(rig.sim("kata").pods()[0].runtime_handler, "kata-qemu");
}

#[tokio::test]
async fn a_request_for_a_renamed_handler_keeps_unknown_fields_and_invalid_utf8() {
    let rig = renamed().await;
    // The request has a log directory in Latin-1, a field number that no CRI uses, and the handler's name.
    let config = part(
        1,
        [part(3, b"caf\xe9".to_vec()), part(5000, b"new".to_vec())].concat(),
    );
    let message = [config.clone(), part(2, b"sandboxed".to_vec())].concat();
    rig.raw(
        "/runtime.v1.RuntimeService/RunPodSandbox",
        &[],
        frame_raw(&message),
    )
    .await;
    let arrived = rig.sim("kata").calls("RunPodSandbox")[0].message();
    let without_handler = without(&arrived, &[2]);
    assert_eq!(without_handler, config);
    assert_eq!(protobuf::string(&arrived, &[2]), Ok("kata-qemu"));
}

#[tokio::test]
async fn a_pod_is_restored_under_the_backends_handler_name() {
    let rig = renamed().await;
    let restore = cri::RestorePodRequest {
        checkpoint_path: "/none".to_owned(),
        runtime_handler: "sandboxed".to_owned(),
        container_configs: vec![cri::ContainerConfig {
            image: Some(spec("app:1")),
            ..Default::default()
        }],
        ..Default::default()
    };
    rig.runtime().restore_pod(restore).await.unwrap_err();
    let arrived: cri::RestorePodRequest = rig.sim("kata").calls("RestorePod")[0].decode();
    assert_eq!(arrived.runtime_handler, "kata-qemu");
    assert_eq!(arrived.checkpoint_path, "/none");
    let image = arrived.container_configs[0].image.clone().unwrap();
    assert_eq!(image.runtime_handler, "kata-qemu");
}

#[tokio::test]
async fn lists_streams_and_statuses_have_the_routing_tables_handler_name() {
    let rig = renamed().await;
    let pod = rig.run_pod("sandboxed", "web").await;
    let plain = rig.run_pod("runc", "plain").await;
    assert_eq!(listed_handlers(&rig).await, ["runc", "sandboxed"]);
    assert_eq!(handler_in_status(&rig, &pod).await, "sandboxed");
    assert_eq!(handler_in_status(&rig, &plain).await, "runc");
    assert_eq!(streamed_handlers(&rig, None).await, ["runc", "sandboxed"]);
}

#[tokio::test]
async fn narrowed_lists_and_streams_have_the_routing_tables_handler_name() {
    let rig = renamed().await;
    let pod = rig.run_pod("sandboxed", "web").await;
    for filter in [by_id(&pod), by_id(&pod[..9]), by_uid("uid-of-web")] {
        let request = cri::ListPodSandboxRequest {
            filter: filter.clone(),
        };
        let reply = rig.runtime().list_pod_sandbox(request).await.unwrap();
        assert_eq!(reply.into_inner().items[0].runtime_handler, "sandboxed");
        assert_eq!(streamed_handlers(&rig, filter).await, ["sandboxed"]);
    }
}

#[tokio::test]
async fn a_stream_made_of_a_list_has_the_routing_tables_handler_name() {
    let rig = renamed().await;
    rig.sims[1].clone().lacks(["StreamPodSandboxes"]);
    rig.run_pod("sandboxed", "web").await;
    assert_eq!(streamed_handlers(&rig, None).await, ["sandboxed"]);
}

#[tokio::test]
async fn events_have_the_routing_tables_handler_name() {
    let rig = renamed().await;
    let mut events = listening(&rig).await;
    rig.run_pod("sandboxed", "web").await;
    let event = next(&mut events).await.unwrap();
    assert_eq!(
        event.pod_sandbox_status.unwrap().runtime_handler,
        "sandboxed"
    );
}

#[tokio::test]
async fn replies_of_a_single_backend_have_the_routing_tables_handler_name_too() {
    let rig = Rig::with_config([Sim::new("kata")], |directory| {
        format!(
            "default_handler = \"sandboxed\"\n[handlers]\n\
             sandboxed = {{ socket = \"{directory}/kata.sock\", handler = \"kata\" }}\n"
        )
    })
    .await;
    let pod = rig.run_pod("sandboxed", "web").await;
    assert_eq!(listed_handlers(&rig).await, ["sandboxed"]);
    assert_eq!(handler_in_status(&rig, &pod).await, "sandboxed");
    assert_eq!(streamed_handlers(&rig, None).await, ["sandboxed"]);
    let mut events = listening(&rig).await;
    rig.stop_pod(&pod).await.unwrap();
    let event = next(&mut events).await.unwrap();
    assert_eq!(
        event.pod_sandbox_status.unwrap().runtime_handler,
        "sandboxed"
    );
}

#[tokio::test]
async fn only_the_handlers_name_changes_in_a_reply() {
    let rig = renamed().await;
    rig.sims[1].clone().newer();
    let pod = rig.run("sandboxed", "web").await.0;
    rig.run_pod("sandboxed", "second").await;
    let kata = rig.sim("kata");

    let status = part(1, pod.into_bytes());
    let reply = send(&rig, "PodSandboxStatus", frame_raw(&status)).await;
    assert_differs_in(&reply, &kata.sent("PodSandboxStatus"), &[1, 9]);
    let reply = send(&rig, "ListPodSandbox", frame_raw(b"")).await;
    assert_differs_in(&reply, &kata.sent("ListPodSandbox"), &[1, 7]);
    let reply = send(&rig, "StreamPodSandboxes", frame_raw(b"")).await;
    let messages = reply.messages();
    let streamed = messages.iter().find(|message| !message.is_empty());
    let sent = kata.sent("StreamPodSandboxes");
    assert_eq!(
        without(streamed.unwrap(), &[1, 7]),
        without(&sent[5..], &[1, 7])
    );
}

#[track_caller]
fn assert_differs_in(reply: &RawReply, sent: &[u8], path: &[u32]) {
    let message = &reply.messages()[0];
    assert_ne!(message, &sent[5..]);
    assert_eq!(without(message, path), without(&sent[5..], path));
    let newer = b"of a later version";
    assert!(message.windows(newer.len()).any(|window| window == newer));
}

/// A message without the fields at a path.
fn without(message: &[u8], path: &[u32]) -> Vec<u8> {
    let mut kept = Vec::new();
    for field in protobuf::fields(message) {
        let field = field.unwrap();
        match path {
            [number] if *number == field.number => {}
            [number, rest @ ..] if *number == field.number => {
                kept.extend(part(*number, without(field.bytes().unwrap(), rest)));
            }
            _ => kept.extend_from_slice(field.raw),
        }
    }
    kept
}

/// Two pods, one created by each of two rows with the same backend handler.
async fn of_two_rows(rows: [&str; 2]) -> (Rig, [String; 2]) {
    let sims = [Sim::new("runc"), Sim::new("kata")];
    let rig = Rig::with_config(sims, |directory| {
        let row = |row| format!("{row} = {{ socket = \"{directory}/kata.sock\", handler = \"kata\" }}\n");
        let rows = rows.map(row).concat();
        format!("default_handler = \"runc\"\nstart_wait = \"0s\"\n[handlers]\nrunc = \"{directory}/runc.sock\"\n{rows}")
    })
    .await;
    let pods = [
        rig.run_pod(rows[0], "one").await,
        rig.run_pod(rows[1], "two").await,
    ];
    for pod in rig.sim("kata").pods() {
        assert_eq!(pod.runtime_handler, "kata");
    }
    (rig, pods)
}

async fn handlers_in_statuses(rig: &Rig, pods: &[String; 2]) -> [String; 2] {
    [
        handler_in_status(rig, &pods[0]).await,
        handler_in_status(rig, &pods[1]).await,
    ]
}

#[tokio::test]
async fn a_pod_has_the_handler_name_of_its_row_if_two_rows_route_to_one_backend_handler() {
    for rows in [["kata", "gold"], ["silver", "gold"]] {
        let (rig, pods) = of_two_rows(rows).await;
        assert_eq!(listed_handlers(&rig).await, rows);
        assert_eq!(handlers_in_statuses(&rig, &pods).await, rows);
    }
}

/// If criswitch has only listed a pod, it knows only the backend's name of the handler.
#[tokio::test]
async fn without_saved_state_pods_of_two_rows_have_the_backends_handler_name() {
    for rows in [["kata", "gold"], ["silver", "gold"]] {
        let (mut rig, pods) = of_two_rows(rows).await;
        rig.restart_switch().await;
        assert_eq!(listed_handlers(&rig).await, rows);
        rig.restart_switch_without_state().await;
        assert_eq!(listed_handlers(&rig).await, ["kata"; 2]);
        assert_eq!(handlers_in_statuses(&rig, &pods).await, ["kata"; 2]);
    }
}

#[tokio::test]
async fn a_row_with_an_empty_backend_handler_uses_the_backends_own_default() {
    let rig = table(
        &["kata", "kata-qemu"],
        "own = { socket = \"KATA\", handler = \"\" }\n",
    )
    .await;
    let pod = rig.run_pod("own", "web").await;
    let arrived: cri::RunPodSandboxRequest = rig.sim("kata").calls("RunPodSandbox")[0].decode();
    assert_eq!(arrived.runtime_handler, "");
    assert_eq!(arrived.config, Some(pod_config("web")));
    // This is the runtime's name of its default handler, which is in no row.
    assert_eq!(rig.sim("kata").pods()[0].runtime_handler, "kata");
    assert_eq!(handler_in_status(&rig, &pod).await, "own");
}

#[tokio::test]
async fn an_empty_handler_name_in_a_reply_becomes_the_rows_name() {
    let rig = table(&[""], "own = { socket = \"KATA\", handler = \"\" }\n").await;
    let pod = rig.run_pod("own", "web").await;
    assert_eq!(rig.sim("kata").pods()[0].runtime_handler, "");
    assert_eq!(listed_handlers(&rig).await, ["own"]);
    assert_eq!(handler_in_status(&rig, &pod).await, "own");
}

#[tokio::test]
async fn a_handler_name_that_is_in_no_row_passes_unchanged() {
    let rig = renamed().await;
    let direct = crate::support::Client::new(&rig.sim("kata").socket());
    let pod = direct.run_pod("kata", "web").await.unwrap();
    assert_eq!(handler_in_status(&rig, &pod).await, "kata");
    assert_eq!(listed_handlers(&rig).await, ["kata"]);
}

/// An image spec with the routing table's name of a handler.
fn spec(image: &str) -> cri::ImageSpec {
    cri::ImageSpec {
        runtime_handler: "sandboxed".to_owned(),
        ..image_spec(image)
    }
}

/// A string in nested messages, at this path.
fn at(path: &[u32], text: &str) -> Vec<u8> {
    let value = text.as_bytes().to_vec();
    path.iter()
        .rev()
        .fold(value, |inner, field| part(*field, inner))
}

/// Replies with the handlers of images, and the paths to the handlers. `kata` adds the backend's name at each path.
async fn with_image_handlers(
    rig: &Rig,
    container: &str,
    pod: &str,
) -> Vec<(&'static str, Bytes, Vec<&'static [u32]>)> {
    let kata = rig.sim("kata");
    let own = |path: &[u32]| at(path, "kata-qemu");
    for rpc in ["ListContainers", "StreamContainers"] {
        kata.append_to_items(rpc, own(&[4, 19]));
    }
    for rpc in ["ListImages", "StreamImages", "ImageStatus"] {
        kata.append_to_items(rpc, own(&[7, 19]));
    }
    kata.append_to_items(
        "ContainerStatus",
        [own(&[8, 19]), own(&[14, 9, 19])].concat(),
    );
    let status = [own(&[8, 19]), own(&[14, 9, 19])].concat();
    kata.append_raw("PodSandboxStatus", part(3, status));
    let image = frame(&cri::ImageStatusRequest {
        image: Some(image_spec("only-kata:1")),
        ..Default::default()
    });
    let all = frame_raw(b"");
    vec![
        ("ListContainers", all.clone(), vec![&[1, 4, 19]]),
        ("StreamContainers", all.clone(), vec![&[1, 4, 19]]),
        ("ListImages", all.clone(), vec![&[1, 7, 19]]),
        ("StreamImages", all, vec![&[1, 7, 19]]),
        ("ImageStatus", image, vec![&[1, 7, 19]]),
        (
            "ContainerStatus",
            frame_raw(&at(&[1], container)),
            vec![&[1, 8, 19], &[1, 14, 9, 19]],
        ),
        (
            "PodSandboxStatus",
            frame_raw(&at(&[1], pod)),
            vec![&[3, 8, 19], &[3, 14, 9, 19]],
        ),
    ]
}

async fn ask(rig: &Rig, rpc: &str, body: &Bytes) -> Vec<Bytes> {
    let row = ROWS.iter().find(|row| row.name == rpc).unwrap();
    let reply = rig.raw(&row.path(), &[], body.clone()).await;
    assert_eq!(reply.code(), Code::Ok, "{rpc}: {}", reply.text());
    reply.messages()
}

#[tokio::test]
async fn images_have_the_routing_tables_handlers_in_every_reply() {
    let two = renamed().await;
    let sims = [Sim::new("kata").handlers(["kata", "kata-qemu"])];
    let one = Rig::with_config(sims, |directory| {
        format!(
            "default_handler = \"sandboxed\"\n[handlers]\n\
             sandboxed = {{ socket = \"{directory}/kata.sock\", handler = \"kata-qemu\" }}\n"
        )
    })
    .await;
    for rig in [two, one] {
        rig.sim("kata").add_image("only-kata:1");
        let (pod, container) = rig.run("sandboxed", "web").await;
        for (rpc, body, paths) in with_image_handlers(&rig, &container, &pod).await {
            let messages = ask(&rig, rpc, &body).await;
            let has_item = |message: &&Bytes| protobuf::string(message, paths[0]) != Ok("");
            let message = messages.iter().find(has_item).unwrap();
            for path in paths {
                assert_eq!(protobuf::string(message, path), Ok("sandboxed"), "{rpc}");
            }
        }
    }
}

#[tokio::test]
async fn cached_items_and_kept_statuses_have_the_routing_tables_handlers_of_images() {
    let rig = renamed().await;
    rig.sim("kata").add_image("only-kata:1");
    let (pod, container) = rig.run("sandboxed", "web").await;
    let replies = with_image_handlers(&rig, &container, &pod).await;
    for (rpc, body, _) in &replies {
        ask(&rig, rpc, body).await;
    }
    stopped(&rig, "kata").await;
    for (rpc, body, paths) in replies {
        let messages = ask(&rig, rpc, &body).await;
        // The kept status of a pod has no images, because it has no statuses of containers.
        for path in paths.iter().filter(|_| rpc != "PodSandboxStatus") {
            assert_eq!(
                protobuf::string(&messages[0], path),
                Ok("sandboxed"),
                "{rpc}"
            );
        }
    }
}

#[tokio::test]
async fn a_container_is_created_with_the_backends_handlers_of_its_images() {
    let rig = renamed().await;
    let pod = rig.run_pod("sandboxed", "web").await;
    rig.sim("kata").add_image("app:1");
    let mount = cri::Mount {
        image: Some(spec("data:1")),
        ..Default::default()
    };
    let config = cri::ContainerConfig {
        image: Some(spec("app:1")),
        mounts: vec![mount],
        ..container_config("web", "app:1")
    };
    rig.create_from(&pod, config).await.unwrap();
    let arrived: cri::CreateContainerRequest = rig.sim("kata").calls("CreateContainer")[0].decode();
    let config = arrived.config.unwrap();
    assert_eq!(config.image.unwrap().runtime_handler, "kata-qemu");
    let mount = config.mounts[0].image.clone().unwrap();
    assert_eq!(
        (&*mount.image, &*mount.runtime_handler),
        ("data:1", "kata-qemu")
    );
    let listed = rig.containers().await.unwrap().remove(0);
    assert_eq!(listed.image.unwrap().runtime_handler, "sandboxed");
}
