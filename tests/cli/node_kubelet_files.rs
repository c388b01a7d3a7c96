//! `criswitch check --node` on files of the kubelet's configuration: their types, empty values and links.

use std::os::unix::fs::symlink;

use crate::machine::{KUBELET, Machine, TABLE};

const CONFIG: &str = "/var/lib/kubelet/config.yaml";
const DROP_INS: &str = "/etc/kubelet.d";
const DEFAULT: &str = "the kubelet uses its default runtime endpoint";

/// A machine whose kubelet has the configuration [`KUBELET`], a directory of drop-ins, and these flags.
fn kubelet(flags: &str) -> Machine {
    let line = format!(
        "[Service]\nExecStart=/usr/bin/kubelet --config={CONFIG} --config-dir={DROP_INS} {flags}\n"
    );
    Machine::bare()
        .with("/etc/systemd/system/kubelet.service", &line)
        .with(CONFIG, KUBELET)
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
        let line = format!("containerRuntimeEndpoint: {value}\n");
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
fn the_kubelet_follows_links_to_drop_ins_and_no_links_to_directories() {
    let other = "containerRuntimeEndpoint: unix:///run/crio.sock\n";
    let machine = kubelet("").with("/opt/drop-ins/20.conf", other);
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
