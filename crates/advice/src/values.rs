//! The values of fields that limits and families name: sysctls, capabilities, CSI drivers, files of /proc.

/// Namespaced sysctls. The kubelet can allow no other sysctls.
pub(super) const NAMESPACED: &[&str] = &[
    "kernel.shm",
    "kernel.msg",
    "kernel.sem",
    "fs.mqueue.",
    "net.",
];
/// Sysctls below `net.` of which the kernel has only one value, for all network namespaces.
pub(super) const NODE_NETWORK: &[&str] = &["net.core.rmem_", "net.core.wmem_"];
/// The sysctls that each kubelet allows.
pub(super) const SAFE: &[&str] = &[
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_notsent_lowat",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];
/// The sysctls of `SAFE` that only a kubelet of Kubernetes 1.37 or later allows.
pub(super) const SAFE_SINCE_1_37: &[&str] = &[
    "net.ipv4.tcp_notsent_lowat",
    "net.ipv4.tcp_slow_start_after_idle",
];
/// Capabilities for features that gVisor does not have: kernel modules, eBPF, hardware and the clock.
pub(super) const BEYOND_GVISOR: &[&str] =
    &["BPF", "PERFMON", "SYS_MODULE", "SYS_RAWIO", "SYS_TIME"];
/// Capabilities that are meant for the node. In a pod with its own kernel, they affect only that kernel.
pub(super) const BEYOND_GUEST: &[&str] = &[
    "ALL",
    "BPF",
    "PERFMON",
    "SYSLOG",
    "SYS_BOOT",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_TIME",
];
/// Capabilities that affect only gVisor's own kernel.
pub(super) const OWN_TO_GVISOR: &[&str] = &[
    "ALL",
    "AUDIT_CONTROL",
    "AUDIT_READ",
    "BLOCK_SUSPEND",
    "CHECKPOINT_RESTORE",
    "DAC_READ_SEARCH",
    "IPC_LOCK",
    "IPC_OWNER",
    "LEASE",
    "LINUX_IMMUTABLE",
    "MAC_ADMIN",
    "MAC_OVERRIDE",
    "NET_ADMIN",
    "NET_BROADCAST",
    "SYSLOG",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_PACCT",
    "SYS_PTRACE",
    "SYS_RESOURCE",
    "SYS_TTY_CONFIG",
    "WAKE_ALARM",
];

/// CSI drivers that write ordinary files.
pub(super) const FILE_DRIVERS: &[&str] = &[
    "csi.cert-manager.io",
    "csi.spiffe.io.files",
    "secrets-store.csi.k8s.io",
];
/// The files of /proc that a mount may replace in runc.
pub(super) const PROC_FILES: &[&str] = &[
    "/proc/cpuinfo",
    "/proc/diskstats",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/net/dev",
    "/proc/slabinfo",
    "/proc/stat",
    "/proc/swaps",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/uptime",
];
/// The files of /proc that a mount may replace in a newer runc only.
pub(super) const NEW_PROC_FILES: &[&str] = &["/proc/sys/crypto/fips_enabled"];
/// The files of /proc that a mount may replace in Kata Containers.
pub(super) const KATA_PROC_FILES: &[&str] = &[
    "/proc/cpuinfo",
    "/proc/diskstats",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/net/dev",
    "/proc/stat",
    "/proc/swaps",
    "/proc/uptime",
];
