//! `check` and `serve` report files and directories that other users may write.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use serde_json::Value as Json;

use crate::logged_daemon::LoggedDaemon;
use crate::support::ConfigFiles;
use crate::{run, text};

const OTHER: u32 = 1000;

/// A configuration with a drop-in, and a directory for the socket. Other users may not write to any of these files and
/// directories.
fn configured() -> ConfigFiles {
    let files = ConfigFiles::of(&[
        ("criswitch.toml", b""),
        ("conf.d/10-a.toml", b""),
        ("run/x", b""),
    ]);
    let listen = files.main().with_file_name("run/c.sock");
    let main = format!("listen = {listen:?}\ndefault_handler = 'a'\n[handlers]\na = '/run/a.sock'");
    std::fs::write(files.main(), main).unwrap();
    for (name, mode) in [
        ("criswitch.toml", 0o644),
        ("conf.d", 0o755),
        ("conf.d/10-a.toml", 0o644),
        ("run", 0o755),
    ] {
        set_mode(&files.main().with_file_name(name), mode);
    }
    files
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

fn notes(files: &ConfigFiles) -> Vec<String> {
    let checked = run(&["check", "--json", "--config", text(&files.main())]);
    assert_eq!(checked.code, 0, "{}", checked.stderr);
    let checked: Json = serde_json::from_str(&checked.stdout).unwrap();
    let notes = checked["notes"].as_array().unwrap().iter();
    notes
        .map(|note| note.as_str().unwrap().to_owned())
        .collect()
}

#[track_caller]
fn assert_one(notes: &[String], parts: &[&str]) {
    let [note] = notes else { panic!("{notes:#?}") };
    for part in parts {
        assert!(note.contains(part), "{note} lacks {part:?}");
    }
}

#[test]
fn files_that_only_root_may_write_are_not_reported() {
    assert_eq!(notes(&configured()), Vec::<String>::new());
}

#[test]
fn files_that_every_user_may_write_are_reported_with_mode_and_command() {
    for (name, mode, replaced) in [
        ("criswitch.toml", 0o646, "the configuration"),
        ("conf.d/10-a.toml", 0o646, "the configuration"),
        ("conf.d", 0o757, "the configuration"),
        ("run", 0o757, "the socket"),
    ] {
        let files = configured();
        let path = files.main().with_file_name(name);
        set_mode(&path, mode);
        let (shown, mode) = (text(&path), format!("(mode {mode:04o})"));
        let command = format!("try chmod o-w {shown}");
        assert_one(
            &notes(&files),
            &[shown, &mode, "every user", replaced, &command],
        );
    }
}

#[test]
fn directories_of_the_state_that_others_may_write_are_reported() {
    for key in ["runtime_dir", "state_dir"] {
        let files = configured();
        let state = files.main().with_file_name("state");
        std::fs::create_dir(&state).unwrap();
        set_mode(&state, 0o757);
        let main = std::fs::read_to_string(files.main()).unwrap();
        std::fs::write(files.main(), format!("{key} = {state:?}\n{main}")).unwrap();
        let shown = format!("{} may be written by every user", text(&state));
        assert_one(&notes(&files), &[&shown, "replace the state"]);
    }
}

#[test]
fn a_shared_directory_is_reported_as_unsafe_for_the_socket() {
    let files = configured();
    set_mode(&files.main().with_file_name("run"), 0o1777);
    assert_one(
        &notes(&files),
        &[
            "(mode 1777)",
            "replace the socket",
            "a directory that only criswitch uses",
        ],
    );
}

#[test]
fn files_of_another_user_or_group_are_reported() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let files = configured();
    chown(files.main(), Some(OTHER), None).unwrap();
    assert_one(&notes(&files), &["belongs to user 1000", "try chown root"]);
    let files = configured();
    let folder = files.main().with_file_name("conf.d");
    chown(&folder, None, Some(OTHER)).unwrap();
    set_mode(&folder, 0o775);
    assert_one(&notes(&files), &["group 1000 (mode 0775)", "try chmod g-w"]);
    // Group 0 counts as root.
    let files = configured();
    set_mode(&files.main().with_file_name("conf.d"), 0o775);
    assert_eq!(notes(&files), Vec::<String>::new());
}

#[test]
fn a_parent_directory_that_others_may_write_is_reported_unless_it_is_sticky() {
    let files = configured();
    let above = files.main().parent().unwrap().to_owned();
    let inner = above.join("inner");
    std::fs::create_dir(&inner).unwrap();
    let listen = inner.join("c.sock");
    let main = format!("listen = {listen:?}\ndefault_handler = 'a'\n[handlers]\na = '/run/a.sock'");
    let directory = above.join("run");
    std::fs::write(directory.join("c.toml"), main).unwrap();
    set_mode(&inner, 0o755);
    set_mode(&above, 0o757);
    let checked = run(&["check", "--config", text(&directory.join("c.toml"))]);
    let shown = checked
        .stdout
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    assert!(
        shown.contains(&format!("{} may be written by every user", text(&above))),
        "{shown}"
    );
    set_mode(&above, 0o1757);
    let checked = run(&["check", "--config", text(&directory.join("c.toml"))]);
    assert!(
        !checked.stdout.contains("may be written"),
        "{}",
        checked.stdout
    );
}

#[test]
fn the_directory_of_a_linked_drop_ins_target_is_reported() {
    let files = configured();
    let open = files.main().with_file_name("open");
    std::fs::create_dir(&open).unwrap();
    let drop_in = files.main().with_file_name("conf.d/10-a.toml");
    std::fs::rename(&drop_in, open.join("a.toml")).unwrap();
    std::os::unix::fs::symlink(open.join("a.toml"), &drop_in).unwrap();
    set_mode(&open, 0o757);
    let shown = format!("{} may be written by every user", text(&open));
    assert_one(&notes(&files), &[&shown, "replace the configuration"]);
}

#[test]
fn the_daemon_logs_files_that_others_may_write() {
    let files = configured();
    set_mode(&files.main(), 0o646);
    let mut shown = LoggedDaemon::start(&files);
    let line = shown.until("may be written by every user");
    assert!(line.contains(" WARN "), "{line}");
}
