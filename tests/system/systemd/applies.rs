//! `criswitch node apply`, `undo` and `uninstall` on a running node, with a real systemd and a simulated kubelet.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Output};

use serde_json::Value;

use crate::machine::{CONFIG, Machine, until};
use crate::support::{Client, write_program};

const UNIT: &str = "[Unit]
StartLimitIntervalSec=0
[Service]
ExecStart=/opt/kubelet /opt/kubelet.sh --config=/var/lib/kubelet/config.yaml --healthz-port=0
Restart=always
RestartSec=100ms
[Install]
WantedBy=multi-user.target
";
/// A simulated kubelet. Like a real one, it ends if its runtime does not exist. If the file kubelet-rejects-criswitch
/// exists, it also ends when its runtime is criswitch.
const KUBELET: &str = "
socket=$(sed -n 's|^containerRuntimeEndpoint: unix://||p' /var/lib/kubelet/config.yaml)
[ -S \"$socket\" ]
[ \"$socket\" = /run/backends/runc.sock ] || [ ! -e /run/kubelet-rejects-criswitch ]
sleep infinity &
wait
";
/// A specification that accepts findings about facts that a simulated kubelet cannot show, and about abilities that
/// simulated runtimes outside of the machine lack.
const NODE: &str = "
[node]
try = 'off'
kubelet_timeout = '2m'
settle_time = '200ms'
accept = ['current-runtime', 'cgroup-driver', 'handler-without-row', 'unknown-pod', 'kubelet-version', 'kubelet-files',
    'young-pod']
";
const SPEC: &str = "root/spec.toml";

/// From now on the kubelet rejects criswitch, and criswitch does not wait long for it.
pub(crate) fn reject_criswitch(machine: &Machine) {
    let spec = fs::read_to_string(machine.at(SPEC)).unwrap();
    fs::write(machine.at(SPEC), spec.replace("'2m'", "'10s'")).unwrap();
    fs::write(machine.at("run/kubelet-rejects-criswitch"), "").unwrap();
}

/// A node with a kubelet that uses runc, and the programs of criswitch in /root.
pub(crate) async fn node() -> Machine {
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
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncontainerRuntimeEndpoint: unix:///run/backends/runc.sock\n",
    );
    write(SPEC, &format!("{CONFIG}{NODE}"));
    fs::create_dir(machine.at("var/lib/kubelet/pods")).unwrap();
    write_program(
        &machine.at("opt/kubelet"),
        fs::read("/usr/bin/bash").unwrap(),
    );
    for (built, name) in [
        (env!("CARGO_BIN_EXE_criswitch"), "criswitch"),
        (env!("CARGO_BIN_EXE_criswitchd"), "criswitchd"),
    ] {
        let mut strip = Command::new("strip");
        strip.args([built, "-o"]).arg(machine.at("root").join(name));
        assert!(strip.status().unwrap().success());
    }
    machine.systemctl(&["daemon-reload"]);
    machine.systemctl(&["restart", "kubelet"]);
    machine
}

pub(crate) async fn call(machine: &Machine, arguments: &[&str]) -> Output {
    let arguments = [&["node"], arguments].concat();
    // The simulated runtimes must be able to answer while the command runs.
    let command = machine.command("/root/criswitch", &arguments);
    let output = tokio::process::Command::from(command).output();
    output.await.unwrap()
}

pub(crate) fn said(output: &Output) -> String {
    String::from_utf8([&*output.stdout, &*output.stderr].concat()).unwrap()
}

/// Runs a command of `criswitch node`, which must succeed.
pub(crate) async fn succeeds(machine: &Machine, arguments: &[&str]) -> String {
    let output = call(machine, arguments).await;
    assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    said(&output)
}

pub(crate) const APPLY: [&str; 3] = ["apply", "--spec", "/root/spec.toml"];

pub(crate) async fn status(machine: &Machine) -> Value {
    serde_json::from_slice(&call(machine, &["status", "--json"]).await.stdout).unwrap()
}

/// Every path that a node has, with its mode, owner and content, except the journal.
pub(crate) fn files(machine: &Machine) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut paths = vec!["etc", "opt", "var"]
        .into_iter()
        .map(|name| machine.at(name))
        .collect::<Vec<_>>();
    while let Some(path) = paths.pop() {
        let about = path.symlink_metadata().unwrap();
        if path.ends_with("var/lib/criswitch") {
            let left: Vec<_> = fs::read_dir(&path)
                .unwrap()
                .map(|entry| entry.unwrap().file_name())
                .filter(|name| name != "node")
                .collect();
            found.insert("state".to_owned(), format!("{left:?}"));
            continue;
        }
        let mut hash = DefaultHasher::new();
        if about.is_symlink() {
            fs::read_link(&path).unwrap().hash(&mut hash)
        } else {
            fs::read(&path).unwrap_or_default().hash(&mut hash)
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
pub(crate) struct Before(BTreeMap<String, String>);

impl Before {
    pub(crate) fn of(machine: &Machine) -> Before {
        let mut files = files(machine);
        files.insert("state".to_owned(), "[]".to_owned());
        Before(files)
    }

    /// Asserts that the machine is as before: files, units, the kubelet.
    #[track_caller]
    pub(crate) fn is_back(&self, machine: &Machine, when: &str) {
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

pub(crate) fn process(machine: &Machine, unit: &str) -> String {
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
    let shown = succeeds(&machine, &APPLY).await;
    assert!(
        shown.ends_with("installed; criswitch node undo undoes it\n"),
        "{shown}"
    );
    assert_eq!(machine.client().pods().await.unwrap()[0].id, pod);
    let processes = || ["kubelet", "criswitch"].map(|unit| process(&machine, unit));
    let running = processes();
    assert_ne!(running[0], kubelet);
    succeeds(&machine, &["status", "--ready"]).await;
    // A second apply changes and restarts nothing.
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
    // `status` names each unit that has drifted.
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
    reject_criswitch(&machine);
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
    // Now criswitch itself fails at its start.
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

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn the_undo_of_the_first_generation_restarts_the_kubelet_also_after_an_upgrade() {
    let machine = node().await;
    let before = Before::of(&machine);
    succeeds(&machine, &APPLY).await;
    // The kernel ignores bytes after the end of a program.
    fs::create_dir(machine.at("root/next")).unwrap();
    for name in ["criswitch", "criswitchd"] {
        let mut next = fs::read(machine.at("root").join(name)).unwrap();
        next.extend(b"next");
        write_program(&machine.at("root/next").join(name), next);
    }
    let kubelet = process(&machine, "kubelet");
    succeeds(
        &machine,
        &[&APPLY[..], &["--programs", "/root/next"]].concat(),
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
        let found = fs::read_dir(machine.at(directory))
            .unwrap()
            .map(|entry| entry.unwrap().file_name());
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
async fn an_image_that_has_booted_is_judged_and_undone_like_a_node() {
    let machine = node().await;
    let before = Before::of(&machine);
    let spec = format!("{CONFIG}{NODE}").replace("accept = [", "accept = ['backend', ");
    fs::write(machine.at(SPEC), spec).unwrap();
    // /mnt has the same files as the root of the machine, but no /proc, so the command sees no processes.
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
    // The output has only the JSON document. The progress is not in it.
    let applied = call(&machine, &[&APPLY[..], &["-o", "json"]].concat()).await;
    let document: Value = serde_json::from_slice(&applied.stdout).unwrap();
    assert_eq!(document["changed"], true);
    succeeds(&machine, &["undo"]).await;
    assert_eq!(machine.show("kubelet", "ActiveState"), "inactive");
    machine.systemctl(&["start", "kubelet"]);
    before.is_back(&machine, "undo of a stopped kubelet");
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn criswitch_goes_on_serving_while_the_kubelet_may_still_use_it() {
    let machine = node().await;
    let before = Before::of(&machine);
    succeeds(&machine, &APPLY).await;
    let drop_in = machine.at("etc/systemd/system/kubelet.service.d/20-test.conf");
    fs::write(&drop_in, "[Unit]\nRefuseManualStart=yes\n").unwrap();
    machine.systemctl(&["daemon-reload"]);
    for command in ["undo", "uninstall"] {
        let output = call(&machine, &[command]).await;
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(
            said(&output).contains("so criswitch keeps serving"),
            "{}",
            said(&output)
        );
        assert_eq!(machine.show("criswitch", "ActiveState"), "active");
    }
    fs::remove_file(drop_in).unwrap();
    machine.systemctl(&["daemon-reload"]);
    succeeds(&machine, &["undo"]).await;
    before.is_back(&machine, "undo");
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn an_apply_waits_for_young_pods() {
    let machine = node().await;
    let spec = format!("{CONFIG}{NODE}").replace("'young-pod'", "");
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

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn a_changed_address_of_the_metrics_is_applied_and_undone() {
    let machine = node().await;
    let before = Before::of(&machine);
    let listens_at = |port: u32| {
        let socket = "criswitch-metrics.socket";
        assert_eq!(machine.show(socket, "ActiveState"), "active");
        let listen = machine.show(socket, "Listen");
        assert!(listen.contains(&format!("127.0.0.1:{port}")), "{listen}");
    };
    for port in [9198, 9199] {
        let metrics = format!("[metrics]\nlisten = '127.0.0.1:{port}'\n");
        fs::write(machine.at(SPEC), format!("{CONFIG}{metrics}{NODE}")).unwrap();
        succeeds(&machine, &APPLY).await;
        listens_at(port);
    }
    succeeds(&machine, &["undo"]).await;
    listens_at(9198);
    succeeds(&machine, &["undo"]).await;
    before.is_back(&machine, "undo");
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
    fs::write(
        machine.at(SPEC),
        format!("{CONFIG}{NODE}version = '0.0.1'\n"),
    )
    .unwrap();
    let output = call(&machine, &APPLY).await;
    assert!(
        said(&output).contains("rejected version: "),
        "{}",
        said(&output)
    );
    assert!(
        !machine.at("var/lib/criswitch").exists(),
        "a rejected apply leaves nothing"
    );
    specify(3, "");
    succeeds(&machine, &APPLY).await;
    let kubelet = process(&machine, "kubelet");
    specify(4, "changed");
    succeeds(&machine, &APPLY).await;
    assert_eq!(status(&machine).await["generation"], 4);
    // A changed configuration of criswitch restarts only criswitch, not the kubelet.
    assert_eq!(process(&machine, "kubelet"), kubelet);
    specify(3, "");
    let output = call(&machine, &APPLY).await;
    assert_eq!(output.status.code(), Some(1));
    let words = "rejected generation: specification: the specification has the generation 3, and 4 was applied here";
    assert!(said(&output).contains(words), "{}", said(&output));
    let client = machine.client();
    let pod = client.run_pod("kata", "boxed").await.unwrap();
    let installed = files(&machine);
    let output = call(&machine, &["uninstall"]).await;
    assert_eq!(output.status.code(), Some(1));
    let words =
        "default/boxed: runs on /home/backends/kata.sock, which the kubelet will no longer call\n";
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
    let state = machine.at("var/lib/criswitch");
    assert!(!state.exists());
    assert_eq!(
        succeeds(&machine, &["uninstall"]).await,
        "nothing to undo\n"
    );
    assert!(!state.exists());
}
