//! Objects that are not regular files, and files that are removed while criswitch reads them.

use std::fs;
#[cfg(unix)]
use std::os::unix::{fs::symlink, net::UnixListener};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use criswitch_config::{Config, Problems};
use expect_test::expect;
#[cfg(unix)]
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::RUNC;
use criswitch_testing::ConfigFiles;

/// Loads the file on another thread, so that a hanging load does not hang the test.
pub(crate) fn load_in_time(main: &Path) -> Result<Config, Problems> {
    let (done, outcome) = mpsc::channel();
    let main = main.to_owned();
    thread::spawn(move || {
        done.send(Config::load(&main)).ok();
    });
    outcome
        .recv_timeout(Duration::from_secs(300))
        .expect("it does not wait for anybody")
}

#[cfg(unix)] // Only tests for Unix use this function.
fn pipe(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

#[cfg(unix)] // Windows has no such files.
#[test]
fn pipes_devices_and_sockets_are_reported_without_waiting() {
    let files = ConfigFiles::of(&[("criswitch.toml", RUNC.as_bytes()), ("conf.d/.keep", b"")]);
    let at = |name: &str| files.main().with_file_name("conf.d").join(name);
    pipe(&at("pipe.toml"));
    symlink("pipe.toml", at("to-pipe.toml")).unwrap();
    symlink("/dev/zero", at("to-zero.toml")).unwrap();
    let _socket = UnixListener::bind(at("socket.toml")).unwrap();
    symlink("nowhere", at("to-nowhere.toml")).unwrap();
    symlink("to-itself.toml", at("to-itself.toml")).unwrap();
    let problems = load_in_time(&files.main()).unwrap_err();
    expect![[r#"
        conf.d/pipe.toml:1:1: cannot be read: it is a pipe, a device or a socket; try a readable file in its place
        conf.d/socket.toml:1:1: cannot be read: No such device or address (os error 6); try a readable file in its place
        conf.d/to-itself.toml:1:1: cannot be read: Too many levels of symbolic links (os error 40); try a readable file in its place
        conf.d/to-nowhere.toml:1:1: cannot be read: No such file or directory (os error 2); try removing the symbolic link, or creating its target
        conf.d/to-pipe.toml:1:1: cannot be read: it is a pipe, a device or a socket; try a readable file in its place
        conf.d/to-zero.toml:1:1: cannot be read: it is a pipe, a device or a socket; try a readable file in its place"#]].assert_eq(&files.stable(&problems.to_string()));
}

#[cfg(unix)] // Windows has no such files.
#[test]
fn a_main_file_that_is_a_pipe_is_not_waited_for() {
    let files = ConfigFiles::of(&[("conf.d/a.toml", b"shutdown_timeout = '1s'")]);
    pipe(&files.main());
    let problems = load_in_time(&files.main()).unwrap_err();
    assert!(problems.to_string().contains("it is a pipe"), "{problems}");
}

#[cfg(unix)] // On Windows a file of 1 TiB is not sparse.
#[test]
fn a_file_is_read_up_to_its_largest_size_and_not_beyond() {
    let padded = |bytes: usize| format!("{RUNC}#{}", "x".repeat(bytes - RUNC.len() - 1));
    let files = ConfigFiles::of(&[("criswitch.toml", padded(1 << 20).as_bytes())]);
    Config::load(&files.main()).unwrap();
    let more = padded((1 << 20) + 1);
    let files = ConfigFiles::of(&[
        ("criswitch.toml", RUNC.as_bytes()),
        ("conf.d/a.toml", more.as_bytes()),
    ]);
    // This file of 1 TiB does not fit into memory.
    let huge = fs::File::create(files.main().with_file_name("conf.d/b.toml")).unwrap();
    huge.set_len(1 << 40).unwrap();
    let problems = Config::load(&files.main()).unwrap_err();
    expect![[r#"
        conf.d/a.toml:1:1: cannot be read: it is larger than 1 MiB; try a smaller file in its place
        conf.d/b.toml:1:1: cannot be read: it is larger than 1 MiB; try a smaller file in its place"#]].assert_eq(&files.stable(&problems.to_string()));
}

#[test]
fn too_many_drop_ins_are_reported_with_their_directory() {
    let files = ConfigFiles::of(&[("criswitch.toml", RUNC.as_bytes()), ("conf.d/README", b"")]);
    let folder = files.main().with_file_name("conf.d");
    for number in 0..256 {
        fs::write(folder.join(format!("{number}.toml")), "").unwrap();
    }
    assert_eq!(Config::load(&files.main()).unwrap().files.len(), 257);
    fs::write(folder.join("one-more.toml"), "").unwrap();
    let problems = Config::load(&files.main()).unwrap_err();
    expect!["conf.d:1:1: cannot be read: it has more than 256 files *.toml; try fewer files, with more rows in each"]
        .assert_eq(&files.stable(&problems.to_string()));
}

#[test]
fn a_panic_while_reading_is_a_problem_with_a_reason() {
    let problems = Problems::of_reading(Path::new("/c.toml"), "task 7 panicked");
    expect!["/c.toml:1:1: cannot read the whole configuration: task 7 panicked; try `criswitch check`, and report this to the developers of criswitch"]
        .assert_eq(&problems.to_string());
}

#[cfg(unix)] // Windows does not replace an open file.
#[test]
fn a_drop_in_removed_during_a_read_is_ignored() {
    let files = ConfigFiles::of(&[("criswitch.toml", RUNC.as_bytes()), ("conf.d/.keep", b"")]);
    let folder = files.main().with_file_name("conf.d");
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                // One load may read two of these files, so each file has a different handler.
                for name in ["a", "b", "c"] {
                    let file = folder.join(format!("{name}.toml"));
                    let row = format!("[handlers]\n{name} = '/run/{name}.sock'");
                    fs::write(folder.join("new"), row).unwrap();
                    fs::rename(folder.join("new"), &file).unwrap();
                    fs::remove_file(file).unwrap();
                }
            }
        });
        let loads = (0..3000).map(|_| Config::load(&files.main()));
        // Collect all results before a failed load can panic: the other thread must be stopped first, or the scope
        // waits for it forever.
        let loads: Vec<_> = loads.collect();
        over.store(true, Ordering::Relaxed);
        let with: usize = loads
            .into_iter()
            .map(|load| {
                load.unwrap_or_else(|problems| panic!("{problems}"))
                    .table
                    .handlers
                    .len()
                    - 1
            })
            .sum();
        assert!(with > 0, "it was there at times");
    });
}
