//! `criswitch node plan` on mounted images with the layouts of distributions and installers: where it would set the
//! kubelet's endpoint.

use expect_test::{Expect, expect};

use crate::node_layouts::machine;
use crate::node_plan::plan;

/// Checks the layout, the changes of the kubelet's endpoint, the findings except those that every image has, and the
/// exit status.
#[track_caller]
fn shows(files: &str, code: i32, expected: Expect) {
    let machine = machine(files).with("/usr/lib/systemd/systemd", "");
    let outcome = plan(
        &machine,
        "accept = ['backend', 'current-runtime', 'cgroup-driver', 'kubelet-version']",
        &[],
    );
    let lines = outcome.stdout.lines().filter(|line| {
        let others = ["binary", "units", "configuration", "STEP", "accepted"];
        !line.is_empty() && !others.iter().any(|head| line.starts_with(head))
    });
    let lines = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n");
    expected.assert_eq(&lines.collect::<String>());
    assert_eq!(outcome.code, code, "{}", outcome.stdout);
}

const KUBEADM: &str = "
>>> /usr/lib/systemd/system/kubelet.service
[Service]
ExecStart=/usr/bin/kubelet
>>> /usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf
[Service]
Environment=\"KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml\"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS
";
const CONTAINERD: &str = "unix:///run/containerd/containerd.sock";

#[test]
fn kubeadm_with_the_flag() {
    let files = format!(
        "{KUBEADM}>>> /var/lib/kubelet/config.yaml\napiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
>>> /var/lib/kubelet/kubeadm-flags.env
KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint={CONTAINERD} --pod-infra-container-image=registry.k8s.io/pause:3.10\""
    );
    shows(
        &files,
        2,
        expect![[r#"
        kubelet: kubelet.service, kubeadm with the flag
        endpoint /var/lib/kubelet/kubeadm-flags.env replace: the kubelet's endpoint unix:///run/containerd/containerd.sock becomes unix:///run/criswitch/criswitch.sock
        would change: 4 steps
    "#]],
    );
    let variable = "KUBELET_KUBEADM_ARGS=";
    let comment = format!("# --container-runtime-endpoint={CONTAINERD}\n{variable}");
    let commented = files.replace(variable, &comment);
    let longer = format!(
        "{files}\nOTHER=--container-runtime-endpoint={CONTAINERD}2 --x--container-runtime-endpoint={CONTAINERD}"
    );
    for files in [&commented, &longer] {
        shows(
            files,
            2,
            expect![[r#"
            kubelet: kubelet.service, kubeadm with the flag
            endpoint /var/lib/kubelet/kubeadm-flags.env replace: the kubelet's endpoint unix:///run/containerd/containerd.sock becomes unix:///run/criswitch/criswitch.sock
            would change: 4 steps
        "#]],
        );
    }
    let twice = format!("{files}\nOTHER=--container-runtime-endpoint={CONTAINERD}");
    shows(
        &twice,
        1,
        expect![[r#"
        rejected layout: /var/lib/kubelet/kubeadm-flags.env: criswitch cannot change the endpoint in a file of this form; try setting it yourself (docs/provisioning.md)
        rejected: 1 finding
    "#]],
    );
}

#[test]
fn kubeadm_with_the_configuration_and_its_file_for_upgrades() {
    let key = format!("containerRuntimeEndpoint: {CONTAINERD}");
    let files = format!(
        "{KUBEADM}>>> /var/lib/kubelet/config.yaml\napiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{key}
>>> /var/lib/kubelet/instance-config.yaml\n{key}\n"
    );
    shows(
        &files,
        2,
        expect![[r#"
        kubelet: kubelet.service, kubeadm with the configuration
        endpoint /var/lib/kubelet/config.yaml replace: the kubelet's endpoint unix:///run/containerd/containerd.sock becomes unix:///run/criswitch/criswitch.sock
        endpoint /var/lib/kubelet/instance-config.yaml replace: the kubelet's endpoint unix:///run/containerd/containerd.sock becomes unix:///run/criswitch/criswitch.sock
        would change: 4 steps
    "#]],
    );
    let without = format!(
        "{KUBEADM}>>> /var/lib/kubelet/config.yaml\napiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
    );
    shows(
        &without,
        2,
        expect![[r#"
        kubelet: kubelet.service, kubeadm with the configuration
        endpoint /var/lib/kubelet/config.yaml replace: the kubelet's endpoint unix:///run/containerd/containerd.sock becomes unix:///run/criswitch/criswitch.sock
        would change: 4 steps
    "#]],
    );
}

#[test]
fn a_flag_in_the_unit() {
    let files = format!(
        "
>>> /etc/systemd/system/kubelet.service
[Service]
EnvironmentFile=/etc/default/kubelet
ExecStart=/usr/local/bin/kubelet $KUBELET_FLAGS --container-runtime-endpoint={CONTAINERD}
>>> /etc/default/kubelet
KUBELET_FLAGS=--config=/etc/default/kubeletconfig.json
>>> /etc/default/kubeletconfig.json
{{\"kind\":\"KubeletConfiguration\",\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\"}}"
    );
    shows(
        &files,
        2,
        expect![[r#"
        kubelet: kubelet.service, flag in the unit
        endpoint /etc/systemd/system/kubelet.service.d/zz-criswitch-endpoint.conf create: the kubelet's endpoint unix:///run/containerd/containerd.sock becomes unix:///run/criswitch/criswitch.sock
        would change: 4 steps
    "#]],
    );
}

#[test]
fn a_flag_in_an_environment_file() {
    let files = format!(
        "
>>> /etc/systemd/system/kubelet.service
[Service]
EnvironmentFile=-/etc/kubernetes/kubelet.env
ExecStart=/usr/local/bin/kubelet $KUBELET_ARGS
>>> /etc/kubernetes/kubelet.env
KUBELET_ARGS=\"--v=2 \\
--container-runtime-endpoint {CONTAINERD} \\
--runtime-cgroups=/system.slice/containerd.service\""
    );
    shows(
        &files,
        2,
        expect![[r#"
        kubelet: kubelet.service, flag in an environment file
        endpoint /etc/kubernetes/kubelet.env replace: the kubelet's endpoint unix:///run/containerd/containerd.sock becomes unix:///run/criswitch/criswitch.sock
        would change: 4 steps
    "#]],
    );
    let made_at_boot = files.replace("/etc/kubernetes/kubelet.env", "/run/kubelet.env");
    shows(
        &made_at_boot,
        1,
        expect![[r#"
        rejected layout: /run/kubelet.env: the file is made again at each boot, so the endpoint in it would not last; try setting the endpoint where the file is made from
        rejected: 1 finding
    "#]],
    );
}

const WITH_DIRECTORY: &str = "
>>> /etc/systemd/system/kubelet.service
[Service]
ExecStart=/usr/bin/kubelet --config /etc/kubelet/config.json --config-dir=/etc/kubelet/config.json.d
>>> /etc/kubelet/config.json
{\"kind\":\"KubeletConfiguration\",\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\"containerRuntimeEndpoint\":\"unix:///run/containerd/containerd.sock\"}
>>> /etc/kubelet/config.json.d/README
";

#[test]
fn a_directory_of_drop_ins() {
    shows(
        WITH_DIRECTORY,
        2,
        expect![[r#"
        kubelet: kubelet.service, --config-dir
        endpoint /etc/kubelet/config.json.d/90-criswitch.conf create: the kubelet's endpoint unix:///run/containerd/containerd.sock becomes unix:///run/criswitch/criswitch.sock
        would change: 4 steps
    "#]],
    );
    let later = format!(
        "{WITH_DIRECTORY}>>> /etc/kubelet/config.json.d/95-other.conf\napiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncontainerRuntimeEndpoint: {CONTAINERD}"
    );
    shows(
        &later,
        1,
        expect![[r#"
        rejected layout: /etc/kubelet/config.json.d/95-other.conf: unknown layout: after a change of /etc/kubelet/config.json.d/90-criswitch.conf the kubelet's endpoint would be unix:///run/containerd/containerd.sock; try removing the endpoint there
        rejected: 1 finding
    "#]],
    );
    let done = format!(
        "{WITH_DIRECTORY}>>> /etc/kubelet/config.json.d/95-other.conf\napiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncontainerRuntimeEndpoint: /run/criswitch/criswitch.sock"
    );
    shows(
        &done,
        2,
        expect![[r#"
        kubelet: kubelet.service, --config-dir
        would change: 3 steps
    "#]],
    );
}

#[test]
fn a_configuration_in_json_without_drop_ins_is_rejected() {
    let files = WITH_DIRECTORY.replace(" --config-dir=/etc/kubelet/config.json.d", "");
    shows(
        &files,
        1,
        expect![[r#"
        rejected layout: /etc/kubelet/config.json: criswitch cannot change the endpoint in a file of this form; try setting it yourself (docs/provisioning.md)
        rejected: 1 finding
    "#]],
    );
}

#[test]
fn k3s_and_rke2_have_drop_ins_of_the_kubelet() {
    let unit = |name: &str, command: &str| {
        format!("\n>>> /etc/systemd/system/{name}.service\n[Service]\nExecStart={command}\n")
    };
    shows(
        &unit("k3s", "/usr/local/bin/k3s server"),
        2,
        expect![[r#"
            kubelet: k3s.service, k3s
            endpoint /var/lib/rancher/k3s/agent/etc/kubelet.conf.d/90-criswitch.conf create: the kubelet's endpoint unix:///run/k3s/containerd/containerd.sock becomes unix:///run/criswitch/criswitch.sock
            would change: 4 steps
        "#]],
    );
    let rke2 = unit("rke2-agent", "/usr/local/bin/rke2 agent");
    let moved = format!("{rke2}>>> /etc/rancher/rke2/config.yaml\ndata-dir: /data/rke2");
    shows(
        &moved,
        2,
        expect![[r#"
        kubelet: rke2-agent.service, RKE2
        endpoint /data/rke2/agent/etc/kubelet.conf.d/90-criswitch.conf create: the kubelet's endpoint unix:///run/k3s/containerd/containerd.sock becomes unix:///run/criswitch/criswitch.sock
        would change: 4 steps
    "#]],
    );
    let flag = format!(
        "{rke2}>>> /etc/rancher/rke2/config.yaml\nkubelet-arg: container-runtime-endpoint={CONTAINERD}"
    );
    shows(
        &flag,
        1,
        expect![[r#"
        rejected layout: /etc/rancher/rke2/config.yaml: unknown layout: after a change of /var/lib/rancher/rke2/agent/etc/kubelet.conf.d/90-criswitch.conf the kubelet's endpoint would be unix:///run/containerd/containerd.sock; try removing the endpoint there
        rejected: 1 finding
    "#]],
    );
}

#[test]
fn an_unknown_layout_is_rejected() {
    let unit = |command: &str| {
        format!("\n>>> /etc/systemd/system/kubelet.service\n[Service]\nExecStart={command}\n")
    };
    shows(
        &unit("/opt/start-kubelet.sh"),
        1,
        expect![[r#"
        unknown layout: kubelet.service: looked at ExecStart= of this unit, which runs "/opt/start-kubelet.sh"
        rejected: 1 finding
    "#]],
    );
    shows(
        &unit("/usr/bin/kubelet --config=/gone.yaml"),
        1,
        expect![[r#"
            unknown layout: /gone.yaml: the kubelet's configuration is this file, which does not exist
            rejected: 1 finding
        "#]],
    );
    let k0s = "\n>>> /etc/systemd/system/k0sworker.service\n[Service]\nExecStart=/usr/local/bin/k0s worker\n";
    shows(
        k0s,
        1,
        expect![[r#"
            rejected layout: k0sworker.service: unknown layout: k0s starts the kubelet; try docs/node.md, which has the layouts
            rejected: 1 finding
        "#]],
    );
    shows(
        "\n>>> /var/lib/kubelet/config.yaml\napiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n",
        1,
        expect![[r#"
            unknown layout: kubelet: looked at the processes, kubelet.service, snap.microk8s.daemon-kubelite.service, snap.kubelet.daemon.service, k3s.service, k3s-agent.service, rke2-server.service, rke2-agent.service, k0sworker.service, k0scontroller.service, /etc/rancher, /var/lib/kubelet/config.yaml and /var/lib/kubelet/kubeadm-flags.env: none says how the kubelet starts; shown is what holds if the unit of kubeadm's packages starts it
            rejected: 1 finding
        "#]],
    );
    shows(
        "\n>>> /etc/hostname\nnode\n",
        1,
        expect![[r#"
            unknown layout: kubelet: looked at the processes, kubelet.service, snap.microk8s.daemon-kubelite.service, snap.kubelet.daemon.service, k3s.service, k3s-agent.service, rke2-server.service, rke2-agent.service, k0sworker.service, k0scontroller.service, /etc/rancher, /var/lib/kubelet/config.yaml and /var/lib/kubelet/kubeadm-flags.env: none says how the kubelet starts
            rejected: 1 finding
        "#]],
    );
}

#[test]
fn systems_that_make_their_files_again_are_rejected_with_the_way_that_exists_there() {
    for (id, way) in [
        (
            "bottlerocket",
            "settings.kubernetes.container-runtime-endpoint",
        ),
        ("cos", "a node pool with Ubuntu"),
        ("nixos", "services.kubernetes.kubelet"),
    ] {
        let release = format!(">>> /etc/os-release\nNAME=x\nID={id}\n");
        let machine = machine(&format!("{KUBEADM}{release}")).with("/usr/lib/systemd/systemd", "");
        let outcome = plan(&machine, "accept = ['backend']", &[]);
        assert_eq!(outcome.code, 1, "{}", outcome.stdout);
        let words = ["operating-system", "/etc/os-release", way];
        for word in words {
            assert!(outcome.stdout.contains(word), "{word}: {}", outcome.stdout);
        }
    }
}
