//! ImageStatus that names no pod: one wrong "absent" and a container runs as root.

use criswitch::cri;
use tonic::{Code, Status};

use crate::support::{Rig, Sim, image_spec, pod_config};

const APP: &str = "registry.k8s.io/app:1";

/// An image of that id, with a user that says whose it is.
fn image_of(owner: &str, id: &str) -> cri::Image {
    cri::Image {
        id: id.to_owned(),
        repo_tags: vec![APP.to_owned()],
        username: owner.to_owned(),
        ..Default::default()
    }
}

async fn find(rig: &Rig, reference: &str) -> Result<Option<cri::Image>, Status> {
    let request = cri::ImageStatusRequest {
        image: Some(image_spec(reference)),
        verbose: false,
    };
    Ok(rig.images().image_status(request).await?.into_inner().image)
}

/// Whose image it is.
async fn user(rig: &Rig, reference: &str) -> String {
    find(rig, reference).await.unwrap().unwrap().username
}

/// The kubelet's way to a container: it asks for the image of a pod on `handler`, and pulls it.
async fn pull_for_pod(rig: &Rig, handler: &str, name: &str) -> String {
    rig.run_pod(handler, name).await;
    let request = cri::PullImageRequest {
        image: Some(image_spec(APP)),
        sandbox_config: Some(pod_config(name)),
        auth: None,
    };
    let reply = rig.images().pull_image(request).await.unwrap();
    reply.into_inner().image_ref
}

#[tokio::test]
async fn an_image_is_told_by_the_default_if_several_have_it() {
    let rig = Rig::start([
        Sim::new("runc").stores(image_of("runc", "sha256:1")),
        Sim::new("kata").stores(image_of("kata", "sha256:1")),
    ])
    .await;
    assert_eq!(user(&rig, APP).await, "runc");
    assert!(rig.sim("kata").calls("ImageStatus").is_empty());
}

#[tokio::test]
async fn an_image_that_the_default_lacks_is_told_by_whoever_has_it() {
    let rig = Rig::start([
        Sim::new("runc"),
        Sim::new("kata"),
        Sim::new("gvisor").stores(image_of("gvisor", "sha256:1")),
    ])
    .await;
    assert_eq!(user(&rig, APP).await, "gvisor");
    // A second time it is asked first, and nobody else.
    assert_eq!(user(&rig, APP).await, "gvisor");
    assert_eq!(rig.sim("runc").calls("ImageStatus").len(), 1);
}

#[tokio::test]
async fn an_image_is_told_by_the_backend_that_last_answered_for_it() {
    let rig = Rig::start([
        Sim::new("runc").stores(image_of("runc", "sha256:1")),
        Sim::new("kata").stores(image_of("kata", "sha256:1")),
    ])
    .await;
    let id = pull_for_pod(&rig, "kata", "web").await;
    // By the reference, and by the id that the pull gave.
    assert_eq!(user(&rig, APP).await, "kata");
    assert_eq!(user(&rig, &id).await, "kata");
    pull_for_pod(&rig, "runc", "plain").await;
    assert_eq!(user(&rig, APP).await, "runc");
}

#[tokio::test]
async fn a_backend_that_lost_the_image_since_is_not_the_last_word() {
    let rig = Rig::start([
        Sim::new("runc").stores(image_of("runc", "sha256:1")),
        Sim::new("kata"),
    ])
    .await;
    pull_for_pod(&rig, "kata", "web").await;
    let image = Some(cri::ImageSpec {
        runtime_handler: "kata".to_owned(),
        ..image_spec(APP)
    });
    let removed = cri::RemoveImageRequest { image };
    rig.images().remove_image(removed).await.unwrap();
    assert_eq!(user(&rig, APP).await, "runc");
}

#[tokio::test]
async fn an_image_is_absent_only_if_every_backend_says_so() {
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
async fn an_image_is_not_absent_where_a_backend_fails_to_say() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    rig.sim("kata")
        .fail("ImageStatus", Status::internal("metadata.db is locked"));
    let failed = find(&rig, APP).await.unwrap_err();
    assert_eq!(failed.code(), Code::Internal);
    assert!(failed.message().starts_with("metadata.db is locked"));
    assert!(failed.message().contains("kata"), "{failed}");
}

#[tokio::test]
async fn an_image_of_one_backend_is_told_while_another_is_down() {
    for down in ["runc", "kata"] {
        let gvisor = Sim::new("gvisor").stores(image_of("gvisor", "sha256:1"));
        let rig = Rig::start([Sim::new("runc"), Sim::new("kata"), gvisor]).await;
        rig.sim(down).stop().await;
        assert_eq!(user(&rig, APP).await, "gvisor", "{down} is down");
    }
}
