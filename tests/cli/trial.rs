//! `criswitch try`: its steps, the isolation that it reports, and its failures.

use criswitch_cri::codec::cri::{ExecSyncResponse, RunPodSandboxRequest};
use serde_json::{Value as Json, json};
use tonic::Status;

use crate::reload::Node;
use crate::support::Sim;
use crate::{Outcome, run_beside, text};

/// The image of the simulated runtimes.
const IMAGE: &str = "docker.io/library/busybox:1.36";
const STEPS: [&str; 10] = [
    "find image",
    "create pod",
    "create container",
    "start container",
    "execute command",
    "read log",
    "stop container",
    "remove container",
    "stop pod",
    "remove pod",
];

/// The output of the command that a try runs in the container, on a container that shares the kernel of this machine.
pub(crate) fn host_kernel() -> String {
    let line = |path: &str| std::fs::read_to_string(path).unwrap();
    format!(
        "version={}release={}boot_id={}",
        line("/proc/version"),
        line("/proc/sys/kernel/osrelease"),
        line("/proc/sys/kernel/random/boot_id")
    )
}

/// gVisor has no file with the kernel release, so this output has no line `release`.
const GVISOR: &str = "version=Linux version 4.19.0-gvisor #1 SMP\nlog=Starting gVisor...\n";
pub(crate) const KATA: &str = "version=Linux version 6.12.8 (kata)\nrelease=6.12.8\nboot_id=0b\nhypervisor=yes\n\
                               free_memory_kib=10240\n";

/// Makes containers of a runtime write logs, and report this kernel.
pub(crate) fn shows(sim: &Sim, kernel: &str) {
    let executed = ExecSyncResponse {
        stdout: kernel.as_bytes().to_vec(),
        ..Default::default()
    };
    sim.clone().set(|settings| {
        settings.writes_logs = true;
        settings.executed = Some(executed);
    });
}

/// A node with the handlers `runc` and `kata` on two runtimes. Both run pods with the host kernel.
pub(crate) async fn node() -> Node {
    with_kata(Node::start("").await).await
}

async fn with_kata(node: Node) -> Node {
    node.write("", &node.kata());
    assert_eq!(node.reload().await.code, 0);
    while node.info().await["backends"][1]["state"] != "ready" {}
    for sim in [&node.old, &node.new] {
        shows(sim, &host_kernel());
        sim.add_image(IMAGE);
    }
    node
}

pub(crate) async fn try_on(node: &Node, arguments: &[&str]) -> Outcome {
    let main = node.files.main();
    let arguments = ["try", "--config", text(&main)]
        .into_iter()
        .chain(arguments.iter().copied());
    run_beside(&arguments.collect::<Vec<_>>()).await
}

/// The outcome as JSON.
pub(crate) async fn json_of(node: &Node, arguments: &[&str]) -> (i32, Json) {
    let arguments: Vec<&str> = arguments.iter().copied().chain(["-o", "json"]).collect();
    let outcome = try_on(node, &arguments).await;
    let json = serde_json::from_str(&outcome.stdout);
    (outcome.code, json.expect(&outcome.stdout))
}

/// The names of the steps of a try.
fn steps(tried: &Json) -> Vec<&str> {
    let steps = tried["steps"].as_array().unwrap().iter();
    steps.map(|step| step["name"].as_str().unwrap()).collect()
}

/// Asserts that both runtimes have no pods and no containers.
#[track_caller]
pub(crate) fn assert_nothing_is_left(node: &Node) {
    for sim in [&node.old, &node.new] {
        assert_eq!(sim.pods(), [], "pods of {}", sim.name());
        assert_eq!(sim.containers(), [], "containers of {}", sim.name());
    }
}

/// The request that created the only pod of a runtime.
fn created(sim: &Sim) -> RunPodSandboxRequest {
    let calls = sim.calls("RunPodSandbox");
    assert_eq!(calls.len(), 1);
    calls[0].decode()
}

#[tokio::test]
async fn try_shows_each_step_with_its_time_and_removes_the_pod() {
    let node = node().await;
    let outcome = try_on(&node, &["runc"]).await;
    assert_eq!((outcome.code, &*outcome.stderr), (0, ""));
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(lines[0], "runc on backend runc (old 1.0.0)");
    for step in STEPS {
        let line = lines
            .iter()
            .find(|line| line.trim_start().starts_with(step))
            .unwrap_or_else(|| panic!("{step} in {}", outcome.stdout));
        assert!(line.ends_with(" ms") || line.ends_with(" s"), "{line}");
    }
    let image = format!("  {:18}{IMAGE}", "image");
    assert!(lines.contains(&&*image), "{}", outcome.stdout);
    let isolation = "host kernel: its boot id is that of this machine";
    assert!(outcome.stdout.contains(isolation), "{}", outcome.stdout);
    assert!(outcome.stdout.ends_with("ok: this handler starts pods\n"));
    assert_nothing_is_left(&node);
    assert_eq!(node.new.calls("RunPodSandbox").len(), 0);
    node.end().await;
}

#[tokio::test]
async fn the_pod_has_its_own_namespace_and_label_and_the_pod_network() {
    let node = node().await;
    assert_eq!(try_on(&node, &["kata"]).await.code, 0);
    let request = created(&node.new);
    let config = request.config.unwrap();
    let metadata = config.metadata.unwrap();
    assert_eq!(request.runtime_handler, "kata");
    assert_eq!(metadata.namespace, "criswitch-try");
    assert_eq!(config.labels["io.criswitch.try"], metadata.uid);
    assert!(!config.labels.keys().any(|key| key.contains("kubernetes")));
    let linux = config.linux.unwrap();
    // The simulated runtimes report the cgroup driver systemd.
    assert_eq!(linux.cgroup_parent, "/system.slice");
    let namespaces = linux.security_context.unwrap().namespace_options.unwrap();
    assert_eq!(namespaces.network, 0);
    let logs = std::path::Path::new(&config.log_directory);
    assert!(!logs.exists(), "{}", logs.display());
    node.end().await;
}

#[tokio::test]
async fn the_cgroup_parent_follows_the_configuration_of_a_backend_without_runtime_config() {
    for (systemd, parent) in [(true, "/system.slice"), (false, "/")] {
        let runc = json!({ "runtimeType": "io.containerd.runc.v2", "options": { "SystemdCgroup": systemd } });
        let config =
            json!({ "containerd": { "defaultRuntimeName": "runc", "runtimes": { "runc": runc } } });
        let node = Node::start("").await;
        let older = node.new.clone().lacks(["RuntimeConfig"]);
        older.set(|settings| settings.config = Some(config));
        let node = with_kata(node).await;
        assert_eq!(try_on(&node, &["kata"]).await.code, 0);
        let linux = created(&node.new).config.unwrap().linux.unwrap();
        assert_eq!(linux.cgroup_parent, parent);
        node.end().await;
    }
}

#[tokio::test]
async fn try_with_the_host_network_needs_no_network_plugin() {
    let node = node().await;
    assert_eq!(try_on(&node, &["kata", "--host-network"]).await.code, 0);
    let config = created(&node.new).config.unwrap();
    let security = config.linux.unwrap().security_context.unwrap();
    assert_eq!(security.namespace_options.unwrap().network, 2);
    assert_eq!(config.hostname, "");
    node.end().await;
}

#[tokio::test]
async fn try_all_tries_each_handler_and_ends_with_a_table() {
    let node = node().await;
    shows(&node.new, KATA);
    let outcome = try_on(&node, &["--all"]).await;
    assert_eq!((outcome.code, &*outcome.stderr), (0, ""));
    let (_, table) = outcome.stdout.split_once("\n\n").unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split("  ").filter(|cell| !cell.is_empty()))
        .map(|cells| cells.map(str::trim).collect())
        .collect();
    assert_eq!(
        rows[0][..5],
        ["HANDLER", "BACKEND", "RUNTIME", "RESULT", "ISOLATION"]
    );
    assert_eq!(
        rows[1][..5],
        ["kata", "kata", "new 1.0.0", "ok", "virtual machine"]
    );
    assert_eq!(
        rows[2][..5],
        ["runc", "runc", "old 1.0.0", "ok", "host kernel"]
    );
    assert_nothing_is_left(&node);
    node.end().await;
}

#[tokio::test]
async fn try_as_json_has_steps_isolation_and_evidence() {
    let node = node().await;
    shows(&node.new, KATA);
    let (code, json) = json_of(&node, &["kata"]).await;
    assert_eq!((code, &json["problems"]), (0, &serde_json::json!([])));
    let tried = &json["tries"][0];
    assert_eq!(steps(tried), STEPS);
    let times = tried["steps"].as_array().unwrap().iter();
    assert!(
        times
            .clone()
            .all(|step| step["milliseconds"].as_f64().unwrap() > 0.0)
    );
    assert!(times.clone().all(|step| step["error"].is_null()));
    assert_eq!(
        (&tried["result"], &tried["attempts"]),
        (&"ok".into(), &1.into())
    );
    assert_eq!(tried["isolation"]["kind"], "virtualMachine");
    assert_eq!(tried["isolation"]["release"], "6.12.8");
    assert_eq!(tried["image"], IMAGE);
    assert_eq!(tried["untested"], false);
    node.end().await;
}

#[tokio::test]
async fn a_name_that_promises_a_different_isolation_is_a_warning() {
    let node = node().await;
    let outcome = try_on(&node, &["kata"]).await;
    assert_eq!(outcome.code, 0);
    let warning = "the name \"kata\" promises a virtual machine, but the pod has a host kernel";
    assert!(outcome.stderr.contains(warning), "{}", outcome.stderr);
    shows(&node.old, GVISOR);
    let (code, json) = json_of(&node, &["runc"]).await;
    assert_eq!((code, &json["tries"][0]["result"]), (0, &"ok".into()));
    let warning = json["problems"][0]["what"].as_str().unwrap();
    let promise = "the name \"runc\" promises a host kernel, but the pod has a userspace kernel";
    assert!(warning.contains(promise), "{warning}");
    let isolation = &json["tries"][0]["isolation"];
    assert_eq!(isolation["release"], "4.19.0-gvisor");
    node.end().await;
}

#[tokio::test]
async fn a_kind_in_the_row_that_promises_a_different_isolation_is_a_warning() {
    let node = node().await;
    let socket = node.new.socket();
    node.write(
        "",
        &format!("kata = {{ socket = {socket:?}, kind = 'gvisor' }}"),
    );
    let outcome = try_on(&node, &["kata"]).await;
    assert_eq!(outcome.code, 0);
    let warning =
        "`kind` \"gvisor\" of the row promises a userspace kernel, but the pod has a host kernel";
    assert!(outcome.stderr.contains(warning), "{}", outcome.stderr);
    node.end().await;
}

#[tokio::test]
async fn each_step_that_fails_shows_the_words_of_the_runtime_and_leaves_no_pod() {
    let node = node().await;
    let failing = [
        ("ListImages", "find image"),
        ("RunPodSandbox", "create pod"),
        ("CreateContainer", "create container"),
        ("StartContainer", "start container"),
        ("ExecSync", "execute command"),
    ];
    for (rpc, step) in failing {
        let words = format!("runtime \"io.containerd.runsc.v1\" binary not installed by {rpc}");
        node.new.fail(rpc, Status::unknown(&words));
        let (code, json) = json_of(&node, &["kata"]).await;
        node.new.heal(rpc);
        assert_eq!(code, 1, "{rpc}");
        let tried = &json["tries"][0];
        assert_eq!(steps(tried).last(), Some(&step), "{rpc}");
        let failure = tried["failure"].as_str().unwrap();
        let expected = format!("{step}: {rpc} returned Unknown: {words}");
        assert!(failure.starts_with(&expected), "{failure}");
        assert_eq!(tried["leftovers"], serde_json::json!([]), "{rpc}");
        assert_nothing_is_left(&node);
    }
    node.end().await;
}

#[tokio::test]
async fn a_failed_stop_or_removal_is_a_failure_and_is_tried_again() {
    let node = node().await;
    for rpc in ["StopContainer", "RemoveContainer", "StopPodSandbox"] {
        node.new.fail(rpc, Status::unknown("busy"));
        let outcome = try_on(&node, &["kata"]).await;
        node.new.heal(rpc);
        assert_eq!(outcome.code, 1, "{rpc}");
        let words = format!("{rpc} returned Unknown: busy");
        assert!(outcome.stdout.contains(&words), "{}", outcome.stdout);
        assert_nothing_is_left(&node);
    }
    node.end().await;
}

#[tokio::test]
async fn a_pod_that_cannot_be_removed_is_named_with_the_command_that_removes_it() {
    let node = node().await;
    node.new
        .fail("RemovePodSandbox", Status::unknown("device busy"));
    let outcome = try_on(&node, &["kata"]).await;
    assert_eq!(outcome.code, 1);
    let id = node.new.pods()[0].id.clone();
    let socket = node.files.path("criswitch.sock");
    let expected = format!(
        "pod {id} was not removed: RemovePodSandbox returned Unknown: device busy; remove it: crictl -r unix://{} rmp -f \
         {id}",
        text(&socket)
    );
    assert!(outcome.stderr.contains(&expected), "{}", outcome.stderr);
    node.end().await;
}

#[tokio::test]
async fn a_log_without_the_line_of_the_container_is_a_failure() {
    let node = node().await;
    node.new
        .clone()
        .set(|settings| settings.writes_logs = false);
    let (code, json) = json_of(&node, &["kata"]).await;
    assert_eq!(code, 1);
    let failure = json["tries"][0]["failure"].as_str().unwrap();
    assert!(
        failure.starts_with("read log: after 30s, the container's log "),
        "{failure}"
    );
    let advice = "try.log does not exist; if the runtime has a /tmp of its own, set TMPDIR to a directory that both see";
    assert!(failure.ends_with(advice), "{failure}");
    assert_nothing_is_left(&node);
    node.end().await;
}

#[tokio::test]
async fn a_command_that_fails_shows_its_exit_code_and_its_words() {
    let node = node().await;
    let executed = ExecSyncResponse {
        stderr: b"sh: I am broken\n".to_vec(),
        exit_code: 3,
        ..Default::default()
    };
    node.new
        .clone()
        .set(|settings| settings.executed = Some(executed));
    let (code, json) = json_of(&node, &["kata"]).await;
    assert_eq!(code, 1);
    let failure = &json["tries"][0]["failure"];
    let expected = "execute command: the command ended with exit code 3: sh: I am broken";
    assert_eq!(failure, expected);
    assert_nothing_is_left(&node);
    node.end().await;
}

#[tokio::test]
async fn a_handler_that_fails_does_not_keep_the_others_from_their_try() {
    let node = node().await;
    node.new.fail("RunPodSandbox", Status::unknown("no shim"));
    let (code, json) = json_of(&node, &["--all"]).await;
    assert_eq!(code, 1);
    let tries = json["tries"].as_array().unwrap().iter();
    let results: Vec<_> = tries
        .map(|one| (one["handler"].as_str(), one["result"].as_str()))
        .collect();
    let expected = [("kata", "failed"), ("runc", "ok")];
    assert_eq!(
        results,
        expected.map(|(name, result)| (Some(name), Some(result)))
    );
    node.end().await;
}

#[tokio::test]
async fn an_unknown_handler_is_rejected_with_the_names_that_exist() {
    let node = node().await;
    let outcome = try_on(&node, &["gvisor"]).await;
    assert_eq!((outcome.code, &*outcome.stdout), (1, ""));
    let expected = "criswitch: no handler is named \"gvisor\"; the handlers are: kata, runc\n";
    assert_eq!(outcome.stderr, expected);
    node.end().await;
}

#[tokio::test]
async fn a_daemon_that_does_not_run_is_reported_with_exit_code_69() {
    let outcome = run_beside(&["try", "runc", "--socket", "/nonexistent/criswitch.sock"]).await;
    assert_eq!(outcome.code, 69);
    assert!(
        outcome.stderr.contains("check that criswitch is running"),
        "{}",
        outcome.stderr
    );
}

#[tokio::test]
async fn a_backend_that_is_down_fails_the_try_before_anything_is_sent() {
    let node = node().await;
    // The list of images is served from cache, so only the state shows that the backend is down.
    assert_eq!(try_on(&node, &["kata"]).await.code, 0);
    node.new.stop().await;
    while node.info().await["backends"][1]["state"] != "down" {}
    let (code, json) = json_of(&node, &["kata"]).await;
    assert_eq!(code, 1);
    let tried = &json["tries"][0];
    let failure = tried["failure"].as_str().unwrap();
    let socket = node.new.socket();
    let begins = format!("backend kata ({}) has been down for ", text(&socket));
    assert!(failure.starts_with(&begins), "{failure}");
    assert!(failure.contains(" (cannot connect: "), "{failure}");
    assert_eq!(tried["steps"], serde_json::json!([]));
    assert_eq!(tried["leftovers"], serde_json::json!([]));
    node.end().await;
}

#[tokio::test]
async fn the_result_names_the_step_whose_line_has_the_error() {
    let node = node().await;
    node.new
        .fail("RunPodSandbox", Status::unknown("no network"));
    let outcome = try_on(&node, &["kata"]).await;
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    let step = lines[lines.len() - 2];
    assert!(
        step.starts_with("  create pod        failed after "),
        "{step}"
    );
    assert!(
        step.contains(": RunPodSandbox returned Unknown: no network"),
        "{step}"
    );
    let result = "  result            failed at \"create pod\"; if the network plugin needs ";
    assert!(lines[lines.len() - 1].starts_with(result), "{lines:?}");
    node.end().await;
}
