//! The table of known limits. docs/compatibility.md has the same table.

use strum::VariantArray;

use super::Effect::{self, Fails, Note, Weakens};
use super::RuntimeKind::{self, Crun, Gvisor, Kata, Runc, Runhcs};
use super::fields::{
    ADDED, ANNOTATIONS, BLOCK, CSI, ENV, ESCALATION, EXPRESSIONS, HOST_PATH, HOST_PROCESS,
    MOUNT_PATH, NETWORK_VOLUMES, NFS, PORTS, PRIVILEGED, PROPAGATION, PROTOCOLS, RESOURCES,
    SECCOMP, SELECTOR, SELINUX, SYSCTLS,
};
use super::paths::{
    BPF, DEV, DIRECTORIES, GUEST_DEVICES, HARDWARE, KERNEL_DIRECTORIES, KUBELET_SOCKETS,
    MIXED_DIRECTORIES, Mounting, OTHER_FILES, PLAIN_DIRECTORIES, SOCKET_DIRECTORIES, SOCKETS,
    UNPRIVILEGED_DEV, UNPRIVILEGED_DEVICES,
};
use super::sources::{
    DEVICE_CGROUP, GVISOR_DEVICES, KATA_CONFIGURATION, KATA_LIMITATIONS, KATA_PRIVILEGED,
    KATA_SOCKETS, KUBELET_SYSCTLS, POD_OS, POD_VALIDATION, RUNSC_FLAGS, RUNSC_SPEC, SEEN_IN_GVISOR,
    SEEN_IN_KATA, USER_NAMESPACES, WINDOWS_API, source,
};
use super::test::{About, Is, Test, on};
use super::values::{
    BEYOND_GUEST, BEYOND_GVISOR, FILE_DRIVERS, KATA_PROC_FILES, NAMESPACED, NEW_PROC_FILES,
    NODE_NETWORK, OWN_TO_GVISOR, PROC_FILES, SAFE, SAFE_SINCE_1_37,
};
use super::{DEVICE_POLICY, Fact, Limit, Source};

/// All kinds: the kubelet decides before it calls a runtime.
pub(super) const ANY: &[RuntimeKind] = RuntimeKind::VARIANTS;
pub(super) const LINUX: &[RuntimeKind] = &[Runc, Crun, Gvisor, Kata];
/// Containers that share the kernel of the node.
pub(super) const PLAIN: &[RuntimeKind] = &[Runc, Crun];
/// Pods with a kernel of their own.
pub(super) const SANDBOXES: &[RuntimeKind] = &[Gvisor, Kata];
pub(super) const GVISOR: &[RuntimeKind] = &[Gvisor];
pub(super) const KATA: &[RuntimeKind] = &[Kata];
pub(super) const WINDOWS: &[RuntimeKind] = &[Runhcs];

pub(super) const OS_LABELS: &[&str] = &["kubernetes.io/os", "beta.kubernetes.io/os"];
pub(super) const ARCHITECTURE_LABELS: &[&str] = &["kubernetes.io/arch", "beta.kubernetes.io/arch"];
/// The architecture of this node, as Kubernetes names it.
pub(super) const ARCHITECTURE: &str = match std::env::consts::ARCH.as_bytes() {
    b"x86_64" => "amd64",
    b"aarch64" => "arm64",
    _ => std::env::consts::ARCH,
};
const OTHER_ARCHITECTURES: &[&str] = match ARCHITECTURE.as_bytes() {
    b"amd64" => &["arm", "arm64", "ppc64le", "riscv64", "s390x"],
    b"arm64" => &["amd64", "arm", "ppc64le", "riscv64", "s390x"],
    _ => &["amd64", "arm64"],
};
/// Volumes whose files outlive the pod, among them directories and files of the node.
const LASTING_VOLUMES: &[Test] = &[
    on(
        &[
            "spec.volumes[*].awsElasticBlockStore",
            "spec.volumes[*].azureDisk",
            "spec.volumes[*].azureFile",
            "spec.volumes[*].cephfs",
            "spec.volumes[*].cinder",
            "spec.volumes[*].fc",
            "spec.volumes[*].flexVolume",
            "spec.volumes[*].gcePersistentDisk",
            "spec.volumes[*].glusterfs",
            "spec.volumes[*].iscsi",
            "spec.volumes[*].nfs",
            "spec.volumes[*].portworxVolume",
            "spec.volumes[*].rbd",
            "spec.volumes[*].vsphereVolume",
        ],
        Is::Present,
    ),
    on(
        &["spec.volumes[*].persistentVolumeClaim"],
        Is::Mounted(Mounting::WithFiles),
    ),
    on(CSI, Is::NoneOf(FILE_DRIVERS)),
    on(HOST_PATH, Is::HostPath(&DIRECTORIES)),
    on(HOST_PATH, Is::HostPath(&OTHER_FILES)),
];
pub(super) const HUGE_PAGES: &[Test] = &[
    on(RESOURCES, Is::Entry(&["hugepages-**"], &[])),
    on(
        &["spec.volumes[*].emptyDir.medium"],
        Is::Like(&["HugePages**"]),
    ),
];
pub(super) const LOCAL_APPARMOR: &[Test] = &[
    on(
        &[
            "spec.securityContext.appArmorProfile.type",
            "spec.containers[*].securityContext.appArmorProfile.type",
        ],
        Is::OneOf(&["Localhost"]),
    ),
    on(
        ANNOTATIONS,
        Is::Entry(
            &["container.apparmor.security.beta.kubernetes.io/**"],
            &["localhost/**"],
        ),
    ),
];
pub(super) const SECCOMP_ANNOTATIONS: Test = on(
    ANNOTATIONS,
    Is::Entry(
        &[
            "seccomp.security.alpha.kubernetes.io/**",
            "container.seccomp.security.alpha.kubernetes.io/**",
        ],
        &[],
    ),
);
/// Required node affinity to Linux or Windows.
pub(super) const FOR_LINUX: Test = on(
    EXPRESSIONS,
    Is::All(&[
        ("key", Is::OneOf(OS_LABELS)),
        ("operator", Is::OneOf(&["In"])),
        ("values", Is::Includes("linux")),
    ]),
);
pub(super) const FOR_WINDOWS: Test = on(
    EXPRESSIONS,
    Is::All(&[
        ("key", Is::OneOf(OS_LABELS)),
        ("operator", Is::OneOf(&["In"])),
        ("values", Is::Includes("windows")),
    ]),
);
pub(super) const SCTP: &[Test] = &[on(PROTOCOLS, Is::OneOf(&["SCTP"]))];
const HOST_PATH_SOCKETS: &[Test] = &[on(HOST_PATH, Is::HostPath(&SOCKETS))];

const OTHER_CLASS: &str = "Remove the field, or use a RuntimeClass of runc or crun.";
const DEVICE_CLASS: &str =
    "Use a RuntimeClass of runc or crun, with a device plug-in or in a privileged container.";
const LINUX_NODE: &str = "Remove the field, or run the pod on a Linux node.";

const fn limit(
    effect: Effect,
    id: &'static str,
    kinds: &'static [RuntimeKind],
    any: &'static [Test],
    reason: &'static str,
    remedy: &'static str,
    source: Source,
) -> Limit {
    let about = About {
        any,
        and: &[],
        unless: &[],
        in_one_container: false,
    };
    Limit {
        id,
        kinds,
        about,
        only_if: None,
        is_of_api_server: false,
        is_in_policies: true,
        effect,
        reason,
        remedy,
        source,
    }
}

impl Limit {
    const fn and(mut self, tests: &'static [Test]) -> Limit {
        self.about.and = tests;
        self
    }

    const fn unless(mut self, tests: &'static [Test]) -> Limit {
        self.about.unless = tests;
        self
    }

    const fn only_if(mut self, fact: Fact, value: bool) -> Limit {
        self.only_if = Some((fact, value));
        self
    }

    const fn in_one_container(mut self) -> Limit {
        self.about.in_one_container = true;
        self
    }

    /// Omits the limit from policies: it is about many pods that run well enough, or an expression for it would be
    /// long.
    const fn in_no_policy(mut self) -> Limit {
        self.is_in_policies = false;
        self
    }

    const fn by_api_server(mut self) -> Limit {
        self.is_of_api_server = true;
        self
    }

    const fn without(self, feature: &'static str) -> Limit {
        self.only_if(Fact::Feature(feature), false)
    }
}

/// Every known limit: of the kubelet, then of each kind of runtime.
#[rustfmt::skip] // A limit is a few lines: the pods, the reason, the remedy, the source.
pub const LIMITS: &[Limit] = &[
    limit(Fails, "host-users", &[], &[on(&["spec.hostUsers"], Is::False)],
        "The runtime does not report user namespaces to the kubelet, so the kubelet rejects the pod.",
        "Remove `hostUsers: false`, or use a RuntimeClass whose handler has the feature user_namespaces.",
        source("kubernetes/kubernetes#123216: KEP-127: require userns support from the CRI runtime before using it", "https://github.com/kubernetes/kubernetes/pull/123216"))
        .without("user_namespaces"),
    limit(Fails, "recursive-read-only", &[Gvisor, Runhcs], &[on(&["spec.containers[*].volumeMounts[*].recursiveReadOnly"], Is::OneOf(&["Enabled"]))],
        "The runtime does not report recursive read-only mounts, so the kubelet does not start the container.",
        "Use `recursiveReadOnly: IfPossible`, or a RuntimeClass whose handler has the feature recursive_read_only_mounts.",
        source("Kubernetes: Volumes, recursive read-only mounts", "https://kubernetes.io/docs/concepts/storage/volumes/#recursive-read-only-mounts"))
        .without("recursive_read_only_mounts"),
    limit(Fails, "supplemental-groups", &[], &[on(&["spec.securityContext.supplementalGroupsPolicy"], Is::OneOf(&["Strict"]))],
        "A backend of this node does not report the feature, so the kubelet rejects the pod. Before Kubernetes 1.33, the kubelet silently applies `Merge`.",
        "Remove `supplementalGroupsPolicy: Strict`, or run the pod on a node whose backends all have the feature.",
        source("Kubernetes: Configure a Security Context for a Pod or Container, supplementalGroupsPolicy", "https://kubernetes.io/docs/tasks/configure-pod-container/security-context/"))
        .without("supplemental_groups_policy"),
    limit(Fails, "host-users-host-network", &[], &[on(&["spec.hostUsers"], Is::False)],
        "A backend of this node does not report user namespaces with the host's network, so the API server or the kubelet rejects the pod.",
        "Remove `hostUsers: false` or `hostNetwork: true`.",
        source("kubernetes/kubernetes#135828: Kubelet: Add alpha-2 stage implementation for UserNamespacesHostNetworkSupport feature gate", "https://github.com/kubernetes/kubernetes/pull/135828"))
        .and(&[on(&["spec.hostNetwork"], Is::True)]).without("user_namespaces_host_network"),
    limit(Fails, "host-users-nfs", PLAIN, &[on(NFS, Is::Present)],
        "NFS has no mounts with mapped ids, which a container in a user namespace needs: the container does not start.",
        "Remove `hostUsers: false`, or use a volume with another file system.", USER_NAMESPACES).and(&[on(&["spec.hostUsers"], Is::False)]),
    limit(Fails, "host-users-volumes", PLAIN, &[on(NETWORK_VOLUMES, Is::Present)],
        "A container in a user namespace needs mounts with mapped ids: it does not start with a volume whose file system has none.",
        "Use a volume with ext4, xfs or btrfs, or remove `hostUsers: false`.", USER_NAMESPACES)
        .and(&[on(&["spec.hostUsers"], Is::False)]).only_if(Fact::MappedIds, false),
    limit(Fails, "bind-mount-options", &[], &[on(&["spec.containers[*].volumeMounts[*].bindMountOptions[*]"], Is::Present)],
        "A backend of this node does not report the feature, so the kubelet rejects the pod.",
        "Remove `bindMountOptions`, or run the pod on a node whose backends all have the feature.",
        source("kubernetes/enhancements#5856: Add KEP-5855 for bind mount options (noexec, nodev, nosuid) on volumeMounts", "https://github.com/kubernetes/enhancements/pull/5856"))
        .without("mount_options"),
    limit(Fails, "seccomp-oci", &[], &[on(&["spec.securityContext.seccompProfile.type", "spec.containers[*].securityContext.seccompProfile.type"], Is::OneOf(&["OCI"]))],
        "A backend of this node does not report the feature, so the kubelet rejects the pod.",
        "Use a profile of the type RuntimeDefault or Localhost, or run the pod on a node whose backends all have the feature.",
        source("kubernetes/enhancements#6062: KEP-6061: OCI artifact-based security profile distribution (Kubernetes 1.38, alpha)", "https://github.com/kubernetes/enhancements/pull/6062"))
        .without("seccomp_profile_oci"),
    limit(Fails, "cgroup-mount-mode", &[], &[on(&["spec.containers[*].securityContext.cgroupOptions.mountMode"], Is::Present)],
        "A backend of this node does not report the feature, so the node does not declare CgroupOptions. The scheduler does not use the node, and the kubelet rejects the pod.",
        "Remove `cgroupOptions`, or run the pod on a node whose backends all have the feature.",
        source("kubernetes/kubernetes#137568: Add alpha support for writable cgroups in unprivileged containers (Kubernetes 1.38)", "https://github.com/kubernetes/kubernetes/pull/137568"))
        .without("cgroup_mount_mode"),
    limit(Fails, "node-sysctls", ANY, &[on(SYSCTLS, Is::Sysctl(&[], NAMESPACED))],
        "The sysctl has no namespace: a value of it would apply to the whole node, so the kubelet rejects the pod (SysctlForbidden), whatever its RuntimeClass is.",
        "Set the sysctl on the node, or set it in a privileged init container in a RuntimeClass of Kata Containers, whose pods have their own kernel.",
        KUBELET_SYSCTLS),
    limit(Fails, "unsafe-sysctls", ANY, &[on(SYSCTLS, Is::Sysctl(NAMESPACED, SAFE))],
        "The kubelet rejects the pod (SysctlForbidden), unless the kubelet's allowedUnsafeSysctls has the sysctl.",
        "Remove the sysctl, or add it to allowedUnsafeSysctls in the configuration of the kubelet.",
        KUBELET_SYSCTLS).only_if(Fact::UnsafeSysctls, false).in_no_policy(),
    limit(Fails, "recently-safe-sysctls", ANY, &[on(SYSCTLS, Is::Sysctl(SAFE_SINCE_1_37, &[]))],
        "A kubelet before Kubernetes 1.37 rejects the pod (SysctlForbidden), unless the kubelet's allowedUnsafeSysctls has the sysctl.",
        "Remove the sysctl, or add it to allowedUnsafeSysctls in the configuration of the kubelet.",
        KUBELET_SYSCTLS).only_if(Fact::OldKubelet, true).in_no_policy(),
    limit(Fails, "host-network-sysctls", ANY, &[on(SYSCTLS, Is::Sysctl(&["net."], &[]))],
        "The sysctl would apply to the network of the node, so the API server or the kubelet rejects the pod.",
        "Remove the sysctl or `hostNetwork: true`, or set the sysctl on the node.",
        KUBELET_SYSCTLS).and(&[on(&["spec.hostNetwork"], Is::True)]).by_api_server(),
    limit(Fails, "host-ipc-sysctls", ANY, &[on(SYSCTLS, Is::Sysctl(&["kernel.", "fs.mqueue."], &[]))],
        "The sysctl would apply to the IPC namespace of the node, so the API server or the kubelet rejects the pod.",
        "Remove the sysctl or `hostIPC: true`, or set the sysctl on the node.",
        POD_VALIDATION).and(&[on(&["spec.hostIPC"], Is::True)]).by_api_server(),
    limit(Fails, "node-network-sysctls", PLAIN, &[on(SYSCTLS, Is::Sysctl(NODE_NETWORK, &[]))],
        "The kernel has only one value for all network namespaces. The runtime cannot set it for the pod, so the pod does not start.",
        "Set the sysctl on the node.",
        source("torvalds/linux: net/core/sysctl_net_core.c, net_core_table", "https://github.com/torvalds/linux/blob/master/net/core/sysctl_net_core.c")),
    limit(Fails, "unmasked-proc", ANY, &[on(&["spec.containers[*].securityContext.procMount"], Is::OneOf(&["Unmasked"]))],
        "The API server rejects `Unmasked` without `hostUsers: false`.", "Add `hostUsers: false`, or remove the field.",
        POD_VALIDATION).unless(&[on(&["spec.hostUsers"], Is::False)]).by_api_server(),
    limit(Fails, "host-users-host-fields", ANY, &[on(&["spec.hostPID", "spec.hostIPC"], Is::True), on(BLOCK, Is::Present)],
        "The API server rejects the field with `hostUsers: false`.", "Remove the field or `hostUsers: false`.",
        POD_VALIDATION).and(&[on(&["spec.hostUsers"], Is::False)]).by_api_server(),
    limit(Fails, "shared-host-processes", ANY, &[on(&["spec.shareProcessNamespace"], Is::True)],
        "The API server rejects the field with `hostPID: true`.", "Remove the field or `hostPID: true`.",
        POD_VALIDATION).and(&[on(&["spec.hostPID"], Is::True)]).by_api_server(),
    limit(Fails, "bidirectional-unprivileged", ANY, &[on(PROPAGATION, Is::OneOf(&["Bidirectional"]))],
        "The API server rejects `Bidirectional` in a container that is not privileged.", "Use `HostToContainer`, or make the container privileged.",
        source("Kubernetes: Volumes, mount propagation", "https://kubernetes.io/docs/concepts/storage/volumes/#mount-propagation"))
        .unless(&[on(PRIVILEGED, Is::True)]).in_one_container().by_api_server(),
    limit(Fails, "privileged-escalation", ANY, &[on(&["spec.containers[*].securityContext"], Is::All(&[("privileged", Is::True), ("allowPrivilegeEscalation", Is::False)]))],
        "The API server rejects `privileged: true` with `allowPrivilegeEscalation: false`.", "Remove one of the fields.",
        POD_VALIDATION).by_api_server(),
    limit(Fails, "host-process-network", ANY, &[on(HOST_PROCESS, Is::True)],
        "The API server rejects a HostProcess container without `hostNetwork: true`.", "Add `hostNetwork: true`.",
        POD_VALIDATION).unless(&[on(&["spec.hostNetwork"], Is::True)]).by_api_server(),
    limit(Fails, "windows-pods", LINUX, &[on(&["spec.os.name"], Is::OneOf(&["windows"])), on(SELECTOR, Is::Entry(OS_LABELS, &["windows"])), FOR_WINDOWS],
        "The pod is for Windows, so the kubelet of a Linux node rejects it.",
        "Run the pod on a Windows node.", POD_OS).unless(&[FOR_LINUX]),
    limit(Fails, "linux-pods", WINDOWS, &[on(&["spec.os.name"], Is::OneOf(&["linux"])), on(SELECTOR, Is::Entry(OS_LABELS, &["linux"])), FOR_LINUX],
        "The pod is for Linux, so the kubelet of a Windows node rejects it.",
        "Run the pod on a Linux node.", POD_OS).unless(&[FOR_WINDOWS]),
    limit(Fails, "other-architecture", ANY, &[on(SELECTOR, Is::Entry(ARCHITECTURE_LABELS, OTHER_ARCHITECTURES))],
        "The node selector names an architecture that this node does not have.",
        "Run the pod on a node of that architecture.",
        source("Kubernetes: Well-Known Labels, kubernetes.io/arch", "https://kubernetes.io/docs/reference/labels-annotations-taints/#kubernetes-io-arch"))
        .only_if(Fact::ThisNode, true),
    limit(Weakens, "seccomp-annotations", ANY, &[SECCOMP_ANNOTATIONS],
        "The annotation has no effect since Kubernetes 1.27.", "Use `securityContext.seccompProfile`.",
        source("Kubernetes: Kubernetes Removals and Major Changes In v1.27", "https://kubernetes.io/blog/2023/03/17/upcoming-changes-in-kubernetes-v1-27/")),
    limit(Fails, "linux-host-process", LINUX, &[on(HOST_PROCESS, Is::True)],
        "Linux has no HostProcess containers.", "Run the pod on a Windows node.",
        source("Kubernetes: Create a Windows HostProcess Pod", "https://kubernetes.io/docs/tasks/configure-pod-container/create-hostprocess-pod/")),
    limit(Weakens, "linux-windows-options", LINUX, &[on(&["spec.securityContext.windowsOptions", "spec.containers[*].securityContext.windowsOptions"], Is::Present)],
        "The field is for Windows and has no effect on Linux, and the API server rejects it in a pod with `os.name: linux`.", "Remove the field, or run the pod on a Windows node.",
        source("Kubernetes: Pod, PodSpec, os", "https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#PodSpec"))
        .unless(&[on(&["spec.os.name"], Is::OneOf(&["windows"]))]).in_no_policy(),
    limit(Weakens, "kata-annotations", &[Runc, Crun, Gvisor, Runhcs], &[on(ANNOTATIONS, Is::Entry(&["io.katacontainers.**"], &[]))],
        "Only Kata Containers reads the annotation.", "Remove the annotation, or use a RuntimeClass of Kata Containers.",
        source("Kata Containers: Pod Annotations", "https://github.com/kata-containers/kata-containers/blob/main/docs/how-to/how-to-set-sandbox-config-kata.md")),
    limit(Weakens, "gvisor-annotations", &[Runc, Crun, Kata, Runhcs], &[on(ANNOTATIONS, Is::Entry(&["dev.gvisor.**"], &[]))],
        "Only gVisor reads the annotation.", "Remove the annotation, or use a RuntimeClass of gVisor.",
        source("gVisor: Containerd Advanced Configuration", "https://gvisor.dev/docs/user_guide/containerd/configuration/")),
    limit(Fails, "host-devices", PLAIN, &[on(HOST_PATH, Is::HostPath(&UNPRIVILEGED_DEVICES))],
        "The cgroup of a container that is not privileged denies the device: the container sees it, but cannot open it, whatever its capabilities are.",
        "Use a device plug-in, or make the container privileged.", DEVICE_CGROUP),
    limit(Weakens, "host-dev-directory", PLAIN, &[on(HOST_PATH, Is::HostPath(&UNPRIVILEGED_DEV))],
        "The cgroup of a container that is not privileged denies the devices of the node: the container sees them, but cannot open them.",
        "Use a device plug-in, or make the container privileged.", DEVICE_CGROUP),
    limit(Weakens, "nvidia-variable", PLAIN, &[on(ENV, Is::All(&[("name", Is::OneOf(&["NVIDIA_VISIBLE_DEVICES"])), ("value", Is::NoneOf(&["", "none", "void"]))]))],
        "The variable is for NVIDIA's runtime. runc and crun do not read it, so they give the container no graphics card, unless a hook of the backend does.",
        "Request the card as a resource, such as `nvidia.com/gpu`, or use a RuntimeClass of NVIDIA's runtime.",
        source("NVIDIA Container Toolkit: Specialized Configurations with Docker, GPU Enumeration", "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html"))
        .only_if(Fact::NvidiaRuntime, false),
    limit(Fails, "gvisor-host-network", GVISOR, &[on(&["spec.hostNetwork"], Is::True)],
        "gVisor starts the pod in a new network namespace, without a network interface of the node, unless runsc has the flag --network=host.", OTHER_CLASS,
        source("google/gvisor: runsc/sandbox/sandbox.go, createSandboxProcess", "https://github.com/google/gvisor/blob/master/runsc/sandbox/sandbox.go"))
        .only_if(Fact::RunscFlag("network=host"), false),
    limit(Weakens, "gvisor-host-pid", GVISOR, &[on(&["spec.hostPID"], Is::True)],
        "The pod sees only the processes in its own sandbox, not the processes of the node.", OTHER_CLASS, SEEN_IN_GVISOR),
    limit(Weakens, "gvisor-host-ipc", GVISOR, &[on(&["spec.hostIPC"], Is::True)],
        "The pod shares no memory, semaphores or message queues with the node.", OTHER_CLASS,
        source("google/gvisor#92: Can gvisor container enable IPC with host?", "https://github.com/google/gvisor/issues/92")),
    limit(Weakens, "gvisor-privileged", GVISOR, &[on(PRIVILEGED, Is::True)],
        "The container is privileged in its sandbox only: it cannot use the node's kernel and devices.", OTHER_CLASS, SEEN_IN_GVISOR),
    limit(Fails, "gvisor-net-raw", GVISOR, &[on(ADDED, Is::OneOf(&["ALL", "NET_ADMIN", "NET_RAW"])), on(PRIVILEGED, Is::True)],
        "gVisor drops the capability NET_RAW, also from privileged containers, unless runsc has the flag --net-raw: raw sockets do not work, and neither do tcpdump and iptables, which NET_ADMIN is for.",
        "Set net-raw = \"true\" in the configuration of runsc, remove the field, or use a RuntimeClass of runc or crun.", RUNSC_FLAGS)
        .only_if(Fact::RunscFlag("net-raw"), false),
    limit(Fails, "gvisor-sctp", GVISOR, SCTP,
        "gVisor has no SCTP: the program cannot open the socket.", "Use a RuntimeClass of runc or crun.",
        source("google/gvisor#5000: Create SCTP socket fail. Error: invalid argument", "https://github.com/google/gvisor/issues/5000")),
    limit(Fails, "gvisor-kernel-capabilities", GVISOR, &[on(ADDED, Is::OneOf(BEYOND_GVISOR))],
        "gVisor has no kernel modules, no eBPF and no access to the hardware and the clock of the node, so the capability is of no use.", OTHER_CLASS, SEEN_IN_GVISOR),
    limit(Weakens, "gvisor-capabilities", GVISOR, &[on(ADDED, Is::OneOf(OWN_TO_GVISOR))],
        "The capability applies to gVisor's own kernel only, which has a part of Linux.", OTHER_CLASS, SEEN_IN_GVISOR).in_no_policy(),
    limit(Fails, "gvisor-bidirectional-mounts", GVISOR, &[on(PROPAGATION, Is::OneOf(&["Bidirectional"]))],
        "gVisor keeps the mounts of a container in its sandbox, and does not start a container that should pass them on to the node.", OTHER_CLASS,
        source("google/gvisor#9324: Root Mount Propagation Option must Specify Private or Slave: \"rshared\"", "https://github.com/google/gvisor/issues/9324")),
    limit(Fails, "gvisor-host-sockets", GVISOR, HOST_PATH_SOCKETS,
        "gVisor refuses connections to Unix sockets of the node, unless runsc has the flag --host-uds=open.", OTHER_CLASS, RUNSC_FLAGS)
        .only_if(Fact::RunscFlag("host-uds=open"), false),
    limit(Fails, "gvisor-socket-directories", GVISOR, &[on(HOST_PATH, Is::HostPath(&SOCKET_DIRECTORIES))],
        "The directory exists for Unix sockets of the node. gVisor refuses connections to them, unless runsc has the flag --host-uds=open.", OTHER_CLASS, RUNSC_FLAGS)
        .only_if(Fact::RunscFlag("host-uds=open"), false),
    limit(Fails, "gvisor-kubelet-sockets", GVISOR, &[on(HOST_PATH, Is::HostPath(&KUBELET_SOCKETS))],
        "Node plug-ins and the kubelet meet at Unix sockets in this directory, which gVisor does not pass on, unless runsc has the flag --host-uds=all.", OTHER_CLASS, RUNSC_FLAGS)
        .only_if(Fact::RunscFlag("host-uds=all"), false),
    limit(Fails, "gvisor-host-devices", GVISOR, &[on(HOST_PATH, Is::HostPath(&HARDWARE))],
        "gVisor opens no device of the node, unless the --character-device-policy of runsc is prefer-emulated or passthrough.", DEVICE_CLASS, RUNSC_FLAGS)
        .only_if(DEVICE_POLICY, false),
    limit(Weakens, "gvisor-host-directories", GVISOR, &[on(HOST_PATH, Is::HostPath(&MIXED_DIRECTORIES)), on(HOST_PATH, Is::HostPath(&DEV))],
        "The pod can read files in this directory of the node, but devices and Unix sockets in it do not work.", OTHER_CLASS, GVISOR_DEVICES),
    limit(Fails, "gvisor-block-volumes", GVISOR, &[on(BLOCK, Is::Present)],
        "A volume in block mode is a device of the node, and gVisor does not pass such devices on to the pod.",
        "Use the volume in file system mode (`volumeMounts`), or use a RuntimeClass of runc or crun.", GVISOR_DEVICES),
    limit(Fails, "sandbox-bpf", SANDBOXES, &[on(HOST_PATH, Is::HostPath(&BPF))],
        "The directory has eBPF objects of the node's kernel. The pod has its own kernel, which cannot use them.", OTHER_CLASS, SEEN_IN_GVISOR),
    limit(Weakens, "gvisor-inotify", GVISOR, &[on(HOST_PATH, Is::HostPath(&PLAIN_DIRECTORIES))],
        "Programs read changes that other programs of the node make in the directory, but get no inotify events for them.",
        "Let the program poll the files, or use a RuntimeClass of runc or crun.",
        source("google/gvisor#8089: inotify does not work for bind mounts or root mount modifications", "https://github.com/google/gvisor/issues/8089")).in_no_policy(),
    limit(Weakens, "gvisor-shared-volumes", GVISOR, &[on(&["spec.volumes[*].emptyDir"], Is::Mounted(Mounting::InSeveralContainersWithoutHint))],
        "Containers of a pod see each other's changes in the volume, but get no inotify events for them, unless mount hints for gVisor say that the pod shares the volume.",
        "Add the annotations dev.gvisor.spec.mount.VOLUME.share, .type and .options, or let the program poll the files.",
        source("gVisor: Containerd Advanced Configuration, Enabling inotify for Shared Volumes", "https://gvisor.dev/docs/user_guide/containerd/configuration/#enabling-inotify-for-shared-volumes")).in_no_policy(),
    limit(Fails, "runc-proc-mounts", &[Runc], &[on(MOUNT_PATH, Is::LikeExcept(&["/proc/**"], PROC_FILES))],
        "runc starts no container with a mount below /proc, except on a few files such as /proc/meminfo.", "Mount the volume at another path.",
        source("opencontainers/runc: libcontainer/rootfs_linux.go, checkProcMount", "https://github.com/opencontainers/runc/blob/main/libcontainer/rootfs_linux.go"))
        .unless(&[on(MOUNT_PATH, Is::OneOf(NEW_PROC_FILES))]).in_one_container().in_no_policy(),
    limit(Fails, "kata-proc-mounts", KATA, &[on(MOUNT_PATH, Is::LikeExcept(&["/proc/**"], KATA_PROC_FILES))],
        "Kata Containers starts no container with a mount below /proc, except on a few files such as /proc/meminfo.", "Mount the volume at another path.",
        source("kata-containers/kata-containers: src/agent/rustjail/src/mount.rs, check_proc_mount", "https://github.com/kata-containers/kata-containers/blob/main/src/agent/rustjail/src/mount.rs")).in_no_policy(),
    limit(Weakens, "gvisor-sysctls", GVISOR, &[on(SYSCTLS, Is::Present)],
        "gVisor ignores the sysctls of a pod.", OTHER_CLASS,
        source("google/gvisor#10790: sysctl options declared in config.json not applied to container", "https://github.com/google/gvisor/issues/10790")),
    limit(Weakens, "gvisor-huge-pages", GVISOR, HUGE_PAGES,
        "Programs in gVisor cannot use the huge pages that the node reserves for the pod.", OTHER_CLASS,
        source("google/gvisor#2713: gVisor container couldn't set hugetlb manually?", "https://github.com/google/gvisor/issues/2713")),
    limit(Weakens, "gvisor-apparmor", GVISOR, LOCAL_APPARMOR, "gVisor ignores the AppArmor profile.", OTHER_CLASS, RUNSC_SPEC),
    limit(Fails, "gvisor-selinux", GVISOR, &[on(SELINUX, Is::Present), on(&["spec.containers"], Is::Present)],
        "With SELinux, the backend gives each container a label, and gVisor starts no container with a label.",
        "Set enable_selinux = false in the backend of gVisor, or use a RuntimeClass of runc or crun.", RUNSC_SPEC)
        .only_if(Fact::Selinux, true),
    limit(Weakens, "gvisor-seccomp", GVISOR, &[on(SECCOMP, Is::OneOf(&["Localhost"]))],
        "gVisor ignores the seccomp profile, unless runsc has the flag --oci-seccomp.", OTHER_CLASS, RUNSC_FLAGS)
        .only_if(Fact::RunscFlag("oci-seccomp"), false),
    limit(Weakens, "gvisor-setuid", GVISOR, &[on(ESCALATION, Is::True)],
        "gVisor ignores the setuid bit of programs such as sudo, so a process cannot gain privileges, unless runsc has the flag --allow-suid.", OTHER_CLASS, RUNSC_FLAGS)
        .only_if(Fact::RunscFlag("allow-suid"), false),
    limit(Note, "gvisor-port-forward", GVISOR, &[on(PORTS, Is::Present)],
        "`kubectl port-forward` does not reach the ports of the pod. Clients in the cluster reach the ports at the pod's address.", "Use a Service.",
        source("google/gvisor#3811: Support Kubernetes port forwarding", "https://github.com/google/gvisor/issues/3811")),
    limit(Fails, "kata-host-network", KATA, &[on(&["spec.hostNetwork"], Is::True)],
        "The pod runs in a virtual machine, which cannot use the network of the node: it has only the interface `lo`.", OTHER_CLASS, KATA_LIMITATIONS),
    limit(Weakens, "kata-host-pid", KATA, &[on(&["spec.hostPID"], Is::True)],
        "The pod runs in a virtual machine, and does not see the processes of the node.", OTHER_CLASS,
        source("kata-containers/runtime#2633: Kata does not support hostpid", "https://github.com/kata-containers/runtime/issues/2633")),
    limit(Weakens, "kata-host-ipc", KATA, &[on(&["spec.hostIPC"], Is::True)],
        "The pod has an IPC namespace of its own: it shares no memory, semaphores or message queues with the node.", OTHER_CLASS, SEEN_IN_KATA),
    limit(Weakens, "kata-privileged", KATA, &[on(PRIVILEGED, Is::True)],
        "The container is privileged in its virtual machine: it has all capabilities, but no devices of the node.", OTHER_CLASS, KATA_LIMITATIONS),
    limit(Fails, "kata-privileged-devices", KATA, &[on(PRIVILEGED, Is::True)],
        "The backend passes all devices of the node to a privileged container, and Kata Containers cannot add them to the virtual machine: the container does not start.",
        "Set privileged_without_host_devices = true for the handler in the configuration of the backend.", KATA_PRIVILEGED)
        .only_if(Fact::PrivilegedWithoutHostDevices, false),
    limit(Weakens, "kata-node-capabilities", KATA, &[on(ADDED, Is::OneOf(BEYOND_GUEST))],
        "The capability applies to the kernel of the virtual machine, not to that of the node.", OTHER_CLASS, KATA_LIMITATIONS),
    limit(Weakens, "kata-bidirectional-mounts", KATA, &[on(PROPAGATION, Is::OneOf(&["Bidirectional"]))],
        "Mounts that the container makes in the virtual machine do not reach the node.", OTHER_CLASS, SEEN_IN_KATA),
    limit(Fails, "kata-host-sockets", KATA, HOST_PATH_SOCKETS,
        "A Unix socket of the node does not work in the virtual machine: the container does not start.", OTHER_CLASS, SEEN_IN_KATA),
    limit(Fails, "kata-socket-volumes", KATA, &[on(CSI, Is::OneOf(&["csi.spiffe.io"]))],
        "The volume has a Unix socket of the node, which does not work across the virtual machine: connections are refused.", OTHER_CLASS, KATA_SOCKETS),
    limit(Fails, "kata-kubelet-sockets", KATA, &[on(HOST_PATH, Is::HostPath(&KUBELET_SOCKETS))],
        "Node plug-ins and the kubelet meet at Unix sockets in this directory, which do not work across the virtual machine: connections are refused.", OTHER_CLASS, SEEN_IN_KATA),
    limit(Fails, "kata-socket-directories", KATA, &[on(HOST_PATH, Is::HostPath(&SOCKET_DIRECTORIES))],
        "The directory exists for Unix sockets of the node, which do not work across the virtual machine: connections are refused.", OTHER_CLASS, SEEN_IN_KATA),
    limit(Weakens, "kata-guest-devices", KATA, &[on(HOST_PATH, Is::HostPath(&GUEST_DEVICES))],
        "The container gets the device of its virtual machine, not that of the node, and does not start if the virtual machine has none.", DEVICE_CLASS,
        source("kata-containers/kata-containers: tests/integration/kubernetes/k8s-hostpath-volume.bats", "https://github.com/kata-containers/kata-containers/blob/main/tests/integration/kubernetes/k8s-hostpath-volume.bats")),
    limit(Weakens, "kata-dev-directory", KATA, &[on(HOST_PATH, Is::HostPath(&DEV))],
        "The container gets the devices of its virtual machine, not those of the node.", OTHER_CLASS, SEEN_IN_KATA),
    limit(Weakens, "kata-kernel-directories", KATA, &[on(HOST_PATH, Is::HostPath(&KERNEL_DIRECTORIES))],
        "The container gets the directory of the kernel of its virtual machine, not that of the node.", OTHER_CLASS,
        source("kata-containers/kata-containers: src/runtime-rs/crates/resource/src/volume/share_fs_volume.rs, is_system_mount", "https://github.com/kata-containers/kata-containers/blob/main/src/runtime-rs/crates/resource/src/volume/share_fs_volume.rs")),
    limit(Fails, "kata-copied-volumes", KATA, LASTING_VOLUMES,
        "A virtual machine that shares no file system with the node gets copies of the files when the container starts. What the pod writes is lost with the pod.",
        "Use a handler whose configuration has a shared_fs, or a volume in block mode (`volumeDevices`).",
        source("kata-containers/kata-containers: src/runtime/virtcontainers/fs_share_linux.go, ShareFile", "https://github.com/kata-containers/kata-containers/blob/main/src/runtime/virtcontainers/fs_share_linux.go"))
        .only_if(Fact::SharedFileSystem, false),
    limit(Fails, "kata-block-volumes", KATA, &[on(BLOCK, Is::Present)],
        "A virtual machine on a different host, as that of kata-remote, gets no block device of the node.",
        "Use a handler whose virtual machines run on the node, such as kata-qemu.",
        source("kata-containers/kata-containers: src/runtime/virtcontainers/remote.go, HotplugAddDevice", "https://github.com/kata-containers/kata-containers/blob/main/src/runtime/virtcontainers/remote.go"))
        .only_if(Fact::BlockDevices, false),
    limit(Weakens, "kata-copied-ephemeral", KATA, &[on(&["spec.volumes[*].ephemeral"], Is::Mounted(Mounting::WithFiles))],
        "A virtual machine that shares no file system with the node gives each container a copy of the volume: containers do not see each other's changes.",
        "Use an emptyDir, or a handler whose configuration has a shared_fs.",
        source("kata-containers/kata-containers: src/runtime/virtcontainers/fs_share_linux.go, ShareFile", "https://github.com/kata-containers/kata-containers/blob/main/src/runtime/virtcontainers/fs_share_linux.go"))
        .only_if(Fact::SharedFileSystem, false),
    limit(Fails, "kata-copied-parts", KATA, &[on(&["spec.volumes[*].emptyDir"], Is::Mounted(Mounting::PartsInSeveralContainers))],
        "A virtual machine that shares no file system with the node gets a copy of the sub-path for each container: containers do not see each other's files.",
        "Mount the volume whole in each container.",
        source("kata-containers/kata-containers#12145: Runtime: emptyDir + subPath not shared across containers in confidential containers (shared_fs=none)", "https://github.com/kata-containers/kata-containers/issues/12145"))
        .only_if(Fact::SharedFileSystem, false),
    limit(Fails, "kata-volume-parts", KATA, &[on(&["spec.volumes[*].emptyDir"], Is::Mounted(Mounting::WholeAndInPart))],
        "Kata Containers makes the volume in the virtual machine, but takes a sub-path of it from the node: the two mounts do not have the same files.",
        "Mount the volume whole in each container, or by sub-path in each container.",
        source("kata-containers/kata-containers#12218: Analyzing why init container writes to emptyDir are not visible in main container", "https://github.com/kata-containers/kata-containers/issues/12218")).in_no_policy(),
    limit(Weakens, "kata-inotify", KATA, &[on(HOST_PATH, Is::HostPath(&PLAIN_DIRECTORIES))],
        "Programs read changes that other programs of the node make in the directory, but get no inotify events for them.",
        "Let the program poll the files, or use a RuntimeClass of runc or crun.",
        source("Kata Containers: support for inotify", "https://github.com/kata-containers/kata-containers/blob/main/docs/design/inotify.md")).in_no_policy(),
    limit(Weakens, "kata-memory", KATA, &[on(&["spec.containers[*].resources.requests.memory", "spec.resources.requests.memory"], Is::Present)],
        "The virtual machine grows only with limits. Without any limit it has the memory of default_memory in the configuration of Kata Containers, and with only a limit of processors that of overhead_memory (runtime-rs), whatever the container requests.",
        "Set a memory limit.",
        source("Kata Containers: How to size overhead_* for runtime-rs sandbox sizing", "https://github.com/kata-containers/kata-containers/blob/main/docs/how-to/how-to-size-sandbox-overhead-runtime-rs.md"))
        .unless(&[on(&["spec.containers[*].resources.limits.memory", "spec.resources.limits.memory"], Is::Present)]).in_one_container(),
    limit(Weakens, "kata-processors", KATA, &[on(&["spec.containers[*].resources.requests.cpu", "spec.resources.requests.cpu"], Is::MoreThanOne)],
        "The virtual machine grows only with limits. Without a limit it has as many processors as default_vcpus in the configuration of Kata Containers, usually one, whatever the container requests.",
        "Set a limit of processors.",
        source("Kata Containers: Virtual machine vCPU sizing", "https://github.com/kata-containers/kata-containers/blob/main/docs/design/vcpu-handling-runtime-go.md"))
        .unless(&[on(&["spec.containers[*].resources.limits.cpu", "spec.resources.limits.cpu"], Is::Present)]).in_one_container(),
    limit(Weakens, "kata-host-directories", KATA, &[on(HOST_PATH, Is::HostPath(&MIXED_DIRECTORIES))],
        "The pod can read files in this directory of the node, but devices and Unix sockets in it do not work.", OTHER_CLASS, SEEN_IN_KATA),
    limit(Weakens, "kata-apparmor", KATA, LOCAL_APPARMOR, "Kata Containers ignores the AppArmor profile.", OTHER_CLASS,
        source("kata-containers/kata-containers#2227: Add support for AppArmor", "https://github.com/kata-containers/kata-containers/issues/2227")),
    limit(Weakens, "kata-selinux", KATA, &[on(SELINUX, Is::Present)], "Kata Containers does not apply the SELinux label, unless its configuration has disable_guest_selinux = false.", OTHER_CLASS, KATA_CONFIGURATION)
        .only_if(Fact::Selinux, true),
    limit(Weakens, "kata-seccomp", KATA, &[on(SECCOMP, Is::OneOf(&["Localhost"]))],
        "Kata Containers ignores the seccomp profile, unless its configuration has disable_guest_seccomp = false.", OTHER_CLASS, KATA_CONFIGURATION),
    limit(Weakens, "kata-privilege-escalation", KATA, &[on(ESCALATION, Is::False)],
        "The main process of the container cannot gain privileges, but the processes of `kubectl exec` and of exec probes can.",
        "Remove setuid programs from the image.", SEEN_IN_KATA),
    limit(Note, "kata-ephemeral-containers", KATA, &[on(&["spec.ephemeralContainers[*].targetContainerName"], Is::Present)],
        "The ephemeral container of `kubectl debug --target` does not see the processes of the target container.", "Use `kubectl exec` in the target container.", SEEN_IN_KATA),
    limit(Weakens, "kata-memory-volumes", KATA, &[on(&["spec.volumes[*].emptyDir"], Is::All(&[("medium", Is::OneOf(&["Memory"])), ("sizeLimit", Is::Present)]))],
        "The volume may grow to half of the memory of the virtual machine, whatever its sizeLimit is.", "Set the memory limits of the containers.",
        source("kata-containers/kata-containers#2438: Doesn't support sizeLimit option for emptyDir volume in Kubernetes", "https://github.com/kata-containers/kata-containers/issues/2438")),
    limit(Note, "kata-port-forward", KATA, &[on(PORTS, Is::Present)],
        "`kubectl port-forward` does not reach the ports of the pod. Clients in the cluster reach the ports at the pod's address.", "Use a Service.", SEEN_IN_KATA),
    limit(Fails, "windows-privileged", WINDOWS, &[on(PRIVILEGED, Is::True)],
        "Windows has no privileged containers.", "Use a HostProcess container, or run the pod on a Linux node.", WINDOWS_API),
    limit(Fails, "windows-hypervisor", WINDOWS, &[on(HOST_PROCESS, Is::True)],
        "HostProcess containers run on the node itself, and not in Hyper-V isolation.", "Use a RuntimeClass of process isolation, such as runhcs-wcow-process.",
        source("Azure Kubernetes Service: Use Windows HostProcess containers, limitations", "https://learn.microsoft.com/en-us/azure/aks/use-windows-hpc"))
        .only_if(Fact::HypervisorIsolation, true),
    limit(Fails, "windows-host-network", WINDOWS, &[on(&["spec.hostNetwork"], Is::True)],
        "A pod on Windows does not get the network of the node, unless it is a HostProcess pod.",
        "Remove the field, use a HostProcess pod, or run the pod on a Linux node.", WINDOWS_API).unless(&[on(HOST_PROCESS, Is::True)]),
    limit(Fails, "windows-host-namespaces", WINDOWS, &[on(&["spec.hostPID", "spec.hostIPC", "spec.shareProcessNamespace"], Is::True)],
        "Windows containers share no process or IPC namespace with the node or with each other.", LINUX_NODE, WINDOWS_API),
    limit(Fails, "windows-block-volumes", WINDOWS, &[on(BLOCK, Is::Present)],
        "Windows cannot attach a volume in block mode to a pod.",
        "Use the volume in file system mode (`volumeMounts`), or run the pod on a Linux node.", WINDOWS_API),
    limit(Fails, "windows-nfs", WINDOWS, &[on(NFS, Is::Present)], "Windows has no NFS volumes.", "Use a CSI driver for SMB, or run the pod on a Linux node.",
        source("Kubernetes: Windows Storage", "https://kubernetes.io/docs/concepts/storage/windows-storage/")),
    limit(Fails, "windows-sctp", WINDOWS, SCTP, "Windows nodes have no SCTP.", "Run the pod on a Linux node.",
        source("Kubernetes: Protocols for Services, SCTP", "https://kubernetes.io/docs/reference/networking/service-protocols/#protocol-sctp")),
    limit(Fails, "windows-mount-propagation", WINDOWS, &[on(PROPAGATION, Is::OneOf(&["Bidirectional", "HostToContainer"]))],
        "Windows has no mount propagation.", LINUX_NODE, WINDOWS_API),
    limit(Fails, "windows-read-only-root", WINDOWS, &[on(&["spec.containers[*].securityContext.readOnlyRootFilesystem"], Is::True)],
        "The registry and system processes of a Windows container need write access to its root file system.", LINUX_NODE, WINDOWS_API),
    limit(Fails, "windows-memory-volumes", WINDOWS, &[on(&["spec.volumes[*].emptyDir.medium"], Is::OneOf(&["Memory"]))],
        "Windows has no emptyDir volumes in memory.", "Remove `medium: Memory`, or run the pod on a Linux node.", WINDOWS_API),
    limit(Fails, "windows-huge-pages", WINDOWS, HUGE_PAGES, "Windows containers have no huge pages.", LINUX_NODE, WINDOWS_API),
    limit(Fails, "windows-users", WINDOWS, &[on(&["spec.securityContext.runAsUser", "spec.securityContext.runAsGroup", "spec.securityContext.fsGroup", "spec.securityContext.supplementalGroups",
            "spec.containers[*].securityContext.runAsUser", "spec.containers[*].securityContext.runAsGroup"], Is::Present)],
        "Windows has no numeric users and groups.", "Use `windowsOptions.runAsUserName`, or run the pod on a Linux node.", WINDOWS_API),
    limit(Weakens, "windows-security", WINDOWS, &[on(&["spec.securityContext.appArmorProfile.type", "spec.securityContext.seLinuxOptions",
            "spec.securityContext.seccompProfile.type", "spec.securityContext.sysctls[*].name",
            "spec.containers[*].securityContext.allowPrivilegeEscalation", "spec.containers[*].securityContext.appArmorProfile.type",
            "spec.containers[*].securityContext.capabilities", "spec.containers[*].securityContext.capabilities.add[*]",
            "spec.containers[*].securityContext.procMount", "spec.containers[*].securityContext.seLinuxOptions",
            "spec.containers[*].securityContext.seccompProfile.type"], Is::Present)],
        "The field has no effect on Windows, and the API server rejects it in a pod with `os.name: windows`.", LINUX_NODE, WINDOWS_API),
];
