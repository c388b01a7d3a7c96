//! A real systemd in separate namespaces (boot.sh) runs the shipped units, in front of simulated runtimes.
// No other crate can reach these items, and a panic is a failed test.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::panic, clippy::indexing_slicing)]

mod applies;
mod interruptions;
mod machine;
mod plans;
mod reloads;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

use criswitch_testing as support;
use machine::{Machine, until};

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn the_units_are_sound_and_hardened() {
    let machine = Machine::boot().await;
    let at = |unit: &str| format!("/etc/systemd/system/{unit}");
    for unit in [
        "criswitch.service",
        "criswitch.socket",
        "criswitch-metrics.socket",
        "kubelet.service",
    ] {
        let said = machine.runs("systemd-analyze", &["verify", &at(unit)]);
        assert_eq!(said, "");
    }
    let unit = at("criswitch.service");
    let security = ["security", "--offline=true", "--threshold=10", &unit];
    machine.runs("systemd-analyze", &security);
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn the_kubelet_starts_after_criswitch_serves_and_nothing_else_is_needed() {
    let machine = Machine::boot().await;
    // The test's kubelet checks at its start that criswitch is active.
    assert_eq!(machine.show("kubelet", "Result"), "success");
    assert_eq!(machine.show("criswitch", "ActiveState"), "active");
    let socket = std::fs::metadata(machine.socket()).unwrap();
    assert_eq!(socket.mode() & 0o777, 0o600);
    let directory = std::fs::metadata(machine.socket().parent().unwrap()).unwrap();
    assert_eq!(directory.mode() & 0o777, 0o700);
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn backends_are_found_wherever_their_sockets_are_and_the_status_line_counts_them() {
    let machine = Machine::boot().await;
    let client = machine.client();
    for handler in ["runc", "kata", "gvisor"] {
        client.run_pod(handler, handler).await.unwrap();
    }
    until(async || machine.show("criswitch", "StatusText") == "3/3 backends ready, 3 pods").await;
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn a_socket_that_root_does_not_own_needs_the_documented_drop_in() {
    let drop_in = "[Service]\nCapabilityBoundingSet=CAP_DAC_OVERRIDE\n";
    for (drop_in, ready) in [("", "2/3"), (drop_in, "3/3")] {
        let machine = Machine::boot_with(drop_in).await;
        let socket = machine.sim("kata").socket();
        std::os::unix::fs::chown(&socket, Some(1000), Some(1000)).unwrap();
        std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o600)).unwrap();
        machine.restart().await;
        let expected = format!("{ready} backends ready, 0 pods");
        until(async || machine.show("criswitch", "StatusText") == expected).await;
    }
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn check_reads_the_files_of_the_kubelets_unit_that_systemd_itself_reads() {
    let machine = Machine::boot().await;
    let drop_in = |directory: &str, socket: &str| {
        let path = machine.at(&format!("{directory}/systemd/system/kubelet.service.d"));
        std::fs::create_dir_all(&path).unwrap();
        let text = format!(
            "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet --container-runtime-endpoint={socket}\n"
        );
        std::fs::write(path.join("10-socket.conf"), text).unwrap();
    };
    drop_in("run", "/run/not-read.sock");
    machine.systemctl(&["daemon-reload"]);
    let check = || {
        machine
            .command("criswitch", &["check", "--node"])
            .output()
            .unwrap()
            .stdout
    };
    let script = String::from_utf8(check()).unwrap();
    let words = "kubelet.service: unknown: looked at ExecStart= of this unit, which runs";
    assert!(script.contains(words), "{script}");
    drop_in("etc", "/run/criswitch/criswitch.sock");
    machine.systemctl(&["daemon-reload"]);
    let shown = String::from_utf8(check()).unwrap();
    let place = "/etc/systemd/system/kubelet.service.d/10-socket.conf";
    let runtime = format!("runtime  /run/criswitch/criswitch.sock  {place}");
    assert!(shown.contains(&runtime), "{shown}");
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn metrics_are_served_on_the_loopback_once_their_socket_is_enabled_and_criswitch_restarted() {
    let machine = Machine::boot().await;
    assert_eq!(
        machine.show("criswitch-metrics.socket", "ActiveState"),
        "inactive"
    );
    let client = machine.client();
    let pod = client.run_pod("kata", "web").await.unwrap();
    // systemd cannot pass a new socket to a running daemon.
    machine.fails(&["enable", "--quiet", "--now", "criswitch-metrics.socket"]);
    let (restarted, pods) = tokio::join!(machine.restart(), client.pods());
    assert_eq!(restarted, "");
    assert_eq!(pods.unwrap()[0].id, pod);
    for _ in 0..3 {
        until(async || machine.metrics().contains("kind=\"pod\"} 1")).await;
        let (reloaded, pods) = tokio::join!(machine.ctl("reload"), client.pods());
        assert_eq!(reloaded, "");
        assert_eq!(pods.unwrap()[0].id, pod);
        assert!(
            machine
                .metrics()
                .contains("criswitch_config_last_reload_successful 1")
        );
        assert_eq!(machine.restart().await, "");
    }
    assert_eq!(machine.show("criswitch", "PrivateNetwork"), "yes");
    machine.systemctl(&["stop", "criswitch.socket", "criswitch.service"]);
    assert_eq!(
        machine.show("criswitch-metrics.socket", "ActiveState"),
        "inactive"
    );
}

/// The drop-in of docs/metrics.md.
#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn another_machine_reads_the_metrics_once_a_drop_in_has_its_network() {
    let machine = Machine::boot().await;
    let neighbour = machine.neighbour();
    let folder = machine.at("etc/systemd/system/criswitch-metrics.socket.d");
    fs::create_dir_all(&folder).unwrap();
    let page = include_str!("../../../docs/metrics.md");
    let mut blocks = page.split("\n\n");
    let drop_in = blocks.find(|block| block.starts_with("    [Socket]\n"));
    fs::write(folder.join("network.conf"), drop_in.unwrap()).unwrap();
    machine.systemctl(&["daemon-reload"]);
    machine.systemctl(&["enable", "--quiet", "criswitch-metrics.socket"]);
    assert_eq!(machine.restart().await, "");
    assert!(neighbour.gets_no_connection());
    let allowed = drop_in.unwrap().replace("10.0.0.0/8", "192.0.2.0/24");
    fs::write(folder.join("network.conf"), allowed).unwrap();
    machine.systemctl(&["daemon-reload"]);
    assert_eq!(machine.restart().await, "");
    for page in [neighbour.metrics(), machine.metrics()] {
        assert!(
            page.contains("\ncriswitch_verdict{verdict=\"serving\"}"),
            "{page}"
        );
    }
    let directory = tempfile::tempdir().unwrap();
    let _prometheus = neighbour.prometheus(directory.path());
    let query = "criswitch_verdict{verdict=\"serving\"}";
    until(async || neighbour.answer_of_prometheus(query).contains("=> 1 @")).await;
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn restarts_are_not_seen_by_clients() {
    let machine = Machine::boot().await;
    let client = machine.client();
    let pod = client.run_pod("kata", "web").await.unwrap();
    let inode = std::fs::metadata(machine.socket()).unwrap().ino();
    for _ in 0..10 {
        let (restarted, pods) = tokio::join!(machine.restart(), client.pods());
        assert_eq!(restarted, "");
        assert_eq!(pods.unwrap()[0].id, pod);
        assert_eq!(client.pods().await.unwrap()[0].id, pod);
    }
    assert_eq!(std::fs::metadata(machine.socket()).unwrap().ino(), inode);
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn a_killed_daemon_is_started_again() {
    let machine = Machine::boot().await;
    let client = machine.client();
    let pod = client.run_pod("kata", "web").await.unwrap();
    for killed in 1..=7 {
        machine.systemctl(&["kill", "--signal=KILL", "criswitch.service"]);
        until(async || machine.show("criswitch", "NRestarts") == killed.to_string()).await;
        // The client notices a broken connection only with its next call.
        until(async || client.pods().await.is_ok_and(|pods| pods[0].id == pod)).await;
    }
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn no_pod_is_missing_after_a_restart_while_a_backend_is_down() {
    let machine = Machine::boot().await;
    let client = machine.client();
    let (gone, _) = (
        client.run_pod("kata", "boxed").await.unwrap(),
        client.run_pod("runc", "plain").await.unwrap(),
    );
    machine.sim("kata").stop().await;
    for end in ["restart", "kill", "stop"] {
        match end {
            "kill" => drop(machine.systemctl(&["kill", "--signal=KILL", "criswitch.service"])),
            "stop" => {
                // systemctl warns that the socket can start the service again.
                machine.ctl("stop").await;
                assert_eq!(machine.ctl("start").await, "");
            }
            _ => assert_eq!(machine.restart().await, ""),
        }
        until(async || client.pods().await.is_ok()).await;
        let pods = client.pods().await.unwrap();
        let ids: Vec<&str> = pods.iter().map(|pod| pod.id.as_str()).collect();
        assert!(
            ids.len() == 2 && ids.contains(&gone.as_str()),
            "{end}: {ids:?}"
        );
    }
    // Only root may read the state.
    let modes = machine.runs(
        "find",
        &[
            "/run/criswitch/state",
            "/var/lib/criswitch",
            "-printf",
            "%y %m %P\n",
        ],
    );
    assert!(modes.contains("f 600 backends.register"), "{modes}");
    assert!(
        modes
            .lines()
            .filter(|line| line.ends_with(".backend"))
            .count()
            == 3,
        "{modes}"
    );
    let is_private = |line: &str| line.starts_with("d 700") || line.starts_with("f 600");
    assert!(modes.lines().all(is_private), "{modes}");
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn a_hanging_daemon_is_killed_by_the_watchdog_and_started_again() {
    let machine = Machine::boot_with("[Service]\nWatchdogSec=1s\n").await;
    machine.systemctl(&["kill", "--signal=STOP", "criswitch.service"]);
    until(async || machine.show("criswitch", "NRestarts") != "0").await;
    machine.client().pods().await.unwrap();
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn a_serving_daemon_is_not_killed_by_the_watchdog() {
    // The daemon notifies systemd after half of this time.
    let machine = Machine::boot_with("[Service]\nWatchdogSec=10s\n").await;
    let client = machine.client();
    let notified = || machine.show("criswitch", "WatchdogTimestampMonotonic");
    let first = notified();
    until(async || {
        client.pods().await.unwrap();
        notified() != first
    })
    .await;
    assert_eq!(machine.show("criswitch", "NRestarts"), "0");
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn a_mistake_in_the_configuration_keeps_clients_waiting_until_it_is_fixed() {
    let machine = Machine::boot().await;
    let good = machine.configure("default_handler = 'nothing'\n");
    machine.fails(&["restart", "criswitch.service"]);
    let client = machine.client();
    let call = client.pods();
    let mend = async {
        until(async || machine.show("criswitch", "SubState") == "auto-restart").await;
        machine.configure(&good);
    };
    let (pods, ()) = tokio::join!(call, mend);
    pods.unwrap();
    assert_eq!(machine.show("criswitch", "ActiveState"), "active");
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn systemd_waits_for_a_shutdown_that_takes_longer_than_the_units_limit() {
    const STOP_LIMIT: Duration = Duration::from_secs(1);
    let machine = Machine::boot_with("[Service]\nTimeoutStopSec=1s\n").await;
    let client = machine.client();
    let runc = machine.sim("runc").clone();
    runc.hold("RunPodSandbox");
    let end = async {
        runc.until_held("RunPodSandbox").await;
        machine.systemctl(&["restart", "--no-block", "criswitch.service"]);
        until(async || {
            machine
                .show("criswitch", "StatusText")
                .starts_with("waiting")
        })
        .await;
        // systemd uses the real clock.
        tokio::time::sleep(2 * STOP_LIMIT).await;
        runc.release("RunPodSandbox");
    };
    let (pod, ()) = tokio::join!(client.run_pod("runc", "web"), end);
    pod.unwrap();
    until(async || machine.show("criswitch", "ActiveState") == "active").await;
    assert_eq!(machine.show("criswitch", "NRestarts"), "0");
}
