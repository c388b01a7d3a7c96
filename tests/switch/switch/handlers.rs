//! Handlers of pods that a backend lists without a handler, as CRI-O does. criswitch remembers the row that created a
//! pod, and asks the backend about other pods.

use std::time::Duration;

use criswitch_cri::codec::cri;
use tonic::Status;

use crate::faults::directly;
use crate::session::events::{listening, next};
use crate::support::{Rig, ShowsHandlers, Sim};
use crate::wait;

/// A runtime that has these handlers, and lists pods without their handlers. The first handler is the default.
fn hiding(handlers: &[&'static str], shows: ShowsHandlers) -> Sim {
    let crio = Sim::new("crio").handlers(handlers.iter().copied());
    crio.set(|settings| settings.shows_handlers = shows)
}

fn crio(handlers: &[&'static str]) -> Sim {
    hiding(handlers, ShowsHandlers::InSpec)
}

/// The runtime `crio`, next to the default containerd, with these rows.
async fn beside_containerd(crio: Sim, rows: &'static str) -> Rig {
    Rig::with_config([Sim::new("runc"), crio], |directory| {
        let rows = rows.replace("CRIO", &format!("{directory}/crio.sock"));
        format!(
            "default_handler = \"runc\"\nstart_wait = \"0s\"\n[handlers]\nrunc = \"{directory}/runc.sock\"\n{rows}"
        )
    })
    .await
}

const ROWS: &str = "default-of-crio = { socket = \"CRIO\", handler = \"\" }\n\
    gvisor = { socket = \"CRIO\", handler = \"runsc\" }\ncrun = \"CRIO\"\n";

/// The names of all pods with their handlers, sorted.
async fn listed(rig: &Rig) -> Vec<(String, String)> {
    let pods = rig.pods().await.unwrap().into_iter();
    let mut named: Vec<_> = pods
        .map(|pod| (pod.metadata.unwrap().name, pod.runtime_handler))
        .collect();
    named.sort();
    named
}

fn pairs(wanted: &[(&str, &str)]) -> Vec<(String, String)> {
    let wanted = wanted.iter();
    wanted
        .map(|(name, handler)| ((*name).to_owned(), (*handler).to_owned()))
        .collect()
}

async fn in_status(rig: &Rig, pod: &str, verbose: bool) -> String {
    let request = cri::PodSandboxStatusRequest {
        pod_sandbox_id: pod.to_owned(),
        verbose,
    };
    let reply = rig.runtime().pod_sandbox_status(request).await.unwrap();
    reply.into_inner().status.unwrap().runtime_handler
}

/// The number of verbose `PodSandboxStatus` calls that the backend has received.
fn asked(sim: &Sim) -> usize {
    let calls = sim.calls("PodSandboxStatus").into_iter();
    let requests = calls.map(|call| call.decode::<cri::PodSandboxStatusRequest>());
    requests.filter(|request| request.verbose).count()
}

#[tokio::test]
async fn a_pod_has_the_row_that_created_it_and_its_backend_is_not_asked() {
    let rig = beside_containerd(crio(&["crun", "runsc"]), ROWS).await;
    let mut created = Vec::new();
    for row in ["default-of-crio", "gvisor", "crun", "runc"] {
        let pod = rig.run_pod(row, &format!("of-{row}")).await;
        assert_eq!(in_status(&rig, &pod, false).await, row);
        created.push((format!("of-{row}"), row.to_owned()));
    }
    created.sort();
    assert_eq!(listed(&rig).await, created);
    assert!(
        rig.sim("crio")
            .pods()
            .iter()
            .all(|pod| pod.runtime_handler.is_empty())
    );
    assert_eq!(asked(rig.sim("crio")), 0);
}

#[tokio::test]
async fn a_pod_created_without_a_handler_has_the_default_row() {
    let rig = Rig::with_config([crio(&["crun"])], |directory| {
        format!("default_handler = \"own\"\n[handlers]\nown = {{ socket = \"{directory}/crio.sock\", handler = \"crun\" }}\n")
    })
    .await;
    let pod = rig.run_pod("", "web").await;
    assert_eq!(listed(&rig).await, pairs(&[("web", "own")]));
    assert_eq!(in_status(&rig, &pod, true).await, "own");
}

/// criswitch maps the handler that the backend reports to a row. The backend's default handler has the row with
/// `handler = ""`. A handler without a row keeps the backend's name.
#[tokio::test]
async fn a_listed_pod_has_the_row_of_the_handler_that_its_backend_reports() {
    let crio = crio(&["crun", "runsc", "odd"]);
    let rig = beside_containerd(crio, ROWS).await;
    let direct = directly(rig.sim("crio"));
    let mut pods = Vec::new();
    for (handler, name) in [("runsc", "a"), ("crun", "b"), ("", "c"), ("odd", "d")] {
        pods.push(direct.run_pod(handler, name).await.unwrap());
    }
    let wanted = pairs(&[
        ("a", "gvisor"),
        ("b", "crun"),
        ("c", "default-of-crio"),
        ("d", "odd"),
    ]);
    wait::until(async || listed(&rig).await == wanted).await;
    assert_eq!(in_status(&rig, &pods[0], false).await, "gvisor");
    lists(&rig, 5).await;
    assert_eq!(asked(rig.sim("crio")), 4, "once each");
}

/// A pod whose handler is unknown must not get the row with `handler = ""`.
#[tokio::test]
async fn a_pod_of_unknown_handler_has_none_and_its_backend_is_asked_at_growing_intervals() {
    let crio = crio(&["crun", "runsc"]);
    crio.fail("PodSandboxStatus", Status::internal("not now"));
    let rig = beside_containerd(crio, ROWS).await;
    let crio = rig.sim("crio");
    directly(crio).run_pod("runsc", "web").await.unwrap();
    for (failures, pause) in [(1, 5), (2, 10), (3, 20)] {
        wait::until(async || {
            assert_eq!(listed(&rig).await, pairs(&[("web", "")]));
            asked(crio) == failures
        })
        .await;
        // When later calls have returned, criswitch has recorded the failure.
        lists(&rig, 3).await;
        later(pause - 1).await;
        lists(&rig, 3).await;
        assert_eq!(asked(crio), failures);
        later(1).await;
    }
    crio.heal("PodSandboxStatus");
    wait::until(async || listed(&rig).await == pairs(&[("web", "gvisor")])).await;
    assert_eq!(asked(crio), 4);
}

async fn lists(rig: &Rig, count: usize) {
    for _ in 0..count {
        listed(rig).await;
    }
}

/// Lets `seconds` pass.
async fn later(seconds: u64) {
    crate::support::clock::later(Duration::from_secs(seconds)).await;
}

#[tokio::test]
async fn a_backend_that_does_not_report_a_handler_is_asked_once() {
    let hiding = hiding(&["crun"], ShowsHandlers::Nowhere);
    let rig = beside_containerd(hiding, ROWS).await;
    let crio = rig.sim("crio");
    directly(crio).run_pod("crun", "web").await.unwrap();
    wait::until(async || {
        assert_eq!(listed(&rig).await, pairs(&[("web", "")]));
        asked(crio) > 0
    })
    .await;
    for _ in 0..5 {
        assert_eq!(listed(&rig).await, pairs(&[("web", "")]));
    }
    assert_eq!(asked(crio), 1);
}

#[tokio::test]
async fn no_list_waits_for_a_late_handler_and_at_most_four_pods_are_asked_for_at_once() {
    let rig = beside_containerd(crio(&["crun"]), ROWS).await;
    let crio = rig.sim("crio");
    crio.hold("PodSandboxStatus");
    let direct = directly(crio);
    for number in 0..10 {
        direct.run_pod("crun", &number.to_string()).await.unwrap();
        let unknown = listed(&rig).await;
        assert!(unknown.iter().all(|(_, handler)| handler.is_empty()));
    }
    crio.until(|journal| journal.held.len() == 4).await;
    listed(&rig).await;
    crio.until(|journal| journal.held.len() == 4).await;
    crio.release("PodSandboxStatus");
    wait::until(async || {
        listed(&rig)
            .await
            .iter()
            .all(|(_, handler)| handler == "crun")
    })
    .await;
    assert_eq!(asked(crio), 10);
}

#[tokio::test]
async fn a_backend_is_asked_again_for_a_pods_handler_if_the_saved_state_is_lost() {
    let mut rig = beside_containerd(crio(&["crun", "runsc"]), ROWS).await;
    rig.run_pod("gvisor", "web").await;
    rig.restart_switch_without_state().await;
    wait::until(async || listed(&rig).await == pairs(&[("web", "gvisor")])).await;
    assert_eq!(asked(rig.sim("crio")), 1);
}

#[tokio::test]
async fn events_and_streams_have_the_rows_name_too() {
    let rig = beside_containerd(crio(&["crun", "runsc"]), ROWS).await;
    let pod = rig.run_pod("gvisor", "web").await;
    let mut events = listening(&rig).await;
    rig.stop_pod(&pod).await.unwrap();
    let event = next(&mut events).await.unwrap();
    assert_eq!(event.pod_sandbox_status.unwrap().runtime_handler, "gvisor");
    assert_eq!(streamed(&rig).await, ["gvisor"]);
}

async fn streamed(rig: &Rig) -> Vec<String> {
    let request = cri::StreamPodSandboxesRequest::default();
    let mut stream = rig
        .runtime()
        .stream_pod_sandboxes(request)
        .await
        .unwrap()
        .into_inner();
    let mut handlers = Vec::new();
    while let Some(message) = stream.message().await.unwrap() {
        let pods = message.pod_sandboxes.into_iter();
        handlers.extend(pods.map(|pod| pod.runtime_handler));
    }
    handlers
}

/// criswitch cannot forward a stream unread if it must add handler names.
#[tokio::test]
async fn streams_of_a_single_backend_have_the_rows_names() {
    let rig = Rig::with_config([crio(&["crun"])], |directory| {
        format!("default_handler = \"crun\"\nstart_wait = \"0s\"\n[handlers]\ncrun = \"{directory}/crio.sock\"\n")
    })
    .await;
    rig.run_pod("crun", "one").await;
    directly(rig.sim("crio")).run_pod("", "two").await.unwrap();
    assert_eq!(streamed(&rig).await, ["crun", ""]);
}

/// A configuration with two rows for one handler of kata, or without the row `gold`.
fn with_gold(directory: &str, gold: bool) -> String {
    let gold = if gold {
        "gold = { backend = \"kata\", handler = \"kata\" }\n"
    } else {
        ""
    };
    format!(
        "default_handler = \"runc\"\nstart_wait = \"0s\"\n[handlers]\nrunc = \"{directory}/runc.sock\"\n\
         {gold}silver = {{ backend = \"kata\", handler = \"kata\" }}\n\
         [backends]\nkata = \"{directory}/kata.sock\"\n"
    )
}

#[tokio::test]
async fn a_created_pod_keeps_its_handler_name_when_a_reload_removes_the_row() {
    let sims = [Sim::new("runc"), Sim::new("kata")];
    let rig = Rig::with_config(sims, |directory| with_gold(directory, true)).await;
    let pod = rig.run_pod("gold", "web").await;
    rig.run_pod("silver", "other").await;
    let reloaded = rig.reload(|directory| with_gold(directory, false));
    assert!(reloaded.result.is_ok());
    let wanted = pairs(&[("other", "silver"), ("web", "gold")]);
    assert_eq!(listed(&rig).await, wanted);
    assert_eq!(in_status(&rig, &pod, false).await, "gold");
    let mut streamed = streamed(&rig).await;
    streamed.sort();
    assert_eq!(streamed, ["gold", "silver"]);
}

/// criswitch did not create this pod, so it does not know a row for the pod and shows the backend's handler name.
#[tokio::test]
async fn a_listed_pod_keeps_its_handler_name_when_a_reload_removes_the_row() {
    let sims = [Sim::new("runc"), Sim::new("kata")];
    let rig = Rig::with_config(sims, |directory| with_gold(directory, true)).await;
    directly(rig.sim("kata"))
        .run_pod("kata", "web")
        .await
        .unwrap();
    assert_eq!(listed(&rig).await, pairs(&[("web", "kata")]));
    let reloaded = rig.reload(|directory| with_gold(directory, false));
    assert!(reloaded.result.is_ok());
    assert_eq!(listed(&rig).await, pairs(&[("web", "kata")]));
}
