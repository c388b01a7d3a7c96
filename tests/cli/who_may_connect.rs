//! The users that may connect. Root starts a perl process as a different user; every Debian has perl.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use criswitch::limits::USER_CONNECTIONS;

use crate::logged_daemon::LoggedDaemon;
use crate::support::ConfigFiles;
use crate::{main_file, text};

/// A perl script that connects, sends its second argument, waits for a reply or the end of the connection, and prints
/// its pid and the number of bytes it read. `alarm` ends the script after 30 s.
const PEER: &str = r#"
    use IO::Socket::UNIX;
    alarm(30);
    my $socket = IO::Socket::UNIX->new(Peer => $ARGV[0]) or print("no"), exit;
    $SIG{PIPE} = "IGNORE";
    syswrite($socket, $ARGV[1]);
    my $read = sysread($socket, my $bytes, 9);
    print "$$ ", $read || 0;
"#;

/// A perl script that opens as many connections as its second argument says, prints "connected", and sends nothing
/// until its standard input ends. `alarm` ends the script after 30 s.
const CROWD: &str = r#"
    use IO::Socket::UNIX;
    alarm(30);
    my @crowd = map { IO::Socket::UNIX->new(Peer => $ARGV[0]) } 1 .. $ARGV[1];
    syswrite($_, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") && sysread($_, my $settings, 1) for @crowd;
    syswrite(STDOUT, "connected");
    sysread(STDIN, my $bytes, 1);
"#;

const BINARY: &str = env!("CARGO_BIN_EXE_criswitchd");

/// The first bytes of an HTTP/2 client.
const PREFACE: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const NOBODY: u32 = 65534;
const DAEMON: u32 = 1;

/// A criswitch without a reachable backend, in a directory that every user may enter.
fn switch(allow_uids: &str) -> (ConfigFiles, PathBuf) {
    let files = main_file("");
    let path = files.main();
    let directory = path.parent().unwrap();
    std::fs::set_permissions(directory, PermissionsExt::from_mode(0o711)).unwrap();
    let listen = directory.join("made/listen");
    let config = format!(
        "{allow_uids}\nlisten = {listen:?}\ndefault_handler = 'runc'\n[handlers]\nrunc = '/nonexistent'"
    );
    std::fs::write(path, config).unwrap();
    (files, listen)
}

/// Connects as `uid` and sends `words`. Returns the process, and whether criswitch sent anything; `None` if the
/// connection failed.
fn connect(uid: u32, socket: &Path, words: &str) -> Option<(String, bool)> {
    let mut perl = Command::new("perl");
    perl.args(["-e", PEER]).arg(socket).arg(words);
    perl.uid(uid).gid(uid);
    let output = perl.stderr(Stdio::inherit()).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let (pid, bytes) = said.split_once(' ')?;
    Some((pid.to_owned(), bytes != "0"))
}

/// A process of `uid` that keeps this many silent connections until its input is closed.
fn crowd(uid: u32, socket: &Path, connections: usize) -> Child {
    let mut perl = Command::new("perl");
    perl.args(["-e", CROWD]).arg(socket);
    perl.arg(connections.to_string()).uid(uid).gid(uid);
    perl.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut crowd = perl.spawn().unwrap();
    let mut connected = [0; "connected".len()];
    let said = crowd.stdout.as_mut().unwrap().read_exact(&mut connected);
    said.unwrap();
    crowd
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

/// Whether the tests run as root, which can start processes of other users. Prints a message if they do not.
#[allow(clippy::print_stderr)]
pub(crate) fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("not root: no other user was tried");
    }
    root
}

#[test]
fn only_root_can_connect_unless_others_are_allowed() {
    let (files, listen) = switch("");
    let _daemon = LoggedDaemon::start(&files);
    assert_eq!(mode(&listen), 0o600);
    assert_eq!(mode(listen.parent().unwrap()), 0o700);
    if is_root() {
        assert!(connect(0, &listen, PREFACE).unwrap().1);
        assert_eq!(connect(NOBODY, &listen, PREFACE), None);
    }
}

/// The kernel must reject other users itself: a connection that it lets through takes a slot in the accept queue.
#[test]
fn the_kernel_lets_an_allowed_user_connect_and_no_other() {
    let (files, listen) = switch("allow_uids = [1, 0, 1]");
    let shown = LoggedDaemon::start(&files);
    assert_eq!(mode(listen.parent().unwrap()), 0o711);
    // The mode shows the mask of the ACL as the group's bits.
    assert_eq!(mode(&listen), 0o660);
    if !is_root() {
        return;
    }
    for allowed in [0, DAEMON] {
        assert!(connect(allowed, &listen, PREFACE).unwrap().1, "{allowed}");
    }
    assert_eq!(connect(NOBODY, &listen, PREFACE), None);
    let log = shown.end();
    assert!(
        !log.contains("a client is rejected") && !log.contains("ACL"),
        "{log}"
    );
}

#[test]
fn without_acls_every_user_can_connect_and_a_warning_explains_the_risk() {
    let (files, listen) = switch("allow_uids = [1]");
    let made = listen.parent().unwrap();
    std::fs::create_dir(made).unwrap();
    // If the test may not mount a file system, it checks nothing.
    let mount = "mount -t ramfs ramfs \"$0\" && exec \"$@\"";
    let mut unshared = Command::new("unshare");
    unshared.args(["--mount", "sh", "-c", mount]).arg(made);
    let tried = Command::new("unshare")
        .args(["--mount", "sh", "-c", mount])
        .args([made, Path::new("true")])
        .status();
    if !is_root() || !tried.is_ok_and(|tried| tried.success()) {
        return;
    }
    unshared.args([BINARY, "--config", text(&files.main())]);
    let shown = LoggedDaemon::start_as(unshared);
    let inside = format!("/proc/{}/root{}", shown.pid(), listen.display());
    assert_eq!(mode(Path::new(&inside)), 0o666);
    assert!(connect(0, Path::new(&inside), PREFACE).unwrap().1);
    let shown = shown.end();
    for words in ["cannot set an ACL", "EAGAIN", "tmpfs"] {
        assert!(shown.contains(words), "{shown}");
    }
}

#[test]
fn a_user_outside_allow_uids_is_rejected_before_the_first_byte() {
    let (files, listen) = switch("allow_uids = [1]");
    let mut shown = LoggedDaemon::start(&files);
    if !is_root() {
        return;
    }
    std::fs::set_permissions(&listen, PermissionsExt::from_mode(0o666)).unwrap();
    assert!(connect(DAEMON, &listen, PREFACE).unwrap().1);
    // The client sends nothing, so criswitch must reject it before it reads.
    let (pid, served) = connect(NOBODY, &listen, "").unwrap();
    assert!(!served);
    let line = shown.until("a client is rejected");
    for word in [
        &format!("uid={NOBODY}"),
        &format!("pid={pid}"),
        "allow_uids",
    ] {
        assert!(line.contains(word), "{line} lacks {word}");
    }
}

#[test]
fn connections_of_one_user_block_neither_root_nor_a_third_user() {
    let (files, listen) = switch("allow_uids = [1, 65534]");
    let mut shown = LoggedDaemon::start(&files);
    if !is_root() {
        return;
    }
    let mut crowd = crowd(DAEMON, &listen, USER_CONNECTIONS);
    // The new client gets the place of a connection without a call.
    assert!(connect(DAEMON, &listen, PREFACE).unwrap().1);
    let line = shown.until("a client's connection is closed");
    for word in [
        &format!("uid={DAEMON} pid={}", crowd.id()),
        "it has had no call for longest",
    ] {
        assert!(line.contains(word), "{line} lacks {word}");
    }
    for uid in [0, NOBODY] {
        assert!(connect(uid, &listen, PREFACE).unwrap().1, "{uid}");
    }
    // `wait` first closes the input of the process, which then ends.
    crowd.wait().unwrap();
}
