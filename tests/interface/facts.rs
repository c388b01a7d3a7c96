//! The interface as tests/data/cri-1.38.json states it.

use serde_json::{Map, Value};

use crate::{Interface, declaration, signature};

pub(crate) const FACTS: &str = include_str!("../data/cri-1.38.json");

pub(crate) fn facts() -> Interface {
    read_facts(FACTS)
}

pub(crate) fn read_facts(text: &str) -> Interface {
    let facts: Value = serde_json::from_str(text).unwrap();
    let mut all = Interface::new();
    all.insert("package".into(), string(&facts["package"]));
    all.insert("syntax".into(), "proto3".into());
    for (service, rpcs) in object(&facts["services"]) {
        all.insert(format!("service {service}"), String::new());
        for (name, rpc) in object(rpcs) {
            all.insert(format!("rpc {service}.{name}"), fact_of_rpc(rpc));
        }
    }
    for (message, fact) in object(&facts["messages"]) {
        only_known_keys(fact, &["fields"]);
        all.insert(format!("message {message}"), String::new());
        for (name, field) in object(&fact["fields"]) {
            all.insert(format!("field {message}.{name}"), fact_of_field(field));
        }
    }
    for (name, values) in object(&facts["enums"]) {
        all.insert(format!("enum {name}"), String::new());
        for (value, number) in object(values) {
            all.insert(format!("value {name}.{value}"), number.to_string());
        }
    }
    all
}

fn fact_of_rpc(rpc: &Value) -> String {
    only_known_keys(rpc, &["request", "response", "server_streaming"]);
    let streaming = rpc["server_streaming"].as_bool().unwrap();
    signature(
        &string(&rpc["request"]),
        false,
        &string(&rpc["response"]),
        streaming,
    )
}

fn fact_of_field(field: &Value) -> String {
    only_known_keys(field, &["number", "type", "repeated", "oneof"]);
    let repeated = field.get("repeated").is_some_and(|r| r.as_bool().unwrap());
    let label = if repeated { "repeated " } else { "" };
    let oneof = field.get("oneof").map(string);
    declaration(
        label,
        &string(&field["type"]),
        &field["number"],
        oneof.as_deref(),
    )
}

/// Panics at an unknown key, because the test would not compare it.
fn only_known_keys(fact: &Value, known: &[&str]) {
    for key in object(fact).keys() {
        let is_for_people = ["since", "was"].contains(&key.as_str());
        assert!(
            is_for_people || known.contains(&key.as_str()),
            "unknown key {key:?} in the facts"
        );
    }
}

fn object(value: &Value) -> &Map<String, Value> {
    value.as_object().unwrap()
}

fn string(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}
