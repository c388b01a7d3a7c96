//! `criswitch check --node` on simulated machines with k3s or RKE2.

use expect_test::expect;

use crate::machine::{KUBELET, Machine, TABLE};

const CONTAINERD: &str = "unix:///run/k3s/containerd/containerd.sock";
const K3S: &str = "/var/lib/rancher/k3s/agent/etc";
const RKE2: &str = "/var/lib/rancher/rke2/agent/etc";

fn drop_in(socket: &str) -> String {
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncontainerRuntimeEndpoint: {socket}\n"
    )
}

/// A machine with the backends' sockets, and without the kubelet's own files.
fn machine() -> Machine {
    Machine::good()
        .without("/proc")
        .without("/var/lib/kubelet")
        .with("/proc/7/cmdline", "/usr/bin/containerd\0")
}

/// A machine after the first start of k3s: the file that k3s wrote, and its process with an overwritten command line.
fn k3s() -> Machine {
    machine()
        .with("/proc/812/cmdline", "/usr/local/bin/k3s server\0\0\0\0")
        .with(
            &format!("{K3S}/kubelet.conf.d/00-k3s-defaults.conf"),
            &(drop_in(CONTAINERD) + "cgroupDriver: systemd\n"),
        )
}

fn rke2() -> Machine {
    let folder = format!("--config-dir={RKE2}/kubelet.conf.d");
    machine()
        .with("/proc/812/cmdline", "/usr/bin/rke2 agent\0")
        .running("840", &["kubelet", "--sync-frequency=30s", &folder])
        .with(
            &format!("{RKE2}/kubelet.conf.d/00-rke2-defaults.conf"),
            &drop_in(CONTAINERD),
        )
}

#[test]
fn a_drop_in_makes_k3s_call_criswitch() {
    let own = drop_in("unix:///run/criswitch/criswitch.sock");
    let machine = k3s().with(&format!("{K3S}/kubelet.conf.d/90-criswitch.conf"), &own);
    machine.shows(TABLE, expect![[r#"
        NODE     VALUE                                 FROM
        kubelet  running, by k3s                       process 812
        runtime  unix:///run/criswitch/criswitch.sock  /var/lib/rancher/k3s/agent/etc/kubelet.conf.d/90-criswitch.conf
        images   -                                     -
        cgroups  systemd                               /var/lib/rancher/k3s/agent/etc/kubelet.conf.d/00-k3s-defaults.conf
        crictl   unix:///run/criswitch/criswitch.sock  /etc/crictl.yaml

        configuration is valid
    "#]]);
}

#[test]
fn a_drop_in_makes_rke2_call_criswitch() {
    let own = drop_in("unix:///run/criswitch/criswitch.sock");
    let machine = rke2().with(&format!("{RKE2}/kubelet.conf.d/90-criswitch.conf"), &own);
    machine.shows(TABLE, expect![[r#"
        NODE     VALUE                                 FROM
        kubelet  running, by rke2                      process 840
        runtime  unix:///run/criswitch/criswitch.sock  /var/lib/rancher/rke2/agent/etc/kubelet.conf.d/90-criswitch.conf
        images   -                                     -
        cgroups  -                                     -
        crictl   unix:///run/criswitch/criswitch.sock  /etc/crictl.yaml

        configuration is valid
    "#]]);
}

#[test]
fn a_hint_never_names_a_file_that_is_overwritten_at_each_start() {
    k3s().lacks(TABLE, expect![[r#"
        /var/lib/rancher/k3s/agent/etc/kubelet.conf.d/90-criswitch.conf: the kubelet's container runtime endpoint is unix:///run/k3s/containerd/containerd.sock, not criswitch; try containerRuntimeEndpoint: unix:///run/criswitch/criswitch.sock

        configuration is valid; 1 problem on this node
    "#]]);
    rke2().lacks(TABLE, expect![[r#"
        /var/lib/rancher/rke2/agent/etc/kubelet.conf.d/90-criswitch.conf: the kubelet's container runtime endpoint is unix:///run/k3s/containerd/containerd.sock, not criswitch; try containerRuntimeEndpoint: unix:///run/criswitch/criswitch.sock

        configuration is valid; 1 problem on this node
    "#]]);
}

#[test]
fn the_configuration_of_k3s_wins_over_its_written_files_and_drop_ins_win_over_both() {
    let switch = "container-runtime-endpoint: unix:///run/criswitch/criswitch.sock\n";
    let k3s = k3s()
        .with(
            "/etc/rancher/k3s/config.yaml",
            "container-runtime-endpoint: /run/x.sock",
        )
        .with("/etc/rancher/k3s/config.yaml.d/10-criswitch.yaml", switch)
        .with("/etc/rancher/k3s/config.yaml.d/20-other.bak", "a: [");
    k3s.shows(TABLE, expect![[r#"
        NODE     VALUE                                 FROM
        kubelet  running, by k3s                       process 812
        runtime  unix:///run/criswitch/criswitch.sock  /etc/rancher/k3s/config.yaml.d/10-criswitch.yaml
        images   -                                     -
        cgroups  systemd                               /var/lib/rancher/k3s/agent/etc/kubelet.conf.d/00-k3s-defaults.conf
        crictl   unix:///run/criswitch/criswitch.sock  /etc/crictl.yaml

        configuration is valid
    "#]]);
    let images = "container-runtime-endpoint: /run/x.sock\nimage-service-endpoint: /run/y.sock\n";
    let k3s = k3s.with("/etc/rancher/k3s/config.yaml.d/30-other.yaml", images);
    k3s.lacks(TABLE, expect![[r#"
        /etc/rancher/k3s/config.yaml.d/30-other.yaml: the kubelet's container runtime endpoint is /run/x.sock, not criswitch; try container-runtime-endpoint: unix:///run/criswitch/criswitch.sock
        /etc/rancher/k3s/config.yaml.d/30-other.yaml: the kubelet's image service endpoint is /run/y.sock, not criswitch; try removing image-service-endpoint

        configuration is valid; 2 problems on this node
    "#]]);
    let own = drop_in("/run/z.sock");
    let k3s = k3s.with(&format!("{K3S}/kubelet.conf.d/95-z.conf"), &own);
    k3s.lacks(TABLE, expect![[r#"
        /var/lib/rancher/k3s/agent/etc/kubelet.conf.d/95-z.conf: the kubelet's container runtime endpoint is /run/z.sock, not criswitch; try containerRuntimeEndpoint: unix:///run/criswitch/criswitch.sock
        /etc/rancher/k3s/config.yaml.d/30-other.yaml: the kubelet's image service endpoint is /run/y.sock, not criswitch; try removing image-service-endpoint

        configuration is valid; 2 problems on this node
    "#]]);
}

/// A unit of k3s as its installer writes it, with a further line.
fn unit(line: &str) -> String {
    format!(
        "[Service]\n{line}\nEnvironmentFile=-/etc/systemd/system/%N.service.env\nExecStart=/usr/local/bin/k3s \\\n  server\n"
    )
}

#[test]
fn environment_variables_name_the_configuration_and_the_data_directory() {
    const UNIT: &str = "/etc/systemd/system/k3s.service";
    const CONFIG: &str = "K3S_CONFIG_FILE=/etc/k3s/own.yaml";
    const DATA: &str = "K3S_DATA_DIR=/srv/k3s";
    let switch = "container-runtime-endpoint: unix:///run/criswitch/criswitch.sock\n";
    let k3s = || k3s().with("/etc/k3s/own.yaml", switch);
    let of_process = k3s().with("/proc/812/environ", &format!("{DATA}\0{CONFIG}\0"));
    let of_unit = k3s().with(UNIT, &unit("")).with(
        "/etc/systemd/system/k3s.service.env",
        &format!("{CONFIG}\n{DATA}"),
    );
    for machine in [of_process, of_unit] {
        machine.shows(
            TABLE,
            expect![[r#"
                NODE     VALUE                                 FROM
                kubelet  running, by k3s                       process 812
                runtime  unix:///run/criswitch/criswitch.sock  /etc/k3s/own.yaml
                images   -                                     -
                cgroups  -                                     -
                crictl   unix:///run/criswitch/criswitch.sock  /etc/crictl.yaml

                configuration is valid
            "#]],
        );
        let own = drop_in("/run/z.sock");
        let machine = machine.with("/srv/k3s/agent/etc/kubelet.conf.d/95-z.conf", &own);
        machine.lacks(
            TABLE,
            expect![[r#"
                /srv/k3s/agent/etc/kubelet.conf.d/95-z.conf: the kubelet's container runtime endpoint is /run/z.sock, not criswitch; try containerRuntimeEndpoint: unix:///run/criswitch/criswitch.sock

                configuration is valid; 1 problem on this node
            "#]],
        );
    }
    let unset = k3s()
        .with(UNIT, &unit("UnsetEnvironment=K3S_CONFIG_FILE"))
        .with("/etc/systemd/system/k3s.service.env", CONFIG);
    unset.lacks(
        TABLE,
        expect![[r#"
            /var/lib/rancher/k3s/agent/etc/kubelet.conf.d/90-criswitch.conf: the kubelet's container runtime endpoint is unix:///run/k3s/containerd/containerd.sock, not criswitch; try containerRuntimeEndpoint: unix:///run/criswitch/criswitch.sock

            configuration is valid; 1 problem on this node
        "#]],
    );
}

#[test]
fn k3s_or_rke2_before_its_first_start_is_found_by_its_files() {
    let machine = machine().with("/etc/rancher/rke2/config.yaml", "token: x\n");
    machine.lacks(TABLE, expect![[r#"
        /var/lib/rancher/rke2/agent/etc/kubelet.conf.d/90-criswitch.conf: the kubelet uses its default runtime endpoint unix:///run/k3s/containerd/containerd.sock, not criswitch; try containerRuntimeEndpoint: unix:///run/criswitch/criswitch.sock

        configuration is valid; 1 problem on this node
    "#]]);
    let machine = self::machine()
        .with("/etc/rancher/k3s/config.yaml", "data-dir: /data\n")
        .with(
            "/data/agent/etc/kubelet.conf.d/90-x.conf",
            &drop_in("/run/x.sock"),
        );
    machine.lacks(TABLE, expect![[r#"
        /data/agent/etc/kubelet.conf.d/90-x.conf: the kubelet's container runtime endpoint is /run/x.sock, not criswitch; try containerRuntimeEndpoint: unix:///run/criswitch/criswitch.sock

        configuration is valid; 1 problem on this node
    "#]]);
}

#[test]
fn k3s_with_docker_has_the_socket_of_cri_dockerd_by_default() {
    let words = "uses its default runtime endpoint unix:///run/k3s/cri-dockerd/cri-dockerd.sock, not criswitch";
    let with = |flag: &str, file: &str| {
        let unit = format!("[Service]\nExecStart=/usr/local/bin/k3s agent {flag}\n");
        let machine = machine().with("/etc/systemd/system/k3s-agent.service", &unit);
        let outcome = machine
            .with("/etc/rancher/k3s/config.yaml", file)
            .check(TABLE, &[]);
        assert_eq!(outcome.code, 1, "{}", outcome.stdout);
        outcome.stdout.replace('\n', " ").contains(words)
    };
    assert!(with("--docker", ""));
    assert!(with("--docker --debug", ""));
    assert!(with("", "docker: true"));
    assert!(!with("", "docker: false"));
    assert!(!with("--docker=false", "docker: true"));
    assert!(!with(
        "--container-runtime-endpoint=/run/x.sock --docker",
        ""
    ));
}

#[test]
fn the_crictl_configuration_of_k3s_is_checked_if_there_is_no_other() {
    let own = drop_in("unix:///run/criswitch/criswitch.sock");
    let machine = k3s()
        .with(&format!("{K3S}/kubelet.conf.d/90-criswitch.conf"), &own)
        .with(
            &format!("{K3S}/crictl.yaml"),
            &format!("runtime-endpoint: {CONTAINERD}\n"),
        );
    assert_eq!(machine.check(TABLE, &[]).code, 0);
    machine
        .without("/etc/crictl.yaml")
        .lacks(TABLE, expect![[r#"
            /var/lib/rancher/k3s/agent/etc/crictl.yaml: crictl's runtime-endpoint is unix:///run/k3s/containerd/containerd.sock, not criswitch; try runtime-endpoint: unix:///run/criswitch/criswitch.sock in /etc/crictl.yaml, and CRI_CONFIG_FILE=/etc/crictl.yaml

            configuration is valid; 1 problem on this node
        "#]]);
}

#[test]
fn a_kubelet_in_a_container_is_ignored() {
    let machine = Machine::good().with("/proc/900/cmdline", "/bin/k3s server\0");
    assert_eq!(machine.check(TABLE, &[]).code, 0);
    let old = KUBELET.replace("criswitch/criswitch.sock", "containerd/containerd.sock");
    let machine = k3s()
        .running("900", &["/usr/bin/kubelet", "--config=/kind.yaml"])
        .with("/kind.yaml", &old)
        .with(
            &format!("{K3S}/kubelet.conf.d/90-criswitch.conf"),
            &drop_in("/run/criswitch/criswitch.sock"),
        );
    assert_eq!(machine.check(TABLE, &[]).code, 0);
}

#[test]
fn the_process_of_another_user_is_not_the_kubelet() {
    let machine = |uid| {
        Machine::good()
            .running("500", &["kubelet", "--config=/home/user.yaml"])
            .with("/home/user.yaml", "")
            .with("/proc/500/status", &format!("Uid:\t{uid}\t0\t0\t0\n"))
    };
    assert_eq!(machine(1000).check(TABLE, &[]).code, 0);
    assert_eq!(machine(0).check(TABLE, &[]).code, 1);
}

#[test]
fn other_commands_of_k3s_are_no_kubelet() {
    let machine = machine().with("/proc/812/cmdline", "/usr/local/bin/k3s\0kubectl\0get\0");
    machine.lacks(TABLE, expect![[r#"
        kubelet: unknown: looked at the processes, kubelet.service, snap.microk8s.daemon-kubelite.service, snap.kubelet.daemon.service, k3s.service, k3s-agent.service, rke2-server.service, rke2-agent.service, k0sworker.service, k0scontroller.service, /etc/rancher, /var/lib/kubelet/config.yaml and /var/lib/kubelet/kubeadm-flags.env: none says how the kubelet starts

        configuration is valid; 1 problem on this node
    "#]]);
}
