//! Reloads of a changed configuration: by `criswitch reload`, by SIGHUP, and with `watch`.

use std::path::PathBuf;
use std::process::Command;

use expect_test::expect;
use serde_json::Value as Json;
use tempfile::TempDir;
use tonic::Code;

use crate::serve::Daemon;
use crate::support::{Client, PATIENCE, Sim, native};
use crate::{Outcome, run_beside, text};

/// A directory for files and sockets.
pub(crate) struct Files(TempDir);

impl Files {
    pub(crate) fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn main(&self) -> PathBuf {
        self.path("criswitch.toml")
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, native(text)).unwrap();
    }
}

/// A daemon with two runtimes. The configuration has only the first one.
pub(crate) struct Node {
    pub(crate) files: Files,
    pub(crate) old: Sim,
    pub(crate) new: Sim,
    daemon: Daemon,
}

impl Node {
    /// Starts the daemon, and waits until the default backend has answered.
    pub(crate) async fn start(head: &str) -> Node {
        let node = Node::start_as(head, |serve| serve).await;
        let version = criswitch_cri::codec::cri::VersionRequest::default;
        let mut runtime = node.client().runtime();
        let answered = async { while runtime.version(version()).await.is_err() {} };
        let answered = tokio::time::timeout(PATIENCE, answered).await;
        answered.expect("a version");
        node
    }

    /// Like [`Node::start`], but `start` changes the command that starts the daemon.
    pub(crate) async fn start_as(head: &str, start: impl FnOnce(Command) -> Command) -> Node {
        let files = Files::new();
        let sims = ["old", "new"].map(|name| {
            let sim = Sim::new(name).handlers(["runc", "kata"]);
            sim.serve_on(&files.path(&format!("{name}.sock")));
            sim
        });
        let [old, new] = sims;
        let main = Node::table(&files, head, "");
        files.write("criswitch.toml", &main);
        let serve = crate::daemon(text(&files.main()));
        let daemon = Daemon::start_as(start(serve)).await;
        Node {
            files,
            old,
            new,
            daemon,
        }
    }

    fn table(files: &Files, head: &str, rows: &str) -> String {
        let (listen, old) = (files.path("criswitch.sock"), files.path("old.sock"));
        format!(
            "listen = {listen:?}\ndefault_handler = \"runc\"\nstart_wait = \"0s\"\n{head}\n[handlers]\nrunc = {old:?}\n{rows}\n"
        )
    }

    pub(crate) fn write(&self, head: &str, rows: &str) {
        let main = Node::table(&self.files, head, rows);
        self.files.write("criswitch.toml", &main);
    }

    pub(crate) fn kata(&self) -> String {
        format!("kata = {:?}", self.new.socket())
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&self.files.path("criswitch.sock"))
    }

    pub(crate) async fn reload(&self) -> Outcome {
        run_beside(&["reload", "--config", text(&self.files.main())]).await
    }

    /// Sends SIGHUP to the daemon.
    pub(crate) async fn hang_up(&self) {
        let pid = self.info().await["pid"].to_string();
        let kill = Command::new("kill").args(["-s", "HUP", &pid]).status();
        assert!(kill.unwrap().success());
    }

    pub(crate) async fn info(&self) -> Json {
        self.client().state().await
    }

    /// Creates pods of the handler until a reply has the status code `code`.
    pub(crate) async fn until(&self, handler: &str, code: Code) {
        let mut count = 0;
        let reached = async {
            loop {
                count += 1;
                let run = self
                    .client()
                    .run_pod(handler, &format!("pod-{count}"))
                    .await;
                if run.map_or_else(|status| status.code(), |_| Code::Ok) == code {
                    return;
                }
            }
        };
        if tokio::time::timeout(PATIENCE, reached).await.is_err() {
            panic!("never {code:?}: {}", self.info().await);
        }
    }

    /// Ends the daemon and returns its whole log.
    pub(crate) async fn whole_log(self) -> Vec<String> {
        self.daemon.whole_log("TERM").await
    }

    /// Ends the daemon, and returns the files and the exit status of the daemon.
    pub(crate) async fn end_with_files(self) -> (Files, Option<i32>) {
        let ended = self.daemon.ends_after("TERM").await;
        (self.files, ended)
    }

    pub(crate) async fn end(self) {
        assert_eq!(self.daemon.ends_after("TERM").await, Some(0));
        drop((self.old, self.new));
    }
}

#[tokio::test]
async fn the_command_prints_what_has_changed() {
    let node = Node::start("").await;
    node.write("shutdown_timeout = \"3s\"", &node.kata());
    let outcome = node.reload().await;
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    assert_eq!(
        outcome.stdout,
        "handler added: kata\nbackend added: kata\nsettings changed: shutdown_timeout\n"
    );
    node.until("kata", Code::Ok).await;
    node.write("shutdown_timeout = \"3s\"", "");
    let outcome = run_beside(&["reload", "--json", "--config", text(&node.files.main())]).await;
    assert_eq!(outcome.code, 0);
    let json: Json = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(
        json["changes"]["handlersRemoved"],
        serde_json::json!(["kata"])
    );
    assert_eq!(json["changes"]["backendsRetiring"][0]["name"], "kata");
    assert_eq!(node.reload().await.stdout, "nothing changed\n");
    node.end().await;
}

#[tokio::test]
async fn a_change_of_a_key_that_only_a_start_reads_is_not_reported() {
    let node = Node::start("").await;
    let main = std::fs::read_to_string(node.files.main())
        .unwrap()
        .replace("start_wait = \"0s\"", "start_wait = \"1m\"");
    node.files.write("criswitch.toml", &main);
    assert_eq!(node.reload().await.stdout, "nothing changed\n");
    node.write("shutdown_timeout = \"3s\"", "");
    assert_eq!(
        node.reload().await.stdout,
        "settings changed: shutdown_timeout\n"
    );
    node.end().await;
}

#[cfg(unix)] // `user` is an error on Windows.
#[tokio::test]
async fn changed_settings_are_reported_by_name() {
    let node = Node::start("").await;
    let backend = |name: &str, fields: &str| {
        let socket = node.new.socket();
        format!("kata = {name:?}\n[backends]\n{name} = {{ socket = {socket:?}{fields} }}")
    };
    node.write("", &backend("new", ""));
    assert_eq!(node.reload().await.code, 0);
    let head = "list_timeout = \"3s\"\nstats_timeout = \"4s\"\nstale_lists = \"1m\"\nlog.level = \"debug\"";
    node.write(head, &backend("new", ""));
    assert_eq!(
        node.reload().await.stdout,
        "settings changed: list_timeout, stats_timeout, stale_lists, log.level\n"
    );
    let fields =
        ", list_timeout = \"5s\", stats_timeout = \"6s\", auto_register = true, user = \"1000\"";
    node.write(head, &backend("other", fields));
    let shown = node.reload().await.stdout;
    let fields = [
        "name",
        "list_timeout",
        "stats_timeout",
        "auto_register",
        "user",
    ];
    let names = fields
        .map(|field| format!("{field} of backend other"))
        .join(", ");
    assert_eq!(shown, format!("settings changed: {names}\n"));
    node.end().await;
}

#[tokio::test]
async fn a_wrong_configuration_exits_with_78_and_changes_nothing() {
    let node = Node::start("").await;
    node.files.write(
        "criswitch.toml",
        "default_handler = \"runc\"\n[handlers]\nrunc = \"x\"\nkata = 1\n",
    );
    // Without `listen` in the file, the command calls the default socket.
    let outcome = node.reload().await;
    assert_eq!(outcome.code, 69, "{}", outcome.stderr);
    let listen = format!("listen = {:?}\n", node.files.path("criswitch.sock"));
    node.files.write(
        "criswitch.toml",
        &format!("{listen}default = \"runc\"\n[handlers]\nrunc = \"x\"\nkata = 1\n"),
    );
    let outcome = node.reload().await;
    assert_eq!(outcome.code, 78, "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("criswitch.toml:4:8: "),
        "{}",
        outcome.stderr
    );
    assert!(
        outcome.stderr.ends_with("nothing has changed\n"),
        "{}",
        outcome.stderr
    );
    node.until("runc", Code::Ok).await;
    assert_eq!(node.info().await["reloads"]["rejected"], 1);
    node.end().await;
}

#[cfg(unix)] // Windows has no numeric user ids.
#[tokio::test]
async fn a_change_that_needs_a_restart_is_rejected_by_name_with_its_place_and_values() {
    let node = Node::start("allow_uids = [0, 1000]").await;
    node.write("max_message = \"1MiB\"", &node.kata());
    node.files.write(
        "conf.d/a.toml",
        "[log]\nformat = \"json\"\n[metrics]\nlisten = \"[::1]:9199\"\n",
    );
    let outcome = node.reload().await;
    assert_eq!(outcome.code, 78);
    let shown = outcome.stderr.replace(text(&node.files.path("")), "");
    expect![[r#"
        criswitch.toml:4:15: "max_message" cannot change from "16MiB" to "1MiB" without a restart; try the old value, or restart criswitch
        "allow_uids" cannot change from [0, 1000] to [0] without a restart; try the old value, or restart criswitch
        conf.d/a.toml:2:10: "log.format" cannot change from "auto" to "json" without a restart; try the old value, or restart criswitch
        conf.d/a.toml:4:10: "metrics.listen" cannot change from "" to "[::1]:9199" without a restart; try the old value, or restart criswitch
        criswitch: not reloaded: nothing has changed
    "#]].assert_eq(&shown);
    node.until("kata", Code::InvalidArgument).await;
    node.end().await;
}

#[cfg(unix)] // Windows has no signals.
#[tokio::test]
async fn sighup_reloads_the_configuration() {
    let node = Node::start("").await;
    node.write("", &node.kata());
    node.hang_up().await;
    node.until("kata", Code::Ok).await;
    node.end().await;
}

#[tokio::test]
async fn a_drop_in_is_applied_and_removed_automatically_with_watch() {
    let node = Node::start("watch = true\nlog.level = \"debug\"").await;
    node.files.write(
        "conf.d/90-kata.toml",
        &format!("[handlers]\n{}\n", node.kata()),
    );
    node.until("kata", Code::Ok).await;
    std::fs::remove_file(node.files.path("conf.d/90-kata.toml")).unwrap();
    node.until("kata", Code::InvalidArgument).await;
    assert_eq!(node.info().await["reloads"]["count"], 2);
    node.end().await;
}

#[tokio::test]
async fn a_reload_with_a_file_that_the_daemon_does_not_use_is_rejected() {
    let node = Node::start("").await;
    let other = node.files.path("other.toml");
    std::fs::copy(node.files.main(), &other).unwrap();
    let outcome = run_beside(&["reload", "--config", text(&other)]).await;
    assert_eq!(outcome.code, 1);
    assert!(
        outcome
            .stderr
            .contains("the configuration file of the running criswitch is "),
        "{}",
        outcome.stderr
    );
    node.end().await;
}

#[tokio::test]
async fn reload_reports_a_missing_daemon_and_a_different_runtime() {
    let files = Files::new();
    let socket = files.path("runtime.sock");
    files.write("criswitch.toml", &format!("listen = {socket:?}"));
    let outcome = run_beside(&["reload", "--config", text(&files.main())]).await;
    assert_eq!(outcome.code, 69);
    assert!(
        outcome.stderr.contains("check that criswitch is running"),
        "{}",
        outcome.stderr
    );
    let sim = Sim::new("runc");
    sim.serve_on(&socket);
    let outcome = run_beside(&["reload", "--config", text(&files.main())]).await;
    assert_eq!(outcome.code, 69);
    assert!(
        outcome.stderr.contains("not of criswitch"),
        "{}",
        outcome.stderr
    );
}
