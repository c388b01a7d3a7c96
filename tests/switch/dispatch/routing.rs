//! criswitch routes pods and containers by handler and owner, and forwards requests and replies unchanged.

use criswitch_cri::codec::cri;
use tonic::Code;

use crate::support::{Rig, Sim, frame_raw};

async fn runc_and_kata() -> Rig {
    Rig::start([Sim::new("runc"), Sim::new("kata")]).await
}

#[tokio::test]
async fn a_pod_and_its_containers_go_to_the_backend_of_its_handler() {
    let rig = runc_and_kata().await;
    let (plain, _) = rig.run("runc", "plain").await;
    let (boxed, container) = rig.run("kata", "boxed").await;
    assert_eq!(rig.sim("runc").pods()[0].id, plain);
    assert_eq!(rig.sim("kata").pods()[0].id, boxed);
    assert_eq!(rig.sim("kata").containers()[0].id, container);
    assert_eq!(rig.sim("runc").containers().len(), 1);
}

#[tokio::test]
async fn a_pod_without_a_handler_runs_with_the_default_handlers_name_at_its_backend() {
    let text = |directory: &str| {
        format!(
            "default_handler = \"strong\"\n[handlers]\nstrong = {{ socket = \"{directory}/kata.sock\", handler = \"kata-fc\" }}\n\
             runc = \"{directory}/runc.sock\"\n"
        )
    };
    let sims = [
        Sim::new("runc"),
        Sim::new("kata").handlers(["kata", "kata-fc"]),
    ];
    let rig = Rig::with_config(sims, text).await;
    rig.run_pod("", "web").await;
    assert_eq!(rig.sim("kata").pods()[0].runtime_handler, "kata-fc");
    assert!(rig.sim("runc").pods().is_empty());
}

#[tokio::test]
async fn lists_have_the_items_of_every_backend_with_the_default_first() {
    let rig = runc_and_kata().await;
    let (boxed, in_box) = rig.run("kata", "boxed").await;
    let (plain, in_plain) = rig.run("runc", "plain").await;
    let pods: Vec<_> = rig
        .pods()
        .await
        .unwrap()
        .into_iter()
        .map(|pod| pod.id)
        .collect();
    assert_eq!(pods, [plain, boxed]);
    let containers = rig.containers().await.unwrap().into_iter();
    assert_eq!(
        containers.map(|c| c.id).collect::<Vec<_>>(),
        [in_plain, in_box]
    );
}

#[tokio::test]
async fn an_unknown_handler_is_rejected_by_name_and_creates_nothing() {
    let rig = runc_and_kata().await;
    let rejected = (*rig).run_pod("gvisor", "web").await.unwrap_err();
    assert_eq!(rejected.code(), Code::InvalidArgument);
    assert!(
        rejected
            .message()
            .contains("no runtime for \"gvisor\" is configured"),
        "{rejected}"
    );
    for sim in &rig.sims {
        assert!(sim.calls("RunPodSandbox").is_empty());
    }
}

#[tokio::test]
async fn a_request_arrives_byte_for_byte_with_its_metadata() {
    let rig = runc_and_kata().await;
    let pod = rig.run_pod("kata", "web").await;
    // A PodSandboxStatusRequest for the pod, with a field number that no CRI uses.
    let body = frame_raw(&[b"\x0a\x40", pod.as_bytes(), b"\xc2\xb8\x02\x03new"].concat());
    let headers = [("traceparent", "00-abc-01"), ("x-any", "thing")];
    let path = "/runtime.v1.RuntimeService/PodSandboxStatus";
    let reply = rig.raw(path, &headers, body.clone()).await;
    assert_eq!(reply.code(), Code::Ok, "{}", reply.text());
    let calls = rig.sim("kata").calls("PodSandboxStatus");
    assert_eq!(calls[0].body, body);
    assert_eq!(calls[0].header("traceparent"), Some("00-abc-01"));
    assert_eq!(calls[0].header("x-any"), Some("thing"));
    assert!(rig.sim("runc").calls("PodSandboxStatus").is_empty());
}

#[tokio::test]
async fn a_reply_passes_byte_for_byte_whatever_it_contains() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata").newer()]).await;
    let pod = rig.run_pod("kata", "web").await;
    let body = frame_raw(&[b"\x0a\x40", pod.as_bytes()].concat());
    let path = "/runtime.v1.RuntimeService/PodSandboxStatus";
    let through = rig.raw(path, &[], body.clone()).await;
    let direct = crate::support::RawClient::connect(&rig.sim("kata").socket())
        .await
        .call(path, &[], body)
        .await;
    assert!(direct.body.windows(4).any(|w| w == b"caf\xe9"));
    assert_eq!(through.body, direct.body);
}

#[tokio::test]
async fn a_call_cancelled_by_its_client_ends_at_the_backend_too() {
    let rig = runc_and_kata().await;
    let (_, container) = rig.run("kata", "web").await;
    let kata = rig.sim("kata");
    kata.hold("StopContainer");
    tokio::select! {
        _ = rig.stop(&container) => panic!("answered while held"),
        () = kata.until_held("StopContainer") => {}
    }
    kata.until(|journal| journal.cancelled == ["StopContainer"])
        .await;
}

#[tokio::test]
async fn pods_keep_their_owner_across_a_restart_of_criswitch() {
    let mut rig = runc_and_kata().await;
    let (pod, container) = rig.run("kata", "web").await;
    rig.restart_switch().await;
    let mut runtime = rig.runtime();
    let exec = runtime.exec_sync(cri::ExecSyncRequest {
        container_id: container,
        cmd: vec!["true".to_owned()],
        timeout: 1,
    });
    assert_eq!(exec.await.unwrap().into_inner().stdout, b"true\n");
    rig.stop_pod(&pod).await.unwrap();
    rig.remove_pod(&pod).await.unwrap();
    assert!(rig.sim("kata").pods().is_empty());
}
