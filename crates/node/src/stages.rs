//! The stages of a change of a machine: the files of a plan's steps, with the actions that apply and undo them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::actions::{Action, Actions, Work};
use super::facts::MachineFacts;
use super::journal::{DIRECTORY, NewStage};
use super::steps::{self, Content, METRICS_SOCKET, PlannedStep, UNITS};

const RECOVER: &str = "criswitch-recover.service";
/// The program of the recover unit.
pub(super) const RECOVER_PROGRAM: &str = "/opt/criswitch/recover";

/// The stages that make a plan's changes: the recover unit and its program, criswitch, the kubelet.
pub(super) fn of_plan<'p>(
    facts: &'p MachineFacts<'_>,
    planned: &'p [PlannedStep],
    recover: &'p Recover,
) -> Vec<NewStage<'p>> {
    let (kubelet, criswitch): (Vec<_>, Vec<_>) = planned
        .iter()
        .partition(|planned| ["endpoint", "restart", "verify"].contains(&planned.step));
    vec![
        // An undo handles the stages in reverse order, so it removes the unit's file last. No daemon-reload follows:
        // the recover unit may be running, and systemd would forget its time limits if its file were missing. systemd
        // unloads the unit after it has ended, because no link enables it.
        temporary_stage(&recover.unit, Vec::new()),
        temporary_stage(
            &recover.link,
            vec![systemctl("recover", &["daemon-reload"])],
        ),
        NewStage {
            files: files(&criswitch),
            actions: start_actions(facts, &criswitch),
            ..NewStage::default()
        },
        NewStage {
            files: files(&kubelet),
            read: facts.layout.as_ref().ok().map(|layout| &layout.read),
            actions: kubelet_actions(facts, &kubelet),
            ..NewStage::default()
        },
    ]
}

fn temporary_stage(files: &[(PathBuf, Content)], after_undo: Vec<Action>) -> NewStage<'_> {
    NewStage {
        is_temporary: true,
        files: files
            .iter()
            .map(|(path, content)| ("recover", path.clone(), content))
            .collect(),
        actions: Actions {
            after_undo,
            ..Actions::default()
        },
        ..NewStage::default()
    }
}

/// The files that steps change.
fn files<'p>(planned: &[&'p PlannedStep]) -> Vec<(&'p str, PathBuf, &'p Content)> {
    planned
        .iter()
        .flat_map(|planned| planned.changes.iter().map(|change| (planned.step, change)))
        .filter_map(|(step, change)| {
            Some((step, PathBuf::from(&change.place), change.content.as_ref()?))
        })
        .collect()
}

fn action(step: &str, work: Work) -> Action {
    Action {
        step: step.to_owned(),
        work,
    }
}

fn systemctl(step: &str, words: &[&str]) -> Action {
    let words = words.iter().map(|word| (*word).to_owned()).collect();
    action(step, Work::Systemctl(words))
}

fn remove_labels(file: &Path) -> Action {
    action("start", Work::RemoveLabels(file.to_owned()))
}

/// The actions that make criswitch run with its new files, and the actions that undo this. For a machine that does not
/// run, they are for an undo after its boot.
fn start_actions(facts: &MachineFacts<'_>, planned: &[&PlannedStep]) -> Actions {
    let start = planned.iter().find(|planned| planned.step == "start");
    let verb = match start.and_then(|start| start.changes.first()) {
        Some(start) => start.what.as_str(),
        None if !facts.root.runs() && !planned.is_empty() => "start",
        None => return Actions::default(),
    };
    let mut actions = systemctl_actions(verb, planned);
    // A kubelet that uses criswitch already has no other endpoint to return to, so its use of criswitch must not stop
    // an undo.
    if !actions.before_undo.is_empty() && !facts.uses_criswitch() {
        let endpoint = facts.endpoint.clone();
        let release = action("start", Work::Release { endpoint });
        actions.before_undo.insert(0, release);
    }
    let wanted = facts.wanted.as_ref().ok();
    let old = facts.labels_file.as_deref();
    let new = wanted.and_then(|wanted| wanted.config.labels_file.as_deref());
    if old != new {
        actions.forward.extend(old.map(remove_labels));
        actions.after_undo.extend(new.map(remove_labels));
    }
    let endpoint = facts.endpoint.clone();
    let backends: Vec<_> = wanted
        .iter()
        .flat_map(|wanted| &wanted.config.table.backends)
        .map(|backend| backend.socket.to_string())
        .collect();
    let serve = Work::Serve {
        endpoint: endpoint.clone(),
        backends: backends.clone(),
        within: facts.specification.kubelet_timeout,
    };
    actions.forward.push(action("start", serve));
    if planned.iter().any(|planned| planned.step == "try") {
        let (tried, how) = (Work::RemoveTried { backends }, facts.specification.tries);
        actions.before_undo.insert(0, action("try", tried));
        actions
            .forward
            .push(action("try", Work::Try { endpoint, how }));
    }
    actions
}

/// The calls of systemctl that start or restart criswitch with its new files, and the calls that undo this.
fn systemctl_actions(verb: &str, planned: &[&PlannedStep]) -> Actions {
    let change_of = |unit: &str| {
        let path = format!("{UNITS}/{unit}");
        planned
            .iter()
            .flat_map(|planned| &planned.changes)
            .find(|change| change.place == path)
    };
    let socket = change_of("criswitch.socket");
    // A change of a socket unit takes effect only when the unit is restarted.
    let units: &[&str] = if verb == "restart" && socket.is_none() {
        &["criswitch.service"]
    } else {
        &["criswitch.socket", "criswitch.service"]
    };
    let start = systemctl("start", &[&[verb], units].concat());
    let reload = systemctl("start", &["daemon-reload"]);
    let mut actions = Actions {
        forward: vec![reload.clone(), start.clone()],
        before_undo: Vec::new(),
        after_undo: vec![reload],
    };
    if change_of(METRICS_SOCKET).is_some() {
        // systemd starts this socket before the service, and rejects a start while the service runs. The service only
        // wants the socket, so a socket that cannot listen does not fail the start of the service.
        let stop = systemctl("start", &["stop", METRICS_SOCKET]);
        actions.forward.insert(1, stop.clone());
        actions.forward.push(systemctl(
            "start",
            &["is-active", "--quiet", METRICS_SOCKET],
        ));
        actions.before_undo.push(stop);
    }
    if verb == "restart" {
        actions.after_undo.push(start);
        return actions;
    }
    actions
        .before_undo
        .push(systemctl("start", &[&["stop"], units].concat()));
    if socket.is_some_and(|change| change.what == "create") {
        actions.before_undo.push(action("start", Work::Forget));
    }
    actions
}

/// The actions that make the kubelet run with its new files, and the actions that undo this.
fn kubelet_actions(facts: &MachineFacts<'_>, planned: &[&PlannedStep]) -> Actions {
    let (Ok(layout), false) = (&facts.layout, planned.is_empty()) else {
        return Actions::default();
    };
    let old = facts.kubelet.endpoint().unwrap_or(&layout.endpoint);
    let [forward, after_undo] = [facts.endpoint.as_str(), old].map(|endpoint| {
        let restart = Work::Restart {
            unit: layout.unit.clone(),
            pods_of: old.to_owned(),
            ran: facts.kubelet.pid.is_some() || !facts.root.runs(),
        };
        let verify = Work::Verify {
            unit: layout.unit.clone(),
            endpoint: endpoint.to_owned(),
            within: facts.specification.kubelet_timeout,
            settle: facts.specification.settle_time,
        };
        vec![
            systemctl("restart", &["daemon-reload"]),
            action("restart", restart),
            action("verify", verify),
        ]
    });
    Actions {
        forward,
        before_undo: Vec::new(),
        after_undo,
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
    let mounts: BTreeSet<_> = planned
        .iter()
        .flat_map(|planned| &planned.changes)
        .filter(|change| change.content.is_some())
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
    let program = Content::File {
        bytes: program,
        mode: 0o755,
    };
    let link = units.join("multi-user.target.wants").join(RECOVER);
    let target = Content::Link(Path::new("..").join(RECOVER));
    let program = (RECOVER_PROGRAM.into(), program);
    Recover {
        unit: vec![program, (units.join(RECOVER), steps::text(&unit))],
        link: vec![(link, target)],
    }
}

#[cfg(test)]
mod tests {
    use super::super::steps::Change;
    use super::*;

    /// The calls of systemctl before and after a change of a unit: forward, before an undo, and after it.
    fn calls(verb: &str, unit: &str, what: &str) -> [Vec<String>; 3] {
        let change = Change {
            place: format!("{UNITS}/{unit}"),
            what: what.to_owned(),
            content: None,
        };
        let planned = PlannedStep {
            step: "units",
            changes: vec![change],
        };
        let actions = systemctl_actions(verb, &[&planned]);
        [actions.forward, actions.before_undo, actions.after_undo].map(|actions| {
            let calls = actions.into_iter().filter_map(|action| match action.work {
                Work::Systemctl(words) if words != ["daemon-reload"] => Some(words.join(" ")),
                _ => None,
            });
            calls.collect()
        })
    }

    #[test]
    fn a_socket_of_the_metrics_starts_with_the_service_and_must_listen() {
        let both = "criswitch.socket criswitch.service";
        let stop = "stop criswitch-metrics.socket";
        let is_active = "is-active --quiet criswitch-metrics.socket";
        let restart = "restart criswitch.service";
        for (verb, unit, what, [forward, before, after]) in [
            (
                "restart",
                METRICS_SOCKET,
                "create",
                [&format!("{stop},{restart},{is_active}"), stop, restart],
            ),
            (
                "restart",
                METRICS_SOCKET,
                "replace",
                [&format!("{stop},{restart},{is_active}"), stop, restart],
            ),
            (
                "start",
                METRICS_SOCKET,
                "create",
                [
                    &format!("{stop},start {both},{is_active}"),
                    &format!("{stop},stop {both}"),
                    "",
                ],
            ),
            (
                "restart",
                "criswitch.socket",
                "replace",
                [&format!("restart {both}"), "", &format!("restart {both}")],
            ),
            (
                "restart",
                "criswitch.service",
                "replace",
                ["restart criswitch.service", "", "restart criswitch.service"],
            ),
        ] {
            let made = calls(verb, unit, what).map(|calls| calls.join(","));
            assert_eq!(made, [forward, before, after], "{verb} {unit} {what}");
        }
    }
}
