//! Features of the CRI that only some backends or handlers have, and the pods that the kubelet then rejects.

use std::collections::BTreeSet;

use criswitch_advice::{LIMITS, Limit};
use criswitch_client::probe::{Probe, Probed, answered, probe_of};
use criswitch_config::{Handler, Table};
use criswitch_cri::rpc::features::OF_HANDLER;
use serde::{Serialize, Serializer};

/// A feature that some backends or handlers have and others lack.
#[derive(Serialize)]
pub(super) struct MissingFeature<'a> {
    feature: &'static str,
    /// The limit of pods without the feature.
    #[serde(serialize_with = "limit")]
    limit: &'static Limit,
    /// The backends without the feature.
    backends: BTreeSet<&'a str>,
    /// The handlers without the feature; `None` for a feature of the whole node.
    handlers: Option<Vec<&'a str>>,
}

/// One line for each feature that some backends or handlers have and others lack.
pub(super) fn lines(table: &Table, probes: &[Probe]) -> Vec<String> {
    lacks(table, probes)
        .iter()
        .map(MissingFeature::line)
        .collect()
}

/// One line for each backend with features of a later version of the CRI.
pub(super) fn unknown_lines(table: &Table, probes: &[Probe]) -> Vec<String> {
    answered(table, probes)
        .into_iter()
        .map(|(name, found)| (name, found.unknown_feature_names().join(", ")))
        .filter(|(_, unknown)| !unknown.is_empty())
        .map(|(name, unknown)| {
            format!(
                "backend {name:?} reports features that this version of criswitch does not know: {unknown}. The node has a \
                 feature of RuntimeFeatures if all backends with handlers report it. A feature of RuntimeHandlerFeatures \
                 passes unchanged."
            )
        })
        .collect()
}

/// The facts that [`lines`] shows.
pub(super) fn lacks<'a>(table: &'a Table, probes: &'a [Probe]) -> Vec<MissingFeature<'a>> {
    let lacks = LIMITS.iter().filter_map(|limit| {
        let feature = limit.feature()?;
        // For any feature that is not in `OF_HANDLER`, the CRI has one value for the whole node, so the node has the
        // feature only if all backends have it.
        let (backends, handlers) = if OF_HANDLER.iter().any(|it| it.name == feature) {
            let without = lacking(rows(table, probes), |(row, _, found)| {
                found.features_of(&row.backend_handler).contains(&feature)
            })?;
            let handlers = without.iter().map(|(row, ..)| row.name.as_str()).collect();
            (without.iter().map(|it| it.1).collect(), Some(handlers))
        } else {
            let without = lacking(backends(table, probes), |(_, found)| {
                found.feature_names().contains(&feature)
            })?;
            (without.iter().map(|it| it.0).collect(), None)
        };
        Some(MissingFeature {
            feature,
            limit,
            backends,
            handlers,
        })
    });
    lacks.collect()
}

/// The items for which `has` is false; `None` if `has` returns the same for all items.
fn lacking<T>(all: impl Iterator<Item = T>, has: impl Fn(&T) -> bool) -> Option<Vec<T>> {
    let (with, without): (Vec<T>, Vec<T>) = all.partition(has);
    (!with.is_empty() && !without.is_empty()).then_some(without)
}

/// The names and answers of the backends that answered the probe and may get new pods.
fn backends<'a>(
    table: &'a Table,
    probes: &'a [Probe],
) -> impl Iterator<Item = (&'a str, &'a Probed)> {
    table
        .backends
        .iter()
        .zip(probes)
        .filter_map(|(backend, probe)| {
            let mut rows = table.handlers.iter();
            (backend.auto_register || rows.any(|row| row.backend == backend.id))
                .then_some((backend.name.as_str(), probe.as_ref().ok()?))
        })
}

/// The rows of `[handlers]` whose backends answered the probe, each with the name and the answers of its backend.
fn rows<'a>(
    table: &'a Table,
    probes: &'a [Probe],
) -> impl Iterator<Item = (&'a Handler, &'a str, &'a Probed)> {
    table.handlers.iter().filter_map(|row| {
        let found = probe_of(table, probes, row.backend)?.as_ref().ok()?;
        Some((row, table.backend(row.backend)?.name.as_str(), found))
    })
}

impl MissingFeature<'_> {
    fn line(&self) -> String {
        let (feature, limit) = (self.feature, self.limit);
        let cause = match &self.handlers {
            None => "on the node because of ".to_owned() + &named("backend", self.backends.iter()),
            Some(handlers) => {
                let handlers = named("handler", handlers.iter());
                format!("for {handlers}, whose backend does not report it")
            }
        };
        let fields = limit.field_names().collect::<Vec<_>>().join(", ");
        let (reason, remedy, id) = (limit.reason, limit.remedy, limit.id);
        format!("feature {feature:?} is off {cause}. Pods with {fields}: {reason} {remedy} [{id}]")
    }
}

fn limit<S: Serializer>(limit: &Limit, serializer: S) -> Result<S::Ok, S::Error> {
    limit.json(limit.field_names()).serialize(serializer)
}

/// Lists names after their kind, such as `backend "a"` or `backends "a", "b"`.
pub(super) fn named<'n>(kind: &str, names: impl ExactSizeIterator<Item = &'n &'n str>) -> String {
    let plural = if names.len() == 1 { "" } else { "s" };
    let names: Vec<_> = names.map(|name| format!("{name:?}")).collect();
    format!("{kind}{plural} {}", names.join(", "))
}
