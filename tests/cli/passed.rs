//! `criswitch serve` with a passed socket (`LISTEN_FDS`), or with a descriptor that is not the socket.

use std::fs::{self, File, Permissions};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;

use criswitch_cri::codec::cri::VersionRequest;

use crate::serve::{Daemon, one_backend};
use crate::support::{Client, ConfigFiles, Sim, passing};
use crate::text;

const BINARY: &str = env!("CARGO_BIN_EXE_criswitchd");

/// A `serve` command that gets this many copies of the descriptor, and this value of `LISTEN_FDS`.
fn serve_with(
    files: &ConfigFiles,
    descriptor: impl Into<OwnedFd>,
    (count, shown): (usize, &str),
) -> Command {
    let mut command = passing(BINARY, descriptor, count, shown);
    command.args(["--config", text(&files.main())]);
    command
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn a_passed_socket_is_served_and_left_unchanged() {
    let (files, listen, backend) = one_backend();
    Sim::new("runc").version("1.2.3").serve_on(&backend);
    let socket = UnixListener::bind(&listen).unwrap();
    fs::set_permissions(&listen, Permissions::from_mode(0o660)).unwrap();
    let mut client = Client::new(&listen).runtime();
    for _ in 0..2 {
        let passed = socket.try_clone().unwrap();
        let daemon = Daemon::start_as(serve_with(&files, passed, (1, "1"))).await;
        let version = client.version(VersionRequest::default()).await.unwrap();
        assert_eq!(version.into_inner().runtime_version, "1.2.3");
        let warned = daemon.said("open to users outside `allow_uids`");
        assert_eq!(warned, 1, "{:?}", daemon.before_serving);
        assert_eq!(daemon.ends_after("TERM").await, Some(0));
        assert_eq!(mode(&listen), 0o660);
    }
    assert!(!listen.with_extension("lock").exists());
    // The directory has four entries: the configuration, the two sockets and the saved state.
    assert_eq!(fs::read_dir(listen.parent().unwrap()).unwrap().count(), 4);
}

#[tokio::test]
async fn a_correct_mode_of_a_passed_socket_is_not_logged() {
    let (files, listen, _) = one_backend();
    let socket = UnixListener::bind(&listen).unwrap();
    fs::set_permissions(&listen, Permissions::from_mode(0o600)).unwrap();
    let daemon = Daemon::start_as(serve_with(&files, socket, (1, "1"))).await;
    assert_eq!(daemon.said("WARN"), 0, "{:?}", daemon.before_serving);
}

/// The ACL that `setfacl -m u:1:rw` sets.
const ACL: &[u8] =
    b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x06\0\x01\0\0\0\x04\0\0\0\xff\xff\xff\xff\
    \x10\0\x06\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";

#[tokio::test]
async fn a_passed_sockets_acl_is_compared_with_allow_uids() {
    for (allow_uids, warning) in [
        ("allow_uids = [1]", None),
        ("", Some("open to users outside `allow_uids`")),
        (
            "allow_uids = [1, 2]",
            Some("may reject users of `allow_uids`"),
        ),
    ] {
        let (files, listen, _) = one_backend();
        let config = fs::read_to_string(files.main()).unwrap();
        fs::write(files.main(), format!("{allow_uids}\n{config}")).unwrap();
        let socket = UnixListener::bind(&listen).unwrap();
        fs::set_permissions(&listen, Permissions::from_mode(0o600)).unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        let set = rustix::fs::setxattr(&listen, "system.posix_acl_access", ACL, flags);
        if set == Err(rustix::io::Errno::OPNOTSUPP) {
            return;
        }
        set.unwrap();
        assert_eq!(mode(&listen), 0o660);
        let daemon = Daemon::start_as(serve_with(&files, socket, (1, "1"))).await;
        let warnings = usize::from(warning.is_some());
        assert_eq!(daemon.said("WARN"), warnings, "{:?}", daemon.before_serving);
        assert_eq!(daemon.said(warning.unwrap_or("WARN")), warnings);
    }
}

#[tokio::test]
async fn a_passed_socket_without_its_file_is_reported() {
    let (files, listen, _) = one_backend();
    let socket = UnixListener::bind(&listen).unwrap();
    fs::remove_file(&listen).unwrap();
    let daemon = Daemon::start_as(serve_with(&files, socket, (1, "1"))).await;
    assert_eq!(daemon.said("clients cannot find the socket"), 1);
}

#[tokio::test]
async fn listen_may_have_another_path_to_the_passed_socket() {
    let (files, listen, _) = one_backend();
    let directory = listen.parent().unwrap();
    let link = directory.join("link");
    std::os::unix::fs::symlink(directory, &link).unwrap();
    let socket = UnixListener::bind(link.join(listen.file_name().unwrap())).unwrap();
    let daemon = Daemon::start_as(serve_with(&files, socket, (1, "1"))).await;
    assert_eq!(daemon.ends_after("TERM").await, Some(0));
}

#[tokio::test]
async fn sockets_passed_to_another_process_are_ignored() {
    let (files, listen, _) = one_backend();
    let mut command = crate::daemon(text(&files.main()));
    command.env("LISTEN_FDS", "1").env("LISTEN_PID", "1");
    let daemon = Daemon::start_as(command).await;
    assert!(listen.exists());
    assert_eq!(daemon.ends_after("TERM").await, Some(0));
    assert!(!listen.exists());
}

/// The error of a `serve` that gets descriptors it cannot use. `serve` must not create a socket instead.
fn refused(descriptor: impl Into<OwnedFd>, how: (usize, &str), listen: Option<&Path>) -> String {
    let (files, own, _) = one_backend();
    let output = serve_with(&files, descriptor, how).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(!own.exists());
    if let Some(passed) = listen {
        let both = format!("is {}, but `listen` is {}", passed.display(), own.display());
        assert!(said.contains(&both), "{said}");
    }
    said
}

#[test]
fn a_passed_descriptor_that_is_not_the_socket_is_rejected_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let one = (1, "1");

    let said = refused(File::open("/dev/null").unwrap(), one, None);
    assert!(said.contains("fd 3 is not a socket"), "{said}");

    let said = refused(File::open("/dev/null").unwrap(), (0, "1"), None);
    assert!(said.contains("Bad file descriptor"), "{said}");

    let datagrams = UnixDatagram::bind(at("datagrams")).unwrap();
    let said = refused(datagrams, one, None);
    assert!(said.contains("not a suitable stream socket"), "{said}");

    let said = refused(TcpListener::bind("127.0.0.1:0").unwrap(), one, None);
    assert!(said.contains("not a suitable stream socket"), "{said}");

    let (connection, _other) = UnixStream::pair().unwrap();
    let said = refused(connection, one, None);
    assert!(said.contains("does not listen"), "{said}");

    let other = UnixListener::bind(at("other")).unwrap();
    let said = refused(other, one, Some(&at("other")));
    assert!(said.contains("ListenStream="), "{said}");

    let two = UnixListener::bind(at("two")).unwrap();
    let said = refused(two, (2, "2"), None);
    assert!(said.contains("2 sockets were passed"), "{said}");

    let number = UnixListener::bind(at("number")).unwrap();
    let said = refused(number, (1, "many"), None);
    assert!(said.contains("LISTEN_FDS is \"many\""), "{said}");
}
