//! The fields of a row for its RuntimeClass.

use criswitch_config::{Operator, Scheduling, TaintEffect, Toleration};

use crate::load;

fn scheduling(fields: &str) -> Scheduling {
    let config = load(&format!(
        "default_handler = 'a'\n[handlers]\na = {{ socket = '/run/a.sock', {fields} }}"
    ));
    config.table.default.scheduling
}

fn texts(texts: &[(&str, &str)]) -> std::collections::BTreeMap<String, String> {
    let texts = texts.iter();
    texts
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

#[test]
fn a_row_has_the_overhead_and_the_nodes_of_its_pods() {
    let scheduling = scheduling(
        "overhead = { memory = '120Mi', cpu = '250m' },
        node_selector = { 'example.com/kvm' = 'true', plain = '' }",
    );
    assert_eq!(
        scheduling.overhead,
        texts(&[("cpu", "250m"), ("memory", "120Mi")])
    );
    assert_eq!(
        scheduling.node_selector,
        texts(&[("example.com/kvm", "true"), ("plain", "")])
    );
    assert!(scheduling.tolerations.is_empty());
}

#[test]
fn a_toleration_defaults_to_equal_and_every_effect() {
    let scheduling = scheduling(
        "tolerations = [
            { key = 'a', value = 'b' },
            { operator = 'Exists', effect = 'NoExecute', toleration_seconds = -1 },
            { key = 'a', operator = 'Exists', effect = 'PreferNoSchedule' },
            { key = 'a', effect = 'NoExecute', toleration_seconds = 0x10 },
        ]",
    );
    let toleration = |key: &str, operator, effect| Toleration {
        key: key.to_owned(),
        operator,
        value: String::new(),
        effect,
        seconds: None,
    };
    let with_value = Toleration {
        value: "b".to_owned(),
        ..toleration("a", Operator::Equal, TaintEffect::Any)
    };
    let for_a_time = |seconds, toleration| Toleration {
        seconds: Some(seconds),
        ..toleration
    };
    assert_eq!(
        scheduling.tolerations,
        [
            with_value,
            for_a_time(-1, toleration("", Operator::Exists, TaintEffect::NoExecute)),
            toleration("a", Operator::Exists, TaintEffect::PreferNoSchedule),
            for_a_time(16, toleration("a", Operator::Equal, TaintEffect::NoExecute)),
        ]
    );
}

#[test]
fn a_handler_table_is_read_like_an_inline_table() {
    let config = load(
        "default_handler = 'a'
        [handlers.a]
        socket = '/run/a.sock'
        overhead.cpu = '1'
        [[handlers.a.tolerations]]
        operator = 'Exists'",
    );
    let scheduling = config.table.default.scheduling;
    assert_eq!(scheduling.overhead, texts(&[("cpu", "1")]));
    assert_eq!(scheduling.tolerations.len(), 1);
}

#[test]
fn quantities_are_those_of_kubernetes() {
    for quantity in [
        "0", "1", "+1", "0.5", ".5", "5.", "100m", "1k", "1e3", "1E-3", "1e+3", "1E", "12Ei", "1n",
        "1u",
    ] {
        let scheduling = scheduling(&format!("overhead = {{ cpu = '{quantity}' }}"));
        assert_eq!(scheduling.overhead, texts(&[("cpu", quantity)]));
    }
    for quantity in ["0", "1.5Gi", "128974848", "129e6", "129M", "123Mi"] {
        let scheduling = scheduling(&format!("overhead = {{ memory = '{quantity}' }}"));
        assert_eq!(scheduling.overhead, texts(&[("memory", quantity)]));
    }
}

#[test]
fn labels_may_be_as_long_as_in_kubernetes() {
    let (name, domain) = ("x".repeat(63), "y".repeat(253));
    let selector = format!("'{domain}/{name}' = '{name}', A-_.z = '9'");
    let scheduling = scheduling(&format!(
        "node_selector = {{ {} }}",
        selector.replace("A-_.z", "'A-_.z'")
    ));
    assert_eq!(scheduling.node_selector.len(), 2);
}
