//! `criswitch explain` with a handler, and with a pod that runs or was rejected.

use expect_test::{Expect, expect};
use serde_json::{Value, json};
use tonic::Code;

use crate::reload::Node;
use crate::serve::{Daemon, one_backend};
use crate::support::{Client, Sim};
use crate::{Outcome, run_beside, text};

async fn explain(node: &Node, arguments: &[&str]) -> Outcome {
    let main = node.files.main();
    run_beside(&[&["explain", "--config", text(&main)], arguments].concat()).await
}

async fn json(node: &Node, subject: &str) -> Value {
    let outcome = explain(node, &["-o", "json", subject]).await;
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    serde_json::from_str(&outcome.stdout).unwrap()
}

/// Checks the output of `explain`, after it has replaced the directory and the times and has shortened the table of
/// limits to three rows.
async fn shows(node: &Node, subject: &str, expected: Expect) {
    let outcome = explain(node, &[subject]).await;
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    let shown = outcome.stdout.replace(text(&node.files.path("")), "/DIR/");
    let is_time = |word: &str| word.starts_with("20") && word.trim_end_matches(',').ends_with('Z');
    let word = |word: &str| {
        if is_time(word) {
            "TIME".to_owned()
        } else {
            word.to_owned()
        }
    };
    let line = |line: &str| line.split(' ').map(word).collect::<Vec<_>>().join(" ") + "\n";
    let lines: Vec<_> = shown.lines().map(line).collect();
    let table = lines.iter().position(|line| line.starts_with("LIMIT "));
    let rows = lines.iter().skip(table.unwrap_or(lines.len()) + 1);
    let more: Vec<_> = rows.take_while(|line| *line != "\n").skip(3).collect();
    let kept = lines.iter().filter(|line| !more.contains(line));
    expected.assert_eq(&kept.map(String::as_str).collect::<String>());
}

async fn two_backends() -> Node {
    let node = Node::start("").await;
    node.write("", &node.kata());
    assert_eq!(node.reload().await.code, 0);
    node.until("kata", Code::Ok).await;
    node
}

#[tokio::test]
async fn a_handler_is_shown_with_its_row_its_backend_its_limits_and_its_pods() {
    let node = two_backends().await;
    shows(
        &node,
        "runc",
        expect![[r#"
            handler runc, the default handler
              row: /DIR/criswitch.toml:6, unchanged since criswitch started
              backend: runc (/DIR/old.sock), old 1.0.0, ready since TIME
              kind of runtime: runc, from the handler's name
              features: supplemental_groups_policy
              pods: 0 (0 ready)

            LIMIT                    EFFECT   FIELDS
            host-users               fails    spec.hostUsers
            recursive-read-only      fails    spec.containers[*].volumeMounts[*].recursiveReadOnly
            host-users-host-network  fails    spec.hostUsers spec.hostNetwork

            23 known limits; for the reasons: criswitch explain -f POD.yaml, or docs/compatibility.md; for the limits that cannot apply here too: --all
        "#]],
    )
    .await;
    shows(
        &node,
        "kata",
        expect![[r#"
            handler kata
              row: /DIR/criswitch.toml:7, added by reload 1 at TIME
              backend: kata (/DIR/new.sock), new 1.0.0, ready since TIME
              kind of runtime: Kata Containers, from the handler's name
              features: supplemental_groups_policy
              pods: 1 (1 ready)

            LIMIT                      EFFECT   FIELDS
            host-users                 fails    spec.hostUsers
            recursive-read-only        fails    spec.containers[*].volumeMounts[*].recursiveReadOnly
            host-users-host-network    fails    spec.hostUsers spec.hostNetwork

            46 known limits; for the reasons: criswitch explain -f POD.yaml, or docs/compatibility.md; for the limits that cannot apply here too: --all
        "#]],
    )
    .await;
    let kata = json(&node, "kata").await;
    assert_eq!((&kata["pods"], &kata["kind"]), (&json!(1), &json!("kata")));
    assert_eq!(kata["kindFrom"], "the handler's name");
    let by = &kata["changedBy"];
    assert_eq!(
        (&by["reload"], &by["from"], &by["to"]),
        (&json!(1), &json!(null), &json!("kata"))
    );
    assert_eq!(json(&node, "runc").await["changedBy"], json!(null));
    let old = node.old.socket();
    node.write("", &format!("kata = {old:?}"));
    assert_eq!(node.reload().await.code, 0);
    let by = json(&node, "kata").await["changedBy"].clone();
    assert_eq!(
        (&by["reload"], &by["from"], &by["to"]),
        (&json!(2), &json!("kata"), &json!("runc"))
    );
    node.end().await;
}

#[tokio::test]
async fn a_pod_is_shown_with_the_row_that_created_it_and_the_row_of_now() {
    let node = two_backends().await;
    let id = node.client().run_pod("kata", "web").await.unwrap();
    let by_id = json(&node, &id[..8]).await;
    assert_eq!(by_id["pods"][0]["id"], id);
    assert_eq!(
        (&by_id["pods"][0]["backend"], &by_id["pods"][0]["handler"]),
        (&json!("kata"), &json!("kata"))
    );
    // After this change the row routes to the other backend, but the running pod stays.
    node.write(
        "",
        &format!(
            "kata = {:?}\n[backends]\nother = {:?}",
            node.old.socket(),
            node.new.socket()
        ),
    );
    let reload = node.reload().await;
    assert_eq!(reload.code, 0, "{}", reload.stderr);
    let name = by_id["pods"][0]["namespace"].as_str().unwrap().to_owned() + "/web";
    let moved = json(&node, &name).await;
    let pod = &moved["pods"][0];
    assert_eq!(pod["handler"], "kata");
    assert_ne!(pod["rowNow"]["backend"], pod["backend"]);
    let now = pod["now"].as_str().unwrap();
    let place = "a new pod of this class would go to: backend runc (row kata, ";
    assert!(now.starts_with(place), "{now}");
    assert!(now.ends_with("; this pod stays where it is"), "{now}");
    node.end().await;
}

#[tokio::test]
async fn a_name_of_a_pod_forges_no_line() {
    let node = two_backends().await;
    let id = node
        .client()
        .run_pod("kata", "web\n  backend: runc\u{202e}")
        .await;
    let shown = explain(&node, &[&id.unwrap()]).await.stdout;
    assert_eq!(shown.lines().count(), 4, "{shown}");
    assert!(shown.contains("/web   backend: runc\\u202e ("), "{shown}");
    node.end().await;
}

#[tokio::test]
async fn a_rejected_pod_is_shown_with_the_reason_until_it_is_created() {
    let node = two_backends().await;
    for _ in 0..3 {
        node.client().run_pod("nosuch", "lost").await.unwrap_err();
    }
    let namespace = node.info().await["rejections"][0]["namespace"]
        .as_str()
        .unwrap()
        .to_owned();
    let name = format!("{namespace}/lost");
    shows(
        &node,
        &name,
        expect![[r#"
            pod default/lost (uid uid-of-lost) was not created
              asked for: handler nosuch
              rejected by criswitch: no row for its handler
              InvalidArgument: no runtime for "nosuch" is configured; criswitch has handlers: kata, runc
              3 times, first at TIME last at TIME
        "#]],
    )
    .await;
    let found = json(&node, &name).await;
    assert_eq!(
        (&found["rejections"][0]["times"], &found["pods"]),
        (&json!(3), &json!([]))
    );
    node.client().run_pod("runc", "lost").await.unwrap();
    let created = json(&node, &name).await;
    assert_eq!(created["rejections"], json!([]));
    assert_eq!(created["pods"][0]["backend"], "runc");
    node.end().await;
}

#[tokio::test]
async fn rejected_pods_are_in_status_and_are_found_by_the_handler_that_they_asked_for() {
    let node = two_backends().await;
    node.client().run_pod("nosuch", "lost").await.unwrap_err();
    let table = async |arguments: &[&str]| {
        let main = node.files.main();
        let shown = run_beside(&[arguments, &["--config", text(&main)]].concat()).await;
        let rows = shown
            .stdout
            .lines()
            .skip_while(|line| !line.starts_with("RECENT FAILURES"));
        let row = rows.skip(1).take(1).collect::<String>();
        row.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let row = table(&["status"]).await;
    assert_eq!(row[..4], ["default/lost", "nosuch", "-", "1"]);
    assert_eq!(row[5..8], ["InvalidArgument:", "no", "runtime"]);
    let found = json(&node, "nosuch").await;
    let rejection = &found["rejections"][0];
    assert_eq!(
        (&rejection["name"], &rejection["askedHandler"]),
        (&json!("lost"), &json!("nosuch"))
    );
    assert!(
        rejection["handler"].is_null() && rejection["backend"].is_null(),
        "{rejection}"
    );
    assert!(table(&["explain", "kata"]).await.is_empty());
    node.new.stop().await;
    node.client().run_pod("kata", "boxed").await.unwrap_err();
    let row = table(&["explain", "kata"]).await;
    assert_eq!(row[..4], ["default/boxed", "kata", "kata", "1"]);
    assert_eq!(json(&node, "kata").await["rejections"][0]["name"], "boxed");
    node.end().await;
}

#[tokio::test]
async fn an_unknown_pod_or_handler_is_an_error_that_says_where_to_look() {
    let node = two_backends().await;
    for (subject, part) in [
        ("default/nosuch", "journalctl -u criswitch"),
        ("nosuch", "the handlers are: kata, runc"),
        ("", "the handlers are: kata, runc"),
    ] {
        let outcome = explain(&node, &[subject]).await;
        assert_eq!((outcome.code, outcome.stdout.as_str()), (1, ""));
        assert!(outcome.stderr.contains(part), "{}", outcome.stderr);
    }
    node.end().await;
}

/// Explains a handler as text and as JSON. Returns the exit status, the text and the JSON.
async fn explained(node: &Node, arguments: &[&str]) -> (i32, String, Value) {
    let shown = explain(node, arguments).await;
    let json = explain(node, &[&["-o", "json"], arguments].concat()).await;
    assert_eq!(shown.code, json.code, "{}{}", shown.stderr, json.stderr);
    assert_eq!(shown.stderr, json.stderr);
    let json = serde_json::from_str(&json.stdout).unwrap();
    (shown.code, shown.stdout + &shown.stderr, json)
}

#[tokio::test]
async fn a_wrong_configuration_is_the_reason_why_the_kind_and_the_features_are_unknown() {
    let node = two_backends().await;
    node.write("", &format!("{}\nbroken = 1", node.kata()));
    let (code, shown, json) = explained(&node, &["kata"]).await;
    assert_eq!(code, 78, "{shown}");
    let cause = "the configuration is wrong; run criswitch check";
    for line in [
        format!("  kind of runtime: unknown, so no limits of it are known: {cause}\n"),
        format!("  features: unknown: {cause}\n"),
        "criswitch.toml:8:10: ".to_owned(),
    ] {
        assert!(shown.contains(&line), "{shown}");
    }
    assert_eq!(
        (&json["handler"], &json["kind"], &json["features"]),
        (&json!("kata"), &json!(null), &json!(null))
    );
    assert_eq!(json["problems"][0]["line"], 8);
    node.end().await;
}

#[tokio::test]
async fn a_row_that_differs_from_the_row_of_the_daemon_is_not_used() {
    let node = two_backends().await;
    let changed = "the file has changed since the last reload; run criswitch reload";
    let old = node.old.socket();
    let moved = format!("kata = {{ socket = {old:?}, kind = 'gvisor' }}");
    let renamed = format!(
        "kata = {{ socket = {:?}, handler = 'runc' }}",
        node.new.socket()
    );
    for rows in ["", &moved, &renamed] {
        node.write("", rows);
        let (code, shown, json) = explained(&node, &["kata"]).await;
        assert_eq!(code, 0, "{shown}");
        assert!(
            shown.contains(&format!("  features: unknown: {changed}\n")),
            "{shown}"
        );
        assert_eq!((&json["kind"], &json["limits"]), (&json!(null), &json!([])));
        assert_eq!(json["problems"][0]["what"], changed);
    }
    node.end().await;
}

#[tokio::test]
async fn a_file_that_the_daemon_does_not_use_is_not_used() {
    let node = two_backends().await;
    let other = node.files.path("other.toml");
    std::fs::copy(node.files.main(), &other).unwrap();
    let outcome = run_beside(&["explain", "--json", "--config", text(&other), "kata"]).await;
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    let json: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(
        (&json["kind"], &json["features"]),
        (&json!(null), &json!(null))
    );
    let what = json["problems"][0]["what"].as_str().unwrap();
    assert!(
        what.starts_with("the configuration file of the running criswitch is "),
        "{what}"
    );
    node.end().await;
}

#[tokio::test]
async fn an_automatically_registered_handler_of_a_silent_backend_is_shown_with_the_cause() {
    let node = Node::start("").await;
    let new = node.files.path("boxed.sock");
    let boxed = Sim::new("boxed").handlers(["boxed"]);
    boxed.serve_on(&new);
    node.write(
        "",
        &format!("[backends]\nnew = {{ socket = {new:?}, auto_register = true }}"),
    );
    assert_eq!(node.reload().await.code, 0);
    node.until("boxed", Code::Ok).await;
    let (_, shown, json) = explained(&node, &["boxed"]).await;
    let row = "  row: registered automatically, when the backend reported it\n";
    assert!(shown.contains(row), "{shown}");
    let unknown = "neither the backend nor the handler's name shows it";
    assert!(shown.contains(unknown), "{shown}");
    assert_eq!(
        (&json["features"], &json["problems"]),
        (&json!(["supplemental_groups_policy"]), &json!([]))
    );
    boxed.stop().await;
    let (code, shown, json) = explained(&node, &["boxed"]).await;
    assert_eq!(code, 0, "{shown}");
    assert!(
        shown.contains("  features: unknown: no answer from backend new: "),
        "{shown}"
    );
    let what = json["problems"][0]["what"].as_str().unwrap();
    assert!(what.starts_with("no answer from backend new: "), "{what}");
    node.end().await;
}

#[tokio::test]
async fn a_rejected_pod_and_a_handler_are_shown_while_lists_fail() {
    let (files, listen, _) = one_backend();
    let path = files.main();
    let config = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("start_wait = '0s'\n{config}")).unwrap();
    let serve = crate::daemon(text(&path));
    let _daemon = Daemon::start_as(serve).await;
    Client::new(&listen)
        .run_pod("runc", "lost")
        .await
        .unwrap_err();
    let explain = async |arguments: &[&str]| {
        let explain = ["explain", "--config", text(&path)];
        run_beside(&[&explain[..], arguments].concat()).await
    };
    let missing = "the list of pods is missing, so the pod may exist: ";
    let shown = explain(&["default/lost"]).await;
    assert_eq!((shown.code, shown.stderr.as_str()), (0, ""));
    for part in [
        "pod default/lost (uid uid-of-lost) was not created\n",
        "backend runc did not create it; row runc\n",
        missing,
    ] {
        assert!(shown.stdout.contains(part), "{}", shown.stdout);
    }
    let shown = explain(&["--json", "default/lost"]).await;
    let json: Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!(
        (&json["pods"], &json["rejections"][0]["times"]),
        (&json!(null), &json!(1))
    );
    assert!(
        json["problems"][0]["what"]
            .as_str()
            .unwrap()
            .starts_with(missing)
    );
    let shown = explain(&["runc"]).await;
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    assert!(
        shown.stdout.contains("\n  pods: unknown: "),
        "{}",
        shown.stdout
    );
    assert_eq!(explain(&["default/other"]).await.code, 1);
}

#[tokio::test]
async fn a_pod_without_a_runtime_class_is_shown_with_the_default_handler_then_and_now() {
    let node = two_backends().await;
    node.client().run_pod("", "plain").await.unwrap();
    let place = node.files.path("criswitch.toml").display().to_string();
    let shown = explain(&node, &["default/plain"]).await.stdout;
    let then =
        "\n  created by row runc, the default handler at that time (the pod has no RuntimeClass)\n";
    assert!(shown.contains(then), "{shown}");
    let now = format!(
        "\n  a new pod without a RuntimeClass would go to: the same backend (default handler runc, {place}:6)\n"
    );
    assert!(shown.contains(&now), "{shown}");
    let main = std::fs::read_to_string(node.files.main())
        .unwrap()
        .replace("default_handler = \"runc\"", "default_handler = \"kata\"");
    node.files.write("criswitch.toml", &main);
    assert_eq!(node.reload().await.code, 0);
    let shown = explain(&node, &["default/plain"]).await.stdout;
    assert!(shown.contains(then), "{shown}");
    let now = format!(
        "\n  a new pod without a RuntimeClass would go to: backend kata (default handler kata, {place}:7); this pod stays \
         where it is\n"
    );
    assert!(shown.contains(&now), "{shown}");
    let json = json(&node, "default/plain").await;
    let pod = &json["pods"][0];
    assert_eq!(
        (&pod["handler"], &pod["byDefault"]),
        (&json!("runc"), &json!(true))
    );
    assert_eq!(pod["rowNow"]["name"], "kata");
    node.end().await;
}
