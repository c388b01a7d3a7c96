//! The notes about problems to solve before the configuration is used. Each note is one line with one or two sentences.

use std::collections::BTreeMap;

use criswitch::config::wording;
use criswitch::fanout::status::NEEDED;

use super::Discovered;
use super::plan::{ConfigPlan, Planned};
use crate::cli::check::driver_name;
use crate::cli::consequences;
use crate::cli::terminal;

/// All notes, the most urgent ones first.
pub(super) fn notes(discovered: &Discovered) -> Vec<String> {
    let plan = &discovered.plan;
    let mut notes = other_drivers(plan);
    notes.extend(not_ready(plan));
    notes.extend(unexpected_users(plan));
    notes.extend(conflicts(plan));
    notes.extend(silent(discovered));
    notes.extend(own(discovered));
    notes.extend(lost_features(plan));
    let found = plan.backends.iter();
    let found = found.map(|backend| (backend.place.name.as_str(), &backend.found));
    let consequences = consequences::of(&found.collect::<Vec<_>>());
    notes.extend(
        consequences
            .iter()
            .map(|it| it.line().trim_end().to_owned()),
    );
    notes.iter().map(|note| terminal::plain(note)).collect()
}

fn other_drivers(plan: &ConfigPlan) -> Vec<String> {
    let driver = |backend: &Planned| backend.found.cgroup_driver;
    // The kubelet uses the driver of the default backend. A backend that reports no driver uses the kubelet's driver,
    // so only backends that report a driver are compared.
    let Some(first) = plan
        .backends
        .first()
        .filter(|first| driver(first).is_some())
    else {
        return Vec::new();
    };
    let ours = driver(first).map(driver_name).unwrap_or_default();
    let others = plan
        .backends
        .iter()
        .filter(|other| driver(other).is_some() && driver(other) != driver(first));
    others
        .map(|other| {
            let (name, first) = (&other.place.name, &first.place.name);
            let theirs = driver(other).map(driver_name).unwrap_or_default();
            format!(
                "{name} uses the cgroup driver {theirs}, but {first} uses {ours}. Set the same driver for the kubelet \
                 and all backends before the kubelet uses criswitch."
            )
        })
        .collect()
}

fn not_ready(plan: &ConfigPlan) -> Vec<String> {
    let conditions = plan.backends.iter().flat_map(|backend| {
        backend
            .found
            .conditions
            .iter()
            .map(|condition| (&backend.place.name, condition))
    });
    conditions
        .filter(|(_, condition)| !condition.status && NEEDED.contains(&condition.r#type.as_str()))
        .map(|(name, condition)| {
            let (kind, message) = (&condition.r#type, &condition.message);
            format!("{name} is not ready ({kind} is false): {message}")
        })
        .collect()
}

fn unexpected_users(plan: &ConfigPlan) -> Vec<String> {
    let unexpected_users = plan.backends.iter();
    let unexpected_users = unexpected_users
        .filter_map(|backend| Some((&backend.place.name, backend.found.unexpected_user?)));
    unexpected_users
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
        .map(|(place, cause)| format!("No backend at {}: {cause}.{}", place.socket, hint(cause)))
        .collect()
}

/// A hint for the error of a containerd that is older than 1.6 or has no CRI plugin.
fn hint(cause: &str) -> &'static str {
    if cause.contains("unknown service runtime.v1") {
        " The runtime is too old, or its CRI plugin is disabled (disabled_plugins, as in Docker's packages)."
    } else {
        ""
    }
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
fn lost_features(plan: &ConfigPlan) -> Vec<String> {
    let Some(first) = plan.backends.first() else {
        return Vec::new();
    };
    let lacking = |feature: &str| -> String {
        let without = plan
            .backends
            .iter()
            .filter(|backend| !backend.found.feature_names().contains(&feature));
        let names: Vec<&str> = without.map(|backend| backend.place.name.as_str()).collect();
        names.join(", ")
    };
    let mut lost: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for feature in first.found.feature_names() {
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
