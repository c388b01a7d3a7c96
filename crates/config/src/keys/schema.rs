//! The JSON Schema of a configuration file, for editors. It accepts every valid file, and does not check whether the
//! values fit together.

use criswitch_platform::users;
use serde_json::{Map, Value, json};
use strum::VariantArray;

use super::{Key, KeyKind, of_table};
use crate::RuntimeKind;

/// The names of handlers and backends.
const LABEL: &str = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$";

/// The schema of the main file and of drop-ins. No key is required, because a drop-in may have any of them.
pub fn schema() -> Value {
    let rows = ["handlers", "backends"].map(|name| {
        let row = json!({ "anyOf": [{ "type": "string" }, table(name)] });
        let names = json!({ "pattern": LABEL });
        let rows = json!({ "type": "object", "propertyNames": names, "additionalProperties": row });
        (name.to_owned(), rows)
    });
    let tables = ["log", "metrics"].map(|name| (name.to_owned(), table(name)));
    let properties = properties("").chain(rows).chain(tables);
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "The configuration of criswitch",
        "type": "object",
        "properties": properties.collect::<Map<_, _>>(),
        "additionalProperties": false,
    })
}

fn table(name: &str) -> Value {
    let properties: Map<_, _> = properties(name).collect();
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}

fn properties(table: &str) -> impl Iterator<Item = (String, Value)> {
    of_table(table).map(|key| {
        let mut property = of_kind(key);
        let default = key.default.map(|default| {
            serde_json::from_str(&key.quoted(default)).unwrap_or_else(|_| json!(default))
        });
        if let Some(fields) = property.as_object_mut() {
            fields.insert("description".to_owned(), json!(key.help));
            fields.extend(default.map(|default| ("default".to_owned(), default)));
        }
        (key.own_name().to_owned(), property)
    })
}

fn of_kind(key: &Key) -> Value {
    match key.kind {
        KeyKind::Text(_) if key.name == "kind" => {
            let kinds: Vec<&str> = RuntimeKind::VARIANTS.iter().map(AsRef::as_ref).collect();
            json!({ "type": "string", "enum": kinds })
        }
        KeyKind::Text(_) => json!({ "type": "string" }),
        KeyKind::Duration => {
            let unlimited = if key.limits.unlimited {
                "unlimited|"
            } else {
                ""
            };
            json!({ "type": "string", "pattern": format!("^({unlimited}[0-9][0-9a-z ]*)$") })
        }
        KeyKind::Size => json!({ "type": "string", "pattern": "^[0-9][0-9.]* *[A-Za-z]+$" }),
        KeyKind::Boolean => json!({ "type": "boolean" }),
        KeyKind::Integer => json!({ "type": "integer" }),
        KeyKind::Users => {
            let kind = if users::ARE_INTEGERS {
                "integer"
            } else {
                "string"
            };
            json!({ "type": "array", "items": { "type": kind } })
        }
        KeyKind::Table if of_table(key.name).next().is_none() => {
            json!({ "type": "object", "additionalProperties": { "type": "string" } })
        }
        KeyKind::Table if key.example.starts_with('[') => {
            json!({ "type": "array", "items": table(key.name) })
        }
        KeyKind::Table => table(key.name),
    }
}
