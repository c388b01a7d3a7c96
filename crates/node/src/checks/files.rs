//! Checks of the machine, and of the files that would change.

use std::path::{Path, PathBuf};

use criswitch_config::labels_file::HEAD;
use criswitch_platform::files::runs_no_programs;

use crate::facts::MachineFacts;
use crate::finding::Finding;
use crate::journal;
use crate::root::Root;
use crate::steps::{Change, Content, EXECUTABLE, PROGRAMS, PlannedStep};

const MACHINE_ID: &str = "/etc/machine-id";
/// The directory that exists only while systemd runs, and the paths of systemd's program.
const RUNNING: &str = "/run/systemd/system";
const SYSTEMD: [&str; 2] = ["/usr/lib/systemd/systemd", "/lib/systemd/systemd"];
/// Files of a package, or of a manual installation.
#[rustfmt::skip]
const INSTALLED: [&str; 4] = [
    "/usr/bin/criswitch", "/usr/bin/criswitchd", "/usr/lib/systemd/system/criswitch.service",
    "/lib/systemd/system/criswitch.service",
];

/// Operating systems on which changes of files do not last: the `ID` in os-release, the reason, and the way to set up
/// criswitch there.
const IMMUTABLE: [(&str, &str, &str); 3] = [
    (
        "bottlerocket",
        "Bottlerocket makes /etc again at each boot, and its root is read-only",
        "an image of your own with criswitch, and settings.kubernetes.container-runtime-endpoint",
    ),
    (
        "cos",
        "Container-Optimized OS makes /etc again at each boot, and /var runs no programs",
        "a node pool with Ubuntu",
    ),
    (
        "nixos",
        "NixOS makes the units and files in /etc from its configuration",
        "services.kubernetes.kubelet and units of criswitch in the configuration of NixOS",
    ),
];
const OS_RELEASE: [&str; 2] = ["/etc/os-release", "/usr/lib/os-release"];

pub(super) fn operating_system(
    facts: &MachineFacts<'_>,
    _: &[PlannedStep],
) -> Option<Vec<Finding>> {
    let (file, text) = OS_RELEASE
        .into_iter()
        .find_map(|file| Some((file, facts.root.text(Path::new(file)).ok()??)))?;
    let id = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("ID="))?
        .trim_matches(['"', '\'']);
    let (_, what, instead) = IMMUTABLE.iter().find(|(name, ..)| *name == id)?;
    Some(vec![Finding::new([file], what, instead)])
}

pub(super) fn machine(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Option<Vec<Finding>> {
    let wanted = facts.specification.machine_id.as_ref()?;
    let what = format!("the specification is for the machine {wanted}");
    Some(vec![match facts.root.text(Path::new(MACHINE_ID)) {
        Ok(Some(id)) if id.trim() == wanted => return None,
        Ok(Some(id)) => Finding::new(
            [MACHINE_ID],
            format!("{what}, and this is {}", id.trim()),
            "the specification of this machine",
        ),
        _ => Finding::unknown([MACHINE_ID], format!("cannot be read, and {what}"), ""),
    }])
}

pub(super) fn version(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Option<Vec<Finding>> {
    let own = env!("CARGO_PKG_VERSION");
    let wanted = facts.specification.version.as_ref()?;
    let what = format!("this program is version {own}, the specification wants {wanted}");
    (wanted != own).then(|| {
        vec![Finding::new(
            ["criswitch"],
            what,
            "the program of that version",
        )]
    })
}

pub(super) fn generation(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Option<Vec<Finding>> {
    let (wanted, applied) = (facts.specification.generation?, facts.number);
    let what =
        format!("the specification has the generation {wanted}, and {applied} was applied here");
    (wanted < applied).then(|| {
        vec![Finding::new(
            ["specification"],
            what,
            "the newest specification",
        )]
    })
}

pub(super) fn systemd(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Option<Vec<Finding>> {
    let paths: &[_] = if facts.root.runs() {
        &[RUNNING]
    } else {
        &SYSTEMD
    };
    let what = "systemd does not run the services of this machine";
    (!paths.iter().any(|path| exists(facts, path))).then(|| vec![Finding::new([RUNNING], what, "")])
}

fn exists(facts: &MachineFacts<'_>, path: &str) -> bool {
    facts.root.at(Path::new(path)).exists()
}

pub(super) fn configuration(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Option<Vec<Finding>> {
    facts.wanted.as_ref().err().cloned()
}

pub(super) fn package(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Option<Vec<Finding>> {
    Some(vec![Finding::new(
        INSTALLED.iter().filter(|path| exists(facts, path)),
        "a package, or somebody manually, has installed criswitch here",
        "upgrading it in the same way, or removing it first",
    )])
}

/// The file if it exists, else the nearest directory above it that exists.
fn existing_part(root: &Root<'_>, path: &str) -> PathBuf {
    let real = root.at(Path::new(path));
    real.ancestors()
        .find(|part| part.exists())
        .unwrap_or(&real)
        .to_owned()
}

fn contents(planned: &[PlannedStep]) -> impl Iterator<Item = (&Change, &Content)> {
    planned
        .iter()
        .flat_map(|planned| &planned.changes)
        .filter_map(|change| Some((change, change.content.as_ref()?)))
}

/// Files that would be outside of the root of the machine, because a directory above them is a symbolic link, and files
/// that cannot be made, because a file is in the place of their directory.
pub(super) fn outside(facts: &MachineFacts<'_>, planned: &[PlannedStep]) -> Option<Vec<Finding>> {
    let root = facts.root.at(Path::new("/")).canonicalize();
    let places = contents(planned)
        .map(|(change, _)| Path::new(&change.place))
        .chain([Path::new(journal::FILE)])
        .filter(|path| {
            let parent = path.parent().unwrap_or(path).to_string_lossy();
            let part = existing_part(&facts.root, &parent).canonicalize();
            !matches!((&root, part), (Ok(root), Ok(part)) if part.starts_with(root) && part.is_dir())
        })
        .map(Path::display);
    let what = "a symbolic link points to a directory outside of the machine's root, or a file is in the way";
    Some(vec![Finding::new(places, what, "")])
}

/// Programs that could not run. The programs of an earlier version, which are in the same file system, could not be
/// started again either.
pub(super) fn no_exec(facts: &MachineFacts<'_>, planned: &[PlannedStep]) -> Option<Vec<Finding>> {
    let places = contents(planned)
        .filter(
            |(_, content)| matches!(content, Content::File { mode, .. } if mode & EXECUTABLE != 0),
        )
        .map(|(change, _)| &change.place)
        .filter(|path| {
            runs_no_programs(&existing_part(&facts.root, path)).is_ok_and(|is_no_exec| is_no_exec)
        });
    let what = "the file system runs no programs (noexec)";
    Some(vec![Finding::new(places, what, "mounting it with exec")])
}

/// Existing files that would be replaced. Files of the kubelet are not reported, because their settings are changed on
/// purpose. A link to another version of criswitch is not reported either, because this command made it.
pub(super) fn existing(facts: &MachineFacts<'_>, planned: &[PlannedStep]) -> Option<Vec<Finding>> {
    let layout = facts.layout.as_ref();
    let in_the_way = contents(planned)
        .filter(|(change, content)| {
            let path = Path::new(&change.place);
            let is_version = matches!(content, Content::Link(_)) && path.starts_with(PROGRAMS);
            facts.root.at(path).symlink_metadata().is_ok()
                && !is_version
                && !facts.own.iter().any(|own| own == path)
                && !layout.is_ok_and(|layout| layout.read.contains_key(path))
        })
        .map(|(change, _)| change.place.clone())
        .chain(foreign_labels(facts));
    let what = "the file exists, differs, and would be replaced";
    Some(vec![Finding::new(in_the_way, what, "moving it")])
}

/// The file of the labels, if another program has written it. criswitch would replace the file, and an undo would
/// remove it.
fn foreign_labels(facts: &MachineFacts<'_>) -> Option<String> {
    let file = facts.wanted.as_ref().ok()?.config.labels_file.as_ref()?;
    let text = facts.root.text(file).ok()??;
    let is_foreign = facts.labels_file.as_ref() != Some(file) && !text.starts_with(HEAD);
    is_foreign.then(|| file.display().to_string())
}
