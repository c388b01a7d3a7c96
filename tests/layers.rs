//! The dependencies between the crates, and the order of the code map in `src/lib.rs`: each module uses only modules
//! that the code map lists before it.

#![allow(
    clippy::unwrap_used,
    reason = "clippy allows it in test functions only"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The modules of the library in the order of the code map.
fn layers() -> Vec<String> {
    let library = fs::read_to_string(source().join("lib.rs")).unwrap();
    let (_, map) = library.split_once("//! # Code map").unwrap();
    let (map, code) = map.split_once("//! # What always holds").unwrap();
    let rows = map.lines().filter_map(|line| line.strip_prefix("//! - "));
    let names = rows.filter_map(|row| row.split('`').nth(1));
    let layers: Vec<String> = names.map(str::to_owned).collect();
    let mut modules: Vec<&str> = code
        .lines()
        .filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod "))
        .map(|name| name.trim_end_matches(';'))
        .collect();
    let mut sorted = layers.clone();
    modules.sort_unstable();
    sorted.sort_unstable();
    assert_eq!(sorted, modules, "the code map and the modules of lib.rs");
    layers
}

fn source() -> PathBuf {
    root().join("src")
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The crates, and the crates that each of them uses.
const CRATES: [(&str, &[&str]); 8] = [
    ("advice", &["config", "cri"]),
    ("client", &["config", "cri", "platform"]),
    ("config", &["cri", "platform"]),
    ("cri", &[]),
    (
        "ctl",
        &[
            "advice", "client", "config", "cri", "node", "platform", "version",
        ],
    ),
    ("node", &["client", "config", "cri", "platform"]),
    ("platform", &[]),
    ("version", &[]),
];

/// The crates of the tests, and the crates that each of them uses.
const TESTS: [(&str, &[&str]); 2] = [
    ("rig", &["criswitch", "config", "platform", "testing"]),
    ("testing", &["cri", "platform"]),
];

#[test]
fn each_crate_uses_only_the_crates_that_its_arrow_shows() {
    for (name, uses) in CRATES.into_iter().chain(TESTS) {
        let manifest = root().join("crates").join(name).join("Cargo.toml");
        let manifest = fs::read_to_string(manifest).unwrap();
        let lines = manifest
            .lines()
            .filter(|line| line.starts_with("criswitch"));
        let used: Vec<_> = lines
            .filter_map(|line| {
                line.trim_start_matches("criswitch-")
                    .split(['.', ' '])
                    .next()
            })
            .collect();
        assert_eq!(used, uses, "{name}");
    }
    let tools = ["advice", "client", "ctl", "node"].map(|tool| format!("criswitch_{tool}"));
    let parts = layers().into_iter().chain(["main".into(), "serve".into()]);
    for (path, code) in parts.flat_map(|part| read(files(&part))) {
        assert!(
            !tools.iter().any(|tool| code.contains(tool.as_str())),
            "{path}"
        );
    }
}

/// The files of a module and of its submodules.
fn files(module: &str) -> Vec<PathBuf> {
    let file = source().join(format!("{module}.rs"));
    [vec![file], below(source().join(module))].concat()
}

/// The files in a folder and in the folders below it.
fn below(folder: PathBuf) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut directories = vec![folder];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path)
            } else {
                files.push(path)
            }
        }
    }
    files
}

/// The modules of the library that a text names, as in `use crate::gate::Readable`.
fn used(text: &str) -> impl Iterator<Item = &str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let paths = text.split("crate::").skip(1);
    paths.map(move |path| path.split(|c| !is_name(c)).next().unwrap_or_default())
}

#[test]
fn each_module_uses_only_modules_above_it() {
    let layers = layers();
    for (layer, module) in layers.iter().enumerate() {
        for file in files(module) {
            let text = fs::read_to_string(&file).unwrap();
            // A unit test may use any module.
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            if file.ends_with("tests.rs") {
                continue;
            }
            for used in used(text) {
                let place = layers.iter().position(|name| name == used);
                let is_above = place.is_some_and(|place| place <= layer);
                assert!(is_above, "{}: `{used}` is below `{module}`", file.display());
            }
        }
    }
}

/// The files of the daemon that may read a row's columns: the code that makes a call's target, lesson and plan.
const READS_ROWS: [&str; 3] = ["call/route.rs", "call/lesson.rs", "call/plan.rs"];

#[test]
fn only_the_route_lesson_and_plan_of_a_call_match_on_goes_and_then() {
    for module in layers() {
        for file in files(&module) {
            let path = file.strip_prefix(source()).unwrap();
            if READS_ROWS.iter().any(|reads| path.starts_with(reads)) {
                continue;
            }
            let text = fs::read_to_string(&file).unwrap();
            for column in ["Goes::", "Then::"] {
                assert!(!text.contains(column), "{}: `{column}`", path.display());
            }
        }
    }
}

/// The crates of the commands, which are not part of the library.
const COMMANDS: [&str; 2] = ["ctl", "node"];

/// The files of the crates of the commands.
fn commands() -> Vec<PathBuf> {
    let crates = COMMANDS.into_iter();
    let files = crates.flat_map(|name| below(root().join("crates").join(name).join("src")));
    files.collect()
}

/// The files of the library and of the crates below it, with their texts without unit tests. A path is below `source()`
/// or below the folder of the crates.
fn library() -> Vec<(String, String)> {
    let modules = layers().into_iter();
    let library = modules.flat_map(|module| read(files(&module)));
    let crates = CRATES
        .map(|(name, _)| name)
        .into_iter()
        .filter(|name| !COMMANDS.contains(name));
    let crates = crates.map(|name| below(root().join("crates").join(name).join("src")));
    library.chain(crates.flat_map(read)).collect()
}

/// These files with their texts without unit tests.
fn read(files: Vec<PathBuf>) -> Vec<(String, String)> {
    let files = files.into_iter().filter(|file| !file.ends_with("tests.rs"));
    let read = |file: PathBuf| {
        let text = fs::read_to_string(&file).unwrap();
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let path = file
            .strip_prefix(source())
            .or_else(|_| file.strip_prefix(root().join("crates")));
        (path.unwrap().display().to_string(), text.to_owned())
    };
    files.map(read).collect()
}

/// The files whose path and text satisfy `is`.
fn holding(is: impl Fn(&(String, String)) -> bool) -> Vec<String> {
    let holding = library().into_iter().filter(is);
    holding.map(|(path, _)| path).collect()
}

/// The files that contain any of these texts.
fn having(texts: &[&str]) -> Vec<String> {
    holding(|(_, code)| texts.iter().any(|text| code.contains(text)))
}

#[test]
fn the_path_of_a_call_spawns_no_task() {
    let path = ["dispatch", "call", "server/layers"];
    let spawning = having(&["spawn(", "JoinSet"]);
    let on_path = |file: &&String| path.iter().any(|module| file.starts_with(module));
    assert_eq!(spawning.iter().find(on_path), None);
    assert!(spawning.contains(&"server/connection.rs".to_owned()));
}

#[test]
fn one_module_connects_and_one_module_creates_statuses() {
    let connects = ["net::connect(", "UnixStream::connect", "TcpStream::connect"];
    assert_eq!(having(&connects), ["platform/src/linux/connect.rs"]);
    let dials = having(&["connect::dial(", "criswitch_platform::dial("]);
    let expected = [
        "backend/connect.rs",
        "client/src/connection.rs",
        "platform/src/lib.rs",
    ];
    assert_eq!(dials, expected);
    let creates = |(_, code): &(String, String)| {
        let mut calls = code
            .split("Status::")
            .zip(code.split("Status::").skip(1))
            .filter(|(before, _)| !before.ends_with(char::is_alphanumeric));
        calls.any(|(_, call)| {
            let name = call.split('(').next().unwrap_or_default();
            let is_name = name.chars().all(|c| c.is_lowercase() || c == '_');
            is_name && !name.is_empty() && name != "ok"
        })
    };
    assert_eq!(holding(creates), ["errors.rs"]);
}

/// Only the gate creates messages that go to every client, and edits of such messages go through the gate too. Only the
/// edit functions of the codec create an `EditedMessage`, so no other file can put bytes into a message.
#[test]
fn only_the_gate_makes_readable_messages_and_only_the_codec_edits_them() {
    let makes = |(_, code): &(String, String)| {
        let code = code.replace("-> Readable {", "");
        code.contains("Readable {") || code.contains("Readable(")
    };
    assert_eq!(holding(makes), ["gate.rs"]);
    let codec = "cri/src/codec/protobuf.rs";
    assert_eq!(having(&["Editable for "]), ["gate.rs", codec]);
    assert_eq!(having(&["EditedMessage(", "Edited("]), [codec]);
}

#[test]
fn a_command_runs_no_program_without_a_time_limit() {
    for file in commands() {
        let text = fs::read_to_string(&file).unwrap();
        let waits = text.contains("Command::new(") && text.contains(".output()");
        assert!(!waits, "{}: use `program::within`", file.display());
    }
}

#[test]
fn modules_that_decide_do_no_io() {
    let decides = [
        "cri/",
        "ownership",
        "call/route.rs",
        "call/plan.rs",
        "call/lesson.rs",
        "dispatch/fanout/merge.rs",
    ];
    let io = [
        "std::fs",
        "std::net",
        "tokio::net",
        "tokio::fs",
        "rustix::",
        "platform::",
    ];
    let files = having(&io);
    let deciding = |file: &&String| decides.iter().any(|module| file.starts_with(module));
    assert_eq!(files.iter().find(deciding), None);
    assert!(files.contains(&"backend/connect.rs".to_owned()));
}

#[test]
fn only_the_platform_differs_between_operating_systems() {
    let of_one_system = having(&[
        "cfg(unix)",
        "cfg(target_os",
        "cfg(windows)",
        "std::os::",
        "rustix::",
    ]);
    let elsewhere = |file: &&String| !file.starts_with("platform/");
    assert_eq!(of_one_system.iter().find(elsewhere), None);
    assert!(of_one_system.contains(&"platform/src/lib.rs".to_owned()));
}

#[test]
fn unsafe_code_is_forbidden() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let manifest = fs::read_to_string(manifest).unwrap();
    assert!(manifest.contains("unsafe_code = \"forbid\""));
}

#[test]
fn the_tests_of_each_invariant_exist() {
    let library = fs::read_to_string(source().join("lib.rs")).unwrap();
    let (_, invariants) = library.split_once("//! # What always holds").unwrap();
    let (invariants, _) = invariants.split_once("\n\nuse ").unwrap();
    let is_numbered = |line: &&str| {
        line.split_once(". ")
            .is_some_and(|(head, _)| head.starts_with("//! ") && head.ends_with(char::is_numeric))
    };
    // The names of an invariant's tests are between `Tests:` and the next number.
    let lists = invariants.split("//!    Tests: ").skip(1);
    let lists: Vec<&str> = lists
        .map(|list| list.split(". ").next().unwrap_or_default())
        .collect();
    assert_eq!(lists.len(), invariants.lines().filter(is_numbered).count());
    let tests: String = files("../tests/switch")
        .into_iter()
        .chain(files("../tests/cli"))
        .chain(["layers", "readme"].map(|test| source().join(format!("../tests/{test}.rs"))))
        .filter_map(|file| fs::read_to_string(file).ok())
        .collect();
    let names = lists
        .iter()
        .flat_map(|list| list.split('`').skip(1).step_by(2));
    for name in names {
        assert!(
            tests.contains(&format!("fn {name}()")),
            "no test is called {name}"
        );
    }
}

#[test]
fn a_path_names_its_module() {
    let text = "use crate::gate::{self, Readable};\nlet status = crate::errors::no_backend();";
    assert_eq!(used(text).collect::<Vec<_>>(), ["gate", "errors"]);
}

#[test]
fn each_type_has_a_name_of_its_own() {
    let mut places = BTreeMap::<String, BTreeSet<String>>::new();
    let mut source = library();
    source.extend(
        ["serve", "main"]
            .into_iter()
            .flat_map(|module| read(files(module))),
    );
    source.extend(read(commands()));
    for (path, code) in source {
        for line in code.lines() {
            let is_visibility = |word: &&str| word.starts_with("pub") || word.ends_with(')');
            let mut words = line.split(' ').skip_while(is_visibility);
            let is_type = |word| ["struct", "enum", "trait", "type", "union"].contains(&word);
            if words.next().is_some_and(is_type) {
                let name = words.next().unwrap().split(|c: char| !c.is_alphanumeric());
                let paths = places.entry(name.take(1).collect()).or_default();
                // Each operating system may have a type of the same name, so both paths count as one.
                paths.insert(path.replace("windows", "linux"));
            }
        }
    }
    assert!(places.len() > 300, "{} names", places.len());
    places.retain(|_, paths| paths.len() > 1);
    assert_eq!(places, BTreeMap::new());
}
