//! The socket file. Only its owner may connect. criswitch never replaces the socket of another process, and removes its
//! own at the end.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use criswitch::server::{BindError, Listener};
use criswitch_config::address::Address;
use tempfile::TempDir;

use crate::support::PATIENCE;

/// The number of times that a thread reads the socket file's mode while the test creates and removes the file. So many
/// reads would find a moment in which other users could connect.
const ENOUGH_LOOKS: usize = 2000;

fn directory() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn bind(path: &Path) -> Result<Listener, BindError> {
    Listener::bind(&Address::parse(path.to_str().unwrap()).unwrap(), &[])
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// The error as an operator reads it, with its causes.
fn shown(failed: BindError) -> String {
    criswitch_cri::error_text::error_chain(&failed)
}

#[tokio::test]
async fn the_socket_is_accessible_to_its_owner_alone() {
    let directory = directory();
    let path = directory.path().join("c.sock");
    let _listener = bind(&path).unwrap();
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(&lock_of(&path)), 0o600);
}

fn lock_of(path: &Path) -> PathBuf {
    path.with_extension("sock.lock")
}

#[tokio::test]
async fn the_socket_is_never_accessible_to_others_while_it_is_created() {
    let directory = directory();
    let path = directory.path().join("c.sock");
    let looks = AtomicUsize::new(0);
    let end = Instant::now() + PATIENCE;
    std::thread::scope(|threads| {
        let watch = threads.spawn(|| {
            let mut seen = Vec::new();
            while looks.load(Relaxed) < ENOUGH_LOOKS && Instant::now() < end {
                if let Ok(found) = fs::symlink_metadata(&path) {
                    seen.push(found.mode() & 0o777);
                    seen.dedup();
                    looks.fetch_add(1, Relaxed);
                }
            }
            seen
        });
        while looks.load(Relaxed) < ENOUGH_LOOKS && Instant::now() < end {
            drop(bind(&path).unwrap());
        }
        assert_eq!(watch.join().unwrap(), [0o600]);
    });
}

#[tokio::test]
async fn missing_directories_are_created_for_the_owner_alone() {
    let directory = directory();
    let path = directory.path().join("run/criswitch/c.sock");
    let _listener = bind(&path).unwrap();
    assert_eq!(mode(&directory.path().join("run/criswitch")), 0o700);
    assert_eq!(mode(&directory.path().join("run")), 0o700);
}

#[tokio::test]
async fn an_existing_directory_keeps_its_mode() {
    let directory = directory();
    let run = directory.path().join("run");
    fs::create_dir(&run).unwrap();
    fs::set_permissions(&run, Permissions::from_mode(0o755)).unwrap();
    let _listener = bind(&run.join("c.sock")).unwrap();
    assert_eq!(mode(&run), 0o755);
}

#[tokio::test]
async fn a_directory_that_cannot_be_created_is_an_error_with_path_and_cause() {
    let directory = directory();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let failed = shown(bind(&file.join("c.sock")).unwrap_err());
    assert!(failed.contains(file.to_str().unwrap()), "{failed}");
    assert!(failed.contains("Not a directory") || failed.contains("File exists"));
}

#[tokio::test]
async fn a_socket_that_no_process_serves_is_replaced() {
    let directory = directory();
    let path = directory.path().join("c.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let _listener = bind(&path).unwrap();
    assert_eq!(mode(&path), 0o600);
    UnixStream::connect(&path).unwrap();
}

#[tokio::test]
async fn a_socket_that_another_process_serves_is_not_replaced() {
    let directory = directory();
    let path = directory.path().join("c.sock");
    let other = UnixListener::bind(&path).unwrap();
    let before = fs::symlink_metadata(&path).unwrap().ino();
    let failed = bind(&path).unwrap_err();
    assert!(matches!(failed, BindError::Live { .. }), "{failed}");
    for part in [path.to_str().unwrap(), "another process", "listen"] {
        assert!(failed.to_string().contains(part), "{failed}");
    }
    assert_eq!(fs::symlink_metadata(&path).unwrap().ino(), before);
    other.set_nonblocking(true).unwrap();
    // The listener has two connections: the connection by which criswitch checks for a server, and this client.
    UnixStream::connect(&path).unwrap();
    other.accept().unwrap();
    other.accept().unwrap();
}

#[tokio::test]
async fn a_second_criswitch_does_not_replace_the_socket_of_the_first() {
    let directory = directory();
    let path = directory.path().join("c.sock");
    let first = bind(&path).unwrap();
    let failed = bind(&path).unwrap_err();
    assert!(matches!(failed, BindError::Live { .. }), "{failed}");
    UnixStream::connect(&path).unwrap();
    drop(first);
    let _second = bind(&path).unwrap();
}

#[tokio::test]
async fn a_path_that_is_not_a_socket_is_left_unchanged() {
    let directory = directory();
    let file = directory.path().join("notes.txt");
    fs::write(&file, "important").unwrap();
    let folder = directory.path().join("folder");
    fs::create_dir(&folder).unwrap();
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for path in [&file, &folder, &link] {
        let failed = bind(path).unwrap_err();
        assert!(matches!(failed, BindError::NotASocket { .. }), "{failed}");
        assert!(failed.to_string().contains(path.to_str().unwrap()));
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "important");
    assert!(folder.is_dir() && link.is_symlink());
}

#[tokio::test]
async fn the_socket_is_removed_with_its_listener() {
    let directory = directory();
    let path = directory.path().join("c.sock");
    drop(bind(&path).unwrap());
    assert!(!path.exists());
}

#[tokio::test]
async fn a_leftover_lock_file_is_harmless() {
    let directory = directory();
    let path = directory.path().join("c.sock");
    fs::write(lock_of(&path), "").unwrap();
    drop(bind(&path).unwrap());
    // A lock file without write permission is harmless too.
    fs::set_permissions(lock_of(&path), Permissions::from_mode(0o400)).unwrap();
    let _listener = bind(&path).unwrap();
}

#[tokio::test]
async fn the_socket_of_another_process_at_the_same_path_is_not_removed() {
    let directory = directory();
    let path = directory.path().join("c.sock");
    let listener = bind(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    drop(listener);
    UnixStream::connect(&path).unwrap();
}
