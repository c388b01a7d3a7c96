//! `criswitch manifests`: the RuntimeClasses for kubectl.

use std::process::{Command, Stdio};

use expect_test::expect;
use serde_json::{Value, json};

#[cfg(unix)]
use crate::command;
#[cfg(unix)]
use crate::support::write_program;
use crate::{main_file, run, text};

const TABLE: &str = r#"
    default_handler = 'runc'
    [handlers]
    runc = '/run/containerd/containerd.sock'
    gvisor = { socket = '/run/gvisor.sock', handler = 'runsc', overhead = { memory = '64Mi' } }
    kata = { socket = '/run/kata.sock',
        overhead = { cpu = '250m', memory = '120Mi' },
        node_selector = { 'example.com/kvm' = 'yes', zone = '' },
        tolerations = [
            { key = 'example.com/kata', value = 'on', effect = 'NoSchedule' },
            { operator = 'Exists', effect = 'NoExecute', toleration_seconds = -5 },
        ] }"#;

/// The objects that the API server would read, in the order of the table.
fn classes(table: &str) -> Vec<Value> {
    let files = main_file(table);
    let outcome = run(&["manifests", "--config", text(&files.main())]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    serde_saphyr::from_multiple(&outcome.stdout).unwrap()
}

#[cfg(unix)] // Windows adds a node label, and windows.rs checks it.
#[test]
fn each_handler_has_a_runtime_class_with_the_settings_of_its_row() {
    let files = main_file(TABLE);
    let outcome = run(&["manifests", "--config", text(&files.main())]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    expect![[r#"
        apiVersion: node.k8s.io/v1
        handler: gvisor
        kind: RuntimeClass
        metadata:
          labels:
            app.kubernetes.io/managed-by: criswitch
            app.kubernetes.io/part-of: criswitch
          name: gvisor
        overhead:
          podFixed:
            memory: 64Mi
        ---
        apiVersion: node.k8s.io/v1
        handler: kata
        kind: RuntimeClass
        metadata:
          labels:
            app.kubernetes.io/managed-by: criswitch
            app.kubernetes.io/part-of: criswitch
          name: kata
        overhead:
          podFixed:
            cpu: 250m
            memory: 120Mi
        scheduling:
          nodeSelector:
            example.com/kvm: "yes"
            zone: ""
          tolerations:
          - effect: NoSchedule
            key: example.com/kata
            operator: Equal
            value: "on"
          - effect: NoExecute
            operator: Exists
            tolerationSeconds: -5
        ---
        apiVersion: node.k8s.io/v1
        handler: runc
        kind: RuntimeClass
        metadata:
          labels:
            app.kubernetes.io/managed-by: criswitch
            app.kubernetes.io/part-of: criswitch
          name: runc
    "#]]
    .assert_eq(&outcome.stdout);
}

const OF_CLASS: &str = "
    default_handler = 'runsc'
    [handlers]
    runsc = { socket = '/run/gvisor.sock', class = 'gvisor' }";

#[test]
fn a_row_may_name_its_runtime_class_which_keeps_the_handler_of_the_row() {
    let class = &classes(OF_CLASS)[0];
    assert_eq!(class["metadata"]["name"], "gvisor");
    assert_eq!(class["handler"], "runsc");
    let files = main_file(OF_CLASS);
    let policies = run(&["manifests", "--policy", "--config", text(&files.main())]).stdout;
    assert!(policies.contains("name: criswitch-gvisor\n"), "{policies}");
    assert!(policies.contains("orValue('') == 'gvisor'"), "{policies}");
}

#[test]
fn manifests_warns_of_runtime_classes_of_the_cluster_with_a_different_handler() {
    let existing = "apiVersion: v1\nkind: List\nitems:\n- kind: RuntimeClass\n  metadata: { name: gvisor }\n  handler: runsc\n";
    let warnings = |table: &str| {
        let files = main_file(table);
        let file = files.main().with_file_name("classes.yaml");
        std::fs::write(&file, existing).unwrap();
        let main = files.main();
        let outcome = run(&[
            "manifests",
            "--existing",
            text(&file),
            "--config",
            text(&main),
        ]);
        assert_eq!(outcome.code, 0);
        outcome.stderr
    };
    assert_eq!(warnings(OF_CLASS), "");
    expect![[r#"
        criswitch: RuntimeClass "gvisor" exists with the handler "runsc", which is immutable, and the row has the handler "gvisor"; name the row runsc and set class = "gvisor", or set a different class
    "#]].assert_eq(&warnings(TABLE));
}

#[test]
fn a_file_without_a_list_of_runtime_classes_is_not_proof_that_no_class_clashes() {
    let files = main_file(TABLE);
    let (main, file) = (files.main(), files.main().with_file_name("classes.yaml"));
    let no_list =
        "has no list of RuntimeClasses; try the output of kubectl get runtimeclasses -o yaml";
    for (existing, code, says) in [
        ("", 1, no_list),
        ("image: x\n", 1, no_list),
        ("kind: List\nitems: []\n", 0, ""),
        (
            "kind: RuntimeClassList\nitems: [{ metadata: { name: gvisor }, handler: runsc }]\n",
            0,
            "which is immutable",
        ),
        (
            "kind: RuntimeClass\nmetadata: { name: gvisor }\nhandler: runsc\n",
            0,
            "which is immutable",
        ),
    ] {
        std::fs::write(&file, existing).unwrap();
        let outcome = run(&[
            "manifests",
            "--existing",
            text(&file),
            "--config",
            text(&main),
        ]);
        assert_eq!(outcome.code, code, "{existing}");
        assert!(outcome.stderr.contains(says), "{}", outcome.stderr);
        assert_eq!(
            outcome.stderr.is_empty(),
            says.is_empty(),
            "{}",
            outcome.stderr
        );
    }
}

/// Runs `criswitch manifests --kubectl` with this script as kubectl.
#[cfg(unix)]
fn with_kubectl(script: &str) -> std::process::Output {
    let files = main_file(TABLE);
    let programs = files.main().with_file_name("bin");
    std::fs::create_dir(&programs).unwrap();
    let kubectl = programs.join("kubectl");
    write_program(&kubectl, format!("#!/bin/sh\n{script}\n"));
    let mut manifests = command(&["manifests", "--config", text(&files.main()), "--kubectl"]);
    manifests.env("PATH", format!("{}:/usr/bin:/bin", programs.display()));
    manifests.env("KUBECONFIG", "/own/kubeconfig");
    manifests.output().unwrap()
}

#[cfg(unix)] // The kubectl of the test is a shell script.
#[test]
fn kubectl_is_asked_for_the_runtime_classes_of_its_cluster() {
    let class = r#"echo '{"kind": "List", "items": [{"kind": "RuntimeClass", "metadata": {"name": "gvisor"}, "handler": "runsc"}]}'"#;
    let asked =
        r#"[ "$KUBECONFIG: $*" = "/own/kubeconfig: get runtimeclasses -o json" ] || exit 3"#;
    let output = with_kubectl(&format!("{asked}\n{class}"));
    let warned = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{warned}");
    assert!(
        warned.contains(r#"RuntimeClass "gvisor" exists with the handler "runsc""#),
        "{warned}"
    );
    assert_eq!(warned.lines().count(), 1, "{warned}");
    let classes = String::from_utf8(output.stdout).unwrap();
    assert_eq!(classes.matches("kind: RuntimeClass").count(), 3);
    let output = with_kubectl(r#"echo '{"kind": "List", "items": []}'"#);
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
}

#[cfg(unix)] // The kubectl of the test is a shell script.
#[test]
fn without_an_answer_of_the_cluster_manifests_fails_and_prints_no_objects() {
    let unknown = "criswitch: the RuntimeClasses of the cluster are unknown: kubectl get runtimeclasses -o json: ";
    let refused = "echo 'E1126 couldn.t get current server API group list' >&2
        echo 'The connection to the server was refused' >&2; exit 1";
    for (script, cause) in [
        (
            refused,
            "exit status: 1 The connection to the server was refused",
        ),
        (
            "exit 0",
            "kubectl has no list of RuntimeClasses; try the output of kubectl get runtimeclasses -o yaml",
        ),
        ("echo '{'", "kubectl is not valid YAML or JSON"),
        (
            "head -c 9000000 /dev/zero",
            "the output is larger than 8388608 bytes",
        ),
    ] {
        let output = with_kubectl(script);
        let failed = String::from_utf8(output.stderr).unwrap();
        assert_eq!(failed, format!("{unknown}{cause}\n"));
        assert_eq!((output.status.code(), output.stdout), (Some(1), Vec::new()));
    }
}

#[test]
fn a_kubectl_that_does_not_exist_is_named() {
    let files = main_file(TABLE);
    let outcome = run(&[
        "manifests",
        "--config",
        text(&files.main()),
        "--kubectl",
        "/no/kubectl",
    ]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (1, ""));
    let cause = "/no/kubectl get runtimeclasses -o json: cannot start /no/kubectl: ";
    assert!(outcome.stderr.contains(cause), "{}", outcome.stderr);
    let outcome = run(&["manifests", "--policy", "--kubectl"]);
    assert_eq!(outcome.code, 64);
}

#[test]
fn the_json_is_a_list_of_the_same_runtime_classes() {
    let files = main_file(TABLE);
    let outcome = run(&["manifests", "--json", "--config", text(&files.main())]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    let list: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let expected = json!({ "apiVersion": "v1", "kind": "List", "items": classes(TABLE) });
    assert_eq!(list, expected);
    assert_eq!(
        list["items"][1]["scheduling"]["tolerations"][1]["tolerationSeconds"],
        -5
    );
}

/// Handlers and labels that a YAML 1.1 parser reads as strings only if they are quoted.
const TRAPS: [&str; 18] = [
    "on",
    "off",
    "yes",
    "no",
    "y",
    "n",
    "true",
    "false",
    "null",
    "1",
    "012",
    "1e3",
    "0x1f",
    "0b1",
    "0o7",
    "12e03",
    "2026-01-01",
    "1-2",
];

fn trapped() -> String {
    let rows = TRAPS.map(|name| {
        format!("{name} = {{ socket = '/run/a.sock', node_selector = {{ a = '{name}' }}, overhead = {{ cpu = '1e3' }} }}\n")
    });
    format!("default_handler = '1'\n[handlers]\n{}", rows.concat())
}

#[test]
fn names_that_look_like_other_yaml_types_stay_strings() {
    let classes = classes(&trapped());
    assert_eq!(classes.len(), TRAPS.len());
    for class in classes {
        let name = class["handler"].as_str().unwrap();
        assert!(TRAPS.contains(&name), "{class}");
        assert_eq!(class["metadata"]["name"], name);
        assert_eq!(class["scheduling"]["nodeSelector"]["a"], name);
        assert_eq!(class["overhead"]["podFixed"]["cpu"], "1e3");
    }
}

/// Uses the YAML parser of kubectl. Checks nothing if kubectl is not installed.
#[cfg(unix)] // The test expects kubectl on Linux only.
#[test]
fn kubectl_reads_the_same_runtime_classes() {
    if Command::new("kubectl")
        .arg("version")
        .arg("--client")
        .output()
        .is_err()
    {
        return;
    }
    for table in [TABLE.to_owned(), trapped()] {
        let files = main_file(&table);
        let path = files.main();
        let outcome = run(&["manifests", "--config", text(&path)]);
        std::fs::write(path.with_file_name("classes.yaml"), &outcome.stdout).unwrap();
        std::fs::write(
            path.with_file_name("kustomization.yaml"),
            "resources: [classes.yaml]",
        )
        .unwrap();
        let kustomized = Command::new("kubectl")
            .args(["kustomize", text(path.parent().unwrap())])
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        assert!(kustomized.status.success());
        let read: Vec<Value> =
            serde_saphyr::from_multiple(&String::from_utf8(kustomized.stdout).unwrap()).unwrap();
        assert_eq!(read, classes(&table));
    }
}

#[test]
fn a_backend_with_auto_register_is_named_on_standard_error() {
    let files = main_file(
        "default_handler = 'a'\n[handlers]\na = 'vm'\n[backends]\nvm = { socket = '/run/vm.sock', auto_register = true }",
    );
    let outcome = run(&["manifests", "--config", text(&files.main())]);
    assert_eq!(outcome.code, 0);
    assert_eq!(outcome.stdout.matches("kind: RuntimeClass").count(), 1);
    expect![[r#"
        criswitch: the output omits automatically registered handlers of backend "vm"; add a row under [handlers] for each one that needs a RuntimeClass
    "#]]
    .assert_eq(&outcome.stderr);
}

#[test]
fn a_wrong_configuration_prints_no_manifests() {
    let files = main_file(
        "default_handler = 'a'\n[handlers]\na = { socket = '/run/a', overhead = { cpu = 'x' } }",
    );
    let outcome = run(&["manifests", "--config", text(&files.main())]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (78, ""));
}

#[cfg(unix)] // node-feature-discovery labels Linux nodes.
#[test]
fn with_labels_file_each_class_selects_the_label_of_its_handler() {
    let long = "x".repeat(56);
    let table = format!(
        "default_handler = 'runc'\nlabels_file = '/etc/labels'\n[handlers]\nrunc = 'b'\n{long} = 'b'\n\
         kata = {{ backend = 'b', node_selector = {{ 'criswitch.io/handler.kata' = 'no', zone = 'a' }} }}\n\
         [backends]\nb = '/run/b.sock'\n"
    );
    let files = main_file(&table);
    let outcome = run(&["manifests", "--config", text(&files.main())]);
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    let note = format!("the RuntimeClass of handler {long:?} selects no label");
    assert!(outcome.stderr.contains(&note), "{}", outcome.stderr);
    let classes: Vec<Value> = serde_saphyr::from_multiple(&outcome.stdout).unwrap();
    let selectors = classes
        .iter()
        .map(|class| (&class["handler"], &class["scheduling"]["nodeSelector"]));
    assert_eq!(
        selectors.collect::<Vec<_>>(),
        [
            (
                &json!("kata"),
                &json!({ "criswitch.io/handler.kata": "no", "zone": "a" })
            ),
            (
                &json!("runc"),
                &json!({ "criswitch.io/handler.runc": "true" })
            ),
            (&json!(long), &Value::Null),
        ]
    );
}
