//! `criswitch manifests --policy`: the admission policies for kubectl.

use criswitch_advice::{Effect, LIMITS};
use criswitch_config::RuntimeKind;
use expect_test::{expect, expect_file};
use serde_json::Value;
use strum::VariantNames;

use crate::{main_file, run, text};

const TABLE: &str = "
    default_handler = 'runc'
    [handlers]
    runc = '/run/containerd/containerd.sock'
    boxed = { socket = '/run/gvisor.sock', handler = 'runsc' }
    windows = { socket = '/run/windows.sock', kind = 'runhcs' }
    other = { socket = '/run/other.sock', handler = 'wasm' }";

/// The policies and bindings as YAML documents, and standard error.
fn objects() -> (Vec<Value>, String) {
    let files = main_file(TABLE);
    let outcome = run(&["manifests", "--policy", "--config", text(&files.main())]);
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    (
        serde_saphyr::from_multiple(&outcome.stdout).unwrap(),
        outcome.stderr,
    )
}

fn named<'o>(objects: &'o [Value], kind: &str, name: &str) -> &'o Value {
    let is = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
    objects
        .iter()
        .find(is)
        .unwrap_or_else(|| panic!("no {kind} {name}"))
}

#[test]
fn each_class_of_a_known_kind_has_a_policy_that_rejects_and_one_that_warns() {
    let (objects, stderr) = objects();
    let names: Vec<_> = objects
        .iter()
        .map(|it| it["metadata"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "criswitch-boxed",
            "criswitch-boxed",
            "criswitch-boxed-warnings",
            "criswitch-boxed-warnings",
            "criswitch-runc",
            "criswitch-runc",
            "criswitch-runc-warnings",
            "criswitch-runc-warnings",
            "criswitch-windows",
            "criswitch-windows",
            "criswitch-windows-warnings",
            "criswitch-windows-warnings",
        ]
    );
    let binding = named(
        &objects,
        "ValidatingAdmissionPolicyBinding",
        "criswitch-boxed",
    );
    assert_eq!(binding["spec"]["policyName"], "criswitch-boxed");
    assert_eq!(
        binding["spec"]["validationActions"],
        serde_json::json!(["Deny"])
    );
    let binding = named(
        &objects,
        "ValidatingAdmissionPolicyBinding",
        "criswitch-boxed-warnings",
    );
    assert_eq!(
        binding["spec"]["validationActions"],
        serde_json::json!(["Warn", "Audit"])
    );
    let policy = named(&objects, "ValidatingAdmissionPolicy", "criswitch-boxed");
    let condition = &policy["spec"]["matchConditions"][0]["expression"];
    assert_eq!(
        condition,
        "object.spec.?runtimeClassName.orValue('') == 'boxed'"
    );
    expect![[r#"
        criswitch: handler "other" has no policy, because its kind of runtime is unknown; set `kind` in its row under [handlers], such as kind = "gvisor", or kind = "other"
    "#]]
    .assert_eq(&stderr);
}

#[test]
fn a_policy_has_the_expressions_and_the_reasons_of_the_table() {
    let (objects, _) = objects();
    let classes = [
        ("boxed", RuntimeKind::Gvisor),
        ("runc", RuntimeKind::Runc),
        ("windows", RuntimeKind::Runhcs),
    ];
    for (class, kind) in classes {
        for (effect, suffix) in [(Effect::Fails, ""), (Effect::Weakens, "-warnings")] {
            let is_plain =
                |kind: &RuntimeKind| *kind == RuntimeKind::Runc || *kind == RuntimeKind::Crun;
            let limits = LIMITS.iter().filter(|it| {
                it.kinds.contains(&kind)
                    && it.policy() == Some(effect)
                    && (!is_plain(&kind) || it.is_of_kubelet() || it.kinds.iter().all(is_plain))
            });
            let parts: Vec<_> = limits
                .flat_map(|limit| {
                    let cels = limit.about.cels();
                    cels.into_iter().map(move |cel| (limit, cel))
                })
                .collect();
            let policy = named(
                &objects,
                "ValidatingAdmissionPolicy",
                &format!("criswitch-{class}{suffix}"),
            );
            let validations = policy["spec"]["validations"].as_array().unwrap();
            assert_eq!(validations.len(), parts.len());
            for (validation, (limit, cel)) in validations.iter().zip(parts) {
                assert_eq!(validation["expression"], format!("!({cel})"));
                let message = validation["message"].as_str().unwrap();
                for part in [
                    limit.reason,
                    limit.remedy,
                    limit.source.shown(),
                    kind.title(),
                    class,
                ] {
                    assert!(message.contains(part), "{message}");
                }
            }
        }
    }
}

#[test]
fn the_json_is_a_list_of_the_same_policies() {
    let files = main_file(TABLE);
    let outcome = run(&[
        "manifests",
        "--policy",
        "-o",
        "json",
        "--config",
        text(&files.main()),
    ]);
    let list: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(list["items"], Value::from(objects().0));
}

/// tests/system/runtimes/checks/97-policies.bats sends the same pods to a real kube-apiserver. Here each misfit must
/// meet its limit too, and the pod that fits must meet none.
#[test]
fn the_pods_that_the_api_server_rejects_meet_the_same_limits_here() {
    let file = include_str!("../system/runtimes/config/misfits.json");
    let file: Value = serde_json::from_str(file).unwrap();
    let misfits = file["misfits"].as_object().unwrap();
    let pod = |misfit: &Value| {
        let mut spec = file["fit"].clone();
        spec.as_object_mut()
            .unwrap()
            .extend(misfit.as_object().unwrap().clone());
        let metadata = misfit.get("metadata").cloned().unwrap_or_default();
        serde_json::json!({ "metadata": metadata, "spec": spec })
    };
    for limit in LIMITS.iter().filter(|limit| limit.policy().is_some()) {
        let misfit = misfits
            .get(limit.id)
            .unwrap_or_else(|| panic!("no misfit for {}", limit.id));
        assert!(!limit.about.fields(&pod(misfit)).is_empty(), "{}", limit.id);
    }
    for name in misfits.keys() {
        assert!(LIMITS.iter().any(|limit| limit.id == name), "{name}");
    }
    let fit = pod(&serde_json::json!({}));
    let host_process = pod(&file["hostProcess"]);
    for limit in LIMITS {
        if limit.policy().is_some() {
            assert!(limit.about.fields(&fit).is_empty(), "{}", limit.id);
        }
        let is_of_windows =
            limit.kinds.contains(&RuntimeKind::Runhcs) && limit.id != "windows-hypervisor";
        assert!(
            !is_of_windows || limit.about.fields(&host_process).is_empty(),
            "{}",
            limit.id
        );
    }
}

/// The policies of a kind of runtime in the chart, for a class with this placeholder name. The chart replaces the name.
#[test]
fn the_chart_has_the_policies_of_each_kind() {
    for kind in <RuntimeKind as VariantNames>::VARIANTS {
        let table = format!(
            "default_handler = 'row'\n[handlers]\nrow = {{ socket = '/run/row.sock', kind = '{kind}', class = 'class' }}"
        );
        let files = main_file(&table);
        let printed = run(&["manifests", "--policy", "--config", text(&files.main())]).stdout;
        let policies = printed
            .replace("'class'", "'RUNTIME-CLASS'")
            .replace("RuntimeClass class ", "RuntimeClass RUNTIME-CLASS ")
            .replace("criswitch-class", "criswitch-RUNTIME-CLASS");
        let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/chart");
        expect_file![format!("{chart}/files/policies/{kind}.yaml")].assert_eq(&policies);
    }
}

#[test]
fn the_policy_of_default_classes_is_the_same_for_every_configuration() {
    let files = main_file(TABLE);
    let path = files.main();
    let arguments = [
        "manifests",
        "--policy=default-class",
        "--config",
        text(&path),
    ];
    let outcome = run(&arguments);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    expect![[r#"
        apiVersion: admissionregistration.k8s.io/v1
        kind: MutatingAdmissionPolicy
        metadata:
          labels:
            app.kubernetes.io/managed-by: criswitch
            app.kubernetes.io/part-of: criswitch
          name: criswitch-default-class
        spec:
          failurePolicy: Fail
          matchConditions:
          - expression: object.spec.?runtimeClassName.orValue('') == ''
            name: no-class
          - expression: "!('kubernetes.io/config.mirror' in object.metadata.?annotations.orValue({}))"
            name: no-static-pod
          matchConstraints:
            namespaceSelector:
              matchExpressions:
              - key: criswitch.io/default-class
                operator: Exists
            resourceRules:
            - apiGroups:
              - ""
              apiVersions:
              - v1
              operations:
              - CREATE
              resources:
              - pods
          mutations:
          - applyConfiguration:
              expression: "Object{spec: Object.spec{runtimeClassName: namespaceObject.metadata.labels['criswitch.io/default-class']}}"
            patchType: ApplyConfiguration
          reinvocationPolicy: Never
        ---
        apiVersion: admissionregistration.k8s.io/v1
        kind: MutatingAdmissionPolicyBinding
        metadata:
          labels:
            app.kubernetes.io/managed-by: criswitch
            app.kubernetes.io/part-of: criswitch
          name: criswitch-default-class
        spec:
          policyName: criswitch-default-class
    "#]]
    .assert_eq(&outcome.stdout);
    let outcome = run(&["manifests", "--policy=nosuch", "--config", text(&path)]);
    assert_eq!(outcome.code, 64, "{}", outcome.stderr);
}

#[test]
fn policies_without_a_name_of_their_own_are_an_error() {
    let kata = "default_handler = 'kata'\n[handlers]\nkata = '/run/kata.sock'\n";
    let long = "a".repeat(60);
    let long = format!("{long}.{long}.{long}.{long}.a");
    for (row, problem) in [
        (
            "kata-warnings = { socket = '/run/kata.sock', kind = 'kata' }".to_owned(),
            "two policies would have the name criswitch-kata-warnings; set a different class",
        ),
        (
            format!("long = {{ socket = '/run/kata.sock', kind = 'kata', class = '{long}' }}"),
            "has more than 253 characters; set a shorter class",
        ),
    ] {
        let files = main_file(&format!("{kata}{row}"));
        let outcome = run(&["manifests", "--policy", "--config", text(&files.main())]);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (1, ""));
        assert!(outcome.stderr.contains(problem), "{}", outcome.stderr);
    }
}
