//! Deadlines: criswitch passes a deadline to the only backend of a call, and enforces it whatever the backends do.

use bytes::Bytes;
use criswitch_cri::codec::cri;
use tonic::Code;

use crate::faults::state_of;
use crate::support::{RawReply, Rig, Sim, frame, frame_raw, image_spec, pod_config};

const RUNTIME: &str = "/runtime.v1.RuntimeService";
/// A tenth of a second in gRPC's format.
const SHORT: (&str, &str) = ("grpc-timeout", "100m");
const LONG: (&str, &str) = ("grpc-timeout", "37S");

async fn runc_and_kata() -> Rig {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    rig.pods().await.unwrap();
    rig
}

async fn call(rig: &Rig, rpc: &str, timeout: (&str, &str), body: Bytes) -> RawReply {
    rig.raw(&format!("{RUNTIME}/{rpc}"), &[timeout], body).await
}

/// Asserts DeadlineExceeded with the RPC's name, and that the call at the backend has ended.
async fn late(rig: &Rig, rpc: &str, reply: RawReply) {
    assert_eq!(reply.code(), Code::DeadlineExceeded, "{}", reply.text());
    assert!(reply.text().contains(rpc), "{}", reply.text());
    let given_up = |journal: &crate::support::Journal| {
        journal.held.is_empty() && journal.cancelled.iter().any(|held| held == rpc)
    };
    rig.sim("kata").until(given_up).await;
}

fn by_id(id: &str) -> Bytes {
    frame(&cri::StopContainerRequest {
        container_id: id.to_owned(),
        timeout: 0,
    })
}

fn run_pod() -> Bytes {
    frame(&cri::RunPodSandboxRequest {
        config: Some(pod_config("web")),
        runtime_handler: "kata".to_owned(),
    })
}

#[tokio::test]
async fn the_only_backend_of_a_call_receives_the_clients_deadline() {
    let rig = runc_and_kata().await;
    let (_, container) = rig.run("kata", "other").await;
    for (rpc, body) in [
        ("StopContainer", by_id(&container)),
        ("RunPodSandbox", run_pod()),
    ] {
        let reply = call(&rig, rpc, LONG, body).await;
        assert_eq!(reply.code(), Code::Ok, "{rpc}: {}", reply.text());
        let got = rig.sim("kata").calls(rpc).pop().unwrap();
        assert_eq!(got.header(LONG.0), Some(LONG.1), "{rpc}");
    }
}

#[tokio::test]
async fn a_call_past_its_deadline_is_deadline_exceeded_and_ends_at_the_backend() {
    let rig = runc_and_kata().await;
    let (_, container) = rig.run("kata", "other").await;
    for (rpc, body) in [
        // criswitch forwards the reply to `StopContainer` unread. It learns from the reply to `RunPodSandbox`.
        ("StopContainer", by_id(&container)),
        ("RunPodSandbox", run_pod()),
    ] {
        rig.sim("kata").hold(rpc);
        late(&rig, rpc, call(&rig, rpc, SHORT, body).await).await;
    }
}

#[tokio::test]
async fn a_list_delayed_by_one_backend_is_served_from_cache_before_its_clients_deadline() {
    let rig = runc_and_kata().await;
    rig.run("kata", "web").await;
    for rpc in ["ListPodSandbox", "ListContainerStats", "StreamContainers"] {
        call(&rig, rpc, LONG, frame_raw(b"")).await;
        rig.sim("kata").hold(rpc);
        let reply = call(&rig, rpc, SHORT, frame_raw(b"")).await;
        assert_eq!(reply.code(), Code::Ok, "{rpc}: {}", reply.text());
        assert!(!reply.messages().concat().is_empty(), "{rpc}");
        let kata = state_of(&rig, "kata").await;
        // The deadline of a client says nothing about the backend.
        assert!(
            kata["failingRpcs"].is_null() || kata["failingRpcs"] == serde_json::json!([]),
            "{kata}"
        );
    }
}

#[tokio::test]
async fn a_stream_of_one_backend_ends_at_its_deadline() {
    let rig = Rig::start([Sim::new("kata")]).await;
    rig.pods().await.unwrap();
    // The backend never ends this stream.
    let reply = call(&rig, "GetContainerEvents", SHORT, frame_raw(b"")).await;
    assert_eq!(reply.code(), Code::DeadlineExceeded, "{}", reply.text());
}

#[tokio::test]
async fn a_pull_delayed_by_one_backend_is_deadline_exceeded() {
    let rig = runc_and_kata().await;
    rig.sim("kata").hold("PullImage");
    let body = frame(&cri::PullImageRequest {
        image: Some(image_spec("app:1")),
        ..Default::default()
    });
    let path = "/runtime.v1.ImageService/PullImage";
    let reply = rig.raw(path, &[SHORT], body).await;
    late(&rig, "PullImage", reply).await;
}

#[tokio::test]
async fn a_call_for_an_unknown_id_ends_before_its_deadline_while_a_backend_does_not_list() {
    let rig = runc_and_kata().await;
    let (_, container) = rig.run("runc", "web").await;
    rig.sim("kata").hold("ListPodSandbox");
    let reply = call(&rig, "StopContainer", SHORT, by_id("nobodys")).await;
    assert_eq!(reply.code(), Code::Unavailable, "{}", reply.text());
    let text = crate::calls::text_of(&reply);
    assert!(text.contains("before the client's deadline"), "{text}");
    let short = call(&rig, "ContainerStatus", SHORT, by_id(&container[..12])).await;
    assert_eq!(short.code(), Code::Ok, "{}", short.text());
}

/// `crictl rmi` and `crictl metricsp` wait for two seconds. An earlier answer shows that the backend has
/// `PodSandboxStats`.
#[tokio::test]
async fn a_call_that_first_asks_a_backend_that_hangs_ends_before_its_deadline() {
    let stored = cri::Image {
        id: "sha256:1".to_owned(),
        repo_tags: vec!["registry.k8s.io/app:1".to_owned()],
        ..Default::default()
    };
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata").stores(stored)]).await;
    rig.pods().await.unwrap();
    let image = frame(&cri::RemoveImageRequest {
        image: Some(image_spec("registry.k8s.io/app:1")),
    });
    let id = frame(&cri::PodSandboxStatsRequest::default());
    for (held, path, body, code) in [
        (
            "ListContainers",
            "ImageService/RemoveImage",
            image,
            Code::Unavailable,
        ),
        (
            "ListMetricDescriptors",
            "RuntimeService/ListPodSandboxMetrics",
            frame_raw(b""),
            Code::Ok,
        ),
        (
            "PodSandboxStats",
            "RuntimeService/PodSandboxStats",
            id,
            Code::InvalidArgument,
        ),
    ] {
        rig.sim("kata").hold(held);
        let reply = rig
            .raw(&format!("/runtime.v1.{path}"), &[SHORT], body)
            .await;
        assert_eq!(reply.code(), code, "{path}: {}", reply.text());
        let kata = state_of(&rig, "kata").await;
        assert!(
            kata["failingRpcs"].is_null() || kata["failingRpcs"] == serde_json::json!([]),
            "{kata}"
        );
    }
}

#[tokio::test]
async fn a_call_to_a_backend_that_never_becomes_ready_is_deadline_exceeded() {
    let kata = Sim::new("kata");
    kata.hold("Version");
    let rig = Rig::start([Sim::new("runc"), kata]).await;
    let reply = call(&rig, "RunPodSandbox", SHORT, run_pod()).await;
    assert_eq!(reply.code(), Code::DeadlineExceeded, "{}", reply.text());
    assert!(rig.sim("kata").calls("RunPodSandbox").is_empty());
}

#[tokio::test]
async fn deadline_exceeded_names_the_backend_and_the_handler_of_a_new_pod() {
    let rig = runc_and_kata().await;
    rig.sim("kata").hold("RunPodSandbox");
    let reply = call(&rig, "RunPodSandbox", SHORT, run_pod()).await;
    assert_eq!(reply.code(), Code::DeadlineExceeded, "{}", reply.text());
    let text = crate::calls::text_of(&reply);
    assert!(
        text.contains("backend \"kata\"") && text.contains("handler \"kata\""),
        "{text}"
    );
}

/// In the second round, the call waits for the connection to its owner.
#[tokio::test]
async fn deadline_exceeded_names_the_backend_and_the_handler_of_a_call_by_id() {
    let mut rig = runc_and_kata().await;
    let (_, container) = rig.run("kata", "web").await;
    rig.sim("kata").hold("StopContainer");
    for is_restarted in [false, true] {
        if is_restarted {
            rig.stop_switch().await;
            rig.sim("kata").hold("Version");
            rig.restart_switch().await;
        }
        let reply = call(&rig, "StopContainer", SHORT, by_id(&container)).await;
        assert_eq!(reply.code(), Code::DeadlineExceeded, "{}", reply.text());
        let text = crate::calls::text_of(&reply);
        assert!(
            text.contains("backend \"kata\"") && text.contains("handler \"kata\""),
            "{text}"
        );
    }
}

/// A backend that gets an invalid timeout resets the stream, which would look like a fault of the backend.
#[tokio::test]
async fn an_invalid_timeout_is_rejected_and_is_not_a_fault_of_a_backend() {
    let rig = crate::faults::runc_and_kata().await;
    rig.pods().await.unwrap();
    for timeout in ["", "1", "S", "-1S", "123456789S", "1h"] {
        let reply = call(
            &rig,
            "ListPodSandbox",
            ("grpc-timeout", timeout),
            frame_raw(b""),
        )
        .await;
        assert_eq!(reply.code(), Code::InvalidArgument, "{timeout}");
        let text = crate::calls::text_of(&reply);
        assert!(text.contains("grpc-timeout"), "{text}");
    }
    let twice = [("grpc-timeout", "10S"), ("grpc-timeout", "1h")];
    let reply = rig
        .raw(
            &crate::calls::path("ListPodSandbox"),
            &twice,
            frame_raw(b""),
        )
        .await;
    assert_eq!(reply.code(), Code::InvalidArgument, "{}", reply.text());
    let status = crate::faults::status(&rig).await;
    assert_eq!(crate::faults::backends_ready(&status), "");
}
