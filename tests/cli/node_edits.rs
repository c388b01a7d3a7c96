//! `criswitch node apply` and `undo` while other programs change the same files, and the attributes of these files.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Stdio;

use expect_test::expect;
use rustix::fs::XattrFlags;
use rustix::process::{Pid, Signal};

use crate::machine::KUBELET;
use crate::node_apply::{
    CONFIG, CONTAINERD_KEY, CRISWITCH_KEY, INSTANCE_CONFIG, SPEC, image, node, state, status,
    succeeds,
};
use crate::{command, main_file, text};

#[test]
fn an_undo_keeps_the_changes_of_others() {
    let machine = image();
    succeeds(&machine, "apply");
    let edited = fs::read_to_string(machine.at(CONFIG)).unwrap() + "maxPods: 5\n";
    let machine = machine.with(CONFIG, &edited).with(
        INSTANCE_CONFIG,
        "containerRuntimeEndpoint: /run/other.sock\n",
    );
    let drifted = status(&machine);
    assert_eq!(drifted["state"], "drifted");
    assert_eq!(
        drifted["drifted"],
        serde_json::json!([CONFIG, INSTANCE_CONFIG])
    );
    let before = state(machine.root(), true);
    let outcome = node(&machine, "undo", &[]);
    assert_eq!(outcome.code, 1);
    expect![[r#"
        /var/lib/kubelet/instance-config.yaml: somebody else has changed the file; change it back or remove it, then undo again
    "#]].assert_eq(&outcome.stdout);
    assert_eq!(state(machine.root(), true), before);
    assert_eq!(status(&machine)["state"], "drifted");
    let machine = machine.without(INSTANCE_CONFIG);
    succeeds(&machine, "undo");
    assert_eq!(status(&machine)["state"], "undone");
    assert_eq!(
        fs::read_to_string(machine.at(INSTANCE_CONFIG)).unwrap(),
        CONTAINERD_KEY
    );
    assert_eq!(
        fs::read_to_string(machine.at(CONFIG)).unwrap(),
        edited.replace(CRISWITCH_KEY, CONTAINERD_KEY)
    );
}

#[test]
fn an_apply_keeps_a_file_that_somebody_changes_meanwhile() {
    let machine = image();
    let before = state(machine.root(), true);
    let all = node(&machine, "apply", &["--stop-at", "1000000"]);
    let number = |what: &str| {
        let mut lines = all.stdout.lines();
        let line = lines.find(|line| line.ends_with(what)).unwrap();
        line.split([' ', ':']).nth(1).unwrap().to_owned()
    };
    let boundaries = ["the journal", "endpoint"].map(number);
    succeeds(&machine, "undo");
    for boundary in boundaries {
        let files = main_file(SPEC);
        let (program, spec) = (machine.at("/programs"), files.main());
        let mut apply = command(&["node", "apply", "--root", text(machine.root())]);
        apply.args([
            "--programs",
            text(&program),
            "--spec",
            text(&spec),
            "--stop-at",
        ]);
        let mut apply = apply
            .arg(&boundary)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(apply.stdout.as_mut().unwrap()).lines();
        let start = format!("boundary {boundary}: ");
        assert!(
            lines
                .map_while(Result::ok)
                .any(|line| line.starts_with(&start))
        );
        let edited =
            KUBELET.replace(CRISWITCH_KEY, CONTAINERD_KEY) + &format!("maxPods: {boundary}\n");
        fs::write(machine.at(CONFIG), &edited).unwrap();
        let process = Pid::from_child(&apply);
        while !fs::read_to_string(format!("/proc/{process}/stat"))
            .unwrap()
            .contains(") T ")
        {
            std::thread::yield_now();
        }
        rustix::process::kill_process(process, Signal::CONT).unwrap();
        let output = apply.wait_with_output().unwrap();
        let shown = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{shown}");
        let what = format!("{CONFIG}: somebody else has changed the file meanwhile; try again");
        assert!(shown.contains(&what), "{shown}");
        assert_eq!(fs::read_to_string(machine.at(CONFIG)).unwrap(), edited);
        let mut now = state(machine.root(), true);
        let config = now.remove(CONFIG);
        let mut before = before.clone();
        assert_ne!(before.remove(CONFIG), config);
        assert_eq!(now, before);
    }
}

/// A default ACL of a directory, with one additional user. New files in the directory get this ACL. Each entry has a
/// tag, permissions and a user.
fn default_access() -> Vec<u8> {
    let none = u32::MAX;
    let entries = [
        (0x01, 7, none),
        (0x02, 4, 1),
        (0x04, 5, none),
        (0x10, 5, none),
        (0x20, 5, none),
    ]
    .map(|(tag, permissions, user): (u16, u16, u32)| {
        [
            &tag.to_le_bytes()[..],
            &permissions.to_le_bytes(),
            &user.to_le_bytes(),
        ]
        .concat()
    });
    [2_u32.to_le_bytes().to_vec(), entries.concat()].concat()
}

#[test]
#[allow(clippy::print_stderr)]
fn attributes_that_the_file_system_gives_to_new_files_are_no_changes_of_others() {
    let machine = image();
    let units = machine.at("/etc/systemd/system");
    let set = |path: &Path, name: &str, value: &[u8]| {
        rustix::fs::setxattr(path, name, value, XattrFlags::empty())
    };
    let access = default_access();
    let kubelet = machine.at("/var/lib/kubelet");
    set(&kubelet, "system.posix_acl_default", &access).ok();
    if let Err(error) = set(&units, "system.posix_acl_default", &access) {
        return eprintln!("not tried, the file system has no lists of access: {error}");
    }
    let before = state(machine.root(), true);
    succeeds(&machine, "apply");
    let mut list = [0; 64];
    let socket = units.join("criswitch.socket");
    rustix::fs::getxattr(&socket, "system.posix_acl_access", &mut list).unwrap();
    assert_eq!(status(&machine)["state"], "installed");
    // A SELinux policy may label files later. That is not drift.
    set(
        &machine.at(CONFIG),
        "security.selinux",
        b"system_u:object_r:etc_t:s0",
    )
    .ok();
    assert_eq!(status(&machine)["state"], "installed");
    succeeds(&machine, "undo");
    assert_eq!(state(machine.root(), true), before);
}

#[test]
fn a_link_to_a_file_of_the_kubelet_comes_back_and_its_mode_counts() {
    let machine = image();
    let target = machine.at("/var/lib/kubelet/kubelet.yaml");
    fs::rename(machine.at(CONFIG), &target).unwrap();
    symlink("kubelet.yaml", machine.at(CONFIG)).unwrap();
    let before = state(machine.root(), true);
    succeeds(&machine, "apply");
    let about = fs::symlink_metadata(machine.at(CONFIG)).unwrap();
    assert!(about.is_file());
    assert_eq!(about.mode() & 0o7777, 0o600);
    succeeds(&machine, "undo");
    assert_eq!(state(machine.root(), true), before);
}
