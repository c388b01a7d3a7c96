//! Image calls go to the handler's backend, to the pod's backend, to the backends with the image, or to all backends.

use criswitch_cri::codec::cri;
use tonic::{Code, Status};

use crate::support::{Rig, Sim, image_spec, pod_config};

const APP: &str = "registry.k8s.io/app:1";

async fn three() -> Rig {
    Rig::start([Sim::new("runc"), Sim::new("kata"), Sim::new("gvisor")]).await
}

/// The routing table's `gvisor` is the handler `runsc` of the backend `boxes`.
async fn renamed() -> Rig {
    let text = |directory: &str| {
        format!(
            "default_handler = \"runc\"\n[handlers]\nrunc = \"{directory}/runc.sock\"\n\
             gvisor = {{ socket = \"{directory}/boxes.sock\", handler = \"runsc\" }}\n"
        )
    };
    let boxes = Sim::new("boxes").handlers(["runsc"]);
    Rig::with_config([Sim::new("runc"), boxes], text).await
}

fn of_handler(handler: &str) -> cri::ImageSpec {
    cri::ImageSpec {
        runtime_handler: handler.to_owned(),
        ..image_spec(APP)
    }
}

/// The image spec with which the kubelet looks up the image of a pod. It has the pod's annotations.
fn of_pod(name: &str) -> cri::ImageSpec {
    cri::ImageSpec {
        annotations: pod_config(name).annotations,
        ..image_spec(APP)
    }
}

async fn find(rig: &Rig, image: cri::ImageSpec) -> Result<Option<cri::Image>, Status> {
    let request = cri::ImageStatusRequest {
        image: Some(image),
        verbose: false,
    };
    Ok(rig.images().image_status(request).await?.into_inner().image)
}

async fn pull(
    rig: &Rig,
    image: cri::ImageSpec,
    sandbox_config: Option<cri::PodSandboxConfig>,
) -> Result<String, Status> {
    let request = cri::PullImageRequest {
        image: Some(image),
        auth: None,
        sandbox_config,
    };
    Ok(rig
        .images()
        .pull_image(request)
        .await?
        .into_inner()
        .image_ref)
}

async fn remove(rig: &Rig, image: cri::ImageSpec) -> Result<(), Status> {
    let image = Some(image);
    rig.images()
        .remove_image(cri::RemoveImageRequest { image })
        .await?;
    Ok(())
}

/// The runtimes that received calls of an RPC.
fn asked<'a>(rig: &'a Rig, rpc: &str) -> Vec<&'a str> {
    let asked = rig.sims.iter().filter(|sim| !sim.calls(rpc).is_empty());
    asked.map(Sim::name).collect()
}

#[tokio::test]
async fn an_image_call_with_a_handler_goes_to_its_backend_alone() {
    let rig = three().await;
    pull(&rig, of_handler("kata"), None).await.unwrap();
    assert_eq!(asked(&rig, "PullImage"), ["kata"]);
    let found = find(&rig, of_handler("kata")).await.unwrap();
    assert_eq!(found, rig.sim("kata").images().pop());
    assert_eq!(find(&rig, of_handler("gvisor")).await.unwrap(), None);
    assert_eq!(asked(&rig, "ImageStatus"), ["kata", "gvisor"]);
    remove(&rig, of_handler("kata")).await.unwrap();
    assert_eq!(asked(&rig, "RemoveImage"), ["kata"]);
    assert!(rig.sim("kata").images().is_empty());
}

#[tokio::test]
async fn a_backend_gets_its_own_name_of_the_handler_in_an_image_call() {
    let rig = renamed().await;
    pull(&rig, of_handler("gvisor"), None).await.unwrap();
    find(&rig, of_handler("gvisor")).await.unwrap();
    remove(&rig, of_handler("gvisor")).await.unwrap();
    let boxes = rig.sim("boxes");
    let pulled: cri::PullImageRequest = boxes.calls("PullImage")[0].decode();
    let found: cri::ImageStatusRequest = boxes.calls("ImageStatus")[0].decode();
    let removed: cri::RemoveImageRequest = boxes.calls("RemoveImage")[0].decode();
    for image in [pulled.image, found.image, removed.image] {
        let image = image.unwrap();
        assert_eq!(image.runtime_handler, "runsc");
        assert_eq!(image.image, APP);
    }
    assert!(rig.sim("runc").calls("PullImage").is_empty());
}

#[tokio::test]
async fn an_image_call_with_an_unknown_handler_is_rejected_by_name_and_sent_nowhere() {
    let rig = three().await;
    let refusals = [
        pull(&rig, of_handler("nosuch"), None).await.unwrap_err(),
        find(&rig, of_handler("nosuch")).await.unwrap_err(),
        remove(&rig, of_handler("nosuch")).await.unwrap_err(),
    ];
    for rejected in refusals {
        assert_eq!(rejected.code(), Code::InvalidArgument);
        let text = "no runtime for \"nosuch\" is configured";
        assert!(rejected.message().contains(text), "{rejected}");
    }
    for rpc in ["PullImage", "ImageStatus", "RemoveImage"] {
        assert!(asked(&rig, rpc).is_empty(), "{rpc}");
    }
}

#[tokio::test]
async fn a_pods_image_is_looked_up_on_the_pods_backend() {
    let rig = three().await;
    rig.sim("runc").add_image(APP);
    rig.run_pod("kata", "web").await;
    // The default has the image, but the pod cannot use that copy.
    assert_eq!(find(&rig, of_pod("web")).await.unwrap(), None);
    assert_eq!(asked(&rig, "ImageStatus"), ["kata"]);
}

#[tokio::test]
async fn a_pods_image_is_pulled_on_the_pods_backend() {
    let rig = three().await;
    rig.run_pod("kata", "web").await;
    let pulled = pull(&rig, image_spec(APP), Some(pod_config("web"))).await;
    assert_eq!(pulled.unwrap(), rig.sim("kata").images()[0].id);
    assert_eq!(asked(&rig, "PullImage"), ["kata"]);
}

#[tokio::test]
async fn after_a_restart_image_calls_for_a_pod_go_to_the_backend_that_lists_it() {
    let mut rig = three().await;
    rig.run_pod("kata", "web").await;
    rig.restart_switch().await;
    // After a restart criswitch lists a backend before it sends other calls to this backend. So criswitch knows the pod
    // when this list returns.
    rig.pods().await.unwrap();
    assert_eq!(find(&rig, of_pod("web")).await.unwrap(), None);
    let sandbox = Some(pod_config("web"));
    pull(&rig, image_spec(APP), sandbox).await.unwrap();
    assert_eq!(asked(&rig, "ImageStatus"), ["kata"]);
    assert_eq!(asked(&rig, "PullImage"), ["kata"]);
}

#[tokio::test]
async fn a_pull_without_a_pod_goes_to_every_store() {
    let rig = three().await;
    let reference = pull(&rig, image_spec(APP), None).await.unwrap();
    assert_eq!(asked(&rig, "PullImage"), ["runc", "kata", "gvisor"]);
    for sim in &rig.sims {
        assert_eq!(sim.images().len(), 1, "{}", sim.name());
    }
    assert_eq!(reference, rig.sim("runc").images()[0].id);
}

#[tokio::test]
async fn the_reference_of_an_image_pulled_everywhere_is_that_of_the_default_backend() {
    let kata = Sim::new("kata").image_ids(crate::support::ImageIds::Bare);
    let text = |directory: &str| {
        format!(
            "default_handler = \"runc\"\n[handlers]\nkata = \"{directory}/kata.sock\"\n\
             runc = \"{directory}/runc.sock\"\n"
        )
    };
    let rig = Rig::with_config([kata, Sim::new("runc")], text).await;
    let reference = pull(&rig, image_spec(APP), None).await.unwrap();
    assert_eq!(reference, rig.sim("runc").images()[0].id);
    assert_ne!(reference, rig.sim("kata").images()[0].id);
}

#[tokio::test]
async fn a_pull_everywhere_waits_for_every_backend() {
    let rig = three().await;
    let gvisor = rig.sim("gvisor");
    gvisor.hold("PullImage");
    let pulled = pull(&rig, image_spec(APP), None);
    let release = async {
        gvisor.until_held("PullImage").await;
        gvisor.release("PullImage");
    };
    let (pulled, ()) = tokio::join!(pulled, release);
    pulled.unwrap();
    assert_eq!(gvisor.images().len(), 1);
}

#[tokio::test]
async fn a_pull_that_fails_on_one_backend_fails_with_its_text_and_name() {
    let rig = three().await;
    let text = "RegistryUnavailable: 503 from registry.k8s.io";
    rig.sim("kata").fail("PullImage", Status::unknown(text));
    let failed = pull(&rig, image_spec(APP), None).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unknown);
    assert!(failed.message().starts_with(text), "{failed}");
    assert!(failed.message()[text.len()..].contains("kata"), "{failed}");

    rig.sim("gvisor").stop().await;
    rig.sim("kata").heal("PullImage");
    let failed = pull(&rig, image_spec(APP), None).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable);
    assert!(failed.message().contains("gvisor"), "{failed}");
}

/// Pods of such a backend cannot start, so criswitch must not treat the backend as one without images.
#[tokio::test]
async fn a_backend_whose_image_service_is_missing_fails_image_calls_and_is_named() {
    let rpcs = ["PullImage", "RemoveImage", "ImageStatus", "ListImages"];
    let bare = Sim::new("bare").lacks(rpcs);
    let rig = Rig::start([Sim::new("runc"), bare]).await;
    let named = |failed: Status| assert!(failed.message().contains("\"bare\""), "{failed}");
    named(pull(&rig, image_spec(APP), None).await.unwrap_err());
    let mut images = rig.images();
    let listed = images.list_images(cri::ListImagesRequest::default());
    named(listed.await.unwrap_err());
    named(find(&rig, image_spec("other:1")).await.unwrap_err());
    named(remove(&rig, image_spec("other:1")).await.unwrap_err());
    // Image calls for runc still succeed, because runc has an image service.
    rig.sim("runc").add_image(APP);
    let of_runc = cri::ImageSpec {
        runtime_handler: "runc".to_owned(),
        ..image_spec(APP)
    };
    let found = find(&rig, of_runc).await.unwrap();
    assert_eq!(found, rig.sim("runc").images().pop());
}

#[tokio::test]
async fn an_image_is_removed_from_every_store_that_has_it() {
    let rig = three().await;
    rig.sim("runc").add_image(APP);
    rig.sim("gvisor").add_image(APP);
    remove(&rig, image_spec(APP)).await.unwrap();
    assert_eq!(asked(&rig, "RemoveImage"), ["runc", "gvisor"]);
    for sim in &rig.sims {
        assert!(sim.images().is_empty(), "{}", sim.name());
    }
}

#[tokio::test]
async fn an_image_that_no_backend_has_counts_as_removed() {
    let rig = three().await;
    remove(&rig, image_spec(APP)).await.unwrap();
    assert!(asked(&rig, "RemoveImage").is_empty());
    // The CRI demands OK for an image that does not exist. So criswitch also replies OK if the runtimes return
    // NotFound.
    for sim in &rig.sims {
        sim.add_image(APP);
        sim.fail("RemoveImage", Status::not_found("image not known"));
    }
    remove(&rig, image_spec(APP)).await.unwrap();
}

#[tokio::test]
async fn a_removal_that_fails_on_one_backend_fails_with_its_text_and_name() {
    let rig = three().await;
    for sim in &rig.sims {
        sim.add_image(APP);
    }
    let text = "image is in use by a container";
    rig.sim("kata").fail("RemoveImage", Status::unknown(text));
    let failed = remove(&rig, image_spec(APP)).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unknown);
    assert!(failed.message().starts_with(text), "{failed}");
    assert!(failed.message().contains("kata"), "{failed}");
    rig.sim("kata").heal("RemoveImage");
    rig.sim("gvisor").stop().await;
    let failed = remove(&rig, image_spec(APP)).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable);
    assert!(failed.message().contains("gvisor"), "{failed}");
}
