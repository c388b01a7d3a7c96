//! Simulated machines for tests of `criswitch check --node`: directories with the files that the command reads.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use expect_test::Expect;
use tempfile::TempDir;

use crate::{Outcome, main_file, run, text};

pub(crate) const TABLE: &str = "
    default_handler = 'runc'
    [handlers]
    runc = '/run/containerd/containerd.sock'
    kata = '/run/kata/containerd.sock'";

pub(crate) const KUBELET: &str = "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: systemd
containerRuntimeEndpoint: unix:///run/criswitch/criswitch.sock
";

/// The files of a machine, below a temporary directory.
pub(crate) struct Machine {
    root: TempDir,
}

impl Machine {
    /// A machine without files.
    pub(crate) fn bare() -> Machine {
        let root = tempfile::tempdir().unwrap();
        Machine { root }
    }

    /// A machine that is set up correctly for [`TABLE`].
    pub(crate) fn good() -> Machine {
        Machine::bare()
            .running(
                "812",
                &[
                    "/usr/bin/kubelet",
                    "--v=2",
                    "--config",
                    "/var/lib/kubelet/config.yaml",
                ],
            )
            .with("/proc/7/cmdline", "/usr/bin/containerd\0")
            .with(
                "/proc/self/cmdline",
                "/usr/bin/kubelet\0--container-runtime-endpoint=x\0",
            )
            .with("/var/lib/kubelet/config.yaml", KUBELET)
            .with(
                "/etc/crictl.yaml",
                "runtime-endpoint: unix:///run/criswitch/criswitch.sock\n",
            )
            .with_socket("/run/containerd/containerd.sock")
            .with_socket("/run/kata/containerd.sock")
    }

    /// The real path of a file. Creates the file's directories.
    pub(crate) fn at(&self, path: &str) -> PathBuf {
        let path = self.root.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    /// Writes a file. A process that gets a command line also gets a start, after all files were written.
    pub(crate) fn with(self, path: &str, text: &str) -> Machine {
        fs::write(self.at(path), text).unwrap();
        let process = path.strip_suffix("/cmdline");
        if let Some(process) = process.filter(|it| it.starts_with("/proc/")) {
            let stat = format!("1 (program) S {}0", "0 ".repeat(19));
            fs::write(self.at(&format!("{process}/stat")), stat).unwrap();
            fs::write(self.at("/proc/stat"), "btime 4000000000\n").unwrap();
        }
        self
    }

    pub(crate) fn running(self, pid: &str, words: &[&str]) -> Machine {
        self.with(
            &format!("/proc/{pid}/cmdline"),
            &format!("{}\0", words.join("\0")),
        )
    }

    /// Creates a socket file, which stays after the listener has closed.
    pub(crate) fn with_socket(self, path: &str) -> Machine {
        UnixListener::bind(self.at(path)).unwrap();
        self
    }

    pub(crate) fn with_directory(self, path: &str, mode: u32) -> Machine {
        let path = self.at(path);
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        self
    }

    pub(crate) fn without(self, path: &str) -> Machine {
        let path = self.at(path);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
        self
    }

    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    pub(crate) fn check(&self, table: &str, arguments: &[&str]) -> Outcome {
        let files = main_file(table);
        let path = files.main();
        let check = [
            "check",
            "--node",
            "--root",
            text(self.root()),
            "--config",
            text(&path),
        ];
        let outcome = run(&[&check[..], arguments].concat());
        assert_eq!(outcome.stderr, "");
        outcome
    }

    /// Checks the output from the table of settings on, and the exit code: 1 if a problem is printed.
    #[track_caller]
    pub(crate) fn shows(&self, table: &str, expected: Expect) {
        let outcome = self.check(table, &[]);
        let (_, shown) = outcome.stdout.split_once("NODE").unwrap();
        expected.assert_eq(&format!("NODE{shown}"));
        let is_good = shown.ends_with("\nconfiguration is valid\n");
        assert_eq!(outcome.code, i32::from(!is_good), "{shown}");
    }

    #[track_caller]
    pub(crate) fn lacks_nothing(&self, table: &str) {
        let outcome = self.check(table, &[]);
        assert_eq!(outcome.code, 0, "{}", outcome.stdout);
    }

    /// Checks the problems that are printed below the settings, and that the exit code is 1.
    #[track_caller]
    pub(crate) fn lacks(&self, table: &str, expected: Expect) {
        let outcome = self.check(table, &[]);
        let (_, shown) = outcome.stdout.split_once("NODE").unwrap();
        let (_, findings) = shown.split_once("\n\n").unwrap();
        expected.assert_eq(findings);
        assert_eq!(outcome.code, 1);
    }
}
