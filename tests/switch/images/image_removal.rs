//! RemoveImage with containerd and CRI-O: removes only the named image, and no image that a container uses.
//!
//! containerd's ids begin with `sha256:`, and containerd also finds an image by the id without this prefix. CRI-O's ids
//! have no prefix, and CRI-O rejects an id with the prefix.

use std::time::Duration;

use criswitch::limits::places::User;
use criswitch_cri::codec::cri;
use futures_util::future::join_all;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::calls::stopped;
use crate::faults::{hung, node};
use crate::kubelet::{Kubelet, asked};
use crate::support::clock::{later, turns};
use crate::support::{ImageIds, RawClient, Rig, Sim, container_config, frame, image_spec};

const APP: &str = "registry.k8s.io/app:1";

fn id(digit: char) -> String {
    digit.to_string().repeat(64)
}

fn image(id: &str) -> cri::Image {
    cri::Image {
        id: id.to_owned(),
        repo_tags: vec![APP.to_owned()],
        ..Default::default()
    }
}

/// containerd and CRI-O. Each has an image with the given id, or no image for `None`.
async fn beside(containerd: Option<&str>, crio: Option<&str>) -> Rig {
    let mut sims = [
        Sim::new("containerd"),
        Sim::new("crio").image_ids(ImageIds::Bare),
    ];
    for (sim, id) in sims.iter_mut().zip([containerd, crio]) {
        if let Some(id) = id {
            *sim = sim.clone().stores(image(id));
        }
    }
    let rig = node("start_wait = \"0s\"\nlist_timeout = \"200ms\"", sims).await;
    rig.pods().await.unwrap();
    listed(&rig).await;
    rig
}

/// Two stores with the image under one name: its id is `sha256:1...` in containerd and `1...` in CRI-O.
async fn in_both() -> Rig {
    beside(Some(&format!("sha256:{}", id('1'))), Some(&id('1'))).await
}

/// Lists the images of all stores, so that criswitch has cached lists afterwards.
async fn listed(rig: &Rig) -> Vec<String> {
    let all = cri::ListImagesRequest { filter: None };
    let images = rig.images().list_images(all).await.unwrap().into_inner();
    images.images.into_iter().map(|image| image.id).collect()
}

async fn remove(rig: &Rig, image: &str) -> Result<(), Status> {
    let image = Some(image_spec(image));
    let request = cri::RemoveImageRequest { image };
    rig.images().remove_image(request).await.map(drop)
}

/// The reply of one store counts for all stores. The store is asked whether it still has the image.
#[tokio::test]
async fn a_malformed_reply_to_a_removal_does_not_reach_the_client() {
    let rig = in_both().await;
    for name in ["containerd", "crio"] {
        let malformed = b"\x0a\x7f".as_slice();
        rig.sim(name).append_raw("RemoveImage", malformed);
    }
    remove(&rig, APP).await.unwrap();
    assert_eq!(listed(&rig).await, [""; 0]);
}

/// The kubelet removes images one after the other, so a store that hangs must not hold it.
#[tokio::test]
async fn an_image_of_one_store_is_removed_while_the_status_of_another_store_hangs() {
    let rig = beside(Some(&format!("sha256:{}", id('1'))), None).await;
    rig.sim("crio").hold("ImageStatus");
    let begun = Instant::now();
    remove(&rig, APP).await.unwrap();
    assert!(
        begun.elapsed() < Duration::from_secs(1),
        "{:?}",
        begun.elapsed()
    );
    assert!(rig.sim("containerd").images().is_empty());
}

/// crictl asks for the version and the file systems before each command, even before a command for a pod of another
/// backend.
#[tokio::test]
async fn the_last_version_and_file_systems_of_a_hung_default_backend_answer_at_once() {
    let rig = beside(None, None).await;
    let ask = async || {
        let version = cri::VersionRequest::default();
        rig.runtime().version(version).await.unwrap();
        let request = cri::ImageFsInfoRequest {};
        let info = rig.images().image_fs_info(request).await.unwrap();
        assert!(!info.into_inner().image_filesystems.is_empty());
    };
    ask().await;
    hung(&rig, "containerd").await;
    let begun = Instant::now();
    ask().await;
    assert!(
        begun.elapsed() < Duration::from_millis(100),
        "{:?}",
        begun.elapsed()
    );
}

async fn find(rig: &Rig, image: &str) -> Option<String> {
    let request = cri::ImageStatusRequest {
        image: Some(image_spec(image)),
        verbose: false,
    };
    let found = rig.images().image_status(request).await.unwrap();
    found.into_inner().image.map(|image| image.id)
}

/// Creates a container of the image on a backend, and returns the container's id.
async fn uses(rig: &Rig, backend: &str, image: &str) -> String {
    let pod = rig.run_pod(backend, "web").await;
    let config = container_config("web", image);
    rig.create_from(&pod, config).await.unwrap()
}

/// The backends that have an image.
fn having(rig: &Rig) -> Vec<&str> {
    let having = rig.sims.iter().filter(|sim| !sim.images().is_empty());
    having.map(Sim::name).collect()
}

/// A list of containers may have `max_message` bytes, and a user may send 1024 calls at once.
#[tokio::test]
async fn removals_at_once_share_a_list_of_containers() {
    let rig = in_both().await;
    let listed = || {
        let calls = rig.sims.iter().map(|sim| sim.calls("ListContainers").len());
        calls.sum::<usize>()
    };
    let before = listed();
    for sim in &rig.sims {
        sim.hold("ListContainers");
    }
    let removed = join_all((0..10).map(|_| remove(&rig, APP)));
    let released = async {
        rig.sim("crio").until_held("ListContainers").await;
        turns(20).await;
        assert_eq!(listed() - before, 2, "one call for each store");
        for sim in &rig.sims {
            sim.release("ListContainers");
        }
    };
    let (removed, ()) = tokio::join!(removed, released);
    assert!(removed.iter().all(Result::is_ok), "{removed:?}");
    assert_eq!(having(&rig), [""; 0]);
    assert!(listed() - before <= 4, "{}", listed() - before);
}

#[tokio::test]
async fn an_id_is_removed_from_the_store_that_lists_exactly_this_id() {
    for (removed, left) in [
        (id('1'), "containerd"),
        (format!("sha256:{}", id('1')), "crio"),
    ] {
        let rig = in_both().await;
        remove(&rig, &removed).await.unwrap();
        assert_eq!(having(&rig), [left], "{removed}");
        assert_eq!(asked(&rig, "RemoveImage").len(), 1);
        // The image of the other store is still listed.
        assert_eq!(listed(&rig).await.len(), 1);
    }
}

/// CRI-O rejects an id with the prefix `sha256:`. criswitch asks CRI-O again with the bare id, so the error does not
/// make the removal fail.
#[tokio::test]
async fn a_store_that_rejects_an_id_is_asked_again_with_its_own_form_of_the_id() {
    let prefixed = format!("sha256:{}", id('1'));
    let crio = Sim::new("crio").image_ids(ImageIds::Bare);
    let rig = Rig::start([
        Sim::new("containerd").stores(image(&prefixed)),
        crio.stores(image(&id('1'))),
    ])
    .await;
    assert_eq!(find(&rig, &prefixed).await, Some(prefixed.clone()));
    remove(&rig, &prefixed).await.unwrap();
    assert_eq!(having(&rig), ["crio"]);
}

/// The kubelet's garbage collection removes an image that CRI-O's containers no longer use.
#[tokio::test]
async fn an_unused_copy_is_removed_while_another_copy_is_in_use() {
    let rig = in_both().await;
    uses(&rig, "containerd", APP).await;
    remove(&rig, &id('1')).await.unwrap();
    assert_eq!(having(&rig), ["containerd"]);
}

#[tokio::test]
async fn a_name_is_removed_from_every_store_where_no_container_uses_the_image() {
    let rig = in_both().await;
    remove(&rig, APP).await.unwrap();
    assert!(having(&rig).is_empty());
    let rig = in_both().await;
    uses(&rig, "crio", APP).await;
    remove(&rig, APP).await.unwrap();
    assert_eq!(having(&rig), ["crio"]);
}

#[tokio::test]
async fn an_image_in_use_is_not_removed_by_any_name() {
    let whole = format!("sha256:{}", id('1'));
    for name in [&*whole, APP, &id('1'), "111111111111"] {
        let rig = beside(Some(&whole), None).await;
        let container = uses(&rig, "containerd", APP).await;
        let failed = remove(&rig, name).await.unwrap_err();
        assert_eq!(failed.code(), Code::FailedPrecondition, "{failed}");
        for word in [name, "\"containerd\"", &container] {
            assert!(failed.message().contains(word), "{failed}");
        }
        assert!(asked(&rig, "RemoveImage").is_empty());
        // A container that has ended still uses its image.
        rig.start(&container).await.unwrap();
        rig.stop(&container).await.unwrap();
        remove(&rig, name).await.unwrap_err();
        rig.remove(&container).await.unwrap();
        remove(&rig, name).await.unwrap();
        assert!(having(&rig).is_empty(), "{name}");
    }
}

#[tokio::test]
async fn a_container_created_without_criswitch_uses_its_image_too() {
    let rig = in_both().await;
    let crio = crate::faults::directly(rig.sim("crio"));
    let pod = crio.run_pod("crio", "web").await.unwrap();
    let config = container_config("web", APP);
    crio.create_from(&pod, config).await.unwrap();
    remove(&rig, &id('1')).await.unwrap_err();
    assert_eq!(having(&rig), ["containerd", "crio"]);
}

#[tokio::test]
async fn an_id_in_another_form_finds_and_removes_the_image_that_a_store_has() {
    let forms = |digit| [id(digit), format!("sha256:{}", id(digit))];
    for (containerd, crio) in [(Some(&*forms('1')[1]), None), (None, Some(&*forms('1')[0]))] {
        let there = containerd.or(crio).unwrap();
        for form in forms('1') {
            let rig = beside(containerd, crio).await;
            // An image that ImageStatus finds can also be removed.
            assert_eq!(find(&rig, &form).await.as_deref(), Some(there), "{form}");
            remove(&rig, &form).await.unwrap();
            assert!(having(&rig).is_empty(), "{form}");
        }
    }
}

#[tokio::test]
async fn an_id_prefix_removes_the_image_from_all_stores_that_have_it() {
    let rig = in_both().await;
    remove(&rig, "1111111111111").await.unwrap();
    assert!(having(&rig).is_empty());
}

#[tokio::test]
async fn an_id_prefix_of_two_images_removes_nothing() {
    let crio = format!("1111{}", &id('2')[4..]);
    let rig = beside(Some(&format!("sha256:{}", id('1'))), Some(&crio)).await;
    let failed = remove(&rig, "1111").await.unwrap_err();
    let text = "Multiple IDs found with provided prefix: 1111";
    assert_eq!(failed.message(), text);
    assert_eq!(having(&rig), ["containerd", "crio"]);
}

#[tokio::test]
async fn an_image_that_no_store_has_counts_as_removed() {
    let rig = in_both().await;
    for name in ["other:1", &id('3'), ""] {
        remove(&rig, name).await.unwrap();
    }
    assert_eq!(having(&rig), ["containerd", "crio"]);
}

#[tokio::test]
async fn an_id_is_removed_while_a_backend_is_down_whose_cached_list_lacks_it() {
    let whole = format!("sha256:{}", id('1'));
    let rig = beside(Some(&whole), None).await;
    stopped(&rig, "crio").await;
    remove(&rig, &whole).await.unwrap();
    let rig = in_both().await;
    hung(&rig, "crio").await;
    let failed = remove(&rig, APP).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable, "{failed}");
    assert_eq!(having(&rig), ["crio"]);
}

#[tokio::test]
async fn another_form_of_an_id_is_not_removed_while_a_backend_may_list_exactly_this_id() {
    let rig = in_both().await;
    stopped(&rig, "crio").await;
    let failed = remove(&rig, &id('1')).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable, "{failed}");
    assert_eq!(having(&rig), ["containerd", "crio"]);
}

#[tokio::test]
async fn no_image_is_removed_from_a_backend_that_cannot_list_its_containers() {
    let rig = in_both().await;
    rig.sim("containerd")
        .fail("ListContainers", Status::internal("busy"));
    let failed = remove(&rig, APP).await.unwrap_err();
    assert!(failed.message().contains("busy"), "{failed}");
    assert_eq!(having(&rig), ["containerd"]);
}

#[tokio::test]
async fn an_id_in_two_stores_is_removed_from_both() {
    let whole = format!("sha256:{}", id('1'));
    let sims = ["runc", "kata"].map(|name| Sim::new(name).stores(image(&whole)));
    let rig = Rig::start(sims).await;
    remove(&rig, &whole).await.unwrap();
    assert!(having(&rig).is_empty());
}

/// The kubelet has one age for each image id. If another store has had the image for long, the kubelet's garbage
/// collection would remove the image although a pod has just pulled it.
#[tokio::test]
async fn an_image_stays_in_the_store_of_each_pod_that_is_about_to_start() {
    let whole = format!("sha256:{}", id('1'));
    for name in [&*whole, &id('1'), APP] {
        let rig = Rig::start(["runc", "kata"].map(|it| Sim::new(it).stores(image(&whole)))).await;
        let pod = rig.run_pod("kata", "vm").await;
        let kubelet = Kubelet::new(&rig);
        kubelet.pull("vm", APP).await.unwrap();
        remove(&rig, name).await.unwrap();
        assert_eq!(having(&rig), ["kata"], "{name}");
        let spared = remove(&rig, name).await.unwrap_err();
        assert_eq!(spared.code(), Code::FailedPrecondition, "{spared}");
        for word in [name, "\"kata\"", "10 minutes"] {
            assert!(spared.message().contains(word), "{spared}");
        }
        let kata = rig.sim("kata");
        kata.hold("CreateContainer");
        let meanwhile = async {
            kata.until_held("CreateContainer").await;
            let spared = remove(&rig, name).await.unwrap_err();
            assert!(spared.message().contains("10 minutes"), "{spared}");
            kata.release("CreateContainer");
        };
        let create = kubelet.create((&pod, "vm"), &whole, APP);
        let container = tokio::join!(create, meanwhile).0.unwrap();
        let in_use = remove(&rig, name).await.unwrap_err();
        assert!(in_use.message().contains(&container), "{in_use}");
        rig.remove(&container).await.unwrap();
        remove(&rig, name).await.unwrap();
        assert!(having(&rig).is_empty(), "{name}");
    }
}

/// criswitch remembers up to 1024 pods that are about to start, so another user's calls could push such a pod out.
#[tokio::test]
async fn calls_of_another_user_for_pods_take_no_image_from_a_pod_that_is_about_to_start() {
    let rig = in_both().await;
    rig.run_pod("containerd", "web").await;
    let kubelet = Kubelet::new(&rig);
    kubelet.find("web", APP).await.unwrap().unwrap();
    let other = RawClient::over(rig.connect_as(User::Other(1000))).await;
    for number in 0..1025 {
        let request = cri::ImageStatusRequest {
            image: Some(cri::ImageSpec {
                annotations: kubelet.config(&format!("pod-{number}")).annotations,
                ..image_spec(APP)
            }),
            verbose: false,
        };
        let path = "/runtime.v1.ImageService/ImageStatus";
        let reply = other.call(path, &[], frame(&request)).await;
        assert_eq!(reply.code(), Code::Ok, "{}", reply.text());
    }
    remove(&rig, APP).await.unwrap();
    assert_eq!(having(&rig), ["containerd"]);
}

#[tokio::test]
async fn an_image_of_a_pod_that_does_not_start_is_removed_after_ten_minutes() {
    let rig = in_both().await;
    rig.run_pod("containerd", "web").await;
    let found = Kubelet::new(&rig)
        .find("web", APP)
        .await
        .unwrap()
        .unwrap()
        .id;
    later(Duration::from_secs(599)).await;
    remove(&rig, &found).await.unwrap_err();
    remove(&rig, APP).await.unwrap();
    assert_eq!(having(&rig), ["containerd"]);
    later(Duration::from_secs(1)).await;
    remove(&rig, &found).await.unwrap();
    assert!(having(&rig).is_empty());
}

/// The kubelet does not remove an image that the list shows as pinned. The list shows this image as not pinned, because
/// one copy is not pinned.
#[tokio::test]
async fn a_pinned_copy_stays_if_another_copy_is_not_pinned() {
    let whole = format!("sha256:{}", id('1'));
    for name in [&*whole, &id('1'), APP] {
        let copy = |pinned| cri::Image {
            pinned,
            ..image(&whole)
        };
        let pins = Sim::new("runc").stores(copy(true));
        let rig = Rig::start([pins, Sim::new("kata").stores(copy(false))]).await;
        remove(&rig, name).await.unwrap();
        assert_eq!(having(&rig), ["runc"], "{name}");
        // crictl removes pinned images too.
        remove(&rig, name).await.unwrap();
        assert!(having(&rig).is_empty(), "{name}");
    }
}

async fn remove_for(rig: &Rig, handler: &str, image: &str) -> Result<(), Status> {
    let image = Some(cri::ImageSpec {
        runtime_handler: handler.to_owned(),
        ..image_spec(image)
    });
    let request = cri::RemoveImageRequest { image };
    rig.images().remove_image(request).await.map(drop)
}

/// containerd also finds its image by CRI-O's form of the id, so a removal by this form must not remove an image in use
/// either.
#[tokio::test]
async fn a_removal_with_a_handler_removes_no_image_in_use() {
    let rig = in_both().await;
    let container = uses(&rig, "containerd", APP).await;
    for name in [&*id('1'), APP] {
        let failed = remove_for(&rig, "containerd", name).await.unwrap_err();
        assert_eq!(failed.code(), Code::FailedPrecondition, "{failed}");
        assert!(failed.message().contains(&container), "{failed}");
    }
    assert_eq!(having(&rig), ["containerd", "crio"]);
    remove_for(&rig, "crio", APP).await.unwrap();
    assert_eq!(having(&rig), ["containerd"]);
    assert_eq!(asked(&rig, "RemoveImage"), ["crio"]);
}

/// With one backend, criswitch does not resolve the image.
#[tokio::test]
async fn a_single_backend_gets_the_removal_unchanged() {
    let rig = Rig::start([Sim::new("runc").image(APP)]).await;
    let pod = rig.run_pod("runc", "web").await;
    let config = container_config("web", APP);
    rig.create_from(&pod, config).await.unwrap();
    remove(&rig, APP).await.unwrap();
    assert!(having(&rig).is_empty());
    assert!(asked(&rig, "ImageStatus").is_empty());
}

/// containerd, and cri-dockerd with an error for the removal of an image that it does not have. Both have the image.
async fn with_docker() -> Rig {
    let whole = format!("sha256:{}", id('1'));
    let sims = ["containerd", "docker"].map(|name| {
        Sim::new(name)
            .stores(image(&whole))
            .set(|settings| settings.rejects_unknown_images = true)
    });
    Rig::start(sims).await
}

#[tokio::test]
async fn two_removals_at_once_succeed() {
    for name in [&*format!("sha256:{}", id('1')), APP, "11111111"] {
        let rig = with_docker().await;
        let docker = rig.sim("docker");
        docker.hold("RemoveImage");
        let both = async { tokio::join!(remove(&rig, name), remove(&rig, name)) };
        let released = async {
            docker.until(|journal| journal.held.len() == 2).await;
            docker.release("RemoveImage");
        };
        let ((one, other), ()) = tokio::join!(both, released);
        assert_eq!(docker.calls("RemoveImage").len(), 2);
        one.and(other).unwrap();
        assert!(having(&rig).is_empty(), "{name}");
    }
}

/// Another client removes the image after criswitch has asked for it and before criswitch removes it.
#[tokio::test]
async fn a_removal_succeeds_after_that_of_another_client() {
    let rig = with_docker().await;
    let docker = rig.sim("docker");
    docker.hold_reply("ImageStatus");
    let others = async {
        docker.until_done("ImageStatus").await;
        let direct = crate::faults::directly(docker);
        let image = Some(image_spec(APP));
        let request = cri::RemoveImageRequest { image };
        direct.images().remove_image(request).await.unwrap();
        docker.release("ImageStatus");
    };
    let (removed, ()) = tokio::join!(remove(&rig, APP), others);
    removed.unwrap();
    assert_eq!(docker.calls("RemoveImage").len(), 2);
    assert!(having(&rig).is_empty());
    remove(&rig, APP).await.unwrap();
}

#[tokio::test]
async fn an_error_counts_if_the_store_still_has_the_image_or_does_not_say_that_it_has_not() {
    let rig = with_docker().await;
    let docker = rig.sim("docker");
    docker.fail("RemoveImage", Status::internal("conflict"));
    let failed = remove(&rig, APP).await.unwrap_err();
    assert_eq!(failed.code(), Code::Internal, "{failed}");
    assert!(failed.message().contains("conflict"), "{failed}");
    assert_eq!(having(&rig), ["docker"]);
    docker.hold("RemoveImage");
    let released = async {
        docker.until_held("RemoveImage").await;
        docker.fail("ImageStatus", Status::unknown("busy"));
        docker.release("RemoveImage");
    };
    let (failed, ()) = tokio::join!(remove(&rig, APP), released);
    let failed = failed.unwrap_err();
    assert!(failed.message().contains("conflict"), "{failed}");
}
