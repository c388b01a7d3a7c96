//! The isolation of a pod, concluded from the kernel that its container sees, and the isolation that the name of a
//! handler promises.

use criswitch::platform::{Kernel, KernelReport};
use serde_json::{Value as Json, json};

/// A userspace kernel names itself in its version or its log.
const USERSPACE_KERNEL: &str = "gvisor";

/// How a pod is isolated from the kernel of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Isolation {
    HostKernel,
    UserspaceKernel,
    VirtualMachine,
    Unknown,
}

impl Isolation {
    /// The name in JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Isolation::HostKernel => "hostKernel",
            Isolation::UserspaceKernel => "userspaceKernel",
            Isolation::VirtualMachine => "virtualMachine",
            Isolation::Unknown => "unknown",
        }
    }

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
            "kind": self.isolation.name(),
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
    match (&seen.boot_id, &host.boot_id) {
        (Some(its), Some(own)) if its == own => {
            let evidence = "its boot id is that of this machine".to_owned();
            (Isolation::HostKernel, vec![evidence])
        }
        (Some(_), Some(_)) => (Isolation::VirtualMachine, of_machine(report)),
        _ if seen.version.is_some() && seen.version == host.version => {
            let evidence = "its kernel's version is that of this machine".to_owned();
            (Isolation::HostKernel, vec![evidence])
        }
        _ if seen.release.is_some() && report.has_hypervisor => {
            (Isolation::VirtualMachine, of_machine(report))
        }
        _ => {
            let evidence = "it shows no boot id to compare with this machine's".to_owned();
            (Isolation::Unknown, vec![evidence])
        }
    }
}

fn of_machine(report: &KernelReport) -> Vec<String> {
    let boot = report.kernel.boot_id.is_some();
    let boot = boot.then_some("its boot id differs from this machine's");
    let hypervisor = "its processors are those of a virtual machine";
    let hypervisor = report.has_hypervisor.then_some(hypervisor);
    let evidence = boot.into_iter().chain(hypervisor);
    evidence.map(str::to_owned).collect()
}

/// The text with which a userspace kernel names itself.
fn names_userspace(report: &KernelReport) -> Option<String> {
    let Kernel {
        release, version, ..
    } = &report.kernel;
    let texts = [
        ("its kernel's release", release),
        ("its kernel's version", version),
        ("its kernel's log", &report.log),
    ];
    let mut named = texts.into_iter().filter_map(|(what, text)| {
        let text = text.as_ref()?;
        names(text).then(|| format!("{what} is {text:?}"))
    });
    named.next()
}

fn is_userspace(host: &Kernel) -> bool {
    [&host.release, &host.version]
        .into_iter()
        .flatten()
        .any(|text| names(text))
}

fn names(text: &str) -> bool {
    text.to_ascii_lowercase().contains(USERSPACE_KERNEL)
}

/// The isolation that a handler's name promises; `None` if the name promises nothing.
fn promised(name: &str) -> Option<Isolation> {
    let name = name.to_ascii_lowercase();
    if name.starts_with("runhcs-") {
        return Some(match name.contains("hypervisor") {
            true => Isolation::VirtualMachine,
            false => Isolation::HostKernel,
        });
    }
    name.split(|letter: char| !letter.is_ascii_alphanumeric())
        .find_map(|word| match word {
            "gvisor" | "runsc" => Some(Isolation::UserspaceKernel),
            "runc" | "crun" => Some(Isolation::HostKernel),
            word if word.starts_with("kata") => Some(Isolation::VirtualMachine),
            _ => None,
        })
}

/// A warning if one of these names, the handler's own or the backend's name for it, promises a different isolation.
pub(super) fn broken_promise(names: [&str; 2], observed: &Observed) -> Option<String> {
    let (name, promised) = names
        .into_iter()
        .find_map(|name| Some((name, promised(name)?)))?;
    let seen = observed.isolation;
    if seen == promised || seen == Isolation::Unknown {
        return None;
    }
    Some(format!(
        "the name {name:?} promises a {}, but the pod has a {} ({}); check which runtime the backend starts for this \
         handler",
        promised.words(),
        seen.words(),
        observed.evidence.join(", ")
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
            log: None,
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
        // Kata's kernel may have the release of the host's.
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
            has_hypervisor: false,
            log: Some("[ 0.0] Starting gVisor...".to_owned()),
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
            ("my-crun", Some(Isolation::HostKernel)),
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
    fn the_name_that_pods_ask_for_counts_before_the_name_in_the_backend() {
        let host = seen(kernel("6.12.9", Some("a")), false);
        let warning = broken_promise(["sandboxed", "runsc"], &host).unwrap_or_default();
        assert!(warning.starts_with("the name \"runsc\" promises a userspace kernel, but"));
        assert_eq!(broken_promise(["runc", "runsc"], &host), None);
        assert_eq!(broken_promise(["plain", ""], &host), None);
    }
}
