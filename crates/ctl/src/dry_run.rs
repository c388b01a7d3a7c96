//! `criswitch reload --dry-run`: shows the changes that a reload would make, and changes nothing.

use criswitch_config::problem::lines;
use criswitch_cri::codec::admin::{Changes, PlanReloadResponse, Undo};

use criswitch_client::exit::Verdict;
use criswitch_client::terminal::{self, SafeText};

/// The line for a reload that would change nothing.
const NOTHING: &str = "nothing would change";
/// The line for a reload that would be rejected, and would change nothing without the keys that need a restart.
const NOTHING_ELSE: &str =
    "a reload would be rejected; without the keys that need a restart, nothing would change";
/// The line before the changes that a reload would make, if it were not rejected because of keys that need a restart.
const REST: &str = "without the keys that need a restart, these changes would apply:";
/// The line before the changes that a reload can undo.
const UNDO: &str = "to undo: put the old files back, then criswitch reload";

pub(super) fn verdict(plan: &PlanReloadResponse) -> Verdict {
    match plan {
        _ if !plan.problems.is_empty() => Verdict::WrongConfiguration,
        _ if plan.would_change => Verdict::WouldChange,
        _ => Verdict::Fine,
    }
}

/// The text on standard output.
pub(super) fn text(plan: &PlanReloadResponse) -> SafeText {
    let Some(changes) = &plan.changes else {
        return SafeText::default();
    };
    let heading = (!plan.undo.is_empty()).then(|| UNDO.to_owned());
    let next_start = (!plan.next_start.is_empty()).then(|| {
        format!(
            "a reload ignores these keys, the next start reads them: {}",
            plan.next_start.join(", ")
        )
    });
    SafeText::parts([
        shown(of_changes(plan, changes)),
        shown(heading.into_iter().chain(plan.undo.iter().map(of_undo))),
        shown(next_start),
        shown(plan.restart_problems.iter().cloned()),
    ])
}

/// The text on standard error: the problems for which a reload would be rejected.
pub(super) fn complaint(plan: &PlanReloadResponse) -> Option<String> {
    let problems = lines(&plan.problems);
    (!problems.is_empty())
        .then(|| format!("{problems}\ncriswitch: a reload would be rejected and change nothing\n"))
}

fn of_changes(plan: &PlanReloadResponse, changes: &Changes) -> Vec<String> {
    let lines = if plan.undo.is_empty() {
        &changes.warnings
    } else {
        &changes.lines
    };
    let heading = match (plan.problems.is_empty(), plan.undo.is_empty()) {
        (true, true) => Some(NOTHING),
        (false, true) => Some(NOTHING_ELSE),
        (false, false) => Some(REST),
        (true, false) => None,
    };
    heading
        .map(str::to_owned)
        .into_iter()
        .chain(lines.iter().cloned())
        .collect()
}

fn of_undo(undo: &Undo) -> String {
    let how = if undo.complete {
        ""
    } else {
        " cannot be undone completely"
    };
    format!("{}{how}: {}", undo.what, undo.effect)
}

fn shown(lines: impl IntoIterator<Item = String>) -> SafeText {
    lines
        .into_iter()
        .map(|line| terminal::wrapped_first(&line))
        .collect::<String>()
        .into()
}
