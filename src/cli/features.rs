//! Features of the CRI that only some backends or handlers have, and the pods that the kubelet then rejects.

use std::collections::BTreeSet;

use criswitch::config::{Handler, Table};
use serde_json::{Value, json};

use super::probe::{Probe, Probed};

/// The name of a feature, and the effect if the feature is missing.
type Feature = (&'static str, &'static str);

/// Features that the node has only if all backends have them, because the CRI has one value for all handlers.
const OF_THE_NODE: [Feature; 3] = [
    (
        "supplemental_groups_policy",
        "rejects every pod with `supplementalGroupsPolicy: Strict` (before 1.33 it silently applies `Merge`)",
    ),
    (
        "user_namespaces_host_network",
        "rejects every pod with `hostNetwork: true` and `hostUsers: false`",
    ),
    (
        "mount_options",
        "rejects every pod that mounts a volume with `bindMountOptions`",
    ),
];

/// Features that the CRI reports for each handler.
const OF_A_HANDLER: [Feature; 2] = [
    (
        "user_namespaces",
        "starts no pod of such a handler with `hostUsers: false`",
    ),
    (
        "recursive_read_only_mounts",
        "starts no container of such a handler that mounts a volume with `recursiveReadOnly: Enabled`",
    ),
];

/// A feature that some backends or handlers have and others lack.
struct Lack<'a> {
    feature: &'static str,
    effect: &'static str,
    /// The backends without the feature.
    backends: BTreeSet<&'a str>,
    /// The handlers without the feature; `None` for a feature of the whole node.
    handlers: Option<Vec<&'a str>>,
}

/// One line for each feature that some backends or handlers have and others lack.
pub(super) fn lines(table: &Table, probes: &[Probe]) -> String {
    let lacks = lacks(table, probes);
    lacks.iter().map(Lack::line).collect()
}

/// The lines of [`lines`] as JSON.
pub(super) fn json(table: &Table, probes: &[Probe]) -> Value {
    let lacks = lacks(table, probes);
    lacks.iter().map(Lack::json).collect()
}

fn lacks<'a>(table: &'a Table, probes: &'a [Probe]) -> Vec<Lack<'a>> {
    let of_the_node = OF_THE_NODE.iter().filter_map(|(feature, effect)| {
        let (_, without) = parted(backends(table, probes), |(_, found)| {
            found.feature_names().contains(feature)
        })?;
        Some(Lack {
            feature,
            effect,
            backends: without.into_iter().map(|(name, _)| name).collect(),
            handlers: None,
        })
    });
    let of_handlers = OF_A_HANDLER.iter().filter_map(|(feature, effect)| {
        let (_, without) = parted(rows(table, probes), |(row, _, found)| {
            found.features_of(&row.backend_handler).contains(feature)
        })?;
        Some(Lack {
            feature,
            effect,
            backends: without.iter().map(|(_, backend, _)| *backend).collect(),
            handlers: Some(without.iter().map(|(row, ..)| row.name.as_str()).collect()),
        })
    });
    of_the_node.chain(of_handlers).collect()
}

/// The items for which `has` is true, and the rest; `None` if either part is empty.
fn parted<T>(all: impl Iterator<Item = T>, has: impl Fn(&T) -> bool) -> Option<(Vec<T>, Vec<T>)> {
    let (with, without): (Vec<T>, Vec<T>) = all.partition(has);
    (!with.is_empty() && !without.is_empty()).then_some((with, without))
}

/// The names and answers of the backends that answered the probe and may get new pods.
fn backends<'a>(
    table: &'a Table,
    probes: &'a [Probe],
) -> impl Iterator<Item = (&'a str, &'a Probed)> {
    let answered = table.backends.iter().zip(probes).enumerate();
    answered.filter_map(|(id, (backend, probe))| {
        let takes_pods =
            backend.auto_register || table.handlers.iter().any(|row| row.backend == id);
        let found = probe.as_ref().ok().filter(|_| takes_pods)?;
        Some((backend.name.as_str(), found))
    })
}

/// The rows of `[handlers]` whose backends answered the probe, each with the name and the answers of its backend.
fn rows<'a>(
    table: &'a Table,
    probes: &'a [Probe],
) -> impl Iterator<Item = (&'a Handler, &'a str, &'a Probed)> {
    table.handlers.iter().filter_map(|row| {
        let found = probes.get(row.backend)?.as_ref().ok()?;
        let backend = table.backends.get(row.backend)?;
        Some((row, backend.name.as_str(), found))
    })
}

impl Lack<'_> {
    fn line(&self) -> String {
        let (feature, effect) = (self.feature, self.effect);
        let cause = match &self.handlers {
            None => format!(
                "on the node because of {}",
                named("backend", self.backends.iter())
            ),
            Some(handlers) => {
                let handlers = named("handler", handlers.iter());
                format!("for {handlers}, whose backend does not report it")
            }
        };
        format!("feature {feature:?} is off {cause}: the kubelet {effect}\n")
    }

    fn json(&self) -> Value {
        json!({
            "feature": self.feature,
            "backends": self.backends,
            "handlers": self.handlers,
            "effect": format!("the kubelet {}", self.effect),
        })
    }
}

/// Lists names after their kind, such as `backend "a"` or `backends "a", "b"`.
fn named<'n>(kind: &str, names: impl ExactSizeIterator<Item = &'n &'n str>) -> String {
    let plural = if names.len() == 1 { "" } else { "s" };
    let names: Vec<_> = names.map(|name| format!("{name:?}")).collect();
    format!("{kind}{plural} {}", names.join(", "))
}
