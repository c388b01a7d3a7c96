//! criswitch creates a container with the image id that the pod's own backend uses.
//!
//! The kubelet may send the id of another backend. containerd's ids are `sha256:<hex>`, CRI-O's `<hex>`, and even two
//! containerds may have different ids for one tag.

use criswitch_cri::codec::cri;
use tonic::{Code, Status};

use crate::support::{Rig, Sim, container_config};

const APP: &str = "registry.k8s.io/app:1";
const AT_RUNC: &str = "sha256:1111111111111111111111111111111111111111111111111111111111111111";
const AT_KATA: &str = "2222222222222222222222222222222222222222222222222222222222222222";

fn image(id: &str) -> cri::Image {
    cri::Image {
        id: id.to_owned(),
        repo_tags: vec![APP.to_owned()],
        ..Default::default()
    }
}

/// containerd and CRI-O, both with the image.
async fn two_stores() -> Rig {
    Rig::start([
        Sim::new("runc").stores(image(AT_RUNC)),
        Sim::new("kata").stores(image(AT_KATA)),
    ])
    .await
}

/// Creates a container as the kubelet does: with the image's id, and the manifest's name in `user_specified_image`.
async fn create(rig: &Rig, pod: &str, id: &str, name: &str) -> Result<String, Status> {
    let mut config = container_config("app", id);
    if let Some(image) = &mut config.image {
        image.user_specified_image = name.to_owned();
    }
    let request = cri::CreateContainerRequest {
        pod_sandbox_id: pod.to_owned(),
        config: Some(config),
        sandbox_config: None,
    };
    let reply = rig.runtime().create_container(request).await?;
    Ok(reply.into_inner().container_id)
}

/// The image in the only CreateContainer request that the backend received.
fn asked_for(sim: &Sim) -> cri::ImageSpec {
    let calls = sim.calls("CreateContainer");
    assert_eq!(calls.len(), 1);
    let request: cri::CreateContainerRequest = calls[0].decode();
    request.config.unwrap().image.unwrap()
}

#[tokio::test]
async fn an_image_id_of_another_backend_is_replaced_by_the_image_id_of_the_owner() {
    let rig = two_stores().await;
    let pod = rig.run_pod("kata", "web").await;
    create(&rig, &pod, AT_RUNC, APP).await.unwrap();
    let kata = rig.sim("kata");
    assert_eq!(asked_for(kata).image, AT_KATA);
    // The rest of the request is unchanged.
    assert_eq!(asked_for(kata).user_specified_image, APP);
    let sent: cri::CreateContainerRequest = kata.calls("CreateContainer")[0].decode();
    let mut expected = container_config("app", AT_KATA);
    expected.image.as_mut().unwrap().user_specified_image = APP.to_owned();
    assert_eq!(sent.config, Some(expected));
    assert_eq!(kata.containers()[0].image_id, AT_KATA);
}

#[tokio::test]
async fn a_bare_image_id_is_replaced_by_the_image_id_of_containerd() {
    let rig = two_stores().await;
    let pod = rig.run_pod("runc", "web").await;
    create(&rig, &pod, AT_KATA, APP).await.unwrap();
    assert_eq!(asked_for(rig.sim("runc")).image, AT_RUNC);
}

#[tokio::test]
async fn a_creation_with_an_image_id_of_the_owner_passes_byte_for_byte() {
    let rig = two_stores().await;
    let pod = rig.run_pod("kata", "web").await;
    create(&rig, &pod, AT_KATA, APP).await.unwrap();
    assert_eq!(asked_for(rig.sim("kata")).image, AT_KATA);
    // A request that needs no change is forwarded byte for byte, here with a field number that no CRI uses.
    let mut config = container_config("second", AT_KATA);
    config.image.as_mut().unwrap().user_specified_image = APP.to_owned();
    let request = cri::CreateContainerRequest {
        pod_sandbox_id: pod,
        config: Some(config),
        sandbox_config: None,
    };
    let mut message = prost::Message::encode_to_vec(&request);
    message.extend_from_slice(b"\xc2\xb8\x02\x03new");
    let body = crate::support::frame_raw(&message);
    let path = "/runtime.v1.RuntimeService/CreateContainer";
    let reply = rig.raw(path, &[], body.clone()).await;
    assert_eq!(reply.code(), Code::Ok, "{}", reply.text());
    assert_eq!(rig.sim("kata").calls("CreateContainer")[1].body, body);
}

#[tokio::test]
async fn a_container_is_created_once_and_no_other_backend_is_asked() {
    let rig = two_stores().await;
    let pod = rig.run_pod("kata", "web").await;
    create(&rig, &pod, AT_RUNC, APP).await.unwrap();
    assert_eq!(rig.sim("kata").calls("CreateContainer").len(), 1);
    assert!(rig.sim("runc").calls("CreateContainer").is_empty());
    assert!(rig.sim("runc").calls("ImageStatus").is_empty());
}

#[tokio::test]
async fn an_image_that_the_owner_lacks_is_rejected_by_the_owner() {
    let rig = Rig::start([Sim::new("runc").stores(image(AT_RUNC)), Sim::new("kata")]).await;
    let pod = rig.run_pod("kata", "web").await;
    let failed = create(&rig, &pod, AT_RUNC, APP).await.unwrap_err();
    assert_eq!(failed.code(), Code::NotFound);
    let text = format!("failed to resolve image \"{AT_RUNC}\": not found");
    assert_eq!(failed.message(), text);
    assert_eq!(asked_for(rig.sim("kata")).image, AT_RUNC);
    // An older kubelet does not send the name in the manifest.
    let failed = create(&rig, &pod, AT_RUNC, "").await.unwrap_err();
    assert_eq!(failed.message(), text);
}

#[tokio::test]
async fn a_backend_that_fails_image_status_gets_the_creation_unchanged() {
    let rig = two_stores().await;
    let pod = rig.run_pod("kata", "web").await;
    rig.sim("kata")
        .fail("ImageStatus", Status::internal("metadata.db is locked"));
    create(&rig, &pod, AT_RUNC, APP).await.unwrap_err();
    assert_eq!(asked_for(rig.sim("kata")).image, AT_RUNC);
}
