//! Two cgroup drivers on a node: the kubelet uses the driver of the default backend, so pods of a backend with the
//! other driver are in the wrong cgroups.

use criswitch_cri::codec::cri::CgroupDriver::{Cgroupfs, Systemd};

use crate::calls::stopped;
use crate::faults::{backends_ready, runc_and_kata, state_of, status, until_state};
use crate::logged::Logged;
use crate::support::{Rig, Sim};
use crate::topology::reloads::reload;

async fn both(
    runc: criswitch_cri::codec::cri::CgroupDriver,
    kata: criswitch_cri::codec::cri::CgroupDriver,
) -> Rig {
    let sims = [("runc", runc), ("kata", kata)];
    let rig = Rig::start(sims.map(|(name, driver)| Sim::new(name).cgroup_driver(driver))).await;
    for sim in &rig.sims {
        until_state(&rig, sim.name(), "ready").await;
    }
    rig
}

#[tokio::test]
async fn status_names_the_backend_whose_driver_differs_from_that_of_the_default_backend() {
    let logged = Logged::here();
    let rig = both(Systemd, Cgroupfs).await;
    let status = status(&rig).await;
    let message = backends_ready(&status);
    assert!(
        message.contains("\"kata\"") && message.contains("cgroup driver"),
        "{message}"
    );
    assert!(!message.contains("\"runc\""), "{message}");
    assert_eq!(state_of(&rig, "runc").await["cgroupDriver"], "systemd");
    assert_eq!(state_of(&rig, "kata").await["cgroupDriver"], "cgroupfs");
    assert_eq!(logged.lines(&["ERROR", "kata", "cgroup driver"]).len(), 1);
}

#[tokio::test]
async fn status_reports_nothing_if_all_backends_have_one_cgroup_driver() {
    for driver in [Systemd, Cgroupfs] {
        let rig = both(driver, driver).await;
        assert_eq!(backends_ready(&status(&rig).await), "");
    }
}

#[tokio::test]
async fn a_backend_without_runtime_config_has_no_cgroup_driver_and_is_not_reported() {
    let kata = Sim::new("kata").lacks(["RuntimeConfig"]);
    let rig = Rig::start([Sim::new("runc").cgroup_driver(Cgroupfs), kata]).await;
    assert!(until_state(&rig, "kata", "ready").await["cgroupDriver"].is_null());
    assert_eq!(backends_ready(&status(&rig).await), "");
}

#[tokio::test]
async fn the_kubelet_gets_the_driver_in_the_configuration_of_a_default_backend_without_runtime_config()
 {
    let runc = Sim::new("runc").lacks(["RuntimeConfig"]).set(|settings| {
        let options = serde_json::json!({ "SystemdCgroup": true });
        let runc =
            serde_json::json!({ "runtimeType": "io.containerd.runc.v2", "options": options });
        let runtimes =
            serde_json::json!({ "defaultRuntimeName": "runc", "runtimes": { "runc": runc } });
        settings.config = Some(serde_json::json!({ "containerd": runtimes }));
    });
    let rig = Rig::start([runc, Sim::new("kata").cgroup_driver(Cgroupfs)]).await;
    until_state(&rig, "runc", "ready").await;
    let request = criswitch_cri::codec::cri::RuntimeConfigRequest {};
    let config = rig
        .runtime()
        .runtime_config(request)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(config.linux.unwrap().cgroup_driver(), Systemd);
    assert_eq!(state_of(&rig, "runc").await["cgroupDriver"], "systemd");
}

#[tokio::test]
async fn a_backend_that_comes_back_with_another_cgroup_driver_is_reported() {
    let rig = runc_and_kata().await;
    until_state(&rig, "kata", "ready").await;
    assert_eq!(backends_ready(&status(&rig).await), "");
    stopped(&rig, "kata").await;
    rig.sim("kata").clone().cgroup_driver(Cgroupfs);
    rig.sim("kata").start();
    until_state(&rig, "kata", "ready").await;
    let shown = status(&rig).await;
    assert!(backends_ready(&shown).contains("cgroup driver"));
    stopped(&rig, "kata").await;
    rig.sim("kata").clone().cgroup_driver(Systemd);
    rig.sim("kata").start();
    until_state(&rig, "kata", "ready").await;
    assert_eq!(backends_ready(&status(&rig).await), "");
}

#[tokio::test]
async fn a_reload_reports_that_the_new_default_has_another_cgroup_driver() {
    let logged = Logged::here();
    let rig = both(Systemd, Cgroupfs).await;
    let table = "runc = \"runc\"\nkata = \"kata\"";
    let changes = reload(&rig, "kata", table, &["runc", "kata"]);
    let warning = &changes.warnings[0];
    assert!(
        warning.starts_with("wrong cgroup driver: kata uses a different driver than runc"),
        "{warning}"
    );
    let shown = logged.lines(&["ERROR", "reloaded", "kata uses a different driver"]);
    assert_eq!(shown.len(), 1);
    let changes = reload(&rig, "kata", table, &["runc", "kata"]);
    assert_eq!(changes.lines, ["nothing changed"]);
}
