//! The compiled interface has exactly the facts of `runtime.v1` that tests/data/cri-1.38.json states.
//!
//! The interface and the facts are both converted to a flat list with one fact per line, so that each difference is one
//! line.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, in its helpers too"
)]

#[path = "interface/changes.rs"]
mod changes;
#[path = "interface/compiled.rs"]
mod compiled;
#[path = "interface/facts.rs"]
mod facts;
#[path = "interface/proto.rs"]
mod proto;

use std::collections::BTreeMap;

use changes::{CHANGES, enumeration, message};
use compiled::{compiled_file, read_file};
use facts::{FACTS, facts, read_facts};

/// A declaration ("field Mount.image") and its definition ("ImageSpec = 9").
type Interface = BTreeMap<String, String>;

#[test]
fn the_compiled_interface_is_the_one_of_kubernetes_1_38() {
    let differences = differences(&facts(), &read_file(&compiled_file()));
    assert!(
        differences.is_empty(),
        "proto/runtime/v1/api.proto and tests/data/cri-1.38.json differ in {} places:\n  {}",
        differences.len(),
        differences.join("\n  ")
    );
}

#[test]
fn the_interface_has_46_rpcs_185_messages_and_14_enums() {
    let interface = read_file(&compiled_file());
    let count = |kind| interface.keys().filter(|k| k.starts_with(kind)).count();
    assert_eq!(
        [count("rpc "), count("message "), count("enum ")],
        [46, 185, 14]
    );
}

#[test]
fn each_kind_of_change_is_reported_and_nothing_else() {
    for (change, expected) in CHANGES {
        let mut file = compiled_file();
        change(&mut file);
        assert_eq!(differences(&facts(), &read_file(&file)), *expected);
    }
}

#[test]
fn several_changes_are_reported_together() {
    let mut file = compiled_file();
    message(&mut file, "Mount").field.remove(0);
    enumeration(&mut file, "Protocol").value.remove(2);
    assert_eq!(
        differences(&facts(), &read_file(&file)),
        [
            "field Mount.container_path: missing, should be `string = 1`",
            "value Protocol.SCTP: missing, should be `2`",
        ]
    );
}

#[test]
#[should_panic(expected = "unknown key \"deprecated\" in the facts")]
fn a_fact_of_an_unknown_kind_is_an_error() {
    read_facts(&FACTS.replacen("\"number\": 1,", "\"deprecated\": true, \"number\": 1,", 1));
}

fn differences(facts: &Interface, compiled: &Interface) -> Vec<String> {
    let mut all: Vec<String> = facts
        .iter()
        .filter_map(|(what, fact)| difference(what, fact, compiled.get(what)))
        .collect();
    let more = compiled
        .iter()
        .filter(|(what, _)| !facts.contains_key(*what));
    all.extend(more.map(|(what, how)| shown(&format!("{what}: too much"), ", ", how)));
    all.sort();
    all
}

fn difference(what: &str, fact: &str, compiled: Option<&String>) -> Option<String> {
    match compiled {
        None => Some(shown(&format!("{what}: missing"), ", should be ", fact)),
        Some(how) if how != fact => Some(format!("{what}: `{how}`, should be `{fact}`")),
        Some(_) => None,
    }
}

/// The text of a difference. `how` is empty for a service, a message or an enum, which have only a name.
fn shown(problem: &str, link: &str, how: &str) -> String {
    match how {
        "" => problem.to_owned(),
        how => format!("{problem}{link}`{how}`"),
    }
}

fn signature(
    request: &str,
    client_streaming: bool,
    response: &str,
    server_streaming: bool,
) -> String {
    let stream = |streaming| if streaming { "stream " } else { "" };
    let (request_is, response_is) = (stream(client_streaming), stream(server_streaming));
    format!("{request_is}{request} -> {response_is}{response}")
}

fn declaration(
    label: &str,
    of: &str,
    number: impl std::fmt::Display,
    oneof: Option<&str>,
) -> String {
    let oneof = oneof
        .map(|name| format!(" in oneof {name}"))
        .unwrap_or_default();
    format!("{label}{of} = {number}{oneof}")
}
