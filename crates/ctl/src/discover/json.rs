//! The discovered runtimes as JSON.

use criswitch_client::probe::probed_json;
use criswitch_config::Config;
use serde_json::{Value, json};

use super::Discovered;
use super::plan::{ConfigPlan, PlannedBackend, PlannedRow};

/// The object that describes the discovery, with the text of the configuration.
pub(super) fn report(
    discovered: &Discovered,
    notes: &[String],
    config: &Config,
    text: &str,
) -> Value {
    let plan = &discovered.plan;
    let silent = discovered
        .silent
        .iter()
        .map(|(place, cause)| json!({ "socket": place.socket.to_string(), "cause": cause }));
    let own = discovered.own.iter().map(|place| place.socket.to_string());
    json!({
        "listen": config.listen.to_string(),
        "defaultHandler": plan.default,
        "handlers": plan.rows.iter().map(|row| handler(plan, row)).collect::<Vec<_>>(),
        "backends": plan.backends.iter().map(backend).collect::<Vec<_>>(),
        "silent": silent.collect::<Vec<_>>(),
        "own": own.collect::<Vec<_>>(),
        "notes": notes,
        "configuration": text,
    })
}

fn handler(plan: &ConfigPlan, row: &PlannedRow) -> Value {
    let backend = plan.backends.get(row.backend);
    json!({
        "name": row.name,
        "backend": backend.map(|backend| &backend.place.name),
        "backendHandler": row.handler,
        "features": backend.map(|backend| backend.found.features_of(&row.handler)),
        "kind": backend.and_then(|backend| row.kind(backend)).map(|kind| kind.as_ref().to_owned()),
        "conflict": row.conflict,
    })
}

fn backend(backend: &PlannedBackend) -> Value {
    let also = backend.place.also.iter().map(ToString::to_string);
    json!({
        "name": backend.place.name,
        "socket": backend.place.socket.to_string(),
        "also": also.collect::<Vec<_>>(),
        "defaultHandler": backend.found.configured.default,
        "probe": probed_json(&backend.found),
    })
}
