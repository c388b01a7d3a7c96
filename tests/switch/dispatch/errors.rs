//! Errors that clients see: a backend's status unchanged, or a status of criswitch, which names the cause.

use std::collections::HashMap;

use bytes::Bytes;
use criswitch_cri::codec::cri;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use crate::support::{Rig, Sim, frame, image_spec, pod_config};

const RUNTIME: &str = "/runtime.v1.RuntimeService";
/// The length of an error text that criswitch must forward uncut. Runtimes put whole command outputs into errors.
const LONG_TEXT_BYTES: usize = 16 << 10;

async fn runc_and_kata() -> Rig {
    connected([Sim::new("runc"), Sim::new("kata")]).await
}

/// Lists every backend first, so that afterwards only the client's call can fail.
async fn connected(sims: impl IntoIterator<Item = Sim>) -> Rig {
    let rig = Rig::start(sims).await;
    rig.pods().await.unwrap();
    rig
}

/// A status with a text, details and metadata.
fn full_status(text: &str) -> Status {
    let mut metadata = MetadataMap::new();
    metadata.insert("x-shim", "pid 4711".parse().unwrap());
    let details = Bytes::from_static(b"\x08\x09details \xff");
    Status::with_details_and_metadata(Code::ResourceExhausted, text, details, metadata)
}

fn pod_status(id: &str) -> Bytes {
    frame(&cri::PodSandboxStatusRequest {
        pod_sandbox_id: id.to_owned(),
        verbose: false,
    })
}

fn restore(handler: &str) -> cri::RestorePodRequest {
    cri::RestorePodRequest {
        checkpoint_path: "/var/lib/checkpoint.tar".to_owned(),
        config: Some(pod_config("web")),
        runtime_handler: handler.to_owned(),
        options: HashMap::new(),
        container_configs: Vec::new(),
    }
}

/// `kubectl describe pod` shows only the beginning of a long event.
#[tokio::test]
async fn the_error_of_a_new_pod_names_handler_backend_and_cause_in_its_first_200_characters() {
    let rig = runc_and_kata().await;
    rig.sim("kata").stop().await;
    let request = restore("kata");
    let errors = [
        (*rig).run_pod("kata", "web").await.unwrap_err(),
        rig.runtime().restore_pod(request).await.unwrap_err(),
    ];
    for error in errors {
        let begin: String = error.message().chars().take(200).collect();
        assert!(
            begin.starts_with("runtime handler \"kata\": backend \"kata\" ("),
            "{begin}"
        );
        assert!(begin.contains("cannot connect"), "{begin}");
    }
}

#[tokio::test]
async fn the_error_for_an_unknown_handler_lists_the_known_handlers() {
    let rig = runc_and_kata().await;
    let rejected = (*rig).run_pod("gvisor", "web").await.unwrap_err();
    let restored = rig.runtime().restore_pod(restore("gvisor")).await;
    for rejected in [rejected, restored.unwrap_err()] {
        assert_eq!(rejected.code(), Code::InvalidArgument);
        let (said, known) = rejected.message().split_once("configured").unwrap();
        assert_eq!(said, "no runtime for \"gvisor\" is ");
        assert!(
            known.contains("runc") && known.contains("kata"),
            "{rejected}"
        );
    }
    for sim in &rig.sims {
        assert!(sim.calls("RunPodSandbox").is_empty());
        assert!(sim.calls("RestorePod").is_empty());
    }
}

#[tokio::test]
async fn handler_names_are_matched_as_a_whole_and_case_sensitively() {
    let rig = runc_and_kata().await;
    for handler in ["Kata", "kat", "kata ", "kata-fc", "../kata"] {
        let rejected = (*rig).run_pod(handler, "web").await.unwrap_err();
        assert_eq!(rejected.code(), Code::InvalidArgument, "{handler:?}");
        assert!(rejected.message().contains(handler), "{rejected}");
    }
}

#[tokio::test]
async fn a_backends_error_passes_unchanged_with_its_details_and_trailers() {
    let rig = runc_and_kata().await;
    let pod = rig.run_pod("kata", "web").await;
    let text = "SignatureValidationFailed: 100 % of \u{e9}t\u{e9}\nline two";
    rig.sim("kata").fail("PodSandboxStatus", full_status(text));
    let path = format!("{RUNTIME}/PodSandboxStatus");
    let through = rig.raw(&path, &[], pod_status(&pod)).await;
    let direct = crate::support::RawClient::connect(&rig.sim("kata").socket())
        .await
        .call(&path, &[], pod_status(&pod))
        .await;
    assert_eq!(through.code(), Code::ResourceExhausted);
    assert_eq!(through.text(), direct.text());
    assert_eq!(through.body, direct.body);
    // hyper's server adds a date to the simulated runtime's reply, and criswitch forwards this date.
    assert_eq!(
        without_date(&through.headers),
        without_date(&direct.headers)
    );
    assert_eq!(through.trailers, direct.trailers);
    let mut all = through.headers.clone();
    all.extend(through.trailers.clone());
    assert_eq!(all["x-shim"], "pid 4711");
    assert!(all.contains_key("grpc-status-details-bin"));
}

fn without_date(headers: &http::HeaderMap) -> http::HeaderMap {
    let mut headers = headers.clone();
    headers.remove("date");
    headers
}

#[tokio::test]
async fn a_backends_error_passes_unchanged_for_a_call_that_criswitch_learns_from() {
    let rig = runc_and_kata().await;
    let text = "ImageVolumeMountFailed: no space left on device";
    rig.sim("kata").fail("RunPodSandbox", full_status(text));
    let failed = (*rig).run_pod("kata", "web").await.unwrap_err();
    assert_eq!(failed.code(), Code::ResourceExhausted);
    assert_eq!(failed.message(), text);
    assert_eq!(failed.details(), b"\x08\x09details \xff");
    assert_eq!(failed.metadata().get("x-shim").unwrap(), "pid 4711");
    assert_eq!(rig.sim("kata").calls("RunPodSandbox").len(), 1);
}

#[tokio::test]
async fn a_very_long_error_text_of_a_backend_passes_whole() {
    let rig = runc_and_kata().await;
    let (pod, container) = rig.run("kata", "web").await;
    let text = "x".repeat(LONG_TEXT_BYTES);
    rig.sim("kata")
        .fail("StopContainer", Status::unknown(text.clone()));
    rig.sim("kata")
        .fail("CreateContainer", Status::unknown(text.clone()));
    let stop = frame(&cri::StopContainerRequest {
        container_id: container,
        timeout: 0,
    });
    let create = frame(&cri::CreateContainerRequest {
        pod_sandbox_id: pod,
        ..Default::default()
    });
    for (rpc, body) in [("StopContainer", stop), ("CreateContainer", create)] {
        let failed = rig.raw(&format!("{RUNTIME}/{rpc}"), &[], body).await;
        assert_eq!(failed.code(), Code::Unknown);
        assert!(
            failed.text() == text,
            "{rpc}: {} bytes",
            failed.text().len()
        );
    }
}

#[tokio::test]
async fn the_error_of_a_merged_call_has_the_backends_text_first_and_then_names_the_backend() {
    let rig = runc_and_kata().await;
    let text = "RegistryUnavailable: 100 % of \u{e9}t\u{e9}\nline two";
    let socket = rig.sim("runc").socket().display().to_string();
    // The error of a list passes if no backend has an answer that can be used.
    rig.sim("kata")
        .fail("ListPodSandbox", Status::internal("later"));
    rig.sim("runc").fail("ListPodSandbox", full_status(text));
    rig.sim("runc").fail("PullImage", full_status(text));
    let listed = rig.pods().await.unwrap_err();
    let pull = cri::PullImageRequest {
        image: Some(image_spec("app:1")),
        ..Default::default()
    };
    let pulled = rig.images().pull_image(pull).await.unwrap_err();
    for failed in [listed, pulled] {
        assert_eq!(failed.code(), Code::ResourceExhausted);
        let behind = failed
            .message()
            .strip_prefix(text)
            .unwrap_or_else(|| panic!("{failed}"));
        assert!(
            behind.contains("runc") && behind.contains(&socket),
            "{behind}"
        );
        assert!(failed.details().is_empty(), "grpc-go would show their text");
        assert_eq!(failed.metadata().get("x-shim").unwrap(), "pid 4711");
    }
}

#[tokio::test]
async fn if_all_backends_fail_the_error_is_that_of_the_first_in_the_routing_table() {
    let rig = connected([Sim::new("runc"), Sim::new("kata"), Sim::new("gvisor")]).await;
    for (name, text) in [("gvisor", "late"), ("kata", "later"), ("runc", "early")] {
        rig.sim(name).fail("ListPodSandbox", Status::internal(text));
    }
    let failed = rig.pods().await.unwrap_err();
    assert!(failed.message().starts_with("early"), "{failed}");
}

#[tokio::test]
async fn an_rpc_that_the_owner_lacks_is_unimplemented() {
    let kata = Sim::new("kata").lacks(["UpdatePodSandboxResources"]);
    let rig = Rig::start([Sim::new("runc"), kata]).await;
    let pod_sandbox_id = rig.run_pod("kata", "web").await;
    let request = cri::UpdatePodSandboxResourcesRequest {
        pod_sandbox_id,
        ..Default::default()
    };
    let rejected = rig.runtime().update_pod_sandbox_resources(request).await;
    assert_eq!(rejected.unwrap_err().code(), Code::Unimplemented);
}
