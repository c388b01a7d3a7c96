//! A backend that hangs does not block calls for its pods for ever. The tests check the rule for unanswered calls for
//! each RPC with an id.

use std::time::Duration;

use bytes::Bytes;
use criswitch::backend::CHANGE_LIMIT;
use criswitch_cri::codec::admin::ForgetRequest;
use criswitch_cri::codec::cri;
use criswitch_cri::rpc::{Patience, ROWS, Row};
use tokio::time::Instant;
use tonic::Code;

use crate::calls::{ID_CALLS, IdCall, path, text_of};
use crate::faults::{hang, hung, names, runc_and_kata, state_of, until_state, wake};
use crate::support::clock::later;
use crate::support::{IMAGE, RawReply, Rig, Sim, container_config, frame, image_spec, pod_config};
use crate::wait;

/// The time limit of a call that waits for no backend.
const AT_ONCE: Duration = Duration::from_millis(100);
/// The time limit of a call that waits for `list_timeout`, plus the time for an answer.
const IN_TIME: Duration = Duration::from_millis(2100);

fn row(rpc: &str) -> &'static Row {
    ROWS.iter().find(|row| row.name == rpc).unwrap()
}

fn of(patience: Patience) -> impl Iterator<Item = &'static IdCall> {
    ID_CALLS
        .iter()
        .filter(move |call| row(call.rpc).patience == patience)
}

/// A pod with a running container on kata. No client has asked for their statuses, so criswitch has no kept status.
async fn with_pod() -> (Rig, String, String) {
    let rig = runc_and_kata().await;
    let (pod, container) = rig.run("kata", "web").await;
    rig.pods().await.unwrap();
    rig.containers().await.unwrap();
    (rig, pod, container)
}

async fn timed(call: impl Future<Output = RawReply>) -> (RawReply, Duration) {
    let begun = Instant::now();
    (call.await, begun.elapsed())
}

#[track_caller]
fn is_rejected(reply: &RawReply, rig: &Rig, rpc: &str) {
    let text = text_of(reply);
    assert_eq!(reply.code(), Code::Unavailable, "{rpc}: {text}");
    let socket = rig.sim("kata").socket().display().to_string();
    for word in [
        "handler \"kata\"",
        "backend \"kata\"",
        &socket,
        "no answer for",
    ] {
        assert!(text.contains(word), "{rpc}: {text} lacks {word}");
    }
}

#[tokio::test]
async fn a_new_call_for_an_item_of_an_unresponsive_backend_fails_at_once_and_is_not_sent() {
    let (rig, pod, container) = with_pod().await;
    hung(&rig, "kata").await;
    for call in ID_CALLS {
        let sent = rig.sim("kata").calls(call.rpc).len();
        let (reply, took) = timed(call.send(&rig, call.pick(&pod, &container))).await;
        is_rejected(&reply, &rig, call.rpc);
        assert!(took < AT_ONCE, "{}: {took:?}", call.rpc);
        assert_eq!(rig.sim("kata").calls(call.rpc).len(), sent, "{}", call.rpc);
    }
    let rejected = rig.try_run("kata", "new").await.unwrap_err();
    assert!(rejected.message().contains("no answer for"), "{rejected}");
    assert!(rig.sim("kata").calls("RunPodSandbox").len() == 1);
    wake(rig.sim("kata"));
    until_state(&rig, "kata", "ready").await;
    rig.run_pod("kata", "new").await;
}

#[tokio::test]
async fn a_call_that_changes_something_ends_after_a_minute_and_a_creation_with_its_client() {
    let (rig, pod, container) = with_pod().await;
    let kata = rig.sim("kata");
    hang(kata);
    let begun = Instant::now();
    let mut changes = tokio::task::JoinSet::new();
    for call in of(Patience::Change) {
        let client = (*rig).raw().await;
        let (path, request) = (path(call.rpc), call.request(call.pick(&pod, &container)));
        changes.spawn(async move { (call.rpc, client.call(&path, &[], request).await) });
    }
    let client = (*rig).raw().await;
    let request = frame(&cri::RunPodSandboxRequest {
        config: Some(pod_config("new")),
        runtime_handler: "kata".to_owned(),
    });
    let deadline = [("grpc-timeout", "100S")];
    let path = path("RunPodSandbox");
    let create = tokio::spawn(async move { client.call(&path, &deadline, request).await });
    until_state(&rig, "kata", "unresponsive").await;
    while let Some(ended) = changes.join_next().await {
        let (rpc, reply) = ended.unwrap();
        is_rejected(&reply, &rig, rpc);
        assert!(
            begun.elapsed() >= CHANGE_LIMIT,
            "{rpc}: {:?}",
            begun.elapsed()
        );
        assert!(
            begun.elapsed() < CHANGE_LIMIT + Duration::from_secs(12),
            "{rpc}"
        );
    }
    let created = create.await.unwrap();
    let text = text_of(&created);
    assert_eq!(created.code(), Code::DeadlineExceeded, "{text}");
    for word in ["handler \"kata\"", "backend \"kata\"", "deadline of 100s"] {
        assert!(text.contains(word), "{text} lacks {word}");
    }
}

/// Waits until a call of this RPC is held, also beside calls of other RPCs.
async fn until_held(sim: &Sim, rpc: &str) {
    sim.until(|journal| journal.held.iter().any(|held| held == rpc))
        .await;
}

/// The test holds these calls one after the other, because criswitch makes other calls before them.
#[tokio::test]
async fn an_image_call_that_changes_something_ends_a_minute_after_its_backend_became_unresponsive()
{
    let (rig, ..) = with_pod().await;
    let kata = rig.sim("kata");
    kata.add_image("unused:1");
    let calls = [
        (
            "RemoveImage",
            frame(&cri::RemoveImageRequest {
                image: Some(image_spec("unused:1")),
            }),
        ),
        (
            "PullImage",
            frame(&cri::PullImageRequest {
                image: Some(image_spec("pulled:1")),
                auth: None,
                sandbox_config: Some(pod_config("web")),
            }),
        ),
        (
            "PullSecurityProfile",
            frame(&cri::PullSecurityProfileRequest {
                image: Some(image_spec("registry.example/profile@sha256:1")),
                sandbox_config: Some(pod_config("web")),
                ..Default::default()
            }),
        ),
    ];
    let mut changes = tokio::task::JoinSet::new();
    for (rpc, request) in calls {
        kata.hold(rpc);
        let (client, path) = ((*rig).raw().await, row(rpc).path());
        changes.spawn(async move { (rpc, client.call(&path, &[], request).await) });
        until_held(kata, rpc).await;
    }
    hang(kata);
    until_state(&rig, "kata", "unresponsive").await;
    let begun = Instant::now();
    while let Some(ended) = changes.join_next().await {
        let (rpc, reply) = ended.unwrap();
        let (text, took) = (text_of(&reply), begun.elapsed());
        assert_eq!(reply.code(), Code::Unavailable, "{rpc}: {text}");
        assert!(text.contains("backend \"kata\""), "{rpc}: {text}");
        let in_time = CHANGE_LIMIT - AT_ONCE..CHANGE_LIMIT + IN_TIME;
        assert!(in_time.contains(&took), "{rpc}: {took:?}");
    }
}

#[tokio::test]
async fn a_read_in_flight_ends_as_soon_as_its_backend_is_unresponsive() {
    let (rig, pod, container) = with_pod().await;
    let kata = rig.sim("kata");
    let mut reads = tokio::task::JoinSet::new();
    for call in of(Patience::Read) {
        kata.hold(call.rpc);
        let client = (*rig).raw().await;
        let (path, request) = (path(call.rpc), call.request(call.pick(&pod, &container)));
        reads.spawn(async move { (call.rpc, client.call(&path, &[], request).await) });
        until_held(kata, call.rpc).await;
    }
    hang(kata);
    until_state(&rig, "kata", "unresponsive").await;
    let begun = Instant::now();
    let mut ended = Vec::new();
    while let Some(read) = reads.join_next().await {
        let (rpc, reply) = read.unwrap();
        is_rejected(&reply, &rig, rpc);
        assert!(begun.elapsed() < AT_ONCE, "{rpc}: {:?}", begun.elapsed());
        ended.push(rpc);
    }
    ended.sort_unstable();
    assert_eq!(ended, ["Attach", "Exec", "PortForward"]);
}

#[tokio::test]
async fn a_stall_of_six_seconds_ends_no_call_that_changes_something() {
    let (rig, pod, container) = with_pod().await;
    let kata = rig.sim("kata");
    hang(kata);
    let mut changes = tokio::task::JoinSet::new();
    for call in of(Patience::Change).filter(|call| !row(call.rpc).removes()) {
        let client = (*rig).raw().await;
        let (path, request) = (path(call.rpc), call.request(call.pick(&pod, &container)));
        changes.spawn(async move { (call.rpc, client.call(&path, &[], request).await) });
    }
    until_state(&rig, "kata", "unresponsive").await;
    wake(kata);
    while let Some(ended) = changes.join_next().await {
        let (rpc, reply) = ended.unwrap();
        assert_ne!(
            reply.code(),
            Code::Unavailable,
            "{rpc}: {}",
            text_of(&reply)
        );
    }
}

/// Only one RPC of the backend hangs. The backend answers all others.
#[tokio::test]
async fn a_short_read_that_hangs_alone_is_waited_for_once_and_heals_without_a_client() {
    for call in of(Patience::Short) {
        let (rig, pod, container) = with_pod().await;
        let id = call.pick(&pod, &container);
        let kata = rig.sim("kata");
        kata.hold(call.rpc);
        let (first, took) = timed(call.send(&rig, id)).await;
        assert_eq!(
            first.code(),
            Code::Unavailable,
            "{}: {}",
            call.rpc,
            text_of(&first)
        );
        assert!(took < IN_TIME, "{}: {took:?}", call.rpc);
        let (next, took) = timed(call.send(&rig, id)).await;
        assert_eq!(next.code(), Code::Unavailable, "{}", call.rpc);
        assert!(took < AT_ONCE, "{}: {took:?}", call.rpc);
        let text = text_of(&next);
        assert!(
            text.contains("handler \"kata\"") && text.contains(call.rpc),
            "{text}"
        );
        let shown = state_of(&rig, "kata").await;
        assert_eq!(shown["state"], "ready", "{shown}");
        assert_eq!(shown["failingRpcs"][0]["rpc"], call.rpc, "{shown}");
        let status = crate::faults::status(&rig).await;
        let message = crate::faults::backends_ready(&status);
        assert!(
            message.contains(&format!("{} has had no answer", call.rpc)),
            "{message}"
        );
        kata.release(call.rpc);
        wait::until(async || state_of(&rig, "kata").await["failingRpcs"][0].is_null()).await;
        assert_ne!(
            call.send(&rig, id).await.code(),
            Code::Unavailable,
            "{}",
            call.rpc
        );
    }
}

/// Only the status of one container hangs, as in CRI-O with a lock of this container.
#[tokio::test]
async fn a_container_whose_status_hangs_delays_no_other_container_of_its_backend() {
    let (rig, _, container) = with_pod().await;
    let (_, other) = rig.run("kata", "other").await;
    let status = ID_CALLS
        .iter()
        .find(|call| call.rpc == "ContainerStatus")
        .unwrap();
    rig.sim("kata").hold_of("ContainerStatus", &container);
    assert_eq!(
        status.send(&rig, &container).await.code(),
        Code::Unavailable
    );
    wait::until(async || status.send(&rig, &other).await.code() == Code::Ok).await;
    let (reply, took) = timed(status.send(&rig, &container)).await;
    assert_eq!(reply.code(), Code::Unavailable);
    assert!(took < AT_ONCE, "{took:?}");
}

/// A request of the row that creates a pod on kata, or a container in `pod`.
fn creation(row: &Row, pod: &str) -> Bytes {
    let config = Some(pod_config("new"));
    match row.name {
        "RunPodSandbox" => frame(&cri::RunPodSandboxRequest {
            config,
            runtime_handler: "kata".to_owned(),
        }),
        "CreateContainer" => frame(&cri::CreateContainerRequest {
            pod_sandbox_id: pod.to_owned(),
            config: Some(container_config("new", IMAGE)),
            sandbox_config: None,
        }),
        "RestorePod" => frame(&cri::RestorePodRequest {
            config,
            runtime_handler: "kata".to_owned(),
            ..Default::default()
        }),
        name => panic!("no request of {name}"),
    }
}

#[tokio::test]
async fn a_creation_ends_when_its_backend_is_forgotten() {
    for row in ROWS.iter().filter(|row| row.patience == Patience::Create) {
        let (rig, pod, _) = with_pod().await;
        hang(rig.sim("kata"));
        let (client, path) = ((*rig).raw().await, path(row.name));
        let create = client.call(&path, &[], creation(row, &pod));
        let forgotten = async {
            until_state(&rig, "kata", "unresponsive").await;
            let request = ForgetRequest {
                backend: "kata".to_owned(),
            };
            rig.admin().forget(request).await.unwrap();
        };
        let (created, ()) = tokio::join!(create, forgotten);
        let text = text_of(&created);
        assert_eq!(created.code(), Code::Unavailable, "{}: {text}", row.name);
        assert!(text.contains("was removed"), "{}: {text}", row.name);
        assert!(rig.pods().await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn a_pod_whose_creation_was_given_up_is_not_missing_in_a_cached_list_by_its_uid() {
    let (rig, ..) = with_pod().await;
    let kata = rig.sim("kata");
    kata.hold_reply("RunPodSandbox");
    let create = tokio::time::timeout(Duration::from_secs(1), rig.try_run("kata", "new"));
    let (given_up, ()) = tokio::join!(create, kata.until_done("RunPodSandbox"));
    given_up.unwrap_err();
    kata.fail("ListPodSandbox", tonic::Status::unknown("busy"));
    let uid = pod_config("new").metadata.unwrap().uid;
    let lists = crate::calls::narrowed_to("no", "no", &uid);
    let by_uid = |list: &&crate::calls::Narrowed| {
        list.rpc == "ListPodSandbox" && list.by == crate::calls::By::Uid
    };
    let list = lists.iter().find(by_uid).unwrap();
    let reply = crate::calls::send(&rig, list.rpc, list.request.clone()).await;
    assert_ne!(reply.code(), Code::Ok, "the list lacks the pod");
    assert_eq!(
        names(&rig.pods().await.unwrap()),
        ["web"],
        "a list of all is served"
    );
}

/// If a command of an operator fails once, the resulting alert must not stay for ever.
#[tokio::test]
async fn a_call_that_failed_once_is_asked_again_without_a_client() {
    let (rig, ..) = with_pod().await;
    let kata = rig.sim("kata");
    kata.fail("ListPodSandboxStats", tonic::Status::unknown("busy"));
    crate::calls::send(&rig, "ListPodSandboxStats", crate::support::frame_raw(b"")).await;
    kata.heal("ListPodSandboxStats");
    let failing = state_of(&rig, "kata").await["failingRpcs"][0].clone();
    assert_eq!(failing["rpc"], "ListPodSandboxStats", "{failing}");
    later(Duration::from_secs(31)).await;
    wait::until(async || state_of(&rig, "kata").await["failingRpcs"][0].is_null()).await;
}
