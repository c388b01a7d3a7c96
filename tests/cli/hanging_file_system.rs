//! A file system that does not answer: a FUSE mount whose server never reads. Only work on files of this mount may
//! wait.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use criswitch_cri::codec::cri::VersionRequest;

use crate::logged_daemon::LoggedDaemon;
use crate::main_file;
use crate::support::{Client, PATIENCE, Sim};
use crate::text;

/// A shell script that mounts a FUSE file system at `$0`. It keeps `/dev/fuse` open without reading it until the
/// script's standard input is closed.
const SERVE_NO_CALL: &str = r#"
    exec 3<>/dev/fuse
    mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0 none "$0" 2>&1 && echo mounted
    cat >&2
    umount -lf "$0"
"#;

/// A number of calls that together take longer than a read of the configuration.
const CALLS: usize = 1000;

struct Hung(Child);

impl Hung {
    /// Mounts the file system at `directory`. Prints a message and returns `None` if the mount fails.
    #[allow(clippy::print_stderr)]
    fn at(directory: &Path) -> Option<Hung> {
        let mut mount = Command::new("sh");
        mount.args(["-c", SERVE_NO_CALL]).arg(directory);
        mount.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut hung = Hung(mount.stderr(Stdio::null()).spawn().unwrap());
        let mut line = String::new();
        let stdout = hung.0.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        if line != "mounted\n" {
            eprintln!("not tried, FUSE cannot be mounted here: {line}");
            return None;
        }
        Some(hung)
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().ok();
    }
}

#[tokio::test]
async fn a_file_system_that_does_not_answer_delays_no_call_no_reload_and_no_shutdown() {
    let files = main_file("");
    let at = |name| files.main().with_file_name(name);
    let (listen, runc, hung) = (at("listen"), at("runc"), at("hung"));
    std::fs::create_dir(&hung).unwrap();
    Sim::new("runc").version("1.2.3").serve_on(&runc);
    let other = hung.join("other");
    let config = format!(
        "listen = {listen:?}\nstart_wait = '0s'\ndefault_handler = 'runc'\n
        [handlers]\nrunc = {runc:?}\nother = {other:?}"
    );
    std::fs::write(files.main(), &config).unwrap();
    let serve = crate::daemon(text(&files.main()));
    let shown = LoggedDaemon::start_as(serve);
    let client = Client::new(&listen);
    let version = async || {
        let version = client.runtime().version(VersionRequest::default()).await;
        assert_eq!(version.unwrap().into_inner().runtime_version, "1.2.3");
    };
    version().await;
    let Some(_mounted) = Hung::at(&hung) else {
        return;
    };
    for name in ["web-1", "web-2"] {
        client.run_pod("", name).await.unwrap();
        let of_other = tokio::time::timeout(PATIENCE, client.run_pod("other", name)).await;
        let error = of_other.unwrap().unwrap_err();
        assert!(error.message().contains("does not answer"), "{error}");
    }
    // A reload checks the sockets of all current backends, including a backend that the new configuration lacks.
    let rest = config.replace(&format!("other = {other:?}"), "");
    std::fs::write(files.main(), rest).unwrap();
    shown.signal("HUP");
    for _ in 0..CALLS {
        let answered = tokio::time::timeout(PATIENCE, version()).await;
        answered.expect("an answer during a reload");
    }
    client.run_pod("", "web-3").await.unwrap();
    shown.signal("TERM");
    let ends = tokio::task::spawn_blocking(|| shown.ends());
    tokio::time::timeout(PATIENCE, ends).await.unwrap().unwrap();
}
