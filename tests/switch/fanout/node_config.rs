//! Version, RuntimeConfig, UpdateRuntimeConfig, ImageFsInfo: facts of the node that the kubelet reads or sets.

use std::fs;
use std::time::Duration;

use criswitch_cri::codec::cri;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::calls::stopped;
use crate::faults;
use crate::logged::Logged;
use crate::support::clock::later;
use crate::support::{PATIENCE, Rig, Sim};
use crate::switch::saved_state::{state_file, with_pods};
use crate::topology::reloads::{old_alone, reload, table};
use crate::wait;

async fn driver(rig: &Rig) -> Result<cri::CgroupDriver, Status> {
    let request = cri::RuntimeConfigRequest {};
    let reply = rig.runtime().runtime_config(request).await?;
    let linux = reply.into_inner().linux.unwrap();
    Ok(linux.cgroup_driver())
}

fn on_cgroupfs(name: &str) -> Sim {
    Sim::new(name).cgroup_driver(cri::CgroupDriver::Cgroupfs)
}

async fn set_cidr(rig: &Rig, cidr: &str) -> Result<(), Status> {
    let network_config = Some(network(cidr));
    let request = cri::UpdateRuntimeConfigRequest {
        runtime_config: Some(cri::RuntimeConfig { network_config }),
    };
    rig.runtime().update_runtime_config(request).await?;
    Ok(())
}

fn network(cidr: &str) -> cri::NetworkConfig {
    let pod_cidr = cidr.to_owned();
    cri::NetworkConfig { pod_cidr }
}

#[tokio::test]
async fn version_is_that_of_the_default_backend() {
    let runc = Sim::new("runc").runtime_name("containerd").version("2.4.2");
    let rig = Rig::start([runc, Sim::new("kata").version("9")]).await;
    let request = cri::VersionRequest {
        version: "0.1.0".to_owned(),
    };
    let version = rig.runtime().version(request).await.unwrap().into_inner();
    assert_eq!(version.runtime_name, "containerd");
    assert_eq!(version.runtime_version, "2.4.2");
    rig.sim("kata").stop().await;
    let request = cri::VersionRequest::default();
    rig.runtime().version(request).await.unwrap();
}

#[tokio::test]
async fn version_is_the_last_known_one_while_the_default_is_down_or_hangs() {
    let runc = Sim::new("runc").runtime_name("containerd").version("2.4.2");
    let rig = Rig::start([runc, Sim::new("kata")]).await;
    let version = async || {
        let mut runtime = rig.runtime();
        let version = runtime.version(cri::VersionRequest::default());
        let version = tokio::time::timeout(PATIENCE, version).await;
        version.expect("no version in time").unwrap().into_inner()
    };
    let known = version().await;
    assert_eq!(known.runtime_version, "2.4.2");
    rig.sim("runc").hold("Version");
    assert_eq!(version().await, known);
    rig.sim("runc").release("Version");
    rig.sim("runc").stop().await;
    assert_eq!(version().await, known);
}

/// `Version` waits for a shorter time than other reads.
#[tokio::test]
async fn a_version_that_waited_for_a_connection_does_not_make_other_reads_fail() {
    let rig = Rig::start([on_cgroupfs("runc"), Sim::new("kata")]).await;
    let runc = rig.sim("runc");
    driver(&rig).await.unwrap();
    stopped(&rig, "runc").await;
    runc.hold("ListPodSandbox");
    runc.start();
    runc.until_held("ListPodSandbox").await;
    let request = cri::VersionRequest::default();
    rig.runtime().version(request).await.unwrap();
    let ready = async {
        later(Duration::from_millis(500)).await;
        runc.release("ListPodSandbox");
    };
    let (read, ()) = tokio::join!(driver(&rig), ready);
    assert_eq!(read.unwrap(), cri::CgroupDriver::Cgroupfs);
}

#[tokio::test]
async fn the_cgroup_driver_is_that_of_the_default_backend() {
    let rig = Rig::start([on_cgroupfs("runc"), on_cgroupfs("kata")]).await;
    assert_eq!(driver(&rig).await.unwrap(), cri::CgroupDriver::Cgroupfs);
}

#[tokio::test]
async fn the_cgroup_driver_is_never_that_of_a_backend_without_runtime_config() {
    let old = Sim::new("old").lacks(["RuntimeConfig"]);
    let rig = Rig::start([old, on_cgroupfs("kata")]).await;
    assert_eq!(driver(&rig).await.unwrap(), cri::CgroupDriver::Cgroupfs);

    let old = Sim::new("old").lacks(["RuntimeConfig"]);
    let rig = Rig::start([on_cgroupfs("kata"), old]).await;
    assert_eq!(driver(&rig).await.unwrap(), cri::CgroupDriver::Cgroupfs);
}

#[tokio::test]
async fn a_runtime_config_that_cannot_be_decoded_is_never_that_of_another_backend() {
    let old = Sim::new("old").lacks(["RuntimeConfig"]);
    let rig = Rig::start([old, Sim::new("bad"), on_cgroupfs("kata")]).await;
    // The configuration of Linux is cut off.
    let cut_off = b"\x0a\x02\x08".as_slice();
    rig.sim("bad").append_raw("RuntimeConfig", cut_off);
    assert_eq!(driver(&rig).await.unwrap(), cri::CgroupDriver::Cgroupfs);
    rig.sim("kata").append_raw("RuntimeConfig", cut_off);
    assert_eq!(driver(&rig).await.unwrap_err().code(), Code::Unimplemented);
}

#[tokio::test]
async fn the_cgroup_driver_waits_for_the_default_backend_alone() {
    let rig = faults::node(
        "start_wait = \"0s\"",
        [on_cgroupfs("runc"), Sim::new("kata")],
    )
    .await;
    rig.pods().await.unwrap();
    rig.sim("kata").hold("RuntimeConfig");
    let shown = tokio::time::timeout(PATIENCE, driver(&rig)).await;
    assert_eq!(shown.unwrap().unwrap(), cri::CgroupDriver::Cgroupfs);
}

#[tokio::test]
async fn the_cgroup_driver_is_never_that_of_a_backend_that_is_late() {
    let sims = [
        Sim::new("old").lacks(["RuntimeConfig"]),
        Sim::new("late"),
        on_cgroupfs("kata"),
    ];
    let rig = faults::node("start_wait = \"0s\"", sims).await;
    rig.pods().await.unwrap();
    rig.sim("late").hold("RuntimeConfig");
    let shown = tokio::time::timeout(PATIENCE, driver(&rig)).await;
    assert_eq!(shown.unwrap().unwrap(), cri::CgroupDriver::Cgroupfs);
}

#[tokio::test]
async fn a_runtime_configuration_that_the_client_cancels_is_sent_again() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    rig.pods().await.unwrap();
    let kata = rig.sim("kata");
    kata.hold("UpdateRuntimeConfig");
    let asked = kata.until_held("UpdateRuntimeConfig");
    tokio::select! {
        shown = set_cidr(&rig, "10.1.0.0/16") => panic!("{shown:?}"),
        _ = asked => {}
    }
    kata.release("UpdateRuntimeConfig");
    wait::until(async || kata.network() == Some(network("10.1.0.0/16"))).await;
}

#[tokio::test]
async fn runtime_config_is_unimplemented_where_every_backend_lacks_it() {
    let lacking = |name| Sim::new(name).lacks(["RuntimeConfig"]);
    let rig = Rig::start([lacking("old"), lacking("older")]).await;
    let rejected = driver(&rig).await.unwrap_err();
    assert_eq!(rejected.code(), Code::Unimplemented);
}

#[tokio::test]
async fn the_cgroup_driver_needs_the_default_and_no_other_backend() {
    let rig = Rig::start([on_cgroupfs("runc"), on_cgroupfs("kata")]).await;
    rig.sim("kata").stop().await;
    assert_eq!(driver(&rig).await.unwrap(), cri::CgroupDriver::Cgroupfs);
    rig.sim("runc").stop().await;
    let failed = driver(&rig).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable);
    assert!(failed.message().contains("runc"), "{failed}");
}

#[tokio::test]
async fn two_cgroup_drivers_are_logged_and_that_of_the_default_backend_is_returned() {
    let logged = Logged::here();
    let rig = Rig::start([Sim::new("runc"), on_cgroupfs("kata")]).await;
    assert_eq!(driver(&rig).await.unwrap(), cri::CgroupDriver::Systemd);
    wait::until(async || logged.text().contains("cgroup driver")).await;
    let text = logged.text();
    let line = text
        .lines()
        .find(|line| line.contains("cgroup driver"))
        .unwrap();
    assert!(line.contains("ERROR") && line.contains("kata"), "{line}");
}

#[tokio::test]
async fn one_cgroup_driver_everywhere_is_not_logged() {
    let logged = Logged::here();
    let rig = Rig::start([on_cgroupfs("runc"), on_cgroupfs("kata")]).await;
    driver(&rig).await.unwrap();
    assert!(
        !logged.text().contains("cgroup driver"),
        "{}",
        logged.text()
    );
}

#[tokio::test]
async fn every_backend_gets_the_runtime_configuration() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    // Connect every backend first: a backend that connects later gets the configuration when it connects.
    rig.pods().await.unwrap();
    set_cidr(&rig, "10.1.0.0/16").await.unwrap();
    for sim in &rig.sims {
        assert_eq!(sim.network(), Some(network("10.1.0.0/16")));
        assert_eq!(sim.calls("UpdateRuntimeConfig").len(), 1);
    }
}

#[tokio::test]
async fn a_backend_without_update_runtime_config_counts_as_configured() {
    let old = |name| Sim::new(name).lacks(["UpdateRuntimeConfig"]);
    let rig = Rig::start([old("old"), Sim::new("kata")]).await;
    set_cidr(&rig, "10.1.0.0/16").await.unwrap();
    assert_eq!(rig.sim("kata").network(), Some(network("10.1.0.0/16")));
    let rig = Rig::start([old("old"), old("older")]).await;
    set_cidr(&rig, "10.1.0.0/16").await.unwrap();
}

#[tokio::test]
async fn a_backend_that_was_down_gets_the_runtime_configuration_when_it_is_back() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    rig.sim("kata").stop().await;
    set_cidr(&rig, "10.1.0.0/16").await.unwrap();
    set_cidr(&rig, "10.2.0.0/16").await.unwrap();
    let kata = rig.sim("kata");
    assert_eq!(kata.network(), None);
    kata.start();
    kata.until(|journal| journal.calls_of("UpdateRuntimeConfig").count() > 0)
        .await;
    // A call to kata waits until kata has the configuration.
    rig.run_pod("kata", "web").await;
    assert_eq!(kata.network(), Some(network("10.2.0.0/16")));
}

#[tokio::test]
async fn the_runtime_configuration_reaches_a_backend_that_replaces_all_others_at_a_restart() {
    let mut rig = old_alone().await;
    set_cidr(&rig, "10.1.0.0/24").await.unwrap();
    rig.restart_switch_with(|directory| table("runc", "runc = \"new\"", &["new"], directory))
        .await;
    wait::until(async || rig.sim("new").network() == Some(network("10.1.0.0/24"))).await;
}

#[tokio::test]
async fn backends_that_were_away_before_a_restart_get_the_runtime_configuration_afterwards() {
    let sims = ["runc", "kata", "new"].map(Sim::new);
    let mut rig = Rig::with_config(sims, |directory| {
        let rows = "runc = \"runc\"\nkata = \"kata\"";
        table("runc", rows, &["runc", "kata"], directory)
    })
    .await;
    rig.pods().await.unwrap();
    rig.sim("kata").stop().await;
    set_cidr(&rig, "10.1.0.0/16").await.unwrap();
    set_cidr(&rig, "10.2.0.0/16").await.unwrap();
    for _ in 0..2 {
        rig.restart_switch().await;
    }
    rig.sim("kata").start();
    let rows = "runc = \"runc\"\nkata = \"kata\"\nnew = \"new\"";
    reload(&rig, "runc", rows, &["runc", "kata", "new"]);
    for name in ["kata", "new"] {
        let sim = rig.sim(name);
        wait::until(async || sim.network() == Some(network("10.2.0.0/16"))).await;
    }
    // After a reboot the kubelet sends the runtime configuration again, so criswitch must not send the saved one.
    rig.sim("kata").stop().await;
    rig.boot.id = "second".to_owned();
    rig.restart_switch().await;
    let kata = rig.sim("kata");
    let before = kata.calls("UpdateRuntimeConfig").len();
    kata.start();
    faults::until_state(&rig, "kata", "ready").await;
    assert_eq!(kata.calls("UpdateRuntimeConfig").len(), before);
}

#[tokio::test]
async fn a_backend_that_comes_back_gets_no_runtime_configuration_if_none_was_set() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    rig.sim("kata").stop().await;
    rig.sim("kata").start();
    rig.run_pod("kata", "web").await;
    assert!(rig.sim("kata").calls("UpdateRuntimeConfig").is_empty());
}

#[tokio::test]
async fn a_backend_that_rejects_the_runtime_configuration_fails_the_call() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let rejection = Status::invalid_argument("bad CIDR");
    rig.sim("kata").fail("UpdateRuntimeConfig", rejection);
    let failed = set_cidr(&rig, "10.1.0.0/33").await.unwrap_err();
    assert_eq!(failed.code(), Code::InvalidArgument);
    assert!(failed.message().starts_with("bad CIDR"), "{failed}");
    assert!(failed.message().contains("kata"), "{failed}");
}

#[tokio::test]
async fn a_failed_runtime_configuration_names_every_backend_that_did_not_apply_it() {
    let rig = Rig::start(["runc", "kata", "gvisor", "crun"].map(Sim::new)).await;
    for sim in &rig.sims {
        faults::until_state(&rig, sim.name(), "ready").await;
    }
    rig.sim("runc")
        .fail("UpdateRuntimeConfig", Status::internal("no CNI"));
    rig.sim("kata")
        .fail("UpdateRuntimeConfig", Status::aborted("busy"));
    rig.sim("gvisor").stop().await;
    let failed = set_cidr(&rig, "10.1.0.0/16").await.unwrap_err();
    assert_eq!(failed.code(), Code::Internal);
    for word in ["no CNI", "runc", "busy", "kata", "gvisor"] {
        assert!(failed.message().contains(word), "{failed}");
    }
    assert!(!failed.message().contains("crun"), "{failed}");
    assert_eq!(rig.sim("crun").network(), Some(network("10.1.0.0/16")));
    rig.sim("gvisor").start();
    for name in ["runc", "kata"] {
        rig.sim(name).heal("UpdateRuntimeConfig");
    }
    for sim in &rig.sims {
        wait::until(async || sim.network() == Some(network("10.1.0.0/16"))).await;
    }
}

#[tokio::test]
async fn a_backend_that_rejects_the_runtime_configuration_when_it_is_back_still_runs_pods() {
    let logged = Logged::here();
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let kata = rig.sim("kata");
    kata.stop().await;
    set_cidr(&rig, "10.1.0.0/16").await.unwrap();
    kata.fail("UpdateRuntimeConfig", Status::internal("no CNI"));
    kata.start();
    rig.run_pod("kata", "web").await;
    kata.until(|journal| journal.calls_of("UpdateRuntimeConfig").count() > 2)
        .await;
    assert_eq!(kata.network(), None);
    assert_eq!(logged.lines(&["kata", "did not accept"]).len(), 1);
    kata.heal("UpdateRuntimeConfig");
    wait::until(async || kata.network() == Some(network("10.1.0.0/16"))).await;
}

#[tokio::test]
async fn a_backend_with_an_unanswered_runtime_configuration_is_named_not_waited_for_and_gets_the_last_one()
 {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    rig.pods().await.unwrap();
    let kata = rig.sim("kata");
    kata.hold("UpdateRuntimeConfig");
    for (cidr, limit) in [("10.1.0.0/16", 2100), ("10.2.0.0/16", 100)] {
        let begun = Instant::now();
        set_cidr(&rig, cidr).await.unwrap();
        let took = begun.elapsed();
        assert!(took < Duration::from_millis(limit), "{cidr}: {took:?}");
    }
    let failing = faults::state_of(&rig, "kata").await["failingRpcs"][0].clone();
    assert_eq!(failing["rpc"], "UpdateRuntimeConfig", "{failing}");
    kata.release("UpdateRuntimeConfig");
    wait::until(async || kata.network() == Some(network("10.2.0.0/16"))).await;
    let is_named = async || !faults::state_of(&rig, "kata").await["failingRpcs"][0].is_null();
    wait::until(async || !is_named().await).await;
}

#[tokio::test]
async fn a_rejected_runtime_configuration_is_sent_again_although_the_state_cannot_be_written() {
    let (rig, ..) = with_pods().await;
    let kata = rig.sim("kata");
    kata.fail("UpdateRuntimeConfig", Status::internal("no CNI"));
    let file = state_file(&rig, "kata");
    fs::remove_file(&file).unwrap();
    fs::create_dir_all(file.join("in the way")).unwrap();
    let failed = set_cidr(&rig, "10.1.0.0/16").await.unwrap_err();
    assert!(failed.message().contains("no CNI"), "{failed}");
    kata.heal("UpdateRuntimeConfig");
    wait::until(async || kata.network() == Some(network("10.1.0.0/16"))).await;
}

#[tokio::test]
async fn a_runtime_configuration_fails_if_no_backend_is_reachable() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    for sim in &rig.sims {
        sim.stop().await;
    }
    let failed = set_cidr(&rig, "10.1.0.0/16").await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable);
}

fn mountpoints(filesystems: &[cri::FilesystemUsage]) -> Vec<&str> {
    let ids = filesystems.iter().map(|f| f.fs_id.as_ref().unwrap());
    ids.map(|id| id.mountpoint.as_str()).collect()
}

async fn image_fs_info(rig: &Rig) -> cri::ImageFsInfoResponse {
    let request = cri::ImageFsInfoRequest {};
    let reply = rig.images().image_fs_info(request).await;
    reply.unwrap().into_inner()
}

#[tokio::test]
async fn the_defaults_file_system_comes_first_whatever_the_order_of_the_table() {
    let text = |directory: &str| {
        format!(
            "default_handler = \"runc\"\n[handlers]\nabc = \"{directory}/abc.sock\"\n\
             kata = \"{directory}/kata.sock\"\nrunc = \"{directory}/runc.sock\"\n"
        )
    };
    let sims = [Sim::new("abc"), Sim::new("kata"), Sim::new("runc")];
    let info = image_fs_info(&Rig::with_config(sims, text).await).await;
    let expected = ["/var/lib/runc", "/var/lib/abc", "/var/lib/kata"];
    assert_eq!(mountpoints(&info.image_filesystems), expected);
    assert_eq!(mountpoints(&info.container_filesystems), expected);
}

#[tokio::test]
async fn a_file_system_shared_by_two_backends_has_one_entry_from_the_default_backend() {
    let shared = |name| Sim::new(name).runtime_name("containers");
    let rig = Rig::start([
        shared("runc").image("busybox:1.36"),
        shared("kata"),
        Sim::new("gvisor"),
    ])
    .await;
    let info = image_fs_info(&rig).await;
    let expected = ["/var/lib/containers", "/var/lib/gvisor"];
    assert_eq!(mountpoints(&info.image_filesystems), expected);
    assert_eq!(mountpoints(&info.container_filesystems), expected);
    let used = info.image_filesystems[0].used_bytes.as_ref().unwrap();
    assert_eq!(used.value, rig.sim("runc").images()[0].size);
}

#[tokio::test]
async fn file_systems_need_the_default_backend_and_no_other() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    rig.sim("kata").stop().await;
    let info = image_fs_info(&rig).await;
    assert_eq!(mountpoints(&info.image_filesystems), ["/var/lib/runc"]);
    rig.sim("kata").start();
    rig.sim("runc").stop().await;
    // crictl asks for the file systems before every command, so criswitch replies with the default backend's last
    // report for a while.
    let info = image_fs_info(&rig).await;
    assert_eq!(mountpoints(&info.image_filesystems)[0], "/var/lib/runc");
    later(Duration::from_secs(30)).await;
    let request = cri::ImageFsInfoRequest {};
    let failed = rig.images().image_fs_info(request).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable);
    assert!(failed.message().contains("runc"), "{failed}");
}

/// Sets whether the runtime reports a file system of images.
fn reports_disk(sim: &Sim, reports: bool) {
    sim.clone()
        .set(|settings| settings.has_image_disk = reports);
}

/// The kubelet uses the first file system in the reply as the node's image file system.
#[tokio::test]
async fn the_last_report_of_the_default_backend_replaces_one_without_a_file_system_of_images() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let request = cri::ImageFsInfoRequest {};
    reports_disk(rig.sim("runc"), false);
    let failed = rig.images().image_fs_info(request).await.unwrap_err();
    for word in ["runc", "no image filesystem"] {
        assert!(failed.message().contains(word), "{failed}");
    }
    reports_disk(rig.sim("runc"), true);
    image_fs_info(&rig).await;
    reports_disk(rig.sim("runc"), false);
    for _ in 0..2 {
        let info = image_fs_info(&rig).await;
        let expected = ["/var/lib/runc", "/var/lib/kata"];
        assert_eq!(mountpoints(&info.image_filesystems), expected);
        later(Duration::from_secs(15)).await;
    }
    let failed = rig.images().image_fs_info(request).await.unwrap_err();
    assert!(failed.message().contains("no image filesystem"), "{failed}");
}

#[tokio::test]
async fn another_backend_without_a_file_system_of_images_is_omitted() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    reports_disk(rig.sim("kata"), false);
    let info = image_fs_info(&rig).await;
    assert_eq!(mountpoints(&info.image_filesystems), ["/var/lib/runc"]);
    let rig = Rig::start([Sim::new("runc")]).await;
    reports_disk(rig.sim("runc"), false);
    assert!(image_fs_info(&rig).await.image_filesystems.is_empty());
}

/// If the first container file system differed from the first image file system, the kubelet would assume a split image
/// disk.
#[tokio::test]
async fn file_systems_of_containers_are_those_of_all_backends_only_if_the_default_reports_one() {
    let old = Sim::new("runc").set(|settings| settings.has_container_disk = false);
    let info = image_fs_info(&Rig::start([old, Sim::new("kata")]).await).await;
    let expected = ["/var/lib/runc", "/var/lib/kata"];
    assert_eq!(mountpoints(&info.image_filesystems), expected);
    assert!(info.container_filesystems.is_empty());
}

/// If the reply omitted the default backend, the kubelet would use the file system of another backend as the node's
/// image file system.
#[tokio::test]
async fn file_systems_omit_a_backend_without_an_image_service_unless_it_is_the_default() {
    let bare = Sim::new("bare").lacks(["ImageFsInfo"]);
    let rig = Rig::start([Sim::new("runc"), bare]).await;
    let info = image_fs_info(&rig).await;
    assert_eq!(mountpoints(&info.image_filesystems), ["/var/lib/runc"]);

    let bare = Sim::new("bare").lacks(["ImageFsInfo"]);
    let rig = Rig::start([bare, Sim::new("runc")]).await;
    let request = cri::ImageFsInfoRequest {};
    let failed = rig.images().image_fs_info(request).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unimplemented);
    assert!(failed.message().contains("\"bare\""), "{failed}");
}

#[tokio::test]
async fn other_backends_give_the_cgroup_driver_while_a_new_default_was_never_ready() {
    let sims = ["old", "new", "kata", "crun"].map(on_cgroupfs);
    let others = "kata = \"kata\"\ncrun = \"crun\"";
    let before = format!("runc = \"old\"\n{others}");
    let rig = Rig::with_config(sims, |directory| {
        table("runc", &before, &["old", "kata", "crun"], directory)
    })
    .await;
    for name in ["old", "kata", "crun"] {
        faults::until_state(&rig, name, "ready").await;
    }
    rig.sim("new").stop().await;
    let after = format!("runc = \"new\"\n{others}");
    let changes = reload(&rig, "runc", &after, &["new", "kata", "crun"]);
    assert_eq!(changes.backends_removed, ["old"]);
    assert_eq!(driver(&rig).await.unwrap(), cri::CgroupDriver::Cgroupfs);
}

#[tokio::test]
async fn an_old_default_is_asked_once_for_its_cgroup_driver_while_a_new_default_becomes_ready() {
    let sims = ["old", "new", "kata"].map(|name| on_cgroupfs(name).handlers(["runc", "kata"]));
    let rig = Rig::with_config(sims, |directory| {
        let before = "runc = \"old\"\nkata = \"kata\"";
        table("runc", before, &["old", "kata"], directory)
    })
    .await;
    // The old backend is retained for this pod, and answers for the node until the new default is ready.
    rig.run_pod("runc", "before").await;
    rig.sim("new").stop().await;
    let after = "runc = \"new\"\nkata = \"kata\"";
    reload(&rig, "runc", after, &["new", "kata"]);
    let old = rig.sim("old");
    let made_ready = old.calls("RuntimeConfig").len();
    old.fail("RuntimeConfig", Status::unimplemented("too old"));
    old.hold("RuntimeConfig");
    let change = async {
        old.until_held("RuntimeConfig").await;
        rig.sim("new").start();
        faults::until_state(&rig, "new", "ready").await;
        old.release("RuntimeConfig");
    };
    let shown = tokio::time::timeout(PATIENCE, async { tokio::join!(driver(&rig), change).0 })
        .await
        .expect("it waits for ever")
        .unwrap();
    assert_eq!(shown, cri::CgroupDriver::Cgroupfs);
    assert_eq!(old.calls("RuntimeConfig").len(), made_ready + 1);
}
