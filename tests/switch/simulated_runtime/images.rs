//! The image store.

use criswitch::codec::cri;

use super::direct::Direct;
use crate::support::{ImageIds, Sim, image_spec};

async fn status(direct: &Direct, reference: &str) -> Option<cri::Image> {
    let request = cri::ImageStatusRequest {
        image: Some(image_spec(reference)),
        verbose: false,
    };
    direct
        .images()
        .image_status(request)
        .await
        .unwrap()
        .into_inner()
        .image
}

#[tokio::test]
async fn an_image_is_found_by_tag_digest_id_and_short_id() {
    let direct = Direct::new(Sim::new("runc").image("busybox:1.36"));
    let image = status(&direct, "busybox:1.36").await.unwrap();
    assert_eq!(image.repo_tags, ["docker.io/library/busybox:1.36"]);
    assert!(image.id.starts_with("sha256:"));
    let keys = [
        &image.repo_tags[0],
        &image.repo_digests[0],
        &image.id,
        &image.id[7..],
        &image.id[7..15],
    ];
    for key in keys {
        assert_eq!(status(&direct, key).await.as_ref(), Some(&image), "{key}");
    }
    for key in ["busybox", "nginx:1.36", ""] {
        assert_eq!(status(&direct, key).await, None, "{key}");
    }
}

#[tokio::test]
async fn image_ids_are_written_as_containerd_or_as_crio_does() {
    let containerd = Sim::new("a").image("busybox");
    let crio = Sim::new("b").image_ids(ImageIds::Bare).image("busybox");
    let id = crio.images()[0].id.clone();
    assert_eq!(id.len(), 64);
    assert_eq!(containerd.images()[0].id, format!("sha256:{id}"));
}

#[tokio::test]
async fn a_pulled_image_exists_until_it_is_removed() {
    let direct = Direct::new(Sim::new("runc"));
    let mut images = direct.images();
    let image = Some(image_spec("registry.k8s.io/pause"));
    let request = cri::PullImageRequest {
        image: image.clone(),
        ..Default::default()
    };
    let pulled = images.pull_image(request).await.unwrap().into_inner();
    let there = direct.sim.images();
    assert_eq!(there[0].id, pulled.image_ref);
    assert_eq!(there[0].repo_tags, ["registry.k8s.io/pause:latest"]);

    for _ in ["there", "gone already"] {
        let image = image.clone();
        images
            .remove_image(cri::RemoveImageRequest { image })
            .await
            .unwrap();
        assert!(direct.sim.images().is_empty());
    }
}

#[tokio::test]
async fn images_are_listed_with_their_own_file_system() {
    let pinned = cri::Image {
        id: "sha256:77".to_owned(),
        pinned: true,
        ..Default::default()
    };
    let direct = Direct::new(Sim::new("runc").image("busybox").stores(pinned.clone()));
    let mut images = direct.images();
    let all = images.list_images(cri::ListImagesRequest { filter: None });
    assert_eq!(all.await.unwrap().into_inner().images, direct.sim.images());
    let filter = Some(cri::ImageFilter {
        image: Some(image_spec("sha256:77")),
    });
    let one = images.list_images(cri::ListImagesRequest { filter });
    assert_eq!(one.await.unwrap().into_inner().images, [pinned]);
    let files = images
        .image_fs_info(cri::ImageFsInfoRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        files.image_filesystems[0]
            .fs_id
            .as_ref()
            .unwrap()
            .mountpoint,
        "/var/lib/runc"
    );
}
