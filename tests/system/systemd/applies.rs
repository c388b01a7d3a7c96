//! `criswitch node apply`, `undo` and `uninstall` on a running node, with a real systemd and a simulated kubelet.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Output};

use serde_json::Value;

use crate::machine::{CONFIG, Machine, until};
use crate::support::Client;

const UNIT: &str = "[Unit]
StartLimitIntervalSec=0
[Service]
ExecStart=/opt/kubelet /opt/kubelet.sh --config=/var/lib/kubelet/config.yaml --healthz-port=0
Restart=always
RestartSec=100ms
[Install]
WantedBy=multi-user.target
";
/// A kubelet ends without its runtime. This one ends with criswitch, too, if the file exists.
const KUBELET: &str = "
socket=$(sed -n 's|^containerRuntimeEndpoint: unix://||p' /var/lib/kubelet/config.yaml)
[ -S \"$socket\" ]
[ \"$socket\" = /run/backends/runc.sock ] || [ ! -e /run/kubelet-rejects-criswitch ]
sleep infinity &
wait
";
/// Accepts what a simulated kubelet cannot show, and what simulated runtimes outside of the machine cannot do.
const NODE: &str = "
[node]
try = 'off'
kubelet_timeout = '2s'
settle_time = '200ms'
accept = ['current-runtime', 'cgroup-driver', 'handler-without-row', 'unknown-pod', 'kubelet-version', 'kubelet-files',
    'young-pod', 'admission', 'eviction', 'readiness']
";
const RECOVER: &str = "criswitch-recover.service";
const SPEC: &str = "root/spec.toml";

/// A node with a kubelet that uses runc, and the program of criswitch in /root.
async fn node() -> Machine {
    let machine = Machine::boot_bare().await;
    let write = |path: &str, text: &str| {
        let path = machine.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("etc/systemd/system/kubelet.service", UNIT);
    write("opt/kubelet.sh", &format!("set -eu\n{KUBELET}"));
    write(
        "var/lib/kubelet/config.yaml",
        "containerRuntimeEndpoint: unix:///run/backends/runc.sock\n",
    );
    write(SPEC, &format!("{CONFIG}{NODE}"));
    fs::create_dir(machine.at("var/lib/kubelet/pods")).unwrap();
    fs::copy("/usr/bin/bash", machine.at("opt/kubelet")).unwrap();
    let program = machine.at("root/criswitch");
    let mut strip = Command::new("strip");
    strip
        .args([env!("CARGO_BIN_EXE_criswitch"), "-o"])
        .arg(program);
    assert!(strip.status().unwrap().success());
    machine.systemctl(&["daemon-reload"]);
    machine.systemctl(&["restart", "kubelet"]);
    machine
}

async fn call(machine: &Machine, arguments: &[&str]) -> Output {
    let arguments = [&["node"], arguments].concat();
    // The simulated runtimes answer meanwhile.
    let command = machine.command("/root/criswitch", &arguments);
    let output = tokio::process::Command::from(command).output();
    output.await.unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8([&*output.stdout, &*output.stderr].concat()).unwrap()
}

/// Runs a command of `criswitch node`, which must succeed.
async fn succeeds(machine: &Machine, arguments: &[&str]) -> String {
    let output = call(machine, arguments).await;
    assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    said(&output)
}

const APPLY: [&str; 3] = ["apply", "--spec", "/root/spec.toml"];

async fn status(machine: &Machine) -> Value {
    serde_json::from_slice(&call(machine, &["status", "--json"]).await.stdout).unwrap()
}

/// Every path that a node has, with its mode, owner and content, except the journal.
fn files(machine: &Machine) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut paths = vec!["etc", "opt", "var"]
        .into_iter()
        .map(|name| machine.at(name))
        .collect::<Vec<_>>();
    while let Some(path) = paths.pop() {
        let about = path.symlink_metadata().unwrap();
        if path.ends_with("var/lib/criswitch") {
            let left = fs::read_dir(&path).unwrap();
            let left = left.map(|entry| entry.unwrap().file_name());
            let left: Vec<_> = left.filter(|name| name != "node").collect();
            found.insert("state".to_owned(), format!("{left:?}"));
            continue;
        }
        let mut hash = DefaultHasher::new();
        match about.is_symlink() {
            true => fs::read_link(&path).unwrap().hash(&mut hash),
            false => fs::read(&path).unwrap_or_default().hash(&mut hash),
        }
        let mode = about.permissions().mode();
        let name = path
            .strip_prefix(machine.at(""))
            .unwrap()
            .display()
            .to_string();
        let kind = (mode, about.uid(), about.gid(), hash.finish());
        found.insert(name, format!("{kind:?}"));
        if about.is_dir() {
            let entries = fs::read_dir(path).unwrap();
            paths.extend(entries.map(|entry| entry.unwrap().path()));
        }
    }
    found
}

/// The state before `apply`.
struct Before(BTreeMap<String, String>);

impl Before {
    fn of(machine: &Machine) -> Before {
        let mut files = files(machine);
        files.insert("state".to_owned(), "[]".to_owned());
        Before(files)
    }

    /// Asserts that the machine is as before: files, units, the kubelet.
    #[track_caller]
    fn is_back(&self, machine: &Machine, when: &str) {
        let mut files = files(machine);
        files.entry("state".to_owned()).or_insert("[]".to_owned());
        let changed: Vec<_> = files
            .iter()
            .filter(|(path, now)| self.0.get(*path) != Some(now))
            .collect();
        assert!(changed.is_empty(), "{when}: {changed:?}");
        assert_eq!(files.len(), self.0.len(), "{when}");
        assert_eq!(machine.show("kubelet", "ActiveState"), "active", "{when}");
        let units = machine.systemctl(&[
            "list-units",
            "--all",
            "--plain",
            "--no-legend",
            "criswitch*",
        ]);
        assert_eq!(units, "", "{when}");
    }
}

fn process(machine: &Machine, unit: &str) -> String {
    machine.show(unit, "MainPID")
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn a_running_node_is_set_up_once_and_taken_back_and_keeps_its_pods() {
    let machine = node().await;
    let runc = Client::new(&machine.shared().join("runc.sock"));
    let pod = runc.run_pod("runc", "web").await.unwrap();
    let before = Before::of(&machine);
    let kubelet = process(&machine, "kubelet");
    let check = format!("{CONFIG}{NODE}mode = 'check'\n");
    fs::write(machine.at(SPEC), check).unwrap();
    assert_eq!(call(&machine, &APPLY).await.status.code(), Some(2));
    before.is_back(&machine, "check");
    fs::write(machine.at(SPEC), format!("{CONFIG}{NODE}")).unwrap();
    let shown = succeeds(&machine, &APPLY).await;
    assert!(
        shown.ends_with("installed; criswitch node undo takes it back\n"),
        "{shown}"
    );
    assert_eq!(machine.client().pods().await.unwrap()[0].id, pod);
    let processes = || ["kubelet", "criswitch"].map(|unit| process(&machine, unit));
    let running = processes();
    assert_ne!(running[0], kubelet);
    succeeds(&machine, &["status", "--ready"]).await;
    // Twice changes and restarts nothing.
    let installed = files(&machine);
    let shown = succeeds(&machine, &APPLY).await;
    assert!(shown.ends_with("ready: nothing would change\n"), "{shown}");
    assert_eq!(processes(), running);
    assert_eq!(files(&machine), installed);
    assert!(
        !machine
            .at("etc/systemd/system/criswitch-recover.service")
            .exists()
    );
    // Drift has names.
    machine.systemctl(&["stop", "kubelet", "criswitch.socket", "criswitch.service"]);
    let drifted = status(&machine).await;
    assert_eq!(drifted["state"], "drifted");
    let what: Vec<_> = drifted["drifted"]
        .as_array()
        .unwrap()
        .iter()
        .map(|what| what.as_str().unwrap())
        .collect();
    assert!(
        what[0].starts_with("criswitch: ")
            && what[1] == "kubelet.service: kubelet.service is inactive",
        "{what:?}"
    );
    machine.systemctl(&["start", "kubelet"]);
    succeeds(&machine, &["status", "--ready"]).await;
    // The undo also removes a unit that has failed.
    let drop_in = machine.at("etc/systemd/system/criswitch.service.d/10-test.conf");
    fs::write(&drop_in, "[Service]\nRestart=no\nExecStartPre=false\n").unwrap();
    machine.systemctl(&["daemon-reload"]);
    let restart = ["restart", "criswitch.service"];
    machine.command("systemctl", &restart).output().unwrap();
    assert_eq!(machine.show("criswitch", "ActiveState"), "failed");
    succeeds(&machine, &["undo"]).await;
    fs::remove_file(drop_in).unwrap();
    before.is_back(&machine, "undo");
    assert_eq!(status(&machine).await["state"], "undone");
    assert_eq!(runc.pods().await.unwrap()[0].id, pod);
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn a_step_that_fails_is_undone_and_named() {
    let machine = node().await;
    let before = Before::of(&machine);
    fs::write(machine.at("run/kubelet-rejects-criswitch"), "").unwrap();
    let output = call(&machine, &APPLY).await;
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let words = "step verify has failed, and all changes are undone: ";
    assert!(said(&output).contains(words), "{}", said(&output));
    before.is_back(&machine, "failed");
    let failed = status(&machine).await;
    assert_eq!(failed["state"], "failed");
    assert_eq!(failed["failure"]["step"], "verify");
    assert_eq!(
        call(&machine, &["status", "--ready"]).await.status.code(),
        Some(1)
    );
    // A configuration that criswitch rejects at its start.
    fs::remove_file(machine.at("run/kubelet-rejects-criswitch")).unwrap();
    let drop_in = machine.at("etc/systemd/system/criswitch.service.d");
    fs::write(
        drop_in.join("10-test.conf"),
        "[Service]\nExecStartPre=false\n",
    )
    .unwrap();
    let kubelet = process(&machine, "kubelet");
    let output = call(&machine, &APPLY).await;
    assert!(
        said(&output).contains("step start has failed"),
        "{}",
        said(&output)
    );
    assert_eq!(process(&machine, "kubelet"), kubelet);
    fs::remove_file(drop_in.join("10-test.conf")).unwrap();
    before.is_back(&machine, "failed start");
}

/// Runs a command that ends at this moment. Returns whether it has ended before, and its output.
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

/// Undoes an interrupted command as after the end of the unit, or as at a boot. A boot starts only a unit that is enabled.
async fn recover(machine: &Machine, moment: usize) {
    let link = format!("etc/systemd/system/multi-user.target.wants/{RECOVER}");
    let is_enabled = machine.at(&link).exists();
    if !is_enabled {
        assert_ne!(status(machine).await["state"], "interrupted", "{moment}");
    }
    match is_enabled && moment % 2 == 1 {
        true => boot(machine),
        false => _ = call(machine, &["undo", "--here", "--interrupted"]).await,
    }
}

/// Runs a command that ends at this moment, and goes back. Returns whether it has ended before.
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

/// Undoes an `apply` or its rest, whatever was interrupted.
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
    // Long before the first action, only files have changed. A boot starts the units whose files are there.
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
async fn the_undo_of_the_first_generation_restarts_the_kubelet_also_after_an_upgrade() {
    let machine = node().await;
    let before = Before::of(&machine);
    succeeds(&machine, &APPLY).await;
    // The kernel ignores bytes after the end of a program.
    let mut next = fs::read(machine.at("root/criswitch")).unwrap();
    next.extend(b"next");
    fs::write(machine.at("root/next"), next).unwrap();
    fs::set_permissions(machine.at("root/next"), Permissions::from_mode(0o755)).unwrap();
    let kubelet = process(&machine, "kubelet");
    succeeds(
        &machine,
        &[&APPLY[..], &["--program", "/root/next"]].concat(),
    )
    .await;
    succeeds(&machine, &["undo"]).await;
    assert_eq!(process(&machine, "kubelet"), kubelet);
    succeeds(&machine, &["undo"]).await;
    assert_ne!(process(&machine, "kubelet"), kubelet);
    before.is_back(&machine, "both undone");
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn the_labels_of_a_node_end_with_the_generation_that_has_set_them() {
    let machine = node().await;
    let directory = "etc/kubernetes/node-feature-discovery/features.d";
    fs::create_dir_all(machine.at(directory)).unwrap();
    let before = Before::of(&machine);
    let specify = |name: &str| {
        let labels = format!("labels_file = \"/{directory}/{name}\"\n{CONFIG}{NODE}");
        fs::write(machine.at(SPEC), labels).unwrap();
    };
    let has = |names: &[&str]| {
        let found = fs::read_dir(machine.at(directory)).unwrap();
        let found = found.map(|entry| entry.unwrap().file_name());
        found.collect::<Vec<_>>() == names
    };
    succeeds(&machine, &APPLY).await;
    specify("first");
    succeeds(&machine, &APPLY).await;
    until(async || has(&["first"])).await;
    succeeds(&machine, &["undo"]).await;
    assert!(has(&[]));
    for name in ["first", "second"] {
        specify(name);
        succeeds(&machine, &APPLY).await;
        until(async || has(&[name])).await;
    }
    succeeds(&machine, &["uninstall"]).await;
    before.is_back(&machine, "uninstalled");
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn an_upgrade_that_fails_goes_back_without_the_kubelet() {
    let machine = node().await;
    succeeds(&machine, &APPLY).await;
    let (installed, kubelet) = (files(&machine), process(&machine, "kubelet"));
    fs::write(machine.at("root/bad"), "#!/bin/sh\nexit 1\n").unwrap();
    let upgrade = [&APPLY[..], &["--program", "/root/bad"]].concat();
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

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn an_apply_beside_another_a_stop_and_a_new_systemd_leaves_a_node_as_before() {
    let machine = node().await;
    let before = Before::of(&machine);
    // The step that verifies lasts until its time limit.
    fs::write(machine.at("run/kubelet-rejects-criswitch"), "").unwrap();
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
async fn an_image_that_has_booted_is_judged_and_undone_like_a_node() {
    let machine = node().await;
    let before = Before::of(&machine);
    let spec = format!("{CONFIG}{NODE}").replace("accept = [", "accept = ['backend', ");
    fs::write(machine.at(SPEC), spec).unwrap();
    // The same files, without processes.
    let image = "mkdir /mnt && mount --rbind / /mnt && mount --make-rprivate /mnt && umount --lazy /mnt/proc";
    machine.runs("bash", &["-c", image]);
    succeeds(&machine, &[&APPLY[..], &["--root", "/mnt"]].concat()).await;
    machine.runs("umount", &["--recursive", "--lazy", "/mnt"]);
    assert_eq!(status(&machine).await["state"], "drifted");
    machine.systemctl(&["daemon-reload"]);
    machine.systemctl(&["restart", "kubelet"]);
    succeeds(&machine, &["status", "--ready"]).await;
    succeeds(&machine, &["undo"]).await;
    before.is_back(&machine, "undo");
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
        until [ -e apply.log ]; do :; done; kill -KILL $pid";
    machine.command("bash", &["-c", script]).output().unwrap();
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
        before.is_back(&machine, &format!("{end}: {}", said(&output)));
        if output.status.success() {
            assert!(moment > 40, "{moment}");
            break;
        }
    }
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn a_kubelet_that_starts_after_an_apply_is_restarted_by_the_undo() {
    let machine = node().await;
    let before = Before::of(&machine);
    machine.systemctl(&["stop", "kubelet"]);
    let rejected = said(&call(&machine, &APPLY).await);
    assert!(
        rejected.contains("unknown kubelet-stopped: kubelet: "),
        "{rejected}"
    );
    let spec = format!("{CONFIG}{NODE}").replace("accept = [", "accept = ['kubelet-stopped', ");
    fs::write(machine.at(SPEC), spec).unwrap();
    succeeds(&machine, &APPLY).await;
    let active = machine
        .command("systemctl", &["is-active", "kubelet"])
        .output()
        .unwrap();
    assert_eq!(active.stdout, b"inactive\n");
    machine.systemctl(&["start", "kubelet"]);
    succeeds(&machine, &["status", "--ready"]).await;
    let kubelet = process(&machine, "kubelet");
    succeeds(&machine, &["undo"]).await;
    assert_ne!(process(&machine, "kubelet"), kubelet);
    before.is_back(&machine, "undo");
    machine.systemctl(&["stop", "kubelet"]);
    succeeds(&machine, &APPLY).await;
    succeeds(&machine, &["undo"]).await;
    assert_eq!(machine.show("kubelet", "ActiveState"), "inactive");
    machine.systemctl(&["start", "kubelet"]);
    before.is_back(&machine, "undo of a stopped kubelet");
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

/// The letter of the state of a process.
fn process_state(machine: &Machine, process: &str) -> Option<char> {
    let path = machine.at(&format!("proc/{process}/stat"));
    let text = fs::read_to_string(path).ok()?;
    let (_, fields) = text.rsplit_once(") ")?;
    fields.chars().next()
}

/// An undo may take longer than systemd gives a unit whose file it has removed.
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

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn an_apply_waits_for_young_pods() {
    let machine = node().await;
    let spec = format!("{CONFIG}{NODE}").replace("'young-pod', ", "");
    fs::write(machine.at(SPEC), spec).unwrap();
    let runc = Client::new(&machine.shared().join("runc.sock"));
    runc.run_pod("runc", "web").await.unwrap();
    let shown = succeeds(&machine, &APPLY).await;
    assert!(
        shown.starts_with("waiting for pods that are younger than 10 seconds\n"),
        "{shown}"
    );
    succeeds(&machine, &["status", "--ready"]).await;
}

/// A program that an apply has started may go on. This one ignores the signal with which systemd ends the unit.
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
async fn a_node_is_uninstalled_once_no_pod_needs_criswitch() {
    let machine = node().await;
    let before = Before::of(&machine);
    let specify = |generation: u32, more: &str| {
        let text = format!("# {more}\n{CONFIG}{NODE}generation = {generation}\n");
        fs::write(machine.at(SPEC), text).unwrap();
    };
    specify(3, "");
    succeeds(&machine, &APPLY).await;
    let kubelet = process(&machine, "kubelet");
    specify(4, "changed");
    succeeds(&machine, &APPLY).await;
    assert_eq!(status(&machine).await["generation"], 4);
    // Only criswitch restarts for its configuration.
    assert_eq!(process(&machine, "kubelet"), kubelet);
    specify(3, "");
    let output = call(&machine, &APPLY).await;
    assert_eq!(output.status.code(), Some(1));
    let words = "refused generation: specification: the specification has the generation 3, and 4 was applied here";
    assert!(said(&output).contains(words), "{}", said(&output));
    let client = machine.client();
    let pod = client.run_pod("kata", "boxed").await.unwrap();
    let installed = files(&machine);
    let output = call(&machine, &["uninstall"]).await;
    assert_eq!(output.status.code(), Some(1));
    let words = "default/boxed: runs on /home/backends/kata.sock, which the kubelet would not ask any more\n";
    assert!(said(&output).contains(words), "{}", said(&output));
    assert_eq!(files(&machine), installed);
    // A backend without a row keeps its pods until they end.
    let config = machine.at("etc/criswitch/criswitch.toml");
    let text = fs::read_to_string(&config).unwrap();
    let rows = text.lines().filter(|line| !line.contains("kata"));
    fs::write(&config, rows.collect::<Vec<_>>().join("\n")).unwrap();
    machine.runs("/root/criswitch", &["reload"]);
    let output = call(&machine, &["uninstall"]).await;
    assert!(said(&output).contains(words), "{}", said(&output));
    fs::write(&config, text).unwrap();
    client.remove_pod(&pod).await.unwrap();
    succeeds(&machine, &["uninstall"]).await;
    before.is_back(&machine, "uninstall");
    assert_eq!(
        succeeds(&machine, &["uninstall"]).await,
        "nothing to undo\n"
    );
}
