//! Checks of the machine, and of the files that would change.

use std::path::{Path, PathBuf};

use criswitch_platform::WriteTarget;

use crate::node::Finding;
use crate::node::journal;
use crate::node::plan::MachineFacts;
use crate::node::root::Root;
use crate::node::steps::{Change, Content, PROGRAMS, PlannedStep};

const MACHINE_ID: &str = "/etc/machine-id";
/// The directory that only a running systemd has, and the paths of its program.
const RUNNING: &str = "/run/systemd/system";
const SYSTEMD: [&str; 2] = ["/usr/lib/systemd/systemd", "/lib/systemd/systemd"];
/// Files of a package, or of a manual installation.
const INSTALLED: [&str; 4] = [
    "/usr/bin/criswitch",
    "/usr/bin/criswitchd",
    "/usr/lib/systemd/system/criswitch.service",
    "/lib/systemd/system/criswitch.service",
];
/// The free space that a file needs besides its size, in bytes.
const ROOM: u64 = 1 << 20;

pub(super) fn machine(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Vec<Finding> {
    let Some(wanted) = &facts.specification.machine_id else {
        return Vec::new();
    };
    let found = facts.root.text(Path::new(MACHINE_ID)).ok().flatten();
    let found = found.map(|id| id.trim().to_owned());
    let what = format!("the specification is for the machine {wanted}");
    match found {
        None => vec![Finding::unknown(
            [MACHINE_ID],
            format!("cannot be read, and {what}"),
            "",
        )],
        Some(id) if id == *wanted => Vec::new(),
        Some(id) => {
            let what = format!("{what}, and this is {id}");
            vec![Finding::new(
                [MACHINE_ID],
                &what,
                "the specification of this machine",
            )]
        }
    }
}

pub(super) fn version(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Vec<Finding> {
    let own = env!("CARGO_PKG_VERSION");
    let wanted = facts.specification.version.iter();
    let other = wanted.filter(|wanted| *wanted != own).map(|wanted| {
        let what = format!("this program is version {own}, the specification wants {wanted}");
        Finding::new(["criswitch"], &what, "the program of that version")
    });
    other.collect()
}

pub(super) fn generation(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Vec<Finding> {
    let wanted = facts.specification.generation.iter();
    let older = wanted.filter(|wanted| **wanted < facts.number);
    let older = older.map(|wanted| {
        let what = format!(
            "the specification has the generation {wanted}, and {} was applied here",
            facts.number
        );
        Finding::new(["specification"], &what, "the newest specification")
    });
    older.collect()
}

pub(super) fn systemd(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Vec<Finding> {
    let exists = |path: &&str| facts.root.at(Path::new(path)).exists();
    let found = match facts.root.runs() {
        true => exists(&RUNNING),
        false => SYSTEMD.iter().any(exists),
    };
    let what = "systemd does not run the services of this machine";
    Vec::from_iter((!found).then(|| Finding::new([RUNNING], what, "")))
}

pub(super) fn configuration(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Vec<Finding> {
    facts.wanted.as_ref().err().cloned().unwrap_or_default()
}

pub(super) fn package(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Vec<Finding> {
    let exists = |path: &&&str| facts.root.at(Path::new(path)).exists();
    let what = "a package, or somebody manually, has installed criswitch here";
    let hint = "upgrading it in the same way, or removing it first";
    vec![Finding::new(INSTALLED.iter().filter(exists), what, hint)]
}

/// The file if it exists, else the first directory above it that does.
fn existing_part(root: &Root<'_>, path: &str) -> PathBuf {
    let real = root.at(Path::new(path));
    let mut parts = real.ancestors().filter(|part| part.exists());
    parts.next().unwrap_or(&real).to_owned()
}

fn contents(planned: &[PlannedStep]) -> impl Iterator<Item = (&Change, &Content)> {
    let changes = planned.iter().flat_map(|planned| &planned.changes);
    changes.filter_map(|change| Some((change, change.content.as_ref()?)))
}

/// The files for whose place in the file system `is_bad` holds.
fn with_target(
    facts: &MachineFacts<'_>,
    planned: &[PlannedStep],
    is_bad: impl Fn(&WriteTarget, &Content) -> bool,
) -> Vec<String> {
    let bad = contents(planned).filter(|(change, content)| {
        let part = existing_part(&facts.root, &change.place);
        WriteTarget::of(&part).is_ok_and(|target| is_bad(&target, content))
    });
    bad.map(|(change, _)| change.place.clone()).collect()
}

/// Files that are not below the root of the machine, because an absolute link leads there from a directory above them.
pub(super) fn outside(facts: &MachineFacts<'_>, planned: &[PlannedStep]) -> Vec<Finding> {
    let root = facts.root.at(Path::new("/")).canonicalize();
    let is_outside = |path: &Path| {
        let parent = path.parent().unwrap_or(path).to_string_lossy();
        let part = existing_part(&facts.root, &parent).canonicalize();
        !matches!((&root, part), (Ok(root), Ok(part)) if part.starts_with(root) && part.is_dir())
    };
    let paths = contents(planned).map(|(change, _)| Path::new(&change.place));
    let paths = paths.chain([Path::new(journal::FILE)]);
    let places = paths.filter(|path| is_outside(path)).map(Path::display);
    let what = "a link leads to a directory outside of the machine's root, or a file is in its way";
    vec![Finding::new(places, what, "")]
}

pub(super) fn read_only(facts: &MachineFacts<'_>, planned: &[PlannedStep]) -> Vec<Finding> {
    let places = with_target(facts, planned, |target, _| target.is_read_only);
    let unseen = contents(planned).filter_map(|(change, _)| {
        let part = existing_part(&facts.root, &change.place);
        let error = WriteTarget::of(&part).err()?;
        Some(Finding::unknown(
            [&change.place],
            format!("cannot be examined: {error}"),
            "",
        ))
    });
    let what = "the file system is read-only";
    [Finding::new(places, what, "")]
        .into_iter()
        .chain(unseen)
        .collect()
}

pub(super) fn no_exec(facts: &MachineFacts<'_>, planned: &[PlannedStep]) -> Vec<Finding> {
    let places = with_target(facts, planned, |target, content| {
        target.is_no_exec && content.is_program()
    });
    let what = "the file system runs no programs (noexec)";
    vec![Finding::new(places, what, "mounting it with exec")]
}

pub(super) fn immutable(facts: &MachineFacts<'_>, planned: &[PlannedStep]) -> Vec<Finding> {
    let is_immutable = |path: &Path| WriteTarget::of(path).is_ok_and(|target| target.is_immutable);
    let places = contents(planned).filter(|(change, _)| {
        let part = existing_part(&facts.root, &change.place);
        is_immutable(&part) || part.parent().is_some_and(is_immutable)
    });
    let places = places.map(|(change, _)| &change.place);
    let what = "the file or its directory cannot be changed (chattr +i or +a)";
    vec![Finding::new(places, what, "chattr -i -a")]
}

pub(super) fn room(facts: &MachineFacts<'_>, planned: &[PlannedStep]) -> Vec<Finding> {
    let places = with_target(facts, planned, |target, content| {
        target.available_bytes < content.size() + ROOM
    });
    // At most, one file system gets each new file, both saved contents, and room for the old file. It also gets the
    // recover program, the saved content of that program, and room for it.
    let sizes = contents(planned).map(|(change, content)| {
        let before = facts.root.place(Path::new(&change.place)).metadata();
        2 * (content.size() + before.map_or(0, |about| about.len()))
    });
    let [(_, own), _] = &facts.programs;
    let recover = if facts.root.is_this_machine() {
        3 * own.len() as u64
    } else {
        0
    };
    let needed = sizes.sum::<u64>() + recover + ROOM;
    let journal = WriteTarget::of(&existing_part(&facts.root, journal::FILE));
    let journal = journal.is_ok_and(|target| target.available_bytes < needed);
    let journal = journal.then_some(journal::FILE);
    let what = "the file system has no room for the file";
    let for_undo = format!(
        "the file system has no room of {} MB for this change and its undo",
        needed.div_ceil(1_000_000)
    );
    vec![
        Finding::new(places, what, ""),
        Finding::new(journal, for_undo, ""),
    ]
}

/// Files in the way. A setting in a file of the kubelet is changed on purpose, and a link to another version of criswitch
/// is of this command.
pub(super) fn existing(facts: &MachineFacts<'_>, planned: &[PlannedStep]) -> Vec<Finding> {
    let changes = planned.iter().flat_map(|planned| &planned.changes);
    let layout = facts.layout.as_ref();
    let is_setting = |path: &Path| layout.is_ok_and(|layout| layout.read.contains_key(path));
    let in_the_way = changes.filter(|change| {
        let path = Path::new(&change.place);
        let is_version =
            matches!(change.content, Some(Content::Link(_))) && path.starts_with(PROGRAMS);
        let exists = facts.root.at(path).symlink_metadata().is_ok();
        let is_own = is_version || facts.own.iter().any(|own| own == path);
        change.content.is_some() && exists && !is_own && !is_setting(path)
    });
    let places = in_the_way.map(|change| &change.place);
    let what = "the file exists, differs, and would be replaced";
    vec![Finding::new(places, what, "moving it")]
}
