//! `criswitch check --node` on the files and processes of a kubelet as distributions and installers lay them out.

use expect_test::{Expect, expect};

use crate::machine::Machine;

const TABLE: &str =
    "default_handler = 'runc'\n[handlers]\nrunc = '/run/containerd/containerd.sock'";

/// A machine with these files. In the text, a line `>>> PATH` comes before the content of each file.
pub(crate) fn machine(files: &str) -> Machine {
    let files = files.split("\n>>> ").filter(|file| !file.trim().is_empty());
    files.fold(Machine::bare(), |machine, file| {
        let (path, text) = file.split_once('\n').unwrap_or((file, ""));
        machine.with(path.trim_start_matches(">>> ").trim(), text)
    })
}

/// Checks the rows of the kubelet and the problems that name it.
#[track_caller]
fn shows(files: &str, expected: Expect) {
    let outcome = machine(files).check(TABLE, &[]);
    let (_, shown) = outcome.stdout.split_once("NODE ").unwrap();
    let lines = shown
        .lines()
        .skip(1)
        .filter(|line| !line.starts_with("crictl") && !line.is_empty());
    let lines: Vec<_> = lines
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    expected.assert_eq(&(lines.join("\n") + "\n"));
    let is_good = outcome.stdout.ends_with("\nconfiguration is valid\n");
    assert_eq!(outcome.code, i32::from(!is_good), "{shown}");
}

/// Checks that the kubelet uses criswitch because of kubeadm's configuration file, and that the output has no problem.
#[track_caller]
fn is_valid(files: &str) {
    shows(
        files,
        expect![[r#"
            kubelet not running kubelet.service
            runtime unix:///run/criswitch/criswitch.sock /var/lib/kubelet/config.yaml
            images - -
            cgroups - -
            configuration is valid
        "#]],
    );
}

const CRISWITCH: &str = "unix:///run/criswitch/criswitch.sock";

#[test]
fn kubespray_has_the_flags_in_a_file_with_continued_lines() {
    shows(
        "
>>> /etc/systemd/system/kubelet.service
[Service]
EnvironmentFile=-/etc/kubernetes/kubelet.env
ExecStart=/usr/local/bin/kubelet $KUBE_LOG_LEVEL $KUBELET_ARGS $KUBELET_CLOUDPROVIDER
>>> /etc/kubernetes/kubelet.env
KUBE_LOG_LEVEL=\"--v=2\"
KUBELET_ARGS=\"--config=/etc/kubernetes/kubelet-config.yaml \\
--container-runtime-endpoint=unix:///var/run/containerd/containerd.sock \\
--runtime-cgroups=/system.slice/containerd.service \\
 \"
KUBELET_CLOUDPROVIDER=\"\"
>>> /etc/kubernetes/kubelet-config.yaml
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: systemd
",
        expect![[r#"
            kubelet not running kubelet.service
            runtime unix:///var/run/containerd/containerd.sock /etc/kubernetes/kubelet.env
            images - -
            cgroups systemd /etc/kubernetes/kubelet-config.yaml
            /etc/kubernetes/kubelet.env: the kubelet's container runtime endpoint is unix:///var/run/containerd/containerd.sock, not criswitch; try --container-runtime-endpoint=unix:///run/criswitch/criswitch.sock
            configuration is valid; 1 problem on this node
        "#]],
    );
}

#[test]
fn aks_has_the_endpoint_in_a_drop_in_and_it_wins_over_the_configuration() {
    shows(&format!("
>>> /etc/systemd/system/kubelet.service
[Service]
EnvironmentFile=/etc/default/kubelet
ExecStart=/usr/local/bin/kubelet \\
        --enable-server \\
        --node-labels=\"${{KUBELET_NODE_LABELS}}\" \\
        $KUBELET_FLAGS $KUBELET_CONTAINERD_FLAGS
>>> /etc/systemd/system/kubelet.service.d/10-containerd.conf
[Service]
Environment=\"KUBELET_CONTAINERD_FLAGS=--runtime-request-timeout=15m --container-runtime-endpoint=unix:///run/containerd/containerd.sock\"
>>> /etc/default/kubelet
KUBELET_FLAGS=--cgroup-driver=systemd --config=/etc/default/kubeletconfig.json
KUBELET_NODE_LABELS=agentpool=np1,note=x
>>> /etc/default/kubeletconfig.json
{{\"kind\":\"KubeletConfiguration\",\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\"containerRuntimeEndpoint\":\"{CRISWITCH}\"}}
"), expect![[r#"
    kubelet not running kubelet.service
    runtime unix:///run/containerd/containerd.sock /etc/systemd/system/kubelet.service.d/10-containerd.conf
    images - -
    cgroups systemd /etc/default/kubelet
    /etc/systemd/system/kubelet.service.d/10-containerd.conf: the kubelet's container runtime endpoint is unix:///run/containerd/containerd.sock, not criswitch; try --container-runtime-endpoint=unix:///run/criswitch/criswitch.sock
    configuration is valid; 1 problem on this node
"#]]);
}

const KUBEADM: &str = "
>>> /usr/lib/systemd/system/kubelet.service
[Service]
ExecStart=/usr/bin/kubelet
>>> /usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf
[Service]
Environment=\"KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml\"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
>>> /var/lib/kubelet/config.yaml
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/criswitch/criswitch.sock
";

#[test]
fn a_drop_in_of_kubeadm_may_set_a_flag() {
    is_valid(KUBEADM);
    let flag = "--container-runtime-endpoint=unix:///run/containerd/containerd.sock";
    let own =
        ">>> /etc/systemd/system/kubelet.service.d/0-containerd.conf\n[Service]\nEnvironment=";
    shows(
        &format!("{KUBEADM}{own}\"KUBELET_EXTRA_ARGS=--v=2 {flag}\""),
        expect![[r#"
            kubelet not running kubelet.service
            runtime unix:///run/containerd/containerd.sock /etc/systemd/system/kubelet.service.d/0-containerd.conf
            images - -
            cgroups - -
            /etc/systemd/system/kubelet.service.d/0-containerd.conf: the kubelet's container runtime endpoint is unix:///run/containerd/containerd.sock, not criswitch; try --container-runtime-endpoint=unix:///run/criswitch/criswitch.sock
            configuration is valid; 1 problem on this node
        "#]],
    );
    let file = format!(
        ">>> /etc/default/kubelet\n# {flag}\nKUBELET_EXTRA_ARGS=--container-runtime-endpoint={CRISWITCH}"
    );
    let both = format!("{KUBEADM}{own}\"KUBELET_EXTRA_ARGS={flag}\"\n{file}");
    shows(
        &both,
        expect![[r#"
        kubelet not running kubelet.service
        runtime unix:///run/criswitch/criswitch.sock /etc/default/kubelet
        images - -
        cgroups - -
        configuration is valid
    "#]],
    );
}

/// A drop-in that gives the kubelet another endpoint.
const FLAG: &str =
    "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet --container-runtime-endpoint=/run/x.sock";

#[test]
fn a_masked_drop_in_and_a_drop_in_in_a_later_directory_do_not_count() {
    let folder = "/systemd/system/kubelet.service.d/20-x.conf";
    let files = format!("{KUBEADM}>>> /usr/lib{folder}\n{FLAG}\n>>> /run{folder}\n\n");
    is_valid(&files);
}

#[test]
fn a_hidden_drop_in_and_one_in_a_subfolder_do_not_count() {
    for name in [".20-x.conf", "old/20-x.conf"] {
        let folder = "/etc/systemd/system/kubelet.service.d";
        is_valid(&format!("{KUBEADM}>>> {folder}/{name}\n{FLAG}\n"));
    }
}

#[test]
fn eks_has_the_drop_ins_of_the_configuration_in_its_environment_file() {
    let files = "
>>> /etc/systemd/system/kubelet.service
[Service]
EnvironmentFile=/etc/eks/kubelet/environment
ExecStart=/usr/bin/kubelet \\
    --config /etc/kubernetes/kubelet/config.json \\
    # the endpoint of containerd
    --container-runtime-endpoint unix:///run/criswitch/criswitch.sock \\
    $NODEADM_KUBELET_ARGS
>>> /etc/kubernetes/kubelet/config.json
{\"kind\":\"KubeletConfiguration\",\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\"cgroupDriver\":\"systemd\"}
>>> /etc/kubernetes/kubelet/config.json.d/40-nodeadm.conf
{\"kind\":\"KubeletConfiguration\",\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\"imageServiceEndpoint\":\"unix:///run/containerd/containerd.sock\"}
";
    let environment = ">>> /etc/eks/kubelet/environment
NODEADM_KUBELET_ARGS='--config-dir=/etc/kubernetes/kubelet/config.json.d --node-labels=\"role=a\"'
";
    shows(
        &format!("{files}{environment}"),
        expect![[r#"
        kubelet not running kubelet.service
        runtime unix:///run/criswitch/criswitch.sock /etc/systemd/system/kubelet.service
        images unix:///run/containerd/containerd.sock /etc/kubernetes/kubelet/config.json.d/40-nodeadm.conf
        cgroups systemd /etc/kubernetes/kubelet/config.json
        /etc/kubernetes/kubelet/config.json.d/40-nodeadm.conf: the kubelet's image service endpoint is unix:///run/containerd/containerd.sock, not criswitch; try removing imageServiceEndpoint
        configuration is valid; 1 problem on this node
    "#]],
    );
    shows(
        files,
        expect![[r#"
        kubelet not running kubelet.service
        runtime unix:///run/criswitch/criswitch.sock /etc/systemd/system/kubelet.service
        images - -
        cgroups systemd /etc/kubernetes/kubelet/config.json
        /etc/eks/kubelet/environment: unknown: kubelet.service needs this file, which cannot be read
        configuration is valid; 1 problem on this node
    "#]],
    );
}

#[test]
fn kops_has_the_flags_in_one_quoted_variable() {
    shows(
        &format!(
            "
>>> /lib/systemd/system/kubelet.service
[Service]
EnvironmentFile=/etc/sysconfig/kubelet
ExecStart=/usr/local/bin/kubelet \"$DAEMON_ARGS\"
>>> /etc/sysconfig/kubelet
DAEMON_ARGS=\"--v=2 --container-runtime-endpoint={CRISWITCH}\"
"
        ),
        expect![[r#"
            kubelet not running kubelet.service
            runtime unix:///run/criswitch/criswitch.sock /etc/sysconfig/kubelet
            images - -
            cgroups - -
            configuration is valid
        "#]],
    );
}

#[test]
fn a_script_is_unknown_and_gets_no_advice_about_a_file() {
    shows(
        &format!(
            "{KUBEADM}
>>> /etc/systemd/system/kubelet.service
[Service]
ExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml
>>> /etc/systemd/system/kubelet.service.d/20-script.conf
[Service]
ExecStart=
ExecStart=/bin/sh -c '/opt/bin/kubelet-start.sh'
"
        ),
        expect![[r#"
            kubelet - -
            runtime - -
            images - -
            cgroups - -
            kubelet.service: unknown: looked at ExecStart= of this unit, which runs "/bin/sh"
            configuration is valid; 1 problem on this node
        "#]],
    );
}

#[test]
fn the_snap_of_microk8s_has_the_flags_in_a_file() {
    let running = "
>>> /proc/812/cmdline
/snap/microk8s/7394/kubelite\0--scheduler-args-file=/x\0--kubelet-args-file=/var/snap/microk8s/7394/args/kubelet\0
";
    let flags = ">>> /var/snap/microk8s/7394/args/kubelet
--root-dir=${SNAP_COMMON}/var/lib/kubelet
--container-runtime-endpoint=${SNAP_COMMON}/run/containerd.sock
--node-labels=\"microk8s.io/cluster=true\"
# --container-runtime-endpoint=unix:///run/criswitch/criswitch.sock
";
    shows(
        &format!("{running}{flags}"),
        expect![[r#"
        kubelet running process 812
        runtime /var/snap/microk8s/common/run/containerd.sock /var/snap/microk8s/7394/args/kubelet
        images - -
        cgroups - -
        /var/snap/microk8s/7394/args/kubelet: the kubelet's container runtime endpoint is /var/snap/microk8s/common/run/containerd.sock, not criswitch; try --container-runtime-endpoint=unix:///run/criswitch/criswitch.sock
        /run/containerd/containerd.sock: backend "runc": this socket does not exist; try starting the runtime
        configuration is valid; 2 problems on this node
    "#]],
    );
    shows(
        running,
        expect![[r#"
        kubelet running process 812
        runtime - -
        images - -
        cgroups - -
        /var/snap/microk8s/7394/args/kubelet: unknown: the kubelet's flags are in this file, which cannot be read
        /run/containerd/containerd.sock: backend "runc": this socket does not exist; try starting the runtime
        configuration is valid; 2 problems on this node
    "#]],
    );
    let unit = ">>> /etc/systemd/system/snap.microk8s.daemon-kubelite.service
[Service]
ExecStart=/usr/bin/snap run microk8s.daemon-kubelite
";
    let flags = flags.replace("/7394/", "/current/");
    shows(
        &format!("{unit}{flags}"),
        expect![[r#"
            kubelet not running snap.microk8s.daemon-kubelite.service
            runtime /var/snap/microk8s/common/run/containerd.sock /var/snap/microk8s/current/args/kubelet
            images - -
            cgroups - -
            /var/snap/microk8s/current/args/kubelet: the kubelet's container runtime endpoint is /var/snap/microk8s/common/run/containerd.sock, not criswitch; try --container-runtime-endpoint=unix:///run/criswitch/criswitch.sock
            configuration is valid; 1 problem on this node
        "#]],
    );
}

#[test]
fn a_kubelet_in_hyperkube_or_a_container_of_the_operating_system_is_found() {
    shows(
        "
>>> /proc/700/cmdline
/hyperkube\0kubelet\0--container-runtime-endpoint=unix:///run/containerd/containerd.sock\0
",
        expect![[r#"
            kubelet running process 700
            runtime unix:///run/containerd/containerd.sock process 700
            images - -
            cgroups - -
            process 700: the kubelet's container runtime endpoint is unix:///run/containerd/containerd.sock, not criswitch; try --container-runtime-endpoint=unix:///run/criswitch/criswitch.sock
            /run/containerd/containerd.sock: backend "runc": this socket does not exist; try starting the runtime
            configuration is valid; 2 problems on this node
        "#]],
    );
    // The configuration of this kubelet is in its container.
    shows(
        &format!(
            "
>>> /proc/1003/cmdline
/usr/local/bin/kubelet\0--config=/etc/kubernetes/kubelet.yaml\0
>>> /proc/1003/root/etc/kubernetes/kubelet.yaml
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: {CRISWITCH}
"
        ),
        expect![[r#"
            kubelet running process 1003
            runtime unix:///run/criswitch/criswitch.sock /etc/kubernetes/kubelet.yaml
            images - -
            cgroups - -
            /run/containerd/containerd.sock: backend "runc": this socket does not exist; try starting the runtime
            configuration is valid; 1 problem on this node
        "#]],
    );
}

#[test]
fn k0s_starts_a_kubelet_with_flags() {
    let process = "
>>> /proc/990/cmdline
/usr/local/bin/k0s\0worker\0
>>> /proc/1001/cmdline
/var/lib/k0s/bin/kubelet\0--config=/run/k0s/kubelet.yaml\0--container-runtime-endpoint=unix:///run/k0s/containerd.sock\0
>>> /run/k0s/kubelet.yaml
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: systemd
";
    shows(
        process,
        expect![[r#"
        kubelet running process 1001
        runtime unix:///run/k0s/containerd.sock process 1001
        images - -
        cgroups systemd /run/k0s/kubelet.yaml
        process 1001: the kubelet's container runtime endpoint is unix:///run/k0s/containerd.sock, not criswitch; try --container-runtime-endpoint=unix:///run/criswitch/criswitch.sock
        /run/containerd/containerd.sock: backend "runc": this socket does not exist; try starting the runtime
        configuration is valid; 2 problems on this node
    "#]],
    );
    let unit = "
>>> /etc/systemd/system/k0sworker.service
[Service]
ExecStart=/usr/local/bin/k0s worker --token-file=/etc/k0s/token --kubelet-extra-args='--image-service-endpoint=/run/x.sock'";
    shows(
        unit,
        expect![[r#"
        kubelet not running k0sworker.service
        runtime - -
        images /run/x.sock /etc/systemd/system/k0sworker.service
        cgroups - -
        k0sworker.service: the kubelet uses its default runtime endpoint unix:///run/k0s/containerd.sock, not criswitch; try --cri-socket=remote:unix:///run/criswitch/criswitch.sock
        /etc/systemd/system/k0sworker.service: the kubelet's image service endpoint is /run/x.sock, not criswitch; try removing --image-service-endpoint
        configuration is valid; 2 problems on this node
    "#]],
    );
    shows(
        &format!("{unit} --cri-socket=remote:{CRISWITCH}"),
        expect![[r#"
            kubelet not running k0sworker.service
            runtime unix:///run/criswitch/criswitch.sock /etc/systemd/system/k0sworker.service
            images /run/x.sock /etc/systemd/system/k0sworker.service
            cgroups - -
            /etc/systemd/system/k0sworker.service: the kubelet's image service endpoint is /run/x.sock, not criswitch; try removing --image-service-endpoint
            configuration is valid; 1 problem on this node
        "#]],
    );
}

#[test]
fn the_unit_of_k3s_has_flags_and_its_configuration_has_flags_of_the_kubelet() {
    let unit = "
>>> /etc/systemd/system/k3s.service
[Service]
EnvironmentFile=-/etc/default/%N
ExecStart=/usr/local/bin/k3s \\
    server \\
\t'--container-runtime-endpoint' \\
\t'unix:///run/containerd/containerd.sock' \\
\t'--kubelet-arg=cgroup-driver=systemd' \\

>>> /etc/rancher/k3s/kubelet.yaml
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/crio/crio.sock
>>> /etc/rancher/k3s/config.yaml
kubelet-arg:
  - \"image-service-endpoint=unix:///run/containerd/containerd.sock\"
  - \"config=/etc/rancher/k3s/kubelet.yaml\"
";
    shows(
        unit,
        expect![[r#"
        kubelet not running k3s.service
        runtime unix:///run/containerd/containerd.sock /etc/systemd/system/k3s.service
        images unix:///run/containerd/containerd.sock /etc/rancher/k3s/config.yaml
        cgroups systemd /etc/systemd/system/k3s.service
        /etc/systemd/system/k3s.service: the kubelet's container runtime endpoint is unix:///run/containerd/containerd.sock, not criswitch; try --container-runtime-endpoint=unix:///run/criswitch/criswitch.sock
        /etc/rancher/k3s/config.yaml: the kubelet's image service endpoint is unix:///run/containerd/containerd.sock, not criswitch; try removing kubelet-arg: image-service-endpoint
        configuration is valid; 2 problems on this node
    "#]],
    );
    // A running k3s overwrites its command line.
    shows(
        &format!("{unit}>>> /proc/812/cmdline\n/usr/local/bin/k3s server\0\0"),
        expect![[r#"
            kubelet running, by k3s process 812
            runtime unix:///run/containerd/containerd.sock /etc/systemd/system/k3s.service
            images unix:///run/containerd/containerd.sock /etc/rancher/k3s/config.yaml
            cgroups systemd /etc/systemd/system/k3s.service
            /etc/systemd/system/k3s.service: the kubelet's container runtime endpoint is unix:///run/containerd/containerd.sock, not criswitch; try --container-runtime-endpoint=unix:///run/criswitch/criswitch.sock
            /etc/rancher/k3s/config.yaml: the kubelet's image service endpoint is unix:///run/containerd/containerd.sock, not criswitch; try removing kubelet-arg: image-service-endpoint
            /run/containerd/containerd.sock: backend "runc": this socket does not exist; try starting the runtime
            configuration is valid; 3 problems on this node
        "#]],
    );
}

#[test]
fn rke2_reads_files_of_both_extensions_and_adds_to_keys_with_a_plus() {
    shows(
        &format!(
            "
>>> /etc/rancher/rke2/config.yaml
container-runtime-endpoint: {CRISWITCH}
kubelet-arg+:
  - \"image-service-endpoint=unix:///run/k3s/containerd/containerd.sock\"
>>> /etc/rancher/rke2/config.yaml.d/50-x.yml
container-runtime-endpoint: /run/other.sock
kubelet-arg+: v=2
"
        ),
        expect![[r#"
            kubelet not running; rke2 without a unit -
            runtime /run/other.sock /etc/rancher/rke2/config.yaml.d/50-x.yml
            images unix:///run/k3s/containerd/containerd.sock /etc/rancher/rke2/config.yaml
            cgroups - -
            /etc/rancher/rke2/config.yaml.d/50-x.yml: the kubelet's container runtime endpoint is /run/other.sock, not criswitch; try container-runtime-endpoint: unix:///run/criswitch/criswitch.sock
            /etc/rancher/rke2/config.yaml: the kubelet's image service endpoint is unix:///run/k3s/containerd/containerd.sock, not criswitch; try removing kubelet-arg+: image-service-endpoint
            configuration is valid; 2 problems on this node
        "#]],
    );
}

#[test]
fn the_enabled_unit_counts_if_a_machine_has_several() {
    let config = ">>> /etc/rancher/rke2/config.yaml\ndata-dir: /data";
    shows(
        &format!(
            "
>>> /usr/local/lib/systemd/system/rke2-server.service
[Service]
ExecStart=/usr/local/bin/rke2 server --container-runtime-endpoint=/run/x.sock
>>> /usr/local/lib/systemd/system/rke2-agent.service
[Service]
ExecStart=/usr/local/bin/rke2 agent --container-runtime-endpoint={CRISWITCH}
>>> /etc/systemd/system/multi-user.target.wants/rke2-agent.service
{config}
"
        ),
        expect![[r#"
            kubelet not running rke2-agent.service
            runtime unix:///run/criswitch/criswitch.sock /usr/local/lib/systemd/system/rke2-agent.service
            images - -
            cgroups - -
            configuration is valid
        "#]],
    );
}

#[test]
fn the_kubelet_reads_the_first_document_and_no_key_twice() {
    let documents = format!("{KUBEADM}---\nimageServiceEndpoint: /run/x.sock\n");
    is_valid(&documents);
    let twice = format!("{KUBEADM}containerRuntimeEndpoint: /run/x.sock\n");
    shows(
        &twice,
        expect![[r#"
        kubelet not running kubelet.service
        runtime - -
        images - -
        cgroups - -
        /var/lib/kubelet/config.yaml: cannot be read: line 4: the key "containerRuntimeEndpoint" occurs twice; try removing one of the two
        configuration is valid; 1 problem on this node
    "#]],
    );
}
