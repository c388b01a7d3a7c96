//! The time at which the state is written, and the effect on clients if it cannot be written.

use criswitch_cri::codec::cri;
use criswitch_platform::replace::hidden;
use std::fs;
use std::time::Duration;

use tonic::Code;

use crate::calls::{send, stopped, text_of};
use crate::faults::{directly, names, state_of, until_state};
use crate::support::frame_raw;
use crate::switch::saved_state::{
    all, block, lists_fail, restarted_without_kata, state_file, with_pods,
};
use crate::topology::reloads::{add_kata, old_alone};
use crate::wait;

#[tokio::test]
async fn a_stream_ends_with_an_error_if_the_pods_missing_in_it_cannot_be_saved() {
    let (rig, pod, _) = with_pods().await;
    let file = state_file(&rig, "kata");
    fs::remove_file(&file).unwrap();
    fs::create_dir_all(file.join("in the way")).unwrap();
    directly(rig.sim("kata")).remove_pod(&pod).await.unwrap();
    let reply = send(&rig, "StreamPodSandboxes", frame_raw(b"")).await;
    assert_eq!(reply.code(), Code::Unavailable, "{}", reply.text());
    assert!(text_of(&reply).contains("state"), "{}", reply.text());
}

#[tokio::test]
async fn a_creation_is_an_error_if_the_state_can_be_neither_written_nor_removed() {
    let (mut rig, _, container_id) = with_pods().await;
    let file = state_file(&rig, "kata");
    fs::remove_file(&file).unwrap();
    fs::create_dir_all(file.join("in the way")).unwrap();
    let failed = rig.try_run("kata", "new").await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable);
    assert!(failed.message().contains("state"), "{failed}");
    // criswitch knows now that the reply must be an error, so the runtime does not get the call.
    let failed = rig.try_run("kata", "second").await.unwrap_err();
    assert!(failed.message().contains("state"), "{failed}");
    assert_eq!(rig.sim("kata").calls("RunPodSandbox").len(), 2);
    rig.run("runc", "other").await;
    // An `Exec` reply has only a URL. criswitch need not save anything for it, so the call succeeds.
    let exec = cri::ExecRequest {
        container_id,
        ..Default::default()
    };
    rig.runtime().exec(exec).await.unwrap();
    for is_away in [false, true] {
        if is_away {
            stopped(&rig, "kata").await;
        }
        for rpc in ["ListPodSandbox", "ListContainers", "StreamPodSandboxes"] {
            let reply = send(&rig, rpc, frame_raw(b"")).await;
            assert_eq!(reply.code(), Code::Unavailable, "{rpc}");
            assert!(text_of(&reply).contains("state"), "{rpc}: {}", reply.text());
        }
    }
    rig.sim("kata").start();
    fs::remove_dir_all(&file).unwrap();
    wait::until(async || rig.pods().await.is_ok()).await;
    restarted_without_kata(&mut rig).await;
    assert_eq!(
        names(&rig.pods().await.unwrap()),
        ["boxed", "new", "other", "plain"]
    );
}

#[tokio::test]
async fn a_state_that_cannot_be_written_is_removed_and_reported_as_a_problem_of_a_restart() {
    let (mut rig, ..) = with_pods().await;
    assert!(state_of(&rig, "kata").await["restartProblem"].is_null());
    let file = state_file(&rig, "kata");
    fs::create_dir(hidden(&file).unwrap()).unwrap();
    rig.run("kata", "since").await;
    assert!(!file.exists());
    stopped(&rig, "kata").await;
    let shown = state_of(&rig, "kata").await["restartProblem"].to_string();
    assert!(shown.contains("its state cannot be saved"), "{shown}");
    restarted_without_kata(&mut rig).await;
    let shown = state_of(&rig, "kata").await["restartProblem"].to_string();
    assert!(shown.contains("has not been listed yet"), "{shown}");
    lists_fail(&rig).await;
}

/// When the backend goes down, only kept statuses are unsaved, and no list needs them.
#[tokio::test]
async fn a_full_disk_leaves_the_saved_lists_of_a_backend_that_goes_away() {
    let (mut rig, _, container_id) = with_pods().await;
    let request = cri::ContainerStatusRequest {
        container_id,
        verbose: false,
    };
    rig.runtime().container_status(request).await.unwrap();
    let file = state_file(&rig, "kata");
    block(&file);
    stopped(&rig, "kata").await;
    let before = all(&rig).await;
    assert!(file.exists());
    fs::remove_dir_all(hidden(&file).unwrap()).unwrap();
    rig.restart_switch().await;
    assert_eq!(all(&rig).await, before);
}

/// criswitch tries to write again every second. Further changes do not wait for this write.
#[tokio::test]
async fn calls_return_at_once_while_the_state_cannot_be_written() {
    let (rig, ..) = with_pods().await;
    fs::create_dir(hidden(&state_file(&rig, "kata")).unwrap()).unwrap();
    let begun = tokio::time::Instant::now();
    for number in 0..20 {
        rig.run_pod("kata", &format!("since-{number}")).await;
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[cfg(unix)] // Only Unix reports each write of a file.
#[tokio::test]
async fn nothing_is_written_while_nothing_changes() {
    let (rig, ..) = with_pods().await;
    let written = || {
        use std::os::unix::fs::MetadataExt;
        ["runc", "kata"].map(|name| fs::metadata(state_file(&rig, name)).unwrap().ctime_nsec())
    };
    let before = written();
    for _ in 0..20 {
        all(&rig).await;
    }
    assert_eq!(written(), before);
    rig.run("kata", "new").await;
    assert_ne!(written(), before);
}

#[cfg(unix)] // Only Unix reports each write of a file.
#[tokio::test]
async fn streams_of_a_single_backend_write_nothing_while_nothing_changes() {
    let rig = crate::faults::node("start_wait = \"0s\"", [crate::support::Sim::new("runc")]).await;
    rig.run("runc", "web").await;
    let streams = async || {
        for rpc in ["StreamPodSandboxes", "StreamContainers"] {
            let reply = send(&rig, rpc, frame_raw(b"")).await;
            assert_eq!(reply.code(), Code::Ok, "{rpc}: {}", reply.text());
        }
    };
    let written = || {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(state_file(&rig, "runc")).unwrap().ctime_nsec()
    };
    all(&rig).await;
    streams().await;
    let before = written();
    for _ in 0..20 {
        streams().await;
    }
    assert_eq!(written(), before);
}

#[tokio::test]
async fn a_start_that_cannot_write_the_register_uses_the_state_that_it_found() {
    let (mut rig, ..) = with_pods().await;
    let before = all(&rig).await;
    block(&rig.state_directory().join("backends.register"));
    for _ in 0..2 {
        restarted_without_kata(&mut rig).await;
        assert_eq!(all(&rig).await, before);
    }
    rig.run("runc", "new").await;
    assert_eq!(names(&rig.pods().await.unwrap()), ["boxed", "new", "plain"]);
}

#[tokio::test]
async fn a_new_backend_that_cannot_be_registered_makes_no_list_fail() {
    let rig = old_alone().await;
    rig.run_pod("runc", "web").await;
    rig.pods().await.unwrap();
    let register = rig.state_directory().join("backends.register");
    block(&register);
    let aside = rig.state_directory().join("backends.register.bad");
    fs::create_dir_all(aside.join("in the way")).unwrap();
    add_kata(&rig);
    let new = until_state(&rig, "new", "down").await;
    assert!(new["cause"].to_string().contains("its state"), "{new}");
    assert_eq!(names(&rig.pods().await.unwrap()), ["web"]);
    rig.try_run("kata", "boxed").await.unwrap_err();
    assert!(rig.sim("new").calls("RunPodSandbox").is_empty());
    fs::remove_dir_all(hidden(&register).unwrap()).unwrap();
    wait::until(async || rig.try_run("kata", "boxed").await.is_ok()).await;
}

#[tokio::test]
async fn after_a_reboot_lists_and_changes_fail_while_the_old_register_remains() {
    let (mut rig, ..) = with_pods().await;
    let register = rig.state_directory().join("backends.register");
    block(&register);
    let aside = rig.state_directory().join("backends.register.bad");
    fs::create_dir_all(aside.join("in the way")).unwrap();
    rig.boot.id = "second".to_owned();
    rig.restart_switch().await;
    for failed in [
        rig.pods().await.map(drop),
        rig.try_run("runc", "new").await.map(drop),
    ] {
        let failed = failed.unwrap_err();
        assert!(failed.message().contains("state"), "{failed}");
    }
    fs::remove_dir_all(hidden(&register).unwrap()).unwrap();
    wait::until(async || rig.pods().await.is_ok()).await;
    restarted_without_kata(&mut rig).await;
    assert_eq!(names(&rig.pods().await.unwrap()), ["boxed", "plain"]);
}
