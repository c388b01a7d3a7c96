//! criswitch starts before its backends: the first lists wait for the backends, at most `start_wait`.

use std::time::Duration;

use criswitch_cri::codec::cri;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::faults::{backends_ready, names, node, status, text, until_state};
use crate::support::{Rig, Sim};

/// A criswitch that has just started, while no backend runs.
async fn before_its_backends(start_wait: &str) -> Rig {
    let mut rig = node("", [Sim::new("runc"), Sim::new("kata")]).await;
    rig.run("runc", "plain").await;
    rig.run("kata", "boxed").await;
    for sim in &rig.sims {
        sim.stop().await;
        crate::support::sockets::remove(&sim.socket());
    }
    let (keys, sims) = (format!("start_wait = {start_wait:?}"), rig.sims.clone());
    let state = rig.state_directory();
    rig.restart_switch_with(|directory| {
        // Remove the saved state, as if criswitch had never run on this node.
        std::fs::remove_dir_all(state).unwrap();
        text(&keys, &sims, directory)
    })
    .await;
    rig
}

async fn version(rig: &Rig) -> Result<String, Status> {
    let request = cri::VersionRequest::default();
    let version = rig.runtime().version(request).await?;
    Ok(version.into_inner().runtime_name)
}

async fn first_file_system(rig: &Rig) -> Result<String, Status> {
    let request = cri::ImageFsInfoRequest {};
    let info = rig.images().image_fs_info(request).await?;
    let first = info.into_inner().image_filesystems.into_iter().next();
    Ok(first.unwrap().fs_id.unwrap().mountpoint)
}

async fn driver(rig: &Rig) -> Result<(), Status> {
    let request = cri::RuntimeConfigRequest {};
    rig.runtime().runtime_config(request).await.map(drop)
}

/// Lists pods and containers, concurrently.
async fn first_lists(rig: &Rig) {
    let (pods, containers) = tokio::join!(rig.pods(), rig.containers());
    assert_eq!(names(&pods.unwrap()), ["boxed", "plain"]);
    assert_eq!(containers.unwrap().len(), 2);
}

#[tokio::test]
async fn calls_answered_by_the_default_backend_wait_for_it_alone() {
    let rig = before_its_backends("1h").await;
    let answers = async {
        let (version, info, driver, status) = tokio::join!(
            version(&rig),
            first_file_system(&rig),
            driver(&rig),
            status(&rig),
        );
        assert_eq!(version.unwrap(), "runc");
        assert_eq!(info.unwrap(), "/var/lib/runc");
        driver.unwrap();
        assert!(backends_ready(&status).contains("\"kata\""));
    };
    tokio::join!(answers, async { rig.sim("runc").start() });
}

#[tokio::test]
async fn the_first_lists_wait_for_backends_that_start_later_in_any_order() {
    for order in [["runc", "kata"], ["kata", "runc"]] {
        let rig = before_its_backends("30s").await;
        let mut first = std::pin::pin!(first_lists(&rig));
        for name in order {
            // This call waits for no backend, so its reply shows that criswitch serves. A list that does not wait for
            // its backends would have returned before this reply.
            let at_once = (*rig).run_pod(name, "early");
            tokio::select! {
                () = &mut first => panic!("answered before {name} was there"),
                failed = at_once => assert_eq!(failed.unwrap_err().code(), Code::Unavailable),
            }
            rig.sim(name).start();
            if name == order[0] {
                tokio::select! {
                    () = &mut first => panic!("answered with {name} alone"),
                    () = started(rig.sim(name)) => {}
                }
            }
        }
        first.await;
    }
}

#[tokio::test]
async fn a_first_list_has_the_pods_of_a_backend_that_a_reload_adds_while_it_waits() {
    let keys = "start_wait = \"1h\"";
    let mut rig = node("", ["runc", "kata", "new"].map(Sim::new)).await;
    rig.run("runc", "plain").await;
    rig.run("kata", "boxed").await;
    rig.run("new", "late").await;
    rig.sim("kata").stop().await;
    let (sims, state) = (rig.sims.clone(), rig.state_directory());
    rig.restart_switch_with(|directory| {
        std::fs::remove_dir_all(state).unwrap();
        text(keys, &sims[..2], directory)
    })
    .await;
    let mut first = std::pin::pin!(rig.pods());
    tokio::select! {
        _ = &mut first => panic!("answered without kata"),
        () = started(rig.sim("runc")) => {}
    }
    let added = started(rig.sim("new"));
    let outcome = rig.reload(|directory| text(keys, &sims, directory));
    outcome.result.unwrap();
    tokio::select! {
        _ = &mut first => panic!("answered without kata"),
        () = added => {}
    }
    rig.sim("kata").start();
    assert_eq!(names(&first.await.unwrap()), ["boxed", "late", "plain"]);
}

/// Waits until criswitch has listed the runtime. criswitch lists images last.
async fn started(sim: &Sim) {
    let lists = sim.calls("ListImages").len();
    sim.until(|journal| journal.calls_of("ListImages").count() > lists)
        .await;
}

#[tokio::test]
async fn after_start_wait_only_calls_that_need_an_absent_backend_fail() {
    let rig = before_its_backends("500ms").await;
    rig.sim("runc").start();
    let begun = Instant::now();
    let (version, info, driver, pods, status) = tokio::join!(
        version(&rig),
        first_file_system(&rig),
        driver(&rig),
        rig.pods(),
        status(&rig),
    );
    assert!(begun.elapsed() < Duration::from_secs(3));
    assert_eq!(version.unwrap(), "runc");
    assert_eq!(info.unwrap(), "/var/lib/runc");
    driver.unwrap();
    // kata was never listed, so it has no cached list.
    let failed = pods.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable);
    assert!(failed.message().contains("\"kata\""), "{failed}");
    assert!(backends_ready(&status).contains("\"kata\""));
    let begun = Instant::now();
    rig.pods().await.unwrap_err();
    assert!(
        begun.elapsed() < Duration::from_millis(400),
        "it waits again"
    );
}

#[tokio::test]
async fn after_start_wait_calls_that_need_an_absent_default_fail_with_its_name() {
    let rig = before_its_backends("300ms").await;
    rig.sim("kata").start();
    for failed in [
        version(&rig).await.unwrap_err(),
        first_file_system(&rig).await.unwrap_err(),
        driver(&rig).await.unwrap_err(),
    ] {
        assert_eq!(failed.code(), Code::Unavailable, "{failed}");
        assert!(failed.message().contains("\"runc\""), "{failed}");
    }
}

#[tokio::test]
async fn only_the_first_lists_wait() {
    let rig = before_its_backends("1h").await;
    for sim in &rig.sims {
        sim.start();
    }
    first_lists(&rig).await;
    rig.sim("kata").stop().await;
    // Every backend was ready once, so a dead backend is served from cache without a wait.
    assert_eq!(names(&rig.pods().await.unwrap()), ["boxed", "plain"]);
    rig.sim("runc").stop().await;
    assert_eq!(driver(&rig).await.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn a_pod_runs_on_a_ready_backend_while_others_are_still_down_after_the_start() {
    let rig = before_its_backends("1h").await;
    rig.sim("runc").start();
    until_running(&rig).await;
    rig.sim("kata").start();
    until_state(&rig, "kata", "ready").await;
}

#[tokio::test]
async fn the_first_lists_do_not_wait_for_a_backend_that_a_reload_removes() {
    let sims = ["runc", "kata"].map(Sim::new);
    let [runc, kata] = &sims;
    runc.hold("ListPodSandbox");
    kata.hold("RuntimeConfig");
    let keys = "start_wait = \"1h\"";
    let rig = node(keys, sims.clone()).await;
    let change = async {
        // This call is sent after the list, on the same connection. When the call returns, criswitch has received the
        // list.
        rig.try_run("nosuch", "web").await.unwrap_err();
        kata.until_held("RuntimeConfig").await;
        let begun = Instant::now();
        let outcome = rig.reload(|directory| text(keys, &sims[..1], directory));
        assert_eq!(outcome.result.unwrap().backends_removed, ["kata"]);
        runc.release("ListPodSandbox");
        begun
    };
    let (pods, begun) = tokio::join!(rig.pods(), change);
    assert!(begun.elapsed() < Duration::from_secs(1));
    pods.unwrap();
}

async fn until_running(rig: &Rig) {
    crate::wait::until(async || (**rig).run_pod("runc", "first").await.is_ok()).await;
}
