//! A reload with another routing table: new pods follow it, and running pods stay on their backends.

#[cfg(unix)]
use std::path::Path;

#[cfg(unix)]
use criswitch_config::{Applies, Config, KEYS, Key, KeyKind};
use criswitch_cri::codec::admin::{Changes, Moved, Retiring};
use criswitch_cri::codec::cri;
use serde_json::Value as Json;
use tonic::Code;

use crate::fanout::silent_default::is_not_ready;
use crate::fanout::status::{condition, status};
use crate::faults::{hang, names, state_of, until_state, wake};
use crate::support::{Rig, Sim};

/// A configuration: the default handler, the rows as `name = backend`, and a line for each of these backends.
pub fn table(default: &str, handlers: &str, backends: &[&str], directory: &str) -> String {
    let backends: String = backends
        .iter()
        .map(|name| format!("{name} = \"{directory}/{name}.sock\"\n"))
        .collect();
    format!(
        "default_handler = {default:?}\nstart_wait = \"0s\"\n[handlers]\n{handlers}\n[backends]\n{backends}"
    )
}

/// `runc` routes to the backend old. The runtime new serves, but is not in the configuration.
pub async fn old_alone() -> Rig {
    let sims = ["old", "new"].map(|name| Sim::new(name).handlers(["runc", "kata"]));
    Rig::with_config(sims, |directory| {
        table("runc", "runc = \"old\"", &["old"], directory)
    })
    .await
}

/// The rows of both handlers.
pub const BOTH: &str = "runc = \"old\"\nkata = \"new\"";

/// Adds the handler kata, which routes to the runtime new.
pub fn add_kata(rig: &Rig) -> Changes {
    reload(rig, "runc", BOTH, &["old", "new"])
}

/// Reloads with another routing table.
pub fn reload(rig: &Rig, default: &str, handlers: &str, backends: &[&str]) -> Changes {
    let outcome = rig.reload(|directory| table(default, handlers, backends, directory));
    outcome
        .result
        .unwrap_or_else(|problems| panic!("{problems:?}"))
}

/// Runs a pod as soon as the handler's backend is ready.
pub async fn run_when_ready(rig: &Rig, handler: &str, name: &str) -> String {
    loop {
        match rig.try_run(handler, name).await {
            Ok(pod) => return pod,
            Err(status) => assert_eq!(status.code(), Code::Unavailable, "{status}"),
        }
    }
}

async fn backends_reported(rig: &Rig) -> Vec<String> {
    let own = rig.state().await;
    let backends = own["backends"].as_array().unwrap().iter();
    backends
        .map(|backend| backend["name"].as_str().unwrap().to_owned())
        .collect()
}

/// The runtime that has the pod.
pub fn owner<'a>(rig: &'a Rig, pod: &str) -> &'a str {
    rig.owner_of(pod).unwrap().name()
}

#[tokio::test]
async fn a_new_handler_takes_pods_and_running_pods_continue() {
    let rig = old_alone().await;
    let (before, container) = rig.run("runc", "before").await;
    let changes = add_kata(&rig);
    assert_eq!(changes.handlers_added, ["kata"]);
    assert_eq!(changes.backends_added, ["new"]);
    let after = run_when_ready(&rig, "kata", "after").await;
    assert_eq!((owner(&rig, &before), owner(&rig, &after)), ("old", "new"));
    assert_eq!(names(&rig.pods().await.unwrap()), ["after", "before"]);
    rig.stop(&container).await.unwrap();
}

#[tokio::test]
async fn a_removed_handler_takes_no_new_pods_and_its_pods_continue() {
    let rig = old_alone().await;
    add_kata(&rig);
    let pod = run_when_ready(&rig, "kata", "web").await;
    let changes = reload(&rig, "runc", "runc = \"old\"", &["old"]);
    assert_eq!(changes.handlers_removed, ["kata"]);
    assert_eq!(
        changes.backends_retiring,
        [Retiring {
            name: "new".into(),
            pods: Some(1),
            containers: Some(0),
            unnamed: true,
        }]
    );
    let rejected = rig.try_run("kata", "late").await.unwrap_err();
    assert_eq!(rejected.code(), Code::InvalidArgument);
    assert!(
        rejected
            .message()
            .starts_with("no runtime for \"kata\" is configured"),
        "{rejected}"
    );
    let container = rig.create(&pod, "web").await;
    rig.start(&container).await.unwrap();
    assert_eq!(names(&rig.pods().await.unwrap()), ["web"]);
}

#[tokio::test]
async fn a_handler_that_moves_routes_new_pods_to_its_new_backend_and_moves_no_running_pod() {
    let rig = old_alone().await;
    let before = rig.run_pod("runc", "before").await;
    let changes = reload(&rig, "runc", "runc = \"new\"", &["old", "new"]);
    let moved = Moved {
        name: "runc".into(),
        from: "old".into(),
        to: "new".into(),
    };
    assert_eq!(changes.handlers_moved, [moved]);
    let after = run_when_ready(&rig, "runc", "after").await;
    // A pod without a handler follows the default row.
    let unnamed = rig.run_pod("", "unnamed").await;
    assert_eq!((owner(&rig, &before), owner(&rig, &after)), ("old", "new"));
    assert_eq!(owner(&rig, &unnamed), "new");
    let old = state_of(&rig, "old").await;
    assert_eq!((&old["retiring"], &old["pods"]), (&true.into(), &1.into()));
    assert_eq!(state_of(&rig, "new").await["retiring"], false);
}

#[tokio::test]
async fn a_backend_that_no_file_names_is_retained_until_it_owns_nothing() {
    let rig = old_alone().await;
    let pod = rig.run_pod("runc", "before").await;
    let (_, container) = (&pod, rig.create(&pod, "web").await);
    reload(&rig, "runc", "runc = \"new\"", &["new"]);
    until_state(&rig, "new", "ready").await;
    assert_eq!(state_of(&rig, "old").await["unnamed"], true);
    assert_eq!(state_of(&rig, "new").await["unnamed"], false);
    rig.remove(&container).await.unwrap();
    assert_eq!(backends_reported(&rig).await, ["new", "old"]);
    rig.stop_pod(&pod).await.unwrap();
    rig.remove_pod(&pod).await.unwrap();
    assert_eq!(backends_reported(&rig).await, ["new"]);
    // The connection to the backend ends with the last call.
    rig.sim("old")
        .until(|journal| journal.connections == 0)
        .await;
}

#[tokio::test]
async fn a_backend_that_owns_nothing_is_removed_at_once() {
    let rig = old_alone().await;
    until_state(&rig, "old", "ready").await;
    let changes = reload(&rig, "runc", "runc = \"new\"", &["new"]);
    assert_eq!(
        (changes.backends_added, changes.backends_removed),
        (vec!["new".into()], vec!["old".into()])
    );
    until_state(&rig, "new", "ready").await;
    assert_eq!(backends_reported(&rig).await, ["new"]);
}

#[tokio::test]
async fn a_backend_with_a_creation_in_flight_is_retained_for_its_pod() {
    let rig = old_alone().await;
    let old = rig.sim("old");
    old.hold("RunPodSandbox");
    let run = rig.try_run("runc", "slow");
    let change = async {
        old.until_held("RunPodSandbox").await;
        let changes = reload(&rig, "runc", "runc = \"new\"", &["new"]);
        assert_eq!(changes.backends_removed, Vec::<String>::new());
        until_state(&rig, "new", "ready").await;
        old.release("RunPodSandbox");
    };
    let (pod, ()) = tokio::join!(run, change);
    // The call uses the routing table of its beginning, so the pod is on the backend old. criswitch knows this pod
    // afterwards.
    let pod = pod.unwrap();
    assert_eq!(owner(&rig, &pod), "old");
    rig.create(&pod, "web").await;
    assert_eq!(names(&rig.pods().await.unwrap()), ["slow"]);
}

#[tokio::test]
async fn a_call_in_flight_at_a_removed_backend_is_not_disturbed() {
    let rig = old_alone().await;
    add_kata(&rig);
    until_state(&rig, "new", "ready").await;
    let new = rig.sim("new");
    new.hold("PullImage");
    let mut images = rig.images();
    let pull = images.pull_image(cri::PullImageRequest {
        image: Some(cri::ImageSpec {
            image: "docker.io/library/busybox".to_owned(),
            runtime_handler: "kata".to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    });
    let change = async {
        new.until_held("PullImage").await;
        let changes = reload(&rig, "runc", "runc = \"old\"", &["old"]);
        assert_eq!(changes.backends_removed, ["new"]);
        assert_eq!(backends_reported(&rig).await, ["old"]);
        new.release("PullImage");
    };
    let (pulled, ()) = tokio::join!(pull, change);
    pulled.unwrap();
}

#[tokio::test]
async fn an_invalid_configuration_changes_nothing_and_is_reported() {
    let rig = old_alone().await;
    let outcome = rig.reload(|directory| {
        format!("default_handler = \"kata\"\n[handlers]\nrunc = \"{directory}/x.sock\"\nfoo = 1")
    });
    let problems = outcome.result.unwrap_err();
    let [first, second] = problems.as_slice() else {
        panic!("{problems:?}");
    };
    assert_eq!((first.line, first.column), (Some(2), Some(19)));
    assert!(second.r#try.is_some(), "{second}");
    rig.run_pod("runc", "web").await;
    let own = rig.state().await;
    assert_eq!(
        own["reloads"]["last"]["problems"],
        serde_json::json!(problems)
    );
    assert_eq!(
        own["configuration"]["problems"],
        serde_json::json!(problems)
    );
    assert_eq!(own["configuration"]["changed"], true);
    assert_eq!(own["reloads"]["last"]["changes"], Json::Null);
    assert_eq!(
        (&own["reloads"]["count"], &own["reloads"]["rejected"]),
        (&1.into(), &1.into())
    );
}

#[cfg(unix)] // The values are for Unix.
#[tokio::test]
async fn keys_that_only_a_restart_can_change_are_rejected_by_name() {
    let rig = old_alone().await;
    let outcome = rig.reload(|directory| {
        let table = table(
            "runc",
            "kata = \"new\"\nrunc = \"old\"",
            &["new", "old"],
            directory,
        );
        format!("max_message = \"17MiB\"\nallow_uids = [0, 7]\n{table}")
    });
    let problems = outcome.result.unwrap_err();
    let named: Vec<_> = problems
        .iter()
        .map(|problem| problem.what.split('"').nth(1).unwrap())
        .collect();
    assert_eq!(named, ["max_message", "allow_uids"]);
    let rejected = rig.try_run("kata", "web").await.unwrap_err();
    assert_eq!(rejected.code(), Code::InvalidArgument);
}

#[cfg(unix)] // Only a test for Unix uses this.
/// A value that differs from the key's default, in the form of the configuration file. `None` for keys that every test
/// sets.
fn other_value(key: &Key) -> Option<&'static str> {
    match (key.name, key.kind) {
        ("listen" | "default_handler", _) => None,
        ("log.level", _) => Some("\"debug\""),
        ("log.format", _) => Some("\"json\""),
        (_, KeyKind::Text(_)) => Some("\"/run/other\""),
        (_, KeyKind::Duration) => Some("\"7s\""),
        (_, KeyKind::Size) => Some("\"17MiB\""),
        (_, KeyKind::Boolean) => Some("true"),
        (_, KeyKind::Users) => Some("[0, 7]"),
        (_, KeyKind::Integer | KeyKind::Table) => None,
    }
}

#[cfg(unix)] // The values are for Unix.
#[tokio::test]
async fn a_changed_key_applies_or_is_rejected_as_the_table_of_keys_says() {
    let rig = old_alone().await;
    let with = |line: &str| {
        let text = |directory: &str| {
            let rest = table("runc", "runc = \"old\"", &["old"], directory).replacen(
                "start_wait = \"0s\"\n",
                "",
                1,
            );
            format!("{line}\n{rest}")
        };
        rig.reload(text).result
    };
    with("").unwrap();
    let minimal = b"default_handler = 'a'\n[handlers]\na = '/run/a.sock'";
    let config = Config::of_texts(&[(Path::new("a.toml"), minimal)]).unwrap();
    let keys = KEYS.iter().filter(|key| key.value(&config).is_some());
    for (key, value) in keys.filter_map(|key| Some((key, other_value(key)?))) {
        let outcome = with(&format!("{} = {value}", key.name));
        match key.applies {
            Applies::Reload => assert_eq!(outcome.unwrap().settings, [key.name]),
            Applies::NextStart => assert_eq!(outcome.unwrap().lines, ["nothing changed"]),
            Applies::Restart => {
                let name = format!("\"{}\" cannot change from ", key.name);
                assert!(outcome.unwrap_err()[0].what.contains(&name), "{name}");
            }
            Applies::Manifests | Applies::Commands => panic!("{}", key.name),
        }
        with("").unwrap();
    }
}

#[tokio::test]
async fn a_new_backend_that_never_answered_affects_no_list_and_takes_pods_once_it_is_ready() {
    let rig = old_alone().await;
    rig.run_pod("runc", "before").await;
    rig.sim("new").stop().await;
    add_kata(&rig);
    assert_eq!(names(&rig.pods().await.unwrap()), ["before"]);
    assert_eq!(state_of(&rig, "new").await["joined"], false);
    let rejected = rig.try_run("kata", "web").await.unwrap_err();
    assert_eq!(rejected.code(), Code::Unavailable);
    assert!(rejected.message().contains("backend \"new\""), "{rejected}");
    rig.sim("new").start();
    run_when_ready(&rig, "kata", "web").await;
    assert_eq!(names(&rig.pods().await.unwrap()), ["before", "web"]);
    // The backend new has answered once, so from now on lists need this backend.
    rig.sim("new").stop().await;
    until_state(&rig, "new", "down").await;
    assert_eq!(state_of(&rig, "new").await["joined"], true);
}

#[tokio::test]
async fn a_new_default_that_never_answered_does_not_answer_for_the_node_yet() {
    let rig = old_alone().await;
    rig.sim("new").stop().await;
    let changes = reload(&rig, "kata", BOTH, &["old", "new"]);
    assert_eq!(changes.default_handler.unwrap().to, "kata");
    let version = rig
        .runtime()
        .version(cri::VersionRequest::default())
        .await
        .unwrap();
    assert_eq!(version.into_inner().runtime_name, "old");
    assert_eq!(
        rig.try_run("", "web").await.unwrap_err().code(),
        Code::Unavailable
    );
    rig.sim("new").start();
    run_when_ready(&rig, "", "web").await;
    let version = rig
        .runtime()
        .version(cri::VersionRequest::default())
        .await
        .unwrap();
    assert_eq!(version.into_inner().runtime_name, "new");
}

#[tokio::test]
async fn after_a_restart_a_new_default_that_never_answered_answers_for_the_node() {
    let mut rig = old_alone().await;
    rig.run_pod("runc", "before").await;
    rig.sim("new").stop().await;
    let handlers = BOTH;
    reload(&rig, "kata", handlers, &["old", "new"]);
    let ready = condition(&status(&rig).await, "RuntimeReady").status;
    assert!(ready, "the earlier default answers for the node");
    rig.restart_switch_with(|directory| table("kata", handlers, &["old", "new"], directory))
        .await;
    until_state(&rig, "old", "ready").await;
    is_not_ready(&status(&rig).await, rig.sim("new"), "cannot connect");
    let version = rig.runtime().version(cri::VersionRequest::default()).await;
    assert_eq!(version.unwrap_err().code(), Code::Unavailable);
    assert_eq!(names(&rig.pods().await.unwrap()), ["before"]);
    rig.run_pod("runc", "after").await;
}

#[tokio::test]
async fn a_reload_of_the_same_configuration_changes_nothing() {
    let rig = old_alone().await;
    let changes = rig.reload_file().result.unwrap();
    let nothing = Changes {
        lines: vec!["nothing changed".to_owned()],
        ..Changes::default()
    };
    assert_eq!(changes, nothing);
}

#[tokio::test]
async fn a_backend_that_hangs_and_owns_pods_is_retained_and_stays_in_lists() {
    let rig = old_alone().await;
    rig.run_pod("runc", "before").await;
    rig.pods().await.unwrap();
    add_kata(&rig);
    until_state(&rig, "new", "ready").await;
    hang(rig.sim("old"));
    reload(&rig, "kata", "kata = \"new\"", &["new"]);
    run_when_ready(&rig, "kata", "after").await;
    assert_eq!(names(&rig.pods().await.unwrap()), ["after", "before"]);
    wake(rig.sim("old"));
}
