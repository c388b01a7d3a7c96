//! The kernel of this machine, and the commands with which a container shows the kernel that it sees.

use crate::{Kernel, KernelReport};

/// Whether this system is Linux, so that its pods have Linux settings.
pub const IS_LINUX: bool = false;

/// The command of a container that writes `mark` to its log and then does nothing.
#[must_use]
pub fn keep(mark: &str) -> Vec<String> {
    let keep = format!("echo {mark}& ping -t 127.0.0.1 >nul");
    vec!["cmd".to_owned(), "/c".to_owned(), keep]
}

/// The command that prints a [`KernelReport`] in a container.
#[must_use]
pub fn look() -> Vec<String> {
    ["cmd", "/c", "ver"].map(str::to_owned).to_vec()
}

impl KernelReport {
    /// Reads the output of [`look`]: the version. A container of Windows shows no boot id.
    #[must_use]
    pub fn parse(output: &str) -> KernelReport {
        let version = output.trim();
        KernelReport {
            kernel: Kernel {
                version: (!version.is_empty()).then(|| version.to_owned()),
                ..Kernel::default()
            },
            ..KernelReport::default()
        }
    }
}

impl Kernel {
    /// The kernel of this machine. Windows has nothing that a container could compare it with.
    #[must_use]
    pub fn own() -> Kernel {
        Kernel::default()
    }
}
