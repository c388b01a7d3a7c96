//! `criswitch check --node` on simulated machines.

use std::os::unix::fs::symlink;

use criswitch_cri::codec::cri::CgroupDriver;
use expect_test::expect;
use serde_json::json;

use crate::machine::{KUBELET, Machine, TABLE};
use crate::support::Sim;
use crate::{Outcome, main_file, run, run_beside, text};

#[test]
fn a_machine_that_is_set_up_for_criswitch_has_no_problem() {
    Machine::good().shows(
        TABLE,
        expect![[r#"
            NODE     VALUE                                 FROM
            kubelet  running                               process 812
            runtime  unix:///run/criswitch/criswitch.sock  /var/lib/kubelet/config.yaml
            images   -                                     -
            cgroups  systemd                               /var/lib/kubelet/config.yaml
            crictl   unix:///run/criswitch/criswitch.sock  /etc/crictl.yaml

            configuration is valid
        "#]],
    );
}

#[test]
fn programs_get_the_same() {
    let machine = Machine::good().without("/run/kata/containerd.sock");
    let outcome = machine.check(TABLE, &["--json"]);
    assert_eq!(outcome.code, 1);
    let shown: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    let switch = "unix:///run/criswitch/criswitch.sock";
    let expected = json!({
        "kubelet": {
            "pid": 812,
            "runtimeEndpoint": { "value": switch, "from": "/var/lib/kubelet/config.yaml" },
            "cgroupDriver": { "value": "systemd", "from": "/var/lib/kubelet/config.yaml" },
        },
        "crictl": { "runtimeEndpoint": { "value": switch, "from": "/etc/crictl.yaml" } },
        "findings": [{
            "path": "/run/kata/containerd.sock",
            "what": "backend \"kata\": this socket does not exist",
            "try": "starting the runtime",
        }],
        "notes": [],
    });
    assert_eq!(shown["node"], expected);
    let problem = &shown["problems"][0];
    assert_eq!(problem["path"], "/run/kata/containerd.sock");
    assert_eq!(problem["try"], "starting the runtime");
    let without = run(&[
        "check",
        "--json",
        "--config",
        text(&main_file(TABLE).main()),
    ]);
    let without: serde_json::Value = serde_json::from_str(&without.stdout).unwrap();
    assert!(without["node"].is_null(), "{without}");
}

#[test]
fn a_missing_kubelet_is_reported() {
    Machine::bare().shows(TABLE, expect![[r#"
        NODE     VALUE  FROM
        kubelet  -      -
        runtime  -      -
        images   -      -
        cgroups  -      -
        crictl   -      -

        kubelet: unknown: looked at the processes, kubelet.service, snap.microk8s.daemon-kubelite.service, snap.kubelet.daemon.service, k3s.service, k3s-agent.service, rke2-server.service, rke2-agent.service, k0sworker.service, k0scontroller.service, /etc/rancher, /var/lib/kubelet/config.yaml and /var/lib/kubelet/kubeadm-flags.env: none says how the kubelet starts

        configuration is valid; 1 problem on this node
    "#]]);
}

#[test]
fn a_kubelet_that_calls_another_runtime_is_reported_with_the_place_of_the_setting() {
    let old = KUBELET.replace("criswitch/criswitch.sock", "containerd/containerd.sock");
    let machine = Machine::good().with("/var/lib/kubelet/config.yaml", &old);
    machine.lacks(TABLE, expect![[r#"
        /var/lib/kubelet/config.yaml: the kubelet's container runtime endpoint is unix:///run/containerd/containerd.sock, not criswitch; try containerRuntimeEndpoint: unix:///run/criswitch/criswitch.sock

        configuration is valid; 1 problem on this node
    "#]]);
    let flag = "--container-runtime-endpoint=unix:///run/containerd/containerd.sock";
    let machine = Machine::good().running("812", &["kubelet", flag]);
    machine.lacks(TABLE, expect![[r#"
        process 812: the kubelet's container runtime endpoint is unix:///run/containerd/containerd.sock, not criswitch; try --container-runtime-endpoint=unix:///run/criswitch/criswitch.sock

        configuration is valid; 1 problem on this node
    "#]]);
    let machine = Machine::good().with(
        "/var/lib/kubelet/config.yaml",
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration",
    );
    machine.lacks(TABLE, expect![[r#"
        /var/lib/kubelet/config.yaml: the kubelet uses its default runtime endpoint unix:///run/containerd/containerd.sock, not criswitch; try containerRuntimeEndpoint: unix:///run/criswitch/criswitch.sock

        configuration is valid; 1 problem on this node
    "#]]);
}

#[test]
fn an_endpoint_with_a_slash_at_its_end_is_not_the_socket() {
    for end in ["/", "//", "/."] {
        let socket = format!("unix:///run/criswitch/criswitch.sock{end}");
        let flag = format!("--container-runtime-endpoint={socket}");
        let machine = Machine::good()
            .running("812", &["kubelet", &flag])
            .with("/etc/crictl.yaml", &format!("runtime-endpoint: {socket}\n"));
        let outcome = machine.check(TABLE, &["-o", "json"]);
        let shown: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
        let findings = shown["node"]["findings"].as_array().unwrap();
        let found = findings.iter().map(|it| it["what"].as_str().unwrap());
        let kubelet =
            format!("the kubelet's container runtime endpoint is {socket}, not criswitch");
        let crictl = format!("crictl's runtime-endpoint is {socket}, not criswitch");
        assert_eq!(found.collect::<Vec<_>>(), [kubelet, crictl]);
    }
}

#[test]
fn a_flag_wins_over_the_configuration_and_the_last_of_two_flags_wins() {
    let old = KUBELET.replace("criswitch/criswitch.sock", "containerd/containerd.sock");
    let flags = [
        "/opt/kubelet",
        "--container-runtime-endpoint=unix:///run/x.sock",
        "--container-runtime-endpoint",
        "/var/run/criswitch/criswitch.sock",
    ];
    let machine = Machine::good()
        .with("/var/lib/kubelet/config.yaml", &old)
        .running("812", &flags);
    machine.shows(
        TABLE,
        expect![[r#"
            NODE     VALUE                                 FROM
            kubelet  running                               process 812
            runtime  /var/run/criswitch/criswitch.sock     process 812
            images   -                                     -
            cgroups  -                                     -
            crictl   unix:///run/criswitch/criswitch.sock  /etc/crictl.yaml

            configuration is valid
        "#]],
    );
}

#[test]
fn the_flags_of_a_stopped_kubelet_are_read_from_the_files_that_start_it() {
    let kubeadm = "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/containerd/containerd.sock --pod-infra-container-image=pause\"\n";
    let machine = Machine::good()
        .without("/proc")
        .with("/var/lib/kubelet/kubeadm-flags.env", kubeadm);
    machine.lacks(TABLE, expect![[r#"
        kubelet: unknown: looked at the processes, kubelet.service, snap.microk8s.daemon-kubelite.service, snap.kubelet.daemon.service, k3s.service, k3s-agent.service, rke2-server.service, rke2-agent.service, k0sworker.service, k0scontroller.service, /etc/rancher, /var/lib/kubelet/config.yaml and /var/lib/kubelet/kubeadm-flags.env: none says how the kubelet starts; shown is what holds if the unit of kubeadm's packages starts it
        /var/lib/kubelet/kubeadm-flags.env: the kubelet's container runtime endpoint is unix:///run/containerd/containerd.sock, not criswitch; try --container-runtime-endpoint=unix:///run/criswitch/criswitch.sock

        configuration is valid; 2 problems on this node
    "#]]);
    let own = "# --container-runtime-endpoint=unix:///run/no.sock\nKUBELET_EXTRA_ARGS=--container-runtime-endpoint=unix:///run/criswitch/criswitch.sock";
    machine.with("/etc/default/kubelet", own).shows(
        TABLE,
        expect![[r#"
            NODE     VALUE                                 FROM
            kubelet  not running; no unit                  -
            runtime  unix:///run/criswitch/criswitch.sock  /etc/default/kubelet
            images   -                                     -
            cgroups  systemd                               /var/lib/kubelet/config.yaml
            crictl   unix:///run/criswitch/criswitch.sock  /etc/crictl.yaml

            kubelet: unknown: looked at the processes, kubelet.service, snap.microk8s.daemon-kubelite.service, snap.kubelet.daemon.service, k3s.service, k3s-agent.service, rke2-server.service, rke2-agent.service, k0sworker.service, k0scontroller.service, /etc/rancher, /var/lib/kubelet/config.yaml and /var/lib/kubelet/kubeadm-flags.env: none says how the kubelet starts; shown is what holds if the unit of kubeadm's packages starts it

            configuration is valid; 1 problem on this node
        "#]],
    );
}

#[test]
fn a_configuration_at_a_different_path_and_its_drop_ins_are_read() {
    let flags = [
        "kubelet",
        "--config=/etc/kubernetes/kubelet.yaml",
        "--config-dir",
        "/etc/kubernetes/kubelet.conf.d",
    ];
    let old = KUBELET.replace("criswitch/criswitch.sock", "containerd/containerd.sock");
    let machine = Machine::good()
        .running("812", &flags)
        .without("/var/lib/kubelet")
        .with("/etc/kubernetes/kubelet.yaml", &old)
        .with(
            "/etc/kubernetes/kubelet.conf.d/10-x.conf",
            &KUBELET.replace("criswitch.sock", "x.sock"),
        )
        .with(
            "/etc/kubernetes/kubelet.conf.d/20-y.conf",
            &KUBELET
                .replace("unix:///", "/")
                .replace("cgroupDriver: systemd\n", ""),
        )
        .with(
            "/etc/kubernetes/kubelet.conf.d/30-z.bak",
            "containerRuntimeEndpoint: /run/z.sock",
        );
    machine.shows(
        TABLE,
        expect![[r#"
            NODE     VALUE                                 FROM
            kubelet  running                               process 812
            runtime  /run/criswitch/criswitch.sock         /etc/kubernetes/kubelet.conf.d/20-y.conf
            images   -                                     -
            cgroups  systemd                               /etc/kubernetes/kubelet.conf.d/10-x.conf
            crictl   unix:///run/criswitch/criswitch.sock  /etc/crictl.yaml

            configuration is valid
        "#]],
    );
}

#[test]
fn an_image_endpoint_other_than_criswitch_is_reported() {
    let images = format!("{KUBELET}imageServiceEndpoint: unix:///run/containerd/containerd.sock\n");
    let crictl = "runtime-endpoint: unix:///run/criswitch/criswitch.sock\nimage-endpoint: unix:///run/containerd/containerd.sock\n";
    let machine = Machine::good()
        .with("/var/lib/kubelet/config.yaml", &images)
        .with("/etc/crictl.yaml", crictl);
    machine.lacks(TABLE, expect![[r#"
        /var/lib/kubelet/config.yaml: the kubelet's image service endpoint is unix:///run/containerd/containerd.sock, not criswitch; try removing imageServiceEndpoint
        /etc/crictl.yaml: crictl's image-endpoint is unix:///run/containerd/containerd.sock, not criswitch; try removing image-endpoint

        configuration is valid; 2 problems on this node
    "#]]);
    let machine =
        Machine::good().running("812", &["kubelet", "--image-service-endpoint=/run/x.sock"]);
    machine.lacks(TABLE, expect![[r#"
        process 812: the kubelet uses its default runtime endpoint unix:///run/containerd/containerd.sock, not criswitch; try --container-runtime-endpoint=unix:///run/criswitch/criswitch.sock
        process 812: the kubelet's image service endpoint is /run/x.sock, not criswitch; try removing --image-service-endpoint

        configuration is valid; 2 problems on this node
    "#]]);
    let images = format!("{KUBELET}imageServiceEndpoint: unix:///run/criswitch/criswitch.sock\n");
    let machine = Machine::good().with("/var/lib/kubelet/config.yaml", &images);
    assert_eq!(machine.check(TABLE, &[]).code, 0);
}

#[test]
fn an_installed_crictl_must_call_criswitch() {
    let machine = Machine::good().with(
        "/etc/crictl.yaml",
        "runtime-endpoint: unix:///run/kata/containerd.sock",
    );
    machine.lacks(TABLE, expect![[r#"
        /etc/crictl.yaml: crictl's runtime-endpoint is unix:///run/kata/containerd.sock, not criswitch; try runtime-endpoint: unix:///run/criswitch/criswitch.sock

        configuration is valid; 1 problem on this node
    "#]]);
    let machine = Machine::good().with("/etc/crictl.yaml", "timeout: 10");
    machine.lacks(TABLE, expect![[r#"
        /etc/crictl.yaml: crictl has no runtime-endpoint; try runtime-endpoint: unix:///run/criswitch/criswitch.sock

        configuration is valid; 1 problem on this node
    "#]]);
    let machine = Machine::good().without("/etc/crictl.yaml");
    assert_eq!(machine.check(TABLE, &[]).code, 0, "it is not installed");
    let machine = machine.with("/usr/local/bin/crictl", "");
    machine.lacks(TABLE, expect![[r#"
        /etc/crictl.yaml: crictl has no runtime-endpoint; try runtime-endpoint: unix:///run/criswitch/criswitch.sock

        configuration is valid; 1 problem on this node
    "#]]);
}

#[test]
fn files_that_cannot_be_read_are_reported() {
    let machine = Machine::good()
        .with("/var/lib/kubelet/config.yaml", "a: [b\nc: }")
        .without("/etc/crictl.yaml")
        .with_directory("/etc/crictl.yaml", 0o755)
        .with("/usr/bin/crictl", "");
    machine.lacks(
        TABLE,
        expect![[r#"
        /var/lib/kubelet/config.yaml: cannot be read: line 2 is not valid YAML; try a YAML file
        /etc/crictl.yaml: cannot be read: Is a directory; try a YAML file

        configuration is valid; 2 problems on this node
    "#]],
    );
}

#[test]
fn a_file_or_directory_at_the_path_of_a_socket_is_reported() {
    let machine = Machine::good()
        .without("/run/containerd")
        .with_directory("/run/containerd/containerd.sock", 0o755)
        .without("/run/kata")
        .with("/run/kata/containerd.sock", "")
        .with("/run/criswitch/criswitch.sock", "");
    machine.lacks(TABLE, expect![[r#"
        /run/criswitch/criswitch.sock: is a file; criswitch needs this path for its socket; try moving it
        /run/containerd/containerd.sock: backend "runc": this is a directory, not a socket; try the path of its socket
        /run/kata/containerd.sock: backend "kata": this is a file, not a socket; try the path of its socket

        configuration is valid; 3 problems on this node
    "#]]);
    let machine = Machine::good().with_socket("/run/criswitch/criswitch.sock");
    assert_eq!(machine.check(TABLE, &[]).code, 0, "it is running");
}

#[test]
fn a_path_through_a_file_is_reported() {
    let machine = Machine::good()
        .without("/run/kata")
        .with("/run/kata", "")
        .with("/run/criswitch", "");
    machine.lacks(TABLE, expect![[r#"
        /run/criswitch/criswitch.sock: cannot be examined: Not a directory; try a different "listen"
        /run/kata/containerd.sock: backend "kata": cannot be examined: Not a directory; try the path of its socket

        configuration is valid; 2 problems on this node
    "#]]);
}

#[test]
fn a_socket_directory_that_is_writable_or_unreachable_for_others_is_reported() {
    let machine = Machine::good().with_directory("/run/criswitch", 0o775);
    machine.lacks(TABLE, expect![[r#"
        /run/criswitch: users other than the owner of this directory can replace criswitch's socket; try chmod go-w /run/criswitch

        configuration is valid; 1 problem on this node
    "#]]);
    let machine = Machine::good().with_directory("/run/criswitch", 0o1777);
    assert_eq!(machine.check(TABLE, &[]).code, 0, "sticky");
    let machine = Machine::good().with_directory("/run/criswitch", 0o700);
    assert_eq!(machine.check(TABLE, &[]).code, 0, "root's");
    machine.lacks(
        &format!("allow_uids = [0, 1000]\n{TABLE}"),
        expect![[r#"
            /run/criswitch: the users of "allow_uids" cannot reach the socket in this directory; try chmod o+x /run/criswitch

            configuration is valid; 1 problem on this node
        "#]],
    );
}

/// Runs `check --probe --node` with one cgroup driver in the kubelet's configuration and one in the backend's reply.
async fn with_drivers(kubelet: &str, backend: CgroupDriver) -> Outcome {
    with_backend(kubelet, &Sim::new("runc").cgroup_driver(backend)).await
}

/// Runs `check --probe --node` with this cgroup driver in the kubelet's configuration.
async fn with_backend(kubelet: &str, backend: &Sim) -> Outcome {
    let sockets = tempfile::tempdir().unwrap();
    let socket = sockets.path().join("runc");
    backend.serve_on(&socket);
    let kubelet = KUBELET.replace("systemd", kubelet);
    let machine = Machine::good()
        .with("/var/lib/kubelet/config.yaml", &kubelet)
        .with_socket(text(&socket));
    let files = main_file(&format!(
        "default_handler = 'runc'\n[handlers]\nrunc = {socket:?}"
    ));
    let path = files.main();
    let check = [
        "check",
        "--probe",
        "--node",
        "--root",
        text(machine.root()),
        "--config",
        text(&path),
    ];
    run_beside(&check).await
}

#[tokio::test]
async fn a_cgroup_driver_that_differs_from_that_of_the_default_backend_is_reported() {
    for (kubelet, backend) in [
        ("systemd", CgroupDriver::Systemd),
        ("cgroupfs", CgroupDriver::Cgroupfs),
    ] {
        let outcome = with_drivers(kubelet, backend).await;
        assert_eq!(outcome.code, 0, "{}", outcome.stdout);
    }
    let outcome = with_drivers("cgroupfs", CgroupDriver::Systemd).await;
    assert_eq!(outcome.code, 1);
    expect!["/var/lib/kubelet/config.yaml: the kubelet's cgroup driver is cgroupfs, the default backend's is systemd; try cgroupDriver: systemd"].assert_eq(outcome.stdout.lines().nth_back(2).unwrap());
}

#[tokio::test]
async fn the_cgroup_driver_of_an_older_containerd_is_that_of_the_default_handler_in_its_configuration()
 {
    let config = |systemd: bool| {
        let runc = json!({ "runtimeType": "io.containerd.runc.v2", "options": { "SystemdCgroup": systemd } });
        json!({ "containerd": { "defaultRuntimeName": "runc", "runtimes": { "runc": runc } } })
    };
    for (systemd, code) in [(true, 0), (false, 1)] {
        let older = Sim::new("runc")
            .lacks(["RuntimeConfig"])
            .set(|settings| settings.config = Some(config(systemd)));
        let outcome = with_backend("systemd", &older).await;
        assert_eq!(outcome.code, code, "{}", outcome.stdout);
        let words = "the kubelet's cgroup driver is systemd, the default backend's is cgroupfs";
        assert_eq!(outcome.stdout.contains(words), code == 1);
    }
}

#[test]
fn root_needs_node_and_an_existing_directory() {
    let outcome = run(&["check", "--root", "/"]);
    assert_eq!(outcome.code, 64);
    assert!(outcome.stderr.contains("--node"), "{}", outcome.stderr);
    let outcome = run(&["check", "--node", "--root", "/nowhere"]);
    assert_eq!(outcome.code, 64);
    let words = "no such directory; try the directory where the root of a machine is mounted";
    assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
}

#[test]
fn missing_sockets_of_a_mounted_image_are_not_reported() {
    let unit = "[Service]\nExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml\n";
    Machine::good()
        .without("/proc")
        .without("/run")
        .with("/usr/lib/systemd/system/kubelet.service", unit)
        .lacks_nothing(TABLE);
}

#[test]
fn a_setting_that_kubeadm_writes_at_its_next_upgrade_is_reported() {
    let kept = "containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n";
    Machine::good()
        .with("/var/lib/kubelet/instance-config.yaml", kept)
        .lacks(TABLE, expect![[r#"
            /var/lib/kubelet/instance-config.yaml: the endpoint that kubeadm sets at its next upgrade is unix:///run/containerd/containerd.sock, not criswitch; try containerRuntimeEndpoint: unix:///run/criswitch/criswitch.sock

            configuration is valid; 1 problem on this node
        "#]]);
    let kept = "containerRuntimeEndpoint: unix:///run/criswitch/criswitch.sock\n";
    Machine::good()
        .with("/var/lib/kubelet/instance-config.yaml", kept)
        .lacks_nothing(TABLE);
}

/// kind and k3d run a kubelet in a container of the machine.
#[test]
fn the_kubelet_of_a_container_is_not_the_kubelet_of_the_machine() {
    let namespace = |machine: &Machine, pid: &str, namespace: &str| {
        let link = machine.at(&format!("/proc/{pid}/ns/pid"));
        symlink(format!("pid:[{namespace}]"), link).unwrap();
    };
    let machine = Machine::good().running("1", &["/sbin/init"]);
    let container = [
        "/usr/bin/kubelet",
        "--container-runtime-endpoint=unix:///run/x.sock",
    ];
    let machine = machine.running("500", &container);
    let seen = |machine: &Machine| machine.check(TABLE, &[]).stdout.contains("process 812");
    assert!(!seen(&machine), "the lowest process id counts");
    for (pid, id) in [
        ("1", "4026531836"),
        ("500", "4026532290"),
        ("812", "4026531836"),
    ] {
        namespace(&machine, pid, id);
    }
    assert!(seen(&machine));
}

#[test]
fn an_enabled_socket_unit_with_a_different_path_is_reported() {
    let unit = include_str!("../../systemd/criswitch.socket");
    let held = || Machine::good().with("/usr/lib/systemd/system/criswitch.socket", unit);
    let enabled = || {
        let wants = "/etc/systemd/system/sockets.target.wants/criswitch.socket";
        held().with(wants, unit)
    };
    enabled().lacks_nothing(TABLE);
    let other = "[Socket]\nListenStream=\nListenStream=/run/other.sock\n";
    let drop_in = "/etc/systemd/system/criswitch.socket.d/10-other.conf";
    held().with(drop_in, other).lacks_nothing(TABLE);
    enabled().with(drop_in, other).lacks(TABLE, expect![[r#"
        criswitch.socket: systemd listens at /run/other.sock, but "listen" is /run/criswitch/criswitch.sock; try systemctl edit criswitch.socket, with the lines ListenStream= and ListenStream=/run/criswitch/criswitch.sock

        configuration is valid; 1 problem on this node
    "#]]);
}
