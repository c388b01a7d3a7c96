//! The notes about problems to solve before the configuration is used. Each note is one line with one or two sentences.

use std::collections::BTreeMap;

use criswitch_client::terminal;
use criswitch_config::wording;
use criswitch_cri::facts::NEEDED;

use super::Discovered;
use super::plan::ConfigPlan;
use crate::consequences::{self, Consequence};
use crate::probe::{self, Probed};

/// All notes, the most urgent ones first.
pub(super) fn notes(discovered: &Discovered) -> Vec<String> {
    let plan = &discovered.plan;
    let found = plan.backends.iter();
    let found = found.map(|backend| (backend.place.name.as_str(), &backend.found));
    let found: Vec<_> = found.collect();
    let consequences = consequences::of(&found);
    let notes = [
        other_drivers(&found),
        not_ready(&found),
        unexpected_users(&found),
        conflicts(plan),
        silent(discovered),
        own(discovered),
        lost_features(&found),
        consequences.iter().map(Consequence::line).collect(),
    ]
    .concat();
    notes.iter().map(|note| terminal::plain(note)).collect()
}

fn other_drivers(found: &[(&str, &Probed)]) -> Vec<String> {
    let Some((first, default)) = found.first() else {
        return Vec::new();
    };
    let others = probe::other_drivers(first, default.cgroup_driver, found).into_iter();
    others
        .map(|(name, what)| {
            format!(
                "{name} {what}. Set the same driver for the kubelet and all backends before the kubelet uses criswitch."
            )
        })
        .collect()
}

fn not_ready(found: &[(&str, &Probed)]) -> Vec<String> {
    let conditions = found.iter().flat_map(|(name, found)| {
        let conditions = found.conditions.iter();
        conditions.map(move |condition| (name, condition))
    });
    conditions
        .filter(|(_, condition)| !condition.status && NEEDED.contains(&condition.r#type.as_str()))
        .map(|(name, condition)| {
            let (kind, message) = (&condition.r#type, &condition.message);
            format!("{name} is not ready ({kind} is false): {message}")
        })
        .collect()
}

fn unexpected_users(found: &[(&str, &Probed)]) -> Vec<String> {
    let users = found.iter();
    users
        .filter_map(|(name, found)| Some((name, found.unexpected_user?)))
        .map(|(name, uid)| format!("{name}: {}.", wording::unexpected_user(uid)))
        .collect()
}

/// One note for each backend and each reason for which rows of the backend are commented out.
fn conflicts(plan: &ConfigPlan) -> Vec<String> {
    let mut rows: BTreeMap<(usize, &str), Vec<String>> = BTreeMap::new();
    for row in &plan.rows {
        if let Some(reason) = &row.conflict {
            let same = rows.entry((row.backend, reason)).or_default();
            same.push(row.shown_name());
        }
    }
    rows.iter()
        .filter_map(|((backend, reason), names)| {
            let backend = &plan.backends.get(*backend)?.place.name;
            let names = names.join(", ");
            Some(format!(
                "Rows of {backend} are commented out under [handlers]: {names} ({reason})."
            ))
        })
        .collect()
}

fn silent(discovered: &Discovered) -> Vec<String> {
    let silent = discovered.silent.iter();
    silent
        .map(|(place, cause)| format!("No backend at {}: {cause}.", place.socket))
        .collect()
}

fn own(discovered: &Discovered) -> Vec<String> {
    let own = discovered.own.iter();
    own.map(|place| {
        format!(
            "{} is a socket of criswitch, not of a backend.",
            place.socket
        )
    })
    .collect()
}

/// Notes about features of the default backend that other backends lack. The node has a feature only if all backends
/// have it.
fn lost_features(found: &[(&str, &Probed)]) -> Vec<String> {
    let Some((_, first)) = found.first() else {
        return Vec::new();
    };
    let lacking = |feature: &str| -> String {
        let lacks = |found: &Probed| !found.feature_names().contains(&feature);
        let without = found.iter().filter(|(_, found)| lacks(found));
        let names: Vec<&str> = without.map(|(name, _)| *name).collect();
        names.join(", ")
    };
    let mut lost: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for feature in first.feature_names() {
        lost.entry(lacking(feature)).or_default().push(feature);
    }
    lost.remove("");
    let lost = lost.iter();
    lost.map(|(lacking, features)| {
        let features = features.join(", ");
        format!(
            "The node only has features that all backends have. Missing in {lacking}: {features}."
        )
    })
    .collect()
}
