//! `criswitch explain -f` on files that are not quite what their author means: values of a wrong type, fields at a
//! wrong place, kinds that Kubernetes does not have, files that are not text.

use serde_json::{Value, json};

use crate::explain_files::{Three, of};

const POD: &str = "{ apiVersion: v1, kind: Pod, metadata: { name: p }, spec: { containers: [{ name: c, image: i }] } }\n";

/// The error of the command for this file, without an answer.
async fn error(node: &Three, contents: impl AsRef<[u8]>) -> String {
    let file = node.file("bad.yaml", "");
    std::fs::write(&file, contents).unwrap();
    let outcome = node.explain(&[&file], &[]).await;
    assert_eq!((outcome.code, outcome.stdout.as_str()), (1, ""));
    outcome.stderr
}

#[tokio::test]
async fn a_value_of_a_wrong_type_on_the_way_to_a_field_is_an_error() {
    let node = Three::start();
    for (spec, what) in [
        (
            "securityContext: { sysctls: { vm.swappiness: '1' } }",
            "spec.securityContext.sysctls is a map, not a list",
        ),
        ("volumes: { name: v }", "spec.volumes is a map, not a list"),
        (
            "resourceClaims: { name: g }",
            "spec.resourceClaims is a map, not a list",
        ),
        (
            "affinity: [{ nodeAffinity: {} }]",
            "spec.affinity is a list, not a map",
        ),
        (
            "initContainers: [{ volumeMounts: { mountPropagation: Bidirectional } }]",
            "spec.initContainers[0].volumeMounts is a map, not a list",
        ),
        (
            "initContainers: [{ securityContext: { capabilities: { add: NET_ADMIN } } }]",
            "capabilities.add is a string, not a list",
        ),
    ] {
        let pod = POD.replace("containers:", &format!("{spec}, containers:"));
        let error = error(&node, &pod).await;
        assert!(error.contains(what), "{error}");
    }
    let list = "{ apiVersion: v1, kind: List, items: {} }\n";
    let error = error(&node, list).await;
    assert!(
        error.contains("items of the List is a map, not a list"),
        "{error}"
    );
}

#[tokio::test]
async fn a_field_at_a_wrong_place_is_a_warning_with_the_right_place_and_no_yes() {
    let node = Three::start();
    let workload = "{ apiVersion: apps/v1, kind: Deployment, spec: { runtimeClassName: gvisor, template: { hostPID: true, spec: { containers: [{ name: c, image: c }] } } } }";
    for (object, warnings) in [
        (
            POD.replace("spec:", "hostNetwork: true, spec:"),
            vec![("hostNetwork", "spec.hostNetwork")],
        ),
        (
            POD.replace("name: p", "name: p, volumes: []"),
            vec![("metadata.volumes", "spec.volumes")],
        ),
        (
            workload.to_owned(),
            vec![
                (
                    "spec.runtimeClassName",
                    "spec.template.spec.runtimeClassName",
                ),
                ("spec.template.hostPID", "spec.template.spec.hostPID"),
            ],
        ),
    ] {
        let pod = node.only_pod(&object).await;
        let expected = warnings.into_iter().map(|(name, near)| {
            format!("warning: Kubernetes has no field {name}, and kubectl rejects it; did you mean {near}?")
        });
        assert_eq!(pod["warnings"], expected.collect::<Value>());
        assert_eq!(pod["fits"], Value::Null);
    }
    let job = "{ apiVersion: batch/v1, kind: Job, spec: { activeDeadlineSeconds: 5, template: { spec: { containers: [{ name: c, image: c }] } } } }";
    assert_eq!(node.only_pod(job).await["fits"], true);
    let pod = node.pod("containers: [{ name: c, image: i, resources: { limits: { memmory: 1Gi, hugepages-2Mi: 2Mi, a.example/b: 1 } } }]").await;
    let warning = "limits.memmory, and kubectl rejects it; did you mean memory?";
    let warnings = pod["warnings"].as_array().unwrap();
    assert!(
        warnings[0].as_str().unwrap().ends_with(warning) && warnings.len() == 1,
        "{warnings:?}"
    );
}

#[tokio::test]
async fn an_object_that_may_have_other_pods_is_listed_as_skipped() {
    let node = Three::start();
    let template = "template: { spec: { hostNetwork: true, containers: [{ name: c, image: c }] } }";
    for (object, line) in [
        (
            format!(
                "{{ apiVersion: apps/v1, kind: Deploymnet, metadata: {{ name: x }}, spec: {{ {template} }} }}"
            ),
            "skipped: Deploymnet x (apps/v1) in FILE: Kubernetes has no such kind with pods; did you mean Deployment?",
        ),
        (
            "{ kind: pod, spec: { containers: [{ name: c, image: i }] } }".to_owned(),
            "skipped: pod () in FILE: Kubernetes has no such kind with pods; did you mean Pod?",
        ),
        (
            format!(
                "{{ apiVersion: ray.io/v1, kind: RayCluster, spec: {{ head: {{ {template} }}, worker: {{ spec: {{ hostPID: true }} }} }} }}"
            ),
            "skipped: RayCluster (ray.io/v1) in FILE: it has hostPID outside of a whole pod template, and its controller may create such pods",
        ),
        (
            "{ apiVersion: kustomize.config.k8s.io/v1beta1, kind: Kustomization }".to_owned(),
            "in FILE: it has no pods; try kubectl kustomize DIR | criswitch explain -f -",
        ),
    ] {
        let file = node.file("objects.yaml", &format!("{POD}---\n{object}\n"));
        let outcome = node.explain(&[&file], &[]).await;
        assert_eq!(outcome.code, 1, "{}", outcome.stdout);
        let line = line.replace("FILE", file.to_str().unwrap());
        let shown = outcome
            .stdout
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        assert!(shown.contains(&line), "{shown}");
    }
    let former = format!(
        "{POD}---\n{{ apiVersion: apps/v1, kind: ControllerRevision, data: {{ spec: {{ {template} }} }} }}\n"
    );
    let file = node.file("objects.yaml", &former);
    assert_eq!(node.explain(&[&file], &[]).await.code, 0);
    let error = error(
        &node,
        "{ kind: pod, spec: { containers: [{ name: c, image: i }] } }",
    )
    .await;
    assert!(error.contains("did you mean Pod?"), "{error}");
}

#[tokio::test]
async fn a_placeholder_in_a_judged_field_is_a_template() {
    let node = Three::start();
    for spec in [
        "volumes: [{ name: v, hostPath: { path: '{{ .Values.path }}' } }], containers: [{ name: c, image: i }]",
        "volumes: [{ name: v, hostPath: { path: '${DATA}/x' } }], containers: [{ name: c, image: i }]",
        "runtimeClassName: '${CLASS}', containers: [{ name: c, image: i }]",
        "hostNetwork: '{{ .Values.hostNetwork }}', containers: [{ name: c, image: i }]",
        "nodeSelector: { kubernetes.io/os: '{{ .Values.os }}' }, containers: [{ name: c, image: i }]",
        "initContainers: [{ name: i, image: '{{ .Values.init }}' }], containers: [{ name: c, image: i }]",
    ] {
        let error = error(
            &node,
            POD.replace("containers: [{ name: c, image: i }]", spec),
        )
        .await;
        assert!(
            error.contains("looks like a template; render it first"),
            "{spec}: {error}"
        );
    }
    let rendered = "containers: [{ name: c, image: '${REGISTRY}/c', args: ['--format={{ .Name }}'], env: [{ name: A, value: '${B}' }] }]";
    assert_eq!(node.pod(rendered).await["fits"], true);
    let text = "apiVersion: v1\nkind: ConfigMap\ndata:\n  a: |\n    #@ a\n    b: #{c}\n---\n";
    assert_eq!(node.only_pod(&format!("{text}{POD}")).await["fits"], true);
}

#[tokio::test]
async fn a_file_may_be_a_directory_and_large_and_must_be_text() {
    let node = Three::start();
    for bytes in [
        &b"\xff\xfek\0i\0n\0d\0"[..],
        b"# caf\xe9\n",
        b"\x1f\x8b\x08\0\xff",
    ] {
        let error = error(&node, bytes).await;
        assert!(
            error.contains("it is not UTF-8 text; if it is UTF-16"),
            "{error}"
        );
    }
    let deep = format!(
        "{}b: 1\n",
        (0..200)
            .map(|depth| " ".repeat(depth) + "a:\n")
            .collect::<String>()
            + &" ".repeat(200)
    );
    let error = error(&node, deep).await;
    assert!(error.contains("nested too deeply"), "{error}");
    node.file(
        "many/b.yml",
        &"{ apiVersion: v1, kind: ConfigMap }\n---\n".repeat(3000),
    );
    node.file("many/a.json", &POD.replace("spec:", "hostPID: true, spec:"));
    node.file("many/c.yaml", POD);
    node.file("many/d.txt", "not read: [");
    let folder = node.file("many/sub/e.yaml", "not read: [");
    let many = folder.ancestors().nth(2).unwrap();
    let json = node.json(&[many]).await;
    let fits: Vec<_> = json["pods"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pod| &pod["fits"])
        .collect();
    assert_eq!(fits, [&Value::Null, &json!(true)]);
    let empty = node.file("empty/d.txt", "");
    let outcome = node.explain(&[empty.parent().unwrap()], &[]).await;
    assert!(
        outcome
            .stderr
            .contains("has no file whose name ends with .json, .yaml or .yml"),
        "{}",
        outcome.stderr
    );
}

#[tokio::test]
async fn a_field_that_a_runtime_or_a_kubelet_may_not_know_is_not_a_yes() {
    let node = Three::start();
    let annotated =
        |key: &str| POD.replace("name: p", &format!("name: p, annotations: {{ {key}: x }}"));
    for key in [
        "cpu-load-balancing.crio.io",
        "devices.nri.io/container.c",
        "blockio.resources.beta.kubernetes.io/pod",
        "rdt.resources.beta.kubernetes.io/pod",
        "org.systemd.property.TasksMax",
        "seccomp-profile.kubernetes.cri-o.io/c",
        "ulimits.nri.containerd.io/container.c",
        "devices.noderesource.dev/container.c",
        "security.alpha.kubernetes.io/unsafe-sysctls",
    ] {
        let pod = node.only_pod(&annotated(key)).await;
        assert_eq!(of(&pod, "runc")["fits"], Value::Null, "{key}");
    }
    assert_eq!(
        node.only_pod(&annotated("prometheus.io/scrape")).await["fits"],
        true
    );
    for volume in [
        "glusterfs: {}",
        "gitRepo: {}",
        "hostPath: { path: data }",
        "hostPath: { path: '' }",
        "hostPath: { path: 'C:\\var' }",
    ] {
        let pod = node
            .pod(&format!(
                "volumes: [{{ name: v, {volume} }}], \
                 containers: [{{ name: c, image: i, volumeMounts: [{{ name: v, mountPath: /v }}] }}]"
            ))
            .await;
        assert_eq!(of(&pod, "runc")["fits"], Value::Null, "{volume}");
    }
    let pod = node
        .pod("containers: [{ name: c, image: i, env: [{ name: NVIDIA_VISIBLE_DEVICES, value: all }] }]")
        .await;
    assert_eq!(
        [&of(&pod, "runc")["fits"], &of(&pod, "gvisor")["fits"]],
        [&json!(true), &Value::Null]
    );
    let term = "{ key: kubernetes.io/os, operator: NotIn, values: [windows] }";
    let affinity = format!(
        "nodeAffinity: {{ requiredDuringSchedulingIgnoredDuringExecution: {{ nodeSelectorTerms: [{{ matchExpressions: [{term}] }}] }} }}"
    );
    let pod = node
        .pod(&format!(
            "affinity: {{ {affinity} }}, containers: [{{ name: c, image: i }}]"
        ))
        .await;
    assert_eq!(pod["fits"], true);
}

#[tokio::test]
async fn a_runtime_class_of_the_first_version_names_its_handler_too() {
    let node = Three::start();
    let class = "{ apiVersion: node.k8s.io/v1alpha1, kind: RuntimeClass, metadata: { name: boxed }, spec: { runtimeHandler: gvisor } }";
    let pod = POD.replace("spec: {", "spec: { runtimeClassName: boxed,");
    let pod = node.only_pod(&format!("{class}\n---\n{pod}")).await;
    assert_eq!(
        (&pod["handler"], &pod["fits"]),
        (&json!("gvisor"), &json!(true))
    );
}

#[tokio::test]
async fn a_runtime_class_or_a_workload_that_kubectl_rejects_is_a_problem() {
    let node = Three::start();
    let pod = POD.replace("spec: {", "spec: { runtimeClassName: gvisor,");
    for (object, problem) in [
        (
            "{ apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: { name: gvisor }, hanlder: kata }",
            "RuntimeClass \"gvisor\" has no handler",
        ),
        (
            "{ apiVersion: node.k8s.io/v1, kind: runtimeClass, metadata: { name: gvisor }, handler: kata }",
            "Kubernetes has no kind runtimeClass; did you mean RuntimeClass?",
        ),
        (
            "{ apiVersion: v1, kind: RuntimeClass, metadata: { name: gvisor }, handler: kata }",
            "the API has no RuntimeClass in v1; try apiVersion: node.k8s.io/v1",
        ),
        (
            "{ apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: { name: gvisor }, handler: gvisor, scheduling: { nodeSelector: [a] } }",
            "RuntimeClass \"gvisor\": scheduling.nodeSelector is not a map",
        ),
        (
            "{ apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: { name: gvisor }, handler: gvisor, scheduling: { nodeSeletor: {} } }",
            "RuntimeClass \"gvisor\": Kubernetes has no field nodeSeletor; did you mean nodeSelector?",
        ),
        (
            "{ apiVersion: node.k8s.io/v1beta1, kind: RuntimeClass, metadata: { name: gvisor }, handler: gvisor }",
            "the API has no RuntimeClass in node.k8s.io/v1beta1; try apiVersion: node.k8s.io/v1",
        ),
        (
            "{ apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: { name: gvisor }, handler: gvisor, overhead: { memory: 160Mi } }",
            "RuntimeClass \"gvisor\": Kubernetes has no field memory",
        ),
        (
            "{ apiVersion: extensions/v1beta1, kind: Deployment, metadata: { name: d }, spec: { template: { spec: { containers: [{ name: c, image: c }] } } } }",
            "the API has no Deployment in extensions/v1beta1; try apiVersion: apps/v1",
        ),
    ] {
        let file = node.file("objects.yaml", &format!("{object}\n---\n{pod}"));
        assert_eq!(node.explain(&[&file], &[]).await.code, 1, "{object}");
        let json = node.json(&[&file]).await;
        let problems = json["problems"].as_array().unwrap();
        assert_eq!(problems.len(), 1, "{json}");
        assert!(problems[0].as_str().unwrap().ends_with(problem), "{json}");
    }
}

#[tokio::test]
async fn a_part_of_a_pod_is_not_judged() {
    let node = Three::start();
    for (version, kind, list) in [
        ("apps/v1", "Deployment", "containers"),
        ("apps/v1", "StatefulSet", "initContainers"),
        ("k8s.elastic.co/v1", "Beat", "containers"),
    ] {
        let own = "containers: [{ name: c, image: c }, { name: p }]";
        let spec = match list {
            "containers" => own.to_owned(),
            list => format!(
                "{}, {list}: [{{ name: i, image: i }}, {{ name: p }}]",
                own.replace(", { name: p }", "")
            ),
        };
        let error = error(
            &node,
            format!("{{ apiVersion: {version}, kind: {kind}, metadata: {{ name: w }}, spec: {{ template: {{ spec: {{ {spec} }} }} }} }}"),
        )
        .await;
        let problem = format!(
            "spec.template.spec.{list}[1] has no image, so the file has only a part of the pod, as a patch has; try kubectl kustomize"
        );
        assert!(error.contains(&problem), "{error}");
    }
    let error = error(&node, POD.replace(", image: i", "")).await;
    assert!(
        error.contains("Pod \"p\": spec.containers[0] has no image"),
        "{error}"
    );
}
