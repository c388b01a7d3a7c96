//! The pages and issues of runtimes that document their known limits.

/// The place where a limit is documented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The title of the page or of the issue.
    pub title: &'static str,
    /// The address of the page or of the issue; empty if no page states the limit, but tests have seen it.
    pub url: &'static str,
}

impl Source {
    /// The address, or the tests that have seen the limit.
    pub fn shown(&self) -> &'static str {
        self.link().unwrap_or(self.title)
    }

    /// The address, if there is one.
    pub fn link(&self) -> Option<&'static str> {
        Some(self.url).filter(|url| !url.is_empty())
    }
}

pub(super) const fn source(title: &'static str, url: &'static str) -> Source {
    Source { title, url }
}

/// The sources of limits that no page states: the versions with which the tests have seen them.
pub(super) const SEEN_IN_GVISOR: Source = source(
    "seen in criswitch's tests with gVisor of September 2026",
    "",
);
pub(super) const SEEN_IN_KATA: Source =
    source("seen in criswitch's tests with Kata Containers 4.1", "");

pub(super) const KATA_LIMITATIONS: Source = source(
    "Kata Containers: Limitations",
    "https://github.com/kata-containers/kata-containers/blob/main/docs/Limitations.md",
);
pub(super) const KATA_CONFIGURATION: Source = source(
    "kata-containers/kata-containers: src/runtime-rs/config/configuration-qemu-runtime-rs.toml.in",
    "https://github.com/kata-containers/kata-containers/blob/main/src/runtime-rs/config/configuration-qemu-runtime-rs.toml.in",
);
pub(super) const WINDOWS_API: Source = source(
    "Kubernetes: Windows containers in Kubernetes, API compatibility",
    "https://kubernetes.io/docs/concepts/windows/intro/#api",
);
pub(super) const RUNSC_SPEC: Source = source(
    "google/gvisor: runsc/specutils/specutils.go, ValidateSpec",
    "https://github.com/google/gvisor/blob/master/runsc/specutils/specutils.go",
);
pub(super) const RUNSC_FLAGS: Source = source(
    "google/gvisor: runsc/config/flags.go",
    "https://github.com/google/gvisor/blob/master/runsc/config/flags.go",
);
pub(super) const KUBELET_SYSCTLS: Source = source(
    "Kubernetes: Using sysctls in a Kubernetes Cluster",
    "https://kubernetes.io/docs/tasks/administer-cluster/sysctl-cluster/",
);
pub(super) const USER_NAMESPACES: Source = source(
    "Kubernetes: User Namespaces",
    "https://kubernetes.io/docs/concepts/workloads/pods/user-namespaces/",
);
pub(super) const POD_OS: Source = source(
    "Kubernetes: Pods, Pod OS",
    "https://kubernetes.io/docs/concepts/workloads/pods/#pod-os",
);
pub(super) const POD_VALIDATION: Source = source(
    "Kubernetes: pkg/apis/core/validation/validation.go",
    "https://github.com/kubernetes/kubernetes/blob/master/pkg/apis/core/validation/validation.go",
);
pub(super) const GVISOR_DEVICES: Source = source(
    "google/gvisor#9140: Docker volume & bind mount support after VFS2 & LISAFS",
    "https://github.com/google/gvisor/issues/9140",
);
pub(super) const KATA_SOCKETS: Source = source(
    "kata-containers/kata-containers#8024: How to handle socket and hostPath in kata-containers?",
    "https://github.com/kata-containers/kata-containers/issues/8024",
);
pub(super) const DEVICE_CGROUP: Source = source(
    "kubernetes/kubernetes#5607: add support for host devices",
    "https://github.com/kubernetes/kubernetes/issues/5607",
);
pub(super) const KATA_PRIVILEGED: Source = source(
    "kata-containers/kata-containers#1342: privileged securityContext is causing pod to fail on k8s",
    "https://github.com/kata-containers/kata-containers/issues/1342",
);
