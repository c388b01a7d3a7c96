//! `criswitch reload --dry-run` shows what a reload would change, and changes nothing.

use criswitch_cri::codec::admin::admin_server::{Admin, AdminServer};
use criswitch_cri::codec::admin::{
    Configuration, ForgetRequest, ForgetResponse, GetMetricsRequest, GetStateRequest, MetricsPage,
    PlanReloadRequest, PlanReloadResponse, ReloadRequest, ReloadResponse, State, WatchStateRequest,
};
use expect_test::expect;
use futures_util::stream::BoxStream;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use serde_json::{Value as Json, json};
use tonic::{Code, Request, Response, Status};

use crate::reload::{Files, Node};
use crate::support::sockets;
use crate::{Outcome, run_beside, text};

async fn dry_run(node: &Node, arguments: &[&str]) -> Outcome {
    let file = node.files.main();
    let reload = ["reload", "--dry-run", "--config", text(&file)];
    run_beside(&[&reload, arguments].concat()).await
}

/// A node with a pod on the backend `kata`, and an edited file: a different backend has the name `kata`.
async fn edited() -> Node {
    let node = Node::start("").await;
    node.write("", &node.kata());
    assert_eq!(node.reload().await.code, 0);
    node.until("kata", Code::Ok).await;
    let boxed = node.files.path("boxed.sock");
    let rows = format!("kata = \"kata\"\n[backends]\nkata = {boxed:?}");
    node.write("shutdown_timeout = \"3s\"", &rows);
    node
}

/// The facts in `criswitch status` that a reload may change.
async fn facts(node: &Node) -> Json {
    let state = node.info().await;
    let names: Vec<_> = state["backends"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| json!([it["name"], it["retiring"], it["unnamed"]]))
        .collect();
    json!([
        names,
        state["handlers"],
        state["configuration"],
        state["reloads"]
    ])
}

#[tokio::test]
async fn a_dry_run_shows_the_changes_of_the_next_reload_and_changes_nothing() {
    let node = edited().await;
    let before = facts(&node).await;
    let outcome = dry_run(&node, &[]).await;
    assert_eq!((outcome.code, outcome.stderr.as_str()), (2, ""));
    expect![[r#"
        backend renamed: kata is now kata-old, because the name kata has another socket
        handler moved: kata from kata-old to kata
        backend added: kata
        backend retiring: kata-old, which owns 1 pod and 0 containers
        backend kata-old is removed when its last pod ends
        settings changed: shutdown_timeout

        to undo: put the old files back, then criswitch reload
        handler kata: new pods start on kata-old again; pods started on kata meanwhile stay there
        backend kata: the backend is removed again, or, if it has pods by then, when its last pod ends
        backend kata-old: the backend keeps its pods and takes new pods again. If its last pod ends before you undo, its cached lists and counters are lost, and lists omit the backend until it answers
        settings: the old values apply again
    "#]].assert_eq(&outcome.stdout);
    assert_eq!(facts(&node).await, before);
    let again = dry_run(&node, &[]).await;
    assert_eq!((again.code, &again.stdout), (2, &outcome.stdout));
    let (changes, _) = outcome.stdout.split_once("\n\n").unwrap();
    assert_eq!(node.reload().await.stdout.trim_end(), changes);
    assert_eq!(node.info().await["reloads"]["begun"], 2);
    node.write("", &node.kata());
    assert_eq!(node.reload().await.code, 0);
    let restored = facts(&node).await;
    assert_eq!((&restored[0], &restored[1]), (&before[0], &before[1]));
    let log = node.whole_log().await;
    let reloads = log.iter().filter(|line| line.contains("reloaded"));
    assert_eq!(reloads.count(), 3, "{log:?}");
}

#[tokio::test]
async fn a_dry_run_connects_to_no_new_backend() {
    let node = Node::start("").await;
    node.write("", &node.kata());
    let outcome = dry_run(&node, &[]).await;
    assert_eq!(outcome.code, 2, "{}", outcome.stderr);
    node.client().pods().await.unwrap();
    assert_eq!(node.new.calls("Version").len(), 0);
    node.end().await;
}

#[tokio::test]
async fn a_dry_run_without_a_change_exits_with_0_and_shows_keys_of_the_next_start() {
    let node = Node::start("").await;
    let outcome = dry_run(&node, &[]).await;
    assert_eq!(
        (outcome.code, outcome.stdout.as_str()),
        (0, "nothing would change\n")
    );
    let main = std::fs::read_to_string(node.files.main())
        .unwrap()
        .replace("start_wait = \"0s\"", "start_wait = \"1m\"");
    node.files.write("criswitch.toml", &main);
    let outcome = dry_run(&node, &[]).await;
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    assert_eq!(
        outcome.stdout,
        "nothing would change\n\na reload ignores these keys, the next start reads them: start_wait\n"
    );
    node.end().await;
}

#[tokio::test]
async fn a_dry_run_shows_the_keys_that_need_a_restart_and_the_other_changes() {
    let node = Node::start("").await;
    node.write("max_message = \"1MiB\"", &node.kata());
    let before = facts(&node).await;
    let outcome = dry_run(&node, &[]).await;
    assert_eq!(outcome.code, 78, "{}", outcome.stderr);
    let shown = outcome.stderr.replace(text(&node.files.path("")), "");
    expect![[r#"
        without the keys that need a restart, these changes would apply:
        handler added: kata
        backend added: kata

        to undo: put the old files back, then criswitch reload
        handler kata: the handler is removed again; pods that it has by then run on
        backend kata: the backend is removed again, or, if it has pods by then, when its last pod ends
        criswitch.toml:4:15: "max_message" cannot change from "16MiB" to "1MiB" without a restart; try the old value, or restart criswitch
        criswitch: a reload would be rejected and change nothing
    "#]].assert_eq(&format!("{}{shown}", outcome.stdout));
    let outcome = dry_run(&node, &["-o", "json"]).await;
    assert_eq!(outcome.code, 78);
    let json: Json = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(json["wouldChange"], false);
    assert_eq!(json["changes"]["handlersAdded"], json!(["kata"]));
    let what = json["problems"][0]["what"].as_str().unwrap();
    assert!(what.contains("\"max_message\" cannot change"), "{what}");
    assert_eq!(facts(&node).await, before);
    node.end().await;
}

#[tokio::test]
async fn a_dry_run_before_a_rejection_does_not_begin_as_if_all_were_well() {
    let node = Node::start("").await;
    node.write("max_message = \"1MiB\"", "");
    let outcome = dry_run(&node, &[]).await;
    assert_eq!(outcome.code, 78, "{}", outcome.stderr);
    assert_eq!(
        outcome.stdout,
        "a reload would be rejected; without the keys that need a restart, nothing would change\n"
    );
    node.end().await;
}

#[tokio::test]
async fn a_dry_run_of_an_invalid_file_reports_its_problems() {
    let node = Node::start("").await;
    node.write("", "kata = 1");
    let outcome = dry_run(&node, &[]).await;
    assert_eq!((outcome.code, outcome.stdout.as_str()), (78, ""));
    assert!(
        outcome.stderr.contains("criswitch.toml:7:8: "),
        "{}",
        outcome.stderr
    );
    assert!(
        outcome
            .stderr
            .ends_with("a reload would be rejected and change nothing\n"),
        "{}",
        outcome.stderr
    );
    assert_eq!(node.info().await["reloads"]["begun"], 0);
    node.end().await;
}

#[tokio::test]
async fn the_json_of_a_dry_run_has_the_changes_and_what_can_be_undone() {
    let node = Node::start("").await;
    node.write("", &node.kata());
    assert_eq!(node.reload().await.code, 0);
    while node.info().await["backends"][1]["pods"] != 0 {
        node.client().pods().await.unwrap();
        node.client().containers().await.unwrap();
    }
    node.write("", "");
    let outcome = dry_run(&node, &["--json"]).await;
    assert_eq!(outcome.code, 2, "{}", outcome.stderr);
    let json: Json = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(
        (&json["wouldChange"], &json["problems"]),
        (&json!(true), &json!([]))
    );
    assert_eq!(json["changes"]["handlersRemoved"], json!(["kata"]));
    assert_eq!(json["changes"]["backendsRemoved"], json!(["kata"]));
    assert_eq!(json["undo"][0]["what"], "handler kata");
    assert_eq!(json["undo"][0]["complete"], true);
    assert_eq!(json["undo"][1]["what"], "backend kata");
    assert_eq!(json["undo"][1]["complete"], false);
    assert_eq!(json["restartProblems"], json!([]));
    node.end().await;
}

/// A daemon of a version without a dry run.
struct Old(String);

#[tonic::async_trait]
impl Admin for Old {
    type WatchStateStream = BoxStream<'static, Result<State, Status>>;

    async fn get_state(&self, _: Request<GetStateRequest>) -> Result<Response<State>, Status> {
        let configuration = Configuration {
            path: self.0.clone(),
            ..Configuration::default()
        };
        Ok(Response::new(State {
            configuration: Some(configuration),
            ..State::default()
        }))
    }

    async fn watch_state(
        &self,
        _: Request<WatchStateRequest>,
    ) -> Result<Response<Self::WatchStateStream>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn reload(&self, _: Request<ReloadRequest>) -> Result<Response<ReloadResponse>, Status> {
        panic!("a dry run must not reload")
    }

    async fn plan_reload(
        &self,
        _: Request<PlanReloadRequest>,
    ) -> Result<Response<PlanReloadResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn forget(&self, _: Request<ForgetRequest>) -> Result<Response<ForgetResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn get_metrics(
        &self,
        _: Request<GetMetricsRequest>,
    ) -> Result<Response<MetricsPage>, Status> {
        Err(Status::unimplemented(""))
    }
}

#[tokio::test]
async fn a_daemon_of_an_earlier_version_is_named_and_not_reloaded() {
    let files = Files::new();
    let socket = files.path("criswitch.sock");
    files.write("criswitch.toml", &format!("listen = {socket:?}"));
    let main = files.main();
    let old = AdminServer::new(Old(text(&main).to_owned()));
    let listener = sockets::bind(&socket);
    let serving = tokio::spawn(async move {
        let stream = sockets::accept(&listener).await.unwrap();
        http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(old))
            .await
    });
    let outcome = run_beside(&["reload", "--dry-run", "--config", text(&main)]).await;
    serving.abort();
    assert_eq!(outcome.code, 1);
    let cause = "the running criswitch is an earlier version that has no dry run";
    assert!(outcome.stderr.contains(cause), "{}", outcome.stderr);
}
