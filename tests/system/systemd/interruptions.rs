//! Interruptions of `criswitch node` on a running node, with a real systemd and a simulated kubelet.

use std::fs;

use crate::applies::{
    APPLY, Before, call, files, node, process, reject_criswitch, said, status, succeeds,
};
use crate::machine::{Machine, until};

const RECOVER: &str = "criswitch-recover.service";

/// Runs a command that is cut off at this moment. Returns whether the command was complete before that moment, and its
/// output.
async fn cut(machine: &Machine, arguments: &[&str], moment: usize) -> (bool, String) {
    let moment = moment.to_string();
    let cut = ["--here", "--end-at", &moment];
    let output = call(machine, &[arguments, &cut].concat()).await;
    (output.status.success(), said(&output))
}

/// Starts the kubelet and the unit that undoes an interrupted command, as a boot does.
fn boot(machine: &Machine) {
    machine.systemctl(&["daemon-reload"]);
    let stop = ["stop", "kubelet.service", "criswitch.service"];
    machine.command("systemctl", &stop).output().unwrap();
    machine.systemctl(&["start", RECOVER, "kubelet.service"]);
}

/// Undoes an interrupted command in one of two ways: as the unit of the command does at its end, or as a boot does. A
/// boot starts the recover unit only if the unit is enabled.
async fn recover(machine: &Machine, moment: usize) {
    let link = format!("etc/systemd/system/multi-user.target.wants/{RECOVER}");
    let is_enabled = machine.at(&link).exists();
    if !is_enabled {
        assert_ne!(status(machine).await["state"], "interrupted", "{moment}");
    }
    if is_enabled && moment % 2 == 1 {
        boot(machine)
    } else {
        _ = call(machine, &["undo", "--here", "--interrupted"]).await
    }
}

/// Runs a command that is cut off at this moment, and undoes its changes. Returns whether the command was complete
/// before that moment.
async fn there_and_back(
    machine: &Machine,
    before: &Before,
    arguments: &[&str],
    moment: usize,
) -> bool {
    let (is_whole, shown) = cut(machine, arguments, moment).await;
    go_back(machine, moment).await;
    before.is_back(machine, &format!("{moment}: {shown}"));
    is_whole
}

/// Undoes an `apply` completely, whether the `apply` itself or its undo was interrupted.
async fn go_back(machine: &Machine, moment: usize) {
    recover(machine, moment).await;
    if status(machine).await["state"] == "installed" {
        succeeds(machine, &["undo", "--here"]).await;
    }
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn an_apply_that_ends_at_any_moment_leaves_a_node_as_before() {
    let machine = node().await;
    let before = Before::of(&machine);
    // Until the first action, only files have changed, so this loop needs only every tenth moment. A boot starts the
    // units whose files exist.
    let mut moment = 10;
    while !cut(&machine, &APPLY, moment)
        .await
        .1
        .contains("start: systemctl")
    {
        go_back(&machine, moment).await;
        moment += 10;
    }
    go_back(&machine, moment).await;
    moment -= 20;
    while !there_and_back(&machine, &before, &APPLY, moment).await {
        moment += 1;
    }
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn an_undo_that_ends_at_any_moment_leaves_a_node_as_before() {
    let machine = node().await;
    let before = Before::of(&machine);
    for moment in 0.. {
        succeeds(&machine, &[&APPLY[..], &["--here"]].concat()).await;
        if there_and_back(&machine, &before, &["undo"], moment).await {
            break;
        }
    }
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn an_apply_beside_another_a_stop_and_a_new_systemd_leaves_a_node_as_before() {
    let machine = node().await;
    let before = Before::of(&machine);
    // The kubelet rejects criswitch, so the step `verify` lasts until its time limit.
    reject_criswitch(&machine);
    for meanwhile in [&["daemon-reexec"][..], &["stop", "criswitch-apply.service"]] {
        let disturb = async {
            until(async || status(&machine).await["state"] == "changing").await;
            let second = call(&machine, &APPLY).await;
            let words = "another criswitch changes this machine now";
            assert!(said(&second).contains(words), "{}", said(&second));
            machine.systemctl(meanwhile);
        };
        let (first, ()) = tokio::join!(call(&machine, &APPLY), disturb);
        assert_eq!(first.status.code(), Some(1), "{}", said(&first));
        before.is_back(&machine, &said(&first));
        assert_eq!(status(&machine).await["state"], "failed");
    }
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn an_apply_goes_on_without_its_shell_and_is_undone_if_it_is_killed() {
    let machine = node().await;
    let before = Before::of(&machine);
    for moment in ["30", "70"] {
        let output = call(&machine, &[&APPLY[..], &["--end-at", moment]].concat()).await;
        let words = "criswitch-apply.service ended with the result signal 9";
        assert!(said(&output).contains(words), "{}", said(&output));
        before.is_back(&machine, &said(&output));
        assert_eq!(
            status(&machine).await["failure"]["why"],
            "the command was interrupted"
        );
    }
    let script =
        "cd /var/lib/criswitch/node; rm apply.log; /root/criswitch node apply --spec /root/spec.toml & pid=$!
        until [ -s apply.log ]; do :; done; kill -KILL $pid";
    let script = tokio::process::Command::from(machine.command("bash", &["-c", script])).output();
    script.await.unwrap();
    until(async || status(&machine).await["state"] == "installed").await;
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn an_undo_that_removes_its_own_program_is_completed_if_it_is_killed() {
    let machine = node().await;
    let before = Before::of(&machine);
    for moment in (3..).step_by(8) {
        succeeds(&machine, &APPLY).await;
        let end = moment.to_string();
        let undo = ["node", "undo", "--end-at", &end];
        let undo = machine.command("/opt/criswitch/current/criswitch", &undo);
        let output = tokio::process::Command::from(undo).output().await.unwrap();
        if status(&machine).await["state"] == "installed" {
            succeeds(&machine, &["undo"]).await;
        }
        // The last step removes the folder of the recover program. An end just before it leaves the empty folder,
        // because no program is left to complete the undo.
        fs::remove_dir(machine.at("opt/criswitch")).ok();
        before.is_back(&machine, &format!("{end}: {}", said(&output)));
        if output.status.success() {
            assert!(moment > 40, "{moment}");
            break;
        }
    }
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn an_undo_that_is_stopped_is_completed_and_fails() {
    let machine = node().await;
    let before = Before::of(&machine);
    succeeds(&machine, &APPLY).await;
    let stop = async {
        let unit = "criswitch-apply";
        until(async || process_state(&machine, &process(&machine, unit)) == Some('T')).await;
        machine.systemctl(&["stop", unit]);
    };
    let (undo, ()) = tokio::join!(call(&machine, &["undo", "--stop-at", "3"]), stop);
    let said = said(&undo);
    assert_eq!(undo.status.code(), Some(1), "{said}");
    assert!(
        said.contains("criswitch-apply.service ended with the result"),
        "{said}"
    );
    before.is_back(&machine, &said);
}

/// The state of a process, as the letter in /proc/PID/stat.
fn process_state(machine: &Machine, process: &str) -> Option<char> {
    let path = machine.at(&format!("proc/{process}/stat"));
    let text = fs::read_to_string(path).ok()?;
    let (_, fields) = text.rsplit_once(") ")?;
    fields.chars().next()
}

/// An undo at a boot removes the file of its own unit. From then on, systemd may apply only its default start timeout
/// to the unit, and the undo may take longer.
#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn a_slow_undo_at_boot_ends_on_its_own() {
    let machine = node().await;
    let before = Before::of(&machine);
    let (is_whole, _) = cut(&machine, &APPLY, 60).await;
    assert!(!is_whole);
    let limit = machine.at("run/systemd/system.conf.d/limit.conf");
    fs::create_dir_all(limit.parent().unwrap()).unwrap();
    fs::write(limit, "[Manager]\nDefaultTimeoutStartSec=1ms\n").unwrap();
    machine.systemctl(&["daemon-reexec"]);
    boot(&machine);
    before.is_back(&machine, "boot");
}

/// A program that an apply has started may continue to run after the apply was killed. In this test, the program
/// ignores the signal with which systemd ends the unit.
#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn a_program_that_ignores_signals_does_not_hold_up_an_undo() {
    let machine = node().await;
    let before = Before::of(&machine);
    let script = "
        /root/criswitch node apply --spec /root/spec.toml --stop-at 5 & apply=$!
        of() { systemctl show --value --property=$1 criswitch-apply.service; }
        until grep -q '^State:.T' /proc/$(of MainPID)/status; do :; done
        (trap '' TERM; echo $BASHPID >/sys/fs/cgroup/$(of ControlGroup)/cgroup.procs; exec sleep infinity) &
        until grep -qx $! /sys/fs/cgroup/$(of ControlGroup)/cgroup.procs; do :; done
        systemctl kill --kill-who=main --signal=KILL criswitch-apply.service
        wait $apply";
    let script = machine.command("timeout", &["120", "bash", "-c", script]);
    let output = tokio::process::Command::from(script)
        .output()
        .await
        .unwrap();
    before.is_back(&machine, &said(&output));
    let failure = &status(&machine).await["failure"]["why"];
    assert_eq!(failure, "the command was interrupted");
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn an_upgrade_that_fails_goes_back_without_the_kubelet() {
    let machine = node().await;
    succeeds(&machine, &APPLY).await;
    let (installed, kubelet) = (files(&machine), process(&machine, "kubelet"));
    fs::create_dir(machine.at("root/bad")).unwrap();
    for name in ["criswitch", "criswitchd"] {
        let program = machine.at("root/bad").join(name);
        fs::write(program, "#!/bin/sh\nexit 1\n").unwrap();
    }
    let upgrade = [&APPLY[..], &["--programs", "/root/bad"]].concat();
    let output = call(&machine, &upgrade).await;
    let words = "step start has failed, and all changes are undone: ";
    assert!(said(&output).contains(words), "{}", said(&output));
    assert_eq!(process(&machine, "kubelet"), kubelet);
    assert_eq!(status(&machine).await["state"], "failed");
    machine.client().pods().await.unwrap();
    // At a boot, criswitch waits for the unit that undoes the upgrade.
    let actions = || {
        let journal = machine.at("var/lib/criswitch/node/journal");
        fs::read_to_string(journal)
            .unwrap()
            .matches("{\"act\"")
            .count()
    };
    let before = actions();
    for moment in 10.. {
        cut(&machine, &upgrade, moment).await;
        if actions() > before {
            break;
        }
        recover(&machine, 0).await;
    }
    boot(&machine);
    assert_eq!(files(&machine), installed);
    until(async || machine.show("criswitch", "ActiveState") == "active").await;
    assert_eq!(machine.show("kubelet", "ActiveState"), "active");
}
