//! ListImages over several image stores: one entry for each image, nothing lost.

use criswitch_cri::codec::cri;
use futures_util::{StreamExt, TryStreamExt};
use tonic::{Code, Status};

use crate::support::{RawClient, Rig, Sim, frame_raw, image_spec};

const LIST_IMAGES: &str = "/runtime.v1.ImageService/ListImages";

fn image(id: &str, tags: &[&str], digests: &[&str]) -> cri::Image {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    cri::Image {
        id: id.to_owned(),
        repo_tags: owned(tags),
        repo_digests: owned(digests),
        size: 1,
        ..Default::default()
    }
}

async fn list(rig: &Rig, filter: Option<cri::ImageSpec>) -> Result<Vec<cri::Image>, Status> {
    let filter = filter.map(|image| cri::ImageFilter { image: Some(image) });
    let request = cri::ListImagesRequest { filter };
    Ok(rig.images().list_images(request).await?.into_inner().images)
}

async fn all(rig: &Rig) -> Vec<cri::Image> {
    list(rig, None).await.unwrap()
}

#[tokio::test]
async fn the_images_of_every_backend_are_listed_with_the_default_backend_first() {
    let runc = Sim::new("runc").stores(image("sha256:b", &["b:1"], &[]));
    let kata = Sim::new("kata").stores(image("a", &["a:1"], &[]));
    let images = all(&Rig::start([runc, kata]).await).await;
    let ids: Vec<_> = images.iter().map(|image| image.id.as_str()).collect();
    assert_eq!(ids, ["sha256:b", "a"]);
}

#[tokio::test]
async fn an_image_of_several_backends_is_one_entry_with_all_names() {
    let runc = image("sha256:1", &["app:1", "app:latest"], &["app@sha256:d1"]);
    let kata = image("sha256:1", &["app:1", "app:2"], &["app@sha256:d1"]);
    let gvisor = image("sha256:1", &[], &["other@sha256:d2"]);
    let images = all(&Rig::start([
        Sim::new("runc").stores(runc),
        Sim::new("kata").stores(kata),
        Sim::new("gvisor").stores(gvisor),
    ])
    .await)
    .await;
    let expected = cri::Image {
        size: 3,
        ..image(
            "sha256:1",
            &["app:1", "app:latest", "app:2"],
            &["app@sha256:d1", "other@sha256:d2"],
        )
    };
    assert_eq!(images, [expected]);
}

/// containerd writes `sha256:X`, CRI-O `X`. A removal by id needs the spelling of the store.
#[tokio::test]
async fn an_image_with_two_spellings_of_its_id_is_an_entry_for_each_spelling() {
    let containerd = image("sha256:1", &["app:1"], &["app@sha256:d1"]);
    let crio = image("1", &["app:1"], &["app@sha256:d1"]);
    let rig = Rig::start([
        Sim::new("containerd").stores(containerd.clone()),
        Sim::new("crio").stores(crio.clone()),
    ])
    .await;
    assert_eq!(all(&rig).await, [containerd, crio]);
}

/// The images of the messages of a `StreamImages`.
async fn streamed(rig: &Rig) -> Vec<cri::Image> {
    let request = cri::StreamImagesRequest::default();
    let stream = rig.images().stream_images(request).await.unwrap();
    let messages: Vec<_> = stream.into_inner().try_collect().await.unwrap();
    messages.into_iter().flat_map(|it| it.images).collect()
}

/// The kubelet never removes a pinned image, and counts the size of each removed image as free space.
#[tokio::test]
async fn a_merged_image_is_pinned_only_if_all_copies_are_and_has_the_sum_of_their_sizes() {
    let with = |(size, pinned)| cri::Image {
        size,
        pinned,
        ..image("sha256:1", &["pause:1"], &[])
    };
    let most = i64::MAX as u64;
    for (first, second, merged) in [
        ((70, true), (7, false), (77, false)),
        ((7, false), (70, true), (77, false)),
        ((7, true), (70, true), (77, true)),
        ((1 << 62, false), (1 << 62, false), (most, false)),
        ((u64::MAX, false), (7, false), (most, false)),
    ] {
        let rig = Rig::start([
            Sim::new("runc").stores(with(first)),
            Sim::new("kata").stores(with(second)),
        ])
        .await;
        assert_eq!(all(&rig).await, [with(merged)]);
        assert_eq!(streamed(&rig).await, [with(merged)]);
    }
}

/// The kubelet reads the size as an `i64`.
#[tokio::test]
async fn no_image_of_several_backends_has_a_size_that_the_kubelet_reads_as_negative() {
    let huge = cri::Image {
        size: 1 << 63,
        ..image("sha256:1", &["app:1"], &[])
    };
    let rig = Rig::start([Sim::new("runc").stores(huge.clone()), Sim::new("kata")]).await;
    let size = i64::MAX as u64;
    assert_eq!(all(&rig).await, [cri::Image { size, ..huge }]);
}

#[tokio::test]
async fn a_long_list_of_images_is_streamed_in_several_messages() {
    let mut runc = Sim::new("runc");
    for number in 0..1000 {
        let tag = format!("{}:{number}", "x".repeat(200));
        runc = runc.stores(image(&format!("sha256:{number}"), &[&tag], &[]));
    }
    let rig = Rig::start([runc, Sim::new("kata").image("web:1")]).await;
    let images = streamed(&rig).await;
    assert_eq!(images, all(&rig).await);
    assert_eq!(images.len(), 1001);
    let request = cri::StreamImagesRequest::default();
    let stream = rig.images().stream_images(request).await.unwrap();
    assert!(stream.into_inner().count().await > 3);
}

#[tokio::test]
async fn fields_that_only_one_backend_has_for_a_shared_image_are_kept() {
    let plain = image("sha256:1", &["app:1"], &[]);
    let with_user = cri::Image {
        username: "nobody".to_owned(),
        ..plain.clone()
    };
    let rig = Rig::start([
        Sim::new("runc").stores(with_user.clone()),
        Sim::new("kata").stores(plain),
    ])
    .await;
    let size = 2;
    assert_eq!(all(&rig).await, [cri::Image { size, ..with_user }]);
}

#[tokio::test]
async fn an_image_of_one_backend_alone_is_listed_byte_for_byte() {
    let runc = Sim::new("runc").newer().image("only-runc:1");
    let rig = Rig::start([runc, Sim::new("kata").image("only-kata:1")]).await;
    let mut expected = Vec::new();
    for sim in &rig.sims {
        let direct = RawClient::connect(&sim.socket()).await;
        let list = direct
            .call(LIST_IMAGES, &[], frame_raw(b""))
            .await
            .messages()[0]
            .clone();
        // The merged list contains only images. Other fields in a newer runtime's reply describe that backend alone.
        for field in criswitch_cri::codec::protobuf::fields(&list).map(Result::unwrap) {
            if field.number == 1 {
                expected.extend_from_slice(field.raw);
            }
        }
    }
    assert!(expected.windows(18).any(|w| w == b"of a later version"));
    let through = rig.raw(LIST_IMAGES, &[], frame_raw(b"")).await;
    assert_eq!(through.messages(), [expected]);
}

/// The `ListImages` calls with a filter, which come from the client. criswitch's own calls have no filter.
fn filtered_lists(sim: &Sim) -> Vec<crate::support::Call> {
    let mut calls = sim.calls("ListImages");
    calls.retain(|call| call.body.len() > 5);
    calls
}

#[tokio::test]
async fn an_image_filter_goes_to_every_backend() {
    let rig = Rig::start([
        Sim::new("runc").image("app:1").image("web:1"),
        Sim::new("kata").image("app:1"),
    ])
    .await;
    let images = list(&rig, Some(image_spec("app:1"))).await.unwrap();
    let ids: Vec<_> = images.iter().map(|image| &image.id).collect();
    assert_eq!(ids, [&rig.sim("kata").images()[0].id]);
    assert_eq!(filtered_lists(rig.sim("kata")).len(), 1);
}

#[tokio::test]
async fn an_image_filter_with_a_handler_goes_to_its_backend_alone() {
    let text = |directory: &str| {
        format!(
            "default_handler = \"runc\"\n[handlers]\nrunc = \"{directory}/runc.sock\"\n\
             gvisor = {{ socket = \"{directory}/boxes.sock\", handler = \"runsc\" }}\n"
        )
    };
    let boxes = Sim::new("boxes").handlers(["runsc"]).image("app:1");
    let rig = Rig::with_config([Sim::new("runc").image("web:1"), boxes], text).await;
    let of = |handler: &str| cri::ImageSpec {
        runtime_handler: handler.to_owned(),
        ..Default::default()
    };
    let images = list(&rig, Some(of("gvisor"))).await.unwrap();
    assert_eq!(images, rig.sim("boxes").images());
    assert!(filtered_lists(rig.sim("runc")).is_empty());
    // The request to the backend has the backend's own name of the handler.
    let calls = filtered_lists(rig.sim("boxes"));
    let asked: cri::ListImagesRequest = calls[0].decode();
    let asked = asked.filter.unwrap().image.unwrap().runtime_handler;
    assert_eq!(asked, "runsc");

    let rejected = list(&rig, Some(of("kata"))).await.unwrap_err();
    assert_eq!(rejected.code(), Code::InvalidArgument);
    assert!(rejected.message().contains("kata"), "{rejected}");
}

#[tokio::test]
async fn an_image_list_that_lacks_one_backends_images_is_an_error_that_names_it() {
    let rig = Rig::start([
        Sim::new("runc").image("app:1"),
        Sim::new("kata").image("web:1"),
    ])
    .await;
    rig.sim("kata")
        .fail("ListImages", Status::internal("metadata.db is locked"));
    let failed = list(&rig, None).await.unwrap_err();
    assert_eq!(failed.code(), Code::Internal);
    assert!(failed.message().starts_with("metadata.db is locked"));
    assert!(failed.message().contains("kata"), "{failed}");
    rig.sim("kata").stop().await;
    let failed = list(&rig, None).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable);
    assert!(failed.message().contains("kata"), "{failed}");
}

#[tokio::test]
async fn an_image_stream_for_a_handler_is_made_of_a_list_if_its_backend_lacks_the_stream() {
    let kata = Sim::new("kata").image("app:1").lacks(["StreamImages"]);
    let rig = Rig::start([Sim::new("runc").image("web:1"), kata]).await;
    let image = cri::ImageSpec {
        runtime_handler: "kata".to_owned(),
        ..Default::default()
    };
    let filter = Some(cri::ImageFilter { image: Some(image) });
    let request = cri::StreamImagesRequest { filter };
    let mut images = rig
        .images()
        .stream_images(request)
        .await
        .unwrap()
        .into_inner();
    let message = images.message().await.unwrap().unwrap();
    assert_eq!(message.images, rig.sim("kata").images());
    assert_eq!(images.message().await.unwrap(), None);
}
