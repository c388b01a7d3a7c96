//! Calls without a cached reply wait as long as the backend lives, and fail once a probe shows that it hangs.

use criswitch_cri::codec::cri;
use tonic::{Code, Status};

use crate::faults::{hang, node, status, until_state, wake};
use crate::support::{Rig, Sim};
use crate::wait;

const KEYS: &str = "start_wait = \"0s\"\nlist_timeout = \"200ms\"";

async fn image_fs_info(rig: &Rig) -> Result<Vec<String>, Status> {
    let request = cri::ImageFsInfoRequest {};
    let info = rig.images().image_fs_info(request).await?.into_inner();
    let ids = info.image_filesystems.into_iter().flat_map(|f| f.fs_id);
    Ok(ids.map(|id| id.mountpoint).collect())
}

async fn images(rig: &Rig) -> Result<usize, Status> {
    let request = cri::ListImagesRequest::default();
    Ok(rig
        .images()
        .list_images(request)
        .await?
        .into_inner()
        .images
        .len())
}

/// Asserts that `call` waits for `sim`: a missed `list_timeout` causes a probe, and `call` succeeds only after `sim` is
/// released.
async fn waits<T>(sim: &Sim, rpc: &str, call: impl Future<Output = Result<T, Status>>) -> T {
    let probes = sim.calls("Version").len();
    let release = async {
        sim.until(|journal| journal.held.contains(&rpc.to_owned()))
            .await;
        sim.until(|journal| journal.calls_of("Version").count() > probes + 1)
            .await;
        sim.release(rpc);
    };
    let mut call = std::pin::pin!(call);
    tokio::select! {
        ended = &mut call => panic!("{rpc} did not wait, {}", ended.is_ok()),
        () = release => {}
    }
    call.await.unwrap()
}

#[track_caller]
fn is_hung(failed: &Status, sim: &Sim) {
    assert_eq!(failed.code(), Code::Unavailable, "{failed}");
    for word in [sim.name(), "probe"] {
        assert!(failed.message().contains(word), "{failed}");
    }
}

#[tokio::test]
async fn a_list_of_a_single_backend_waits_for_it() {
    let rig = node(KEYS, [Sim::new("runc")]).await;
    rig.run("runc", "web").await;
    rig.pods().await.unwrap();
    let runc = rig.sim("runc");
    runc.hold("ListPodSandbox");
    assert_eq!(waits(runc, "ListPodSandbox", rig.pods()).await.len(), 1);
}

#[tokio::test]
async fn a_list_that_is_not_cached_yet_waits_for_its_backend() {
    let kata = Sim::new("kata").image("only-kata");
    kata.hold("ListImages");
    let rig = node(KEYS, [Sim::new("runc"), kata]).await;
    assert_eq!(waits(rig.sim("kata"), "ListImages", images(&rig)).await, 1);
}

#[tokio::test]
async fn file_systems_wait_for_a_default_backend_that_has_not_answered_yet_and_for_no_other() {
    let rig = node(KEYS, [Sim::new("runc"), Sim::new("kata")]).await;
    let runc = rig.sim("runc");
    runc.hold("ImageFsInfo");
    let both = waits(runc, "ImageFsInfo", image_fs_info(&rig)).await;
    assert_eq!(both, ["/var/lib/runc", "/var/lib/kata"]);
    rig.sim("kata").hold("ImageFsInfo");
    assert_eq!(image_fs_info(&rig).await.unwrap(), ["/var/lib/runc"]);
    rig.sim("kata").release("ImageFsInfo");
    wait::until(async || image_fs_info(&rig).await.unwrap().len() == 2).await;
}

#[tokio::test]
async fn waiting_calls_fail_when_a_probe_shows_that_the_backend_hangs() {
    let alone = node(KEYS, [Sim::new("runc")]).await;
    let rig = node(KEYS, [Sim::new("runc"), Sim::new("kata")]).await;
    for rig in [&alone, &rig] {
        rig.pods().await.unwrap();
        hang(rig.sim("runc"));
    }
    let (list, info) = tokio::join!(alone.pods(), image_fs_info(&rig));
    is_hung(&list.unwrap_err(), alone.sim("runc"));
    is_hung(&info.unwrap_err(), rig.sim("runc"));
    // Later calls fail at once.
    is_hung(&image_fs_info(&rig).await.unwrap_err(), rig.sim("runc"));
}

#[tokio::test]
async fn a_call_that_changes_a_container_outlasts_a_short_stall_of_its_backend() {
    let rig = node(KEYS, [Sim::new("runc"), Sim::new("kata")]).await;
    let (_, container) = rig.run("kata", "web").await;
    let kata = rig.sim("kata");
    hang(kata);
    let mut stop = std::pin::pin!(rig.stop(&container));
    let proven = async {
        rig.pods().await.ok();
        until_state(&rig, "kata", "unresponsive").await;
    };
    tokio::select! {
        stopped = &mut stop => panic!("it did not wait: {stopped:?}"),
        () = proven => {}
    }
    wake(kata);
    stop.await.unwrap();
    assert_eq!(kata.calls("StopContainer").len(), 1);
}

#[tokio::test]
async fn status_waits_at_most_a_second_for_all_backends_together() {
    let rig = node(KEYS, [Sim::new("runc"), Sim::new("kata")]).await;
    status(&rig).await;
    hang(rig.sim("runc"));
    hang(rig.sim("kata"));
    let begun = tokio::time::Instant::now();
    let shown = status(&rig).await;
    // Status waits one second for both backends together, not one second for each.
    assert!(begun.elapsed() < std::time::Duration::from_millis(1100));
    let message = crate::faults::backends_ready(&shown);
    for name in ["\"runc\"", "\"kata\""] {
        assert!(message.contains(name), "{message}");
    }
}
