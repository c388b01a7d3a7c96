//! The consequences of a backend for the whole node, in `check --probe`, `discover` and `explain`.

use criswitch_cri::codec::cri;
use expect_test::expect;
use serde_json::{Value, json};
use tonic::Status;

use crate::reload;
use crate::runtimes::{CONTAINERD, CRIO, Node, containerd, crio};
use crate::support::Sim;
use crate::{Outcome, run_beside, text};

const DOCKER: &str = "run/cri-dockerd.sock";

/// Answers like cri-dockerd 0.4.3 with Docker 20.10.
fn as_docker(sim: Sim) -> Sim {
    let lacks = ["ListPodSandboxStats", "GetContainerEvents"];
    let docker = sim.runtime_name("docker").version("20.10.24").lacks(lacks);
    docker.set(|settings| {
        settings.advertises_handlers = false;
        settings.features.supplemental_groups_policy = false;
    })
}

/// Runs `check --probe` with containerd as the default backend, and with a row `other` for the handler of the runtime
/// at `place`.
async fn check(node: &Node, place: &str, handler: &str, arguments: &[&str]) -> Outcome {
    let (main, first, other) = (
        node.path("main.toml"),
        node.path(CONTAINERD),
        node.path(place),
    );
    let rows = format!("runc = {first:?}\nother = {{ socket = {other:?}, handler = {handler:?} }}");
    let config = format!("default_handler = \"runc\"\n[handlers]\n{rows}\n");
    std::fs::write(&main, config).unwrap();
    let check = ["check", "--probe", "--config", text(&main)];
    run_beside(&[&check[..], arguments].concat()).await
}

async fn check_json(node: &Node, place: &str, handler: &str) -> Value {
    let outcome = check(node, place, handler, &["-o", "json"]).await;
    serde_json::from_str(&outcome.stdout).unwrap()
}

/// The text on one line, without the `#` of comments.
fn flat(text: &str) -> String {
    let words = text.split_whitespace().filter(|word| *word != "#");
    words.collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn check_and_discover_show_what_cri_dockerd_changes_for_the_node() {
    let docker = as_docker(Sim::new("docker"));
    let node = Node::new()
        .with(CONTAINERD, containerd(["runc"]))
        .with(DOCKER, docker);
    let outcome = check(&node, DOCKER, "", &[]).await;
    assert_eq!(outcome.code, 0, "{}", outcome.stdout);
    let (_, shown) = outcome.stdout.split_once("feature ").unwrap();
    expect![[r#"
        "supplemental_groups_policy" is off on the node because of backend "other". Pods with spec.securityContext.supplementalGroupsPolicy: A backend of this node does not report the feature, so the kubelet rejects the pod. Before Kubernetes 1.33, the kubelet silently applies `Merge`. Remove `supplementalGroupsPolicy: Strict`, or run the pod on a node whose backends all have the feature. [supplemental-groups]

        backend "other": ListPodSandboxStats is missing. While the backend has pods, this call is Unimplemented for the whole node: the kubelet takes the stats of pods from cAdvisor, and `crictl statsp` fails.
        backend "other": GetContainerEvents is missing, so this call is Unimplemented for the whole node: the kubelet lists pods and containers instead, and `crictl events` fails.
        backend "other": cri-dockerd has no handlers of its own. Its rows need `handler = ""` or `handler = "docker"`.
        backend "other": With Docker's log driver json-file, the logs of its containers are Docker's JSON, not the text of the CRI. Log agents must read this format.

        backend "other" lacks GetContainerEvents, ListPodSandboxStats

        configuration is valid
    "#]].assert_eq(shown);
    let consequences = check_json(&node, DOCKER, "").await["consequences"].clone();
    let consequences = consequences.as_array().unwrap();
    assert_eq!(consequences.len(), 4);
    let printed = flat(&node.configuration(&[]).await.text);
    for consequence in consequences {
        assert_eq!(consequence["backends"], json!(["other"]));
        let line = format!(
            "- backend \"cri-dockerd\": {}",
            consequence["what"].as_str().unwrap()
        );
        assert!(printed.contains(&flat(&line)), "{line}\n{printed}");
    }
    assert!(
        printed.contains("Missing in cri-dockerd: supplemental_groups_policy."),
        "{printed}"
    );
}

#[tokio::test]
async fn a_row_of_cri_dockerd_needs_its_default_or_the_handler_docker() {
    let docker = as_docker(Sim::new("docker"));
    let node = Node::new()
        .with(CONTAINERD, containerd(["runc"]))
        .with(DOCKER, docker);
    for (handler, code) in [("", 0), ("docker", 0), ("runc", 1), ("other", 1)] {
        let outcome = check(&node, DOCKER, handler, &[]).await;
        assert_eq!(outcome.code, code, "{handler}: {}", outcome.stdout);
        let problem = format!("backend \"other\" has no handler {handler:?}");
        assert_eq!(
            flat(&outcome.stdout).contains(&problem),
            code == 1,
            "{handler}"
        );
    }
}

#[tokio::test]
async fn an_rpc_that_a_backend_lacks_is_shown_whatever_the_runtime() {
    for (rpc, count) in [
        ("ListPodSandboxStats", 1),
        ("GetContainerEvents", 1),
        ("PodSandboxStats", 1),
        ("ListPodSandboxMetrics", 1),
        ("ListMetricDescriptors", 0),
    ] {
        let node = Node::new()
            .with(CONTAINERD, containerd(["runc"]))
            .with(CRIO, crio(["crun"]).lacks([rpc]));
        let consequences = check_json(&node, CRIO, "crun").await["consequences"].clone();
        let consequences = consequences.as_array().unwrap();
        assert_eq!(consequences.len(), count, "{rpc}");
        for consequence in consequences {
            let what = consequence["what"].as_str().unwrap();
            assert!(what.starts_with(rpc), "{what}");
        }
    }
}

/// The probe does not call RPCs that always change something.
#[tokio::test]
async fn check_names_all_rpcs_that_a_backend_lacks_and_fails_for_those_that_every_runtime_must_have()
 {
    use criswitch_cri::rpc::ROWS;
    for row in ROWS {
        let node = Node::new()
            .with(CONTAINERD, containerd(["runc"]))
            .with(CRIO, crio(["crun"]).lacks([row.name]));
        if row.probe_request().is_none() || row.name == "Status" || row.name == "ListPodSandbox" {
            continue;
        }
        let outcome = check(&node, CRIO, "crun", &[]).await;
        let shown = flat(&outcome.stdout);
        let line = if row.may_lack {
            format!("backend \"other\" lacks {}", row.name)
        } else {
            format!("it lacks {}, which every runtime must have", row.name)
        };
        assert!(shown.contains(&line), "{line}: {shown}");
        assert_eq!(outcome.code, i32::from(!row.may_lack), "{shown}");
        let json = check_json(&node, CRIO, "crun").await;
        let backends = json["backends"].as_array().unwrap();
        let other = backends.iter().find(|backend| backend["name"] == "other");
        assert_eq!(other.unwrap()["probe"]["lackingRpcs"], json!([row.name]));
    }
}

/// CRI-O delays stats while it stops a container, and ends streams of events at once without `enable_pod_events`.
#[tokio::test]
async fn the_probe_waits_for_no_stats_and_sees_streams_of_events_that_end_at_once() {
    let late = crio(["crun"]);
    late.hold("ListPodSandboxStats");
    let node = Node::new()
        .with(CONTAINERD, containerd(["runc"]))
        .with(CRIO, late);
    let json = check_json(&node, CRIO, "crun").await;
    assert_eq!(
        (&json["problems"], &json["consequences"]),
        (&json!([]), &json!([]))
    );
    let mute = crio(["crun"]);
    mute.fail("GetContainerEvents", Status::ok(""));
    let node = Node::new()
        .with(CONTAINERD, containerd(["runc"]))
        .with(CRIO, mute);
    let what = check_json(&node, CRIO, "crun").await["consequences"][0]["what"].clone();
    assert!(
        what.as_str().unwrap().starts_with("GetContainerEvents"),
        "{what}"
    );
}

/// containerd before 1.7 pins no image. containerd 2.x pins the pause image, and does not report its name.
#[tokio::test]
async fn a_pause_image_in_the_store_that_is_not_pinned_is_named() {
    const PAUSE: &str = "registry.k8s.io/pause:3.6";
    let image = |pinned| cri::Image {
        id: "sha256:0".into(),
        repo_tags: vec![PAUSE.into()],
        pinned,
        ..Default::default()
    };
    let with = |sim: Sim| {
        sim.set(|settings| settings.config = Some(json!({ "sandboxImage": PAUSE })))
            .version("1.6.20")
    };
    let runtime = || containerd(["kata"]);
    let without_images = with(runtime()).stores(image(false));
    without_images.fail("ImageStatus", Status::unavailable("no images"));
    for (sim, count) in [
        (with(runtime()).stores(image(false)), 1),
        (with(runtime()).stores(image(true)), 0),
        (with(runtime()), 0),
        (without_images, 0),
        (runtime().stores(image(false)), 0),
    ] {
        let node = Node::new()
            .with(CONTAINERD, containerd(["runc"]))
            .with(CRIO, sim);
        let consequences = check_json(&node, CRIO, "kata").await["consequences"].clone();
        let consequences = consequences.as_array().unwrap();
        assert_eq!(consequences.len(), count, "{consequences:?}");
        for consequence in consequences {
            let what = consequence["what"].as_str().unwrap();
            assert!(what.contains(PAUSE), "{what}");
            let line = format!("backend \"crio\": {what}");
            assert!(flat(&node.configuration(&[]).await.text).contains(&flat(&line)));
        }
    }
}

#[tokio::test]
async fn explain_shows_what_the_backend_of_a_handler_changes_for_the_node() {
    let node = reload::Node::start("").await;
    let docker = as_docker(node.new.clone());
    node.write(
        "",
        &format!(
            "docker = {{ socket = {:?}, handler = \"\" }}",
            docker.socket()
        ),
    );
    assert_eq!(node.reload().await.code, 0);
    let main = node.files.main();
    let explain = ["explain", "--config", text(&main)];
    let shown = run_beside(&[&explain[..], &["docker"]].concat())
        .await
        .stdout;
    for part in [
        "ListPodSandboxStats is",
        "GetContainerEvents is",
        "`handler = \"docker\"`",
        "json-file",
    ] {
        assert!(flat(&shown).contains(part), "{part}: {shown}");
    }
    for (handler, count) in [("docker", 4), ("runc", 0)] {
        let json = run_beside(&[&explain[..], &["-o", "json", handler]].concat()).await;
        let json: Value = serde_json::from_str(&json.stdout).unwrap();
        assert_eq!(
            json["consequences"].as_array().unwrap().len(),
            count,
            "{handler}"
        );
    }
    let silent = node.files.path("silent.sock");
    node.write("", &format!("docker = {silent:?}"));
    assert_eq!(node.reload().await.code, 0);
    let json = run_beside(&[&explain[..], &["-o", "json", "docker"]].concat()).await;
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["consequences"], Value::Null, "unknown, not empty");
    node.end().await;
}
