//! `criswitch node follow` beside a simulated systemd: what it runs on the node, what it reports, and when it is ready.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tempfile::TempDir;

use crate::support::PATIENCE;
use crate::support::Systemd;
use crate::{command, text};

const NODE: &str = "var/lib/criswitch/node";

/// A node, and a process that follows it.
pub(crate) struct Followed {
    root: TempDir,
    /// The commands that systemd has run, without their program.
    ran: Arc<Mutex<Vec<String>>>,
    process: Child,
}

impl Followed {
    /// Follows a node with a simulated systemd. `ends` has the name of a command, its exit status and its output. If a
    /// name occurs several times, successive runs of the command use its entries in order.
    pub(crate) fn start(mode: &str, ends: &[(&'static str, i32, &'static str)]) -> Followed {
        let root = tempfile::tempdir().unwrap();
        let ran = Arc::<Mutex<Vec<_>>>::default();
        let (seen, ends) = (ran.clone(), ends.to_vec());
        let runs = move |unit: &str, words: &[String]| {
            seen.lock()
                .unwrap()
                .push(format!("{unit}: {}", words[1..].join(" ")));
            let mut ends = ends.iter().filter(|(name, ..)| *name == words[2]);
            let mut count = seen
                .lock()
                .unwrap()
                .iter()
                .filter(|ran| ran.contains(&words[2]))
                .count();
            let mut last = ends.next().unwrap();
            // A command that runs more often than it has entries in `ends` repeats its last entry.
            while count > 1
                && let Some(next) = ends.next()
            {
                (last, count) = (next, count - 1);
            }
            (last.1, last.2.to_owned())
        };
        fs::create_dir_all(root.path().join(NODE)).unwrap();
        Systemd::serve(root.path(), Box::new(runs));
        fs::write(root.path().join("spec"), "default_handler = 'runc'\n").unwrap();
        let spec = root.path().join("spec");
        let mut command = follow(root.path(), &["--mode", mode, "--spec", text(&spec)]);
        let process = command.stdout(Stdio::piped()).spawn().unwrap();
        Followed { root, ran, process }
    }

    /// The exit status of the readiness probe, and what it prints.
    fn probe(&self) -> (Option<i32>, String) {
        let output = follow(self.root.path(), &["--ready"]).output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
        )
    }

    /// Waits until the probe prints a report that begins with `state`.
    pub(crate) fn until(&self, state: &str) -> (Option<i32>, String) {
        let start = Instant::now();
        loop {
            let probed = self.probe();
            if probed.1.starts_with(state) {
                return probed;
            }
            assert!(start.elapsed() < PATIENCE, "{probed:?}");
        }
    }

    fn ran(&self) -> Vec<String> {
        self.ran.lock().unwrap().clone()
    }

    /// Ends the process. Returns what it has printed.
    fn end(mut self) -> String {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let output = std::mem::replace(&mut self.process, Command::new("true").spawn().unwrap())
            .wait_with_output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

fn follow(root: &Path, more: &[&str]) -> Command {
    let message = root.join("message");
    let mut all = vec![
        "node",
        "follow",
        "--root",
        text(root),
        "--message",
        text(&message),
    ];
    all.extend(["--wait", "0s", "--period", "50ms"]);
    command(&[&all, more].concat())
}

#[test]
fn a_plan_changes_nothing_and_is_ready_whatever_the_verdict_is() {
    let plan = [(
        "plan",
        1,
        "unknown kubelet-version: kubelet: what\n\nrejected: 1 finding\n",
    )];
    let node = Followed::start("plan", &plan);
    let report = "planned\nunknown kubelet-version: kubelet: what\n\nrejected: 1 finding\n";
    let shown = "planned: unknown kubelet-version: kubelet: what; rejected: 1 finding\n";
    assert_eq!(node.until("planned"), (Some(0), shown.to_owned()));
    let program = node.root.path().join(NODE).join("criswitch");
    assert_eq!(
        program.metadata().unwrap().permissions().mode() & 0o777,
        0o755
    );
    let spec = fs::read_to_string(node.root.path().join(NODE).join("spec.toml"));
    assert_eq!(spec.unwrap(), "default_handler = 'runc'\n");
    let plan = "criswitch-look.service: node plan --spec /var/lib/criswitch/node/spec.toml";
    assert!(node.ran().iter().all(|ran| ran == plan), "{:?}", node.ran());
    // A report that does not change is printed once.
    assert_eq!(node.end(), report);
}

#[test]
fn an_install_is_ready_when_the_node_is_installed_and_not_ready_when_it_drifts() {
    let node = Followed::start(
        "install",
        &[
            ("plan", 2, "would change: 7 steps\n"),
            ("apply", 0, "start: done after 1.0 s\ninstalled\n"),
            ("status", 0, "installed 0.1.0\n"),
            (
                "status",
                1,
                "drifted 0.1.0\ndiffers: /etc/criswitch/criswitch.toml\n",
            ),
        ],
    );
    let drifted = "drifted 0.1.0\ndiffers: /etc/criswitch/criswitch.toml\n";
    let shown = "drifted 0.1.0: differs: /etc/criswitch/criswitch.toml\n";
    assert_eq!(node.until("drifted"), (Some(1), shown.to_owned()));
    let apply =
        "criswitch-apply.service: node apply --here --spec /var/lib/criswitch/node/spec.toml";
    let status = "criswitch-look.service: node status --ready";
    assert_eq!(node.ran()[1..3], [apply, status]);
    let printed = node.end();
    let expected = format!("start: done after 1.0 s\ninstalled\ninstalled 0.1.0\n{drifted}");
    assert_eq!(printed, expected);
}

#[test]
fn an_install_that_fails_is_not_tried_again_and_the_reason_is_shown() {
    let failed = "failed\nstep restart has failed: no kubelet runs\n";
    let node = Followed::start(
        "install",
        &[
            ("plan", 2, "would change: 7 steps\n"),
            ("apply", 1, "criswitch: step restart has failed\n"),
            ("status", 1, failed),
        ],
    );
    let shown = "failed: step restart has failed: no kubelet runs\n";
    assert_eq!(node.until("failed"), (Some(1), shown.to_owned()));
    wait_for(|| node.ran().len() > 5);
    let applies = node
        .ran()
        .iter()
        .filter(|ran| ran.contains("node apply"))
        .count();
    assert_eq!(applies, 1);
}

#[test]
fn a_node_that_is_rejected_is_planned_again_until_it_can_be_installed() {
    let node = Followed::start(
        "install",
        &[
            (
                "plan",
                1,
                "rejected young-pod: default/web: the pod is younger than 10 seconds\n",
            ),
            ("plan", 0, "ready: nothing would change\n"),
            ("apply", 0, "installed\n"),
            ("status", 0, "installed 0.1.0\n"),
        ],
    );
    assert_eq!(node.until("installed").0, Some(0));
    assert!(
        node.end()
            .starts_with("rejected\nrejected young-pod: default/web")
    );
}

#[test]
fn an_uninstall_waits_for_pods() {
    let node = Followed::start(
        "uninstall",
        &[
            ("uninstall", 1, "default/web: runs on /run/old.sock\n"),
            ("uninstall", 0, "undone\n"),
        ],
    );
    assert_eq!(
        node.until("uninstalled"),
        (Some(0), "uninstalled\n".to_owned())
    );
    assert!(node.end().starts_with("notUninstalled\ndefault/web"));
}

#[test]
fn a_node_without_systemd_is_not_ready() {
    let root = tempfile::tempdir().unwrap();
    let process = follow(root.path(), &["--mode", "plan"])
        .stdout(Stdio::null())
        .spawn();
    let ran = Arc::default();
    let process = process.unwrap();
    let node = Followed { root, ran, process };
    let (code, report) = node.until("unknown");
    assert_eq!(code, Some(1));
    assert!(
        report.contains("does this machine run systemd?"),
        "{report}"
    );
}

#[test]
fn a_mode_of_another_name_is_rejected_with_the_names_of_all() {
    let root = tempfile::tempdir().unwrap();
    let output = follow(root.path(), &["--mode", "check"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    let shown = String::from_utf8(output.stderr).unwrap();
    let names = "[possible values: plan, install, uninstall]";
    assert!(shown.contains(names), "{shown}");
}

fn wait_for(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE);
    }
}

#[test]
fn a_second_pod_with_another_specification_stops_the_first_one() {
    let ready = [
        ("plan", 0, "ready: nothing would change\n"),
        ("apply", 0, ""),
        ("status", 0, "installed\n"),
    ];
    for (mode, state, code) in [("plan", "planned", 0), ("install", "rejected", 1)] {
        let node = Followed::start(mode, &ready);
        node.until(if mode == "plan" {
            "planned: ready"
        } else {
            "installed"
        });
        let copy = node.root.path().join(NODE).join("spec.toml");
        fs::write(&copy, "default_handler = 'crun'\n").unwrap();
        let what = format!("{state}: rejected: a pod of another pool or release follows this node");
        assert_eq!(node.until(&what).0, Some(code));
        node.end();
    }
}
