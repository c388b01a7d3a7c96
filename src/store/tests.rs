//! Tests of starts: after an earlier start was killed at any moment, and with files that can be neither written nor
//! removed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use criswitch_platform::replace::hidden;

use super::*;

const SOCKETS: [&str; 3] = ["/run/a.sock", "/run/b.sock", "/run/c.sock"];

fn open(directory: &Path, boot: &str) -> (Store, Found) {
    let directories = Directories {
        runtime: directory.join("runtime"),
        state: directory.join("state"),
    };
    let boot = Boot {
        id: boot.to_owned(),
        machine: "machine".to_owned(),
    };
    Store::open(directories, boot)
}

fn saved(socket: &str) -> (Saved, SystemTime) {
    let saved = Saved {
        socket: socket.to_owned(),
        name: socket.to_owned(),
        joined: true,
        pods: Some(Bytes::from_static(b"pods")),
        ..Saved::default()
    };
    (saved, SystemTime::now())
}

fn all() -> Vec<(Saved, SystemTime)> {
    SOCKETS.map(saved).into()
}

/// Returns the sockets of the backends with saved pods.
fn saved_sockets(mut found: Found) -> Vec<&'static str> {
    let mut is_known = |socket: &&str| matches!(found.take(socket), LastKnown::Saved(saved, _) if saved.pods.is_some());
    let mut sockets = SOCKETS.to_vec();
    sockets.retain(|socket| is_known(socket));
    sockets
}

/// Makes writing at `path` fail.
fn block(path: &Path) {
    fs::create_dir_all(hidden(path).unwrap().join("in the way")).unwrap();
}

fn unblock(path: &Path) {
    fs::remove_dir_all(hidden(path).unwrap()).unwrap();
}

#[test]
fn a_start_that_is_killed_at_any_moment_forgets_no_backend() {
    for boot in ["first", "second"] {
        for files in 0..=SOCKETS.len() {
            let directory = tempfile::tempdir().unwrap();
            open(directory.path(), "first").0.begin(all());
            if boot == "second" {
                open(directory.path(), boot).0.begin(all());
            }
            for _ in 0..2 {
                let (killed, _) = open(directory.path(), boot);
                let kill = std::iter::once_with(|| panic!("killed"));
                let written = all().into_iter().take(files).chain(kill);
                catch_unwind(AssertUnwindSafe(|| killed.begin(written))).unwrap_err();
            }
            let (killed, found) = open(directory.path(), boot);
            assert_eq!(saved_sockets(found), SOCKETS, "{boot}: {files} files");
            block(&killed.register_path());
            killed.begin(all());
            let (_, found) = open(directory.path(), boot);
            assert_eq!(saved_sockets(found), SOCKETS, "{boot}: all files");
        }
    }
}

#[test]
fn the_first_backend_saved_after_a_start_keeps_the_others_registered() {
    let directory = tempfile::tempdir().unwrap();
    open(directory.path(), "boot").0.begin(all());
    let (store, _) = open(directory.path(), "boot");
    let (first, answered) = saved(SOCKETS[0]);
    store.save(first, answered).unwrap();
    drop(store);
    let (_, mut found) = open(directory.path(), "boot");
    for other in &SOCKETS[1..] {
        assert_ne!(found.take(other), LastKnown::New, "{other}");
    }
}

#[test]
fn a_register_that_cannot_be_written_makes_no_backend_new_or_empty() {
    for boot in ["first", "second"] {
        let directory = tempfile::tempdir().unwrap();
        open(directory.path(), "first").0.begin(all()[..1].to_vec());
        let (store, _) = open(directory.path(), boot);
        block(&store.register_path());
        store.begin(all());
        for (saved, answered) in all() {
            store.save(saved, answered).unwrap();
        }
        let (_, found) = open(directory.path(), boot);
        assert_eq!(saved_sockets(found), SOCKETS, "{boot}");
        // If the file of a backend cannot be written either, the next start treats the backend as unknown.
        block(&store.path(SOCKETS[2]));
        let (mut last, answered) = saved(SOCKETS[2]);
        last.version = Bytes::from_static(b"new");
        assert!(store.save(last, answered).unwrap().is_some());
        let (_, mut found) = open(directory.path(), boot);
        assert_eq!(found.take(SOCKETS[2]), LastKnown::Unknown, "{boot}");
    }
}

#[test]
fn a_backend_without_a_file_is_unknown_if_the_register_is_renamed() {
    let [_, without_file, _] = SOCKETS;
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = open(directory.path(), "boot");
    store.begin(all()[..2].to_vec());
    block(&store.register_path());
    block(&store.path(without_file));
    let (mut changed, answered) = saved(without_file);
    changed.version = Bytes::from_static(b"new");
    assert!(store.save(changed, answered).unwrap().is_some());
    let (new, answered) = saved(SOCKETS[2]);
    assert!(store.save(new, answered).unwrap().is_some());
    assert!(!store.register_path().exists());
    let (_, mut found) = open(directory.path(), "boot");
    assert!(found.sockets().contains(without_file));
    assert_eq!(found.take(without_file), LastKnown::Unknown);
    let (_, found) = open(directory.path(), "reboot");
    assert!(!found.sockets().contains(without_file));
}

#[test]
fn a_file_that_cannot_be_replaced_stays_if_only_statuses_are_new() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = open(directory.path(), "first");
    store.begin(all());
    let (mut away, answered) = saved(SOCKETS[0]);
    away.pod_statuses = vec![SavedStatus::default()];
    let take = || open(directory.path(), "first").1.take(SOCKETS[0]);
    block(&store.path(SOCKETS[0]));
    assert!(store.save(away.clone(), answered).unwrap().is_none());
    assert!(matches!(take(), LastKnown::Saved(..)));
    unblock(&store.path(SOCKETS[0]));
    assert!(store.save(away, answered).unwrap().is_none());
    block(&store.path(SOCKETS[0]));
    let (back, answered) = saved(SOCKETS[0]);
    assert!(store.save(back, answered).unwrap().is_some());
    assert_eq!(take(), LastKnown::Unknown, "old statuses do not stay");
}

#[test]
fn a_register_of_an_earlier_run_makes_no_backend_new_and_brings_none_back() {
    let [_, gone, new] = SOCKETS;
    for boot in ["first", "second"] {
        let directory = tempfile::tempdir().unwrap();
        let (store, _) = open(directory.path(), "first");
        store.begin(all()[..2].to_vec());
        let register = store.register_path();
        let old = fs::read(&register).unwrap();
        let (store, _) = open(directory.path(), boot);
        store.begin(all()[..1].to_vec());
        store.save(saved(new).0, saved(new).1).unwrap();
        fs::write(&register, &old).unwrap();
        let (_, mut found) = open(directory.path(), boot);
        let problem = found.problems.join("");
        assert!(problem.contains("earlier run"), "{boot}: {problem}");
        assert!(!found.sockets().contains(gone), "{boot}");
        assert_eq!(found.take(gone), LastKnown::Unknown, "{boot}");
        assert_eq!(saved_sockets(found), [SOCKETS[0], new], "{boot}");
        store.remove(new).unwrap();
        let (_, mut found) = open(directory.path(), boot);
        assert_eq!(found.take(new), LastKnown::Unknown, "{boot}");
    }
}

#[test]
fn an_earlier_register_of_the_same_run_makes_no_backend_new() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = open(directory.path(), "boot");
    store.begin(all()[..2].to_vec());
    let old = fs::read(store.register_path()).unwrap();
    store
        .save(saved(SOCKETS[2]).0, saved(SOCKETS[2]).1)
        .unwrap();
    fs::write(store.register_path(), &old).unwrap();
    let (_, found) = open(directory.path(), "boot");
    assert_eq!(saved_sockets(found), SOCKETS);
}

#[test]
fn a_run_after_a_lost_register_is_later_than_all_files() {
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        open(directory.path(), "boot").0.begin(all());
    }
    let (store, _) = open(directory.path(), "boot");
    let file = store.path(SOCKETS[0]);
    let old = fs::read(&file).unwrap();
    fs::write(store.register_path(), "nonsense").unwrap();
    open(directory.path(), "boot").0.begin(all());
    fs::write(&file, &old).unwrap();
    let (_, found) = open(directory.path(), "boot");
    assert_eq!(saved_sockets(found), SOCKETS[1..]);
}

#[test]
fn nothing_is_saved_while_a_register_of_another_boot_can_be_neither_written_nor_set_aside() {
    let directory = tempfile::tempdir().unwrap();
    open(directory.path(), "first").0.begin(all());
    let (store, _) = open(directory.path(), "second");
    let register = store.register_path();
    block(&register);
    fs::create_dir_all(aside(&register).join("in the way")).unwrap();
    store.begin(all());
    for (saved, answered) in all() {
        assert!(store.save(saved, answered).is_err());
    }
    unblock(&register);
    for (saved, answered) in all() {
        assert!(store.save(saved, answered).unwrap().is_none());
    }
    let (_, found) = open(directory.path(), "second");
    assert_eq!(saved_sockets(found), SOCKETS);
}

#[test]
fn only_a_start_that_finds_nothing_at_all_is_the_first() {
    type Damage = fn(&Path, &Path);
    let damages: [(Damage, LastKnown); 4] = [
        (|_, _| {}, LastKnown::First),
        (
            |register, _| fs::write(register, "nonsense").unwrap(),
            LastKnown::Unknown,
        ),
        (
            |register, _| fs::write(aside(register), "nonsense").unwrap(),
            LastKnown::Unknown,
        ),
        (
            |_, file| fs::write(file, "nonsense").unwrap(),
            LastKnown::Unknown,
        ),
    ];
    for (damage, expected) in damages {
        let directory = tempfile::tempdir().unwrap();
        let (store, _) = open(directory.path(), "boot");
        damage(&store.register_path(), &store.path(SOCKETS[0]));
        let (_, mut found) = open(directory.path(), "boot");
        assert_eq!(found.take(SOCKETS[1]), expected);
    }
}

#[test]
fn directories_are_locked_for_one_process() {
    let directory = tempfile::tempdir().unwrap();
    let directories = |runtime: &str, state: &str| Directories {
        runtime: directory.path().join(runtime),
        state: directory.path().join(state),
    };
    let lock = Lock::of(&directories("a", "b")).unwrap();
    for [runtime, state] in [["a", "b"], ["a", "c"], ["c", "b"], ["b", "b"]] {
        let refused = Lock::of(&directories(runtime, state)).unwrap_err();
        assert!(refused.to_string().contains("stop it"), "{refused}");
    }
    let other = Lock::of(&directories("c", "c")).unwrap();
    drop((lock, other));
    Lock::of(&directories("a", "b")).unwrap();
}

#[test]
fn missing_and_removed_directories_are_created() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("state"), "in the way").unwrap();
    let (store, found) = open(directory.path(), "boot");
    assert_eq!(found.problems.len(), 1, "{:?}", found.problems);
    store.begin(all());
    let save_first = || {
        let (first, answered) = saved(SOCKETS[0]);
        store.save(first, answered).unwrap()
    };
    assert!(save_first().is_some());
    fs::remove_file(directory.path().join("state")).unwrap();
    assert!(save_first().is_none());
    let (_, found) = open(directory.path(), "boot");
    assert_eq!(saved_sockets(found), SOCKETS);
}
