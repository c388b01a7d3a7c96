//! `criswitch explain -f` on pods like those in public manifests: paths without a type, misspelt fields, and answers
//! that depend on facts of the node and of its backends.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Sim, sockets};
use crate::{Outcome, main_file, run_beside, text};

const TABLE: &str = "
    default_handler = 'runc'
    [handlers]
    runc = 'SOCKETS/runc'
    gvisor = { backend = 'gvisor', handler = 'runsc' }
    kata = { backend = 'kata', handler = 'kata-qemu' }
    [backends]
    gvisor = 'SOCKETS/gvisor'
    kata = 'SOCKETS/kata'";

/// A node with runc, gVisor and Kata Containers in three containerds.
pub(crate) struct Three {
    folder: TempDir,
    pub(crate) table: String,
    pub(crate) sims: [Sim; 3],
}

/// containerd with one handler, and the configuration of the handler.
fn containerd(name: &str, handler: &str, runtime: Value) -> Sim {
    let sim = Sim::new(name).handlers([handler]);
    configured(&sim, handler, runtime);
    sim
}

/// Sets the configuration that containerd reports.
pub(crate) fn configured(sim: &Sim, handler: &str, runtime: Value) {
    let config =
        json!({ "containerd": { "runtimes": { handler: runtime } }, "enableSelinux": true });
    sim.clone().set(|settings| settings.config = Some(config));
}

fn kata(without_host_devices: bool) -> Value {
    json!({
        "runtimeType": "io.containerd.kata-qemu.v2",
        "runtimePath": "/opt/kata/bin/containerd-shim-kata-v2",
        "privileged_without_host_devices": without_host_devices,
    })
}

fn gvisor(options: Value) -> Value {
    json!({ "runtimeType": "io.containerd.runsc.v1", "options": options })
}

impl Three {
    pub(crate) fn start() -> Three {
        let folder = tempfile::tempdir().unwrap();
        let runc =
            json!({ "runtimeType": "io.containerd.runc.v2", "options": { "BinaryName": "" } });
        let sims = [
            containerd("runc", "runc", runc),
            containerd("gvisor", "runsc", gvisor(Value::Null)),
            containerd("kata", "kata-qemu", kata(false)),
        ];
        for (sim, name) in sims.iter().zip(["runc", "gvisor", "kata"]) {
            sim.clone().serve_on(&folder.path().join(name));
        }
        Three {
            folder,
            table: TABLE.to_owned(),
            sims,
        }
    }

    /// The folder of the files.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) async fn explain(&self, files: &[&Path], more: &[&str]) -> Outcome {
        let sockets = sockets::text(self.folder.path());
        let config = main_file(&self.table.replace("SOCKETS", &sockets));
        let (main, root) = (config.main(), self.folder.path().join("root"));
        let mut arguments = vec!["explain", "--config", text(&main), "--root", text(&root)];
        for file in files {
            arguments.extend(["-f", text(file)]);
        }
        run_beside(&[&arguments, more].concat()).await
    }

    pub(crate) async fn json(&self, files: &[&Path]) -> Value {
        let outcome = self.explain(files, &["-o", "json"]).await;
        assert_eq!(outcome.stderr, "", "{}", outcome.stdout);
        serde_json::from_str(&outcome.stdout).unwrap()
    }

    pub(crate) fn file(&self, name: &str, contents: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, contents).unwrap();
        path
    }

    /// The answers for a pod with these fields in its spec, next to a container.
    pub(crate) async fn pod(&self, spec: &str) -> Value {
        let pod =
            format!("{{ apiVersion: v1, kind: Pod, metadata: {{ name: p }}, spec: {{ {spec} }} }}");
        self.only_pod(&pod).await
    }

    pub(crate) async fn only_pod(&self, yaml: &str) -> Value {
        let file = self.file("pod.yaml", yaml);
        self.json(&[&file]).await["pods"][0].clone()
    }
}

/// The answer for one handler.
pub(crate) fn of<'p>(pod: &'p Value, handler: &str) -> &'p Value {
    let mut handlers = pod["handlers"].as_array().unwrap().iter();
    handlers.find(|it| it["handler"] == handler).unwrap()
}

/// The ids of the limits in one list of a handler's answer, such as the limits that apply, or the limits that depend on
/// an unknown fact.
pub(crate) fn ids(pod: &Value, handler: &str, list: &str) -> Vec<String> {
    let found = of(pod, handler)[list].as_array().unwrap().iter();
    found
        .map(|it| it["limit"].as_str().unwrap().to_owned())
        .collect()
}

const CONTAINER: &str = "containers: [{ name: c, image: registry.example/c, volumeMounts: [{ name: v, mountPath: /v }] }]";

fn host_path(path: &str) -> String {
    format!("{CONTAINER}, volumes: [{{ name: v, hostPath: {{ path: {path} }} }}]")
}

#[tokio::test]
async fn a_path_of_the_node_is_judged_by_what_is_there() {
    let node = Three::start();
    for (path, gvisor, kata) in [
        (
            "/var/run/docker.sock",
            "gvisor-host-sockets",
            "kata-host-sockets",
        ),
        ("/dev/log", "gvisor-host-sockets", "kata-host-sockets"),
        ("/dev", "gvisor-host-directories", "kata-dev-directory"),
        ("/dev/kmsg", "gvisor-host-devices", "kata-guest-devices"),
        (
            "/run/ztunnel",
            "gvisor-socket-directories",
            "kata-socket-directories",
        ),
        (
            "/run/libvirt/libvirt-sock",
            "gvisor-host-sockets",
            "kata-host-sockets",
        ),
        ("/var/log", "gvisor-inotify", "kata-inotify"),
        (
            "/var/lib/kubelet/plugins_registry",
            "gvisor-kubelet-sockets",
            "kata-kubelet-sockets",
        ),
        ("/", "gvisor-host-directories", "kata-host-directories"),
        ("/sys/fs/bpf", "sandbox-bpf", "sandbox-bpf"),
    ] {
        let pod = node.pod(&host_path(path)).await;
        assert_eq!(ids(&pod, "gvisor", "reasons"), [gvisor], "{path}");
        assert_eq!(ids(&pod, "kata", "reasons"), [kata], "{path}");
    }
    let pod = node.pod(&host_path("/sys")).await;
    assert_eq!(ids(&pod, "kata", "reasons"), ["kata-kernel-directories"]);
    assert_eq!(of(&pod, "gvisor")["fits"], Value::Null);
    for path in ["/var/lib/x", "/dev/shm", "/srv", "/run/x", "/opt/x/sockets"] {
        let pod = node.pod(&host_path(path)).await;
        for handler in ["gvisor", "kata"] {
            let row = of(&pod, handler);
            assert_eq!(row["fits"], Value::Null, "{path}");
            assert_eq!(
                row["notJudged"],
                json!([format!("spec.volumes[0].hostPath {path}")])
            );
            assert_eq!(row["why"], "not judged: 1 field");
        }
        assert_eq!(of(&pod, "runc")["fits"], true, "{path}");
    }
    let pod = node.pod(&host_path("/dev/fuse")).await;
    assert_eq!(ids(&pod, "runc", "reasons"), ["host-devices"]);
    let privileged = host_path("/dev/fuse").replace(
        "name: c,",
        "name: c, securityContext: { privileged: true },",
    );
    assert_eq!(of(&node.pod(&privileged).await, "runc")["fits"], true);
}

#[tokio::test]
async fn the_kubelet_decides_before_the_runtime() {
    let node = Three::start();
    let sysctl = |name: &str, more: &str| {
        format!(
            "{CONTAINER}, {more} securityContext: {{ sysctls: [{{ name: {name}, value: '1' }}] }}"
        )
    };
    let secured = |context: &str, more: &str| {
        format!(
            "{}{more}",
            CONTAINER.replace(
                "name: c,",
                &format!("name: c, securityContext: {{ {context} }},")
            )
        )
    };
    let windows = format!(
        "{CONTAINER}, os: {{ name: windows }}, nodeSelector: {{ kubernetes.io/os: windows }}"
    );
    for (spec, limit) in [
        (windows, "windows-pods"),
        (sysctl("vm.max_map_count", ""), "node-sysctls"),
        (
            sysctl("net.ipv4.tcp_syncookies", "hostNetwork: true,"),
            "host-network-sysctls",
        ),
        (
            sysctl("kernel.shm_rmid_forced", "hostIPC: true,"),
            "host-ipc-sysctls",
        ),
        (secured("procMount: Unmasked", ""), "unmasked-proc"),
        (
            secured("privileged: true, allowPrivilegeEscalation: false", ""),
            "privileged-escalation",
        ),
        (
            secured("", ", hostUsers: false, hostPID: true"),
            "host-users-host-fields",
        ),
        (
            secured("", ", shareProcessNamespace: true, hostPID: true"),
            "shared-host-processes",
        ),
    ] {
        let pod = node.pod(&spec).await;
        for handler in ["runc", "gvisor", "kata"] {
            let found = ids(&pod, handler, "reasons");
            assert!(found.iter().any(|it| it == limit), "{handler}: {found:?}");
            assert_eq!(of(&pod, handler)["fits"], false, "{limit}");
        }
    }
    let pod = node.pod(&sysctl("net.core.somaxconn", "")).await;
    assert_eq!(ids(&pod, "runc", "undecided"), ["unsafe-sysctls"]);
    assert_eq!(of(&pod, "runc")["fits"], Value::Null);
    let pod = node.pod(&sysctl("net.ipv4.tcp_syncookies", "")).await;
    assert_eq!(of(&pod, "runc")["fits"], true);
    let unit = "[Service]\nExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml\n";
    node.file("root/etc/systemd/system/kubelet.service", unit);
    for (allowed, fits) in [
        ("[net.core.*]", true),
        ("[kernel.msg*, net.core.rmem_max]", false),
        ("[]", false),
    ] {
        let config = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nallowedUnsafeSysctls: {allowed}\n"
        );
        node.file("root/var/lib/kubelet/config.yaml", &config);
        let pod = node.pod(&sysctl("net.core.somaxconn", "")).await;
        assert_eq!(of(&pod, "runc")["fits"], fits, "{allowed}");
    }
}

#[tokio::test]
async fn a_setting_of_the_backend_decides_if_it_is_known() {
    let node = Three::start();
    let [_, gvisor_sim, kata_sim] = &node.sims;
    let privileged = "containers: [{ name: c, image: i, securityContext: { privileged: true } }]";
    let pod = node.pod(privileged).await;
    assert_eq!(
        ids(&pod, "kata", "reasons"),
        ["kata-privileged-devices", "kata-privileged"]
    );
    configured(kata_sim, "kata-qemu", kata(true));
    let pod = node.pod(privileged).await;
    assert_eq!(ids(&pod, "kata", "reasons"), ["kata-privileged"]);
    kata_sim.clone().set(|settings| settings.config = None);
    let pod = node.pod(privileged).await;
    assert_eq!(ids(&pod, "kata", "undecided"), ["kata-privileged-devices"]);
    assert_eq!(
        of(&pod, "kata")["why"],
        "depends on an unknown fact: 1 limit"
    );

    let socket = host_path("/run/docker.sock");
    assert_eq!(of(&node.pod(&socket).await, "gvisor")["fits"], false);
    configured(
        gvisor_sim,
        "runsc",
        gvisor(json!({ "ConfigPath": "/etc/runsc.toml" })),
    );
    assert_eq!(of(&node.pod(&socket).await, "gvisor")["fits"], Value::Null);
    node.file("root/etc/runsc.toml", "[runsc_config]\nhost-uds = 'open'\n");
    assert_eq!(of(&node.pod(&socket).await, "gvisor")["fits"], true);
    for (flag, fits) in [
        ("fsgofer-host-uds = 'true'", true),
        ("fsgofer-host-uds = 'false'", false),
        ("host-uds = 'create'", false),
    ] {
        node.file("root/etc/runsc.toml", &format!("[runsc_config]\n{flag}\n"));
        assert_eq!(
            of(&node.pod(&socket).await, "gvisor")["fits"],
            fits,
            "{flag}"
        );
    }
    let not_a_text = "[runsc_config]\nhost-uds = 'open'\nnet-raw = true\n";
    node.file("root/etc/runsc.toml", not_a_text);
    assert_eq!(of(&node.pod(&socket).await, "gvisor")["fits"], Value::Null);
    node.file("root/etc/runsc.toml", "[runsc_config]\nnet-raw = 'true'\n");
    assert_eq!(of(&node.pod(&socket).await, "gvisor")["fits"], false);

    let network = "hostNetwork: true, containers: [{ name: c, image: i }]";
    let elevated =
        "containers: [{ name: c, image: i, securityContext: { allowPrivilegeEscalation: true } }]";
    let device = host_path("/dev/kvm");
    assert_eq!(of(&node.pod(network).await, "gvisor")["fits"], false);
    assert_eq!(of(&node.pod(&device).await, "gvisor")["fits"], false);
    let pod = node.pod(elevated).await;
    assert_eq!(ids(&pod, "gvisor", "reasons"), ["gvisor-setuid"]);
    let flags = "[runsc_config]\nnetwork = 'host'\nallow-suid = 'true'\ncharacter-device-policy = 'prefer-emulated'\n";
    node.file("root/etc/runsc.toml", flags);
    assert_eq!(of(&node.pod(network).await, "gvisor")["fits"], true);
    assert_eq!(of(&node.pod(&device).await, "gvisor")["fits"], Value::Null);
    let pod = node.pod(elevated).await;
    assert_eq!(of(&pod, "gvisor")["why"], "no known limit applies");
}

#[tokio::test]
async fn an_selinux_label_matters_only_on_a_node_with_selinux() {
    let node = Three::start();
    let labelled =
        "containers: [{ name: c, image: i, securityContext: { seLinuxOptions: { type: spc_t } } }]";
    assert_eq!(of(&node.pod(labelled).await, "gvisor")["fits"], true);
    node.file("root/sys/fs/selinux/enforce", "1");
    for spec in [labelled, "containers: [{ name: c, image: i }]"] {
        let pod = node.pod(spec).await;
        assert_eq!(ids(&pod, "gvisor", "reasons"), ["gvisor-selinux"]);
    }
    node.sims[1].clone().set(|settings| settings.config = None);
    let pod = node.pod(labelled).await;
    assert_eq!(ids(&pod, "gvisor", "undecided"), ["gvisor-selinux"]);
}

#[tokio::test]
async fn capabilities_resources_and_annotations_have_an_answer() {
    let node = Three::start();
    let mesh = "initContainers: [{ name: i, image: i, securityContext: { capabilities: { add: [NET_ADMIN, NET_RAW], drop: [ALL] } } }], \
                containers: [{ name: c, image: i }]";
    let pod = node.pod(mesh).await;
    assert_eq!(
        ids(&pod, "gvisor", "reasons"),
        ["gvisor-net-raw", "gvisor-capabilities"]
    );
    assert_eq!(of(&pod, "kata")["fits"], true);
    let pod = node
        .pod("containers: [{ name: c, image: i, resources: { limits: { nvidia.com/gpu: 1 } } }]")
        .await;
    for handler in ["gvisor", "kata"] {
        let field = "spec.containers[0].resources.limits[\"nvidia.com/gpu\"]";
        assert_eq!(of(&pod, handler)["notJudged"], json!([field]));
    }
    let confined = "{ kind: Pod, apiVersion: v1, metadata: { name: p, annotations: {
        container.apparmor.security.beta.kubernetes.io/app: localhost/deny-write,
        seccomp.security.alpha.kubernetes.io/pod: localhost/audit.json } }, spec: { containers: [{ name: app, image: i }] } }";
    let pod = node.only_pod(confined).await;
    assert_eq!(
        ids(&pod, "gvisor", "reasons"),
        ["seccomp-annotations", "gvisor-apparmor"]
    );
    assert_eq!(of(&pod, "gvisor")["fits"], true);
}

#[tokio::test]
async fn a_misspelt_field_is_a_warning_with_the_near_name_and_no_yes() {
    let node = Three::start();
    for (spec, warning) in [
        (
            "hostNetwrok: true, containers: [{ name: c, image: i }]",
            "spec.hostNetwrok, and kubectl rejects it; did you mean hostNetwork?",
        ),
        (
            "runtimeclassName: gvisor, containers: [{ name: c, image: i }]",
            "spec.runtimeclassName, and kubectl rejects it; did you mean runtimeClassName?",
        ),
        (
            "containers: [{ name: c, image: i, securityContext: { priviledged: true } }]",
            "securityContext.priviledged, and kubectl rejects it; did you mean privileged?",
        ),
    ] {
        let pod = node.pod(spec).await;
        let found = pod["warnings"][0].as_str().unwrap();
        assert!(found.ends_with(warning), "{found}");
        assert_eq!(pod["fits"], Value::Null);
    }
}

#[tokio::test]
async fn a_template_is_not_read_as_a_pod() {
    let node = Three::start();
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: { name: p }\nspec:\n";
    for rest in [
        "  {{- if .Values.hostNetwork }}\n  hostNetwork: true\n  {{- end }}\n  containers: [{ name: web, image: i }]\n",
        "  containers: [{ name: web, image: \"{{ .Values.image }}\" }]\n",
        "  hostNetwork: #@ data.values.host_network\n  containers: [{ name: web, image: i }]\n",
        "  #@ if data.values.host_network:\n  hostNetwork: true\n  #@ end\n  containers: [{ name: web, image: i }]\n",
        "  runtimeClassName: #{Class}#\n  containers: [{ name: web, image: i }]\n",
    ] {
        let file = node.file("template.yaml", &format!("{pod}{rest}"));
        let outcome = node.explain(&[&file], &[]).await;
        assert_eq!((outcome.code, outcome.stdout.as_str()), (1, ""));
        let hint =
            "looks like a template; render it first: helm template ... | criswitch explain -f -";
        assert!(outcome.stderr.contains(hint), "{}", outcome.stderr);
    }
}

const RUNTIMES: &str = r#"{"containerd":{"defaultRuntimeName":"runc","runtimes":{
    "runc":{"runtimeType":"io.containerd.runtime.v1.linux","runtimeEngine":"/usr/bin/runc"},
    "secure":{"runtimeType":"io.containerd.run.kata.v2"},
    "vm":{"runtimeType":"/opt/kata/bin/containerd-shim-kata-v2"},
    "boxed":{"runtimeType":"io.containerd.runc.v2","runtimePath":"/usr/local/bin/containerd-shim-runsc-v1"},
    "sysbox-runc":{"runtimeType":"io.containerd.runc.v2","options":{"BinaryName":"/usr/bin/sysbox-runc"}},
    "kata-spin":{"runtimeType":"io.containerd.spin.v2"},
    "nvidia":{"runtimeType":"io.containerd.runc.v2","options":{"BinaryName":"/usr/bin/nvidia-container-runtime","SystemdCgroup":true}}}}}"#;

#[tokio::test]
async fn the_kind_of_a_handler_is_that_of_the_program_that_runs() {
    let mut node = Three::start();
    let names = [
        "runc",
        "secure",
        "vm",
        "boxed",
        "sysbox-runc",
        "kata-spin",
        "nvidia",
    ];
    let sim = Sim::new("t")
        .handlers(names)
        .set(|settings| settings.config = Some(serde_json::from_str(RUNTIMES).unwrap()));
    sim.serve_on(&node.folder.path().join("t"));
    let rows = names.map(|name| format!("{name} = {{ backend = 't', handler = '{name}' }}\n"));
    node.table = format!(
        "default_handler = 'runc'\n[handlers]\n{}[backends]\nt = 'SOCKETS/t'",
        rows.concat()
    );
    let pod = node.pod("containers: [{ name: c, image: i }]").await;
    let kinds = names.map(|name| of(&pod, name)["kind"].as_str().unwrap_or("unknown"));
    assert_eq!(
        kinds,
        [
            "runc", "kata", "kata", "gvisor", "unknown", "unknown", "runc"
        ]
    );
    let handlers = pod["handlers"].as_array().unwrap().iter();
    let fits: Vec<_> = handlers.map(|it| it["fits"].as_bool()).collect();
    assert_eq!(fits.split_at(5), (&[Some(true); 5][..], &[None; 2][..]));
}

#[tokio::test]
async fn a_handler_with_the_name_of_an_unknown_runtime_is_never_runc() {
    let mut node = Three::start();
    Sim::new("crio")
        .handlers(["crun", "sysbox-runc", "crun-vm", "urunc"])
        .serve_on(&node.folder.path().join("crio"));
    node.table = "default_handler = 'crun'\n[handlers]\ncrun = 'SOCKETS/crio'\n\
                  sysbox-runc = { backend = 'crio', handler = 'sysbox-runc' }\n[backends]\ncrio = 'SOCKETS/crio'"
        .replace("crun = 'SOCKETS/crio'", "crun = { backend = 'crio', handler = 'crun' }\ncrun-vm = 'crio'\n\
                  urunc = { backend = 'crio', kind = 'other' }");
    let pod = node
        .pod("hostNetwork: true, containers: [{ name: c, image: i, securityContext: { privileged: true } }]")
        .await;
    for name in ["sysbox-runc", "crun-vm"] {
        let row = of(&pod, name);
        assert_eq!((&row["kind"], &row["fits"]), (&Value::Null, &Value::Null));
        assert_eq!(row["notJudged"].as_array().unwrap().len(), 2);
    }
    let row = of(&pod, "urunc");
    assert_eq!(
        (&row["kind"], &row["fits"]),
        (&json!("other"), &Value::Null)
    );
    assert_eq!(row["unknown"], json!([]));
    assert_eq!(of(&pod, "crun")["kind"], "crun");
}

#[tokio::test]
async fn a_protocol_or_a_value_that_the_kernel_has_once_is_not_a_yes() {
    let node = Three::start();
    let pod = node
        .pod("containers: [{ name: c, image: i, ports: [{ containerPort: 38412, protocol: SCTP }] }]")
        .await;
    assert_eq!(ids(&pod, "gvisor", "reasons")[0], "gvisor-sctp");
    assert_eq!(of(&pod, "kata")["fits"], Value::Null);
    assert_eq!(of(&pod, "runc")["fits"], true);
    let kubelet = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nallowedUnsafeSysctls: ['net.core.*']\n";
    node.file("root/var/lib/kubelet/config.yaml", kubelet);
    let unit = "[Service]\nExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml\n";
    node.file("root/etc/systemd/system/kubelet.service", unit);
    for (sysctl, runc) in [
        ("net.core.somaxconn", vec![]),
        ("net.core.rmem_max", vec!["node-network-sysctls"]),
        ("net/core/wmem_default", vec!["node-network-sysctls"]),
    ] {
        let spec = format!(
            "securityContext: {{ sysctls: [{{ name: {sysctl}, value: '1' }}] }}, containers: [{{ name: c, image: i }}]"
        );
        let pod = node.pod(&spec).await;
        assert_eq!(ids(&pod, "runc", "reasons"), runc, "{sysctl}");
        assert_eq!(of(&pod, "kata")["fits"], true, "{sysctl}");
    }
}

#[tokio::test]
async fn containers_that_a_webhook_adds_are_not_judged() {
    let node = Three::start();
    for (marks, gvisor) in [
        ("annotations: { linkerd.io/inject: enabled }", Value::Null),
        ("annotations: { linkerd.io/inject: disabled }", json!(true)),
        ("annotations: { gke-gcsfuse/volumes: 'true' }", Value::Null),
        ("labels: { sidecar.istio.io/inject: 'true' }", Value::Null),
        ("labels: { sidecar.istio.io/inject: 'false' }", json!(true)),
        ("labels: { istio.io/rev: canary }", Value::Null),
    ] {
        let pod = format!(
            "{{ apiVersion: v1, kind: Pod, metadata: {{ name: p, {marks} }}, spec: {{ containers: [{{ name: c, image: i }}] }} }}"
        );
        let pod = node.only_pod(&pod).await;
        assert_eq!(of(&pod, "gvisor")["fits"], gvisor, "{marks}");
        assert_eq!(of(&pod, "runc")["fits"], true, "{marks}");
    }
    let pod = "{ apiVersion: v1, kind: Pod, metadata: { name: p, namespace: NAMESPACE }, spec: { containers: [{ name: c, image: i }] } }";
    let labels = "labels: { istio-injection: enabled }";
    for (namespace, mark, more, gvisor) in [
        ("shop", labels, "", Value::Null),
        ("other", labels, "", json!(true)),
        (
            "shop",
            labels,
            "labels: { sidecar.istio.io/inject: 'false' }, ",
            json!(true),
        ),
        // The pod rejects a different mesh than the one of its namespace.
        (
            "shop",
            labels,
            "annotations: { linkerd.io/inject: disabled }, ",
            Value::Null,
        ),
        (
            "shop",
            "annotations: { linkerd.io/inject: disabled }",
            "",
            json!(true),
        ),
    ] {
        let pod = pod
            .replace("NAMESPACE", namespace)
            .replace("name: p,", &format!("{more}name: p,"));
        let pod = format!(
            "{pod}\n---\n{{ apiVersion: v1, kind: Namespace, metadata: {{ name: shop, {mark} }} }}"
        );
        let pod = node.only_pod(&pod).await;
        let row = of(&pod, "gvisor");
        assert_eq!(row["fits"], gvisor, "{namespace} {mark} {more}");
        if gvisor.is_null() {
            let field = "Namespace: metadata.labels[\"istio-injection\"] enabled";
            assert_eq!(row["notJudged"], json!([field]));
        }
        assert_eq!(of(&pod, "runc")["fits"], true);
    }
}

#[tokio::test]
async fn a_field_for_another_runtime_or_system_has_less_effect() {
    let node = Three::start();
    let variable = |value: &str| {
        format!(
            "containers: [{{ name: c, image: i, env: [{{ name: NVIDIA_VISIBLE_DEVICES, value: '{value}' }}] }}]"
        )
    };
    let pod = node.pod(&variable("all")).await;
    assert_eq!(ids(&pod, "runc", "reasons"), ["nvidia-variable"]);
    let pod = node.pod(&variable("void")).await;
    assert!(ids(&pod, "runc", "reasons").is_empty());
    let options = json!({ "BinaryName": "/usr/bin/nvidia-container-runtime.cdi" });
    let nvidia = json!({ "runtimeType": "io.containerd.runc.v2", "options": options });
    configured(&node.sims[0], "runc", nvidia);
    let pod = node.pod(&variable("all")).await;
    assert!(ids(&pod, "runc", "reasons").is_empty());
    assert_eq!(of(&pod, "runc")["fits"], true);
    let windows = "securityContext: { windowsOptions: { gmsaCredentialSpecName: a } }";
    let pod = node.pod(&format!("{windows}, {}", variable("void"))).await;
    for handler in ["runc", "gvisor", "kata"] {
        let found = ids(&pod, handler, "reasons");
        assert_eq!(found, ["linux-windows-options"], "{handler}");
    }
    let process = "securityContext: { windowsOptions: { hostProcess: true } }, containers: [{ name: c, image: i }]";
    for (network, count) in [("", 1), ("hostNetwork: true, ", 0)] {
        let pod = node.pod(&format!("{network}{process}")).await;
        let found = ids(&pod, "runc", "reasons");
        let found = found.iter().filter(|it| *it == "host-process-network");
        assert_eq!(found.count(), count, "{network}");
    }
}
