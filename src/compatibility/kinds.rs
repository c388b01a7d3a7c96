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
pub enum Kind {
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
const PROGRAMS: [(&str, Kind); 10] = [
    ("runc", Kind::Runc),
    ("nvidia-container-runtime", Kind::Runc),
    ("nvidia-container-runtime.cdi", Kind::Runc),
    ("nvidia-container-runtime.experimental", Kind::Runc),
    ("nvidia-container-runtime.legacy", Kind::Runc),
    ("nvidia-container-runtime.real", Kind::Runc),
    ("crun", Kind::Crun),
    ("runsc", Kind::Gvisor),
    ("kata-runtime", Kind::Kata),
    ("runhcs", Kind::Runhcs),
];

/// Runtimes of no known kind. A handler whose name has one of these words has no kind by its name.
const OTHERS: [&str; 6] = ["krun", "lunatic", "slight", "spin", "sysbox", "youki"];

impl Kind {
    /// The name for people.
    pub fn title(self) -> &'static str {
        match self {
            Kind::Runc => "runc",
            Kind::Crun => "crun",
            Kind::Gvisor => "gVisor",
            Kind::Kata => "Kata Containers",
            Kind::Runhcs => "Windows containers",
        }
    }

    /// The kind of a handler that starts this program; `None` if the program is of no known kind.
    pub fn of_program(program: Program<'_>) -> Option<Kind> {
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
            "runc" if program.binary.is_empty() => Some(Kind::Runc),
            "runc" => Kind::of_file(file_name(program.binary)),
            "kata" => Some(Kind::Kata),
            kata if kata.starts_with("kata-") => Some(Kind::Kata),
            shim => Kind::of_file(shim),
        }
    }

    fn of_file(name: &str) -> Option<Kind> {
        let name = name.strip_suffix(".exe").unwrap_or(name);
        let mut programs = PROGRAMS.iter();
        programs.find_map(|(program, kind)| (*program == name).then_some(*kind))
    }

    /// The kind of a handler whose name has the name of a runtime as a word. `gvisor` and `my-kata-qemu` have a kind, and
    /// `sandboxed` and `sysbox-runc` have none.
    pub fn of_name(name: &str) -> Option<Kind> {
        let name = name.to_ascii_lowercase();
        let words = name.split(|letter: char| !letter.is_ascii_alphanumeric());
        let is_other = |word: &str| OTHERS.contains(&word) || word.starts_with("wasm");
        if words.clone().any(is_other) {
            return None;
        }
        words.into_iter().find_map(|word| match word {
            "gvisor" => Some(Kind::Gvisor),
            kata if kata.starts_with("kata") => Some(Kind::Kata),
            word => Kind::of_file(word),
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

    fn kind(runtime_type: &str, path: &str, binary: &str) -> Option<Kind> {
        Kind::of_program(Program {
            path,
            runtime_type,
            binary,
        })
    }

    #[test]
    fn the_kind_follows_from_the_program_that_runs() {
        let runc = "io.containerd.runc.v2";
        for (runtime_type, path, binary, expected) in [
            (runc, "", "", Some(Kind::Runc)),
            (runc, "", "/usr/bin/crun", Some(Kind::Crun)),
            (runc, "", "/opt/runsc", Some(Kind::Gvisor)),
            (
                runc,
                "",
                "/usr/bin/nvidia-container-runtime",
                Some(Kind::Runc),
            ),
            (runc, "", "nvidia-container-runtime.cdi", Some(Kind::Runc)),
            (runc, "", "/usr/bin/sysbox-runc", None),
            (runc, "", "/usr/bin/youki", None),
            (
                runc,
                "/usr/local/bin/containerd-shim-runsc-v1",
                "",
                Some(Kind::Gvisor),
            ),
            (runc, "/opt/shims/my-shim", "", None),
            (
                "io.containerd.runtime.v1.linux",
                "",
                "/usr/bin/runc",
                Some(Kind::Runc),
            ),
            ("io.containerd.runtime.v1.linux", "", "", Some(Kind::Runc)),
            ("io.containerd.runc.v1", "", "", Some(Kind::Runc)),
            ("io.containerd.runsc.v1", "", "", Some(Kind::Gvisor)),
            ("io.containerd.kata.v2", "", "", Some(Kind::Kata)),
            ("io.containerd.run.kata.v2", "", "", Some(Kind::Kata)),
            (
                "io.containerd.kata-qemu-coco-dev.v2",
                "",
                "",
                Some(Kind::Kata),
            ),
            (
                "/opt/kata/bin/containerd-shim-kata-v2",
                "",
                "",
                Some(Kind::Kata),
            ),
            ("/opt/bin/containerd-shim-spin-v2", "", "", None),
            ("io.containerd.runhcs.v1", "", "", Some(Kind::Runhcs)),
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
        assert_eq!(Kind::of_name("gvisor"), Some(Kind::Gvisor));
        assert_eq!(Kind::of_name("kata-qemu"), Some(Kind::Kata));
        assert_eq!(Kind::of_name("runhcs-wcow-process"), Some(Kind::Runhcs));
        assert_eq!(Kind::of_name("my-gvisor"), Some(Kind::Gvisor));
        for name in ["sandboxed", "runcible", "sysbox-runc", "crun-wasm", ""] {
            assert_eq!(Kind::of_name(name), None, "{name}");
        }
    }
}
