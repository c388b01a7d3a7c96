//! The table of known limits. docs/compatibility.md has the same table.

use super::Kind::{Crun, Gvisor, Kata, Runc, Runhcs};
use super::{Effect, Is, Limit, Source, Test};

/// The limits of gVisor that follow from its own kernel: the remedy is always the same.
const OTHER_CLASS: &str = "Remove the field, or use a RuntimeClass of runc or crun.";

const KATA_LIMITATIONS: Source = Source {
    title: "Kata Containers: Limitations",
    url: "https://github.com/kata-containers/kata-containers/blob/main/docs/Limitations.md",
};

const WINDOWS: Source = Source {
    title: "Kubernetes: Windows containers in Kubernetes, API compatibility",
    url: "https://kubernetes.io/docs/concepts/windows/intro/#api",
};

const RUNSC_SPEC: Source = Source {
    title: "google/gvisor: runsc/specutils/specutils.go, ValidateSpec",
    url: "https://github.com/google/gvisor/blob/master/runsc/specutils/specutils.go",
};

/// A limit of gVisor. The entries of the table replace what differs.
const GVISOR: Limit = Limit {
    id: "",
    kinds: &[Gvisor],
    feature: None,
    test: Test {
        fields: &[],
        is: Is::True,
    },
    and: &[],
    unless: &[],
    effect: Effect::Fails,
    reason: "",
    remedy: OTHER_CLASS,
    source: RUNSC_SPEC,
};

/// A limit of Kata Containers.
const KATA: Limit = Limit {
    kinds: &[Kata],
    source: KATA_LIMITATIONS,
    ..GVISOR
};

/// A limit of Windows containers.
const WINDOWS_CONTAINERS: Limit = Limit {
    kinds: &[Runhcs],
    remedy: "Remove the field, or run the pod on a Linux node.",
    source: WINDOWS,
    ..GVISOR
};

/// Every known limit, sorted by the kind of runtime.
pub const LIMITS: &[Limit] = &[
    Limit {
        id: "host-users",
        kinds: &[],
        feature: Some("user_namespaces"),
        test: Test {
            fields: &["spec.hostUsers"],
            is: Is::False,
        },
        reason: "The runtime does not report user namespaces to the kubelet, so the kubelet rejects the pod.",
        remedy: "Remove `hostUsers: false`, or use a RuntimeClass whose handler has the feature user_namespaces.",
        source: Source {
            title: "Kubernetes: User Namespaces",
            url: "https://kubernetes.io/docs/concepts/workloads/pods/user-namespaces/",
        },
        ..GVISOR
    },
    Limit {
        id: "recursive-read-only",
        kinds: &[Gvisor, Runhcs],
        feature: Some("recursive_read_only_mounts"),
        test: Test {
            fields: &["spec.containers[*].volumeMounts[*].recursiveReadOnly"],
            is: Is::OneOf(&["Enabled"]),
        },
        reason: "The runtime does not report recursive read-only mounts, so the kubelet does not start the container.",
        remedy: "Use `recursiveReadOnly: IfPossible`, or a RuntimeClass whose handler has the feature \
                 recursive_read_only_mounts.",
        source: Source {
            title: "kubernetes/enhancements#3857: Recursive Read-only (RRO) mounts",
            url: "https://github.com/kubernetes/enhancements/issues/3857",
        },
        ..GVISOR
    },
    Limit {
        id: "supplemental-groups",
        kinds: &[],
        feature: Some("supplemental_groups_policy"),
        test: Test {
            fields: &["spec.securityContext.supplementalGroupsPolicy"],
            is: Is::OneOf(&["Strict"]),
        },
        reason: "A backend of this node does not report the feature, so the kubelet rejects the pod. Before Kubernetes \
                 1.33, the kubelet silently applies `Merge`.",
        remedy: "Remove `supplementalGroupsPolicy: Strict`, or run the pod on a node whose backends all have the feature.",
        source: Source {
            title: "Kubernetes: Configure a Security Context for a Pod or Container, supplementalGroupsPolicy",
            url: "https://kubernetes.io/docs/tasks/configure-pod-container/security-context/",
        },
        ..GVISOR
    },
    Limit {
        id: "host-users-host-network",
        kinds: &[],
        feature: Some("user_namespaces_host_network"),
        test: Test {
            fields: &["spec.hostUsers"],
            is: Is::False,
        },
        and: &[Test {
            fields: &["spec.hostNetwork"],
            is: Is::True,
        }],
        reason: "A backend of this node does not report user namespaces with the host's network, so the kubelet rejects \
                 the pod.",
        remedy: "Remove `hostUsers: false` or `hostNetwork: true`.",
        source: Source {
            title: "Kubernetes: User Namespaces",
            url: "https://kubernetes.io/docs/concepts/workloads/pods/user-namespaces/",
        },
        ..GVISOR
    },
    Limit {
        id: "bind-mount-options",
        kinds: &[],
        feature: Some("mount_options"),
        test: Test {
            fields: &["spec.containers[*].volumeMounts[*].bindMountOptions[*]"],
            is: Is::Present,
        },
        reason: "A backend of this node does not report the feature, so the kubelet rejects the pod.",
        remedy: "Remove `bindMountOptions`, or run the pod on a node whose backends all have the feature.",
        source: Source {
            title: "Kubernetes: Set Bind Mount Options on Volume Mounts",
            url: "https://kubernetes.io/docs/tasks/configure-pod-container/configure-bind-mount-options/",
        },
        ..GVISOR
    },
    Limit {
        id: "node-sysctls",
        kinds: &[Runc, Crun],
        test: Test {
            fields: &["spec.securityContext.sysctls[*].name"],
            is: Is::SysctlOutside(&[
                "kernel.shm",
                "kernel.msg",
                "kernel.sem",
                "kernel.domainname",
                "fs.mqueue.",
                "net.",
                "user.",
            ]),
        },
        reason: "The sysctl has no namespace: a value of it would apply to the whole node, so runc and crun do not start \
                 the pod.",
        remedy: "Set the sysctl on the node, or use a RuntimeClass of Kata Containers, whose pods have their own kernel.",
        source: Source {
            title: "moby/moby#36640: sysctl is not in a separate kernel namespace",
            url: "https://github.com/moby/moby/issues/36640",
        },
        ..GVISOR
    },
    Limit {
        id: "gvisor-host-network",
        test: Test {
            fields: &["spec.hostNetwork"],
            is: Is::True,
        },
        reason: "gVisor has its own network stack: the pod starts, but it has no network interface of the node.",
        source: Source {
            title: "google/gvisor#9657: gVisor failed to use host network silently",
            url: "https://github.com/google/gvisor/issues/9657",
        },
        ..GVISOR
    },
    Limit {
        id: "gvisor-host-pid",
        test: Test {
            fields: &["spec.hostPID"],
            is: Is::True,
        },
        effect: Effect::Weakens,
        reason: "The pod sees only the processes in its own sandbox, not the processes of the node.",
        source: Source {
            title: "google/gvisor#217: Only one pidns in a sandbox",
            url: "https://github.com/google/gvisor/issues/217",
        },
        ..GVISOR
    },
    Limit {
        id: "gvisor-host-ipc",
        test: Test {
            fields: &["spec.hostIPC"],
            is: Is::True,
        },
        effect: Effect::Weakens,
        reason: "The pod shares no memory, semaphores or message queues with the node.",
        source: Source {
            title: "google/gvisor#92: Can gvisor container enable IPC with host?",
            url: "https://github.com/google/gvisor/issues/92",
        },
        ..GVISOR
    },
    Limit {
        id: "gvisor-privileged",
        test: Test {
            fields: &["spec.containers[*].securityContext.privileged"],
            is: Is::True,
        },
        effect: Effect::Weakens,
        reason: "The container is privileged in its sandbox only: it cannot use the node's kernel and devices.",
        source: Source {
            title: "google/gvisor#33: Failed to run portainer (--privileged)",
            url: "https://github.com/google/gvisor/issues/33",
        },
        ..GVISOR
    },
    Limit {
        id: "gvisor-bidirectional-mounts",
        test: Test {
            fields: &["spec.containers[*].volumeMounts[*].mountPropagation"],
            is: Is::OneOf(&["Bidirectional"]),
        },
        reason: "gVisor keeps the mounts of a container in its sandbox, and does not start a container that should pass \
                 them on to the node.",
        source: Source {
            title: "google/gvisor#9324: Root mount propagation option must specify private or slave: \"rshared\"",
            url: "https://github.com/google/gvisor/issues/9324",
        },
        ..GVISOR
    },
    Limit {
        id: "gvisor-host-sockets",
        test: Test {
            fields: &["spec.volumes[*].hostPath.type"],
            is: Is::OneOf(&["Socket"]),
        },
        reason: "gVisor refuses connections to Unix sockets of the node, unless runsc has the flag --host-uds.",
        source: Source {
            title: "google/gvisor#235: Add support for mounting Unix sockets",
            url: "https://github.com/google/gvisor/issues/235",
        },
        ..GVISOR
    },
    Limit {
        id: "gvisor-host-devices",
        test: Test {
            fields: &["spec.volumes[*].hostPath.type"],
            is: Is::OneOf(&["CharDevice", "BlockDevice"]),
        },
        reason: "gVisor does not pass devices of the node on to the pod.",
        source: Source {
            title: "google/gvisor#9140: Docker volume & bind mount support after VFS2 & LISAFS",
            url: "https://github.com/google/gvisor/issues/9140",
        },
        ..GVISOR
    },
    Limit {
        id: "gvisor-device-paths",
        test: Test {
            fields: &["spec.volumes[*].hostPath.path"],
            is: Is::Begins(&["/dev/"]),
        },
        effect: Effect::Weakens,
        reason: "gVisor does not pass devices of the node on to the pod, so a device at this path cannot be used.",
        source: Source {
            title: "google/gvisor#7286: unable to map the character device",
            url: "https://github.com/google/gvisor/issues/7286",
        },
        ..GVISOR
    },
    Limit {
        id: "gvisor-block-volumes",
        test: Test {
            fields: &["spec.containers[*].volumeDevices[*].devicePath"],
            is: Is::Present,
        },
        reason: "A volume in block mode is a device of the node, and gVisor does not pass such devices on to the pod.",
        remedy: "Use the volume in file system mode (`volumeMounts`), or use a RuntimeClass of runc or crun.",
        source: Source {
            title: "google/gvisor#9140: Docker volume & bind mount support after VFS2 & LISAFS",
            url: "https://github.com/google/gvisor/issues/9140",
        },
        ..GVISOR
    },
    Limit {
        id: "gvisor-sysctls",
        test: Test {
            fields: &["spec.securityContext.sysctls[*].name"],
            is: Is::Present,
        },
        effect: Effect::Weakens,
        reason: "gVisor ignores the sysctls of a pod.",
        source: Source {
            title: "google/gvisor#10790: sysctl options declared in config.json not applied to container",
            url: "https://github.com/google/gvisor/issues/10790",
        },
        ..GVISOR
    },
    Limit {
        id: "gvisor-huge-pages",
        test: Test {
            fields: &["spec.containers[*].resources.limits"],
            is: Is::HasKey("hugepages-"),
        },
        effect: Effect::Weakens,
        reason: "Programs in gVisor cannot use the huge pages that the node reserves for the pod.",
        source: Source {
            title: "google/gvisor#2713: gVisor container couldn't set hugetlb manually?",
            url: "https://github.com/google/gvisor/issues/2713",
        },
        ..GVISOR
    },
    Limit {
        id: "gvisor-apparmor",
        test: Test {
            fields: &[
                "spec.securityContext.appArmorProfile.type",
                "spec.containers[*].securityContext.appArmorProfile.type",
            ],
            is: Is::OneOf(&["Localhost"]),
        },
        effect: Effect::Weakens,
        reason: "gVisor ignores the AppArmor profile.",
        ..GVISOR
    },
    Limit {
        id: "gvisor-selinux",
        test: Test {
            fields: &[
                "spec.securityContext.seLinuxOptions",
                "spec.containers[*].securityContext.seLinuxOptions",
            ],
            is: Is::Present,
        },
        reason: "On a node with SELinux, gVisor does not start a container with an SELinux label.",
        ..GVISOR
    },
    Limit {
        id: "gvisor-seccomp",
        test: Test {
            fields: &[
                "spec.securityContext.seccompProfile.type",
                "spec.containers[*].securityContext.seccompProfile.type",
            ],
            is: Is::OneOf(&["Localhost"]),
        },
        effect: Effect::Weakens,
        reason: "gVisor ignores the seccomp profile, unless runsc has the flag --oci-seccomp.",
        source: Source {
            title: "google/gvisor#510: OCI support for seccomp",
            url: "https://github.com/google/gvisor/issues/510",
        },
        ..GVISOR
    },
    Limit {
        id: "gvisor-setuid",
        test: Test {
            fields: &["spec.containers[*].securityContext.allowPrivilegeEscalation"],
            is: Is::True,
        },
        effect: Effect::Weakens,
        reason: "gVisor ignores the setuid bit of programs such as sudo, so a process cannot gain privileges.",
        source: Source {
            title: "google/gvisor#5299: sudo/setuid bit is not supported",
            url: "https://github.com/google/gvisor/issues/5299",
        },
        ..GVISOR
    },
    Limit {
        id: "gvisor-port-forward",
        test: Test {
            fields: &["spec.containers[*].ports[*].containerPort"],
            is: Is::Present,
        },
        effect: Effect::Note,
        reason: "`kubectl port-forward` does not reach the ports of the pod. Clients in the cluster reach the ports at the \
                 pod's address.",
        remedy: "Use a Service.",
        source: Source {
            title: "google/gvisor#3811: Support Kubernetes port forwarding",
            url: "https://github.com/google/gvisor/issues/3811",
        },
        ..GVISOR
    },
    Limit {
        id: "kata-host-network",
        test: Test {
            fields: &["spec.hostNetwork"],
            is: Is::True,
        },
        reason: "The pod runs in a virtual machine, which cannot use the network of the node.",
        ..KATA
    },
    Limit {
        id: "kata-host-pid",
        test: Test {
            fields: &["spec.hostPID"],
            is: Is::True,
        },
        effect: Effect::Weakens,
        reason: "The pod runs in a virtual machine, and does not see the processes of the node.",
        source: Source {
            title: "kata-containers/runtime#2633: Kata does not support hostpid",
            url: "https://github.com/kata-containers/runtime/issues/2633",
        },
        ..KATA
    },
    Limit {
        id: "kata-privileged",
        test: Test {
            fields: &["spec.containers[*].securityContext.privileged"],
            is: Is::True,
        },
        effect: Effect::Weakens,
        reason: "The container is privileged in its virtual machine: it gets the devices of the guest, not those of the node.",
        ..KATA
    },
    Limit {
        id: "kata-mount-propagation",
        test: Test {
            fields: &["spec.containers[*].volumeMounts[*].mountPropagation"],
            is: Is::OneOf(&["Bidirectional", "HostToContainer"]),
        },
        effect: Effect::Weakens,
        reason: "Mounts of the node and mounts in the virtual machine do not reach each other.",
        source: Source {
            title: "kata-containers/kata-containers#10502: Is mount propagation support?",
            url: "https://github.com/kata-containers/kata-containers/issues/10502",
        },
        ..KATA
    },
    Limit {
        id: "kata-host-sockets",
        test: Test {
            fields: &["spec.volumes[*].hostPath.type"],
            is: Is::OneOf(&["Socket"]),
        },
        reason: "A Unix socket of the node does not work in the virtual machine: connections to it are refused.",
        source: Source {
            title: "kata-containers/kata-containers#8024: How to handle socket and hostPath in kata-containers?",
            url: "https://github.com/kata-containers/kata-containers/issues/8024",
        },
        ..KATA
    },
    Limit {
        id: "kata-apparmor",
        test: Test {
            fields: &[
                "spec.securityContext.appArmorProfile.type",
                "spec.containers[*].securityContext.appArmorProfile.type",
            ],
            is: Is::OneOf(&["Localhost"]),
        },
        effect: Effect::Weakens,
        reason: "Kata Containers ignores the AppArmor profile.",
        ..KATA
    },
    Limit {
        id: "kata-selinux",
        test: Test {
            fields: &[
                "spec.securityContext.seLinuxOptions",
                "spec.containers[*].securityContext.seLinuxOptions",
            ],
            is: Is::Present,
        },
        effect: Effect::Weakens,
        reason: "Kata Containers does not apply the SELinux label.",
        ..KATA
    },
    Limit {
        id: "kata-device-paths",
        test: Test {
            fields: &["spec.volumes[*].hostPath.path"],
            is: Is::Begins(&["/dev/"]),
        },
        effect: Effect::Weakens,
        reason: "Kata Containers passes no device of the node on to the pod through a volume, except block devices.",
        source: Source {
            title: "kata-containers/kata-containers: src/runtime/virtcontainers/container.go, mountSharedDirMounts",
            url: "https://github.com/kata-containers/kata-containers/blob/main/src/runtime/virtcontainers/container.go",
        },
        ..KATA
    },
    Limit {
        id: "kata-seccomp",
        test: Test {
            fields: &[
                "spec.securityContext.seccompProfile.type",
                "spec.containers[*].securityContext.seccompProfile.type",
            ],
            is: Is::OneOf(&["Localhost"]),
        },
        effect: Effect::Weakens,
        reason: "Kata Containers ignores the seccomp profile, unless its configuration has disable_guest_seccomp = false.",
        source: Source {
            title: "kata-containers/kata-containers#1788: Add seccomp feature",
            url: "https://github.com/kata-containers/kata-containers/pull/1788",
        },
        ..KATA
    },
    Limit {
        id: "windows-privileged",
        test: Test {
            fields: &["spec.containers[*].securityContext.privileged"],
            is: Is::True,
        },
        reason: "Windows has no privileged containers.",
        remedy: "Use a HostProcess container, or run the pod on a Linux node.",
        ..WINDOWS_CONTAINERS
    },
    Limit {
        id: "windows-host-network",
        test: Test {
            fields: &["spec.hostNetwork"],
            is: Is::True,
        },
        unless: &[Test {
            fields: &[
                "spec.securityContext.windowsOptions.hostProcess",
                "spec.containers[*].securityContext.windowsOptions.hostProcess",
            ],
            is: Is::True,
        }],
        reason: "A pod on Windows does not get the network of the node, unless it is a HostProcess pod.",
        remedy: "Remove the field, use a HostProcess pod, or run the pod on a Linux node.",
        ..WINDOWS_CONTAINERS
    },
    Limit {
        id: "windows-host-namespaces",
        test: Test {
            fields: &["spec.hostPID", "spec.hostIPC", "spec.shareProcessNamespace"],
            is: Is::True,
        },
        reason: "Windows containers share no process or IPC namespace with the node or with each other.",
        ..WINDOWS_CONTAINERS
    },
    Limit {
        id: "windows-block-volumes",
        test: Test {
            fields: &["spec.containers[*].volumeDevices[*].devicePath"],
            is: Is::Present,
        },
        reason: "Windows cannot attach a volume in block mode to a pod.",
        remedy: "Use the volume in file system mode (`volumeMounts`), or run the pod on a Linux node.",
        ..WINDOWS_CONTAINERS
    },
    Limit {
        id: "windows-mount-propagation",
        test: Test {
            fields: &["spec.containers[*].volumeMounts[*].mountPropagation"],
            is: Is::OneOf(&["Bidirectional", "HostToContainer"]),
        },
        reason: "Windows has no mount propagation.",
        ..WINDOWS_CONTAINERS
    },
    Limit {
        id: "windows-read-only-root",
        test: Test {
            fields: &["spec.containers[*].securityContext.readOnlyRootFilesystem"],
            is: Is::True,
        },
        reason: "The registry and system processes of a Windows container need write access to its root file system.",
        ..WINDOWS_CONTAINERS
    },
    Limit {
        id: "windows-memory-volumes",
        test: Test {
            fields: &["spec.volumes[*].emptyDir.medium"],
            is: Is::OneOf(&["Memory"]),
        },
        reason: "Windows has no emptyDir volumes in memory.",
        remedy: "Remove `medium: Memory`, or run the pod on a Linux node.",
        ..WINDOWS_CONTAINERS
    },
    Limit {
        id: "windows-huge-pages",
        test: Test {
            fields: &["spec.containers[*].resources.limits"],
            is: Is::HasKey("hugepages-"),
        },
        reason: "Windows containers have no huge pages.",
        ..WINDOWS_CONTAINERS
    },
    Limit {
        id: "windows-users",
        test: Test {
            fields: &[
                "spec.securityContext.runAsUser",
                "spec.securityContext.runAsGroup",
                "spec.securityContext.fsGroup",
                "spec.containers[*].securityContext.runAsUser",
                "spec.containers[*].securityContext.runAsGroup",
            ],
            is: Is::Present,
        },
        reason: "Windows has no numeric users and groups.",
        remedy: "Use `windowsOptions.runAsUserName`, or run the pod on a Linux node.",
        ..WINDOWS_CONTAINERS
    },
    Limit {
        id: "windows-security",
        test: Test {
            fields: &[
                "spec.securityContext.seLinuxOptions",
                "spec.securityContext.seccompProfile",
                "spec.securityContext.sysctls[*].name",
                "spec.containers[*].securityContext.allowPrivilegeEscalation",
                "spec.containers[*].securityContext.capabilities",
                "spec.containers[*].securityContext.procMount",
                "spec.containers[*].securityContext.seLinuxOptions",
                "spec.containers[*].securityContext.seccompProfile",
            ],
            is: Is::Present,
        },
        effect: Effect::Weakens,
        reason: "The field has no effect on Windows, and the API server rejects it in a pod with `os.name: windows`.",
        ..WINDOWS_CONTAINERS
    },
];
