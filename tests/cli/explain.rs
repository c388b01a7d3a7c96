//! `criswitch explain -f`: which handlers of a node can run the pods of a YAML file.

use criswitch_cri::codec::cri::RuntimeHandlerFeatures;
use expect_test::{Expect, expect};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Sim, sockets};
use crate::{Outcome, main_file, run, run_beside, text};

const TABLE: &str = "
    default_handler = 'runc'
    [handlers]
    runc = 'containerd'
    gvisor = { backend = 'containerd', handler = 'runsc' }
    boxed = { backend = 'containerd', handler = 'sandbox' }
    kata = 'crio'
    [backends]
    containerd = 'SOCKETS/a'
    crio = 'SOCKETS/b'";

/// A containerd that reports its configuration. The configuration shows that the handler `sandbox` runs gVisor,
/// although its name does not say so.
fn containerd() -> Sim {
    let sim = Sim::new("containerd")
        .handlers(["runc", "runsc", "sandbox"])
        .features(
            "runc",
            RuntimeHandlerFeatures {
                user_namespaces: true,
                recursive_read_only_mounts: true,
                ..Default::default()
            },
        );
    sim.set(|settings| {
        settings.config = Some(json!({ "containerd": { "defaultRuntimeName": "runc", "runtimes": {
            "runc": { "runtimeType": "io.containerd.runc.v2", "options": {} },
            "runsc": { "runtimeType": "io.containerd.runsc.v1" },
            "sandbox": { "runtimeType": "io.containerd.runc.v2", "options": { "BinaryName": "/opt/runsc" } },
        } } }));
    })
}

/// A node with two backends.
struct Node {
    folder: TempDir,
    /// The configuration, with `SOCKETS` for the directory of the sockets.
    table: String,
}

impl Node {
    fn start() -> Node {
        let folder = tempfile::tempdir().unwrap();
        containerd().serve_on(&folder.path().join("a"));
        let crio = Sim::new("cri-o").handlers(["kata"]);
        crio.serve_on(&folder.path().join("b"));
        Node {
            folder,
            table: TABLE.to_owned(),
        }
    }

    async fn explain(&self, arguments: &[&str], pod: &str) -> Outcome {
        let files = main_file(
            &self
                .table
                .replace("SOCKETS", &sockets::text(self.folder.path())),
        );
        let (main, file) = (files.main(), self.folder.path().join("pod.yaml"));
        std::fs::write(&file, pod).unwrap();
        let explain = ["explain", "--config", text(&main), "-f", text(&file)];
        let mut outcome = run_beside(&[&explain[..], arguments].concat()).await;
        for shown in [&mut outcome.stdout, &mut outcome.stderr] {
            *shown = shown.replace(text(&file), "DIR/pod.yaml");
        }
        outcome
    }

    async fn shows(&self, pod: &str, code: i32, expected: Expect) {
        let outcome = self.explain(&[], pod).await;
        assert_eq!(
            (outcome.code, outcome.stderr.as_str()),
            (code, ""),
            "{}",
            outcome.stdout
        );
        expected.assert_eq(&outcome.stdout);
    }

    async fn json(&self, pod: &str, code: i32) -> Value {
        let outcome = self.explain(&["-o", "json"], pod).await;
        assert_eq!(
            (outcome.code, outcome.stderr.as_str()),
            (code, ""),
            "{}",
            outcome.stdout
        );
        serde_json::from_str(&outcome.stdout).unwrap()
    }
}

const HOST_POD: &str = "
apiVersion: v1
kind: Pod
metadata: { name: agent, namespace: kube-system }
spec:
  runtimeClassName: gvisor
  hostNetwork: true
  containers:
  - name: main
    image: example.com/agent
    securityContext: { privileged: true }
";

#[tokio::test]
async fn each_handler_is_shown_with_the_reasons_and_the_best_one_comes_first() {
    Node::start().shows(HOST_POD, 1, expect![[r#"
        Pod kube-system/agent: RuntimeClass gvisor

        HANDLER  BACKEND     KIND             FITS  WHY
        runc     containerd  runc             yes   no known limit applies
        kata     crio        Kata Containers  no    does not work: 1 limit
        gvisor   containerd  gVisor           no    does not work: 2 limits
        boxed    containerd  gVisor           no    does not work: 2 limits

        kata: cannot do its work: spec.hostNetwork: The pod runs in a virtual machine, which cannot use the network of the node: it has only the interface `lo`. Remove the field, or use a RuntimeClass of runc or crun. [kata-host-network] https://github.com/kata-containers/kata-containers/blob/main/docs/Limitations.md
        kata: runs with less: spec.containers[0].securityContext.privileged: The container is privileged in its virtual machine: it has all capabilities, but no devices of the node. Remove the field, or use a RuntimeClass of runc or crun. [kata-privileged] https://github.com/kata-containers/kata-containers/blob/main/docs/Limitations.md
        kata: unknown, applies if privileged_without_host_devices is false for the handler: spec.containers[0].securityContext.privileged: The backend passes all devices of the node to a privileged container, and Kata Containers cannot add them to the virtual machine: the container does not start. Set privileged_without_host_devices = true for the handler in the configuration of the backend. [kata-privileged-devices] https://github.com/kata-containers/kata-containers/issues/1342

        gvisor: cannot do its work: spec.hostNetwork: gVisor starts the pod in a new network namespace, without a network interface of the node, unless runsc has the flag --network=host. Remove the field, or use a RuntimeClass of runc or crun. [gvisor-host-network] https://github.com/google/gvisor/blob/master/runsc/sandbox/sandbox.go
        gvisor: cannot do its work: spec.containers[0].securityContext.privileged: gVisor drops the capability NET_RAW, also from privileged containers, unless runsc has the flag --net-raw: raw sockets do not work, and neither do tcpdump and iptables, which NET_ADMIN is for. Set net-raw = "true" in the configuration of runsc, remove the field, or use a RuntimeClass of runc or crun. [gvisor-net-raw] https://github.com/google/gvisor/blob/master/runsc/config/flags.go
        gvisor: runs with less: spec.containers[0].securityContext.privileged: The container is privileged in its sandbox only: it cannot use the node's kernel and devices. Remove the field, or use a RuntimeClass of runc or crun. [gvisor-privileged] seen in criswitch's tests with gVisor of September 2026

        boxed: cannot do its work: spec.hostNetwork: gVisor starts the pod in a new network namespace, without a network interface of the node, unless runsc has the flag --network=host. Remove the field, or use a RuntimeClass of runc or crun. [gvisor-host-network] https://github.com/google/gvisor/blob/master/runsc/sandbox/sandbox.go
        boxed: cannot do its work: spec.containers[0].securityContext.privileged: gVisor drops the capability NET_RAW, also from privileged containers, unless runsc has the flag --net-raw: raw sockets do not work, and neither do tcpdump and iptables, which NET_ADMIN is for. Set net-raw = "true" in the configuration of runsc, remove the field, or use a RuntimeClass of runc or crun. [gvisor-net-raw] https://github.com/google/gvisor/blob/master/runsc/config/flags.go
        boxed: runs with less: spec.containers[0].securityContext.privileged: The container is privileged in its sandbox only: it cannot use the node's kernel and devices. Remove the field, or use a RuntimeClass of runc or crun. [gvisor-privileged] seen in criswitch's tests with gVisor of September 2026

        not checked: everything else that the API server validates
    "#]]).await;
}

const DEPLOYMENT: &str = "
apiVersion: v1
kind: Service
metadata: { name: web }
spec: { ports: [{ port: 80 }] }
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: web }
spec:
  template:
    spec:
      initContainers:
      - { name: setup, image: example.com/setup, securityContext: { privileged: true } }
      containers:
      - { name: web, image: example.com/web }
---
apiVersion: batch/v1
kind: CronJob
metadata: { name: nightly, namespace: jobs }
spec: { jobTemplate: { spec: { template: { spec: { hostUsers: false, runtimeClassName: boxed, containers: [{ name: job, image: job }] } } } } }
";

#[tokio::test]
async fn pods_of_workloads_are_checked_with_the_fields_of_their_file() {
    let json = Node::start().json(DEPLOYMENT, 1).await;
    let [web, nightly] = json["pods"].as_array().unwrap().as_slice() else {
        panic!("{json}")
    };
    assert_eq!(
        (web["kind"].as_str(), web["name"].as_str()),
        (Some("Deployment"), Some("web"))
    );
    assert_eq!(
        (&web["class"], &web["handler"], &web["fits"]),
        (&json!(null), &json!("runc"), &json!(true))
    );
    let handlers = |pod: &Value| pod["handlers"].as_array().unwrap().clone();
    let names: Vec<_> = handlers(web)
        .iter()
        .map(|it| it["handler"].clone())
        .collect();
    assert_eq!(names, ["runc", "kata", "boxed", "gvisor"]);
    let fields = &handlers(web)[2]["reasons"][0]["fields"];
    let field = "spec.template.spec.initContainers[0].securityContext.privileged";
    assert_eq!(*fields, json!([field]));
    assert_eq!(nightly["fits"], false);
    let boxed = handlers(nightly)
        .into_iter()
        .find(|it| it["handler"] == "boxed")
        .unwrap();
    assert_eq!(boxed["kind"], "gvisor");
    assert_eq!(boxed["kindFrom"], "the backend's configuration");
    assert_eq!(boxed["reasons"][0]["limit"], "host-users");
    let field = "spec.jobTemplate.spec.template.spec.hostUsers";
    assert_eq!(boxed["reasons"][0]["fields"], json!([field]));
}

#[tokio::test]
async fn a_backend_that_does_not_answer_and_an_unknown_class_are_named() {
    let mut node = Node::start();
    node.table = TABLE.replace("SOCKETS/b", "SOCKETS/absent");
    let pod = "{ kind: Pod, metadata: { name: web }, spec: { runtimeClassName: nosuch, containers: [{ name: c, image: i }] } }";
    let outcome = node.explain(&[], pod).await;
    assert_eq!(outcome.code, 1, "{}", outcome.stderr);
    let shown = outcome.stdout;
    assert!(
        shown.contains("RuntimeClass nosuch; no handler of this node has this name"),
        "{shown}"
    );
    assert!(
        shown.contains("kata: unknown: no answer from backend crio: "),
        "{shown}"
    );
}

#[tokio::test]
async fn a_field_that_needs_a_feature_is_undecided_while_the_backend_does_not_answer() {
    let mut node = Node::start();
    node.table = TABLE.replace("SOCKETS/a", "SOCKETS/absent");
    for field in [
        "hostUsers: false",
        "securityContext: { supplementalGroupsPolicy: Strict }",
    ] {
        let pod = format!(
            "{{ kind: Pod, metadata: {{ name: web }}, spec: {{ {field}, containers: [{{ name: c, image: i }}] }} }}"
        );
        let json = node.json(&pod, 1).await;
        let pod = &json["pods"][0];
        assert_eq!(
            (&pod["handler"], &pod["fits"]),
            (&json!("runc"), &json!(null))
        );
        let runc = pod["handlers"].as_array().unwrap().iter();
        let runc = runc.clone().find(|it| it["handler"] == "runc").unwrap();
        assert_eq!(runc["fits"], json!(null));
        let why = "backend \"containerd\" does not answer, so limits that depend on its features are unknown";
        assert_eq!(runc["why"], why);
    }
    let pod = "{ kind: Pod, metadata: { name: web }, spec: { hostUsers: false, containers: [{ name: c, image: i }] } }";
    let shown = node.explain(&[], pod).await.stdout;
    let row = shown
        .lines()
        .find(|line| line.starts_with("runc "))
        .unwrap();
    assert!(
        row.contains("  unknown  backend \"containerd\" does not answer"),
        "{shown}"
    );
    // A pod that sets none of these fields fits.
    let pod =
        "{ kind: Pod, metadata: { name: web }, spec: { containers: [{ name: c, image: i }] } }";
    assert_eq!(node.json(pod, 0).await["pods"][0]["fits"], true);
}

#[tokio::test]
async fn a_handler_of_an_unknown_kind_comes_after_the_fitting_ones_of_a_known_kind() {
    let folder = tempfile::tempdir().unwrap();
    Sim::new("cri-o")
        .handlers(["box", "kata"])
        .serve_on(&folder.path().join("a"));
    let table = "default_handler = 'box'\n[handlers]\nbox = { socket = 'SOCKETS/a' }\nkata = { socket = 'SOCKETS/a' }";
    let node = Node {
        folder,
        table: table.to_owned(),
    };
    let pod = "{ kind: Pod, metadata: { name: web }, spec: { hostPID: true, containers: [{ name: c, image: i }] } }";
    let json = node.json(pod, 1).await;
    let handlers = json["pods"][0]["handlers"].as_array().unwrap();
    let order: Vec<_> = handlers
        .iter()
        .map(|it| (&it["handler"], &it["fits"], &it["kind"]))
        .collect();
    assert_eq!(
        order,
        [
            (&json!("kata"), &json!(true), &json!("kata")),
            (&json!("box"), &json!(null), &json!(null))
        ]
    );
}

#[tokio::test]
async fn a_handler_that_its_backend_lacks_does_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    Sim::new("containerd")
        .handlers(["runc"])
        .serve_on(&folder.path().join("a"));
    Sim::new("cri-o")
        .handlers(["kata"])
        .serve_on(&folder.path().join("b"));
    let table = TABLE.to_owned();
    let json = Node { folder, table }
        .json(
            "{ kind: Pod, metadata: { name: web }, spec: { containers: [{ name: c, image: i }] } }",
            0,
        )
        .await;
    let handlers = json["pods"][0]["handlers"].as_array().unwrap();
    let last = handlers
        .iter()
        .find(|it| it["handler"] == "gvisor")
        .unwrap();
    assert_eq!(
        (&last["handler"], &last["fits"]),
        (&json!("gvisor"), &json!(false))
    );
    assert_eq!(
        last["missing"],
        "backend \"containerd\" has no handler \"runsc\""
    );
}

#[tokio::test]
async fn a_wrong_file_is_reported_with_its_place() {
    let node = Node::start();
    for (file, error) in [
        (
            "kind: Pod\nspec: [\n",
            "criswitch: DIR/pod.yaml:2:7: not valid YAML; look here and before for a bracket or quote without its end, or for wrong indentation\n",
        ),
        (
            "kind: Pod\nmetadata: {name: a\nspec: {}\n",
            "not valid YAML",
        ),
        (
            "kind: Pod\nmetadata: { name: web }\n",
            "document 1: Pod \"web\" has no spec",
        ),
        (
            "kind: Pod\nspec: { containers: [] }\n",
            "document 1: Pod \"\" has no containers in spec.containers",
        ),
        (
            "kind: Pod\nspec:\n  hostPID: true\n  hostPID: true\n",
            "DIR/pod.yaml:4:3: the key \"hostPID\" occurs twice in one map\n",
        ),
        ("{}", "document 1: the object has no `kind`"),
        ("kind: Service\n", "DIR/pod.yaml has no pod"),
        ("", "DIR/pod.yaml has no pod"),
    ] {
        let outcome = node.explain(&[], file).await;
        assert_eq!((outcome.code, outcome.stdout.as_str()), (1, ""), "{file}");
        assert!(outcome.stderr.contains(error), "{}", outcome.stderr);
        assert!(!outcome.stderr.contains("at line"), "{}", outcome.stderr);
    }
    let outcome = node.explain(&[], &" ".repeat((16 << 20) + 1)).await;
    assert_eq!(outcome.code, 1);
    let error = "DIR/pod.yaml is larger than 16 MiB";
    assert!(outcome.stderr.contains(error), "{}", outcome.stderr);
    let outcome = run(&["explain", "-f", "/nonexistent/pod.yaml"]);
    assert_eq!(outcome.code, 1);
    assert!(
        outcome.stderr.contains("cannot read /nonexistent/pod.yaml"),
        "{}",
        outcome.stderr
    );
}

#[tokio::test]
async fn a_value_of_a_wrong_type_is_reported_with_its_field() {
    let node = Node::start();
    for (spec, error) in [
        (
            "hostNetwork: 'true'",
            "spec.hostNetwork is a string, not a boolean",
        ),
        (
            "runtimeClassName: 5",
            "spec.runtimeClassName is a number, not a string",
        ),
        (
            "containers: { name: web }",
            "spec.containers is a map, not a list",
        ),
        (
            "initContainers: [{}, { securityContext: { privileged: 1 } }]",
            "spec.initContainers[1].securityContext.privileged is a number, not a boolean",
        ),
    ] {
        let pod = format!("{{ kind: Pod, metadata: {{ name: web }}, spec: {{ {spec} }} }}");
        let outcome = node.explain(&[], &pod).await;
        assert_eq!((outcome.code, outcome.stdout.as_str()), (1, ""), "{spec}");
        let error = format!("criswitch: DIR/pod.yaml: document 1: {error}\n");
        assert_eq!(outcome.stderr, error);
        let job = format!(
            "{{ kind: Job, metadata: {{ name: web }}, spec: {{ template: {{ spec: {{ {spec} }} }} }} }}"
        );
        let outcome = node.explain(&[], &job).await;
        let error = error.replace("1: spec", "1: spec.template.spec");
        assert_eq!(outcome.stderr, error);
    }
}

#[tokio::test]
async fn items_of_a_list_of_pods_need_no_kind_and_a_pod_needs_no_name() {
    let pods = "{ kind: PodList, items: [
        { metadata: { generateName: web- }, spec: { containers: [{ name: c, image: i }] } },
        { metadata: {}, spec: { hostPID: null, containers: [{ name: c, image: i }] } },
    ] }";
    let shown = Node::start().explain(&[], pods).await;
    assert_eq!((shown.code, shown.stderr.as_str()), (0, ""));
    let titles: Vec<_> = shown
        .stdout
        .lines()
        .filter(|line| line.starts_with("Pod"))
        .collect();
    let class = "no RuntimeClass, so it runs in the default handler runc";
    assert_eq!(
        titles,
        [
            format!("Pod web-*: {class}"),
            format!("Pod without a name: {class}")
        ]
    );
}

#[test]
fn explain_needs_a_subject_and_takes_only_one() {
    for arguments in [&["explain"][..], &["explain", "runc", "-f", "pod.yaml"]] {
        assert_eq!(run(arguments).code, 64, "{arguments:?}");
    }
}

#[tokio::test]
async fn a_row_may_name_the_kind_of_its_runtime() {
    let folder = tempfile::tempdir().unwrap();
    Sim::new("cri-o")
        .handlers(["box"])
        .serve_on(&folder.path().join("a"));
    let socket = folder.path().join("a");
    let table = format!(
        "default_handler = 'box'\n[handlers]\nbox = {{ socket = {socket:?}, kind = 'gvisor' }}"
    );
    let (files, pod) = (main_file(&table), folder.path().join("pod.yaml"));
    std::fs::write(&pod, HOST_POD.replace("gvisor", "box")).unwrap();
    let outcome = run_beside(&[
        "explain",
        "--json",
        "--config",
        text(&files.main()),
        "-f",
        text(&pod),
    ])
    .await;
    assert_eq!(outcome.code, 1, "{}", outcome.stderr);
    let json: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let row = &json["pods"][0]["handlers"][0];
    assert_eq!(
        (&row["kind"], &row["kindFrom"]),
        (&json!("gvisor"), &json!("the row"))
    );
    let wrong = table.replace("gvisor", "gviser");
    let outcome = run(&["check", "--config", text(&main_file(&wrong).main())]);
    assert_eq!(outcome.code, 78);
    assert!(
        outcome
            .stderr
            .contains("\"gviser\" is not a kind of runtime; try \"gvisor\""),
        "{}",
        outcome.stderr
    );
}
