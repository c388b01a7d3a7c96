//! The stages of a change of a machine: the files of a plan's steps, with the actions that apply and undo them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::actions::{Action, Actions, Work};
use super::changes::New;
use super::facts::MachineFacts;
use super::journal::{DIRECTORY, NewStage};
use super::steps::{Content, PlannedStep, UNITS, text};

const RECOVER: &str = "criswitch-recover.service";
/// The program of the recover unit.
pub(super) const RECOVER_PROGRAM: &str = "/opt/criswitch/recover";

/// The stages that make a plan's changes: the recover unit and its program, criswitch, the kubelet.
pub(super) fn of<'p>(
    facts: &'p MachineFacts<'_>,
    planned: &'p [PlannedStep],
    recover: &'p Recover,
) -> Vec<NewStage<'p>> {
    let is_kubelet =
        |planned: &&PlannedStep| ["endpoint", "restart", "verify"].contains(&planned.step);
    let (kubelet, own): (Vec<_>, Vec<_>) = planned.iter().partition(is_kubelet);
    let temporary = |files: &'p [(PathBuf, Content)], after_undo| {
        let files = files.iter();
        NewStage {
            is_temporary: true,
            files: files
                .map(|(path, content)| ("recover", path.clone(), content.borrowed()))
                .collect(),
            actions: Actions {
                after_undo,
                ..Actions::default()
            },
            ..NewStage::default()
        }
    };
    let reload = systemctl("recover", &["daemon-reload"]);
    let stage = |planned: &[&'p PlannedStep], actions| NewStage {
        files: files(planned).collect(),
        actions,
        ..NewStage::default()
    };
    vec![
        // Removed last: systemd would forget the time limits of a unit that runs if it read it again without its file.
        // It drops a unit that has ended and that no link enables.
        temporary(&recover.unit, Vec::new()),
        temporary(&recover.link, vec![reload]),
        stage(&own, start_actions(facts, &own)),
        NewStage {
            read: facts.layout.as_ref().ok().map(|layout| &layout.read),
            ..stage(&kubelet, kubelet_actions(facts, &kubelet))
        },
    ]
}

/// The files that steps change.
fn files<'p>(planned: &[&'p PlannedStep]) -> impl Iterator<Item = (&'p str, PathBuf, New<'p>)> {
    let changes = planned
        .iter()
        .flat_map(|planned| planned.changes.iter().map(|change| (planned.step, change)));
    changes.filter_map(|(step, change)| {
        Some((
            step,
            change.place.clone().into(),
            change.content.as_ref()?.borrowed(),
        ))
    })
}

fn action(step: &str, work: Work) -> Action {
    let step = step.to_owned();
    Action { step, work }
}

fn systemctl(step: &str, words: &[&str]) -> Action {
    let words = words.iter().map(|word| (*word).to_owned()).collect();
    action(step, Work::Systemctl(words))
}

/// The actions that let criswitch run with its new files, and back. For a machine that does not run, these are the
/// actions of an undo after its boot.
fn start_actions(facts: &MachineFacts<'_>, planned: &[&PlannedStep]) -> Actions {
    let changes = planned.iter().flat_map(|planned| &planned.changes);
    let change = |place: &str| changes.clone().find(|change| change.place.ends_with(place));
    let start = planned.iter().find(|planned| planned.step == "start");
    let start = start.and_then(|start| start.changes.first());
    let verb = match start {
        Some(start) => start.what.as_str(),
        None if !facts.root.runs() && !planned.is_empty() => "start",
        None => return Actions::default(),
    };
    let call = |words: &[&str]| systemctl("start", words);
    let socket = change("/criswitch.socket");
    // A changed socket unit listens after its restart only.
    let units: &[&str] = if verb == "restart" && socket.is_none() {
        &["criswitch.service"]
    } else {
        &["criswitch.socket", "criswitch.service"]
    };
    let forward = call(&[&[verb], units].concat());
    let reload = call(&["daemon-reload"]);
    let (mut before_undo, mut after_undo) = match verb {
        "restart" => (Vec::new(), vec![reload.clone(), forward.clone()]),
        _ => {
            let is_new = socket.is_some_and(|change| change.what == "create");
            let forget = is_new.then(|| action("start", Work::Forget));
            let stop = call(&[&["stop"], units].concat());
            (
                [stop].into_iter().chain(forget).collect(),
                vec![reload.clone()],
            )
        }
    };
    let wanted = facts.wanted.as_ref().ok();
    let backends: Vec<_> = wanted
        .iter()
        .flat_map(|wanted| &wanted.config.table.backends)
        .map(|backend| backend.socket.to_string())
        .collect();
    let serve = Work::Serve {
        endpoint: facts.endpoint.clone(),
        backends: backends.clone(),
        within: facts.specification.kubelet_timeout,
    };
    let mut forward = vec![reload, forward];
    let old = facts.labels_file.as_ref();
    let new = wanted.and_then(|wanted| wanted.config.labels_file.as_ref());
    if old != new {
        let remove = |file: &PathBuf| action("start", Work::RemoveLabels(file.clone()));
        forward.extend(old.map(remove));
        after_undo.extend(new.map(remove));
    }
    forward.push(action("start", serve));
    if planned.iter().any(|planned| planned.step == "try") {
        let (endpoint, how) = (facts.endpoint.clone(), facts.specification.tries);
        forward.push(action("try", Work::Try { endpoint, how }));
        before_undo.insert(0, action("try", Work::RemoveTried { backends }));
    }
    Actions {
        forward,
        before_undo,
        after_undo,
    }
}

/// The actions that let the kubelet run with its new files, and back.
fn kubelet_actions(facts: &MachineFacts<'_>, planned: &[&PlannedStep]) -> Actions {
    let (Ok(layout), false) = (&facts.layout, planned.is_empty()) else {
        return Actions::default();
    };
    let old = facts.kubelet.endpoint().unwrap_or(&layout.endpoint);
    let restart_for = |endpoint: &str| {
        let unit = layout.unit.clone();
        let restart = Work::Restart {
            unit: unit.clone(),
            pods_of: old.to_owned(),
            ran: facts.kubelet.pid.is_some() || !facts.root.runs(),
        };
        let verify = Work::Verify {
            unit,
            endpoint: endpoint.to_owned(),
            within: facts.specification.kubelet_timeout,
            settle: facts.specification.settle_time,
        };
        vec![
            systemctl("restart", &["daemon-reload"]),
            action("restart", restart),
            action("verify", verify),
        ]
    };
    Actions {
        forward: restart_for(&facts.endpoint),
        before_undo: Vec::new(),
        after_undo: restart_for(old),
    }
}

/// The files that undo an interrupted apply at the next boot.
#[derive(Default)]
pub(super) struct Recover {
    /// The unit and its program.
    unit: Vec<(PathBuf, Content)>,
    /// The link that enables the unit.
    link: Vec<(PathBuf, Content)>,
}

/// The files for this machine and kubelet. None on a machine that does not run.
pub(super) fn recover(
    facts: &MachineFacts<'_>,
    planned: &[PlannedStep],
    program: Vec<u8>,
) -> Recover {
    if !facts.root.is_this_machine() {
        return Recover::default();
    }
    let kubelet = facts.layout.as_ref().map(|layout| layout.unit.as_str());
    let changes = planned.iter().flat_map(|planned| &planned.changes);
    let files = changes.filter(|change| change.content.is_some());
    let mounts: BTreeSet<_> = files
        .filter_map(|change| Path::new(&change.place).parent())
        .map(|folder| format!(" \"{}\"", folder.display()))
        .collect();
    let mounts = String::from_iter(mounts);
    let unit = format!(
        "# Written by criswitch node, and removed at its end.\n[Unit]\n\
         Description=Undo of an interrupted criswitch node apply\nBefore=criswitch.service {}\n\
         RequiresMountsFor={DIRECTORY}{mounts}\n\
         [Service]\nType=oneshot\nExecStart={} node undo --here --interrupted --boot\n",
        kubelet.unwrap_or_default(),
        RECOVER_PROGRAM
    );
    let units = Path::new(UNITS);
    let link = Path::new("..").join(RECOVER);
    let program = Content::File {
        bytes: program,
        mode: 0o755,
    };
    let wants = units.join("multi-user.target.wants");
    Recover {
        unit: vec![
            (RECOVER_PROGRAM.into(), program),
            (units.join(RECOVER), text(&unit)),
        ],
        link: vec![(wants.join(RECOVER), Content::Link(link))],
    }
}
