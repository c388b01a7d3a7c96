//! The notes about problems to solve before the configuration is used. Each note is one line with one or two sentences.

use std::collections::BTreeMap;

use criswitch_client::probe::{self, Probed};
use criswitch_client::terminal;
use criswitch_config::wording::{self, counted};
use criswitch_cri::facts::NEEDED;
use criswitch_node::collisions;

use super::Discovered;
use super::plan::ConfigPlan;
use crate::consequences::{self, Consequence};

/// All notes, the most urgent ones first.
pub(super) fn notes(discovered: &Discovered) -> Vec<String> {
    let plan = &discovered.plan;
    let found = plan.backends.iter();
    let found: Vec<_> = found
        .map(|backend| (backend.place.name.as_str(), &backend.found))
        .collect();
    let consequences = consequences::of(&found);
    let shared = collisions::between(&found);
    let notes = [
        others(discovered),
        other_drivers(&found),
        not_ready(&found),
        unexpected_users(&found),
        conflicts(plan),
        silent(discovered),
        own(discovered),
        shared.iter().map(ToString::to_string).collect(),
        lost_features(&found),
        consequences.iter().map(Consequence::line).collect(),
    ]
    .concat();
    notes.iter().map(|note| terminal::plain(note)).collect()
}

fn others(discovered: &Discovered) -> Vec<String> {
    let others = discovered.others.iter().map(|other| {
        let (socket, found) = (&other.place.socket, &other.found);
        let (runtime, version) = (&found.runtime, &found.version);
        let pods = counted(found.pods.len(), "pod");
        format!(
            "Also found: {socket} ({runtime} {version}, {pods}). It is not a backend here; --all makes it one."
        )
    });
    others.collect()
}

fn other_drivers(found: &[(&str, &Probed)]) -> Vec<String> {
    let Some((first, default)) = found.first() else {
        return Vec::new();
    };
    let others = probe::other_drivers(first, default.cgroup_driver, found).into_iter();
    others
        .map(|(name, what)| format!("{name} {what}."))
        .collect()
}

fn not_ready(found: &[(&str, &Probed)]) -> Vec<String> {
    let texts = found.iter().flat_map(|(name, found)| {
        let texts = found.not_ready(&NEEDED).into_iter();
        texts.map(move |what| format!("{name}: {what}"))
    });
    texts.collect()
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
