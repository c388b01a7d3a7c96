//! `-o`: the shape of each command's JSON, and the other formats.

use expect_test::{Expect, expect};
use serde_json::{Map, Value as Json, json};

use crate::check::TABLE;
use crate::reload::Node;
use crate::support::Sim;
use crate::{Outcome, main_file, run, run_beside, text};

/// Replaces each scalar in a value by the name of its type, and shortens each array to its first item.
fn shape(value: &Json) -> Json {
    match value {
        Json::Null => Json::Null,
        Json::Bool(_) => json!("boolean"),
        Json::Number(_) => json!("number"),
        Json::String(_) => json!("string"),
        Json::Array(items) => items.iter().take(1).map(shape).collect(),
        Json::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(name, value)| (name.clone(), shape(value)));
            Json::Object(fields.collect::<Map<_, _>>())
        }
    }
}

fn has_shape(outcome: &Outcome, expected: Expect) {
    let shown: Json = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(shown["schema"], 1);
    assert!(shown["problems"].is_array());
    expected.assert_eq(&serde_json::to_string_pretty(&shape(&shown)).unwrap());
}

async fn of_node(node: &Node, arguments: &[&str]) -> Outcome {
    let file = node.files.main();
    run_beside(&[arguments, &["--config", text(&file)]].concat()).await
}

#[tokio::test]
async fn the_json_of_a_daemon_has_this_shape() {
    let node = Node::start("").await;
    node.client().run_pod("runc", "web").await.unwrap();
    has_shape(
        &of_node(&node, &["status", "-o", "json"]).await,
        expect![[r#"
            {
              "backends": [
                {
                  "autoRegister": "boolean",
                  "awaited": "boolean",
                  "cgroupDriver": "string",
                  "claimedItems": "number",
                  "conditions": [
                    {
                      "message": "string",
                      "reason": "string",
                      "status": "boolean",
                      "type": "string"
                    }
                  ],
                  "containers": "number",
                  "droppedItems": "number",
                  "failingRpcs": [],
                  "joined": "boolean",
                  "lackingRpcs": [],
                  "listsFromCache": "number",
                  "name": "string",
                  "orphans": [],
                  "pods": "number",
                  "podsFromCache": "boolean",
                  "repliesOmitted": "number",
                  "retiring": "boolean",
                  "runtime": "string",
                  "since": "string",
                  "socket": "string",
                  "state": "string",
                  "statsFromCache": "number",
                  "transitions": "number",
                  "unnamed": "boolean",
                  "version": "string"
                }
              ],
              "configuration": {
                "changed": "boolean",
                "files": [
                  "string"
                ],
                "hash": "string",
                "path": "string",
                "problems": []
              },
              "criswitch": "boolean",
              "defaultHandler": "string",
              "features": [
                "string"
              ],
              "handlers": [
                {
                  "backend": "string",
                  "backendHandler": "string",
                  "features": [],
                  "name": "string",
                  "origin": "string",
                  "pods": "number"
                }
              ],
              "health": {
                "state": "string",
                "text": "string"
              },
              "lostNriSockets": [],
              "nodeLabels": {
                "labels": {
                  "criswitch.io/backend.runc.runtime": "string",
                  "criswitch.io/backend.runc.version": "string",
                  "criswitch.io/handler.runc": "string"
                },
                "notes": []
              },
              "pid": "number",
              "problems": [],
              "rejections": [],
              "reloads": {
                "begun": "number",
                "count": "number",
                "recent": [],
                "rejected": "number"
              },
              "schema": "number",
              "version": "string"
            }"#]],
    );
    has_shape(
        &of_node(&node, &["pods", "-o", "json"]).await,
        expect![[r#"
            {
              "pods": [
                {
                  "attempt": "number",
                  "backend": "string",
                  "cached": "boolean",
                  "createdAt": "string",
                  "handler": "string",
                  "id": "string",
                  "name": "string",
                  "namespace": "string",
                  "state": "string",
                  "uid": "string"
                }
              ],
              "problems": [],
              "schema": "number"
            }"#]],
    );
    node.write("", &node.kata());
    has_shape(
        &of_node(&node, &["reload", "-o", "json"]).await,
        expect![[r#"
            {
              "at": "string",
              "changes": {
                "backendsAdded": [
                  "string"
                ],
                "backendsRemoved": [],
                "backendsRenamed": [],
                "backendsRetiring": [],
                "handlersAdded": [
                  "string"
                ],
                "handlersMoved": [],
                "handlersRemoved": [],
                "lines": [
                  "string"
                ],
                "settings": [],
                "warnings": []
              },
              "number": "number",
              "problems": [],
              "restartProblems": [],
              "schema": "number"
            }"#]],
    );
    node.write("", "kata = 1");
    let rejected = of_node(&node, &["reload", "-o", "json"]).await;
    assert_eq!(rejected.code, 78);
    assert!(
        rejected.stderr.contains("not reloaded"),
        "{}",
        rejected.stderr
    );
    has_shape(
        &rejected,
        expect![[r#"
            {
              "at": "string",
              "number": "number",
              "problems": [
                {
                  "column": "number",
                  "line": "number",
                  "path": "string",
                  "try": "string",
                  "what": "string"
                }
              ],
              "restartProblems": [],
              "schema": "number"
            }"#]],
    );
    node.end().await;
}

#[cfg(unix)] // Windows has no numeric user ids.
#[tokio::test]
async fn the_json_of_a_configuration_has_this_shape() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("runc.sock");
    Sim::new("runc").handlers(["runc"]).serve_on(&path);
    let files = main_file(&format!(
        "default_handler = 'runc'\nhandlers.runc = {path:?}\n"
    ));
    let config = files.main();
    let of = async |arguments: &[&str]| run_beside(&[arguments, &["-o", "json"]].concat()).await;
    has_shape(
        &of(&["check", "--probe", "--config", text(&config)]).await,
        expect![[r#"
            {
              "allowUids": [
                "number"
              ],
              "backends": [
                {
                  "autoRegister": "boolean",
                  "listTimeoutMs": "number",
                  "name": "string",
                  "origin": "string",
                  "probe": {
                    "answers": "boolean",
                    "cgroupDriver": "string",
                    "conditions": [
                      {
                        "message": "string",
                        "reason": "string",
                        "status": "boolean",
                        "type": "string"
                      }
                    ],
                    "features": [
                      "string"
                    ],
                    "handlers": [
                      "string"
                    ],
                    "lackingRpcs": [],
                    "runtime": "string",
                    "unansweredRpcs": [],
                    "unknownFeatures": [],
                    "version": "string"
                  },
                  "required": "boolean",
                  "socket": "string",
                  "statsTimeoutMs": "number"
                }
              ],
              "consequences": [],
              "defaultHandler": "string",
              "files": [
                "string"
              ],
              "handlers": [
                {
                  "backend": "string",
                  "backendHandler": "string",
                  "name": "string",
                  "origin": "string",
                  "reported": "boolean"
                }
              ],
              "hash": "string",
              "labelsFailedAfterMs": "number",
              "lackingFeatures": [],
              "listTimeoutMs": "number",
              "listen": "string",
              "logFormat": "string",
              "logLevel": "string",
              "maxMessageBytes": "number",
              "moreProblems": "number",
              "notes": [],
              "problems": [],
              "schema": "number",
              "shutdownTimeoutMs": "number",
              "startWaitMs": "number",
              "statsTimeoutMs": "number",
              "watch": "boolean"
            }"#]],
    );
    has_shape(
        &of(&["discover", "--root", "/nonexistent", text(&path)]).await,
        expect![[r#"
            {
              "backends": [
                {
                  "also": [],
                  "name": "string",
                  "probe": {
                    "answers": "boolean",
                    "cgroupDriver": "string",
                    "conditions": [
                      {
                        "message": "string",
                        "reason": "string",
                        "status": "boolean",
                        "type": "string"
                      }
                    ],
                    "features": [
                      "string"
                    ],
                    "handlers": [
                      "string"
                    ],
                    "lackingRpcs": [],
                    "runtime": "string",
                    "unansweredRpcs": [],
                    "unknownFeatures": [],
                    "version": "string"
                  },
                  "socket": "string"
                }
              ],
              "configuration": "string",
              "defaultHandler": "string",
              "handlers": [
                {
                  "backend": "string",
                  "backendHandler": "string",
                  "features": [],
                  "kind": "string",
                  "name": "string"
                }
              ],
              "listen": "string",
              "notes": [],
              "own": [],
              "problems": [],
              "schema": "number",
              "silent": []
            }"#]],
    );
    has_shape(
        &of(&["routes"]).await,
        expect![[r#"
            {
              "problems": [],
              "routes": [
                {
                  "goesTo": "string",
                  "key": "string",
                  "optional": "boolean",
                  "reply": "string",
                  "rpc": "string",
                  "unknownId": "string"
                }
              ],
              "schema": "number"
            }"#]],
    );
}

#[cfg(unix)] // `--socket` has the path of a socket.
#[test]
fn a_failure_is_json_on_standard_output_and_a_line_on_standard_error() {
    let rejected = main_file("default = 'runc'");
    let outcome = run(&["check", "-o", "json", "--config", text(&rejected.main())]);
    assert_eq!(outcome.code, 78);
    assert!(!outcome.stderr.is_empty());
    has_shape(
        &outcome,
        expect![[r#"
        {
          "moreProblems": "number",
          "problems": [
            {
              "column": "number",
              "line": "number",
              "path": "string",
              "try": "string",
              "what": "string"
            }
          ],
          "schema": "number"
        }"#]],
    );
    for command in ["status", "pods", "reload"] {
        let outcome = run(&[
            command,
            "-o",
            "json",
            "--socket",
            "/nonexistent/criswitch.sock",
        ]);
        let failure: Json = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!(failure["schema"], 1);
        let what = failure["problems"][0]["what"].as_str().unwrap();
        assert_eq!(outcome.stderr, format!("criswitch: {what}\n"));
    }
}

#[tokio::test]
async fn yaml_has_the_same_object_as_json() {
    let node = Node::start("").await;
    for command in ["status", "pods", "check", "routes"] {
        let file = node.files.main();
        let config: &[&str] = match command {
            "routes" => &[],
            _ => &["--config", text(&file)],
        };
        let of = async |format| run_beside(&[&[command, "-o", format], config].concat()).await;
        let yaml: Json = serde_saphyr::from_str(&of("yaml").await.stdout).unwrap();
        let json: Json = serde_json::from_str(&of("json").await.stdout).unwrap();
        assert_eq!(shape(&yaml), shape(&json), "{command}");
    }
    node.end().await;
}

#[tokio::test]
async fn names_and_ids_are_printed_one_in_each_line() {
    let node = Node::start("").await;
    let pod = node.client().run_pod("runc", "web").await.unwrap();
    assert_eq!(
        of_node(&node, &["pods", "-o", "name"]).await.stdout,
        "default/web\n"
    );
    assert_eq!(
        of_node(&node, &["pods", "-q"]).await.stdout,
        format!("{pod}\n")
    );
    assert_eq!(
        of_node(&node, &["status", "-o", "name"]).await.stdout,
        "runc\n"
    );
    let files = main_file(TABLE);
    let handlers = run(&["check", "-o", "name", "--config", text(&files.main())]);
    assert_eq!(handlers.stdout, "gvisor\nplain\nrunc\n");
    let rpcs = run(&["routes", "-o", "name"]).stdout;
    assert!(rpcs.starts_with("RuntimeService/Version\n"), "{rpcs}");
    node.end().await;
}

#[tokio::test]
async fn wide_tables_have_more_columns() {
    let node = Node::start("").await;
    let pod = node.client().run_pod("runc", "web").await.unwrap();
    let pods = of_node(&node, &["pods", "-o", "wide"]).await.stdout;
    let header: Vec<&str> = pods.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(
        header,
        [
            "HANDLER",
            "BACKEND",
            "STATE",
            "AGE",
            "ID",
            "NAMESPACE/NAME",
            "UID",
            "ATTEMPT",
            "CREATED"
        ]
    );
    assert!(pods.contains(&pod), "the whole id: {pods}");
    let status = of_node(&node, &["status", "-o", "wide"]).await.stdout;
    assert!(status.contains("ITEMS DROPPED"), "{status}");
    assert!(
        status.contains(text(&node.files.main())),
        "the whole path of a row: {status}"
    );
    let check = of_node(&node, &["check", "-o", "wide"]).await.stdout;
    assert!(check.contains("BACKEND HANDLER  ORIGIN"), "{check}");
    node.end().await;
}

#[test]
fn formats_exclude_each_other() {
    for arguments in [
        &["status", "-o", "yaml", "--json"][..],
        &["pods", "-q", "-o", "json"],
        &["reload", "-o", "wide"],
        &["check", "-o", "xml"],
    ] {
        assert_eq!(run(arguments).code, 64, "{arguments:?}");
    }
}
