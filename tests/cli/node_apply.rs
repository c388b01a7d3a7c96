//! `criswitch node apply`, `undo` and `status` on mounted images: all changes or none, whatever is interrupted.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use criswitch_config::labels_file;
use expect_test::expect;
use rustix::fs::XattrFlags;
use serde_json::Value;

use crate::machine::{KUBELET, Machine};
use crate::node_plan::tree;
use crate::{Outcome, command, main_file, run, text};

pub(crate) const CONFIG: &str = "/var/lib/kubelet/config.yaml";
pub(crate) const INSTANCE_CONFIG: &str = "/var/lib/kubelet/instance-config.yaml";
pub(crate) const CONTAINERD_KEY: &str =
    "containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n";
pub(crate) const CRISWITCH_KEY: &str =
    "containerRuntimeEndpoint: unix:///run/criswitch/criswitch.sock\n";
/// A specification that accepts the findings about facts that an image cannot show.
pub(crate) const SPEC: &str = "default_handler = 'runc'
[handlers]
runc = '/run/containerd/containerd.sock'
[node]
accept = ['backend', 'cgroup-driver', 'kubelet-version']
";
/// The labels that the daemon has written.
const LABELS: &str = "/etc/kubernetes/node-feature-discovery/features.d/criswitch";
/// The directory of the journal, whose content differs in each run.
const JOURNAL: &str = "/var/lib/criswitch";

/// An image with a kubelet of kubeadm 1.34. A file of the kubelet has an unusual mode, time and extended attribute.
pub(crate) fn image() -> Machine {
    let machine = Machine::bare()
        .with("/usr/lib/systemd/systemd", "")
        .with(
            "/etc/systemd/system/kubelet.service",
            &format!("[Service]\nExecStart=/usr/bin/kubelet --config={CONFIG}\n"),
        )
        .with(CONFIG, &KUBELET.replace(CRISWITCH_KEY, CONTAINERD_KEY))
        .with(INSTANCE_CONFIG, CONTAINERD_KEY)
        .with("/programs/criswitch", "#!/bin/sh\n")
        .with("/programs/criswitchd", "#!/bin/sh\n");
    let config = machine.at(CONFIG);
    rustix::fs::setxattr(&config, "user.note", b"kept", XattrFlags::empty()).ok();
    fs::set_permissions(&config, fs::Permissions::from_mode(0o600)).unwrap();
    let time = UNIX_EPOCH + Duration::new(1_000_000_000, 5);
    File::options()
        .append(true)
        .open(config)
        .unwrap()
        .set_modified(time)
        .unwrap();
    machine
}

/// Every path except the journal, with its kind, mode, owner, content and extended attributes. With `with_times`, files
/// also have the time of their last write.
pub(crate) fn state(root: &Path, with_times: bool) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut paths = vec![root.to_owned()];
    while let Some(path) = paths.pop() {
        let name = format!("/{}", text(path.strip_prefix(root).unwrap()));
        if name.starts_with(JOURNAL) {
            continue;
        }
        let about = path.symlink_metadata().unwrap();
        let time = (with_times && about.is_file()).then(|| (about.mtime(), about.mtime_nsec()));
        let content = if about.is_symlink() {
            fs::read_link(&path)
                .unwrap()
                .into_os_string()
                .into_encoded_bytes()
        } else {
            fs::read(&path).unwrap_or_default()
        };
        let mut note = [0; 64];
        let note = rustix::fs::lgetxattr(&path, "user.note", &mut note)
            .ok()
            .map(|_| note);
        let content = String::from_utf8_lossy(&content).into_owned();
        let kind = (about.mode(), about.uid(), about.gid());
        found.insert(name, format!("{kind:?} {time:?} {note:?} {content:?}"));
        if about.is_dir() {
            paths.extend(
                fs::read_dir(path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
    }
    found
}

/// Runs a command of `criswitch node` on a machine. The exit status is -1 if the process was killed.
pub(crate) fn node(machine: &Machine, name: &str, arguments: &[&str]) -> Outcome {
    let files = main_file(SPEC);
    let (program, spec) = (machine.at("/programs"), files.main());
    let source = ["--spec", text(&spec), "--programs", text(&program)];
    let source = if name == "apply" { &source[..] } else { &[] };
    let all = [
        &["node", name, "--root", text(machine.root())],
        source,
        arguments,
    ]
    .concat();
    let output = command(&all).output().unwrap();
    Outcome {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

#[track_caller]
pub(crate) fn succeeds(machine: &Machine, name: &str) -> Outcome {
    let outcome = node(machine, name, &[]);
    assert_eq!(
        (outcome.code, &*outcome.stderr),
        (0, ""),
        "{}",
        outcome.stdout
    );
    outcome
}

/// `{"state": ...}` of a machine.
pub(crate) fn status(machine: &Machine) -> Value {
    let outcome = node(machine, "status", &["--json"]);
    serde_json::from_str(&outcome.stdout).unwrap()
}

#[test]
fn links_of_a_configuration_lead_to_files_of_the_image() {
    let (handlers, node_table) = SPEC.split_once("[node]").unwrap();
    let machine = image()
        .with("/opt/criswitch.toml", handlers)
        .with("/opt/kata.toml", "[handlers]\nkata = '/run/kata.sock'\n");
    for (link, target) in [
        ("criswitch.toml", "criswitch"),
        ("conf.d/kata.toml", "kata"),
    ] {
        let link = machine.at(&format!("/etc/criswitch/{link}"));
        symlink(format!("/opt/{target}.toml"), link).unwrap();
    }
    let files = main_file(&format!("[node]{node_table}"));
    let (program, spec) = (machine.at("/programs"), files.main());
    let root = text(machine.root());
    let source = ["--spec", text(&spec), "--programs", text(&program)];
    let plan = [&["node", "plan", "--root", root][..], &source].concat();
    let output = command(&plan).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(2), "{shown}");
    assert!(
        shown.contains("backend \"kata\" (/run/kata.sock)"),
        "{shown}"
    );
}

#[test]
fn a_file_that_other_users_may_write_is_made_safe() {
    let unit = "/etc/systemd/system/criswitch.socket";
    let machine = image().with(unit, "");
    let mode = || fs::metadata(machine.at(unit)).unwrap().mode() & 0o7777;
    fs::set_permissions(machine.at(unit), fs::Permissions::from_mode(0o666)).unwrap();
    let files = main_file(&SPEC.replace("'backend'", "'backend', 'existing-file'"));
    let (program, spec) = (machine.at("/programs"), files.main());
    let root = text(machine.root());
    let source = ["--spec", text(&spec), "--programs", text(&program)];
    let apply = [&["node", "apply", "--root", root][..], &source].concat();
    assert!(command(&apply).status().unwrap().success());
    assert_eq!(mode(), 0o644);
    let installed = tree(machine.root());
    assert!(command(&apply).status().unwrap().success());
    assert_eq!(tree(machine.root()), installed);
    succeeds(&machine, "undo");
    assert_eq!(mode(), 0o666);
}

#[test]
fn an_image_is_set_up_and_every_byte_comes_back() {
    let machine = image();
    let before = state(machine.root(), true);
    assert_eq!(status(&machine)["state"], "notInstalled");
    succeeds(&machine, "apply");
    let after = state(machine.root(), false);
    let changed = after.iter().filter(|(path, now)| {
        before
            .get(*path)
            .is_none_or(|old| !old.ends_with(now.rsplit_once("None").unwrap().1))
    });
    let changed: Vec<_> = changed.map(|(path, _)| path.as_str()).collect();
    expect![[r#"
        /etc/criswitch
        /etc/criswitch/criswitch.toml
        /etc/systemd/system/criswitch.service
        /etc/systemd/system/criswitch.socket
        /etc/systemd/system/kubelet.service.d
        /etc/systemd/system/kubelet.service.d/10-criswitch.conf
        /etc/systemd/system/multi-user.target.wants
        /etc/systemd/system/multi-user.target.wants/criswitch.service
        /etc/systemd/system/sockets.target.wants
        /etc/systemd/system/sockets.target.wants/criswitch.socket
        /opt
        /opt/criswitch
        /opt/criswitch/0.1.0
        /opt/criswitch/0.1.0/criswitch
        /opt/criswitch/0.1.0/criswitchd
        /opt/criswitch/current
        /var/lib/kubelet/config.yaml
        /var/lib/kubelet/instance-config.yaml"#]]
    .assert_eq(&changed.join("\n"));
    assert_eq!(
        fs::read_to_string(machine.at(INSTANCE_CONFIG)).unwrap(),
        CRISWITCH_KEY
    );
    let about = fs::metadata(machine.at(CONFIG)).unwrap();
    assert_eq!(about.mode() & 0o7777, 0o600);
    assert_eq!(node(&machine, "status", &["--ready"]).code, 0);
    // A second apply changes nothing.
    let installed = tree(machine.root());
    let again = succeeds(&machine, "apply");
    assert!(
        again.stdout.ends_with("ready: nothing would change\n"),
        "{}",
        again.stdout
    );
    assert_eq!(tree(machine.root()), installed);
    succeeds(&machine, "undo");
    assert_eq!(state(machine.root(), true), before);
    assert_eq!(status(&machine)["state"], "undone");
    assert_eq!(node(&machine, "status", &["--ready"]).code, 1);
    assert_eq!(succeeds(&machine, "undo").stdout, "nothing to undo\n");
    // The undo has removed the saved contents of files.
    let left = tree(&machine.at(JOURNAL).join("node"));
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn an_uninstall_undoes_each_apply_and_leaves_nothing() {
    let machine = image();
    let before = state(machine.root(), true);
    succeeds(&machine, "apply");
    let machine = machine.with("/programs/criswitch", "#!/bin/sh\n# newer\n");
    succeeds(&machine, "apply");
    // Add the output files of a unit, and the copies that a pod makes. The uninstall must remove them too.
    let machine = ["apply.log", "look.log", "criswitch", "spec.toml"]
        .iter()
        .fold(machine, |machine, name| {
            machine.with(&format!("{JOURNAL}/node/{name}"), "")
        })
        .with("/programs/criswitch", "#!/bin/sh\n");
    let is_back = |end: &str| {
        let shown = succeeds(&machine, "uninstall").stdout;
        assert!(shown.ends_with(end), "{shown}");
        assert_eq!(state(machine.root(), true).len(), before.len());
        assert!(!machine.root().join(&JOURNAL[1..]).exists());
        assert_eq!(status(&machine)["state"], "notInstalled");
    };
    is_back("\nundone\n");
    is_back("nothing to undo\n");
    succeeds(&machine, "apply");
    succeeds(&machine, "undo");
    is_back("nothing to undo\n");
    // An apply that has ended before its changes leaves the files of the recover unit.
    node(&machine, "apply", &["--end-at", "10"]);
    is_back("nothing to undo\n");
}

#[test]
fn the_number_of_a_specification_that_changes_nothing_counts() {
    let machine = image();
    let (root, program) = (text(machine.root()), machine.at("/programs"));
    for (generation, code) in [(3, 0), (4, 0), (3, 1), (4, 0)] {
        let files = main_file(&format!("{SPEC}generation = {generation}\n"));
        let (spec, program) = (files.main(), text(&program));
        let apply = ["node", "apply", "--root", root, "--programs", program];
        let outcome = run(&[&apply[..], &["--spec", text(&spec)]].concat());
        assert_eq!(outcome.code, code, "{generation}: {}", outcome.stdout);
    }
    assert_eq!(status(&machine)["generation"], 4);
    succeeds(&machine, "undo");
    assert_eq!(status(&machine)["generation"], 3);
    succeeds(&machine, "undo");
    assert_eq!(status(&machine)["state"], "undone");
}

#[test]
fn an_apply_or_undo_that_ends_at_any_moment_leaves_a_machine_as_before_or_as_after() {
    let machine = image();
    let before = state(machine.root(), true);
    succeeds(&machine, "apply");
    let after = state(machine.root(), false);
    succeeds(&machine, "undo");
    let cut = |name: &str, moment: usize| {
        let outcome = node(&machine, name, &["--end-at", &moment.to_string()]);
        assert!([0, -1].contains(&outcome.code), "{}", outcome.stderr);
        outcome.code == 0
    };
    let ended = (0..).find(|moment| {
        let is_whole = cut("apply", *moment);
        cut("undo", *moment);
        succeeds(&machine, "undo");
        assert_eq!(state(machine.root(), true), before, "moment {moment}");
        is_whole
    });
    assert!(ended > Some(40), "{ended:?}");
    (0..).find(|moment| {
        succeeds(&machine, "apply");
        let is_whole = cut("undo", *moment);
        succeeds(&machine, "undo");
        assert_eq!(state(machine.root(), true), before, "moment {moment}");
        is_whole
    });
    cut("apply", 40);
    assert_eq!(status(&machine)["state"], "interrupted");
    assert_eq!(node(&machine, "status", &["--ready"]).code, 1);
    succeeds(&machine, "apply");
    assert_eq!(state(machine.root(), false), after);
}

#[test]
fn an_undo_on_a_mounted_disk_removes_the_labels_of_the_node() {
    let machine = image().with(LABELS, labels_file::HEAD);
    let key = format!("labels_file = '{LABELS}'\n{SPEC}");
    let files = main_file(&key);
    let (root, program) = (text(machine.root()), machine.at("/programs"));
    let apply = [
        "node",
        "apply",
        "--root",
        root,
        "--programs",
        text(&program),
    ];
    let applied = run(&[&apply[..], &["--spec", text(&files.main())]].concat());
    assert_eq!(applied.code, 0, "{}", applied.stdout);
    assert!(machine.at(LABELS).exists());
    succeeds(&machine, "undo");
    assert!(!machine.at(LABELS).exists());
}

#[test]
fn the_undo_of_an_interrupted_apply_extends_the_time_that_systemd_gives_it() {
    let machine = image();
    node(&machine, "apply", &["--end-at", "40"]);
    let socket = machine.at("/notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    let mut undo = command(&[
        "node",
        "undo",
        "--interrupted",
        "--root",
        text(machine.root()),
    ]);
    undo.env("NOTIFY_SOCKET", &socket).output().unwrap();
    let mut message = [0; 64];
    manager.set_nonblocking(true).unwrap();
    let length = manager.recv(&mut message).unwrap();
    assert_eq!(&message[..length], b"EXTEND_TIMEOUT_USEC=86400000000\n");
    assert_eq!(status(&machine)["state"], "failed");
}

#[test]
fn an_undo_on_a_mounted_disk_stays_on_the_disk_and_removes_the_state() {
    let machine = image();
    let before = state(machine.root(), true);
    succeeds(&machine, "apply");
    // After the apply, the kubelet's directory moves to another place, with an absolute link to it.
    let [kubelet, moved] = ["/var/lib/kubelet", "/data/kubelet"].map(|path| machine.at(path));
    fs::rename(&kubelet, &moved).unwrap();
    symlink("/data/kubelet", &kubelet).unwrap();
    let machine = machine.with("/var/lib/criswitch/backends.register", "");
    succeeds(&machine, "undo");
    assert!(!machine.at("/var/lib/criswitch/backends.register").exists());
    fs::remove_file(&kubelet).unwrap();
    fs::rename(&moved, &kubelet).unwrap();
    fs::remove_dir(machine.at("/data/x").parent().unwrap()).unwrap();
    assert_eq!(state(machine.root(), true), before);
}

#[test]
fn a_record_that_is_written_in_part_spoils_no_other() {
    let machine = image();
    succeeds(&machine, "apply");
    succeeds(&machine, "undo");
    let journal = machine.at("/var/lib/criswitch/node/journal");
    let directory = journal.parent().unwrap();
    let before = state(machine.root(), true);
    // The test allows no file to be larger than 400 kB, so the next record of the journal does not fit.
    let limit = 400 << 10;
    let record = b"\"complete\"\n";
    let mut text_of_journal = fs::read(&journal).unwrap();
    while text_of_journal.len() + 2 * record.len() < limit {
        text_of_journal.extend(record);
    }
    fs::write(&journal, &text_of_journal).unwrap();
    let files = main_file(SPEC);
    let (program, spec) = (machine.at("/programs"), files.main());
    let output = Command::new("bash")
        .args(["-c", "trap '' XFSZ; ulimit -f 400; exec \"$@\"", "-"])
        .args([env!("CARGO_BIN_EXE_criswitch"), "node", "apply", "--root"])
        .args([
            text(machine.root()),
            "--programs",
            text(&program),
            "--spec",
            text(&spec),
        ])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let shown = String::from_utf8(output.stderr).unwrap();
    assert!(
        shown.contains("cannot write the journal: File too large"),
        "{shown}"
    );
    assert_eq!(fs::read(&journal).unwrap(), text_of_journal);
    assert_eq!(state(machine.root(), true), before);
    // The failed apply has removed the contents that it saved before the error.
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.retain(|name| name != "journal");
    assert_eq!(names, Vec::<std::ffi::OsString>::new());
    succeeds(&machine, "apply");
}

#[test]
fn a_link_that_leads_out_of_the_image_is_rejected() {
    let (outside, machine) = (tempfile::tempdir().unwrap(), image());
    for directory in ["/opt", "/etc/criswitch", "/var/lib/criswitch"] {
        symlink(outside.path(), machine.at(directory)).unwrap();
    }
    let outcome = node(&machine, "apply", &[]);
    assert_eq!(outcome.code, 1);
    let finding = outcome
        .stdout
        .lines()
        .find(|line| line.starts_with("rejected "))
        .unwrap();
    expect!["rejected outside: /opt/criswitch/0.1.0/criswitch, /opt/criswitch/0.1.0/criswitchd, /opt/criswitch/current, /etc/criswitch/criswitch.toml, /var/lib/criswitch/node/journal: a symbolic link points to a directory outside of the machine's root, or a file is in the way"].assert_eq(finding);
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    let machine = image().with("/opt", "a file");
    let outcome = node(&machine, "apply", &[]);
    assert!(
        outcome.stdout.contains("rejected outside: /opt/criswitch/"),
        "{}",
        outcome.stdout
    );
}

#[test]
fn programs_read_whether_an_apply_has_changed_the_machine() {
    let machine = image();
    let apply = |machine: &Machine| {
        let outcome = node(machine, "apply", &["-o", "json"]);
        let ended: Value = serde_json::from_str(&outcome.stdout).unwrap();
        let state = ended["state"].as_str().unwrap().to_owned();
        (outcome.code, state, ended["changed"].as_bool())
    };
    let first = apply(&machine);
    assert_eq!(first, (0, "wouldChange".to_owned(), Some(true)));
    assert_eq!(apply(&machine), (0, "ready".to_owned(), Some(false)));
    let packaged = image().with("/usr/bin/criswitch", "");
    let rejected = apply(&packaged);
    assert_eq!(rejected, (1, "rejected".to_owned(), Some(false)));
}

#[test]
fn a_rejected_apply_and_one_of_a_machine_that_runs_change_nothing() {
    let machine = image().with("/usr/bin/criswitch", "");
    let before = tree(machine.root());
    assert_eq!(node(&machine, "apply", &[]).code, 1);
    assert_eq!(tree(machine.root()), before);
    let running = image().running("1", &["/sbin/init"]);
    let before = tree(running.root());
    for name in ["apply", "undo"] {
        let outcome = node(&running, name, &[]);
        assert_eq!(outcome.code, 1);
        assert!(
            outcome
                .stderr
                .contains("has processes; use / or the root of a machine that is not running"),
            "{}",
            outcome.stderr
        );
    }
    assert_eq!(tree(running.root()), before);
}

#[test]
#[allow(clippy::print_stderr)]
fn an_apply_that_fails_undoes_what_it_has_changed() {
    let machine = image().with("/etc/criswitch/conf.d/x", "");
    let before = state(machine.root(), true);
    // The file system has no room for one more file.
    let script = "mount -t tmpfs -o nr_inodes=1 none \"$1/etc/criswitch\" || exit 99
        shift && exec \"$@\"";
    let files = main_file(SPEC);
    let (program, spec) = (machine.at("/programs"), files.main());
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "sh", "-c", script, "-", text(machine.root())]);
    unshare.args([
        env!("CARGO_BIN_EXE_criswitch"),
        "node",
        "apply",
        "--root",
        text(machine.root()),
    ]);
    let output = unshare
        .args(["--programs", text(&program), "--spec", text(&spec)])
        .output()
        .unwrap();
    let shown = String::from_utf8(output.stderr).unwrap();
    if output.status.code() == Some(99) {
        return eprintln!("not tried, no file system can be mounted here: {shown}");
    }
    assert_eq!(output.status.code(), Some(1), "{shown}");
    expect![[r#"
        criswitch: step configuration has failed, and all changes are undone: cannot change /etc/criswitch/criswitch.toml: No space left on device
    "#]].assert_eq(&shown);
    assert_eq!(state(machine.root(), true), before);
    let failed = status(&machine);
    assert_eq!(failed["state"], "failed");
    assert_eq!(failed["failure"]["step"], "configuration");
}

#[test]
fn an_apply_that_cannot_change_a_file_is_undone() {
    let machine = image();
    let before = state(machine.root(), true);
    let set = |flag: &str| {
        Command::new("chattr")
            .arg(flag)
            .arg(machine.at(CONFIG))
            .status()
    };
    // Not every file system has the immutable flag. Without it, the test checks nothing.
    if set("+i").is_ok_and(|set| set.success()) {
        let outcome = node(&machine, "apply", &[]);
        set("-i").unwrap();
        expect![[r#"
            criswitch: step endpoint has failed, and all changes are undone: cannot change /var/lib/kubelet/config.yaml: Operation not permitted
        "#]].assert_eq(&outcome.stderr);
        assert_eq!(state(machine.root(), true), before);
    }
}

#[test]
#[allow(clippy::print_stderr)]
fn a_full_disk_does_not_prevent_an_undo() {
    let (machine, disk, files) = (image(), tempfile::tempdir().unwrap(), main_file(SPEC));
    let script = r#"
        root=$1 disk=$2 criswitch=$3 spec=$4
        mount -t tmpfs -o size=32m none "$disk" && cp -a "$root/." "$disk" || exit 99
        files() {
            (cd "$disk" && find . -path ./var/lib/criswitch -prune -o -path ./filler -o -printf '%p %y %m %l\n' \
                -type f -exec sha256sum {} + | sort)
        }
        before=$(files)
        boundary=0
        while [ -z "${is_last:-}" ]; do
            "$criswitch" node apply --root "$disk" --programs "$disk/programs" --spec "$spec" || exit 2
            [ "$before" != "$(files)" ] || exit 3
            "$criswitch" node undo --root "$disk" --stop-at "$boundary" >"$disk/out" & undo=$!
            until grep -q ') T ' "/proc/$undo/stat" || ! kill -0 "$undo" 2>/dev/null; do :; done
            ! head -c 64m /dev/zero >"$disk/filler" || exit 4
            kill -CONT "$undo" 2>/dev/null || is_last=1
            wait "$undo" || exit 5
            rm "$disk/filler" "$disk/out"
            after=$(files)
            [ "$before" = "$after" ] || { echo "$before" "$after"; exit 6; }
            boundary=$((boundary + 1))
        done
        [ "$boundary" -gt 4 ] || exit 7"#;
    let output = Command::new("unshare")
        .args(["--mount", "bash", "-c", script, "-", text(machine.root())])
        .args([
            text(disk.path()),
            env!("CARGO_BIN_EXE_criswitch"),
            text(&files.main()),
        ])
        .output()
        .unwrap();
    let shown = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    if output.status.code() == Some(99) {
        return eprintln!("not tried, no file system can be mounted here: {shown}");
    }
    assert_eq!(output.status.code(), Some(0), "{shown}");
}

#[test]
fn only_one_process_changes_a_machine() {
    let machine = image();
    let journal = File::create(machine.at("/var/lib/criswitch/node/journal")).unwrap();
    journal.lock().unwrap();
    let outcome = node(&machine, "apply", &[]);
    assert_eq!(outcome.code, 1);
    assert!(
        outcome
            .stderr
            .contains("another criswitch changes this machine now"),
        "{}",
        outcome.stderr
    );
    drop(journal);
    succeeds(&machine, "apply");
}

#[test]
fn a_changed_specification_is_applied_over_the_first_and_undone_alone() {
    let machine = image();
    succeeds(&machine, "apply");
    let first = state(machine.root(), false);
    apply_with(&machine, "kata = '/run/kata/containerd.sock'\n");
    assert!(
        fs::read_to_string(machine.at("/etc/criswitch/criswitch.toml"))
            .unwrap()
            .contains("kata")
    );
    assert_eq!(status(&machine)["state"], "installed");
    succeeds(&machine, "undo");
    assert_eq!(state(machine.root(), false), first);
}

/// Applies a specification with these lines before `[node]`.
#[track_caller]
pub(crate) fn apply_with(machine: &Machine, lines: &str) {
    apply_spec(machine, &SPEC.replace("[node]", &format!("{lines}[node]")));
}

#[track_caller]
pub(crate) fn apply_spec(machine: &Machine, spec: &str) {
    let files = main_file(spec);
    let (program, spec) = (machine.at("/programs"), files.main());
    let apply = ["node", "apply", "--root", text(machine.root())];
    let source = ["--spec", text(&spec), "--programs", text(&program)];
    let outcome = run(&[apply, source].concat());
    assert_eq!(outcome.code, 0, "{}", outcome.stdout);
}
