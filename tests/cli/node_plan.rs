//! `criswitch node plan` on simulated machines: steps, findings, exit status, and that it changes nothing.

use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use expect_test::{Expect, expect};
use serde_json::Value;

use crate::machine::{KUBELET, Machine};
use crate::support::{Client, Sim, write_program};
use crate::{Outcome, main_file, run, run_beside, text};

/// The configuration in the specifications of the tests.
const TABLE: &str =
    "default_handler = 'runc'\n[handlers]\nrunc = '/run/containerd/containerd.sock'\n";

/// The arguments of a plan for a machine.
fn line<'a>(machine: &'a Machine, spec: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    let [root, spec] = [machine.root(), spec].map(text);
    [&["node", "plan", "--root", root, "--spec", spec], more].concat()
}

/// Plans for a machine with a specification that has these keys in `[node]`. Checks that nothing changes.
pub(crate) fn plan(machine: &Machine, node: &str, arguments: &[&str]) -> Outcome {
    let files = main_file(&format!("{TABLE}[node]\n{node}\n"));
    let spec = files.main();
    let before = tree(machine.root());
    let outcome = run(&line(machine, &spec, arguments));
    assert_eq!(tree(machine.root()), before);
    outcome
}

/// Every path with its content and all metadata except the time of the last read. The time of the last change (ctime)
/// shows a change of any attribute.
pub(crate) fn tree(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut paths = vec![root.to_owned()];
    while let Some(path) = paths.pop() {
        let about = path.symlink_metadata().unwrap();
        let (changed, written) = (
            (about.ctime(), about.ctime_nsec()),
            (about.mtime(), about.mtime_nsec()),
        );
        let kind = (
            about.ino(),
            about.mode(),
            about.uid(),
            about.gid(),
            about.nlink(),
        );
        let mut content = DefaultHasher::new();
        content.write(&fs::read(&path).unwrap_or_default());
        let content = content.finish();
        found.push(format!(
            "{path:?} {kind:?} {changed:?} {written:?} {content}"
        ));
        if about.is_dir() {
            paths.extend(
                fs::read_dir(path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
    }
    found.sort();
    found
}

/// The findings that depend on facts outside of the machine's files.
const UNKNOWN: &str = "accept = ['daemon-reload', 'kubelet-version', 'young-pod']";
const UNIT: &str = "/etc/systemd/system/kubelet.service";

/// A machine with a kubelet that uses a containerd with one pod.
async fn running(containerd: &Sim) -> Machine {
    let command = "/usr/bin/kubelet --config /var/lib/kubelet/config.yaml";
    let words: Vec<_> = command.split(' ').collect();
    let machine = Machine::bare()
        .running("812", &words)
        .with(
            "/proc/812/stat",
            &format!("812 (kubelet) S {}0", "0 ".repeat(19)),
        )
        // This boot time makes the kubelet start after the test has written its files.
        .with("/proc/stat", "btime 4000000000\n")
        .with("/run/systemd/system/x", "")
        .with(UNIT, &format!("[Service]\nExecStart={command}\n"))
        .with(
            "/var/lib/kubelet/config.yaml",
            &KUBELET.replace("criswitch/criswitch", "containerd/containerd"),
        )
        .with("/var/lib/kubelet/pods/uid-of-web/x", "");
    symlink("/usr/bin/kubelet", machine.at("/proc/812/exe")).unwrap();
    containerd.serve_on(&machine.at("/run/containerd/containerd.sock"));
    Client::new(&containerd.socket())
        .run_pod("runc", "web")
        .await
        .unwrap();
    machine
}

/// Runs a plan while the tasks of the test, such as a simulated runtime, keep running.
async fn plan_beside(machine: &Machine, node: &str, arguments: &[&str]) -> Outcome {
    let files = main_file(&format!("{TABLE}[node]\n{node}\n"));
    let spec = files.main();
    let before = tree(machine.root());
    let outcome = run_beside(&line(machine, &spec, arguments)).await;
    assert_eq!(tree(machine.root()), before);
    outcome
}

/// Checks the findings that the specification does not accept. There must be at least one.
async fn finds(machine: &Machine, node: &str, expected: Expect) {
    let outcome = plan_beside(machine, node, &[]).await;
    let lines = outcome
        .stdout
        .lines()
        .filter(|line| line.starts_with("rejected ") || line.starts_with("unknown "));
    let root = text(machine.root());
    expected.assert_eq(
        &lines
            .map(|line| line.replace(root, "ROOT") + "\n")
            .collect::<String>(),
    );
    assert_eq!(
        (outcome.code, &*outcome.stderr),
        (1, ""),
        "{}",
        outcome.stdout
    );
}

fn containerd() -> Sim {
    Sim::new("containerd").handlers(["runc", "kata"])
}

#[tokio::test]
async fn the_steps_are_in_their_order_and_what_was_not_looked_at_is_rejected_by_name() {
    let machine = running(&containerd()).await;
    let outcome = plan_beside(&machine, UNKNOWN, &[]).await;
    expect![[r#"
        kubelet: kubelet.service, kubeadm with the configuration

        STEP           PLACE                                                          CHANGE
        binary         /opt/criswitch/0.1.0/criswitch                                 create
        binary         /opt/criswitch/0.1.0/criswitchd                                create
        binary         /opt/criswitch/current                                         create the link to 0.1.0
        units          /etc/systemd/system/criswitch.socket                           create
        units          /etc/systemd/system/sockets.target.wants/criswitch.socket      create the link to ../criswitch.socket
        units          /etc/systemd/system/criswitch.service                          create
        units          /etc/systemd/system/multi-user.target.wants/criswitch.service  create the link to ../criswitch.service
        units          /etc/systemd/system/kubelet.service.d/10-criswitch.conf        create
        configuration  /etc/criswitch/criswitch.toml                                  create
        start          criswitch.socket, criswitch.service                            start
        try            handlers                                                       start a pod of each, and remove it
        endpoint       /var/lib/kubelet/config.yaml                                   replace: the kubelet's endpoint unix:///run/containerd/containerd.sock becomes unix:///run/criswitch/criswitch.sock
        restart        kubelet.service                                                restart the kubelet (process 812); containers keep running
        verify         kubelet                                                        the kubelet is healthy within 20s, and all pods and containers still run

        accepted kubelet-version: kubelet: criswitch needs the kubelet 1.31 or newer, and its version is not known; try kubelet --version
        accepted daemon-reload: kubelet.service: whether systemd has read the unit as it is on disk is not known; try systemctl daemon-reload
        accepted young-pod: default/web: the pod is younger than 10 seconds; try again after 10 seconds
        note admission: all pods: whether the restarted kubelet admits the pods again depends on their specifications: node selectors and labels of the node, NUMA, devices whose plug-in is not registered; try kubectl get pods -A -o yaml --field-selector spec.nodeName=NODE
        note eviction: all pods: whether a short NotReady of the node evicts the pods depends on their tolerationSeconds; try kubectl get pods -A -o yaml --field-selector spec.nodeName=NODE
        note readiness: all pods: with a kubelet 1.31 to 1.34, pods with a readiness probe are not ready from its restart until their first probe; try kubectl get pods -A -o yaml --field-selector spec.nodeName=NODE

        would change: 8 steps
    "#]].assert_eq(&outcome.stdout);
    assert_eq!(outcome.code, 2);
    finds(&machine, "", expect![[r#"
        unknown kubelet-version: kubelet: criswitch needs the kubelet 1.31 or newer, and its version is not known; try kubelet --version
        unknown daemon-reload: kubelet.service: whether systemd has read the unit as it is on disk is not known; try systemctl daemon-reload
        rejected young-pod: default/web: the pod is younger than 10 seconds; try again after 10 seconds
    "#]]).await;
}

#[tokio::test]
async fn without_a_specification_the_runtimes_are_discovered() {
    let machine = running(&containerd()).await;
    let outcome = run_beside(&["node", "plan", "--json", "--root", text(machine.root())]).await;
    let shown: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(shown["steps"][2]["step"], "configuration");
    let found: Vec<_> = shown["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["check"].as_str().unwrap())
        .collect();
    assert!(!found.contains(&"configuration"), "{found:?}");
    let machine = machine.without("/run/containerd/containerd.sock");
    let outcome = run_beside(&["node", "plan", "--root", text(machine.root())]).await;
    assert!(
        outcome.stdout.contains("rejected configuration: "),
        "{}",
        outcome.stdout
    );
}

#[tokio::test]
async fn a_node_that_is_as_specified_is_ready() {
    let machine = running(&containerd()).await;
    let version = env!("CARGO_PKG_VERSION");
    for (built, name) in [
        (env!("CARGO_BIN_EXE_criswitch"), "criswitch"),
        (env!("CARGO_BIN_EXE_criswitchd"), "criswitchd"),
    ] {
        let program = machine.at(&format!("/opt/criswitch/{version}/{name}"));
        write_program(&program, fs::read(built).unwrap());
    }
    symlink(version, machine.at("/opt/criswitch/current")).unwrap();
    let units = [
        (
            "criswitch.socket",
            include_str!("../../systemd/criswitch.socket"),
            "sockets",
        ),
        (
            "criswitch.service",
            include_str!("../../systemd/criswitch.service"),
            "multi-user",
        ),
    ];
    let folder = "/etc/systemd/system";
    let machine = units.iter().fold(machine, |machine, (name, text, target)| {
        let link = machine.at(&format!("{folder}/{target}.target.wants/{name}"));
        symlink(format!("../{name}"), link).unwrap();
        let text = text.replace("/usr/bin/", "/opt/criswitch/current/");
        machine.with(&format!("{folder}/{name}"), &text)
    });
    let drop_in = include_str!("../../systemd/kubelet.service.d/10-criswitch.conf");
    let machine = machine
        .with(&format!("{UNIT}.d/10-criswitch.conf"), drop_in)
        .with("/etc/criswitch/criswitch.toml", TABLE)
        .with("/var/lib/kubelet/config.yaml", KUBELET)
        .running("900", &["/opt/criswitch/current/criswitchd"]);
    let outcome = plan_beside(&machine, "", &[]).await;
    let ready =
        "kubelet: kubelet.service, kubeadm with the configuration\n\nready: nothing would change\n";
    assert_eq!((outcome.code, &*outcome.stdout), (0, ready));
    let machine = machine.with(&format!("{folder}/criswitch.service"), "");
    finds(&machine, "", expect![[r#"
        rejected existing-file: /etc/systemd/system/criswitch.service: the file exists, differs, and would be replaced; try moving it
        unknown kubelet-version: kubelet: criswitch needs the kubelet 1.31 or newer, and its version is not known; try kubelet --version
        rejected kubelet-endpoint: kubelet: the kubelet uses criswitch already, so an undo would leave it without a runtime; try setting the endpoint of its own runtime and restarting it, then again
    "#]]).await;
    let mode = fs::Permissions::from_mode(0o666);
    fs::set_permissions(machine.at(&format!("{folder}/criswitch.socket")), mode).unwrap();
    finds(&machine, "", expect![[r#"
        rejected existing-file: /etc/systemd/system/criswitch.socket, /etc/systemd/system/criswitch.service: the file exists, differs, and would be replaced; try moving it
        unknown kubelet-version: kubelet: criswitch needs the kubelet 1.31 or newer, and its version is not known; try kubelet --version
        rejected kubelet-endpoint: kubelet: the kubelet uses criswitch already, so an undo would leave it without a runtime; try setting the endpoint of its own runtime and restarting it, then again
    "#]]).await;
}

#[tokio::test]
async fn a_runtime_of_the_kubelet_that_is_not_a_backend_is_named() {
    let machine = running(&containerd()).await;
    let other = KUBELET.replace("criswitch/criswitch", "crio/crio");
    let machine = machine.with("/var/lib/kubelet/config.yaml", &other);
    finds(&machine, UNKNOWN, expect![[r#"
        rejected current-runtime: unix:///run/crio/crio.sock: the kubelet uses this runtime, which is not a backend, so it would lose its pods; try a row for its handlers under [handlers]
    "#]]).await;
}

#[tokio::test]
async fn other_changes_that_a_restart_of_the_kubelet_would_apply_are_named() {
    let machine = running(&containerd())
        .await
        .with("/proc/stat", "btime 1000\n")
        .without("/proc/812/exe");
    symlink("/usr/bin/kubelet (deleted)", machine.at("/proc/812/exe")).unwrap();
    let command =
        "[Service]\nExecStart=/usr/bin/kubelet --v=4 --config /var/lib/kubelet/config.yaml\n";
    finds(&machine.with(UNIT, command), UNKNOWN, expect![[r#"
        rejected kubelet-program: /usr/bin/kubelet: the program was replaced after the kubelet had started, so a restart would upgrade it; try restarting the kubelet first
        rejected kubelet-files: /etc/systemd/system/kubelet.service, /var/lib/kubelet/config.yaml: the file is newer than the kubelet's process, so a restart would apply it; try restarting the kubelet first
        rejected kubelet-flags: kubelet.service: the flags of the kubelet's process differ from the flags in its unit; try restarting the kubelet first
    "#]]).await;
    let hidden = running(&containerd())
        .await
        .without("/var/lib/kubelet/pods")
        .without("/proc/812/exe")
        .without("/proc/812/stat");
    finds(&hidden, UNKNOWN, expect![[r#"
        unknown unknown-pod: /var/lib/kubelet/pods: a kubelet runs, and this directory of its pods does not exist
        unknown kubelet-program: /proc/812/exe: the program of the kubelet's process cannot be read; try running the command as root
        unknown kubelet-files: kubelet: criswitch cannot read when the kubelet's process started
    "#]]).await;
}

#[tokio::test]
async fn pods_that_the_kubelet_would_remove_or_that_have_no_row_are_named() {
    let containerd = containerd();
    let machine = running(&containerd).await;
    let client = Client::new(&containerd.socket());
    client.run_pod("kata", "boxed").await.unwrap();
    let node = UNKNOWN.replace(", 'young-pod'", "");
    finds(&machine, &node, expect![[r#"
        rejected handler-without-row: default/boxed: the pod uses the handler "kata", which has no row; try a row under [handlers]
        rejected unknown-pod: default/boxed: the kubelet does not know the pod, and would remove it; try removing the pod, or waiting for its end
        rejected young-pod: default/web, default/boxed: the pod is younger than 10 seconds; try again after 10 seconds
    "#]]).await;
}

#[tokio::test]
async fn a_kubelet_that_does_not_run_is_named() {
    let machine = running(&containerd()).await.without("/proc/812");
    finds(&machine, UNKNOWN, expect![[r#"
        unknown kubelet-stopped: kubelet: the kubelet does not run, so whether it would serve with criswitch is not known; try starting it first
    "#]]).await;
}

#[tokio::test]
async fn a_kubelet_that_uses_criswitch_already_is_named() {
    let machine = running(&containerd())
        .await
        .with("/var/lib/kubelet/config.yaml", KUBELET);
    let node = UNKNOWN.replace("['d", "['current-runtime', 'kubelet-files', 'd");
    finds(&machine, &node, expect![[r#"
        rejected kubelet-endpoint: kubelet: the kubelet uses criswitch already, so an undo would leave it without a runtime; try setting the endpoint of its own runtime and restarting it, then again
    "#]]).await;
}

#[tokio::test]
async fn a_unit_beside_the_program_that_runs_the_kubelet_is_named() {
    let machine = running(&containerd())
        .await
        .running("812", &["/usr/local/bin/k3s", "agent"]);
    let node = UNKNOWN.replace("['d", "['current-runtime', 'cgroup-driver', 'd");
    finds(&machine, &node, expect![[r#"
        rejected kubelet-flags: kubelet.service: a different program runs the kubelet now than this unit would start; try disabling the unit of one of them
    "#]]).await;
}

#[tokio::test]
async fn a_drop_in_of_somebody_else_is_not_replaced() {
    let command = "/usr/bin/kubelet --config-dir /etc/kubelet.d";
    let words: Vec<_> = command.split(' ').collect();
    let machine = running(&containerd())
        .await
        .running("812", &words)
        .with(UNIT, &format!("[Service]\nExecStart={command}\n"))
        .with(
            "/etc/kubelet.d/90-criswitch.conf",
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupDriver: systemd\nmaxPods: 5\n",
        );
    finds(&machine, UNKNOWN, expect![[r#"
        rejected existing-file: /etc/kubelet.d/90-criswitch.conf: the file exists, differs, and would be replaced; try moving it
    "#]]).await;
}

#[tokio::test]
async fn the_labels_of_somebody_else_are_not_replaced() {
    let file = "/etc/features.d/node";
    let files = main_file(&format!("labels_file = '{file}'\n{TABLE}"));
    for (labels, is_rejected) in [
        ("mine=1\n", true),
        (
            "# Written by criswitch, which replaces this file when its labels change.\n",
            false,
        ),
    ] {
        let machine = running(&containerd()).await.with(file, labels);
        let outcome = run_beside(&line(&machine, &files.main(), &[])).await;
        let rejected = format!("rejected existing-file: {file}: ");
        assert_eq!(
            outcome.stdout.contains(&rejected),
            is_rejected,
            "{}",
            outcome.stdout
        );
    }
}

#[tokio::test]
async fn the_age_of_a_pod_of_the_future_is_not_known() {
    let containerd = containerd();
    let machine = running(&containerd).await;
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    let ahead = now + Duration::from_secs(3600);
    let mut created_at = Vec::new();
    let nanoseconds = i64::try_from(ahead.as_nanos()).unwrap();
    prost::encoding::int64::encode(4, &nanoseconds, &mut created_at);
    containerd.append_to_items("ListPodSandbox", created_at);
    let node = UNKNOWN.replace(", 'young-pod'", "");
    finds(&machine, &node, expect![[r#"
        unknown young-pod: default/web: the pod was created later than this machine's time, so its age is not known; try correcting the clock
    "#]]).await;
}

#[tokio::test]
async fn a_backend_that_is_down_or_has_a_different_cgroup_driver_is_named() {
    let cgroupfs = containerd().cgroup_driver(criswitch_cri::codec::cri::CgroupDriver::Cgroupfs);
    let machine = running(&cgroupfs).await;
    finds(&machine, UNKNOWN, expect![[r#"
        rejected cgroup-driver: /var/lib/kubelet/config.yaml: the kubelet's cgroup driver is systemd, the default backend's is cgroupfs; try cgroupDriver: cgroupfs
    "#]]).await;
    cgroupfs.stop().await;
    let accepted = UNKNOWN.replace("['d", "['backend', 'd");
    finds(&machine, &accepted, expect![[r#"
        unknown cgroup-driver: backend "runc": the cgroup driver is not known; the kubelet and all backends must have the same
        unknown handler-without-row: backend "runc": its pods are not known, because it does not answer
        unknown unknown-pod: backend "runc": its pods are not known, because it does not answer
    "#]]).await;
    finds(&machine, UNKNOWN, expect![[r#"
        rejected backend: backend "runc" (/run/containerd/containerd.sock): cannot connect: Connection refused
        unknown cgroup-driver: backend "runc": the cgroup driver is not known; the kubelet and all backends must have the same
        unknown handler-without-row: backend "runc": its pods are not known, because it does not answer
        unknown unknown-pod: backend "runc": its pods are not known, because it does not answer
    "#]]).await;
}

#[tokio::test]
async fn another_machine_another_version_and_another_installation_are_rejected() {
    let machine = running(&containerd())
        .await
        .with("/etc/machine-id", "00112233445566778899aabbccddeeff\n")
        .with("/usr/bin/criswitch", "")
        .with("/etc/criswitch/criswitch.toml", "# of somebody else\n")
        .with("/etc/systemd/system/criswitch.socket", "")
        .without("/run/systemd");
    let node =
        format!("{UNKNOWN}\nversion = '9.9.9'\nmachine_id = 'ffeeddccbbaa99887766554433221100'");
    finds(&machine, &node, expect![[r#"
        rejected machine: /etc/machine-id: the specification is for the machine ffeeddccbbaa99887766554433221100, and this is 00112233445566778899aabbccddeeff; try the specification of this machine
        rejected version: criswitch: this program is version 0.1.0, the specification wants 9.9.9; try the program of that version
        rejected systemd: /run/systemd/system: systemd does not run the services of this machine
        rejected package: /usr/bin/criswitch: a package, or somebody manually, has installed criswitch here; try upgrading it in the same way, or removing it first
        rejected existing-file: /etc/systemd/system/criswitch.socket, /etc/criswitch/criswitch.toml: the file exists, differs, and would be replaced; try moving it
    "#]]).await;
}

/// Runs a shell command and then a plan for the machine, both in a separate mount namespace. In the command, `$1` is
/// the root of the machine. Returns `None` if the command fails, for example because the test lacks privileges.
#[allow(clippy::print_stderr)]
fn plan_after(machine: &Machine, shell: &str) -> Option<String> {
    let files = main_file(&format!("{TABLE}[node]\n"));
    let script = format!("{shell} || exit 99; exec \"$2\" node plan --root \"$1\" --spec \"$3\"");
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "sh", "-c", &script, "-", text(machine.root())]);
    unshare.args([env!("CARGO_BIN_EXE_criswitch"), text(&files.main())]);
    let output = unshare.output().unwrap();
    if output.status.code() != Some(1) {
        eprintln!("not tried here: {shell}");
        return None;
    }
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_target_that_runs_no_programs_is_rejected() {
    let machine = Machine::bare()
        .with(UNIT, "[Service]\nExecStart=/usr/bin/kubelet\n")
        .with("/opt/x", "");
    if let Some(shown) = plan_after(&machine, "mount -t tmpfs -o noexec none \"$1/opt\"") {
        let finding =
            "rejected noexec: /opt/criswitch/0.1.0/criswitch, /opt/criswitch/0.1.0/criswitchd: ";
        assert!(shown.contains(finding), "{shown}");
    }
}

#[test]
fn every_mistake_in_a_specification_has_its_line_and_column() {
    let files = main_file(
        "default_handler = 'runc'
watcch = true
[handlers]
runc = '/run/containerd/containerd.sock'
[node]
mode = 'check'
version = 1
generation = -1
machine-id = 'x'
machine_id = 'x'
accept = ['admision', 'layout']
kubelet_timeout = '20'
settle_time = '0s'
try = 'on'
",
    );
    let path = files.main();
    let outcome = run(&["node", "plan", "--spec", text(&path)]);
    expect![[r#"
        spec.toml:2:1: unknown key "watcch"; try "watch"
        spec.toml:6:1: unknown key "mode"; try removing it: criswitch node plan changes nothing, criswitch node apply installs
        spec.toml:7:11: "version" is not a string; try "0.1.0"
        spec.toml:8:14: "-1" is not the number of a specification; try 7
        spec.toml:9:1: unknown key "machine-id"; try "machine_id"
        spec.toml:10:14: "x" is not the id of a machine; try the 32 hex digits of /etc/machine-id
        spec.toml:11:11: "admision" is not an acceptable finding; try "admission"
        spec.toml:11:23: "layout" is not an acceptable finding; try one of "existing-file", "backend", "current-runtime", "cgroup-driver", "handler-without-row", "shared", "unknown-pod", "image-endpoint", "kubelet-version", "kubelet-endpoint", "kubelet-stopped", "kubelet-program", "kubelet-files", "kubelet-flags", "daemon-reload", "young-pod", "admission", "eviction", "readiness", "containerd-state"
        spec.toml:12:19: "20" is not a duration: time unit needed, for example 20sec or 20ms; try "20s"
        spec.toml:13:15: "0s" is not longer than zero; try "2s"
        spec.toml:14:7: "on" is not a kind of try; try "pod-network", "host-network" or "off"
    "#]].assert_eq(&outcome.stderr.replace(text(&path), "spec.toml"));
    assert_eq!(outcome.code, 78);
    let (_, names) = outcome.stderr.split_once("try one of ").unwrap();
    let names = names.lines().next().unwrap().split(", ");
    let page = include_str!("../../docs/node.md");
    for name in names.map(|name| name.trim_matches('"')) {
        assert!(
            page.contains(&format!("`{name}`")),
            "docs/node.md has no {name}"
        );
    }
    for (text_of, problem) in [
        (
            "node = 1\n",
            "spec.toml:1:1: \"node\" is not a table; try [node]\n",
        ),
        (
            "node = { accept = 'x' }\n",
            "spec.toml:1:19: \"accept\" is not an array of strings; try [\"kubelet-version\"]\n",
        ),
        ("[node]\nx\n", "spec.toml:2:2: not valid TOML: "),
    ] {
        let files = main_file(text_of);
        let outcome = run(&["node", "plan", "--spec", text(&files.main())]);
        let shown = outcome.stderr.replace(text(&files.main()), "spec.toml");
        assert!(shown.starts_with(problem), "{shown}");
    }
    let outcome = run(&["node", "plan", "--spec", "/nowhere.toml"]);
    assert_eq!(outcome.code, 78);
    assert!(
        outcome
            .stderr
            .starts_with("/nowhere.toml:1:1: cannot be read: "),
        "{}",
        outcome.stderr
    );
}

#[tokio::test]
async fn programs_get_the_same() {
    let machine = running(&containerd()).await;
    let outcome = plan_beside(&machine, "accept = ['admission']", &["--json"]).await;
    let shown: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(shown["state"], "rejected");
    assert_eq!(shown["layout"]["unit"], "kubelet.service");
    let steps: Vec<_> = shown["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| step["step"].as_str().unwrap())
        .collect();
    let all = [
        "binary",
        "units",
        "configuration",
        "start",
        "try",
        "endpoint",
        "restart",
        "verify",
    ];
    assert_eq!(steps, all);
    let findings = shown["findings"].as_array().unwrap();
    let [version, admission] = ["kubelet-version", "admission"]
        .map(|name| findings.iter().find(|its| its["check"] == name).unwrap());
    assert_eq!(version["state"], "unknown");
    assert_eq!(version["mayAccept"], true);
    assert_eq!(admission["state"], "note");
    assert_eq!(admission["mayAccept"], false);
    assert_eq!(admission["places"][0], "all pods");
    let open = findings.iter().filter(|its| its["state"] != "note").count();
    assert_eq!(shown["problems"].as_array().unwrap().len(), open);
}
