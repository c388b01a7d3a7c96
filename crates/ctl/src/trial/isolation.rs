//! The isolation of a pod, concluded from the kernel that its container sees, and the isolation that the kind or the
//! name of a handler promises.

use criswitch_config::RuntimeKind;
use criswitch_platform::{Kernel, KernelReport};
use serde::Serialize;
use serde_json::{Value as Json, json};

/// The name that the userspace kernel of gVisor has in its release, its version or its log.
const USERSPACE_KERNEL: &str = "gvisor";

/// How a pod is isolated from the kernel of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Isolation {
    HostKernel,
    UserspaceKernel,
    VirtualMachine,
    Unknown,
}

impl Isolation {
    /// The name in text.
    pub(super) fn words(self) -> &'static str {
        match self {
            Isolation::HostKernel => "host kernel",
            Isolation::UserspaceKernel => "userspace kernel",
            Isolation::VirtualMachine => "virtual machine",
            Isolation::Unknown => "unknown",
        }
    }
}

/// A conclusion, and the facts that it follows from.
pub(super) struct Observed {
    pub(super) isolation: Isolation,
    pub(super) evidence: Vec<String>,
    pub(super) report: KernelReport,
}

impl Observed {
    pub(super) fn json(&self) -> Json {
        json!({
            "kind": self.isolation,
            "evidence": self.evidence,
            "release": self.report.kernel.release,
            "version": self.report.kernel.version,
        })
    }
}

/// Concludes how a container with this report is isolated from the kernel of this machine.
pub(super) fn observe(report: KernelReport, host: &Kernel) -> Observed {
    let (isolation, mut evidence) = conclude(&report, host);
    if let (Some(release), Isolation::VirtualMachine | Isolation::Unknown) =
        (&report.kernel.release, isolation)
    {
        let own = host.release.as_deref().unwrap_or("unknown");
        evidence.push(format!("its kernel is {release}, this machine's is {own}"));
    }
    Observed {
        isolation,
        evidence,
        report,
    }
}

fn conclude(report: &KernelReport, host: &Kernel) -> (Isolation, Vec<String>) {
    let seen = &report.kernel;
    if let Some(named) = names_userspace(report)
        && !is_userspace(host)
    {
        return (Isolation::UserspaceKernel, vec![named]);
    }
    let (isolation, evidence) = match (&seen.boot_id, &host.boot_id) {
        (Some(its), Some(own)) if its == own => {
            (Isolation::HostKernel, "its boot id is that of this machine")
        }
        (Some(_), Some(_)) => return (Isolation::VirtualMachine, of_machine(report)),
        _ if seen.version.is_some() && seen.version == host.version => (
            Isolation::HostKernel,
            "its kernel's version is that of this machine",
        ),
        _ if seen.release.is_some() && report.has_hypervisor => {
            return (Isolation::VirtualMachine, of_machine(report));
        }
        _ => (Isolation::Unknown, "the container's boot id cannot be read"),
    };
    (isolation, vec![evidence.to_owned()])
}

fn of_machine(report: &KernelReport) -> Vec<String> {
    let mut evidence = Vec::new();
    if report.kernel.boot_id.is_some() {
        evidence.push("its boot id differs from this machine's".to_owned());
    }
    if report.has_hypervisor {
        evidence.push("its processors are those of a virtual machine".to_owned());
    }
    evidence
}

/// The text with which a userspace kernel names itself.
fn names_userspace(report: &KernelReport) -> Option<String> {
    [
        ("release", &report.kernel.release),
        ("version", &report.kernel.version),
        ("log", &report.log),
    ]
    .into_iter()
    .find_map(|(what, text)| {
        let text = text.as_ref().filter(|text| names_userspace_kernel(text))?;
        Some(format!("its kernel's {what} is {text:?}"))
    })
}

fn is_userspace(host: &Kernel) -> bool {
    [&host.release, &host.version]
        .into_iter()
        .flatten()
        .any(|text| names_userspace_kernel(text))
}

fn names_userspace_kernel(text: &str) -> bool {
    text.to_ascii_lowercase().contains(USERSPACE_KERNEL)
}

/// The isolation of this kind of runtime; `None` for Windows containers, whose isolation depends on the handler, and
/// for other runtimes.
fn of_kind(kind: RuntimeKind) -> Option<Isolation> {
    match kind {
        RuntimeKind::Runc | RuntimeKind::Crun => Some(Isolation::HostKernel),
        RuntimeKind::Gvisor => Some(Isolation::UserspaceKernel),
        RuntimeKind::Kata => Some(Isolation::VirtualMachine),
        RuntimeKind::Runhcs | RuntimeKind::Other => None,
    }
}

/// The isolation that a handler's name promises; `None` if the name promises nothing.
fn promised(name: &str) -> Option<Isolation> {
    match RuntimeKind::of_name(name)? {
        RuntimeKind::Runhcs if name.to_ascii_lowercase().contains("hypervisor") => {
            Some(Isolation::VirtualMachine)
        }
        RuntimeKind::Runhcs => Some(Isolation::HostKernel),
        kind => of_kind(kind),
    }
}

/// A warning if the observed isolation is not the promised one. The `kind` in the row promises an isolation, else the
/// name of the handler, else the backend's name for the handler.
pub(super) fn isolation_mismatch(
    kind: Option<RuntimeKind>,
    names: [&str; 2],
    observed: &Observed,
) -> Option<String> {
    let of_row = kind.and_then(|kind| {
        let what = format!("`kind` {:?} of the row", kind.as_ref());
        Some((what, of_kind(kind)?))
    });
    let mut of_names = names
        .into_iter()
        .filter_map(|name| Some((format!("the name {name:?}"), promised(name)?)));
    let (what, promised) = of_row.or_else(|| of_names.next())?;
    let seen = observed.isolation;
    if seen == promised || seen == Isolation::Unknown {
        return None;
    }
    let (promised, seen) = (promised.words(), seen.words());
    let evidence = observed.evidence.join(", ");
    Some(format!(
        "{what} promises a {promised}, but the pod has a {seen} ({evidence}); check which runtime the backend starts for \
         this handler"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(release: &str, boot_id: Option<&str>) -> Kernel {
        Kernel {
            release: Some(release.to_owned()),
            version: Some(format!("Linux version {release} (build)")),
            boot_id: boot_id.map(str::to_owned),
        }
    }

    fn seen(kernel: Kernel, has_hypervisor: bool) -> Observed {
        let report = KernelReport {
            kernel,
            has_hypervisor,
            ..KernelReport::default()
        };
        observe(report, &self::kernel("6.12.9", Some("a")))
    }

    #[test]
    fn the_boot_id_of_this_machine_means_the_host_kernel() {
        let observed = seen(kernel("6.12.9", Some("a")), true);
        assert_eq!(observed.isolation, Isolation::HostKernel);
        assert_eq!(observed.evidence, ["its boot id is that of this machine"]);
    }

    #[test]
    fn a_different_boot_id_means_a_virtual_machine() {
        // Kata's kernel may have the same release as the kernel of the host.
        let observed = seen(kernel("6.12.9", Some("b")), true);
        assert_eq!(observed.isolation, Isolation::VirtualMachine);
        assert_eq!(observed.evidence.len(), 3);
    }

    #[test]
    fn a_kernel_that_names_gvisor_is_a_userspace_kernel() {
        let observed = seen(kernel("4.19.0-gvisor", Some("b")), false);
        assert_eq!(observed.isolation, Isolation::UserspaceKernel);
        let report = KernelReport {
            kernel: kernel("4.4.0", None),
            log: Some("[ 0.0] Starting gVisor...".to_owned()),
            ..KernelReport::default()
        };
        let observed = observe(report, &kernel("6.12.9", Some("a")));
        assert_eq!(observed.isolation, Isolation::UserspaceKernel);
    }

    #[test]
    fn on_a_machine_that_gvisor_runs_its_kernel_is_the_host_kernel() {
        let host = kernel("4.19.0-gvisor", Some("a"));
        let report = KernelReport {
            kernel: host.clone(),
            ..KernelReport::default()
        };
        assert_eq!(observe(report, &host).isolation, Isolation::HostKernel);
    }

    #[test]
    fn without_a_boot_id_only_an_equal_version_or_a_hypervisor_decides() {
        let isolation = |release, hypervisor| seen(kernel(release, None), hypervisor).isolation;
        assert_eq!(isolation("6.12.9", false), Isolation::HostKernel);
        assert_eq!(isolation("5.4.0", true), Isolation::VirtualMachine);
        assert_eq!(isolation("5.4.0", false), Isolation::Unknown);
    }

    #[test]
    fn names_promise_an_isolation() {
        let promises = [
            ("gvisor", Some(Isolation::UserspaceKernel)),
            ("runsc-kvm", Some(Isolation::UserspaceKernel)),
            ("kata", Some(Isolation::VirtualMachine)),
            ("kata-qemu", Some(Isolation::VirtualMachine)),
            ("runc", Some(Isolation::HostKernel)),
            ("crun", Some(Isolation::HostKernel)),
            ("my-gvisor", None),
            ("crun-vm", None),
            ("runhcs-wcow-process", Some(Isolation::HostKernel)),
            ("runhcs-wcow-hypervisor", Some(Isolation::VirtualMachine)),
            ("truncated", None),
            ("", None),
        ];
        for (name, promise) in promises {
            assert_eq!(promised(name), promise, "{name}");
        }
    }

    #[test]
    fn the_kind_in_the_row_counts_before_the_name_that_pods_ask_for_and_the_name_in_the_backend() {
        let host = seen(kernel("6.12.9", Some("a")), false);
        let promise = |kind, names| isolation_mismatch(kind, names, &host);
        let warning = promise(None, ["sandboxed", "runsc"]).unwrap_or_default();
        assert!(warning.starts_with("the name \"runsc\" promises a userspace kernel, but"));
        assert_eq!(promise(None, ["runc", "runsc"]), None);
        assert_eq!(promise(None, ["plain", ""]), None);
        let warning = promise(Some(RuntimeKind::Gvisor), ["runc", ""]).unwrap_or_default();
        assert!(
            warning.starts_with("`kind` \"gvisor\" of the row promises a userspace kernel, but")
        );
        assert_eq!(promise(Some(RuntimeKind::Runc), ["kata", ""]), None);
        assert_eq!(promise(Some(RuntimeKind::Runhcs), ["plain", ""]), None);
    }
}
