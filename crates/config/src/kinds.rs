//! The kind of a runtime, from the program that runs or, if the program is unknown, from the name of its handler.

use strum::{AsRefStr, EnumString, VariantArray, VariantNames};

/// A kind of runtime: the program that starts the containers of a handler.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    EnumString,
    AsRefStr,
    VariantNames,
    VariantArray,
)]
#[strum(serialize_all = "lowercase")]
pub enum RuntimeKind {
    /// runc.
    Runc,
    /// crun.
    Crun,
    /// gVisor (runsc).
    Gvisor,
    /// Kata Containers.
    Kata,
    /// Windows containers (runhcs).
    Runhcs,
    /// Any other runtime, of which only the limits of the kubelet are known.
    Other,
}

/// The program of a handler, as a runtime's configuration names it. Each text may be empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct Program<'a> {
    /// containerd's `runtime_path`: the path of a shim.
    pub path: &'a str,
    /// containerd's `runtime_type`: the name or the path of a shim.
    pub runtime_type: &'a str,
    /// The program that runc's shim starts: `BinaryName`, or `runtime_engine` of old versions.
    pub binary: &'a str,
}

/// Programs, by the name of their file. A wrapper has the kind of the program that it starts.
const PROGRAMS: [(&str, RuntimeKind); 10] = [
    ("runc", RuntimeKind::Runc),
    ("nvidia-container-runtime", RuntimeKind::Runc),
    ("nvidia-container-runtime.cdi", RuntimeKind::Runc),
    ("nvidia-container-runtime.experimental", RuntimeKind::Runc),
    ("nvidia-container-runtime.legacy", RuntimeKind::Runc),
    ("nvidia-container-runtime.real", RuntimeKind::Runc),
    ("crun", RuntimeKind::Crun),
    ("runsc", RuntimeKind::Gvisor),
    ("kata-runtime", RuntimeKind::Kata),
    ("runhcs", RuntimeKind::Runhcs),
];

/// Names of handlers that are not in [`PROGRAMS`].
const HANDLERS: [(&str, RuntimeKind); 2] =
    [("gvisor", RuntimeKind::Gvisor), ("kata", RuntimeKind::Kata)];

/// The runtimes whose handlers have variants, such as `kata-qemu`. `crun-vm` is a different runtime from crun.
const WITH_VARIANTS: [&str; 4] = ["gvisor", "kata", "runhcs", "runsc"];

impl RuntimeKind {
    /// The name for people.
    pub fn title(self) -> &'static str {
        match self {
            RuntimeKind::Runc => "runc",
            RuntimeKind::Crun => "crun",
            RuntimeKind::Gvisor => "gVisor",
            RuntimeKind::Kata => "Kata Containers",
            RuntimeKind::Runhcs => "Windows containers",
            RuntimeKind::Other => "other",
        }
    }

    /// The kind of a handler that starts this program; `None` if the program is of no known kind.
    pub fn of_program(program: Program<'_>) -> Option<RuntimeKind> {
        let by_path = [program.path, program.runtime_type]
            .into_iter()
            .filter(|text| text.contains('/'))
            .find_map(|path| {
                Some(
                    file_name(path)
                        .strip_prefix("containerd-shim-")?
                        .rsplit_once("-v")?
                        .0,
                )
            });
        let shim = match (by_path, program.path) {
            (Some(shim), _) => shim,
            (None, "") => shim_of_type(program.runtime_type)?,
            (None, path) => file_name(path),
        };
        match shim {
            "runc" if program.binary.is_empty() => Some(RuntimeKind::Runc),
            "runc" => RuntimeKind::of_file(file_name(program.binary)),
            "kata" => Some(RuntimeKind::Kata),
            kata if kata.starts_with("kata-") => Some(RuntimeKind::Kata),
            shim => RuntimeKind::of_file(shim),
        }
    }

    fn of_file(name: &str) -> Option<RuntimeKind> {
        let name = name.strip_suffix(".exe").unwrap_or(name);
        kind_in(&PROGRAMS, name)
    }

    /// The kind of a handler whose name is that of a runtime or of a known variant. `gvisor` and `kata-qemu` have a
    /// kind, and `crun-vm`, `krun` and `my-gvisor` have none.
    pub fn of_name(name: &str) -> Option<RuntimeKind> {
        let name = name.to_ascii_lowercase();
        let variant = name
            .split_once('-')
            .map(|(runtime, _)| runtime)
            .filter(|runtime| WITH_VARIANTS.contains(runtime));
        let name = variant.unwrap_or(&name);
        kind_in(&HANDLERS, name).or_else(|| RuntimeKind::of_file(name))
    }
}

fn kind_in(kinds: &[(&str, RuntimeKind)], name: &str) -> Option<RuntimeKind> {
    kinds
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, kind)| *kind)
}

/// The name of the shim that containerd starts for a runtime type, such as `kata` for `io.containerd.kata.v2`.
/// containerd reads only the last two parts.
fn shim_of_type(runtime_type: &str) -> Option<&str> {
    if runtime_type == "io.containerd.runtime.v1.linux" {
        return Some("runc");
    }
    let (name, version) = runtime_type.rsplit_once(".v")?;
    let is_version = !version.is_empty() && version.chars().all(|c| c.is_ascii_digit());
    name.rsplit('.').next().filter(|_| is_version)
}

fn file_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(runtime_type: &str, path: &str, binary: &str) -> Option<RuntimeKind> {
        RuntimeKind::of_program(Program {
            path,
            runtime_type,
            binary,
        })
    }

    #[test]
    fn the_kind_follows_from_the_program_that_runs() {
        let runc = "io.containerd.runc.v2";
        for (runtime_type, path, binary, expected) in [
            (runc, "", "", Some(RuntimeKind::Runc)),
            (runc, "", "/usr/bin/crun", Some(RuntimeKind::Crun)),
            (runc, "", "/opt/runsc", Some(RuntimeKind::Gvisor)),
            (
                runc,
                "",
                "/usr/bin/nvidia-container-runtime",
                Some(RuntimeKind::Runc),
            ),
            (
                runc,
                "",
                "nvidia-container-runtime.cdi",
                Some(RuntimeKind::Runc),
            ),
            (runc, "", "/usr/bin/sysbox-runc", None),
            (runc, "", "/usr/bin/youki", None),
            (
                runc,
                "/usr/local/bin/containerd-shim-runsc-v1",
                "",
                Some(RuntimeKind::Gvisor),
            ),
            (runc, "/opt/shims/my-shim", "", None),
            (
                "io.containerd.runtime.v1.linux",
                "",
                "/usr/bin/runc",
                Some(RuntimeKind::Runc),
            ),
            (
                "io.containerd.runtime.v1.linux",
                "",
                "",
                Some(RuntimeKind::Runc),
            ),
            ("io.containerd.runc.v1", "", "", Some(RuntimeKind::Runc)),
            ("io.containerd.runsc.v1", "", "", Some(RuntimeKind::Gvisor)),
            ("io.containerd.kata.v2", "", "", Some(RuntimeKind::Kata)),
            ("io.containerd.run.kata.v2", "", "", Some(RuntimeKind::Kata)),
            (
                "io.containerd.kata-qemu-coco-dev.v2",
                "",
                "",
                Some(RuntimeKind::Kata),
            ),
            (
                "/opt/kata/bin/containerd-shim-kata-v2",
                "",
                "",
                Some(RuntimeKind::Kata),
            ),
            ("/opt/bin/containerd-shim-spin-v2", "", "", None),
            ("io.containerd.runhcs.v1", "", "", Some(RuntimeKind::Runhcs)),
            ("io.containerd.spin.v2", "", "", None),
            ("io.containerd.wasmtime.v1", "", "", None),
            ("io.containerd.katana.v1", "", "", None),
            ("", "", "", None),
        ] {
            assert_eq!(
                kind(runtime_type, path, binary),
                expected,
                "{runtime_type} {path} {binary}"
            );
        }
    }

    #[test]
    fn the_kind_follows_from_the_name_of_a_runtime_or_of_a_known_variant() {
        for (name, kind) in [
            ("gvisor", RuntimeKind::Gvisor),
            ("runsc-kvm", RuntimeKind::Gvisor),
            ("kata-qemu", RuntimeKind::Kata),
            ("Crun", RuntimeKind::Crun),
            ("nvidia-container-runtime.cdi", RuntimeKind::Runc),
            ("runhcs-wcow-process", RuntimeKind::Runhcs),
        ] {
            assert_eq!(RuntimeKind::of_name(name), Some(kind), "{name}");
        }
        for name in [
            "sandboxed",
            "runcible",
            "sysbox-runc",
            "crun-vm",
            "crun-wasm",
            "krun",
            "urunc",
            "my-gvisor",
            "",
        ] {
            assert_eq!(RuntimeKind::of_name(name), None, "{name}");
        }
    }
}
