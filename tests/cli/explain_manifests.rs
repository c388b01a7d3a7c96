//! `criswitch explain -f` on files with objects other than pods: workloads of any API, RuntimeClasses, charts.

use serde_json::json;

use crate::explain_files::{Three, ids, of};

const OBJECTS: &str = "
apiVersion: v1
kind: Pod
metadata: { name: ok }
spec: { containers: [{ name: c, image: i }] }
---
apiVersion: apps.openshift.io/v1
kind: DeploymentConfig
metadata: { name: dc }
spec: { template: { spec: { hostNetwork: true, runtimeClassName: gvisor, containers: [{ name: web, image: web }] } } }
---
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: { name: set }
spec: { replicatedJobs: [{ name: a, template: { spec: { template: { spec: { containers: [{ name: a, image: a }] } } } } }] }
---
apiVersion: v1
kind: ConfigMap
metadata: { name: settings }
";

#[tokio::test]
async fn pod_templates_of_any_object_are_found_and_skipped_objects_are_listed() {
    let node = Three::start();
    let file = node.file("objects.yaml", OBJECTS);
    let json = node.json(&[&file]).await;
    let pods = json["pods"].as_array().unwrap();
    let fits: Vec<_> = pods
        .iter()
        .map(|pod| (&pod["name"], &pod["fits"]))
        .collect();
    let (yes, no) = (json!(true), json!(false));
    assert_eq!(
        fits,
        [
            (&json!("ok"), &yes),
            (&json!("dc"), &no),
            (&json!("set"), &yes)
        ]
    );
    let skipped = &json["skipped"][0];
    assert_eq!(
        (&skipped["name"], &skipped["hasNoPods"]),
        (&json!("settings"), &yes)
    );
    let workflow =
        "{ apiVersion: argoproj.io/v1alpha1, kind: Workflow, metadata: { name: w }, spec: {} }";
    let more = node.file("more.yaml", workflow);
    let pod = node.file(
        "pod.yaml",
        "{ apiVersion: v1, kind: Pod, spec: { containers: [{ name: c, image: i }] } }",
    );
    let outcome = node.explain(&[&pod], &[]).await;
    assert_eq!(outcome.code, 0, "{}", outcome.stdout);
    let outcome = node.explain(&[&pod, &more], &[]).await;
    assert_eq!(outcome.code, 1, "{}", outcome.stdout);
    let line = "skipped: Workflow w (argoproj.io/v1alpha1) in ";
    assert!(outcome.stdout.contains(line), "{}", outcome.stdout);
}

#[tokio::test]
async fn a_runtime_class_in_a_file_names_the_handler_of_its_pods() {
    let node = Three::start();
    let class = node.file("class.yaml", "{ apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: { name: boxed }, handler: gvisor }");
    let pod = node.file("pod.yaml", "{ apiVersion: v1, kind: Pod, metadata: { name: p }, spec: { runtimeClassName: boxed, hostNetwork: true, containers: [{ name: n, image: i }] } }");
    let outcome = node.explain(&[&class, &pod], &[]).await;
    assert_eq!(outcome.code, 1);
    assert!(
        outcome
            .stdout
            .contains("Pod p: RuntimeClass boxed, handler gvisor\n"),
        "{}",
        outcome.stdout
    );
    // A class in the file may already exist in the cluster.
    let outcome = node.explain(&[&class, &class, &pod], &[]).await;
    assert!(
        !outcome.stdout.contains("occurs twice"),
        "{}",
        outcome.stdout
    );
    let absent = "{ apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: { name: boxed }, handler: other }";
    let absent = node.file("absent.yaml", absent);
    assert_eq!(node.json(&[&pod, &absent]).await["pods"][0]["fits"], false);
    let json = node.json(&[&pod, &class]).await;
    let pod = &json["pods"][0];
    assert_eq!(
        (&pod["handler"], &pod["fits"]),
        (&json!("gvisor"), &json!(false))
    );
}

#[tokio::test]
async fn the_node_selector_of_a_runtime_class_counts_for_its_pods() {
    let node = Three::start();
    let class = |name: &str, label: &str| {
        node.file(
            name,
            &format!(
                "{{ apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {{ name: boxed }}, handler: runc, \
                 scheduling: {{ nodeSelector: {{ {label} }} }} }}"
            ),
        )
    };
    let pod = |rest: &str| {
        node.file(
            "pod.yaml",
            &format!(
                "{{ apiVersion: v1, kind: Pod, metadata: {{ name: p }}, spec: {{ runtimeClassName: boxed, {rest} \
                 containers: [{{ name: c, image: i }}] }} }}"
            ),
        )
    };
    let windows = class("windows.yaml", "kubernetes.io/os: windows");
    let json = node.json(&[&windows, &pod("")]).await;
    assert_eq!(
        ids(&json["pods"][0], "runc", "reasons"),
        ["windows-pods"],
        "{json}"
    );
    let pool = class("pool.yaml", "pool: a");
    let json = node
        .json(&[&pool, &pod("nodeSelector: { pool: b },")])
        .await;
    let pod_b = &json["pods"][0];
    let warning = pod_b["warnings"][0].as_str().unwrap();
    assert!(warning.contains("node label pool"), "{warning}");
    assert_eq!(pod_b["fits"], false);
    let json = node.json(&[&pool, &pod("")]).await;
    let warnings = &json["pods"][0]["warnings"];
    let note = "note: the RuntimeClass selects nodes with pool=a: not checked";
    assert_eq!(warnings, &json!([note]));
    let outcome = node.explain(&[&windows, &pool, &pod("")], &[]).await;
    assert_eq!(outcome.code, 1);
    let line = "problem: RuntimeClass \"boxed\" occurs twice, in ";
    assert!(outcome.stdout.contains(line), "{}", outcome.stdout);
}

#[tokio::test]
async fn a_file_that_is_not_a_manifest_hides_no_other_file() {
    let node = Three::start();
    node.file("chart/values.yaml", "image: web\n");
    node.file(
        "chart/pod.yaml",
        "{ apiVersion: v1, kind: Pod, metadata: { name: p }, spec: { containers: [{ name: c, image: i }] } }",
    );
    let chart = node.folder().join("chart");
    let outcome = node.explain(&[&chart], &[]).await;
    assert_eq!(outcome.code, 1);
    for line in [
        "problem: ",
        "values.yaml: document 1: the object has no `kind`",
        "Pod p: ",
    ] {
        assert!(outcome.stdout.contains(line), "{}", outcome.stdout);
    }
    let json = node.json(&[&chart]).await;
    assert_eq!(json["problems"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn objects_of_groups_without_pods_do_not_fail_a_chart() {
    let node = Three::start();
    let objects = "
{ apiVersion: v1, kind: Pod, metadata: { name: p }, spec: { containers: [{ name: c, image: i }] } }
---
{ apiVersion: monitoring.coreos.com/v1, kind: ServiceMonitor, metadata: { name: m }, spec: {} }
---
{ apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: { name: r }, spec: {} }
---
{ apiVersion: security.openshift.io/v1, kind: SecurityContextConstraints, metadata: { name: s } }
---
{ apiVersion: source.toolkit.fluxcd.io/v1, kind: GitRepository, metadata: { name: g } }
---
{ apiVersion: templates.gatekeeper.sh/v1, kind: ConstraintTemplate, metadata: { name: t } }
---
{ apiVersion: constraints.gatekeeper.sh/v1beta1, kind: K8sRequiredLabels, metadata: { name: l } }
---
{ apiVersion: image.openshift.io/v1, kind: ImageStream, metadata: { name: i } }
";
    let file = node.file("chart.yaml", objects);
    let outcome = node.explain(&[&file], &[]).await;
    assert_eq!(outcome.code, 0, "{}", outcome.stdout);
    let shown: Vec<_> = outcome.stdout.split_whitespace().collect();
    let line = "without pods: ServiceMonitor m, HTTPRoute r, SecurityContextConstraints s, GitRepository g, \
                ConstraintTemplate t, K8sRequiredLabels l, ImageStream i";
    assert!(shown.join(" ").contains(line), "{}", outcome.stdout);
    let prometheus = "{ apiVersion: monitoring.coreos.com/v1, kind: Prometheus, metadata: { name: m }, spec: {} }";
    let more = node.file("more.yaml", prometheus);
    assert_eq!(node.explain(&[&file, &more], &[]).await.code, 1);
}

#[tokio::test]
async fn a_volume_counts_only_if_a_container_uses_it() {
    let node = Three::start();
    let pod = |uses: &str| {
        format!(
            "volumes: [{{ name: v, hostPath: {{ path: /run/docker.sock, type: Socket }} }}], \
             containers: [{{ name: c, image: i, {uses} }}]"
        )
    };
    for (uses, fits) in [
        ("volumeMounts: [{ name: v, mountPath: /v }]", json!(false)),
        ("volumeDevices: [{ name: v, devicePath: /v }]", json!(false)),
        (
            "volumeMounts: [{ name: other, mountPath: /v }]",
            json!(true),
        ),
    ] {
        let pod = node.pod(&pod(uses)).await;
        assert_eq!(of(&pod, "kata")["fits"], fits, "{uses}");
    }
    // The controller of a custom resource may add a container that mounts the volume.
    let spec = pod("");
    let custom = format!(
        "{{ apiVersion: example.com/v1, kind: Job, metadata: {{ name: p }}, spec: {{ template: {{ spec: {{ {spec} }} }} }} }}"
    );
    let pod = node.only_pod(&custom).await;
    assert_eq!(of(&pod, "kata")["fits"], false);
}

#[tokio::test]
async fn json_objects_may_follow_one_another_and_an_error_names_its_line_and_cause() {
    let node = Three::start();
    let pod = |name: &str| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": { "containers": [{ "name": "c", "image": "i" }] },
        })
        .to_string()
    };
    let [one, two] = ["one", "two"].map(pod);
    let mark = '\u{feff}';
    for text in [
        format!("{one}{two}\n"),
        format!("{one}\n{two}\n"),
        format!("{one}\n\n\n{two}\n"),
        format!("---\n{one}\n{two}\n"),
        format!("# comment\n\n{one}\n{two}\n"),
        format!("{mark}{one}\n{two}"),
        // As the kubectl plug-in joins the objects of the cluster and the files.
        format!("kind: List\n---\n{mark}{one}\n{two}\n\n"),
        format!("{one}\n---\n{two}\n"),
        format!("{one}\n--- # the second\n{two}\n"),
    ] {
        let file = node.file("pods.json", &text);
        let pods = node.json(&[&file]).await["pods"].take();
        let names = pods.as_array().unwrap().iter().map(|it| &it["name"]);
        assert_eq!(Vec::from_iter(names), ["one", "two"]);
    }
    let twice = two.replacen('{', "{\n\"kind\": \"Pod\",", 1);
    for (text, problem) in [
        (format!("{one}\n{twice}"), "pods.json:3:33: "),
        (
            format!("# comment\n---\n{one}\n{twice}"),
            "pods.json:5:33: ",
        ),
        (format!("{one} {twice}"), "pods.json:2:33: "),
        (
            "{} {\"kind\": 1, \"kind\": 2}".to_owned(),
            "pods.json:1:16: the key \"kind\" occurs twice",
        ),
        (
            format!("{one}\n{{\"kind\": \"Pod\",\n \"spec\" {{}}}}"),
            "pods.json:3:9: not valid JSON",
        ),
        (
            format!("{one}\n{{\"kind\": \"Püd\" x}}"),
            "pods.json:2:16: not valid JSON",
        ),
        (
            format!("{one}\n{twice}"),
            "the key \"kind\" occurs twice in one map",
        ),
        (
            format!("{one}\n{two}}}"),
            "not valid JSON; look here and before",
        ),
        (
            "kind: Pod\nmetadata:\n\tname: a\n".to_owned(),
            "pods.json:3:2: the line begins with a tab",
        ),
    ] {
        let file = node.file("pods.json", &text);
        let outcome = node.explain(&[&file], &[]).await;
        assert_eq!((outcome.code, outcome.stdout.as_str()), (1, ""));
        assert!(outcome.stderr.contains(problem), "{}", outcome.stderr);
    }
}
