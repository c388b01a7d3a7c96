//! The metadata of the printed objects.

use serde_json::{Map, Value, json};

/// The labels of every object. Their value is `criswitch`.
const LABELS: [&str; 2] = ["app.kubernetes.io/managed-by", "app.kubernetes.io/part-of"];

/// The name of an object, and the labels with which `kubectl apply --prune` and `kubectl delete` select all objects of
/// criswitch.
pub(super) fn metadata(name: &str) -> Value {
    let labels = LABELS.map(|key| (key.to_owned(), json!("criswitch")));
    json!({ "name": name, "labels": Map::from_iter(labels) })
}
