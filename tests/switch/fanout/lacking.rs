//! Runtimes older than the CRI of criswitch: the effect of each missing RPC on merged replies.

use std::time::Duration;

use criswitch_cri::codec::cri;
use criswitch_cri::rpc::ROWS;
use tonic::{Code, Status};

use crate::calls::{ID_CALLS, send};
use crate::faults::{backends_ready, node, state_of, status, until_state};
use crate::support::clock::later;
use crate::support::{RawReply, Rig, Sim, frame_raw};
use crate::wait;

/// The default backend, which has every RPC, and an old runtime that lacks `rpc`.
async fn with_an_old_one(rpc: &str) -> Rig {
    Rig::start([Sim::new("runc"), Sim::new("old").lacks([rpc])]).await
}

/// Asserts that the reply is the reply of runc, and not empty.
async fn assert_is_of_runc_alone(rig: &Rig, rpc: &str) {
    let reply = send(rig, rpc, frame_raw(b"")).await;
    assert_eq!(reply.code(), Code::Ok, "{rpc}");
    assert!(reply.body.len() > 5, "{rpc}");
    assert!(
        reply.body == rig.sim("runc").sent(rpc),
        "{rpc}: other bytes"
    );
}

async fn descriptors(rig: &Rig) -> Result<Vec<cri::MetricDescriptor>, Status> {
    let request = cri::ListMetricDescriptorsRequest {};
    let reply = rig.runtime().list_metric_descriptors(request).await?;
    Ok(reply.into_inner().descriptors)
}

fn described(name: &str, help: &str) -> cri::MetricDescriptor {
    cri::MetricDescriptor {
        name: name.to_owned(),
        help: help.to_owned(),
        label_keys: vec!["id".to_owned()],
    }
}

fn describes(name: &str, descriptors: [cri::MetricDescriptor; 2]) -> Sim {
    Sim::new(name).set(|settings| settings.descriptors = descriptors.into())
}

#[tokio::test]
async fn metric_descriptors_are_unique_by_name_and_those_of_the_default_backend_take_precedence() {
    let (cpu, memory, disk) = (
        described("cpu", "the default's"),
        described("memory", "the default's"),
        described("disk", "another's"),
    );
    let other = describes("kata", [disk.clone(), described("cpu", "another's")]);
    let rig = Rig::start([describes("runc", [cpu.clone(), memory.clone()]), other]).await;
    assert_eq!(descriptors(&rig).await.unwrap(), [cpu, memory, disk]);
}

#[tokio::test]
async fn metric_descriptors_keep_unknown_fields() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let mark = b"\xc2\xb8\x02\x03new".as_slice();
    rig.sim("runc")
        .append_to_items("ListMetricDescriptors", mark);
    rig.sim("kata").append_raw("ListMetricDescriptors", mark);
    let reply = send(&rig, "ListMetricDescriptors", frame_raw(b"")).await;
    // kata describes the same metrics as runc, so the merge takes only the unknown field from kata.
    let whole = [&rig.sim("runc").sent("ListMetricDescriptors")[5..], mark].concat();
    assert_eq!(reply.messages(), [whole]);
}

#[tokio::test]
async fn metric_descriptors_omit_a_backend_that_lacks_them() {
    let rig = with_an_old_one("ListMetricDescriptors").await;
    rig.run("old", "web").await;
    assert_is_of_runc_alone(&rig, "ListMetricDescriptors").await;
}

#[tokio::test]
async fn metrics_omit_a_backend_that_lacks_them() {
    let rig = with_an_old_one("ListPodSandboxMetrics").await;
    rig.run("old", "web").await;
    rig.run("runc", "web").await;
    assert_is_of_runc_alone(&rig, "ListPodSandboxMetrics").await;
}

#[tokio::test]
async fn metrics_are_unimplemented_when_all_lack_them() {
    let old = |name| Sim::new(name).lacks(["ListPodSandboxMetrics", "ListMetricDescriptors"]);
    let rig = Rig::start([old("runc"), old("kata")]).await;
    for rpc in ["ListPodSandboxMetrics", "ListMetricDescriptors"] {
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        assert_eq!(reply.code(), Code::Unimplemented, "{rpc}");
    }
}

#[tokio::test]
async fn a_backend_that_fails_an_rpc_does_not_count_as_lacking_it() {
    let rig = with_an_old_one("Nothing").await;
    for rpc in ["ListPodSandboxMetrics", "ListMetricDescriptors"] {
        rig.sim("runc").fail(rpc, Status::unimplemented("lacking"));
        rig.sim("old").fail(rpc, Status::internal("broken"));
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        assert_eq!(reply.code(), Code::Internal, "{rpc}");
    }
}

#[tokio::test]
async fn pod_stats_omit_a_backend_without_pods_that_lacks_them() {
    let rig = with_an_old_one("ListPodSandboxStats").await;
    rig.run("runc", "web").await;
    assert_is_of_runc_alone(&rig, "ListPodSandboxStats").await;
}

#[tokio::test]
async fn pod_stats_are_unimplemented_while_a_backend_with_pods_lacks_them() {
    let rig = with_an_old_one("ListPodSandboxStats").await;
    rig.run("runc", "web").await;
    let pod = rig.run_pod("old", "web").await;
    let reply = send(&rig, "ListPodSandboxStats", frame_raw(b"")).await;
    assert_eq!(reply.code(), Code::Unimplemented);
    assert!(reply.body.is_empty());
    rig.remove_pod(&pod).await.unwrap();
    let reply = send(&rig, "ListPodSandboxStats", frame_raw(b"")).await;
    assert_eq!(reply.code(), Code::Ok);
}

#[tokio::test]
async fn pod_stats_are_unimplemented_when_all_lack_them() {
    let old = |name| Sim::new(name).lacks(["ListPodSandboxStats"]);
    let rig = Rig::start([old("runc"), old("kata")]).await;
    let reply = send(&rig, "ListPodSandboxStats", frame_raw(b"")).await;
    assert_eq!(reply.code(), Code::Unimplemented);
}

#[tokio::test]
async fn an_rpc_that_the_owner_lacks_is_unimplemented() {
    let rpcs = [
        "PodSandboxStats",
        "UpdatePodSandboxResources",
        "CheckpointContainer",
    ];
    let rig = Rig::start([Sim::new("runc"), Sim::new("old").lacks(rpcs)]).await;
    let (pod, container) = rig.run("old", "web").await;
    for call in crate::calls::ID_CALLS
        .iter()
        .filter(|call| rpcs.contains(&call.rpc))
    {
        let reply = call.send(&rig, call.pick(&pod, &container)).await;
        assert_eq!(reply.code(), Code::Unimplemented, "{}", call.rpc);
    }
}

async fn cgroup_driver(rig: &Rig) -> Result<cri::CgroupDriver, Status> {
    let request = cri::RuntimeConfigRequest {};
    let reply = rig.runtime().runtime_config(request).await?.into_inner();
    Ok(reply.linux.unwrap().cgroup_driver())
}

#[tokio::test]
async fn the_cgroup_driver_is_that_of_a_backend_with_runtime_config() {
    let old = Sim::new("old").lacks(["RuntimeConfig"]);
    let new = Sim::new("new").cgroup_driver(cri::CgroupDriver::Cgroupfs);
    // The default is the backend without RuntimeConfig.
    let rig = Rig::start([old, new]).await;
    assert_eq!(
        cgroup_driver(&rig).await.unwrap(),
        cri::CgroupDriver::Cgroupfs
    );
}

#[tokio::test]
async fn the_runtime_configuration_is_unimplemented_when_all_lack_it() {
    let old = |name| Sim::new(name).lacks(["RuntimeConfig"]);
    let rig = Rig::start([old("runc"), old("kata")]).await;
    let rejected = cgroup_driver(&rig).await.unwrap_err();
    assert_eq!(rejected.code(), Code::Unimplemented);
}

#[tokio::test]
async fn a_runtime_configuration_counts_as_applied_where_the_rpc_is_missing() {
    let rig = with_an_old_one("UpdateRuntimeConfig").await;
    let network = cri::NetworkConfig {
        pod_cidr: "10.1.0.0/24".to_owned(),
    };
    let runtime_config = Some(cri::RuntimeConfig {
        network_config: Some(network.clone()),
    });
    let request = cri::UpdateRuntimeConfigRequest { runtime_config };
    rig.runtime().update_runtime_config(request).await.unwrap();
    assert_eq!(rig.sim("runc").network(), Some(network));
}

/// The RPCs with which a client can ask, with an empty id, whether the node has them.
fn probes() -> impl Iterator<Item = &'static crate::calls::IdCall> {
    let may_lack = |rpc: &str| ROWS.iter().any(|row| row.name == rpc && row.may_lack);
    ID_CALLS.iter().filter(move |call| may_lack(call.rpc))
}

/// The kubelet makes such a call of `PodSandboxStats` once, at its start.
#[tokio::test]
async fn an_empty_id_asks_whether_every_backend_that_gets_pods_has_the_rpc() {
    assert_eq!(probes().count(), 11);
    for call in probes() {
        let rig = with_an_old_one(call.rpc).await;
        let reply = call.send(&rig, "").await;
        assert_eq!(reply.code(), Code::Unimplemented, "{}", call.rpc);
        let text = crate::calls::text_of(&reply);
        assert!(text.contains("\"old\""), "{}: {text}", call.rpc);
    }
    let rig = with_an_old_one("Nothing").await;
    for call in ID_CALLS {
        let reply = call.send(&rig, "").await;
        assert_eq!(reply.code(), Code::InvalidArgument, "{}", call.rpc);
    }
}

#[tokio::test]
async fn an_empty_id_gets_the_answer_of_a_single_backend_that_lacks_the_rpc() {
    let rig = Rig::start([Sim::new("runc").lacks(["PodSandboxStats"])]).await;
    let reply = send(&rig, "PodSandboxStats", frame_raw(b"")).await;
    assert_eq!(reply.code(), Code::Unimplemented);
}

/// After `Unimplemented` the kubelet collects stats itself, for all pods. The kubelet asks only once.
#[tokio::test]
async fn a_silent_backend_lacks_the_rpc_of_a_call_with_an_empty_id_unless_it_answered_one_before() {
    let sims = ["runc", "kata"].map(Sim::new);
    sims[1].hold("PodSandboxStats");
    let rig = node("start_wait = \"0s\"\nlist_timeout = \"50ms\"", sims).await;
    until_state(&rig, "kata", "ready").await;
    let probe = async || send(&rig, "PodSandboxStats", frame_raw(b"")).await;
    let reply = probe().await;
    assert_eq!(reply.code(), Code::Unimplemented);
    let text = crate::calls::text_of(&reply);
    assert!(text.contains("\"kata\""), "{text}");
    rig.sim("kata").release("PodSandboxStats");
    wait::until(async || probe().await.code() == Code::InvalidArgument).await;
    rig.sim("kata").stop().await;
    assert_eq!(probe().await.code(), Code::InvalidArgument);
}

async fn lacking(rig: &Rig, name: &str) -> Vec<String> {
    let state = state_of(rig, name).await;
    let lacking = state["lackingRpcs"].as_array().unwrap().iter();
    lacking
        .map(|rpc| rpc.as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn the_state_names_what_a_backend_lacks_until_its_next_connection() {
    let rpcs = [
        "ListMetricDescriptors",
        "ListPodSandboxMetrics",
        "PodSandboxStats",
        "RuntimeConfig",
    ];
    let rig = Rig::start([Sim::new("runc"), Sim::new("old").lacks(rpcs)]).await;
    // criswitch itself calls these RPCs when it connects, without a client's call.
    wait::until(async || lacking(&rig, "old").await == rpcs).await;
    assert!(lacking(&rig, "runc").await.is_empty());
    rig.sim("old")
        .fail("ListPodSandboxStats", Status::unimplemented("no"));
    send(&rig, "ListPodSandboxStats", frame_raw(b"")).await;
    assert!(
        lacking(&rig, "old")
            .await
            .contains(&"ListPodSandboxStats".to_owned())
    );
    let ready = status(&rig).await;
    assert_eq!(backends_ready(&ready), "", "each of these may be missing");
    rig.sim("old").stop().await;
    rig.sim("old").heal("ListPodSandboxStats");
    rig.sim("old").start();
    until_state(&rig, "old", "ready").await;
    wait::until(async || lacking(&rig, "old").await == rpcs).await;
}

#[tokio::test]
async fn metrics_that_criswitch_asks_for_itself_make_no_backend_late() {
    let rpcs = ["ListMetricDescriptors", "ListPodSandboxMetrics"];
    let sims = ["runc", "kata"].map(Sim::new);
    sims[1].hold(rpcs[0]);
    sims[1].fail(rpcs[1], Status::unknown("busy"));
    let rig = Rig::start(sims).await;
    let kata = rig.sim("kata");
    until_state(&rig, "kata", "ready").await;
    kata.until_held(rpcs[0]).await;
    later(Duration::from_secs(31)).await;
    wait::until(async || kata.calls(rpcs[0]).len() > 1).await;
    assert_eq!(kata.calls(rpcs[1]).len(), 1, "an error is an answer");
    let shown = state_of(&rig, "kata").await;
    assert_eq!(shown["failingRpcs"].as_array().unwrap().len(), 0, "{shown}");
    assert_eq!(backends_ready(&status(&rig).await), "");
}

/// The rule holds for each RPC that is not a list and that every runtime must have.
#[tokio::test]
async fn a_backend_that_lacks_a_required_rpc_is_named_until_it_has_the_rpc() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let (pod, container) = rig.run("kata", "web").await;
    let required = |rpc: &str| ROWS.iter().any(|row| row.name == rpc && !row.may_lack);
    let calls = ID_CALLS.iter().filter(|call| required(call.rpc));
    let failing = async || state_of(&rig, "kata").await["failingRpcs"].clone();
    for call in calls.filter(|call| call.if_gone == Code::NotFound) {
        let kata = rig.sim("kata");
        kata.fail(call.rpc, Status::unimplemented("unknown service"));
        let reply = call.send(&rig, call.pick(&pod, &container)).await;
        assert_eq!(reply.code(), Code::Unimplemented, "{}", call.rpc);
        let failing = failing().await;
        assert_eq!(failing[0]["rpc"], call.rpc, "{failing}");
        let ready = status(&rig).await;
        let named = backends_ready(&ready);
        assert!(
            named.contains("\"kata\"") && named.contains(call.rpc),
            "{named}"
        );
        kata.heal(call.rpc);
        call.send(&rig, call.pick(&pod, &container)).await;
        let ready = status(&rig).await;
        assert_eq!(backends_ready(&ready), "", "{}", call.rpc);
    }
}

/// Makes a call of the image service without a filter.
async fn images(rig: &Rig, rpc: &str) -> RawReply {
    let path = format!("/runtime.v1.ImageService/{rpc}");
    rig.raw(&path, &[], frame_raw(b"")).await
}

#[tokio::test]
async fn images_of_a_backend_whose_image_service_ends_are_served_from_cache() {
    let kata = Sim::new("kata").image("only-kata:1");
    let rig = Rig::start([Sim::new("runc"), kata]).await;
    let list = async |rpc| images(&rig, rpc).await;
    list("ListImages").await;
    let missing = Status::unimplemented("unknown service runtime.v1.ImageService");
    for rpc in ["ListImages", "StreamImages"] {
        rig.sim("kata").fail(rpc, missing.clone());
    }
    for rpc in ["ListImages", "StreamImages"] {
        let reply = list(rpc).await;
        assert_eq!(reply.code(), Code::Ok, "{rpc}");
        assert!(crate::calls::holds(&reply, "only-kata:1"), "{rpc}");
    }
    let ready = status(&rig).await;
    let named = backends_ready(&ready);
    assert!(
        named.contains("\"kata\"") && named.contains("Images"),
        "{named}"
    );
    let state = state_of(&rig, "kata").await;
    assert_eq!(state["failingRpcs"].as_array().unwrap().len(), 1, "{state}");
}

/// A client that gets `Unimplemented` for a stream makes no more calls for it until the client restarts.
#[tokio::test]
async fn a_stream_of_a_list_that_a_backend_lacks_is_never_unimplemented() {
    let rpcs = ["ListImages", "StreamImages"];
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata").lacks(rpcs)]).await;
    let reply = images(&rig, "StreamImages").await;
    assert_eq!(reply.code(), Code::Internal);
}
