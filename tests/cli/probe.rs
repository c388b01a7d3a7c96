//! `criswitch check --probe` with simulated runtimes.

use criswitch_cri::codec::cri::{CgroupDriver, RuntimeCondition, RuntimeHandlerFeatures};
use expect_test::{Expect, expect};
use serde_json::json;
use tempfile::TempDir;

use crate::support::misbehaving::{Misbehaving, too_large};
use crate::support::{Rig, Sim, portable, sockets};
use crate::{Outcome, main_file, run_beside, text};

/// Simulated runtimes with sockets in a temporary directory.
struct Node {
    folder: TempDir,
}

impl Node {
    fn new() -> Node {
        Node {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn with(self, name: &str, sim: Sim) -> Node {
        sim.serve_on(&self.folder.path().join(name));
        self
    }

    /// Runs `check --probe`. `SOCKETS` in the configuration is the directory of the sockets.
    async fn probe(&self, arguments: &[&str], config: &str) -> Outcome {
        let files = main_file(&config.replace("SOCKETS", &sockets::text(self.folder.path())));
        let path = files.main();
        let probe = ["check", "--probe", "--config", text(&path)];
        let outcome = run_beside(&[&probe[..], arguments].concat()).await;
        assert_eq!(outcome.stderr, "");
        outcome
    }

    /// Checks the exit code, and the output below the routing table.
    async fn shows(&self, config: &str, code: i32, expected: Expect) {
        let outcome = self.probe(&[], config).await;
        assert_eq!(outcome.code, code, "{}", outcome.stdout);
        let parts: Vec<&str> = outcome.stdout.split("\n\n").collect();
        let shown = parts[4..]
            .join("\n\n")
            .replace(text(&self.folder.path().join("")), "SOCKETS/");
        expected.assert_eq(&shown);
    }

    /// Checks the exit code, and returns the JSON output.
    async fn json(&self, config: &str, code: i32) -> serde_json::Value {
        let outcome = self.probe(&["--json"], config).await;
        assert_eq!(outcome.code, code, "{}", outcome.stdout);
        serde_json::from_str(&outcome.stdout).unwrap()
    }
}

const TWO: &str = "
    default_handler = 'runc'
    [handlers]
    runc = 'containerd'
    crun = 'containerd'
    gvisor = { backend = 'crio', handler = 'runsc' }
    own = { backend = 'crio', handler = '' }
    [backends]
    containerd = 'SOCKETS/a'
    crio = 'SOCKETS/b'";

const ONE: &str = "default_handler = 'runc'\n[handlers]\nrunc = 'SOCKETS/a'";

fn containerd() -> Sim {
    Sim::new("containerd")
        .version("2.4.2")
        .handlers(["runc", "crun"])
}

fn crio() -> Sim {
    Sim::new("cri-o")
        .version("1.37.0")
        .handlers(["crun", "runsc"])
}

#[tokio::test]
async fn a_probe_shows_the_answers_of_each_backend() {
    let node = Node::new().with("a", containerd()).with("b", crio());
    node.shows(
        TWO,
        0,
        expect![[r#"
            BACKEND     RUNTIME           CGROUPS  HANDLERS
            containerd  containerd 2.4.2  systemd  runc crun
            crio        cri-o 1.37.0      systemd  crun runsc

            BACKEND     CONDITION     STATUS  REASON
            containerd  RuntimeReady  true    -
            containerd  NetworkReady  true    -
            crio        RuntimeReady  true    -
            crio        NetworkReady  true    -

            configuration is valid
        "#]],
    )
    .await;
}

const ALL: RuntimeHandlerFeatures = RuntimeHandlerFeatures {
    recursive_read_only_mounts: true,
    user_namespaces: true,
    cgroup_namespaces: false,
};

/// The probe does not report a feature that all backends lack: without criswitch, the kubelet rejects the same pods.
#[tokio::test]
async fn a_probe_shows_the_pods_that_the_kubelet_rejects_if_one_backend_lacks_a_feature() {
    let crio = crio()
        .features("crun", ALL)
        .set(|settings| settings.features.supplemental_groups_policy = false);
    let containerd = containerd().features("runc", ALL).set(|settings| {
        settings.features.mount_options = true;
        settings.features.seccomp_profile_oci = true;
    });
    let node = Node::new().with("a", containerd).with("b", crio);
    let outcome = node.probe(&[], TWO).await;
    let (shown, _) = outcome.stdout.rsplit_once("\n\n").unwrap();
    let (_, shown) = shown.rsplit_once("\n\n").unwrap();
    expect![[r#"
        feature "user_namespaces" is off for handlers "crun", "gvisor", whose backend does not report it. Pods with spec.hostUsers: The runtime does not report user namespaces to the kubelet, so the kubelet rejects the pod. Remove `hostUsers: false`, or use a RuntimeClass whose handler has the feature user_namespaces. [host-users]
        feature "recursive_read_only_mounts" is off for handlers "crun", "gvisor", whose backend does not report it. Pods with spec.containers[*].volumeMounts[*].recursiveReadOnly: The runtime does not report recursive read-only mounts, so the kubelet does not start the container. Use `recursiveReadOnly: IfPossible`, or a RuntimeClass whose handler has the feature recursive_read_only_mounts. [recursive-read-only]
        feature "supplemental_groups_policy" is off on the node because of backend "crio". Pods with spec.securityContext.supplementalGroupsPolicy: A backend of this node does not report the feature, so the kubelet rejects the pod. Before Kubernetes 1.33, the kubelet silently applies `Merge`. Remove `supplementalGroupsPolicy: Strict`, or run the pod on a node whose backends all have the feature. [supplemental-groups]
        feature "mount_options" is off on the node because of backend "crio". Pods with spec.containers[*].volumeMounts[*].bindMountOptions[*]: A backend of this node does not report the feature, so the kubelet rejects the pod. Remove `bindMountOptions`, or run the pod on a node whose backends all have the feature. [bind-mount-options]
        feature "seccomp_profile_oci" is off on the node because of backend "crio". Pods with spec.securityContext.seccompProfile.type, spec.containers[*].securityContext.seccompProfile.type: A backend of this node does not report the feature, so the kubelet rejects the pod. Use a profile of the type RuntimeDefault or Localhost, or run the pod on a node whose backends all have the feature. [seccomp-oci]"#]].assert_eq(shown);
    let json = node.json(TWO, 0).await;
    let lacking = serde_json::to_string_pretty(&json["lackingFeatures"]).unwrap();
    expect![[r#"
        [
          {
            "backends": [
              "containerd",
              "crio"
            ],
            "feature": "user_namespaces",
            "handlers": [
              "crun",
              "gvisor"
            ],
            "limit": {
              "effect": "fails",
              "fields": [
                "spec.hostUsers"
              ],
              "limit": "host-users",
              "onlyIf": "the backend lacks the feature user_namespaces",
              "reason": "The runtime does not report user namespaces to the kubelet, so the kubelet rejects the pod.",
              "remedy": "Remove `hostUsers: false`, or use a RuntimeClass whose handler has the feature user_namespaces.",
              "source": {
                "title": "kubernetes/kubernetes#123216: KEP-127: require userns support from the CRI runtime before using it",
                "url": "https://github.com/kubernetes/kubernetes/pull/123216"
              }
            }
          },
          {
            "backends": [
              "containerd",
              "crio"
            ],
            "feature": "recursive_read_only_mounts",
            "handlers": [
              "crun",
              "gvisor"
            ],
            "limit": {
              "effect": "fails",
              "fields": [
                "spec.containers[*].volumeMounts[*].recursiveReadOnly"
              ],
              "limit": "recursive-read-only",
              "onlyIf": "the backend lacks the feature recursive_read_only_mounts",
              "reason": "The runtime does not report recursive read-only mounts, so the kubelet does not start the container.",
              "remedy": "Use `recursiveReadOnly: IfPossible`, or a RuntimeClass whose handler has the feature recursive_read_only_mounts.",
              "source": {
                "title": "Kubernetes: Volumes, recursive read-only mounts",
                "url": "https://kubernetes.io/docs/concepts/storage/volumes/#recursive-read-only-mounts"
              }
            }
          },
          {
            "backends": [
              "crio"
            ],
            "feature": "supplemental_groups_policy",
            "limit": {
              "effect": "fails",
              "fields": [
                "spec.securityContext.supplementalGroupsPolicy"
              ],
              "limit": "supplemental-groups",
              "onlyIf": "the backend lacks the feature supplemental_groups_policy",
              "reason": "A backend of this node does not report the feature, so the kubelet rejects the pod. Before Kubernetes 1.33, the kubelet silently applies `Merge`.",
              "remedy": "Remove `supplementalGroupsPolicy: Strict`, or run the pod on a node whose backends all have the feature.",
              "source": {
                "title": "Kubernetes: Configure a Security Context for a Pod or Container, supplementalGroupsPolicy",
                "url": "https://kubernetes.io/docs/tasks/configure-pod-container/security-context/"
              }
            }
          },
          {
            "backends": [
              "crio"
            ],
            "feature": "mount_options",
            "limit": {
              "effect": "fails",
              "fields": [
                "spec.containers[*].volumeMounts[*].bindMountOptions[*]"
              ],
              "limit": "bind-mount-options",
              "onlyIf": "the backend lacks the feature mount_options",
              "reason": "A backend of this node does not report the feature, so the kubelet rejects the pod.",
              "remedy": "Remove `bindMountOptions`, or run the pod on a node whose backends all have the feature.",
              "source": {
                "title": "kubernetes/enhancements#5856: Add KEP-5855 for bind mount options (noexec, nodev, nosuid) on volumeMounts",
                "url": "https://github.com/kubernetes/enhancements/pull/5856"
              }
            }
          },
          {
            "backends": [
              "crio"
            ],
            "feature": "seccomp_profile_oci",
            "limit": {
              "effect": "fails",
              "fields": [
                "spec.securityContext.seccompProfile.type",
                "spec.containers[*].securityContext.seccompProfile.type"
              ],
              "limit": "seccomp-oci",
              "onlyIf": "the backend lacks the feature seccomp_profile_oci",
              "reason": "A backend of this node does not report the feature, so the kubelet rejects the pod.",
              "remedy": "Use a profile of the type RuntimeDefault or Localhost, or run the pod on a node whose backends all have the feature.",
              "source": {
                "title": "kubernetes/enhancements#6062: KEP-6061: OCI artifact-based security profile distribution (Kubernetes 1.38, alpha)",
                "url": "https://github.com/kubernetes/enhancements/pull/6062"
              }
            }
          }
        ]"#]].assert_eq(&lacking);
}

/// Fields 9 and 8 are features of a later version of the CRI.
#[tokio::test]
async fn a_probe_names_features_that_this_version_does_not_know() {
    let features = [4 << 3 | 2, 2, 9 << 3, 1];
    let handlers = [3 << 3 | 2, 4, 2 << 3 | 2, 2, 8 << 3, 1];
    let crio = crio();
    crio.append_raw("Status", [&features[..], &handlers].concat());
    let node = Node::new().with("a", containerd()).with("b", crio);
    let outcome = node.probe(&[], TWO).await;
    let line = "backend \"crio\" reports features that this version of criswitch does not know: field 9 of \
                RuntimeFeatures, field 8 of RuntimeHandlerFeatures. The node has a feature of RuntimeFeatures if all \
                backends with handlers report it. A feature of RuntimeHandlerFeatures passes unchanged.\n";
    assert!(outcome.stdout.contains(line), "{}", outcome.stdout);
    let json = node.json(TWO, 0).await;
    let unknown = |backend: usize| json["backends"][backend]["probe"]["unknownFeatures"].clone();
    assert_eq!(unknown(0), json!([]));
    let named = [
        "field 9 of RuntimeFeatures",
        "field 8 of RuntimeHandlerFeatures",
    ];
    assert_eq!(unknown(1), json!(named));
}

#[tokio::test]
async fn features_do_not_depend_on_backends_without_new_pods_or_without_an_answer() {
    let old = crio().set(|settings| settings.features.supplemental_groups_policy = false);
    let node = Node::new().with("a", containerd()).with("b", old);
    let unused = format!("{ONE}\n[backends]\nunused = 'SOCKETS/b'\n");
    assert_eq!(node.json(&unused, 0).await["lackingFeatures"], json!([]));
    let silent = format!("{ONE}\nkata = 'SOCKETS/c'\n");
    assert_eq!(node.json(&silent, 1).await["lackingFeatures"], json!([]));
}

#[tokio::test]
async fn the_json_of_a_probe_has_the_answers() {
    let sim = containerd().set(|settings| settings.conditions.truncate(1));
    let node = Node::new().with("a", sim);
    let json = node.json(ONE, 0).await;
    let probe = serde_json::to_string_pretty(&json["backends"][0]["probe"]).unwrap();
    expect![[r#"
        {
          "answers": true,
          "cgroupDriver": "systemd",
          "conditions": [
            {
              "message": "",
              "reason": "",
              "status": true,
              "type": "RuntimeReady"
            }
          ],
          "features": [
            "supplemental_groups_policy"
          ],
          "handlers": [
            "runc",
            "crun"
          ],
          "lackingRpcs": [],
          "runtime": "containerd",
          "unansweredRpcs": [],
          "unknownFeatures": [],
          "version": "2.4.2"
        }"#]]
    .assert_eq(&probe);
}

#[tokio::test]
async fn a_kind_that_differs_from_the_program_of_the_backend_is_a_problem() {
    let program = json!({ "runtimeType": "io.containerd.runc.v2" });
    let config = json!({ "containerd": { "runtimes": { "a": program, "b": program } } });
    let sim = containerd().handlers(["a", "b"]);
    let node = Node::new().with("a", sim.set(|settings| settings.config = Some(config)));
    let table = "default_handler = 'a'\n[handlers]\na = { socket = 'SOCKETS/a', kind = 'crun' }\n\
                 b = { socket = 'SOCKETS/a', kind = 'KIND' }";
    for (kind, code) in [("runc", 0), ("other", 0), ("gvisor", 1)] {
        let outcome = node.probe(&[], &table.replace("KIND", kind)).await;
        assert_eq!(outcome.code, code, "{}", outcome.stdout);
        let problem = "handler \"b\": its row has kind = \"gvisor\", but the backend starts runc; try removing `kind`";
        assert_eq!(outcome.stdout.contains(problem), code == 1);
    }
}

#[tokio::test]
async fn a_row_whose_backend_lacks_the_handler_is_reported_and_the_code_is_1() {
    let node = Node::new()
        .with("a", containerd().handlers(["runc"]))
        .with("b", crio().handlers(["gvisor"]));
    node.shows(
        TWO,
        1,
        expect![[r#"
            BACKEND     RUNTIME           CGROUPS  HANDLERS
            containerd  containerd 2.4.2  systemd  runc
            crio        cri-o 1.37.0      systemd  gvisor

            BACKEND     CONDITION     STATUS  REASON
            containerd  RuntimeReady  true    -
            containerd  NetworkReady  true    -
            crio        RuntimeReady  true    -
            crio        NetworkReady  true    -

            handler "crun": backend "containerd" has no handler "crun"
            handler "gvisor": backend "crio" has no handler "runsc"

            configuration is valid; 2 problems on this node
        "#]],
    )
    .await;
    let json = node.json(TWO, 1).await;
    let rows = json["handlers"].as_array().unwrap().iter();
    let reported: Vec<_> = rows
        .map(|row| (row["name"].as_str().unwrap(), row["reported"].as_bool()))
        .collect();
    let expected = [
        ("crun", false),
        ("gvisor", false),
        ("own", true),
        ("runc", true),
    ];
    assert_eq!(
        reported,
        expected.map(|(name, reported)| (name, Some(reported)))
    );
    let problems = ["crun", "gvisor"].map(|name| format!("handler {name:?}: backend "));
    for (at, problem) in problems.iter().enumerate() {
        let what = json["problems"][at]["what"].as_str().unwrap();
        assert!(what.starts_with(problem), "{what}");
    }
    let files = main_file(&TWO.replace("SOCKETS", &sockets::text(node.folder.path())));
    let path = files.main();
    let names = ["check", "--probe", "-o", "name", "--config", text(&path)];
    let names = run_beside(&names).await;
    assert_eq!(
        (names.code, names.stdout.as_str()),
        (1, "crun\ngvisor\nown\nrunc\n")
    );
    assert!(names.stderr.starts_with(&problems[0]), "{}", names.stderr);
}

#[tokio::test]
async fn a_cgroup_driver_that_differs_from_that_of_the_default_backend_is_reported_and_the_code_is_1()
 {
    let crio = crio().cgroup_driver(CgroupDriver::Cgroupfs);
    let node = Node::new().with("a", containerd()).with("b", crio);
    node.shows(TWO, 1, expect![[r#"
        BACKEND     RUNTIME           CGROUPS   HANDLERS
        containerd  containerd 2.4.2  systemd   runc crun
        crio        cri-o 1.37.0      cgroupfs  crun runsc

        BACKEND     CONDITION     STATUS  REASON
        containerd  RuntimeReady  true    -
        containerd  NetworkReady  true    -
        crio        RuntimeReady  true    -
        crio        NetworkReady  true    -

        backend "crio" uses the cgroup driver cgroupfs, but the default backend uses systemd; set the same driver for the kubelet and all backends

        configuration is valid; 1 problem on this node
    "#]]).await;
    let json = node.json(TWO, 1).await;
    let drivers = [0, 1].map(|at| &json["backends"][at]["probe"]["cgroupDriver"]);
    assert_eq!(drivers, ["systemd", "cgroupfs"]);
}

#[cfg(unix)] // Pipes have no links.
#[tokio::test]
async fn a_file_and_another_criswitch_in_the_place_of_a_runtime_are_reported() {
    let node = Node::new().with("a", containerd());
    std::fs::write(node.folder.path().join("b"), "").unwrap();
    let shown = node.json(TWO, 1).await;
    let what = shown["problems"][0]["what"].as_str().unwrap();
    assert!(
        what.ends_with("cannot connect: it is a file, not a socket"),
        "{what}"
    );
    let other = Rig::start([Sim::new("other")]).await.on_a_real_clock();
    let node = Node::new().with("a", containerd());
    let socket = other.directory().join("criswitch.sock");
    std::os::unix::fs::symlink(socket, node.folder.path().join("b")).unwrap();
    let shown = node.json(TWO, 1).await;
    let what = shown["problems"][0]["what"].as_str().unwrap();
    assert!(
        what.ends_with("criswitch serves this socket; set the socket of a runtime"),
        "{what}"
    );
}

#[tokio::test]
async fn a_backend_that_reports_no_cgroup_driver_is_not_a_conflict() {
    let default = containerd().cgroup_driver(CgroupDriver::Cgroupfs);
    let without = crio().lacks(["RuntimeConfig"]);
    let node = Node::new().with("a", default).with("b", without);
    node.shows(
        TWO,
        0,
        expect![[r#"
            BACKEND     RUNTIME           CGROUPS   HANDLERS
            containerd  containerd 2.4.2  cgroupfs  runc crun
            crio        cri-o 1.37.0      -         crun runsc

            BACKEND     CONDITION     STATUS  REASON
            containerd  RuntimeReady  true    -
            containerd  NetworkReady  true    -
            crio        RuntimeReady  true    -
            crio        NetworkReady  true    -

            backend "crio" lacks RuntimeConfig

            configuration is valid
        "#]],
    )
    .await;
    let json = node.json(TWO, 0).await;
    assert!(json["backends"][1]["probe"]["cgroupDriver"].is_null());
    // If the default backend reports no cgroup driver, `check --probe` accepts the driver of every other backend.
    let without = containerd().lacks(["RuntimeConfig"]);
    let node = Node::new().with("a", without).with("b", crio());
    node.json(TWO, 0).await;
}

#[tokio::test]
async fn a_backend_that_reports_no_handlers_is_not_reported_as_lacking_one() {
    let old = containerd().set(|settings| settings.advertises_handlers = false);
    let node = Node::new().with("a", old);
    node.shows(
        ONE,
        0,
        expect![[r#"
            BACKEND  RUNTIME           CGROUPS  HANDLERS
            runc     containerd 2.4.2  systemd  -

            BACKEND  CONDITION     STATUS  REASON
            runc     RuntimeReady  true    -
            runc     NetworkReady  true    -

            configuration is valid
        "#]],
    )
    .await;
    assert!(node.json(ONE, 0).await["handlers"][0]["reported"].is_null());
}

#[tokio::test]
async fn an_unreachable_backend_is_reported_with_the_cause_and_the_code_is_1() {
    let node = Node::new().with("a", containerd());
    node.shows(
        TWO,
        1,
        expect![[r#"
            BACKEND     RUNTIME           CGROUPS  HANDLERS
            containerd  containerd 2.4.2  systemd  runc crun
            crio        probe failed      -        -

            BACKEND     CONDITION     STATUS  REASON
            containerd  RuntimeReady  true    -
            containerd  NetworkReady  true    -

            backend "crio" (SOCKETS/b): cannot connect: No such file or directory

            configuration is valid; 1 problem on this node
        "#]],
    )
    .await;
    let probe = &node.json(TWO, 1).await["backends"][1]["probe"];
    assert_eq!(probe["answers"], false);
    assert_eq!(
        portable(probe["cause"].as_str().unwrap()),
        "cannot connect: No such file or directory"
    );
}

#[tokio::test]
async fn a_backend_that_answers_with_an_error_fails_the_probe() {
    let sim = containerd();
    sim.fail(
        "Status",
        tonic::Status::internal("the CRI plugin is 100% broken"),
    );
    let node = Node::new().with("a", sim);
    node.shows(
        ONE,
        1,
        expect![[r#"
            BACKEND  RUNTIME       CGROUPS  HANDLERS
            runc     probe failed  -        -

            backend "runc" (SOCKETS/a): Status returned Internal: the CRI plugin is 100% broken

            configuration is valid; 1 problem on this node
        "#]],
    )
    .await;
}

#[cfg(unix)] // A pipe has no links.
#[tokio::test]
async fn criswitchs_own_socket_by_another_path_is_a_problem_of_the_configuration() {
    let node = Node::new().with("own", containerd());
    let own = node.folder.path().join("own");
    std::os::unix::fs::symlink(&own, node.folder.path().join("a")).unwrap();
    let config = format!("listen = 'SOCKETS/own'\n{ONE}");
    let files = main_file(&config.replace("SOCKETS", text(node.folder.path())));
    let outcome = run_beside(&["check", "--probe", "--config", text(&files.main())]).await;
    assert_eq!(outcome.code, 78, "{}", outcome.stdout);
    let words = "is criswitch's own socket (\"listen\")";
    assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
}

#[tokio::test]
async fn two_backends_that_list_the_same_pods_are_reported() {
    let sim = || containerd().seed("same");
    let node = Node::new().with("a", sim()).with("b", sim());
    for socket in ["a", "b"] {
        let client = crate::support::Client::new(&node.folder.path().join(socket));
        client.run_pod("", "web").await.unwrap();
    }
    let config = "default_handler = 'a'\n[handlers]\na = { socket = 'SOCKETS/a', handler = 'runc' }\nb = { socket = 'SOCKETS/b', handler = 'runc' }";
    let outcome = node.probe(&[], config).await;
    assert_eq!(outcome.code, 1, "{}", outcome.stdout);
    let words = "backends \"a\" and \"b\" both list the same 1 pod";
    let shown = outcome.stdout.replace('\n', " ");
    assert!(shown.contains(words), "{shown}");
}

#[tokio::test]
async fn a_backend_that_does_not_answer_fails_the_probe_after_3_seconds() {
    let sim = containerd();
    sim.hold("Version");
    let node = Node::new().with("a", sim);
    node.shows(
        ONE,
        1,
        expect![[r#"
            BACKEND  RUNTIME       CGROUPS  HANDLERS
            runc     probe failed  -        -

            backend "runc" (SOCKETS/a): no answer within 3s

            configuration is valid; 1 problem on this node
        "#]],
    )
    .await;
}

#[tokio::test]
async fn a_call_without_an_answer_is_unknown_and_not_there() {
    let sim = containerd();
    sim.hold("ListPodSandboxStats");
    let node = Node::new().with("a", sim);
    let outcome = node.probe(&[], ONE).await;
    let words = "backend \"runc\" did not answer ListPodSandboxStats in time or broke off, so it is unknown whether it lacks";
    let shown = outcome.stdout.replace('\n', " ");
    assert!(shown.contains(words), "{shown}");
    assert_eq!(outcome.code, 0, "{shown}");
}

#[tokio::test]
async fn a_reply_that_is_too_large_is_an_answer() {
    let node = Node::new();
    let backend = Misbehaving::serve_on(&node.folder.path().join("a"), too_large);
    backend.misbehave();
    // This backend lacks other RPCs that every runtime must have.
    let shown = node.json(ONE, 1).await;
    let probed = &shown["backends"][0]["probe"];
    assert_eq!(probed["unansweredRpcs"], json!([]), "{shown:#}");
}

#[tokio::test]
async fn an_unmet_condition_is_shown_with_its_reason_on_one_line() {
    let not_ready = RuntimeCondition {
        r#type: "NetworkReady".to_owned(),
        status: false,
        reason: "NetworkPluginNotReady".to_owned(),
        message: "cni plugin\n\u{1b}[31mnot initialized".to_owned(),
    };
    let sim = containerd().set(|settings| settings.conditions[1] = not_ready);
    let node = Node::new().with("a", sim);
    node.shows(
        ONE,
        0,
        expect![[r#"
            BACKEND  RUNTIME           CGROUPS  HANDLERS
            runc     containerd 2.4.2  systemd  runc crun

            BACKEND  CONDITION     STATUS  REASON
            runc     RuntimeReady  true    -
            runc     NetworkReady  false   NetworkPluginNotReady cni plugin \u001b[31mnot initialized

            configuration is valid
        "#]],
    )
    .await;
}
