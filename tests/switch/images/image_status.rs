//! `ImageStatus` calls that name no pod. After a wrong reply the kubelet would run a container as the wrong user.

use std::time::Duration;

use criswitch_cri::codec::cri;
use tonic::{Code, Status};

use crate::calls::{part, stopped};
use crate::faults::{directly, node, until_state};
use crate::kubelet::{Kubelet, asked, forget};
use crate::support::clock::later;
use crate::support::misbehaving::thief;
use crate::support::{Rig, Sim, frame, image_spec};
use crate::wait::until;

const LARGE: usize = 1 << 20;
const APP: &str = "registry.k8s.io/app:1";
/// After the kubelet has found a pod's image, criswitch expects the call for the image's user within this time.
const ASKING: Duration = Duration::from_secs(600);

fn image(id: &str, uid: i64) -> cri::Image {
    cri::Image {
        id: id.to_owned(),
        repo_tags: vec![APP.to_owned()],
        uid: Some(cri::Int64Value { value: uid }),
        ..Default::default()
    }
}

fn of_user(id: &str, username: &str) -> cri::Image {
    cri::Image {
        uid: None,
        username: username.to_owned(),
        ..image(id, 0)
    }
}

/// The time after which the kubelet starts a failed pod again.
const STARTS_OVER: Duration = Duration::from_secs(10);

/// Two stores, which have these images under one name.
async fn stores(runc: cri::Image, kata: cri::Image) -> Rig {
    let sims = [Sim::new("runc").stores(runc), Sim::new("kata").stores(kata)];
    let rig = node("start_wait = \"0s\"", sims).await;
    rig.pods().await.unwrap();
    rig
}

/// The tag moved between two pulls: the user is 1000 in runc's store and root in kata's. One pod on each backend.
async fn moved_tag() -> (Rig, String, String) {
    let rig = stores(image("sha256:11", 1000), image("sha256:22", 0)).await;
    let (web, vm) = (
        rig.run_pod("runc", "web").await,
        rig.run_pod("kata", "vm").await,
    );
    (rig, web, vm)
}

async fn find(rig: &Rig, reference: &str) -> Result<Option<cri::Image>, Status> {
    Kubelet::new(rig).user(reference).await
}

async fn uid(rig: &Rig, reference: &str) -> i64 {
    let image = find(rig, reference).await.unwrap().unwrap();
    image.uid.unwrap().value
}

#[track_caller]
fn differs(found: Result<Option<cri::Image>, Status>) {
    let failed = found.unwrap_err();
    assert_eq!(failed.code(), Code::FailedPrecondition, "{failed}");
    for word in [APP, "\"runc\"", "\"kata\"", "11", "22", "crictl pull"] {
        assert!(failed.message().contains(word), "{failed}");
    }
}

#[tokio::test]
async fn an_image_that_clients_cannot_decode_does_not_answer_for_all_stores() {
    let rig = stores(image("sha256:11", 1000), image("sha256:11", 1000)).await;
    for name in ["runc", "kata"] {
        let other = ["runc", "kata"].into_iter().find(|it| *it != name).unwrap();
        // A tag that is not UTF-8.
        rig.sim(name)
            .append_raw("ImageStatus", b"\x0a\x04\x12\x02\xff\xfe".as_slice());
        rig.sim(other).append_raw("ImageStatus", b"".as_slice());
        assert_eq!(uid(&rig, APP).await, 1000, "{name}");
    }
}

/// Protobuf allows a submessage in several parts, which criswitch joins.
#[tokio::test]
async fn a_copy_of_an_image_counts_in_memory_while_another_store_does_not_answer() {
    let rig = stores(image("sha256:11", 1000), image("sha256:11", 1000)).await;
    let large = part(1, part(100, vec![0; LARGE]));
    rig.sim("runc").append_raw("ImageStatus", large);
    rig.sim("kata").hold("ImageStatus");
    let held = async {
        until(async || rig.held("runc") >= 2 * LARGE).await;
        rig.sim("kata").release("ImageStatus");
    };
    let (found, ()) = tokio::join!(uid(&rig, APP), held);
    assert_eq!(found, 1000);
}

#[tokio::test]
async fn image_status_without_a_pod_returns_the_user_from_the_store_of_the_pod_that_asked_last() {
    let (rig, web, vm) = moved_tag().await;
    let kubelet = Kubelet::new(&rig);
    for (pod, id, user) in [("web", &web, 1000), ("vm", &vm, 0), ("web", &web, 1000)] {
        let found = kubelet.find(pod, APP).await.unwrap().unwrap();
        forget(&rig);
        assert_eq!(uid(&rig, APP).await, user);
        assert_eq!(uid(&rig, &found.id).await, user);
        assert_eq!(asked(&rig, "ImageStatus").len(), 1);
        let made = kubelet.create((id, pod), &found.id, APP).await.unwrap();
        rig.remove(&made).await.unwrap();
    }
}

#[tokio::test]
async fn after_a_pull_for_a_pod_the_user_is_that_in_the_pods_store() {
    let (rig, _, _) = moved_tag().await;
    let kubelet = Kubelet::new(&rig);
    kubelet.pull("vm", APP).await.unwrap();
    assert_eq!(uid(&rig, APP).await, 0);
}

#[tokio::test]
async fn two_pods_that_start_together_with_different_images_fail_and_then_start_one_by_one() {
    let (rig, web, vm) = moved_tag().await;
    let kubelet = Kubelet::new(&rig);
    for pod in ["web", "vm"] {
        kubelet.find(pod, APP).await.unwrap().unwrap();
    }
    differs(find(&rig, APP).await);
    later(STARTS_OVER).await;
    for (pod, id, user) in [("web", web, 1000), ("vm", vm, 0)] {
        let found = kubelet.find(pod, APP).await.unwrap().unwrap();
        assert_eq!(uid(&rig, APP).await, user);
        kubelet.create((&id, pod), &found.id, APP).await.unwrap();
    }
}

/// The first of two pods fails to start. A third pod starts before the kubelet asks for the image's user for the second
/// pod.
#[tokio::test]
async fn a_pod_that_asks_after_another_pod_failed_does_not_get_the_user_of_a_third_pod() {
    let (rig, _, _) = moved_tag().await;
    rig.run_pod("runc", "third").await;
    let kubelet = Kubelet::new(&rig);
    for pod in ["web", "vm"] {
        kubelet.find(pod, APP).await.unwrap().unwrap();
    }
    differs(find(&rig, APP).await);
    kubelet.find("third", APP).await.unwrap().unwrap();
    differs(find(&rig, APP).await);
}

#[tokio::test]
async fn two_pods_that_start_together_with_the_same_image_succeed() {
    let rig = stores(image("sha256:11", 1000), image("11", 1000)).await;
    rig.run_pod("runc", "web").await;
    rig.run_pod("kata", "vm").await;
    let kubelet = Kubelet::new(&rig);
    for pod in ["web", "vm"] {
        kubelet.find(pod, APP).await.unwrap().unwrap();
    }
    assert_eq!(uid(&rig, APP).await, 1000);
}

#[tokio::test]
async fn a_pod_that_starts_no_container_is_forgotten_after_a_while() {
    let (rig, _, _) = moved_tag().await;
    let kubelet = Kubelet::new(&rig);
    kubelet.find("web", APP).await.unwrap().unwrap();
    later(ASKING).await;
    kubelet.find("vm", APP).await.unwrap().unwrap();
    assert_eq!(uid(&rig, APP).await, 0);
}

/// After the kubelet has found a pod's image, a device plugin may delay the call for the image's user by 30 s.
#[tokio::test]
async fn a_pod_that_asks_late_does_not_get_the_user_of_a_later_pod() {
    let (rig, web, vm) = moved_tag().await;
    let kubelet = Kubelet::new(&rig);
    for waited in [11, 300] {
        kubelet.find("web", APP).await.unwrap().unwrap();
        later(Duration::from_secs(waited)).await;
        kubelet.find("vm", APP).await.unwrap().unwrap();
        differs(find(&rig, APP).await);
        later(STARTS_OVER).await;
    }
    for (pod, id, user) in [("vm", vm, 0), ("web", web, 1000)] {
        let found = kubelet.find(pod, APP).await.unwrap().unwrap();
        assert_eq!(uid(&rig, APP).await, user);
        kubelet.create((&id, pod), &found.id, APP).await.unwrap();
    }
}

#[tokio::test]
async fn a_pod_that_asks_late_and_alone_gets_the_user_of_its_own_image() {
    let (rig, _, _) = moved_tag().await;
    Kubelet::new(&rig).find("web", APP).await.unwrap().unwrap();
    later(Duration::from_secs(11)).await;
    assert_eq!(uid(&rig, APP).await, 1000);
    later(ASKING).await;
    differs(find(&rig, APP).await);
}

/// A backend that is down must not make pods of other backends fail.
#[tokio::test]
async fn a_pod_that_starts_again_does_not_fail_because_of_a_pod_whose_backend_is_down() {
    let (rig, _, _) = moved_tag().await;
    let kubelet = Kubelet::new(&rig);
    // This pull invalidates kata's cached list of images.
    kubelet.pull("vm", "other:1").await.unwrap();
    kubelet.find("vm", APP).await.unwrap().unwrap();
    stopped(&rig, "kata").await;
    kubelet.find("web", APP).await.unwrap().unwrap();
    let failed = find(&rig, APP).await.unwrap_err();
    assert!(failed.message().contains("\"kata\""), "{failed}");
    later(STARTS_OVER).await;
    kubelet.find("web", APP).await.unwrap().unwrap();
    assert_eq!(uid(&rig, APP).await, 1000);
}

/// The kubelet adds `:latest` to the image name when it looks up a pod's image, but not when it asks for the image's
/// user.
#[tokio::test]
async fn an_image_name_without_a_tag_means_the_tag_latest() {
    let latest = |id: &str, uid| cri::Image {
        repo_tags: vec!["docker.io/library/app:latest".to_owned()],
        ..image(id, uid)
    };
    let rig = stores(latest("sha256:11", 1000), latest("sha256:22", 0)).await;
    rig.run_pod("kata", "vm").await;
    let kubelet = Kubelet::new(&rig);
    kubelet.find("vm", "app:latest").await.unwrap().unwrap();
    assert_eq!(uid(&rig, "app").await, 0);
}

#[tokio::test]
async fn an_unknown_pod_gets_the_user_that_all_its_stores_agree_on() {
    let rig = stores(image("sha256:11", 1000), image("sha256:11", 1000)).await;
    rig.run_pod("runc", "web").await;
    rig.run_pod("kata", "vm").await;
    let kubelet = Kubelet::new(&rig).restarted();
    kubelet.find("vm", APP).await.unwrap().unwrap();
    assert_eq!(uid(&rig, APP).await, 1000);
}

/// A pod with `imagePullPolicy: Never` does not pull, so criswitch cannot know the pod's store.
#[tokio::test]
async fn an_unknown_pod_that_does_not_pull_gets_no_user_if_images_differ() {
    let (rig, _, _) = moved_tag().await;
    let kubelet = Kubelet::new(&rig).restarted();
    assert_eq!(kubelet.find("vm", APP).await.unwrap(), None);
    kubelet.find("vm", APP).await.unwrap().unwrap();
    differs(find(&rig, APP).await);
}

#[tokio::test]
async fn a_backend_cannot_set_the_user_of_another_backends_pod() {
    let runc = Sim::new("runc").stores(image("sha256:11", 1000));
    let (rig, bad) = Rig::beside_bad(runc, "", thief).await;
    until_state(&rig, "bad", "ready").await;
    bad.misbehave();
    rig.run_pod("runc", "web").await;
    rig.pods().await.unwrap();
    Kubelet::new(&rig).find("web", APP).await.unwrap().unwrap();
    assert_eq!(uid(&rig, APP).await, 1000);
}

#[tokio::test]
async fn without_a_pod_the_reply_of_the_default_backend_is_returned_if_all_stores_agree() {
    for (runc, kata) in [
        (image("sha256:11", 1000), image("sha256:11", 1000)),
        (image("sha256:11", 1000), image("11", 1000)),
        (of_user("11", "app"), of_user("sha256:11", "app")),
    ] {
        let rig = stores(runc, kata).await;
        let request = frame(&cri::ImageStatusRequest {
            image: Some(image_spec(APP)),
            verbose: true,
        });
        let path = "/runtime.v1.ImageService/ImageStatus";
        let reply = rig.raw(path, &[], request).await;
        assert_eq!(reply.body, rig.sim("runc").sent("ImageStatus"));
    }
}

#[tokio::test]
async fn without_a_pod_different_images_of_one_name_are_an_error_that_names_them() {
    for (runc, kata) in [
        (image("sha256:11", 1000), image("sha256:22", 1000)),
        (image("sha256:1122", 1000), image("sha256:1122", 0)),
        (of_user("sha256:1122", "app"), of_user("sha256:1122", "")),
        (of_user("sha256:1122", ""), image("sha256:1122", 0)),
    ] {
        let rig = stores(runc, kata).await;
        differs(find(&rig, APP).await);
    }
}

#[tokio::test]
async fn an_image_that_the_default_lacks_comes_from_the_store_that_has_it() {
    let gvisor = Sim::new("gvisor").stores(image("sha256:11", 7));
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata"), gvisor]).await;
    assert_eq!(uid(&rig, APP).await, 7);
}

#[tokio::test]
async fn the_other_stores_are_asked_if_the_pods_store_has_lost_the_image() {
    let (rig, _, _) = moved_tag().await;
    Kubelet::new(&rig).find("vm", APP).await.unwrap().unwrap();
    let image = Some(image_spec(APP));
    let removed = cri::RemoveImageRequest { image };
    let direct = directly(rig.sim("kata"));
    direct.images().remove_image(removed).await.unwrap();
    assert_eq!(uid(&rig, APP).await, 1000);
}

#[tokio::test]
async fn an_image_is_absent_only_if_every_backend_lacks_it() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata"), Sim::new("gvisor")]).await;
    assert_eq!(find(&rig, APP).await.unwrap(), None);
    for sim in &rig.sims {
        assert_eq!(sim.calls("ImageStatus").len(), 1, "{}", sim.name());
    }
}

#[tokio::test]
async fn an_image_is_not_absent_while_a_backend_does_not_answer() {
    for down in ["runc", "kata"] {
        let rig = Rig::start([Sim::new("runc"), Sim::new("kata"), Sim::new("gvisor")]).await;
        rig.sim(down).stop().await;
        let failed = find(&rig, APP).await.unwrap_err();
        assert_eq!(failed.code(), Code::Unavailable);
        assert!(failed.message().contains(down), "{failed}");
    }
}

#[tokio::test]
async fn an_image_is_not_absent_while_a_backend_fails_image_status() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    rig.sim("kata")
        .fail("ImageStatus", Status::internal("metadata.db is locked"));
    let failed = find(&rig, APP).await.unwrap_err();
    assert_eq!(failed.code(), Code::Internal);
    assert!(failed.message().starts_with("metadata.db is locked"));
    assert!(failed.message().contains("kata"), "{failed}");
}

/// Lists all images, so that each backend has a cached list.
async fn listed(rig: &Rig) {
    let all = cri::ListImagesRequest { filter: None };
    rig.images().list_images(all).await.unwrap();
}

#[tokio::test]
async fn image_status_uses_the_cached_list_of_a_backend_that_is_down() {
    for down in ["runc", "kata"] {
        let gvisor = Sim::new("gvisor").stores(image("sha256:11", 7));
        let rig = Rig::start([Sim::new("runc"), Sim::new("kata"), gvisor]).await;
        listed(&rig).await;
        stopped(&rig, down).await;
        assert_eq!(uid(&rig, APP).await, 7, "{down} is down");
    }
    let rig = stores(image("sha256:11", 1000), image("sha256:22", 0)).await;
    listed(&rig).await;
    stopped(&rig, "runc").await;
    differs(find(&rig, APP).await);
}

#[tokio::test]
async fn a_backend_that_is_down_without_a_cached_list_may_have_another_image() {
    let rig = stores(image("sha256:11", 1000), image("sha256:11", 1000)).await;
    rig.run_pod("runc", "web").await;
    rig.run_pod("kata", "vm").await;
    // This pull invalidates kata's cached list of images.
    Kubelet::new(&rig).pull("vm", "other:1").await.unwrap();
    stopped(&rig, "kata").await;
    let failed = find(&rig, APP).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable, "{failed}");
    assert!(failed.message().contains("\"kata\""), "{failed}");
    // The pod `web` is on runc, so its image status does not need kata.
    Kubelet::new(&rig).find("web", APP).await.unwrap().unwrap();
    assert_eq!(uid(&rig, APP).await, 1000);
}

#[tokio::test]
async fn the_image_of_a_pod_comes_from_cache_when_its_backend_goes_down() {
    let (rig, _, _) = moved_tag().await;
    listed(&rig).await;
    let image = Kubelet::new(&rig).find("vm", APP).await.unwrap();
    stopped(&rig, "kata").await;
    assert_eq!(find(&rig, APP).await.unwrap(), image);
}
