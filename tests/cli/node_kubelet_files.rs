//! `criswitch check --node` on files of the kubelet's configuration: their types, empty values and links.

use std::os::unix::fs::symlink;

use crate::machine::{KUBELET, Machine, TABLE};

const CONFIG: &str = "/var/lib/kubelet/config.yaml";
const DROP_INS: &str = "/etc/kubelet.d";
/// The type of each file of the kubelet.
const TYPE: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
const DEFAULT: &str = "the kubelet uses its default runtime endpoint";

/// A machine whose kubelet has the configuration [`KUBELET`], a directory of drop-ins, and these flags.
fn kubelet(flags: &str) -> Machine {
    let line = format!(
        "[Service]\nExecStart=/usr/bin/kubelet --config={CONFIG} --config-dir={DROP_INS} {flags}\n"
    );
    Machine::bare()
        .with("/etc/systemd/system/kubelet.service", &line)
        .with(CONFIG, KUBELET)
        .with(&format!("{DROP_INS}/README"), "")
}

/// Checks the problem that the output shows. An empty text means that the output must show no problem.
#[track_caller]
fn says(machine: &Machine, problem: &str) {
    let outcome = machine.check(TABLE, &[]);
    let shown = outcome.stdout;
    assert!(shown.contains(problem), "{shown}");
    assert_eq!(outcome.code, i32::from(!problem.is_empty()), "{shown}");
}

#[test]
fn an_empty_value_replaces_the_values_before_it() {
    says(&kubelet(""), "");
    says(&kubelet("--container-runtime-endpoint="), DEFAULT);
    for value in ["''", "null", ""] {
        let line = format!("{TYPE}containerRuntimeEndpoint: {value}\n");
        says(&kubelet("").with("/etc/kubelet.d/20.conf", &line), DEFAULT);
    }
}

#[test]
fn a_file_of_another_type_is_a_problem() {
    for (from, to, problem) in [
        (
            "KubeletConfiguration",
            "ClusterConfiguration",
            "its kind is ClusterConfiguration; try kind: KubeletConfiguration",
        ),
        (
            "kubelet.config.k8s.io/v1beta1",
            "v1",
            "its apiVersion is v1; try apiVersion: kubelet.config.k8s.io/v1beta1",
        ),
    ] {
        says(
            &kubelet("").with(CONFIG, &KUBELET.replace(from, to)),
            problem,
        );
    }
}

#[test]
fn a_file_without_a_type_is_a_problem() {
    let (key, line) = ("apiVersion", "apiVersion: kubelet.config.k8s.io/v1beta1\n");
    let problem = format!(
        "{CONFIG}: the kubelet does not start with this file: its {key} is missing; try {line}"
    );
    says(
        &kubelet("").with(CONFIG, &KUBELET.replace(line, "")),
        &problem,
    );
    for text in ["", "# empty\n", "cgroupDriver: systemd\n"] {
        says(
            &kubelet("").with("/etc/kubelet.d/20.conf", text),
            "/etc/kubelet.d/20.conf: the kubelet does not start with this file: its apiVersion is missing, its kind is missing; try apiVersion: kubelet.config.k8s.io/v1beta1 and kind: KubeletConfiguration\n",
        );
    }
}

#[test]
fn the_kubelet_reads_a_link_with_the_name_of_a_drop_in_as_a_file() {
    let link = |target: &str| {
        let machine = kubelet("").with("/opt/drop-ins/README", "");
        symlink(target, machine.at("/etc/kubelet.d/20.conf")).unwrap();
        machine
    };
    let problem = "/etc/kubelet.d/20.conf: cannot be read: ";
    says(&link("/opt/drop-ins"), problem);
    let problem = "/etc/kubelet.d/20.conf: unknown: the kubelet's configuration is this file, which does not exist";
    says(&link("/opt/absent"), problem);
    // A directory of this name is a directory like any other.
    let other = format!("{TYPE}containerRuntimeEndpoint: unix:///run/crio.sock\n");
    let machine = kubelet("").with("/etc/kubelet.d/20.conf/30.conf", &other);
    says(&machine, "endpoint is unix:///run/crio.sock, not criswitch");
}

#[test]
fn a_missing_directory_of_drop_ins_is_unknown() {
    let problem = "/etc/kubelet.d: unknown: the kubelet's drop-ins are in this directory, which does not exist";
    says(&kubelet("").without(DROP_INS), problem);
}

#[test]
fn the_kubelet_follows_links_to_drop_ins_and_no_links_to_directories() {
    let other = &format!("{TYPE}containerRuntimeEndpoint: unix:///run/crio.sock\n");
    let machine = kubelet("")
        .with("/opt/drop-ins/20.conf", other)
        .without(DROP_INS);
    symlink("/opt/drop-ins", machine.at(DROP_INS)).unwrap();
    says(&machine, "");
    let machine = kubelet("").with("/opt/drop-ins/20.conf", other);
    symlink("/opt/drop-ins", machine.at("/etc/kubelet.d/more")).unwrap();
    says(&machine, "");
    symlink(
        "/opt/drop-ins/20.conf",
        machine.at("/etc/kubelet.d/30.conf"),
    )
    .unwrap();
    says(&machine, "endpoint is unix:///run/crio.sock, not criswitch");
}

#[test]
fn a_file_that_is_newer_than_the_kubelet_is_not_in_effect_yet() {
    let since = |boot: &str| Machine::good().with("/proc/stat", &format!("btime {boot}\n"));
    says(&since("4000000000"), "");
    let problem =
        "/var/lib/kubelet/config.yaml: unknown: the file is newer than the kubelet's process";
    says(&since("1000"), problem);
}

#[test]
fn a_kubelet_whose_start_cannot_be_read_may_not_use_its_files() {
    for file in ["/proc/812/stat", "/proc/stat"] {
        let problem =
            "process 812: unknown: criswitch cannot read when the kubelet's process started";
        says(&Machine::good().without(file), problem);
    }
}

#[test]
fn the_files_of_a_kubelet_in_a_container_are_those_of_the_container() {
    let machine = Machine::good()
        .with("/proc/812/root/var/lib/kubelet/config.yaml", KUBELET)
        .without("/var/lib/kubelet")
        .with("/proc/stat", "btime 1000\n");
    says(
        &machine,
        "/var/lib/kubelet/config.yaml: unknown: the file is newer",
    );
}

#[test]
fn a_file_that_k3s_writes_at_its_start_is_in_effect() {
    let folder = "/var/lib/rancher/k3s/agent/etc/kubelet.conf.d";
    let machine = Machine::good()
        .without("/proc/812")
        .running("900", &["/usr/local/bin/k3s server"])
        .with("/proc/900/environ", "")
        .with("/proc/stat", "btime 1000\n")
        .with(&format!("{folder}/00-k3s-defaults.conf"), KUBELET);
    says(&machine, "");
    let other = format!("{folder}/50-own.conf");
    let problem = format!("{other}: unknown: the file is newer");
    says(&machine.with(&other, KUBELET), &problem);
}
