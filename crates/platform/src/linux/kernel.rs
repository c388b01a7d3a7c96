//! The kernel of this machine, and the commands with which a container shows the kernel that it sees.

use std::fs;

use crate::{Kernel, KernelReport};

/// Whether this system is Linux, so that its pods have Linux settings.
pub const IS_LINUX: bool = true;
/// Keeps a container running. The container first writes `$0` to its log.
const KEEP: &str = "echo \"$0\"; exec sleep 3600";
/// Prints what a container sees of its kernel, one `key=value` in each line. Uses only commands of the shell itself,
/// apart from `dmesg`, whose output has the name of gVisor.
const LOOK: &str = "\
show() { [ -r \"$2\" ] && read -r line <\"$2\" && echo \"$1=$line\"; }
show version /proc/version
show release /proc/sys/kernel/osrelease
show boot_id /proc/sys/kernel/random/boot_id
while read -r line; do case $line in
flags*hypervisor*) echo hypervisor=yes; break;;
esac; done </proc/cpuinfo
while read -r name value unit; do case $name in
MemFree:) echo \"free_memory_kib=$value\"; break;;
esac; done </proc/meminfo
dmesg 2>/dev/null | while read -r line; do case $line in
*gVisor*) echo \"log=$line\"; break;;
esac; done
:";

/// The command of a container that writes `mark` to its log and then does nothing.
#[must_use]
pub fn keep(mark: &str) -> Vec<String> {
    ["sh", "-c", KEEP, mark].map(str::to_owned).to_vec()
}

/// The command that prints a [`KernelReport`] in a container.
#[must_use]
pub fn look() -> Vec<String> {
    ["sh", "-c", LOOK].map(str::to_owned).to_vec()
}

impl KernelReport {
    /// Reads the output of [`look`].
    #[must_use]
    pub fn parse(output: &str) -> KernelReport {
        let free_kib = value(output, "free_memory_kib").and_then(|kib| kib.parse::<u64>().ok());
        let version = value(output, "version");
        KernelReport {
            kernel: Kernel {
                release: value(output, "release").or_else(|| release_in(version.as_deref()?)),
                version,
                boot_id: value(output, "boot_id"),
            },
            has_hypervisor: value(output, "hypervisor").is_some(),
            log: value(output, "log"),
            free_memory_bytes: free_kib.map(|kib| 1024 * kib),
        }
    }
}

/// The value after `key=` in the output of [`look`].
fn value(output: &str, key: &str) -> Option<String> {
    output
        .lines()
        .filter_map(|line| line.split_once('='))
        .find(|(name, _)| *name == key)
        .map(|(_, value)| value.trim().to_owned())
}

/// The release in a version: `4.19.0-gvisor` in `Linux version 4.19.0-gvisor #1 SMP ...`. gVisor has no file with the
/// release.
fn release_in(version: &str) -> Option<String> {
    version
        .strip_prefix("Linux version ")?
        .split_whitespace()
        .next()
        .map(str::to_owned)
}

impl Kernel {
    /// The kernel of this machine.
    #[must_use]
    pub fn own() -> Kernel {
        Kernel {
            release: line("/proc/sys/kernel/osrelease"),
            version: line("/proc/version"),
            boot_id: line("/proc/sys/kernel/random/boot_id"),
        }
    }
}

fn line(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}
