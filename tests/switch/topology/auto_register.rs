//! Handlers that a backend with `auto_register` reports and that have no row.

use std::time::Duration;

use serde_json::{Value as Json, json};
use tonic::Code;

use crate::faults::{status, until_state};
use crate::logged::Logged;
use crate::support::clock::later;
use crate::support::{PATIENCE, Rig, Sim};
use crate::switch::saved_state;
use crate::wait::until;

const PLAIN: &str =
    "default_handler = \"runc\"\nstart_wait = \"0s\"\n[handlers]\nrunc = \"plain\"\n";

/// A backend with `auto_register` that has not reported its handlers after this time counts as absent.
const REPORT_WAIT: Duration = Duration::from_secs(31);

/// The backend `plain` has a row. The other backends have `auto_register`.
async fn node(registering: impl IntoIterator<Item = Sim>, rows: &str) -> Rig {
    let sims: Vec<_> = [Sim::new("plain").handlers(["runc"])]
        .into_iter()
        .chain(registering)
        .collect();
    let names: Vec<_> = sims.iter().map(|sim| sim.name().to_owned()).collect();
    let rig = Rig::with_config(sims, |directory| table(&names, rows, directory)).await;
    for name in &names {
        until_state(&rig, name, "ready").await;
    }
    rig
}

fn table(names: &[String], rows: &str, directory: &str) -> String {
    let backend = |name: &String| match name.as_str() {
        "plain" => format!("plain = \"{directory}/plain.sock\"\n"),
        _ => format!("{name} = {{ socket = \"{directory}/{name}.sock\", auto_register = true }}\n"),
    };
    let backends: String = names.iter().map(backend).collect();
    format!("{PLAIN}{rows}\n[backends]\n{backends}")
}

async fn handlers(rig: &Rig) -> Json {
    let own = rig.state().await;
    let rows = own["handlers"].as_array().unwrap().iter();
    rows.map(|row| json!([row["name"], row["backend"]]))
        .collect()
}

/// Whether the file of a backend contains this automatically registered handler: a string in field 14. The backend's
/// last Status contains it in another field.
fn is_saved(rig: &Rig, name: &str, handler: &str) -> bool {
    let length = char::from(u8::try_from(handler.len()).unwrap());
    saved_state::is_saved(rig, name, &format!("r{length}{handler}"))
}

async fn until_handlers(rig: &Rig, wanted: Json) {
    let reached = async { while handlers(rig).await != wanted {} };
    let reached = tokio::time::timeout(PATIENCE, reached).await;
    reached.unwrap_or_else(|_| panic!("never {wanted}"));
}

fn owner<'a>(rig: &'a Rig, pod: &str) -> &'a str {
    rig.owner_of(pod).unwrap().name()
}

#[tokio::test]
async fn a_reported_handler_without_a_row_is_registered_and_its_origin_shown() {
    let rig = node([Sim::new("vm").handlers(["kata", "kata-qemu"])], "").await;
    assert_eq!(
        handlers(&rig).await,
        json!([["kata", "vm"], ["kata-qemu", "vm"], ["runc", "plain"]])
    );
    let pod = rig.run_pod("kata-qemu", "web").await;
    assert_eq!(owner(&rig, &pod), "vm");
    let shown = status(&rig).await;
    let own = rig.state().await;
    assert_eq!(own["handlers"][0]["origin"], "auto-registered");
    let by_hand = own["handlers"][2]["origin"].as_str().unwrap();
    assert!(by_hand.ends_with("criswitch.toml:5"), "{by_hand}");
    let names: Vec<_> = shown
        .runtime_handlers
        .iter()
        .map(|handler| handler.name.as_str())
        .collect();
    assert_eq!(names, ["", "kata", "kata-qemu", "runc"]);
    // The empty name that vm reports is not registered: it means the default row.
    let pod = rig.run_pod("", "unnamed").await;
    assert_eq!(owner(&rig, &pod), "plain");
}

#[tokio::test]
async fn a_configured_row_takes_precedence_over_a_reported_handler() {
    let rig = node(
        [Sim::new("vm").handlers(["kata", "runc", "odd"])],
        "odd = \"plain\"",
    )
    .await;
    assert_eq!(
        handlers(&rig).await,
        json!([["kata", "vm"], ["odd", "plain"], ["runc", "plain"]])
    );
}

#[tokio::test]
async fn a_handler_name_that_no_runtime_class_can_have_is_not_registered() {
    let rig = node([Sim::new("vm").handlers(["kata", "Kata_Big", "-"])], "").await;
    assert_eq!(
        handlers(&rig).await,
        json!([["kata", "vm"], ["runc", "plain"]])
    );
}

#[tokio::test]
async fn a_handler_that_two_backends_report_is_registered_for_neither_and_logged_once() {
    let log = Logged::here();
    let sims = ["one", "two"].map(|name| Sim::new(name).handlers(["kata", name]));
    let rig = node(sims, "").await;
    assert_eq!(
        handlers(&rig).await,
        json!([["one", "one"], ["runc", "plain"], ["two", "two"]])
    );
    let rejected = rig.try_run("kata", "web").await.unwrap_err();
    assert_eq!(rejected.code(), Code::InvalidArgument);
    status(&rig).await;
    assert_eq!(
        log.lines(&["WARN", "handler=\"kata\"", "one, two"]).len(),
        1,
        "{}",
        log.text()
    );
    // A configured row decides which backend gets the handler.
    let names = ["plain", "one", "two"].map(str::to_owned);
    rig.reload(|directory| table(&names, "kata = \"two\"", directory))
        .result
        .unwrap();
    let pod = rig.run_pod("kata", "web").await;
    assert_eq!(owner(&rig, &pod), "two");
}

#[tokio::test]
async fn a_backend_that_returns_with_other_handlers_gets_these_and_keeps_its_pods() {
    let rig = node([Sim::new("vm").handlers(["kata", "kata-fc"])], "").await;
    let pod = rig.run_pod("kata-fc", "web").await;
    let vm = rig.sim("vm");
    vm.stop().await;
    until_state(&rig, "vm", "down").await;
    // The backend's handlers are still registered while the backend is down.
    assert_eq!(
        rig.try_run("kata", "late").await.unwrap_err().code(),
        Code::Unavailable
    );
    let _ = vm.clone().handlers(["kata", "kata-qemu"]);
    vm.start();
    until_handlers(
        &rig,
        json!([["kata", "vm"], ["kata-qemu", "vm"], ["runc", "plain"]]),
    )
    .await;
    assert_eq!(
        rig.try_run("kata-fc", "late").await.unwrap_err().code(),
        Code::InvalidArgument
    );
    rig.stop_pod(&pod).await.unwrap();
}

#[tokio::test]
async fn handlers_that_a_running_backend_adds_are_registered_with_the_next_status() {
    let rig = node([Sim::new("vm").handlers(["kata"])], "").await;
    let _ = rig.sim("vm").clone().handlers(["kata", "kata-qemu"]);
    until_handlers(
        &rig,
        json!([["kata", "vm"], ["kata-qemu", "vm"], ["runc", "plain"]]),
    )
    .await;
}

#[tokio::test]
async fn a_backend_that_did_not_report_in_time_is_asked_again_without_a_client() {
    let vm = Sim::new("vm").handlers(["kata"]);
    vm.hold("Status");
    let sims = [Sim::new("plain").handlers(["runc"]), vm.clone()];
    let names = ["plain", "vm"].map(str::to_owned);
    let log = Logged::here();
    let rig = Rig::with_config(sims, |directory| table(&names, "", directory)).await;
    until(async || !vm.calls("Status").is_empty()).await;
    later(Duration::from_secs(3)).await;
    until(async || !log.lines(&["backend is ready", "backend=vm"]).is_empty()).await;
    vm.release("Status");
    until(async || rig.try_run("kata", "web").await.is_ok()).await;
}

#[tokio::test]
async fn an_unknown_handler_is_unavailable_while_a_backend_has_never_reported() {
    let vm = Sim::new("vm").handlers(["kata"]);
    let sims = [Sim::new("plain").handlers(["runc"]), vm.clone()];
    let names = ["plain", "vm"].map(str::to_owned);
    let rig = Rig::with_config(sims, |directory| {
        let text = table(&names, "", directory);
        text.replace("/vm.sock", "/elsewhere.sock")
    })
    .await;
    let rejected = rig.try_run("kata", "web").await.unwrap_err();
    assert_eq!(rejected.code(), Code::Unavailable);
    assert!(rejected.message().contains("backend \"vm\""), "{rejected}");
    rig.run_pod("runc", "web").await;
    rig.reload(|directory| table(&names, "", directory))
        .result
        .unwrap();
    until_handlers(&rig, json!([["kata", "vm"], ["runc", "plain"]])).await;
}

#[tokio::test]
async fn a_backend_that_loses_auto_register_keeps_only_its_pods() {
    let rig = node([Sim::new("vm").handlers(["kata"])], "").await;
    rig.run_pod("kata", "web").await;
    let outcome =
        rig.reload(|directory| format!("{PLAIN}[backends]\nplain = \"{directory}/plain.sock\"\n"));
    let changes = outcome.result.unwrap();
    assert_eq!(
        (changes.handlers_removed, changes.backends_retiring[0].pods),
        (vec!["kata".to_owned()], Some(1))
    );
    assert_eq!(
        rig.try_run("kata", "late").await.unwrap_err().code(),
        Code::InvalidArgument
    );
}

/// The backends `weak` and `strong` have `auto_register`, and report `kata`. `strong` does not answer yet.
async fn one_of_two_is_away() -> Rig {
    let sims = ["plain", "weak", "strong"].map(|name| match name {
        "plain" => Sim::new(name).handlers(["runc"]),
        _ => Sim::new(name).handlers(["kata"]),
    });
    sims[2].hold("Version");
    let names: Vec<_> = sims.iter().map(|sim| sim.name().to_owned()).collect();
    let rig = Rig::with_config(sims, |directory| table(&names, "", directory)).await;
    until_state(&rig, "weak", "ready").await;
    rig
}

#[tokio::test]
async fn no_backend_gets_a_handler_before_every_backend_with_auto_register_has_reported() {
    let rig = one_of_two_is_away().await;
    let early = rig.try_run("kata", "web").await.unwrap_err();
    assert_eq!(early.code(), Code::Unavailable, "{early}");
    rig.sim("strong").release("Version");
    until_state(&rig, "strong", "ready").await;
    let rejected = rig.try_run("kata", "web").await.unwrap_err();
    assert_eq!(rejected.code(), Code::InvalidArgument, "{rejected}");
    assert!(rig.sims.iter().all(|sim| sim.pods().is_empty()));
}

#[tokio::test]
async fn a_handler_is_registered_without_waiting_for_an_absent_backend_and_kept_while_its_backend_has_pods()
 {
    let log = Logged::here();
    let rig = one_of_two_is_away().await;
    later(REPORT_WAIT).await;
    until_handlers(&rig, json!([["kata", "weak"], ["runc", "plain"]])).await;
    assert_eq!(log.lines(&["WARN", "has not reported", "strong"]).len(), 1);
    let pod = rig.run_pod("kata", "web").await;
    rig.sim("strong").release("Version");
    until_state(&rig, "strong", "ready").await;
    until(async || !log.lines(&["WARN", "keeper=weak", "strong"]).is_empty()).await;
    let second = rig.run_pod("kata", "second").await;
    assert_eq!((owner(&rig, &pod), owner(&rig, &second)), ("weak", "weak"));
    for pod in [pod, second] {
        rig.remove_pod(&pod).await.unwrap();
    }
    until_handlers(&rig, json!([["runc", "plain"]])).await;
}

#[tokio::test]
async fn a_handler_stays_with_the_backend_that_registered_it_and_runs_pods_after_a_restart() {
    let mut rig = one_of_two_is_away().await;
    later(REPORT_WAIT).await;
    until_handlers(&rig, json!([["kata", "weak"], ["runc", "plain"]])).await;
    let first = rig.run_pod("kata", "first").await;
    // The backends now start in the reverse order.
    rig.sim("weak").stop().await;
    rig.sim("strong").release("Version");
    rig.restart_switch().await;
    until_state(&rig, "strong", "ready").await;
    for wait in [Duration::ZERO, REPORT_WAIT] {
        later(wait).await;
        let failed = rig.try_run("kata", "web").await.unwrap_err();
        assert_eq!(failed.code(), Code::Unavailable, "{failed}");
        assert!(failed.message().contains("backend \"weak\""), "{failed}");
    }
    rig.sim("weak").start();
    until_state(&rig, "weak", "ready").await;
    let second = rig.run_pod("kata", "second").await;
    for pod in [&first, &second] {
        assert_eq!(owner(&rig, pod), "weak");
    }
}

#[tokio::test]
async fn handlers_that_a_backend_lost_or_that_have_a_row_do_not_return_after_a_restart() {
    let sims = [
        Sim::new("vm").handlers(["kata", "kata-fc"]),
        Sim::new("late").handlers(["kata-fc"]),
    ];
    let mut rig = node(sims, "").await;
    let _ = rig.sim("vm").clone().handlers(["kata", "kata-qemu"]);
    let both = json!([
        ["kata", "vm"],
        ["kata-fc", "late"],
        ["kata-qemu", "vm"],
        ["runc", "plain"]
    ]);
    until_handlers(&rig, both.clone()).await;
    until(async || is_saved(&rig, "vm", "kata-qemu") && is_saved(&rig, "late", "kata-fc")).await;
    for name in ["vm", "late"] {
        rig.sim(name).stop().await;
    }
    rig.restart_switch().await;
    assert_eq!(handlers(&rig).await, both);
    let names = ["plain", "vm", "late"].map(str::to_owned);
    rig.restart_switch_with(|directory| table(&names, "kata = \"plain\"", directory))
        .await;
    assert_eq!(
        handlers(&rig).await,
        json!([
            ["kata", "plain"],
            ["kata-fc", "late"],
            ["kata-qemu", "vm"],
            ["runc", "plain"]
        ])
    );
}
