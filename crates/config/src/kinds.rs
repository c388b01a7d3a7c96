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

/// Runtimes of no known kind. A handler whose name has one of these words has no kind by its name.
const OTHERS: [&str; 6] = ["krun", "lunatic", "slight", "spin", "sysbox", "youki"];

impl RuntimeKind {
    /// The name for people.
    pub fn title(self) -> &'static str {
        match self {
            RuntimeKind::Runc => "runc",
            RuntimeKind::Crun => "crun",
            RuntimeKind::Gvisor => "gVisor",
            RuntimeKind::Kata => "Kata Containers",
            RuntimeKind::Runhcs => "Windows containers",
        }
    }

    /// The kind of a handler that starts this program; `None` if the program is of no known kind.
    pub fn of_program(program: Program<'_>) -> Option<RuntimeKind> {
        let by_path = [program.path, program.runtime_type].into_iter();
        let shim = by_path.filter(|text| text.contains('/')).find_map(|path| {
            let (name, _) = file_name(path)
                .strip_prefix("containerd-shim-")?
                .rsplit_once("-v")?;
            Some(name)
        });
        let shim = match (shim, program.path) {
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
        let mut programs = PROGRAMS.iter();
        programs.find_map(|(program, kind)| (*program == name).then_some(*kind))
    }

    /// The kind of a handler whose name has the name of a runtime as a word. `gvisor` and `my-kata-qemu` have a kind, and
    /// `sandboxed` and `sysbox-runc` have none.
    pub fn of_name(name: &str) -> Option<RuntimeKind> {
        let name = name.to_ascii_lowercase();
        let words = name.split(|letter: char| !letter.is_ascii_alphanumeric());
        let is_other = |word: &str| OTHERS.contains(&word) || word.starts_with("wasm");
        if words.clone().any(is_other) {
            return None;
        }
        words.into_iter().find_map(|word| match word {
            "gvisor" => Some(RuntimeKind::Gvisor),
            kata if kata.starts_with("kata") => Some(RuntimeKind::Kata),
            word => RuntimeKind::of_file(word),
        })
    }
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
    fn the_kind_follows_from_a_word_of_a_name_that_names_no_other_runtime() {
        assert_eq!(RuntimeKind::of_name("gvisor"), Some(RuntimeKind::Gvisor));
        assert_eq!(RuntimeKind::of_name("kata-qemu"), Some(RuntimeKind::Kata));
        assert_eq!(
            RuntimeKind::of_name("runhcs-wcow-process"),
            Some(RuntimeKind::Runhcs)
        );
        assert_eq!(RuntimeKind::of_name("my-gvisor"), Some(RuntimeKind::Gvisor));
        for name in ["sandboxed", "runcible", "sysbox-runc", "crun-wasm", ""] {
            assert_eq!(RuntimeKind::of_name(name), None, "{name}");
        }
    }
}
