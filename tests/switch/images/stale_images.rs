//! Cached images of a backend that does not answer. A client that asks for all images, such as the kubelet for its
//! garbage collection, gets the last list, even if an image was pulled or removed since. A client that asks for one
//! image gets a complete answer or an error.

use criswitch::backend::lists::{Lists, Snapshot};
use criswitch::gate::Readable;
use criswitch::ownership::Owners;
use criswitch_cri::codec::cri;
use criswitch_cri::rpc::List;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::calls::stopped;
use crate::faults::{hung, node, until_state};
use crate::support::{Rig, Sim, image_spec};
use crate::switch::saved_state::is_saved;
use crate::wait;

async fn with_images() -> Rig {
    let sims = ["runc", "kata"].map(|name| Sim::new(name).image(&format!("only-{name}")));
    let rig = node("start_wait = \"0s\"", sims).await;
    list(&rig).await.unwrap();
    rig
}

async fn list(rig: &Rig) -> Result<Vec<cri::Image>, Status> {
    let request = cri::ListImagesRequest::default();
    Ok(rig.images().list_images(request).await?.into_inner().images)
}

/// The listed images with this name.
async fn find(rig: &Rig, image: &str) -> Result<Vec<cri::Image>, Status> {
    let filter = Some(cri::ImageFilter {
        image: Some(image_spec(image)),
    });
    let request = cri::ListImagesRequest { filter };
    Ok(rig.images().list_images(request).await?.into_inner().images)
}

fn at_kata(image: &str) -> Option<cri::ImageSpec> {
    Some(cri::ImageSpec {
        runtime_handler: "kata".to_owned(),
        ..image_spec(image)
    })
}

#[track_caller]
fn is_kata_s(failed: Status) {
    assert_eq!(failed.code(), Code::Unavailable, "{failed}");
    assert!(failed.message().contains("\"kata\""), "{failed}");
}

#[tokio::test]
async fn images_stay_listed_while_a_backend_is_dead_or_hangs() {
    let rig = with_images().await;
    let before = list(&rig).await.unwrap();
    stopped(&rig, "kata").await;
    assert_eq!(list(&rig).await.unwrap(), before);
    let rig = with_images().await;
    hung(&rig, "kata").await;
    assert_eq!(list(&rig).await.unwrap(), before);
}

#[tokio::test]
async fn cached_images_of_a_dead_backend_are_streamed() {
    let rig = with_images().await;
    let before = list(&rig).await.unwrap();
    stopped(&rig, "kata").await;
    let request = cri::StreamImagesRequest::default();
    let mut stream = rig
        .images()
        .stream_images(request)
        .await
        .unwrap()
        .into_inner();
    let mut images = Vec::new();
    while let Some(message) = stream.message().await.unwrap() {
        images.extend(message.images);
    }
    images.sort_by_key(|image| before.iter().position(|known| known.id == image.id));
    assert_eq!(images, before);
}

#[tokio::test]
async fn a_filter_finds_an_image_of_a_dead_backend() {
    let rig = with_images().await;
    let image = rig.sim("kata").images()[0].clone();
    stopped(&rig, "kata").await;
    let names = [&image.id, &image.repo_tags[0], &image.repo_digests[0]];
    for (name, count) in names
        .map(|name| (name.as_str(), 1))
        .into_iter()
        .chain([("no:such", 0)])
    {
        assert_eq!(find(&rig, name).await.unwrap().len(), count, "{name}");
    }
}

#[tokio::test]
async fn images_are_listed_again_after_a_pull_and_after_a_removal() {
    let rig = with_images().await;
    let asked = rig.sim("runc").calls("ListImages").len();
    let pull = cri::PullImageRequest {
        image: at_kata("new"),
        ..Default::default()
    };
    rig.images().pull_image(pull).await.unwrap();
    wait::until(async || is_saved(&rig, "kata", "new")).await;
    is_listed_from_cache(&rig, 3).await;
    let image = at_kata("only-kata");
    let removal = cri::RemoveImageRequest { image };
    rig.images().remove_image(removal).await.unwrap();
    wait::until(async || !is_saved(&rig, "kata", "only-kata")).await;
    is_listed_from_cache(&rig, 2).await;
    // runc's images did not change, so runc received only the two lists above.
    assert_eq!(rig.sim("runc").calls("ListImages").len(), asked + 2);
}

/// Asserts the number of images listed while kata is down.
async fn is_listed_from_cache(rig: &Rig, count: usize) {
    stopped(rig, "kata").await;
    assert_eq!(list(rig).await.unwrap().len(), count);
    rig.sim("kata").start();
    until_state(rig, "kata", "ready").await;
}

#[tokio::test]
async fn after_a_pull_only_a_call_for_all_images_gets_the_cached_list() {
    let rig = with_images().await;
    let before = list(&rig).await.unwrap();
    rig.sim("kata").hold("ListImages");
    let request = cri::PullImageRequest {
        image: at_kata("new"),
        ..Default::default()
    };
    rig.images().pull_image(request).await.unwrap();
    stopped(&rig, "kata").await;
    assert_eq!(list(&rig).await.unwrap(), before);
    is_kata_s(find(&rig, "new").await.unwrap_err());
}

#[tokio::test]
async fn after_a_removal_only_a_call_for_all_images_gets_the_cached_list() {
    for image in [at_kata("only-kata"), Some(image_spec("only-kata"))] {
        let rig = with_images().await;
        let before = list(&rig).await.unwrap();
        rig.sim("kata").hold("ListImages");
        let request = cri::RemoveImageRequest { image };
        rig.images().remove_image(request).await.unwrap();
        stopped(&rig, "kata").await;
        assert_eq!(list(&rig).await.unwrap(), before);
        is_kata_s(find(&rig, "only-kata").await.unwrap_err());
    }
}

/// The kubelet's garbage collection has the id from the same list, and removes every unused image if a removal fails.
#[tokio::test]
async fn after_a_pull_an_image_of_another_store_is_removed_by_its_id_and_no_other() {
    let rig = with_images().await;
    let ids = ["runc", "kata"].map(|name| rig.sim(name).images()[0].id.clone());
    rig.sim("kata").hold("ListImages");
    let request = cri::PullImageRequest {
        image: at_kata("new"),
        ..Default::default()
    };
    rig.images().pull_image(request).await.unwrap();
    stopped(&rig, "kata").await;
    let remove = async |image: &str| {
        let image = Some(image_spec(image));
        let request = cri::RemoveImageRequest { image };
        rig.images().remove_image(request).await
    };
    remove(&ids[0]).await.unwrap();
    assert!(rig.sim("runc").images().is_empty());
    is_kata_s(remove(&ids[1]).await.unwrap_err());
}

#[tokio::test]
async fn after_a_pull_and_a_restart_only_a_call_for_all_images_gets_the_cached_list() {
    let mut rig = with_images().await;
    let before = list(&rig).await.unwrap();
    rig.sim("kata").hold("ListImages");
    let request = cri::PullImageRequest {
        image: at_kata("new"),
        ..Default::default()
    };
    rig.images().pull_image(request).await.unwrap();
    stopped(&rig, "kata").await;
    for _ in 0..2 {
        rig.restart_switch().await;
        assert_eq!(list(&rig).await.unwrap(), before);
        is_kata_s(find(&rig, "new").await.unwrap_err());
    }
}

/// The client cancels the pull after the backend has stored the image.
#[tokio::test]
async fn after_a_pull_with_unknown_result_only_a_call_for_all_images_gets_the_cached_list() {
    for name in ["runc", "kata"] {
        let rig = with_images().await;
        let before = list(&rig).await.unwrap();
        let kata = rig.sim("kata");
        kata.hold_reply("PullImage");
        rig.sim(name).hold("ListImages");
        let request = cri::PullImageRequest {
            image: Some(image_spec("new")),
            ..Default::default()
        };
        let mut images = rig.images();
        tokio::select! {
            pulled = images.pull_image(request) => panic!("{pulled:?}"),
            () = kata.until_done("PullImage") => {}
        }
        kata.until(|journal| journal.cancelled == ["the reply of PullImage"])
            .await;
        stopped(&rig, name).await;
        let listed = list(&rig).await.unwrap();
        assert!(before.iter().all(|it| listed.contains(it)), "{name}");
        let failed = find(&rig, "new").await.unwrap_err();
        assert_eq!(failed.code(), Code::Unavailable, "{name}: {failed}");
    }
}

#[tokio::test]
async fn a_failed_pull_keeps_the_cached_image_list_valid() {
    let rig = with_images().await;
    let before = list(&rig).await.unwrap();
    let rejection = Status::not_found("no such image");
    rig.sim("kata").fail("PullImage", rejection);
    let request = cri::PullImageRequest {
        image: at_kata("new"),
        ..Default::default()
    };
    rig.images().pull_image(request).await.unwrap_err();
    stopped(&rig, "kata").await;
    assert_eq!(list(&rig).await.unwrap(), before);
}

#[tokio::test]
async fn a_list_after_a_pull_is_cached_again() {
    let rig = with_images().await;
    let request = cri::PullImageRequest {
        image: Some(image_spec("new")),
        ..Default::default()
    };
    rig.images().pull_image(request).await.unwrap();
    let before = list(&rig).await.unwrap();
    stopped(&rig, "kata").await;
    assert_eq!(list(&rig).await.unwrap(), before);
}

/// `crictl images` sends a filter with an empty image spec.
#[tokio::test]
async fn a_list_with_crictls_empty_image_spec_is_cached_after_a_pull() {
    let rig = with_images().await;
    let pull = cri::PullImageRequest {
        image: at_kata("new"),
        ..Default::default()
    };
    rig.images().pull_image(pull).await.unwrap();
    let filter = Some(cri::ImageFilter {
        image: Some(cri::ImageSpec::default()),
    });
    let all = cri::ListImagesRequest { filter };
    let before = rig.images().list_images(all).await.unwrap().into_inner();
    stopped(&rig, "kata").await;
    assert_eq!(list(&rig).await.unwrap(), before.images);
}

#[tokio::test(start_paused = true)]
async fn a_list_of_the_same_instant_as_a_pull_may_be_incomplete_and_is_not_cached() {
    let mut lists = Lists::default();
    let mark = Owners::default().mark();
    let asked_now = || Snapshot {
        message: Readable::default(),
        taken: Instant::now(),
        mark,
    };
    lists.outdate(List::Images);
    lists.keep(List::Images, asked_now());
    assert!(lists.get(List::Images).is_none());
    tokio::time::advance(std::time::Duration::from_nanos(1)).await;
    lists.keep(List::Images, asked_now());
    assert!(lists.get(List::Images).is_some());
}
