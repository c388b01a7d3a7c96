//! A restart while a backend is down: criswitch still uses the facts that the backend reported last.

use std::fs::File;
use std::time::{Duration, SystemTime};

use criswitch::store::{LastKnown, Store};
use criswitch_config::Directories;
use criswitch_cri::codec::cri;
use serde_json::Value as Json;
use tokio::time::Instant;
use tonic::Status;

use crate::fanout::silent_default::is_not_ready;
use crate::fanout::status::condition;
use crate::faults::{hang, node, status, until_state};
use crate::support::clock::later;
use crate::support::{Rig, Sim};
use crate::switch::saved_state::{all, restarted_without_kata, state_file, with_pods};

async fn runtime_version(rig: &Rig) -> String {
    let request = cri::VersionRequest::default();
    let version = rig.runtime().version(request).await.unwrap();
    version.into_inner().runtime_version
}

/// Stops runc, the default, and restarts criswitch.
async fn restarted_without_default(rig: &mut Rig) {
    rig.sim("runc").stop().await;
    rig.restart_switch().await;
}

#[tokio::test]
async fn after_a_restart_the_node_stays_ready_for_as_long_as_without_one() {
    let (mut rig, ..) = with_pods().await;
    let (before, version) = (status(&rig).await, runtime_version(&rig).await);
    for _ in 0..2 {
        restarted_without_default(&mut rig).await;
        let after = status(&rig).await;
        for name in ["RuntimeReady", "NetworkReady"] {
            assert_eq!(condition(&after, name), condition(&before, name));
        }
        assert_eq!(runtime_version(&rig).await, version);
    }
    later(Duration::from_secs(30)).await;
    is_not_ready(&status(&rig).await, rig.sim("runc"), "");
}

#[tokio::test]
async fn a_default_that_was_down_for_long_before_a_restart_makes_the_node_not_ready() {
    let (mut rig, ..) = with_pods().await;
    rig.sim("runc").stop().await;
    rig.stop_switch().await;
    let file = File::open(state_file(&rig, "runc")).unwrap();
    let answered = SystemTime::now() - Duration::from_secs(45);
    file.set_modified(answered).unwrap();
    rig.restart_switch().await;
    is_not_ready(&status(&rig).await, rig.sim("runc"), "");
}

#[tokio::test]
async fn the_version_of_a_default_that_hangs_takes_about_a_second() {
    let (mut rig, ..) = with_pods().await;
    let version = runtime_version(&rig).await;
    hang(rig.sim("runc"));
    rig.restart_switch().await;
    let begun = Instant::now();
    assert_eq!(runtime_version(&rig).await, version);
    let elapsed = begun.elapsed();
    assert!(elapsed < Duration::from_millis(1500), "{elapsed:?}");
}

#[tokio::test]
async fn after_a_restart_a_backend_that_is_down_keeps_its_features() {
    let (mut rig, ..) = with_pods().await;
    let before = status(&rig).await;
    assert!(before.features.unwrap().supplemental_groups_policy);
    restarted_without_kata(&mut rig).await;
    let after = status(&rig).await;
    assert_eq!(after.features, before.features);
    assert_eq!(after.runtime_handlers, before.runtime_handlers);
}

fn has_labels(state: &Json) -> bool {
    let labels = &state["nodeLabels"]["labels"];
    assert!(labels.get("criswitch.io/handler.runc").is_some(), "{state}");
    labels.get("criswitch.io/handler.kata").is_some()
}

#[tokio::test]
async fn a_backend_that_has_not_answered_since_the_boot_has_no_labels() {
    let (mut rig, ..) = with_pods().await;
    rig.boot.id = "second".to_owned();
    for _ in 0..2 {
        restarted_without_kata(&mut rig).await;
        until_state(&rig, "runc", "ready").await;
        until_state(&rig, "kata", "down").await;
        assert!(!has_labels(&rig.state().await));
    }
    rig.sim("kata").start();
    until_state(&rig, "kata", "ready").await;
    for _ in 0..2 {
        assert!(has_labels(&rig.state().await));
        restarted_without_kata(&mut rig).await;
        until_state(&rig, "runc", "ready").await;
        until_state(&rig, "kata", "down").await;
    }
}

#[tokio::test]
async fn a_runtime_that_is_not_ready_for_long_gets_no_labels_by_a_restart() {
    let sims = [Sim::new("runc"), Sim::new("kata")];
    let _ = sims[1].clone().set(|it| it.conditions[0].status = false);
    let mut rig = node("start_wait = \"0s\"\nlabels_failed_after = \"1m\"", sims).await;
    let are_ready = async |rig: &Rig| {
        until_state(rig, "runc", "ready").await;
        until_state(rig, "kata", "ready").await;
    };
    are_ready(&rig).await;
    assert!(has_labels(&rig.state().await));
    rig.stop_switch().await;
    // The wall clock cannot be paused, so write the state of a backend that has not been ready for longer.
    let state = || rig.state_directory();
    let directories = Directories {
        runtime: state(),
        state: state(),
    };
    let (store, mut found) = Store::open(directories, rig.boot.clone());
    let socket = rig.sim("kata").socket().display().to_string();
    let LastKnown::Saved(mut saved, answered) = found.take(&socket) else {
        panic!("{found:?}")
    };
    *saved.unready_since.as_mut().unwrap() -= 90;
    store.save(*saved, answered).unwrap();
    drop(store);
    for _ in 0..2 {
        rig.restart_switch().await;
        are_ready(&rig).await;
        assert!(!has_labels(&rig.state().await));
    }
}

#[tokio::test]
async fn after_a_restart_a_backend_without_an_image_service_makes_no_image_list_fail() {
    let (mut rig, ..) = with_pods().await;
    let kata = rig.sim("kata");
    kata.fail("ListImages", Status::unimplemented("no image service"));
    rig.restart_switch().await;
    until_state(&rig, "kata", "ready").await;
    let images = all(&rig).await.2;
    for _ in 0..2 {
        restarted_without_kata(&mut rig).await;
        assert_eq!(all(&rig).await.2, images);
    }
}
