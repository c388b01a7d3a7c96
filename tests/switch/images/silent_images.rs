//! Images while a backend is silent: no image is reported absent, and a pull reports every failure.

use criswitch_cri::codec::cri;
use tonic::{Code, Status};

use crate::calls::stopped;
use crate::faults::{hang, hung, node};
use crate::support::{Rig, Sim, image_spec};

const KEYS: &str = "start_wait = \"0s\"\nlist_timeout = \"200ms\"";

async fn three() -> Rig {
    let sims = ["runc", "kata", "gvisor"].map(Sim::new);
    let rig = node(KEYS, sims).await;
    rig.pods().await.unwrap();
    rig
}

async fn find(rig: &Rig, image: &str) -> Result<Option<String>, Status> {
    let request = cri::ImageStatusRequest {
        image: Some(image_spec(image)),
        ..Default::default()
    };
    let status = rig.images().image_status(request).await?.into_inner();
    Ok(status.image.map(|image| image.id))
}

async fn pull(rig: &Rig, image: &str) -> Result<String, Status> {
    let request = cri::PullImageRequest {
        image: Some(image_spec(image)),
        ..Default::default()
    };
    Ok(rig
        .images()
        .pull_image(request)
        .await?
        .into_inner()
        .image_ref)
}

/// Lists all images, so that each backend has a cached list.
async fn listed(rig: &Rig) {
    let all = cri::ListImagesRequest { filter: None };
    rig.images().list_images(all).await.unwrap();
}

#[track_caller]
fn is_named(failed: &Status, sim: &Sim) {
    assert_eq!(failed.code(), Code::Unavailable, "{failed}");
    let name = format!("{:?}", sim.name());
    assert!(failed.message().contains(&name), "{failed}");
}

#[tokio::test]
async fn an_image_is_never_absent_while_a_backend_is_down() {
    let rig = three().await;
    assert_eq!(find(&rig, "app").await.unwrap(), None);
    for name in ["runc", "kata", "gvisor"] {
        stopped(&rig, name).await;
        is_named(&find(&rig, "app").await.unwrap_err(), rig.sim(name));
        rig.sim(name).start();
        crate::faults::until_state(&rig, name, "ready").await;
        assert_eq!(find(&rig, "app").await.unwrap(), None);
    }
}

#[tokio::test]
async fn an_image_is_never_absent_while_a_backend_hangs_and_a_probe_ends_the_call() {
    let rig = three().await;
    hang(rig.sim("kata"));
    let failed = find(&rig, "app").await.unwrap_err();
    is_named(&failed, rig.sim("kata"));
    assert!(failed.message().contains("probe"), "{failed}");
}

#[tokio::test]
async fn an_image_is_found_on_one_backend_while_another_is_late() {
    let rig = three().await;
    listed(&rig).await;
    let image = rig.sim("gvisor").add_image("app");
    rig.sim("runc").hold("ImageStatus");
    assert_eq!(find(&rig, "app").await.unwrap(), Some(image));
}

#[tokio::test]
async fn an_image_that_only_a_late_backend_has_is_waited_for() {
    let rig = three().await;
    let image = rig.sim("runc").add_image("app");
    let runc = rig.sim("runc");
    runc.hold("ImageStatus");
    let release = async {
        // Release runc's call only after gvisor has received the call, so that criswitch waits for runc.
        rig.sim("gvisor")
            .until(|journal| journal.calls_of("ImageStatus").count() > 0)
            .await;
        runc.release("ImageStatus");
    };
    let (found, ()) = tokio::join!(find(&rig, "app"), release);
    assert_eq!(found.unwrap(), Some(image));
}

#[tokio::test]
async fn only_a_late_backend_without_a_cached_list_is_waited_for() {
    let rig = three().await;
    listed(&rig).await;
    // This pull invalidates kata's cached list of images.
    let image = Some(cri::ImageSpec {
        runtime_handler: "kata".to_owned(),
        ..image_spec("app")
    });
    let pull = cri::PullImageRequest {
        image,
        ..Default::default()
    };
    rig.images().pull_image(pull).await.unwrap();
    for name in ["runc", "kata"] {
        rig.sim(name).hold("ImageStatus");
    }
    let kata = async {
        // Release kata's call only after gvisor has received the call, so that criswitch waits for kata.
        let last = rig.sim("gvisor");
        last.until(|journal| journal.calls_of("ImageStatus").count() > 0)
            .await;
        rig.sim("kata").release("ImageStatus");
    };
    let (found, ()) = tokio::join!(find(&rig, "app"), kata);
    assert!(found.unwrap().is_some());
    rig.sim("runc").release("ImageStatus");
}

#[tokio::test]
async fn a_failed_pull_into_every_store_names_every_failed_backend_and_the_causes() {
    let rig = three().await;
    let rejection = Status::not_found("RegistryUnavailable: no such manifest");
    rig.sim("runc").fail("PullImage", rejection);
    stopped(&rig, "gvisor").await;
    let failed = pull(&rig, "app").await.unwrap_err();
    // The kubelet reads the reason of a failed pull from the beginning of the error text.
    assert!(
        failed.message().starts_with("RegistryUnavailable"),
        "{failed}"
    );
    assert_eq!(failed.code(), Code::NotFound);
    for word in ["\"runc\"", "\"gvisor\"", crate::support::sockets::REFUSED] {
        assert!(failed.message().contains(word), "{failed}");
    }
    assert!(!failed.message().contains("\"kata\""), "{failed}");
    // The backend that did not fail has pulled the image.
    assert_eq!(rig.sim("kata").images().len(), 1);
}

#[tokio::test]
async fn a_removal_from_every_store_fails_while_a_backend_hangs() {
    let rig = three().await;
    pull(&rig, "app").await.unwrap();
    hung(&rig, "kata").await;
    let image = Some(image_spec("app"));
    let request = cri::RemoveImageRequest { image };
    let failed = rig.images().remove_image(request).await.unwrap_err();
    is_named(&failed, rig.sim("kata"));
    assert!(rig.sim("runc").images().is_empty());
}

#[tokio::test]
async fn a_call_with_a_handler_needs_that_handlers_backend_alone() {
    let rig = three().await;
    stopped(&rig, "kata").await;
    let at = |handler: &str| cri::ImageStatusRequest {
        image: Some(cri::ImageSpec {
            runtime_handler: handler.to_owned(),
            ..image_spec("app")
        }),
        ..Default::default()
    };
    let absent = rig.images().image_status(at("runc")).await.unwrap();
    assert_eq!(absent.into_inner().image, None);
    let failed = rig.images().image_status(at("kata")).await.unwrap_err();
    is_named(&failed, rig.sim("kata"));
}
