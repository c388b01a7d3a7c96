//! The notes about problems to solve before the configuration is used. Each note is one line with one or two sentences.

use std::collections::BTreeMap;

use criswitch_client::probe::{self, Probed};
use criswitch_client::terminal;
use criswitch_config::wording::{self, counted};
use criswitch_cri::facts::NEEDED;
use criswitch_node::collisions;

use super::Discovered;
use super::plan::ConfigPlan;
use crate::consequences;

/// All notes, the most urgent ones first.
pub(super) fn notes(discovered: &Discovered) -> Vec<String> {
    let plan = &discovered.plan;
    let found: Vec<_> = plan
        .backends
        .iter()
        .map(|backend| (backend.place.name.as_str(), &backend.found))
        .collect();
    let shared = collisions::all(
        &found,
        plan.backends.iter().map(|backend| &backend.place.socket),
    )
    .into_iter();
    let consequences = consequences::of_backends(&found).into_iter();
    [
        others(discovered),
        differing_cgroup_drivers(&found),
        not_ready(&found),
        unexpected_users(&found),
        conflicts(plan),
        silent(discovered),
        own_socket_notes(discovered),
        shared.map(|it| it.to_string()).collect(),
        lost_features(&found),
        consequences.map(|it| it.line()).collect(),
    ]
    .iter()
    .flatten()
    .map(|note| terminal::plain(note))
    .collect()
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

fn differing_cgroup_drivers(found: &[(&str, &Probed)]) -> Vec<String> {
    let Some((first, default)) = found.first() else {
        return Vec::new();
    };
    probe::differing_cgroup_drivers(first, default.cgroup_driver, found)
        .into_iter()
        .map(|(name, what)| format!("{name} {what}."))
        .collect()
}

fn not_ready(found: &[(&str, &Probed)]) -> Vec<String> {
    found
        .iter()
        .flat_map(|(name, found)| {
            found
                .not_ready(&NEEDED)
                .into_iter()
                .map(move |what| format!("{name}: {what}"))
        })
        .collect()
}

fn unexpected_users(found: &[(&str, &Probed)]) -> Vec<String> {
    found
        .iter()
        .filter_map(|(name, found)| Some((name, found.unexpected_user?)))
        .map(|(name, uid)| format!("{name}: {}.", wording::unexpected_user(uid)))
        .collect()
}

/// One note for each backend and each reason for which rows of the backend are commented out.
fn conflicts(plan: &ConfigPlan) -> Vec<String> {
    let mut rows: BTreeMap<(usize, &str), Vec<String>> = BTreeMap::new();
    for row in &plan.rows {
        if let Some(reason) = &row.conflict {
            rows.entry((row.backend, reason))
                .or_default()
                .push(row.shown_name());
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
    discovered
        .silent
        .iter()
        .map(|(place, cause)| format!("No backend at {}: {cause}.", place.socket))
        .collect()
}

fn own_socket_notes(discovered: &Discovered) -> Vec<String> {
    discovered
        .own
        .iter()
        .map(|place| &place.socket)
        .map(|socket| format!("{socket} is a socket of criswitch, not of a backend."))
        .collect()
}

/// Notes about features of the default backend that other backends lack. The node has a feature only if all backends
/// have it.
fn lost_features(found: &[(&str, &Probed)]) -> Vec<String> {
    let Some((_, first)) = found.first() else {
        return Vec::new();
    };
    let mut lost: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for feature in first.feature_names() {
        let lacking: Vec<_> = found
            .iter()
            .filter(|(_, found)| !found.feature_names().contains(&feature))
            .map(|(name, _)| *name)
            .collect();
        lost.entry(lacking.join(", ")).or_default().push(feature);
    }
    lost.remove("");
    lost.iter()
        .map(|(lacking, features)| {
            let features = features.join(", ");
            format!(
                "The node only has features that all backends have. Missing in {lacking}: {features}."
            )
        })
        .collect()
}
