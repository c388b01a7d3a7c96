//! The families of fields by which a pod reaches out of itself, for example to the node or to a device, and the kinds
//! of runtime that are known to do what such a field asks for. A field of a family that neither these rules nor a known
//! limit judges is reported as not judged.

use serde_json::Value;

use super::RuntimeKind;
use super::fields::{
    ADDED, ANNOTATIONS, BLOCK, CSI, ENV, EXPRESSIONS, HOST_PATH, HOST_PROCESS, MARKS, MOUNT_PATH,
    NAMESPACE_MARKS, PRIVILEGED, PROPAGATION, RESOURCES, SECCOMP, SELECTOR, SELINUX, SYSCTLS,
};
use super::paths::{
    CONTAINER_DEVICES, EVERYTHING, PLAIN_DIRECTORIES, PLAIN_FILES, PRIVILEGED_TUN, SHARED,
};
use super::table::{
    ANY, ARCHITECTURE, ARCHITECTURE_LABELS, FOR_LINUX, FOR_WINDOWS, GVISOR, HUGE_PAGES, KATA,
    LINUX, LOCAL_APPARMOR, OS_LABELS, PLAIN, SANDBOXES, SCTP, SECCOMP_ANNOTATIONS, WINDOWS,
};
use super::test::{About, Is, Test, on};
use super::values::{BEYOND_GVISOR, FILE_DRIVERS, NAMESPACED, OWN_TO_GVISOR, PROC_FILES};

/// Fields of one sort.
#[derive(Debug)]
pub struct Family {
    /// The name, for people.
    pub title: &'static str,
    /// The tests that find the fields.
    pub any: &'static [Test],
    /// The kinds of runtime that do what all of the fields ask for.
    all_works_in: &'static [RuntimeKind],
    /// Further rules: kinds of runtime, and the fields that these kinds support.
    works: &'static [(&'static [RuntimeKind], About)],
}

/// Capabilities that a container has by default, and that gVisor and Kata Containers grant too. NET_RAW is not among
/// them: gVisor drops it.
const DEFAULT_CAPABILITIES: &[&str] = &[
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];
/// Every Linux capability that is not in `DEFAULT_CAPABILITIES`.
const CAPABILITIES: &[Test] = &[
    on(ADDED, Is::OneOf(&["NET_RAW"])),
    on(ADDED, Is::OneOf(BEYOND_GVISOR)),
    on(ADDED, Is::OneOf(OWN_TO_GVISOR)),
];
/// Volumes that are ordinary directories for every runtime. hostPath is a family of its own.
const EVERYDAY_VOLUMES: &[&str] = &[
    "configMap",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "hostPath",
    "name",
    "nfs",
    "persistentVolumeClaim",
    "projected",
    "secret",
];
/// The volumes that runc and crun are known to pass on: all except images, and except the types that newer versions of
/// Kubernetes do not mount.
const MOUNTED_VOLUMES: &[&str] = &[
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cinder",
    "csi",
    "fc",
    "flexVolume",
    "gcePersistentDisk",
    "iscsi",
    "portworxVolume",
    "vsphereVolume",
];
/// Annotations that runtimes read.
const RUNTIME_ANNOTATIONS: &[&str] = &[
    "**.cri-o.io/**",
    "**.crio.io**",
    "**.noderesource.dev/**",
    "**.nri.containerd.io/**",
    "**.nri.io/**",
    "**.resources.beta.kubernetes.io/**",
    "cdi.k8s.io/**",
    "dev.gvisor.**",
    "io.containerd.**",
    "io.katacontainers.**",
    "io.kubernetes.cri-o.**",
    "io.kubernetes.cri.**",
    "module.wasm.image/**",
    "org.systemd.property.**",
    "run.oci.**",
    "security.alpha.kubernetes.io/**sysctls",
];

/// Labels and annotations for which an admission webhook adds containers. Some of these change the network of the pod,
/// or mount file systems. Many webhooks read them from the namespace, too.
const SWITCHES: Is = Is::Entry(
    &[
        "admission.datadoghq.com/enabled",
        "azure.workload.identity/inject-proxy-sidecar",
        "consul.hashicorp.com/connect-inject",
        "dapr.io/enabled",
        "gke-gcsfuse/volumes",
        "istio-injection",
        "istio.io/dataplane-mode",
        "kuma.io/sidecar-injection",
        "linkerd.io/inject",
        "openservicemesh.io/sidecar-injection",
        "sidecar.istio.io/inject",
        "sidecar.jaegertracing.io/inject",
        "vault.hashicorp.com/agent-inject",
    ],
    &[
        "1", "True", "ambient", "enabled", "ingress", "on", "true", "y", "yes",
    ],
);
/// Labels and annotations with the same effect, whatever their value is.
const VALUES: Is = Is::Entry(
    &[
        "instrumentation.opentelemetry.io/inject-**",
        "istio.io/rev",
        "sidecar.opentelemetry.io/inject",
    ],
    &[],
);
const OF_NAMESPACE: &[Test] = &[on(NAMESPACE_MARKS, SWITCHES), on(NAMESPACE_MARKS, VALUES)];

/// Annotations by which a pod gets more network interfaces, which may be devices of the node.
const NETWORK_ANNOTATIONS: &[&str] = &[
    "k8s.v1.cni.cncf.io/networks",
    "v1.multus-cni.io/default-network",
];

const fn rule(any: &'static [Test]) -> About {
    About {
        any,
        and: &[],
        unless: &[],
        in_one_container: false,
    }
}

/// A pod with the marks `by` rejects what the marks `asked` of its namespace ask for. Each mesh has its own marks.
const fn rejected(asked: &'static [Test], by: &'static [Test]) -> (&'static [RuntimeKind], About) {
    (
        ANY,
        About {
            and: by,
            ..rule(asked)
        },
    )
}

const fn family(
    title: &'static str,
    any: &'static [Test],
    all_works_in: &'static [RuntimeKind],
) -> Family {
    Family {
        title,
        any,
        all_works_in,
        works: &[],
    }
}

impl Family {
    const fn and(mut self, works: &'static [(&'static [RuntimeKind], About)]) -> Family {
        self.works = works;
        self
    }

    /// `Some(true)` if the kind supports all of the fields, `Some(false)` if it supports some of them; `None` if only
    /// limits judge the fields for this kind.
    pub fn works_in(&self, kind: RuntimeKind) -> Option<bool> {
        let is_all = self.all_works_in.contains(&kind);
        let is_some = self.works.iter().any(|(kinds, _)| kinds.contains(&kind));
        (is_all || is_some).then_some(is_all)
    }

    /// The fields of the pod that a handler of this kind is known to support.
    pub(super) fn works(&self, pod: &Value, kind: Option<RuntimeKind>) -> Vec<String> {
        let is_in = |kinds: &[RuntimeKind]| kind.is_some_and(|kind| kinds.contains(&kind));
        let whole = is_in(self.all_works_in).then_some(rule(self.any));
        let parts = self.works.iter().filter(|(kinds, _)| is_in(kinds));
        whole
            .into_iter()
            .chain(parts.map(|(_, about)| *about))
            .flat_map(|about| about.fields(pod))
            .map(|field| field.name)
            .collect()
    }
}

const fn requires(labels: &'static [(&'static str, Is)]) -> Test {
    on(EXPRESSIONS, Is::All(labels))
}

/// Every family.
#[rustfmt::skip] // A family is a few lines.
pub const FAMILIES: &[Family] = &[
    family("host namespaces", &[on(&["spec.hostNetwork", "spec.hostPID", "spec.hostIPC"], Is::True)], PLAIN)
        .and(&[(WINDOWS, About { and: &[on(HOST_PROCESS, Is::True)], ..rule(&[on(&["spec.hostNetwork"], Is::True)]) })]),
    family("user namespaces, recursive read-only mounts, supplemental groups and mount options", &[
        on(&["spec.hostUsers"], Is::False),
        on(&["spec.containers[*].volumeMounts[*].recursiveReadOnly"], Is::OneOf(&["Enabled"])),
        on(&["spec.securityContext.supplementalGroupsPolicy"], Is::OneOf(&["Strict"])),
        on(&["spec.containers[*].volumeMounts[*].bindMountOptions[*]"], Is::Present),
    ], &[]),
    family("privileged containers", &[on(PRIVILEGED, Is::True)], PLAIN),
    family("HostProcess containers", &[on(HOST_PROCESS, Is::True)], WINDOWS),
    family("added capabilities", &[on(ADDED, Is::NoneOf(DEFAULT_CAPABILITIES))], &[])
        .and(&[(PLAIN, rule(CAPABILITIES)), (KATA, rule(CAPABILITIES))]),
    family("hostPath volumes", &[on(HOST_PATH, Is::HostPath(&EVERYTHING))], &[])
        .and(&[
            (PLAIN, rule(&[on(HOST_PATH, Is::HostPath(&SHARED)), on(HOST_PATH, Is::HostPath(&PRIVILEGED_TUN))])),
            (SANDBOXES, rule(&[on(HOST_PATH, Is::HostPath(&PLAIN_FILES)), on(HOST_PATH, Is::HostPath(&PLAIN_DIRECTORIES))])),
            (KATA, rule(&[on(HOST_PATH, Is::HostPath(&CONTAINER_DEVICES))])),
        ]),
    family("mounts on and below /proc", &[on(MOUNT_PATH, Is::Like(&["/proc", "/proc/**"]))], &[])
        .and(&[(&[RuntimeKind::Runc], rule(&[on(MOUNT_PATH, Is::OneOf(PROC_FILES))]))]),
    family("CSI volumes and other volumes than everyday ones", &[on(&["spec.volumes[*]"], Is::OtherKey(EVERYDAY_VOLUMES))], &[])
        .and(&[
            (PLAIN, rule(&[on(&["spec.volumes[*]"], Is::Entry(MOUNTED_VOLUMES, &[]))])),
            (SANDBOXES, rule(&[on(CSI, Is::OneOf(FILE_DRIVERS))])),
        ]),
    family("volumes in block mode", &[on(BLOCK, Is::Present)], &[RuntimeKind::Runc, RuntimeKind::Crun, RuntimeKind::Kata]),
    family("mount propagation", &[on(PROPAGATION, Is::OneOf(&["Bidirectional", "HostToContainer"]))], PLAIN)
        .and(&[(KATA, rule(&[on(PROPAGATION, Is::OneOf(&["HostToContainer"]))]))]),
    family("devices and extended resources", &[
        on(RESOURCES, Is::Entry(&["**/**"], &[])),
        on(ENV, Is::All(&[("name", Is::OneOf(&["NVIDIA_VISIBLE_DEVICES"]))])),
    ], PLAIN),
    family("resource claims", &[
        on(&["spec.resourceClaims[*].name"], Is::Present),
        on(&["spec.containers[*].resources.claims[*].name"], Is::Present),
    ], &[]),
    family("huge pages", HUGE_PAGES, PLAIN),
    family("sysctls", &[on(SYSCTLS, Is::Present)], &[])
        .and(&[
            (PLAIN, rule(&[on(SYSCTLS, Is::Sysctl(NAMESPACED, &[]))])),
            (KATA, rule(&[on(SYSCTLS, Is::Sysctl(&["net.", "kernel.shm"], &[]))])),
        ]),
    family("operating system and architecture", &[
        on(&["spec.os.name"], Is::Present),
        on(SELECTOR, Is::Entry(OS_LABELS, &[])),
        on(SELECTOR, Is::Entry(ARCHITECTURE_LABELS, &[])),
        requires(&[("key", Is::OneOf(OS_LABELS))]),
        requires(&[("key", Is::OneOf(ARCHITECTURE_LABELS))]),
    ], &[])
        .and(&[
            (LINUX, rule(&[
                on(&["spec.os.name"], Is::OneOf(&["linux"])),
                on(SELECTOR, Is::Entry(OS_LABELS, &["linux"])),
                FOR_LINUX,
                requires(&[("key", Is::OneOf(OS_LABELS)), ("operator", Is::OneOf(&["NotIn"])), ("values", Is::Includes("windows"))]),
            ])),
            (WINDOWS, rule(&[
                on(&["spec.os.name"], Is::OneOf(&["windows"])),
                on(SELECTOR, Is::Entry(OS_LABELS, &["windows"])),
                FOR_WINDOWS,
                requires(&[("key", Is::OneOf(OS_LABELS)), ("operator", Is::OneOf(&["NotIn"])), ("values", Is::Includes("linux"))]),
            ])),
            (ANY, rule(&[
                on(SELECTOR, Is::Entry(ARCHITECTURE_LABELS, &[ARCHITECTURE])),
                requires(&[("key", Is::OneOf(ARCHITECTURE_LABELS)), ("operator", Is::OneOf(&["In"])), ("values", Is::Includes(ARCHITECTURE))]),
            ])),
        ]),
    family("SELinux labels", &[on(SELINUX, Is::Present)], PLAIN),
    family("AppArmor profiles of the node", LOCAL_APPARMOR, &[]),
    family("seccomp profiles of the node", &[on(SECCOMP, Is::OneOf(&["Localhost"])), SECCOMP_ANNOTATIONS], PLAIN),
    family("signals that stop a container", &[on(&["spec.containers[*].lifecycle.stopSignal"], Is::Present)], &[]),
    family("further networks", &[on(ANNOTATIONS, Is::Entry(NETWORK_ANNOTATIONS, &[]))], PLAIN),
    // This family must come after the hostPath volumes, whose sub-paths are judged by their path, because this family
    // judges all sub-paths.
    family("sub-paths of volumes", &[on(&["spec.containers[*].volumeMounts[*].subPath", "spec.containers[*].volumeMounts[*].subPathExpr"], Is::Present)], LINUX),
    family("SCTP ports", SCTP, PLAIN),
    family("containers that an admission webhook adds", &[on(MARKS, SWITCHES), on(MARKS, VALUES)], PLAIN),
    family("containers that an admission webhook adds in a namespace", OF_NAMESPACE, PLAIN)
        .and(&[
            rejected(
                &[on(NAMESPACE_MARKS, Is::Entry(&["istio-injection", "istio.io/rev"], &[]))],
                &[on(MARKS, Is::Entry(&["sidecar.istio.io/inject"], &["false"]))],
            ),
            rejected(
                &[on(NAMESPACE_MARKS, Is::Entry(&["istio.io/dataplane-mode"], &[]))],
                &[on(&["metadata.labels"], Is::Entry(&["istio.io/dataplane-mode"], &["none"]))],
            ),
            rejected(
                &[on(NAMESPACE_MARKS, Is::Entry(&["kuma.io/sidecar-injection"], &[]))],
                &[on(MARKS, Is::Entry(&["kuma.io/sidecar-injection"], &["disabled", "false"]))],
            ),
            rejected(
                &[on(NAMESPACE_MARKS, Is::Entry(&["linkerd.io/inject"], &[]))],
                &[on(ANNOTATIONS, Is::Entry(&["linkerd.io/inject"], &["disabled"]))],
            ),
        ]),
    family("processes of another container, for ephemeral containers", &[on(&["spec.ephemeralContainers[*].targetContainerName"], Is::Present)], PLAIN),
    family("unmasked /proc", &[on(&["spec.containers[*].securityContext.procMount"], Is::OneOf(&["Unmasked"]))], PLAIN),
    family("annotations of runtimes", &[on(ANNOTATIONS, Is::Entry(RUNTIME_ANNOTATIONS, &[]))], &[])
        .and(&[(GVISOR, rule(&[on(ANNOTATIONS, Is::Entry(&["dev.gvisor.spec.mount.**"], &[]))]))]),
];

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;
    use strum::VariantArray;

    use super::*;
    use crate::{Effect, Fact, Facts, judge};

    fn container(part: Value) -> Value {
        json!({ "spec": { "containers": [part] } })
    }

    fn volume(part: Value) -> Value {
        json!({ "spec": { "volumes": [part], "containers": [{ "volumeMounts": [{ "name": "v" }] }] } })
    }

    /// A pod with only one field that reaches out of it, for each such field.
    fn pods() -> Vec<(&'static str, Value)> {
        let context = |context| container(json!({ "securityContext": context }));
        let host_path = |path| volume(json!({ "name": "v", "hostPath": { "path": path } }));
        let limits = |limits| container(json!({ "resources": { "limits": limits } }));
        let added = |name| context(json!({ "capabilities": { "add": [name] } }));
        let annotated = |key: &str, value: &str| json!({ "metadata": { "annotations": { key: value } }, "spec": {} });
        let term = |term| json!({ "nodeSelectorTerms": [{ "matchExpressions": [term] }] });
        let affinity =
            term(json!({ "key": "kubernetes.io/os", "operator": "In", "values": ["linux"] }));
        let affinity = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": affinity } });
        let sysctl =
            |name| json!({ "spec": { "securityContext": { "sysctls": [{ "name": name }] } } });
        vec![
            ("hostNetwork", json!({ "spec": { "hostNetwork": true } })),
            ("hostPID", json!({ "spec": { "hostPID": true } })),
            ("hostIPC", json!({ "spec": { "hostIPC": true } })),
            ("hostUsers", json!({ "spec": { "hostUsers": false } })),
            ("privileged", context(json!({ "privileged": true }))),
            (
                "hostProcess",
                json!({ "spec": { "hostNetwork": true, "securityContext": { "windowsOptions": { "hostProcess": true } } } }),
            ),
            ("add NET_RAW", added("NET_RAW")),
            ("add SYS_TIME", added("SYS_TIME")),
            ("add unknown", added("CAP_NET_ADMIN")),
            ("path of a socket", host_path("/run/a.sock")),
            ("path of a device", host_path("/dev/kvm")),
            ("path /dev/net/tun", host_path("/dev/net/tun")),
            ("path /proc", host_path("/proc")),
            ("path /etc/hosts", host_path("/etc/hosts")),
            ("path with ..", host_path("/etc/../dev/kvm")),
            ("path /dev/kmsg", host_path("/dev/kmsg")),
            ("path /var/log", host_path("/var/log")),
            ("path below /run", host_path("/run/x")),
            ("path /run/ztunnel", host_path("/run/ztunnel")),
            ("path of X11", host_path("/tmp/.X11-unix/X0")),
            (
                "mount on /proc/stat",
                container(json!({ "volumeMounts": [{ "name": "v", "mountPath": "/proc/stat" }] })),
            ),
            (
                "mount on /proc/x",
                container(json!({ "volumeMounts": [{ "name": "v", "mountPath": "/proc/x" }] })),
            ),
            (
                "mount on fips file",
                container(
                    json!({ "volumeMounts": [{ "name": "v", "mountPath": "/proc/sys/crypto/fips_enabled" }] }),
                ),
            ),
            (
                "CSI volume",
                volume(json!({ "name": "v", "csi": { "driver": "x.example" } })),
            ),
            (
                "image volume",
                volume(json!({ "name": "v", "image": { "reference": "x" } })),
            ),
            (
                "volumeDevices",
                container(json!({ "volumeDevices": [{ "devicePath": "/dev/x" }] })),
            ),
            (
                "Bidirectional",
                container(json!({ "volumeMounts": [{ "mountPropagation": "Bidirectional" }] })),
            ),
            (
                "HostToContainer",
                container(json!({ "volumeMounts": [{ "mountPropagation": "HostToContainer" }] })),
            ),
            ("extended resource", limits(json!({ "example.com/x": 1 }))),
            ("huge pages", limits(json!({ "hugepages-2Mi": "4Mi" }))),
            (
                "resource claim",
                json!({ "spec": { "resourceClaims": [{ "name": "x" }] } }),
            ),
            ("sysctl of the node", sysctl("vm.swappiness")),
            ("unsafe sysctl", sysctl("net.core.somaxconn")),
            ("safe sysctl", sysctl("net.ipv4.tcp_syncookies")),
            ("safe since 1.37", sysctl("net.ipv4.tcp_notsent_lowat")),
            (
                "os windows",
                json!({ "spec": { "os": { "name": "windows" } } }),
            ),
            (
                "affinity to linux",
                json!({ "spec": { "affinity": affinity } }),
            ),
            (
                "selector of s390",
                json!({ "spec": { "nodeSelector": { "kubernetes.io/arch": "s390" } } }),
            ),
            ("SELinux", context(json!({ "seLinuxOptions": {} }))),
            (
                "AppArmor",
                context(json!({ "appArmorProfile": { "type": "Localhost" } })),
            ),
            (
                "AppArmor annotation",
                annotated(
                    "container.apparmor.security.beta.kubernetes.io/c",
                    "localhost/p",
                ),
            ),
            (
                "seccomp",
                context(json!({ "seccompProfile": { "type": "Localhost" } })),
            ),
            (
                "seccomp annotation",
                annotated(
                    "seccomp.security.alpha.kubernetes.io/pod",
                    "runtime/default",
                ),
            ),
            (
                "procMount",
                json!({ "spec": { "hostUsers": false, "containers": [{ "securityContext": { "procMount": "Unmasked" } }] } }),
            ),
            (
                "stop signal",
                container(json!({ "lifecycle": { "stopSignal": "SIGUSR1" } })),
            ),
            (
                "further network",
                annotated("k8s.v1.cni.cncf.io/networks", "x"),
            ),
            (
                "sub-path",
                container(json!({ "volumeMounts": [{ "name": "v", "subPath": "x" }] })),
            ),
            (
                "SCTP port",
                container(json!({ "ports": [{ "containerPort": 1, "protocol": "SCTP" }] })),
            ),
            (
                "added by webhook",
                annotated("linkerd.io/inject", "enabled"),
            ),
            (
                "added in namespace",
                json!({ "namespace": { "labels": { "istio-injection": "enabled" } }, "spec": {} }),
            ),
            (
                "rejected by the pod",
                json!({
                    "namespace": { "annotations": { "linkerd.io/inject": "enabled" } },
                    "metadata": { "annotations": { "linkerd.io/inject": "disabled" } },
                    "spec": {},
                }),
            ),
            (
                "debugged container",
                json!({ "spec": { "ephemeralContainers": [{ "targetContainerName": "c" }] } }),
            ),
            (
                "runtime annotation",
                annotated("io.katacontainers.config.runtime.x", "y"),
            ),
            (
                "mount hint of gVisor",
                annotated("dev.gvisor.spec.mount.v.share", "pod"),
            ),
        ]
    }

    /// The verdict on a pod. `depends` means that a limit depends on an unknown fact, `unknown` that a field is not
    /// judged, and `silent` that no family has the field.
    fn verdict(pod: &Value, kind: Option<RuntimeKind>) -> &'static str {
        let facts = Facts {
            known: vec![(Fact::Selinux, false)],
            ..Facts::default()
        };
        let judgement = judge(pod, kind, &facts);
        let mut tests = FAMILIES.iter().flat_map(|family| family.any);
        let is_in_family = tests.any(|test| !test.fields(pod).is_empty());
        match judgement.findings.first() {
            Some(found) if found.limit.effect == Effect::Fails => "no",
            _ if !judgement.undecided.is_empty() => "depends",
            _ if !judgement.not_judged.is_empty() => "unknown",
            Some(_) => "less",
            None if is_in_family => "works",
            None => "silent",
        }
    }

    #[test]
    fn each_field_that_reaches_out_of_a_pod_has_an_answer_for_each_kind() {
        let kinds = RuntimeKind::VARIANTS
            .iter()
            .copied()
            .map(Some)
            .chain([None]);
        let mut shown = String::new();
        for (name, pod) in pods() {
            let verdicts = kinds
                .clone()
                .map(|kind| format!(" {:8}", verdict(&pod, kind)));
            let line = format!("{name:20}{}", verdicts.collect::<String>());
            shown += &format!("{}\n", line.trim_end());
        }
        expect![[r#"
            hostNetwork          works    works    depends  no       no       unknown  unknown
            hostPID              works    works    less     less     no       unknown  unknown
            hostIPC              works    works    less     less     no       unknown  unknown
            hostUsers            depends  depends  depends  depends  depends  depends  depends
            privileged           works    works    depends  depends  no       unknown  unknown
            hostProcess          no       no       no       no       depends  unknown  unknown
            add NET_RAW          works    works    depends  works    less     unknown  unknown
            add SYS_TIME         works    works    no       less     less     unknown  unknown
            add unknown          unknown  unknown  unknown  unknown  less     unknown  unknown
            path of a socket     works    works    depends  no       unknown  unknown  unknown
            path of a device     no       no       depends  unknown  unknown  unknown  unknown
            path /dev/net/tun    unknown  unknown  unknown  less     unknown  unknown  unknown
            path /proc           works    works    unknown  less     unknown  unknown  unknown
            path /etc/hosts      works    works    works    works    unknown  unknown  unknown
            path with ..         unknown  unknown  unknown  unknown  unknown  unknown  unknown
            path /dev/kmsg       no       no       depends  less     unknown  unknown  unknown
            path /var/log        works    works    less     depends  unknown  unknown  unknown
            path below /run      works    works    unknown  depends  unknown  unknown  unknown
            path /run/ztunnel    works    works    depends  no       unknown  unknown  unknown
            path of X11          works    works    depends  no       unknown  unknown  unknown
            mount on /proc/stat  works    unknown  unknown  unknown  unknown  unknown  unknown
            mount on /proc/x     no       unknown  unknown  no       unknown  unknown  unknown
            mount on fips file   unknown  unknown  unknown  no       unknown  unknown  unknown
            CSI volume           works    works    unknown  depends  unknown  unknown  unknown
            image volume         unknown  unknown  unknown  unknown  unknown  unknown  unknown
            volumeDevices        works    works    no       depends  no       unknown  unknown
            Bidirectional        no       no       no       no       no       no       no
            HostToContainer      works    works    unknown  works    no       unknown  unknown
            extended resource    works    works    unknown  unknown  unknown  unknown  unknown
            huge pages           works    works    less     unknown  no       unknown  unknown
            resource claim       unknown  unknown  unknown  unknown  unknown  unknown  unknown
            sysctl of the node   no       no       no       no       no       no       no
            unsafe sysctl        depends  depends  depends  depends  depends  depends  depends
            safe sysctl          works    works    less     works    less     unknown  unknown
            safe since 1.37      depends  depends  depends  depends  depends  depends  depends
            os windows           no       no       no       no       works    unknown  unknown
            affinity to linux    works    works    works    works    no       unknown  unknown
            selector of s390     unknown  unknown  unknown  unknown  unknown  unknown  unknown
            SELinux              works    works    works    works    less     unknown  unknown
            AppArmor             unknown  unknown  less     less     less     unknown  unknown
            AppArmor annotation  unknown  unknown  less     less     unknown  unknown  unknown
            seccomp              works    works    depends  less     less     unknown  unknown
            seccomp annotation   less     less     less     less     less     less     less
            procMount            depends  depends  depends  depends  depends  depends  depends
            stop signal          unknown  unknown  unknown  unknown  unknown  unknown  unknown
            further network      works    works    unknown  unknown  unknown  unknown  unknown
            sub-path             works    works    works    works    unknown  unknown  unknown
            SCTP port            works    works    no       unknown  no       unknown  unknown
            added by webhook     works    works    unknown  unknown  unknown  unknown  unknown
            added in namespace   works    works    unknown  unknown  unknown  unknown  unknown
            rejected by the pod  works    works    works    works    works    works    unknown
            debugged container   works    works    unknown  less     unknown  unknown  unknown
            runtime annotation   less     less     less     unknown  less     unknown  unknown
            mount hint of gVisor less     less     works    less     less     unknown  unknown
        "#]]
        .assert_eq(&shown);
        assert!(!shown.contains("silent"), "{shown}");
        let unused = FAMILIES.iter().filter(|family| {
            let meets = |test: &Test| pods().iter().any(|(_, pod)| !test.fields(pod).is_empty());
            !family.any.iter().any(meets)
        });
        assert_eq!(
            unused.map(|family| family.title).collect::<Vec<_>>(),
            [""; 0]
        );
    }
}
