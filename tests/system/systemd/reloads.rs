//! `systemctl reload` and the plain signal: the state that systemd sees, and the output.

use crate::machine::{CONFIG, Machine, until};

/// Mounts a file system that never answers on the service's conf.d. The mount lasts as long as the process `sleep`
/// holds the other end of the file system.
const HANG: &str = "set -e
    mknod /dev/fuse c 10 229
    exec 3<>/dev/fuse
    nsenter --mount --target=$(systemctl show --value --property=MainPID criswitch.service) \
      mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0 hung /etc/criswitch/conf.d
    sleep infinity >/dev/null 2>&1 &";

/// Asserts that the service still runs, without a restart.
fn runs(machine: &Machine) {
    assert_eq!(machine.show("criswitch", "SubState"), "running");
    assert_eq!(machine.show("criswitch", "NRestarts"), "0");
}

/// The log of a reload of this configuration, which systemctl must report as failed.
async fn refused(machine: &Machine, config: &str) -> String {
    let before = machine.log().len();
    machine.configure(config);
    let said = machine.ctl("reload").await;
    assert!(said.contains("Job for criswitch.service failed"), "{said}");
    runs(machine);
    machine.log().split_off(before)
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn systemctl_reload_ends_with_the_outcome_of_the_reload() {
    let machine = Machine::boot().await;
    let client = machine.client();
    client.run_pod("kata", "web").await.unwrap();
    until(async || machine.show("criswitch", "StatusText") == "3/3 backends ready, 1 pod").await;
    let more =
        format!("{CONFIG}crun = {{ socket = \"/run/backends/runc.sock\", handler = \"runc\" }}\n");
    machine.configure(&more);
    assert_eq!(machine.ctl("reload").await, "");
    runs(&machine);
    assert!(machine.log().contains("\nhandler added: crun\n"));
    client.run_pod("crun", "db").await.unwrap();
    until(async || machine.show("criswitch", "StatusText") == "3/3 backends ready, 2 pods").await;

    let log = refused(&machine, "default_handler = 'nothing'\n").await;
    let place = "/etc/criswitch/criswitch.toml:1:1: no handler is defined";
    assert!(log.contains(place), "{log}");
    assert!(log.contains("not reloaded: nothing has changed"), "{log}");
    assert_eq!(
        machine.show("criswitch", "StatusText"),
        "3/3 backends ready, 2 pods"
    );
    client.run_pod("crun", "cache").await.unwrap();
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn a_changed_listen_fails_a_reload_with_the_reason_until_it_is_set_back() {
    let machine = Machine::boot().await;
    let other = format!("listen = \"/run/criswitch/other.sock\"\n{CONFIG}");
    let log = refused(&machine, &other).await;
    assert!(
        log.contains("if you changed `listen`, restart criswitch"),
        "{log}"
    );
    assert!(log.contains("/run/criswitch/other.sock"), "{log}");

    let reload = "reload --socket /run/criswitch/criswitch.sock";
    let mut asked = machine.command("criswitch", &reload.split(' ').collect::<Vec<_>>());
    let asked = tokio::task::spawn_blocking(move || asked.output().unwrap())
        .await
        .unwrap();
    assert_eq!(asked.status.code(), Some(78));
    let shown = String::from_utf8(asked.stderr).unwrap();
    assert!(shown.contains("\"listen\" cannot change"), "{shown}");

    let before = machine.log().len();
    hang_up(&machine);
    until(async || machine.log()[before..].contains("\\\"listen\\\" cannot change")).await;
    until(async || machine.show("criswitch", "SubState") == "running").await;
    runs(&machine);
    machine.client().run_pod("runc", "web").await.unwrap();

    machine.configure(CONFIG);
    assert_eq!(machine.ctl("reload").await, "");
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn a_hanging_reload_is_reported_to_systemd_and_delays_neither_calls_nor_the_shutdown() {
    let machine = Machine::boot().await;
    std::fs::create_dir(machine.at("etc/criswitch/conf.d")).unwrap();
    machine.configure(&format!("watch = true\n{CONFIG}"));
    assert_eq!(machine.ctl("reload").await, "");
    machine.runs("bash", &["-c", HANG]);
    hang_up(&machine);
    until(async || machine.show("criswitch", "ActiveState") == "reloading").await;
    machine.client().run_pod("runc", "web").await.unwrap();
    machine.systemctl(&["stop", "criswitch.socket", "criswitch.service"]);
    // systemd did not have to kill the service.
    assert_eq!(machine.show("criswitch", "Result"), "success");
}

fn hang_up(machine: &Machine) {
    machine.systemctl(&[
        "kill",
        "--signal=HUP",
        "--kill-who=main",
        "criswitch.service",
    ]);
}
