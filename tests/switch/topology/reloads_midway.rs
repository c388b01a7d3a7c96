//! A reload while calls are in flight: new backends that are not ready, and calls that wait for a removed backend.

use std::time::Duration;

use criswitch_cri::codec::cri;
use serde_json::Value as Json;
use tonic::{Code, Status};

use crate::faults::{directly, hang, names, state_of, until_state};
use crate::session::events::{listening, next};
use crate::support::clock::later;
use crate::support::{Client, IMAGE, PATIENCE, Rig, Sim};
use crate::topology::reloads::{BOTH, add_kata, old_alone, reload, run_when_ready, table};
use crate::wait::until;

fn pull(handler: &str) -> cri::PullImageRequest {
    cri::PullImageRequest {
        image: Some(cri::ImageSpec {
            image: "docker.io/library/busybox".to_owned(),
            runtime_handler: handler.to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

#[tokio::test]
async fn a_backend_not_listed_since_the_start_is_retained_until_it_is_listed() {
    let mut rig = old_alone().await;
    rig.run_pod("runc", "before").await;
    rig.sim("old").stop().await;
    rig.restart_switch_without_state().await;
    let changes = reload(&rig, "runc", "runc = \"new\"", &["new"]);
    assert_eq!(changes.backends_removed, Vec::<String>::new());
    // criswitch has not listed the backend, so it does not know the number of pods.
    assert_eq!(changes.backends_retiring[0].pods, None);
    let line = "backend retiring: old, whose pods are unknown until criswitch has listed it; backend old is";
    assert!(changes.to_string().contains(line), "{changes}");
    let old = state_of(&rig, "old").await;
    assert_eq!(
        (&old["pods"], &old["containers"]),
        (&Json::Null, &Json::Null)
    );
    run_when_ready(&rig, "runc", "after").await;
    // criswitch does not know the pods of the backend old, so a list would be incomplete and fails.
    let rejected = rig.pods().await.unwrap_err();
    assert_eq!(rejected.code(), Code::Unavailable, "{rejected}");
    rig.sim("old").start();
    let old = until_state(&rig, "old", "ready").await;
    assert_eq!(old["pods"], 1);
    assert_eq!(names(&rig.pods().await.unwrap()), ["after", "before"]);
}

#[tokio::test]
async fn a_call_in_flight_still_asks_a_backend_that_a_reload_removes() {
    let rig = old_alone().await;
    add_kata(&rig);
    until_state(&rig, "new", "ready").await;
    let old = rig.sim("old");
    old.hold("ImageStatus");
    let mut images = rig.images();
    // criswitch sends this call to every backend of the routing table that the call began with.
    let find = images.image_status(cri::ImageStatusRequest {
        image: pull("").image,
        ..Default::default()
    });
    let change = async {
        old.until_held("ImageStatus").await;
        let changes = reload(&rig, "runc", "runc = \"old\"", &["old"]);
        assert_eq!(changes.backends_removed, ["new"]);
        old.release("ImageStatus");
    };
    let both = async { tokio::join!(find, change).0 };
    let found = tokio::time::timeout(PATIENCE, both)
        .await
        .expect("it waits for ever")
        .unwrap();
    assert_eq!(found.into_inner().image, None);
    assert_eq!(rig.sim("new").calls("ImageStatus").len(), 1);
}

#[tokio::test]
async fn a_call_at_a_removed_backend_that_hangs_later_ends_after_a_minute() {
    let rig = old_alone().await;
    add_kata(&rig);
    until_state(&rig, "new", "ready").await;
    let new = rig.sim("new");
    new.hold("PullImage");
    let mut images = rig.images();
    let pulled = images.pull_image(pull("kata"));
    let change = async {
        new.until_held("PullImage").await;
        reload(&rig, "runc", "runc = \"old\"", &["old"]);
        // The probes that follow the removal are answered.
        tokio::time::sleep(Duration::from_secs(10)).await;
        hang(new);
    };
    let both = async { tokio::join!(pulled, change).0 };
    let ended = tokio::time::timeout(PATIENCE * 10, both).await;
    let failed = ended.expect("it waits for ever").unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable, "{failed}");
}

#[tokio::test]
async fn a_pull_without_any_joined_backend_names_the_backend_that_is_down() {
    let rig = old_alone().await;
    rig.run_pod("runc", "before").await;
    rig.sim("new").stop().await;
    reload(&rig, "runc", "runc = \"new\"", &["new"]);
    let rejected = rig.images().pull_image(pull("")).await.unwrap_err();
    assert_eq!(rejected.code(), Code::Unavailable, "{rejected}");
    assert!(rejected.message().contains("backend \"new\""), "{rejected}");
}

#[tokio::test]
async fn a_backend_added_during_update_runtime_config_gets_the_configuration_too() {
    let sims = ["old", "new"].map(|name| Sim::new(name).handlers(["runc", "kata"]));
    let text = |handlers, backends: &[&str], directory: &str| {
        table("runc", handlers, backends, directory).replace("\"0s\"", "\"30s\"")
    };
    let mut rig = Rig::with_config(sims, |directory| {
        text("runc = \"old\"", &["old"], directory)
    })
    .await;
    rig.sim("old").stop().await;
    rig.restart_switch().await;
    let mut runtime = rig.runtime();
    // The call waits for the only backend, which is not ready.
    let shown = runtime.update_runtime_config(cri::UpdateRuntimeConfigRequest::default());
    let new = rig.sim("new");
    let change = async {
        // The reply to this call proves that criswitch has read the `UpdateRuntimeConfig`, which was sent earlier on
        // the same connection.
        rig.try_run("nosuch", "web").await.unwrap_err();
        let outcome = rig.reload(|directory| text(BOTH, &["old", "new"], directory));
        outcome.result.unwrap();
        new.until(|journal| journal.calls_of("RuntimeConfig").count() > 0)
            .await;
        run_when_ready(&rig, "kata", "web").await;
        rig.sim("old").start();
    };
    let (shown, ()) = tokio::join!(shown, change);
    shown.unwrap();
    new.until(|journal| journal.calls_of("UpdateRuntimeConfig").count() > 0)
        .await;
}

#[tokio::test]
async fn a_late_reply_of_a_removed_backend_makes_it_the_owner_of_nothing() {
    let rig = old_alone().await;
    add_kata(&rig);
    let pod = run_when_ready(&rig, "kata", "web").await;
    reload(&rig, "runc", "runc = \"old\"", &["old"]);
    let new = rig.sim("new");
    new.add_image(IMAGE);
    new.hold_reply("CreateContainer");
    let change = async {
        new.until_done("CreateContainer").await;
        rig.remove_pod(&pod).await.unwrap();
        until(async || rig.owner_of(&pod).is_none()).await;
        new.release("CreateContainer");
    };
    let client = Client::new(&rig.socket);
    let (created, ()) = tokio::join!(client.create(&pod, "late"), change);
    let failed = created.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable, "{failed}");
    assert!(rig.containers().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_backend_is_retained_for_a_pod_that_a_failed_run_left() {
    let rig = old_alone().await;
    add_kata(&rig);
    until_state(&rig, "new", "ready").await;
    let new = rig.sim("new");
    new.fail("RunPodSandbox", Status::unknown("no network"));
    rig.try_run("kata", "broken").await.unwrap_err();
    new.heal("RunPodSandbox");
    let left = Client::new(&new.socket()).run_pod("kata", "left").await;
    let changes = reload(&rig, "runc", "runc = \"old\"", &["old"]);
    assert_eq!(changes.backends_removed, Vec::<String>::new());
    assert_eq!(names(&rig.pods().await.unwrap()), ["left"]);
    rig.remove_pod(&left.unwrap()).await.unwrap();
}

#[tokio::test]
async fn the_last_pods_of_a_removed_backend_get_their_deletion_event() {
    let rig = old_alone().await;
    let lost = rig.run_pod("runc", "lost").await;
    add_kata(&rig);
    until_state(&rig, "new", "ready").await;
    let mut events = listening(&rig).await;
    let old = rig.sim("old");
    old.stop().await;
    until_state(&rig, "old", "down").await;
    reload(&rig, "kata", "kata = \"new\"", &["new"]);
    // The backend comes back without its pods, and is then removed.
    old.forget();
    old.start();
    until(async || switch_has(&rig, "old").await == Some(false)).await;
    let event = next(&mut events).await.unwrap();
    assert_eq!(event.container_id, lost);
    assert_eq!(
        event.container_event_type(),
        cri::ContainerEventType::ContainerDeletedEvent
    );
}

#[tokio::test]
async fn a_pod_removal_that_ends_its_backend_still_has_its_event() {
    let rig = old_alone().await;
    let pod = rig.run_pod("runc", "web").await;
    add_kata(&rig);
    until_state(&rig, "new", "ready").await;
    let mut events = listening(&rig).await;
    reload(&rig, "kata", "kata = \"new\"", &["new"]);
    rig.stop_pod(&pod).await.unwrap();
    rig.remove_pod(&pod).await.unwrap();
    until(async || switch_has(&rig, "old").await == Some(false)).await;
    loop {
        let event = next(&mut events).await.unwrap();
        if event.container_event_type() == cri::ContainerEventType::ContainerDeletedEvent {
            assert_eq!(event.container_id, pod);
            return;
        }
    }
}

async fn switch_has(rig: &Rig, name: &str) -> Option<bool> {
    let own = rig.state().await;
    let mut backends = own["backends"].as_array()?.iter();
    Some(backends.any(|backend| backend["name"] == name))
}

#[tokio::test]
async fn a_backend_without_rows_is_kept_over_a_restart_for_a_creation_in_flight() {
    for by_reload in [true, false] {
        let mut rig = old_alone().await;
        add_kata(&rig);
        until_state(&rig, "new", "ready").await;
        let new = rig.sim("new").clone();
        new.hold("RunPodSandbox");
        let client = Client::new(&rig.socket);
        let without = |directory: &str| {
            let table = table("runc", "runc = \"old\"", &["old"], directory);
            format!("shutdown_timeout = \"1s\"\n{table}")
        };
        let restart = async {
            new.until_held("RunPodSandbox").await;
            if by_reload {
                rig.reload(without).result.unwrap();
                rig.restart_switch().await;
            } else {
                rig.restart_switch_with(without).await;
            }
        };
        let (failed, ()) = tokio::join!(client.run_pod("kata", "web"), restart);
        failed.unwrap_err();
        new.release("RunPodSandbox");
        until_state(&rig, "new", "ready").await;
        // A real runtime may complete the call later, although its client has gone.
        let left = directly(&new).run_pod("kata", "web").await.unwrap();
        assert_eq!(names(&rig.pods().await.unwrap()), ["web"]);
        rig.remove_pod(&left).await.unwrap();
        assert_eq!(switch_has(&rig, "new").await, Some(true));
        later(Duration::from_secs(311)).await;
        rig.pods().await.unwrap();
        until(async || switch_has(&rig, "new").await == Some(false)).await;
    }
}

#[tokio::test]
async fn a_creation_that_was_never_sent_retains_no_backend() {
    let rig = old_alone().await;
    add_kata(&rig);
    until_state(&rig, "new", "ready").await;
    rig.sim("new").stop().await;
    until_state(&rig, "new", "down").await;
    let rejected = rig.try_run("kata", "web").await.unwrap_err();
    assert_eq!(rejected.code(), Code::Unavailable);
    let changes = reload(&rig, "runc", "runc = \"old\"", &["old"]);
    assert_eq!(changes.backends_removed, ["new"]);
}

#[tokio::test]
async fn a_new_backend_that_hangs_gets_no_pod() {
    let rig = old_alone().await;
    hang(rig.sim("new"));
    add_kata(&rig);
    let run = rig.try_run("kata", "web");
    let rejected = tokio::time::timeout(PATIENCE, run)
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(rejected.code(), Code::Unavailable, "{rejected}");
    until_state(&rig, "new", "unresponsive").await;
    let rejected = rig.try_run("kata", "web").await.unwrap_err();
    assert!(
        rejected.message().contains("did not answer a probe"),
        "{rejected}"
    );
    assert!(rig.sim("new").calls("RunPodSandbox").is_empty());
}

#[tokio::test]
async fn a_list_is_an_error_while_no_backend_has_joined() {
    let rig = old_alone().await;
    rig.sim("new").stop().await;
    reload(&rig, "kata", "kata = \"new\"", &["new"]);
    until_state(&rig, "new", "down").await;
    assert_eq!(rig.pods().await.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn a_pod_that_a_client_saw_in_a_stream_is_never_missing_in_a_later_list() {
    let rig = old_alone().await;
    until_state(&rig, "old", "ready").await;
    let old = rig.sim("old");
    let direct = Client::new(&old.socket());
    direct.run_pod("runc", "unanswered").await.unwrap();
    let mut runtime = rig.runtime();
    let mut streamed = runtime
        .stream_pod_sandboxes(cri::StreamPodSandboxesRequest::default())
        .await
        .unwrap()
        .into_inner();
    let mut seen = Vec::new();
    while let Some(message) = streamed.message().await.unwrap() {
        seen.extend(message.pod_sandboxes);
    }
    assert_eq!(names(&seen), ["unanswered"]);
    old.hold("ListPodSandbox");
    add_kata(&rig);
    until_state(&rig, "new", "ready").await;
    old.stop().await;
    let rejected = rig.pods().await.unwrap_err();
    assert_eq!(rejected.code(), Code::Unavailable, "{rejected}");
    assert!(rejected.message().contains("\"old\""), "{rejected}");
}
