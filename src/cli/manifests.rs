//! `criswitch manifests`: the RuntimeClass of each handler of the table. Asks no backend.

use criswitch::config::{Handler, Scheduling, Table, Toleration};
use serde_json::{Value, json};

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
    let rows = table
        .backends
        .iter()
        .filter(|backend| backend.auto_register);
    rows
        .map(|backend| {
            let name = &backend.name;
            format!("criswitch: backend {name:?} has auto_register = true: manifests omits handlers that the backend advertises and that have no row\n")
        })
        .collect()
}

/// Kubernetes 1.37: node.k8s.io/v1 RuntimeClass.
fn runtime_class(row: &Handler) -> Value {
    let overhead = &row.scheduling.overhead;
    let overhead = (!overhead.is_empty()).then(|| json!({ "podFixed": overhead }));
    object([
        ("apiVersion", Some(json!("node.k8s.io/v1"))),
        ("kind", Some(json!("RuntimeClass"))),
        ("metadata", Some(json!({ "name": row.name }))),
        ("handler", Some(json!(row.name))),
        ("overhead", overhead),
        ("scheduling", scheduling(&row.scheduling)),
    ])
}

fn scheduling(row: &Scheduling) -> Option<Value> {
    let (selector, tolerations) = (&row.node_selector, &row.tolerations);
    if selector.is_empty() && tolerations.is_empty() {
        return None;
    }
    let tolerations: Vec<Value> = tolerations.iter().map(toleration).collect();
    Some(object([
        (
            "nodeSelector",
            (!selector.is_empty()).then(|| json!(selector)),
        ),
        (
            "tolerations",
            (!tolerations.is_empty()).then(|| json!(tolerations)),
        ),
    ]))
}

fn toleration(toleration: &Toleration) -> Value {
    let text = |text: &str| (!text.is_empty()).then(|| json!(text));
    object([
        ("key", text(&toleration.key)),
        ("operator", text(toleration.operator.as_ref())),
        ("value", text(&toleration.value)),
        ("effect", text(toleration.effect.as_ref())),
        ("tolerationSeconds", toleration.seconds.map(Value::from)),
    ])
}

/// A field that says nothing is not there.
fn object<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    let fields = fields.into_iter();
    fields
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
}
