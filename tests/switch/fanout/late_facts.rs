//! A backend that answers its lists, but not the calls for its own state: `Status`, `ImageFsInfo`, `RuntimeConfig`.
//! Every report about the node's health names the RPC until the backend answers it.

use std::time::Duration;

use criswitch_cri::codec::cri::{self, CgroupDriver};
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::calls::{path, send};
use crate::fanout::silent_default::is_not_ready;
use crate::faults::{backends_ready, state_of, status, until_state};
use crate::support::clock::later;
use crate::support::{Rig, Sim, frame_raw};
use crate::wait;

const TRUST: Duration = Duration::from_secs(30);

async fn runc_and_kata() -> Rig {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    until_state(&rig, "kata", "ready").await;
    rig
}

async fn disks(rig: &Rig) -> Result<cri::ImageFsInfoResponse, Status> {
    let request = cri::ImageFsInfoRequest {};
    Ok(rig.images().image_fs_info(request).await?.into_inner())
}

async fn until_none_fails(rig: &Rig, name: &str) {
    wait::until(async || state_of(rig, name).await["failingRpcs"][0].is_null()).await;
}

#[tokio::test]
async fn the_node_is_not_ready_if_the_status_of_the_default_backend_alone_hangs_or_fails() {
    let failures: [fn(&Sim); 3] = [
        |runc| runc.hold("Status"),
        |runc| runc.fail("Status", Status::internal("no status")),
        |runc| runc.reset("Status"),
    ];
    let causes = ["no Status within", "no status", "broken off"];
    for (fail, cause) in failures.into_iter().zip(causes) {
        let rig = runc_and_kata().await;
        status(&rig).await;
        fail(rig.sim("runc"));
        status(&rig).await;
        wait::until(async || state_of(&rig, "runc").await["failingRpcs"][0]["rpc"] == "Status")
            .await;
        assert!(rig.state().await["nodeNotReadySeconds"].is_null());
        later(TRUST).await;
        is_not_ready(&status(&rig).await, rig.sim("runc"), cause);
        assert!(rig.state().await["nodeNotReadySeconds"].as_u64() >= Some(TRUST.as_secs()));
        rig.sim("runc").release("Status");
        rig.sim("runc").heal("Status");
        wait::until(async || rig.state().await["nodeNotReadySeconds"].is_null()).await;
        until_none_fails(&rig, "runc").await;
    }
}

#[tokio::test]
async fn a_backend_that_is_late_with_its_file_systems_is_named() {
    let rig = runc_and_kata().await;
    rig.sim("kata").hold("ImageFsInfo");
    disks(&rig).await.unwrap();
    let status = status(&rig).await;
    let message = backends_ready(&status);
    assert!(
        message.contains("ImageFsInfo has had no answer"),
        "{message}"
    );
    rig.sim("kata").release("ImageFsInfo");
    until_none_fails(&rig, "kata").await;
}

/// After a start, criswitch has no earlier reply that could answer the call.
#[tokio::test]
async fn the_first_file_systems_of_a_default_backend_are_waited_for_with_a_limit() {
    let runc = Sim::new("runc");
    runc.hold("ImageFsInfo");
    let rig = Rig::start([runc, Sim::new("kata")]).await;
    until_state(&rig, "runc", "ready").await;
    let begun = Instant::now();
    let failed = disks(&rig).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable, "{failed}");
    assert!(begun.elapsed() < Duration::from_secs(15));
    let shown = state_of(&rig, "runc").await;
    assert_eq!(shown["failingRpcs"][0]["rpc"], "ImageFsInfo", "{shown}");
    rig.sim("runc").release("ImageFsInfo");
    until_none_fails(&rig, "runc").await;
    disks(&rig).await.unwrap();
}

#[tokio::test]
async fn a_cgroup_driver_that_comes_after_the_backend_is_ready_is_learned() {
    let kata = Sim::new("kata").cgroup_driver(CgroupDriver::Cgroupfs);
    kata.hold("RuntimeConfig");
    let rig = Rig::start([Sim::new("runc"), kata]).await;
    until_state(&rig, "kata", "ready").await;
    assert!(state_of(&rig, "kata").await["cgroupDriver"].is_null());
    rig.sim("kata").release("RuntimeConfig");
    wait::until(async || state_of(&rig, "kata").await["cgroupDriver"] == "cgroupfs").await;
}

#[tokio::test]
async fn a_runtime_configuration_that_cannot_be_decoded_is_neither_sent_nor_kept() {
    let rig = runc_and_kata().await;
    let reply = send(&rig, "UpdateRuntimeConfig", frame_raw(b"\x0a\x7f")).await;
    assert_eq!(reply.code(), Code::InvalidArgument, "{}", reply.text());
    for sim in &rig.sims {
        assert!(sim.calls("UpdateRuntimeConfig").is_empty());
    }
    let reply = rig
        .raw(&path("UpdateRuntimeConfig"), &[], frame_raw(b""))
        .await;
    assert_eq!(reply.code(), Code::Ok, "{}", reply.text());
}
