//! `criswitch manifests`: the RuntimeClass of each handler of the table. Asks no backend.

use std::collections::BTreeMap;

use criswitch::config::{Effect, Handler, Scheduling, Table, Toleration};
use serde_json::{Map, Value, json};

/// For `kubectl apply -f -`: a document each.
pub(super) fn yaml(table: &Table) -> anyhow::Result<String> {
    let classes: Vec<Value> = table.handlers.iter().map(runtime_class).collect();
    Ok(serde_saphyr::to_string_multiple(&classes)?)
}

/// The same as one list, which kubectl takes as well.
pub(super) fn json(table: &Table) -> anyhow::Result<String> {
    let classes: Vec<Value> = table.handlers.iter().map(runtime_class).collect();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": classes });
    Ok(serde_json::to_string_pretty(&list)? + "\n")
}

/// What is not in the manifests though the switch will have it, a line each.
pub(super) fn left_out(table: &Table) -> String {
    let adopting = table.backends.iter().filter(|backend| backend.adopt);
    adopting
        .map(|backend| {
            let name = &backend.name;
            format!("criswitch: backend {name:?} adopts: what it advertises and no row names is left out\n")
        })
        .collect()
}

/// Kubernetes 1.37: node.k8s.io/v1 RuntimeClass.
fn runtime_class(row: &Handler) -> Value {
    let mut class = json!({
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": { "name": row.name },
        "handler": row.name,
    });
    let Scheduling {
        overhead,
        node_selector,
        tolerations,
    } = &row.scheduling;
    if !overhead.is_empty() {
        class["overhead"] = json!({ "podFixed": overhead });
    }
    let scheduling = scheduling(node_selector, tolerations);
    if !scheduling.is_empty() {
        class["scheduling"] = scheduling.into();
    }
    class
}

fn scheduling(
    node_selector: &BTreeMap<String, String>,
    tolerations: &[Toleration],
) -> Map<String, Value> {
    let mut scheduling = Map::new();
    if !node_selector.is_empty() {
        scheduling.insert("nodeSelector".to_owned(), json!(node_selector));
    }
    if !tolerations.is_empty() {
        let tolerations: Vec<Value> = tolerations.iter().map(toleration).collect();
        scheduling.insert("tolerations".to_owned(), tolerations.into());
    }
    scheduling
}

/// A field that says nothing is not there.
fn toleration(toleration: &Toleration) -> Value {
    let mut value = json!({ "operator": toleration.operator.name() });
    if !toleration.key.is_empty() {
        value["key"] = json!(toleration.key);
    }
    if !toleration.value.is_empty() {
        value["value"] = json!(toleration.value);
    }
    if toleration.effect != Effect::Any {
        value["effect"] = json!(toleration.effect.name());
    }
    if let Some(seconds) = toleration.seconds {
        value["tolerationSeconds"] = json!(seconds);
    }
    value
}
