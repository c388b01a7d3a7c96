//! Reloads while the configuration files are missing, unreadable, invalid or not regular files, and concurrent reloads.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::geteuid;
use tonic::Code;

use crate::reload::{Files, Node};
use crate::support::PATIENCE;
use crate::{run, text};

/// Makes the configuration files unusable.
type Odd = fn(&Files);

fn pipe(files: &Files, name: &str) {
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, files.path(name), FileType::Fifo, mode, 0).unwrap();
}

fn link(files: &Files, to: &str, name: &str) {
    symlink(to, files.path(name)).unwrap();
}

/// A part of the reported problem, and the change of the files that causes this problem.
const ODD: [(&str, Odd); 13] = [
    ("No such file", |files| {
        fs::remove_file(files.main()).unwrap();
    }),
    ("Is a directory", |files| {
        fs::remove_file(files.main()).unwrap();
        fs::create_dir(files.main()).unwrap();
    }),
    ("it is a pipe", |files| {
        fs::remove_file(files.main()).unwrap();
        pipe(files, "criswitch.toml");
    }),
    ("not UTF-8", |files| {
        fs::write(files.main(), b"default_handler = \"\xff\"").unwrap();
    }),
    ("\"default_handler\" is missing", |files| {
        fs::write(files.main(), "").unwrap();
    }),
    ("Permission denied", |files| {
        fs::set_permissions(files.main(), Permissions::from_mode(0o0)).unwrap();
    }),
    ("Permission denied", |files| {
        fs::set_permissions(files.path("conf.d"), Permissions::from_mode(0o0)).unwrap();
    }),
    ("Not a directory", |files| {
        fs::remove_dir_all(files.path("conf.d")).unwrap();
        files.write("conf.d", "");
    }),
    ("Too many levels of symbolic links", |files| {
        fs::remove_dir_all(files.path("conf.d")).unwrap();
        link(files, "conf.d", "conf.d");
    }),
    ("it is a pipe", |files| pipe(files, "conf.d/a.toml")),
    ("it is a pipe, a device", |files| {
        link(files, "/dev/zero", "conf.d/a.toml");
    }),
    ("try removing the symbolic link", |files| {
        link(files, "nowhere", "conf.d/a.toml");
    }),
    ("it is larger than 1 MiB", |files| {
        let huge = fs::File::create(files.path("conf.d/a.toml")).unwrap();
        huge.set_len(1 << 40).unwrap();
    }),
];

/// Restores valid configuration files.
fn set_right(node: &Node) {
    for name in ["criswitch.toml", "conf.d"] {
        let path = node.files.path(name);
        fs::set_permissions(&path, Permissions::from_mode(0o700)).ok();
        let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
    }
    node.write("", "");
    node.files.write("conf.d/b.toml", "");
}

/// Starts the daemon as the shipped unit does: as root without the capabilities to read every file.
fn without_capabilities(serve: Command) -> Command {
    if !geteuid().is_root() {
        return serve;
    }
    let mut bounded = Command::new("setpriv");
    bounded.arg("--bounding-set=-dac_override,-dac_read_search");
    bounded.arg(serve.get_program()).args(serve.get_args());
    bounded
}

/// Waits until this many reloads were rejected, and returns the problems of the last one.
pub(crate) async fn rejected(node: &Node, count: usize) -> String {
    let reached = async {
        loop {
            let reloads = &node.info().await["reloads"];
            if reloads["rejected"] == count {
                let problems = reloads["last"]["problems"].as_array().unwrap();
                let texts: Vec<_> = problems
                    .iter()
                    .flat_map(|it| [&it["what"], &it["try"]])
                    .filter_map(|text| text.as_str())
                    .collect();
                return texts.join("; try ");
            }
        }
    };
    let reached = tokio::time::timeout(PATIENCE, reached).await;
    reached.unwrap_or_else(|_| panic!("{count} reloads were never rejected"))
}

#[tokio::test]
async fn odd_objects_in_place_of_the_files_change_nothing_and_the_next_reload_succeeds() {
    let node = Node::start_as("", without_capabilities).await;
    let before = node.info().await;
    for (count, (shown, odd)) in ODD.into_iter().enumerate() {
        set_right(&node);
        odd(&node.files);
        node.hang_up().await;
        let problems = rejected(&node, count + 1).await;
        assert!(problems.contains(shown), "{shown}: {problems}");
        let now = node.info().await;
        for key in ["/defaultHandler", "/handlers", "/configuration/hash"] {
            assert_eq!(now.pointer(key), before.pointer(key), "{shown}");
        }
    }
    set_right(&node);
    node.write("", &node.kata());
    assert_eq!(node.reload().await.code, 0);
    node.until("kata", Code::Ok).await;
    node.end().await;
}

#[tokio::test]
async fn concurrent_reloads_apply_the_files() {
    let node = Node::start("").await;
    for row in [node.kata(), String::new()].iter().cycle().take(6) {
        node.write("", row);
        let all = tokio::join!(node.reload(), node.reload(), node.reload());
        for outcome in [all.0, all.1, all.2] {
            assert_eq!(outcome.code, 0, "{}", outcome.stderr);
        }
        let handlers = &node.info().await["handlers"];
        let expected = if row.is_empty() { 1 } else { 2 };
        assert_eq!(handlers.as_array().unwrap().len(), expected, "{handlers}");
    }
    let reloads = &node.info().await["reloads"];
    assert_eq!(reloads["begun"], reloads["count"]);
    assert_eq!(reloads["rejected"], 0);
    node.end().await;
}

#[tokio::test]
async fn a_drop_in_whose_name_is_not_utf_8_is_shown() {
    let node = Node::start("").await;
    let name = OsStr::from_bytes(b"conf.d/90-\xff.toml");
    fs::create_dir_all(node.files.path("conf.d")).unwrap();
    let drop_in = format!("[handlers]\n{}", node.kata());
    fs::write(node.files.path("").join(name), drop_in).unwrap();
    assert_eq!(node.reload().await.code, 0);
    let files = &node.info().await["configuration"]["files"];
    assert!(
        files[1].as_str().unwrap().ends_with("90-\u{fffd}.toml"),
        "{files}"
    );
    let check = run(&["check", "--json", "--config", text(&node.files.main())]);
    assert!(
        check.stdout.contains("90-\u{fffd}.toml"),
        "{}",
        check.stdout
    );
    node.end().await;
}
