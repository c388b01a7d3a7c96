//! Rows with a RuntimeClass that the API server would reject.

use expect_test::{Expect, expect};

use crate::fails_with;

/// Checks the problems of a row with these fields, one field per line.
#[track_caller]
fn row_problems(fields: &str, expected: Expect) {
    fails_with(
        &format!("default_handler = 'a'\n[handlers]\na = {{ socket = '/run/a.sock',\n{fields} }}"),
        expected,
    );
}

#[test]
fn a_text_that_is_not_a_quantity_is_reported() {
    for cpu in [
        "",
        "-1",
        "-0",
        "1 m",
        "1.2.3",
        ".",
        "m",
        "1e",
        "1e1.5",
        "1ki",
        "1K",
        "250mCPU",
        "1e99999999999",
    ] {
        let config = format!(
            "default_handler = 'a'\n[handlers]\na = {{ socket = '/run/a.sock', overhead = {{ cpu = '{cpu}' }} }}"
        );
        let files = criswitch_testing::ConfigFiles::of(&[("criswitch.toml", config.as_bytes())]);
        let problems = criswitch_config::Config::load(&files.main()).expect_err(cpu);
        assert_eq!(problems.len(), 1, "{cpu}: {problems}");
    }
    row_problems(
        "overhead = { cpu = '-250m', memory = '120MB' }",
        expect![[r#"
            criswitch.toml:4:20: "-250m" is negative; try "250m"
            criswitch.toml:4:38: "120MB" is not a Kubernetes quantity; try "120Mi""#]],
    );
    row_problems(
        "overhead = { cpu = 'some', memory = '120m' }",
        expect![[r#"
            criswitch.toml:4:20: "some" is not a Kubernetes quantity; try "250m"
            criswitch.toml:4:37: "120m" is a fraction of a byte; try "120Mi""#]],
    );
}

#[test]
fn a_label_that_no_node_can_have_is_reported() {
    let long = "x".repeat(64);
    row_problems(
        &format!(
            "node_selector = {{
            '' = 'a',
            '-a' = 'a',
            'a/' = 'a',
            '/a' = 'a',
            'a/b/c' = 'a',
            'A.b/c' = 'a',
            'a..b/c' = 'a',
            '{long}' = 'a',
            a = 'b c',
            b = 'b-',
            c = '{long}',
            }}"
        ),
        expect![[r#"
            criswitch.toml:5:13: "" is not a label key; try up to 63 letters, digits, "-", "_" and ".", as in "kata" or "example.com/kata"
            criswitch.toml:6:13: "-a" is not a label key; try up to 63 letters, digits, "-", "_" and ".", as in "kata" or "example.com/kata"
            criswitch.toml:7:13: "a/" is not a label key; try up to 63 letters, digits, "-", "_" and ".", as in "kata" or "example.com/kata"
            criswitch.toml:8:13: "/a" is not a label key; try up to 63 letters, digits, "-", "_" and ".", as in "kata" or "example.com/kata"
            criswitch.toml:9:13: "a/b/c" is not a label key; try up to 63 letters, digits, "-", "_" and ".", as in "kata" or "example.com/kata"
            criswitch.toml:10:13: "A.b/c" is not a label key; try up to 63 letters, digits, "-", "_" and ".", as in "kata" or "example.com/kata"
            criswitch.toml:11:13: "a..b/c" is not a label key; try up to 63 letters, digits, "-", "_" and ".", as in "kata" or "example.com/kata"
            criswitch.toml:12:13: "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx" is not a label key; try up to 63 letters, digits, "-", "_" and ".", as in "kata" or "example.com/kata"
            criswitch.toml:13:17: "b c" is not a label value; try up to 63 letters, digits, "-", "_" and ".", with a letter or digit at either end
            criswitch.toml:14:17: "b-" is not a label value; try up to 63 letters, digits, "-", "_" and ".", with a letter or digit at either end
            criswitch.toml:15:17: "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx" is not a label value; try up to 63 letters, digits, "-", "_" and ".", with a letter or digit at either end"#]],
    );
}

#[test]
fn a_toleration_that_the_api_server_rejects_is_reported() {
    row_problems(
        "tolerations = [
            {},
            { value = 'x' },
            { key = 'a', operator = 'exists' },
            { key = 'a', operator = 'Gt', value = '1' },
            { key = 'a', operator = 'Exists', value = 'x' },
            { key = 'a b' },
            { key = 'a', value = 'x y' },
            { key = 'a', effect = 'Noschedule' },
            { key = 'a', effect = 'Evict' },
            { key = 'a', toleration_seconds = 1 },
            { key = 'a', effect = 'NoSchedule', toleration_seconds = 1 },
        ]",
        expect![[r#"
            criswitch.toml:5:13: a toleration without a key matches every taint and needs the operator Exists; try operator = "Exists", or a key
            criswitch.toml:6:13: a toleration without a key matches every taint and needs the operator Exists; try operator = "Exists", or a key
            criswitch.toml:7:37: "exists" is not an operator of tolerations; try "Exists"
            criswitch.toml:8:37: "Gt" is not an operator of tolerations; try one of "Exists", "Equal"
            criswitch.toml:9:55: the operator Exists takes no value; try operator = "Equal", or no value
            criswitch.toml:10:21: "a b" is not a label key; try up to 63 letters, digits, "-", "_" and ".", as in "kata" or "example.com/kata"
            criswitch.toml:11:34: "x y" is not a label value; try up to 63 letters, digits, "-", "_" and ".", with a letter or digit at either end
            criswitch.toml:12:35: "Noschedule" is not an effect of tolerations; try "NoSchedule"
            criswitch.toml:13:35: "Evict" is not an effect of tolerations; try one of "NoSchedule", "PreferNoSchedule", "NoExecute"
            criswitch.toml:14:47: "toleration_seconds" is for the effect NoExecute only; try effect = "NoExecute"
            criswitch.toml:15:70: "toleration_seconds" is for the effect NoExecute only; try effect = "NoExecute""#]],
    );
}

#[test]
fn a_duplicate_toleration_is_reported() {
    row_problems(
        "tolerations = [
            { key = 'a', effect = 'NoExecute' },
            { key = 'a', effect = 'NoSchedule' },
            { key = 'a', operator = 'Equal', value = '', effect = 'NoExecute', toleration_seconds = 1 },
        ]",
        expect!["criswitch.toml:7:13: this toleration is already in the list; try removing one of the two"],
    );
}

#[test]
fn wrong_types_and_keys_are_reported() {
    row_problems(
        "overhead = '250m',
        node_selector = ['a'],
        tolerations = { key = 'a' }",
        expect![[r#"
            criswitch.toml:4:12: "overhead" is a string, not a table; try { cpu = "250m", memory = "120Mi" }
            criswitch.toml:5:25: "node_selector" is an array, not a table; try { "example.com/kata" = "true" }
            criswitch.toml:6:23: "tolerations" is a table, not an array of tables; try [{ key = "example.com/kata", operator = "Exists" }]"#]],
    );
    row_problems(
        "overhead = { cpu = 1, memroy = '1Gi', storage = '1Gi' },
        node_selector = { a = true },
        tolerations = [
            'a',
            { kye = 'a' },
            { key = 'a', effect = 'NoExecute', toleration_seconds = '5' },
            { key = 'a', effect = 'NoExecute', toleration_seconds = 9223372036854775808 },
        ]",
        expect![[r#"
            criswitch.toml:4:20: "cpu" is an integer, not a string; try "250m"
            criswitch.toml:4:23: unknown key "memroy"; try "memory"
            criswitch.toml:4:39: unknown key "storage"; try one of "cpu", "memory"
            criswitch.toml:5:31: "a" is a boolean, not a string; try text in quotes
            criswitch.toml:7:13: "tolerations" contains a string; only tables are allowed; try [{ key = "example.com/kata", operator = "Exists" }]
            criswitch.toml:8:15: unknown key "kye"; try "key"
            criswitch.toml:9:69: "toleration_seconds" is a string, not an integer of 64 bits; try 300
            criswitch.toml:10:69: "toleration_seconds" is an integer, not an integer of 64 bits; try 300"#]],
    );
}

/// The other fields of a row are checked even if the row has no backend.
#[test]
fn other_problems_of_a_row_without_a_backend_are_reported_too() {
    fails_with(
        "default_handler = 'a'\n[handlers]\na = { overhead = { cpu = 'x' } }\nb = { backend = 'c', overhead = { cpu = 'x' } }",
        expect![[r#"
            criswitch.toml:3:5: handler "a" has neither a backend nor a socket; try one of the two, such as socket = "/run/containerd/containerd.sock"
            criswitch.toml:3:26: "x" is not a Kubernetes quantity; try "250m"
            criswitch.toml:4:17: no backend is named "c"; try the path of its socket
            criswitch.toml:4:41: "x" is not a Kubernetes quantity; try "250m""#]],
    );
}

#[test]
fn a_class_must_be_a_name_and_no_class_may_have_two_rows() {
    fails_with(
        "default_handler = 'runsc'
        [handlers]
        runsc = { socket = '/run/a.sock', class = 'gvisor' }
        gvisor = '/run/b.sock'
        kata = { socket = '/run/c.sock', class = 'Kata Containers' }",
        expect![[r#"
            criswitch.toml:4:9: the RuntimeClass of handler "gvisor" has the name "gvisor", as that of handler "runsc" at criswitch.toml:3:9; try a different class
            criswitch.toml:5:50: "Kata Containers" is not the name of a RuntimeClass; try a DNS name: lower-case letters, digits, "-" and ".", as in "gvisor""#]],
    );
}
