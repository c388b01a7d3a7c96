//! `criswitch status` and `criswitch pods` with a daemon, with a different runtime on the socket, and with neither.

use std::path::Path;

use criswitch_cri::codec::cri::{
    ListContainerStatsRequest, ListMetricDescriptorsRequest, ListPodSandboxStatsRequest,
    PodSandboxStatusRequest, RuntimeCondition,
};
use expect_test::{Expect, expect};
use serde_json::{Value as Json, json};
use tonic::{Code, Status};

use crate::processes::without_own_state;
use crate::reload::{Files, Node};
use crate::serve::{Daemon, one_backend};
use crate::support::{Client, PATIENCE, Settings, ShowsHandlers, Sim};
use crate::{Outcome, run_beside, text};

async fn run(node: &Node, arguments: &[&str]) -> Outcome {
    let file = node.files.main();
    let all = [arguments, &["--config", text(&file)]].concat();
    run_beside(&all).await
}

/// Checks the output, after a replacement of the parts that differ between runs: directory, process, times, hash, ids.
async fn shows(node: &Node, arguments: &[&str], code: i32, expected: Expect) {
    let outcome = run(node, arguments).await;
    assert_eq!((outcome.code, outcome.stderr.as_str()), (code, ""));
    let info = node.info().await;
    let directory = node.files.path("");
    let shown = outcome
        .stdout
        .replace(text(&directory), "/DIR/")
        .replace(&info["pid"].to_string(), "PID")
        .replace(info["configuration"]["hash"].as_str().unwrap(), "HASH");
    expected.assert_eq(&without_ids(&without_own_state(&shown)));
}

/// Replaces ages in seconds and the beginnings of ids.
fn without_ids(shown: &str) -> String {
    let word = |word: &str| {
        let (text, mark) = word.split_at(word.trim_end_matches([':', ',']).len());
        let is_age = text
            .strip_suffix('s')
            .is_some_and(|age| age.parse::<u32>().is_ok());
        let is_id = text.len() == 13 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match (is_id, is_age) {
            (true, _) => format!("ID{mark}"),
            (_, true) => format!("0s{mark}"),
            _ => word.to_owned(),
        }
    };
    let line = |line: &str| line.split(' ').map(word).collect::<Vec<_>>().join(" ");
    shown.lines().map(line).map(|line| line + "\n").collect()
}

/// A node with two backends and a pod on each.
async fn two_backends() -> Node {
    let node = Node::start("").await;
    node.write("", &node.kata());
    assert_eq!(node.reload().await.code, 0);
    node.until("kata", Code::Ok).await;
    node.client().run_pod("runc", "web").await.unwrap();
    node
}

#[tokio::test]
async fn status_shows_backends_handlers_and_the_last_reload() {
    let node = two_backends().await;
    shows(
        &node,
        &["status"],
        0,
        expect![[r#"
            serving: 2 backends are ready

            criswitch 0.1.0, process PID

            configuration HASH, 1 file
              /DIR/criswitch.toml
            last reload 0s ago: handler added: kata
              backend added: kata

            BACKEND  STATE  FOR  PODS  CONTAINERS  LIST AGE  STATS LATE
            runc     ready  0s   1     0           -         -
            kata     ready  0s   1     0           -         -

            BACKEND  RUNTIME    SOCKET
            runc     old 1.0.0  /DIR/old.sock
            kata     new 1.0.0  /DIR/new.sock

            HANDLER         BACKEND  PODS  FEATURES  ORIGIN
            kata            kata     1     -         criswitch.toml:7
            runc (default)  runc     1     -         criswitch.toml:6
        "#]],
    )
    .await;
    node.end().await;
}

#[tokio::test]
async fn a_reload_without_changes_replaces_a_rejection_in_status_but_not_a_change() {
    let node = two_backends().await;
    assert_eq!(node.reload().await.stdout, "nothing changed\n");
    let shown = run(&node, &["status"]).await.stdout;
    assert!(shown.contains(" ago: handler added: kata\n"), "{shown}");
    assert_eq!(node.info().await["reloads"]["count"], 2);
    // The rejection is no longer shown after the files are fixed.
    node.files.write("conf.d/a.toml", "shutdown_timeout = 1");
    assert_eq!(node.reload().await.code, 78);
    let shown = run(&node, &["status"]).await.stdout;
    assert!(
        shown.contains(" ago: rejected, the previous configuration stays in use\n"),
        "{shown}"
    );
    node.files.write("conf.d/a.toml", "");
    assert_eq!(node.reload().await.stdout, "nothing changed\n");
    let shown = run(&node, &["status"]).await.stdout;
    assert!(shown.contains(" ago: nothing changed\n"), "{shown}");
    node.end().await;
}

#[tokio::test]
async fn status_shows_three_lines_of_the_last_reload_and_counts_the_others() {
    let node = two_backends().await;
    let wrong = "listn = 1\nloog = 1\nmax = 1\nmin = 1\n";
    node.files.write("conf.d/a.toml", wrong);
    assert_eq!(node.reload().await.code, 78);
    let lines = |shown: &str| -> Vec<String> {
        let (_, reload) = shown.split_once("last reload ").expect(shown);
        let (reload, _) = reload.split_once("\n\n").expect(shown);
        reload.lines().map(str::to_owned).collect()
    };
    let shown = lines(&run(&node, &["status"]).await.stdout);
    assert_eq!(shown.len(), 4, "{shown:?}");
    assert_eq!(shown[3], "  ... 2 more lines (-o wide)");
    let all = lines(&run(&node, &["status", "-o", "wide"]).await.stdout);
    assert_eq!(all.len(), 5, "{all:?}");
    assert_eq!(shown[..3], all[..3]);
    node.end().await;
}

#[tokio::test]
async fn files_with_which_a_restart_would_fail_are_a_problem_until_they_are_fixed() {
    let node = two_backends().await;
    let config = async || {
        let shown = run(&node, &["status", "--json"]).await.stdout;
        serde_json::from_str::<Json>(&shown).unwrap()
    };
    node.files.write("conf.d/a.toml", "\nshutdown_timeout = 1");
    // No reload: criswitch notices the change.
    let noticed = async { while config().await["configuration"]["changed"] == false {} };
    tokio::time::timeout(PATIENCE, noticed).await.unwrap();
    let shown = run(&node, &["status"]).await;
    assert_eq!(shown.code, 1);
    let verdict = format!(
        "serving, but a restart would fail: {}:2:",
        text(&node.files.path("conf.d/a.toml"))
    );
    assert!(shown.stdout.starts_with(&verdict), "{}", shown.stdout);
    let problem = config().await["problems"][0].clone();
    assert_eq!(problem["line"], 2);
    assert!(problem["try"].is_string(), "{problem}");
    assert_eq!(node.reload().await.code, 78);
    assert_eq!(config().await["problems"][0], problem);
    node.files.write("conf.d/a.toml", "shutdown_timeout = '1s'");
    let noticed = async { while config().await["problems"] != json!([]) {} };
    tokio::time::timeout(PATIENCE, noticed).await.unwrap();
    let shown = run(&node, &["status"]).await;
    assert_eq!(shown.code, 0);
    let hint = "the files have changed since criswitch loaded them";
    assert!(shown.stdout.contains(hint), "{}", shown.stdout);
    assert_eq!(node.reload().await.code, 0);
    assert_eq!(config().await["configuration"]["changed"], false);
    node.end().await;
}

#[tokio::test]
async fn status_shows_the_backends_name_of_a_renamed_handler() {
    let node = Node::start("").await;
    let row = |handler| format!("{{ backend = \"runc\", handler = {handler:?} }}");
    node.write(
        "",
        &format!("gvisor = {}\nplain = {}", row("runsc"), row("")),
    );
    assert_eq!(node.reload().await.code, 0);
    let shown = run(&node, &["status"]).await.stdout;
    let table: Vec<&str> = shown
        .lines()
        .skip_while(|line| !line.starts_with("HANDLER"))
        .collect();
    expect![[r#"
        HANDLER         BACKEND                 PODS  FEATURES  ORIGIN
        gvisor          runc as runsc           0     -         criswitch.toml:7
        plain           runc (its own default)  0     -         criswitch.toml:8
        runc (default)  runc                    0     -         criswitch.toml:6"#]]
    .assert_eq(&table.join("\n"));
    node.end().await;
}

/// A cause may be as long as its runtime likes, so the first line names the backends, and the causes are below it.
#[tokio::test]
async fn long_causes_are_below_the_first_line_of_status() {
    let node = two_backends().await;
    for (sim, rpc) in [
        (&node.old, "ListPodSandboxStats"),
        (&node.new, "ListContainerStats"),
    ] {
        sim.fail(rpc, Status::unknown("the shim is gone ".repeat(20)));
    }
    let mut runtime = node.client().runtime();
    runtime
        .list_pod_sandbox_stats(ListPodSandboxStatsRequest::default())
        .await
        .ok();
    runtime
        .list_container_stats(ListContainerStatsRequest::default())
        .await
        .ok();
    let shown = run(&node, &["status"]).await.stdout;
    let lines: Vec<&str> = shown.lines().take(3).collect();
    assert_eq!(lines[0], "degraded: 2 problems, of runc, kata", "{shown}");
    for (line, words) in lines[1..].iter().zip([
        "ListPodSandboxStats failed once",
        "ListContainerStats failed once",
    ]) {
        assert!(
            line.starts_with("  backend ") && line.contains(words),
            "{shown}"
        );
    }
    node.end().await;
}

#[cfg(unix)] // Windows reports a different error.
#[tokio::test]
async fn status_reports_a_backend_that_is_down_with_the_cause_and_exits_with_1() {
    let node = two_backends().await;
    node.new.stop().await;
    while node.info().await["backends"][1]["state"] != "down" {}
    shows(&node, &["status"], 1, expect![[r#"
        degraded: backend kata has been down for 0s: new pods of handler kata do not start; its 1 pod keeps running but cannot be stopped or probed (cannot connect: Connection refused)

        criswitch 0.1.0, process PID

        configuration HASH, 1 file
          /DIR/criswitch.toml
        last reload 0s ago: handler added: kata
          backend added: kata

        BACKEND  STATE  FOR  PODS  CONTAINERS  LIST AGE  STATS LATE
        runc     ready  0s   1     0           -         -
        kata     down   0s   1     0           0s        -

        BACKEND  RUNTIME    SOCKET
        runc     old 1.0.0  /DIR/old.sock
        kata     new 1.0.0  /DIR/new.sock

        HANDLER         BACKEND  PODS  FEATURES  ORIGIN
        kata            kata     1     -         criswitch.toml:7
        runc (default)  runc     1     -         criswitch.toml:6

        BackendsReady is false: backend "kata" (/DIR/new.sock): cannot connect: Connection refused
    "#]]).await;
    node.end().await;
}

#[tokio::test]
async fn status_names_what_a_backend_lacks_and_is_degraded_if_every_runtime_must_have_it() {
    let node = two_backends().await;
    node.new
        .fail("ListMetricDescriptors", Status::unimplemented("no"));
    let mut runtime = node.client().runtime();
    let request = ListMetricDescriptorsRequest {};
    runtime.list_metric_descriptors(request).await.unwrap();
    let lines = "backend kata lacks ListMetricDescriptors\n";
    let outcome = run(&node, &["status"]).await;
    assert_eq!(outcome.code, 0, "{}", outcome.stdout);
    assert!(outcome.stdout.ends_with(lines), "{}", outcome.stdout);
    node.new
        .fail("PodSandboxStatus", Status::unimplemented("no"));
    let mut pods = node.client().pods().await.unwrap().into_iter();
    let pod = pods.find(|pod| pod.runtime_handler == "kata").unwrap();
    let request = PodSandboxStatusRequest {
        pod_sandbox_id: pod.id,
        verbose: false,
    };
    runtime.pod_sandbox_status(request).await.unwrap_err();
    let outcome = run(&node, &["status"]).await;
    assert_eq!(outcome.code, 1, "{}", outcome.stdout);
    let words = "degraded: backend kata: it lacks PodSandboxStatus, which every runtime must have";
    assert!(outcome.stdout.starts_with(words), "{}", outcome.stdout);
    let json: Json =
        serde_json::from_str(&run(&node, &["status", "-o", "json"]).await.stdout).unwrap();
    assert_eq!(
        json["backends"][1]["lackingRpcs"],
        json!(["ListMetricDescriptors", "PodSandboxStatus"])
    );
    node.end().await;
}

#[tokio::test]
async fn pods_of_a_backend_that_is_away_are_marked_as_cached() {
    let node = two_backends().await;
    node.client().run_pod("kata", "boxed").await.unwrap();
    node.new.stop().await;
    while node.info().await["backends"][1]["state"] != "down" {}
    shows(
        &node,
        &["pods"],
        0,
        expect![[r#"
            HANDLER  BACKEND  STATE           AGE  ID             NAMESPACE/NAME
            kata     kata     ready (cached)  0s   ID  default/boxed
            kata     kata     ready (cached)  0s   ID  default/pod-1
            runc     runc     ready           0s   ID  default/web
        "#]],
    )
    .await;
    let outcome = run(&node, &["pods", "--json", "--backend", "runc"]).await;
    let shown: Json = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(shown["pods"][0]["cached"], false);
    node.end().await;
}

#[tokio::test]
async fn the_verdict_has_the_reason_why_lists_fail_and_the_command_to_run() {
    let (files, _, _) = one_backend();
    let config = std::fs::read_to_string(files.main()).unwrap();
    std::fs::write(files.main(), format!("start_wait = '0s'\n{config}")).unwrap();
    let serve = crate::daemon(text(&files.main()));
    let _daemon = Daemon::start_as(serve).await;
    let path = files.main();
    let outcome = run_beside(&["status", "--config", text(&path)]).await;
    assert_eq!(outcome.code, 1);
    let verdict = outcome.stdout.lines().next().unwrap();
    let directory = path.parent().unwrap();
    let verdict = verdict.replace(text(&directory.join("")), "/DIR/");
    let verdict = without_ids(&verdict);
    expect![[r#"
        lists failing: backend runc (/DIR/backend) has been down for 0s (cannot connect: No such file or directory), and it has not been listed yet; start its runtime; if the path is wrong, correct it and reload
    "#]].assert_eq(&verdict);
    let outcome = run_beside(&["status", "--json", "--config", text(&path)]).await;
    let shown: Json = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(shown["health"]["state"], "lists failing");
    // `forget` asks for a confirmation even if it cannot list the pods.
    let outcome = run_beside(&["forget", "runc", "--config", text(&path)]).await;
    let Outcome { stdout, stderr, .. } = outcome;
    let unlisted = "The pods of backend runc cannot be listed: ";
    assert!(stdout.starts_with(unlisted), "{stdout}");
    assert!(stderr.contains("add --yes"), "{stderr}");
}

#[tokio::test]
async fn a_notice_of_deprecations_is_a_note_and_no_problem() {
    let node = Node::start("").await;
    let deprecation = |settings: &mut Settings| {
        settings.conditions.push(RuntimeCondition {
            r#type: "ContainerdHasNoDeprecationWarnings".to_owned(),
            message: "io.containerd.deprecation/cri-runc".to_owned(),
            ..Default::default()
        });
    };
    let _old = node.old.clone().set(deprecation);
    let outcome = run(&node, &["status"]).await;
    let shown = outcome.stdout;
    assert_eq!(outcome.code, 0, "{shown}");
    assert!(
        shown.starts_with("serving: the backend is ready\n"),
        "{shown}"
    );
    let note = "\nnote: ContainerdHasNoDeprecationWarnings is false: io.containerd.";
    assert!(shown.contains(note), "{shown}");
    node.end().await;
}

#[tokio::test]
async fn the_json_of_status_has_the_pods_and_features_of_each_handler() {
    let node = two_backends().await;
    let outcome = run(&node, &["status", "--json"]).await;
    let shown: Json = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(shown["criswitch"], true);
    assert_eq!(shown["handlers"][1]["pods"], 1);
    assert_eq!(shown["handlers"][1]["features"], json!([]));
    assert_eq!(shown["features"], json!(["supplemental_groups_policy"]));
    let wide = run(&node, &["status", "-o", "wide"]).await.stdout;
    let line = "\nfeatures of the node: supplemental_groups_policy\n";
    assert!(wide.contains(line), "{wide}");
    assert_eq!(shown["backends"][0]["state"], "ready");
    assert_eq!(
        shown["reloads"]["last"]["changes"]["handlersAdded"],
        json!(["kata"])
    );
    node.end().await;
}

#[tokio::test]
async fn status_right_after_a_start_does_not_wait_for_absent_backends() {
    let (files, _, _) = one_backend();
    let config = std::fs::read_to_string(files.main()).unwrap();
    std::fs::write(files.main(), format!("start_wait = '10m'\n{config}")).unwrap();
    let serve = crate::daemon(text(&files.main()));
    let _daemon = Daemon::start_as(serve).await;
    let path = files.main();
    let status = ["status", "--config", text(&path)];
    let outcome = tokio::time::timeout(PATIENCE, run_beside(&status))
        .await
        .unwrap();
    assert_eq!((outcome.code, outcome.stderr.as_str()), (1, ""));
    let shown = outcome.stdout;
    assert!(shown.contains("\nrunc     down "), "{shown}");
    assert!(shown.contains("BackendsReady is false: backend"), "{shown}");
}

#[tokio::test]
async fn pods_are_shown_with_the_backend_that_runs_them() {
    let node = two_backends().await;
    shows(
        &node,
        &["pods"],
        0,
        expect![[r#"
            HANDLER  BACKEND  STATE  AGE  ID             NAMESPACE/NAME
            kata     kata     ready  0s   ID  default/pod-1
            runc     runc     ready  0s   ID  default/web
        "#]],
    )
    .await;
    // New pods go to a different backend; the running pod stays.
    let old = format!("runc = {:?}", node.new.socket());
    node.files.write(
        "criswitch.toml",
        &format!(
            "listen = {:?}\ndefault_handler = \"runc\"\n[handlers]\n{old}\n",
            node.files.path("criswitch.sock")
        ),
    );
    assert_eq!(node.reload().await.code, 0);
    // The running pod is not counted for the handler's new backend.
    let shown = run(&node, &["status"]).await.stdout;
    assert!(shown.contains("\nrunc (default)  runc     0 "), "{shown}");
    let shown = run(&node, &["status", "--json"]).await.stdout;
    let shown: Json = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["handlers"][0]["pods"], 0, "{shown}");
    assert!(shown["backends"][0]["podIds"].is_null(), "{shown}");
    let outcome = run(&node, &["pods", "--json", "--handler", "runc"]).await;
    let shown: Json = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(shown["pods"].as_array().unwrap().len(), 1);
    assert_eq!(shown["pods"][0]["name"], "web");
    assert_ne!(shown["pods"][0]["backend"], "");
    node.end().await;
}

/// The row `own` stands for the backend's default handler. A pod whose handler is unknown does not count for this row.
#[tokio::test]
async fn a_pod_with_an_unknown_handler_is_shown_without_a_handler() {
    let node = Node::start("").await;
    node.write("", "own = { backend = \"runc\", handler = \"\" }");
    assert_eq!(node.reload().await.code, 0);
    let hides = |settings: &mut Settings| settings.shows_handlers = ShowsHandlers::Nowhere;
    let direct = Client::new(&node.old.clone().set(hides).socket());
    direct.run_pod("kata", "direct").await.unwrap();
    node.client().run_pod("own", "web").await.unwrap();
    shows(
        &node,
        &["pods"],
        0,
        expect![[r#"
            HANDLER    BACKEND  STATE  AGE  ID             NAMESPACE/NAME
            (default)  runc     ready  0s   ID  default/direct
            own        runc     ready  0s   ID  default/web
        "#]],
    )
    .await;
    let shown = run(&node, &["status", "--json"]).await.stdout;
    let shown: Json = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["handlers"][0]["name"], "own");
    assert_eq!(shown["handlers"][0]["pods"], 1);
    let of_default = run(&node, &["pods", "--handler", "runc", "-o", "name"]).await;
    assert_eq!(of_default.stdout, "default/direct\n");
    node.end().await;
}

#[tokio::test]
async fn the_status_suggests_no_forget_for_a_backend_that_answers_and_retires() {
    let node = two_backends().await;
    node.write("", "");
    assert_eq!(node.reload().await.code, 0);
    let shown = run(&node, &["status"]).await;
    assert_eq!(shown.code, 0);
    let removal = "backend kata is removed when its last pod ends\n";
    assert!(shown.stdout.contains(removal), "{}", shown.stdout);
    assert!(!shown.stdout.contains("forget"), "{}", shown.stdout);
    node.end().await;
}

#[tokio::test]
async fn pods_can_be_filtered_by_handler_backend_and_namespace() {
    let node = two_backends().await;
    let lines = async |arguments: &[&str]| run(&node, arguments).await.stdout.lines().count() - 1;
    assert_eq!(lines(&["pods"]).await, 2);
    assert_eq!(lines(&["pods", "--handler", "kata"]).await, 1);
    assert_eq!(lines(&["pods", "--backend", "runc"]).await, 1);
    assert_eq!(lines(&["pods", "--namespace", "elsewhere"]).await, 0);
    assert_eq!(lines(&["pods", "-A"]).await, 2);
    let listed = run(&node, &["pods", "-o", "name"]).await.stdout;
    let first = listed.lines().next().unwrap();
    assert_eq!(lines(&["pods", first]).await, 1);
    let outcome = run(&node, &["pods", "default/absent"]).await;
    assert_eq!(outcome.code, 1);
    let words = "no such pod: \"default/absent\"; for the reason: criswitch explain default/absent";
    assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
    let outcome = run(&node, &["pods", "--backend", "kat"]).await;
    assert_eq!(outcome.code, 1);
    expect![[r#"
        criswitch: no backend is named "kat"; the backends are: kata, runc
    "#]]
    .assert_eq(&outcome.stderr);
    let outcome = run(&node, &["pods", "--handler", "kat"]).await;
    assert_eq!((outcome.code, outcome.stdout.as_str()), (1, ""));
    expect![[r#"
        criswitch: no handler is named "kat"; the handlers are: kata, runc
    "#]]
    .assert_eq(&outcome.stderr);
    // The pods of a removed handler can be listed.
    node.write("", "");
    assert_eq!(node.reload().await.code, 0);
    assert_eq!(lines(&["pods", "--handler", "kata"]).await, 1);
    node.end().await;
}

#[tokio::test]
async fn status_shows_the_conditions_of_a_different_runtime() {
    let files = Files::new();
    let socket = files.path("runtime.sock");
    files.write("criswitch.toml", &format!("listen = {socket:?}"));
    let outcome = run_beside(&["status", "--config", text(&files.main())]).await;
    assert_eq!(outcome.code, 69);
    assert!(
        outcome.stderr.contains("check that criswitch is running"),
        "{}",
        outcome.stderr
    );
    let sim = Sim::new("runc");
    sim.serve_on(&socket);
    let outcome = run_beside(&["status", "--config", text(&files.main())]).await;
    assert_eq!((outcome.code, outcome.stderr.as_str()), (69, ""));
    expect![[r#"
        SOCKET is the socket of runc 1.0.0, not of criswitch; try --config, or --socket with the path of criswitch's socket

        CONDITION     STATUS  MESSAGE
        RuntimeReady  true    -
        NetworkReady  true    -
    "#]]
    .assert_eq(&outcome.stdout.replace(text(&socket), "SOCKET"));
    let outcome = run_beside(&["status", "--json", "--config", text(&files.main())]).await;
    assert_eq!(outcome.code, 69);
    let shown: Json = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(
        (&shown["criswitch"], &shown["runtime"]),
        (&json!(false), &json!("runc"))
    );
    assert_eq!(shown["conditions"][0]["type"], "RuntimeReady");
    let names = run_beside(&["status", "-o", "name", "--config", text(&files.main())]).await;
    assert_eq!((names.code, names.stdout.as_str()), (69, ""));
    assert!(
        names.stderr.contains("not of criswitch"),
        "{}",
        names.stderr
    );
}

#[tokio::test]
async fn the_configuration_path_of_a_daemon_started_with_a_relative_path_is_absolute() {
    let node = Node::start_as("", |serve| {
        let config = serve.get_args().last().map(Path::new).unwrap();
        let mut relative = crate::daemon("criswitch.toml");
        relative.current_dir(config.parent().unwrap());
        relative
    })
    .await;
    assert_eq!(node.reload().await.code, 0);
    let shown = run(&node, &["status"]).await.stdout;
    let config = node.files.main();
    assert!(shown.contains(&format!("  {}\n", text(&config))), "{shown}");
    node.end().await;
}
