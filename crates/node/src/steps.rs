//! The steps that change a node, in their order, and the changes that each step would make now.

use std::fs;
use std::path::{Path, PathBuf};

use criswitch_config::specification::Tries;
use criswitch_config::{DEFAULT_LISTEN, DEFAULT_PATH};
use criswitch_platform::files;
use serde::Serialize;

use super::facts::{MachineFacts, Wanted};
use super::root::Root;
use super::settings::same;
use super::unit::Unit;

/// The directory with a directory for each version of criswitch.
pub(super) const PROGRAMS: &str = "/opt/criswitch";
/// The link to the directory of the version that the units start.
const CURRENT: &str = "/opt/criswitch/current";
/// The directory of the programs in the shipped units.
const PACKAGED: &str = "/usr/bin/";
pub(super) const UNITS: &str = "/etc/systemd/system";
/// The drop-in that starts the kubelet after criswitch.
pub(super) const ORDER_DROP_IN: &str = "10-criswitch.conf";

/// The units as shipped, and the targets that start them.
const SHIPPED: [(&str, &str, &str); 2] = [
    (
        "criswitch.socket",
        include_str!("../../../systemd/criswitch.socket"),
        "sockets.target.wants",
    ),
    (
        "criswitch.service",
        include_str!("../../../systemd/criswitch.service"),
        "multi-user.target.wants",
    ),
];
/// The unit that listens for clients of the metrics, as shipped, and its address there. The daemon has no network.
pub(super) const METRICS_SOCKET: &str = "criswitch-metrics.socket";
const METRICS_UNIT: &str = include_str!("../../../systemd/criswitch-metrics.socket");
const METRICS_ADDRESS: &str = "127.0.0.1:9199";
const SHIPPED_DROP_IN: &str = include_str!("../../../systemd/kubelet.service.d/10-criswitch.conf");

/// The mode bits that let users other than the owner write to a file.
const WRITABLE: u32 = 0o022;
/// The mode bits that make a file executable.
pub(super) const EXECUTABLE: u32 = 0o111;
/// The mode bit that lets the owner execute a file.
const OWNER_EXECUTES: u32 = 0o100;

/// The name of a step, and a function that returns the changes of the step. Its second argument has the earlier steps
/// that have changes.
type Step = (
    &'static str,
    fn(&MachineFacts<'_>, &[PlannedStep]) -> Vec<Change>,
);

/// A step with its changes.
#[derive(Serialize)]
pub(super) struct PlannedStep {
    pub(super) step: &'static str,
    pub(super) changes: Vec<Change>,
}

/// A change of a file, a unit or a process.
#[derive(Serialize)]
pub(super) struct Change {
    /// The file or the unit.
    pub(super) place: String,
    pub(super) what: String,
    /// The content of the file; `None` if the change does not change a file.
    #[serde(skip)]
    pub(super) content: Option<Content>,
}

pub(super) enum Content {
    /// A file that exists keeps its mode, unless users other than the owner may write it, or it is a program that they
    /// cannot run.
    File {
        bytes: Vec<u8>,
        mode: u32,
    },
    Link(PathBuf),
}

const STEPS: [Step; 8] = [
    ("binary", binary),
    ("units", units),
    ("configuration", configuration),
    ("start", start),
    ("try", tries),
    ("endpoint", endpoint),
    ("restart", restart),
    ("verify", verify),
];

/// The steps that have changes.
pub(super) fn plan(facts: &MachineFacts<'_>) -> Vec<PlannedStep> {
    let mut planned: Vec<PlannedStep> = Vec::new();
    for (step, changes) in STEPS {
        let changes = changes(facts, &planned);
        if !changes.is_empty() {
            planned.push(PlannedStep { step, changes });
        }
    }
    planned
}

pub(super) fn text(text: &str) -> Content {
    Content::File {
        bytes: text.into(),
        mode: 0o644,
    }
}

fn binary(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Vec<Change> {
    let version = PathBuf::from(env!("CARGO_PKG_VERSION"));
    let folder = Path::new(PROGRAMS).join(&version);
    let files = facts.programs.iter().map(|(name, bytes)| {
        let (bytes, mode) = (bytes.clone(), 0o755);
        (folder.join(name), Content::File { bytes, mode })
    });
    let link = (CURRENT.into(), Content::Link(version.clone()));
    of_files(&facts.root, files.chain([link]))
}

fn units(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Vec<Change> {
    let listen = match &facts.wanted {
        Ok(wanted) => in_unit(&wanted.config.listen),
        Err(_) => DEFAULT_LISTEN.to_owned(),
    };
    let metrics = facts.wanted.as_ref().ok();
    let metrics = metrics.and_then(|wanted| wanted.config.metrics.as_ref());
    let metrics = metrics.map(|address| {
        let unit = METRICS_UNIT.replace(METRICS_ADDRESS, &in_unit(address));
        (METRICS_SOCKET, unit, "criswitch.service.wants")
    });
    let shipped = SHIPPED.map(|(name, unit, target)| {
        let unit = unit
            .replace(PACKAGED, &format!("{CURRENT}/"))
            .replace(DEFAULT_LISTEN, &listen);
        (name, unit, target)
    });
    let folder = Path::new(UNITS);
    let mut files = Vec::new();
    for (name, unit, target) in shipped.into_iter().chain(metrics) {
        let link = Content::Link(Path::new("..").join(name));
        files.push((folder.join(name), text(&unit)));
        files.push((folder.join(target).join(name), link));
    }
    if let Ok(layout) = &facts.layout {
        let drop_ins = folder.join(format!("{}.d", layout.unit));
        files.push((drop_ins.join(ORDER_DROP_IN), text(SHIPPED_DROP_IN)));
    }
    of_files(&facts.root, files)
}

/// The address as a unit has it: `%` would begin a specifier.
fn in_unit(address: &impl ToString) -> String {
    address.to_string().replace('%', "%%")
}

fn configuration(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Vec<Change> {
    match &facts.wanted {
        Ok(Wanted {
            text: Some(new), ..
        }) => of_files(&facts.root, [(DEFAULT_PATH.into(), text(new))]),
        _ => Vec::new(),
    }
}

fn start(facts: &MachineFacts<'_>, before: &[PlannedStep]) -> Vec<Change> {
    // On this machine, a daemon that no unit runs does not count.
    let is_active = if facts.root.is_this_machine() {
        Unit::is_stopped("criswitch.service") == Some(false)
    } else {
        facts.root.processes().iter().any(|(_, line)| {
            line.split('\0')
                .next()
                .map(Path::new)
                .and_then(Path::file_name)
                == Some("criswitchd".as_ref())
        })
    };
    if is_active && before.is_empty() {
        return Vec::new();
    }
    let what = if is_active { "restart" } else { "start" };
    let units = "criswitch.socket, criswitch.service";
    action(facts, units, what.to_owned())
}

fn tries(facts: &MachineFacts<'_>, before: &[PlannedStep]) -> Vec<Change> {
    let how = match facts.specification.tries {
        Tries::Off => return Vec::new(),
        Tries::PodNetwork => "",
        Tries::HostNetwork => " with the host network",
    };
    if !has(before, "start") {
        return Vec::new();
    }
    let what = format!("start a pod of each{how}, and remove it");
    action(facts, "handlers", what)
}

fn endpoint(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Vec<Change> {
    let Ok(layout) = &facts.layout else {
        return Vec::new();
    };
    let files = layout.changes.iter();
    let files = files.map(|(path, new)| (path.clone(), text(new)));
    let (old, new) = (&layout.endpoint, &facts.endpoint);
    let mut changes = of_files(&facts.root, files);
    for Change { what, .. } in &mut changes {
        *what += &format!(": the kubelet's endpoint {old} becomes {new}");
    }
    changes
}

fn restart(facts: &MachineFacts<'_>, before: &[PlannedStep]) -> Vec<Change> {
    let unit = facts.layout.as_ref().map(|layout| layout.unit.as_str());
    // The files may have been changed earlier, without a restart of the kubelet.
    let endpoint = facts.kubelet.endpoint();
    let is_other = endpoint.is_some_and(|endpoint| !same(endpoint, &facts.endpoint));
    match (unit, facts.kubelet.pid) {
        (Ok(unit), Some(pid)) if is_other || has(before, "endpoint") => {
            let what = format!("restart the kubelet (process {pid}); containers keep running");
            action(facts, unit, what)
        }
        _ => Vec::new(),
    }
}

fn verify(facts: &MachineFacts<'_>, before: &[PlannedStep]) -> Vec<Change> {
    if !has(before, "restart") {
        return Vec::new();
    }
    let limit = criswitch_config::duration_text(facts.specification.kubelet_timeout);
    let what =
        format!("the kubelet is healthy within {limit}, and all pods and containers still run");
    action(facts, "kubelet", what)
}

/// Whether a step has changes.
pub(super) fn has(planned: &[PlannedStep], step: &str) -> bool {
    planned.iter().any(|planned| planned.step == step)
}

/// A change that does not change a file; none on a mounted image, which has no processes.
fn action(facts: &MachineFacts<'_>, place: &str, what: String) -> Vec<Change> {
    let change = Change {
        place: place.to_owned(),
        what,
        content: None,
    };
    Vec::from_iter(facts.root.runs().then_some(change))
}

/// The changes of the files that do not have this content yet.
fn of_files(root: &Root<'_>, files: impl IntoIterator<Item = (PathBuf, Content)>) -> Vec<Change> {
    files
        .into_iter()
        .filter(|(path, content)| !content.is_at(&root.at(path)))
        .map(|(path, content)| {
            let verb = match fs::symlink_metadata(root.at(&path)) {
                Ok(_) => "replace",
                Err(_) => "create",
            };
            Change {
                place: path.display().to_string(),
                what: match &content {
                    Content::Link(target) => format!("{verb} the link to {}", target.display()),
                    Content::File { .. } => verb.to_owned(),
                },
                content: Some(content),
            }
        })
        .collect()
}

impl Content {
    fn is_at(&self, path: &Path) -> bool {
        match self {
            Content::Link(target) => fs::read_link(path).is_ok_and(|old| old == *target),
            Content::File { bytes, mode } => {
                let old = fs::symlink_metadata(path).map_or(0, |about| files::mode(&about));
                let is_safe =
                    old & WRITABLE == 0 && old & mode & OWNER_EXECUTES == mode & OWNER_EXECUTES;
                is_safe && fs::read(path).is_ok_and(|old| old == *bytes)
            }
        }
    }
}
