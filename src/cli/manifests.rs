//! `criswitch manifests`: a RuntimeClass for each handler of the table. Calls no backend.

use criswitch::config::{Handler, Scheduling, Table, Toleration};
use criswitch::platform::paths::NODE_LABELS;
use serde_json::{Value, json};

/// The RuntimeClasses as YAML documents, for `kubectl apply -f -`.
pub(super) fn yaml(table: &Table) -> anyhow::Result<String> {
    let classes: Vec<Value> = table.handlers.iter().map(runtime_class).collect();
    Ok(serde_saphyr::to_string_multiple(&classes)?)
}

/// The RuntimeClasses as one JSON list, which kubectl accepts too.
pub(super) fn json(table: &Table) -> String {
    let classes: Vec<Value> = table.handlers.iter().map(runtime_class).collect();
    format!(
        "{:#}\n",
        json!({ "apiVersion": "v1", "kind": "List", "items": classes })
    )
}

/// One line for each backend with automatically registered handlers. The manifests omit these handlers.
pub(super) fn left_out(table: &Table) -> String {
    let rows = table
        .backends
        .iter()
        .filter(|backend| backend.auto_register);
    rows
        .map(|backend| {
            let name = &backend.name;
            format!(
                "criswitch: the output omits automatically registered handlers of backend {name:?}; add a row under [handlers] \
                 for each one that needs a RuntimeClass\n"
            )
        })
        .collect()
}

/// A RuntimeClass (node.k8s.io/v1) of Kubernetes 1.37.
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
    let (mut selector, tolerations) = (row.node_selector.clone(), &row.tolerations);
    for (label, value) in NODE_LABELS {
        let label = selector.entry((*label).to_owned());
        label.or_insert_with(|| (*value).to_owned());
    }
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

/// A JSON object without the fields that are `None`.
fn object<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    let fields = fields.into_iter();
    fields
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
}
