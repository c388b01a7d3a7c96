//! Images of pods with annotations unknown to criswitch: the kubelet has restarted since it created the pods.

use std::time::Duration;

use criswitch_cri::codec::cri;
use tokio::time::Instant;
use tonic::Code;

use crate::calls::stopped;
use crate::faults::{runc_and_kata, state_of};
use crate::kubelet::{Kubelet, asked, forget};
use crate::support::{Rig, Sim, pod_config};

const APP: &str = "registry.k8s.io/app:1";

/// One pod on each of two backends, and their ids.
async fn two_pods() -> (Rig, String, String) {
    let rig = runc_and_kata().await;
    let (plain, boxed) = (
        rig.run_pod("runc", "plain").await,
        rig.run_pod("kata", "boxed").await,
    );
    (rig, plain, boxed)
}

fn image(id: &str) -> cri::Image {
    cri::Image {
        id: id.to_owned(),
        repo_tags: vec![APP.to_owned()],
        ..Default::default()
    }
}

#[tokio::test]
async fn an_image_that_only_another_backend_has_is_pulled() {
    let (rig, _, boxed) = two_pods().await;
    rig.sim("runc").add_image(APP);
    let kubelet = Kubelet::new(&rig).restarted();
    assert_eq!(kubelet.find("boxed", APP).await.unwrap(), None);
    let pulled = kubelet.pull("boxed", APP).await.unwrap();
    assert_eq!(asked(&rig, "PullImage"), ["kata"]);
    kubelet
        .create((&boxed, "boxed"), &pulled, APP)
        .await
        .unwrap();
}

/// Later calls for other pods do not wait for the store again.
#[tokio::test]
async fn a_store_that_does_not_answer_is_waited_for_once() {
    let (rig, _, _) = two_pods().await;
    rig.images()
        .list_images(cri::ListImagesRequest::default())
        .await
        .unwrap();
    rig.sim("kata").hold("ImageStatus");
    let kubelet = Kubelet::new(&rig).restarted();
    kubelet.find("plain", APP).await.ok();
    let shown = state_of(&rig, "kata").await;
    assert_eq!(shown["failingRpcs"][0]["rpc"], "ImageStatus", "{shown}");
    let begun = Instant::now();
    kubelet.find("plain", APP).await.ok();
    assert!(begun.elapsed() < Duration::from_millis(500));
}

#[tokio::test]
async fn a_pull_teaches_criswitch_the_new_annotations_of_its_pod() {
    let (rig, _, _) = two_pods().await;
    let kubelet = Kubelet::new(&rig).restarted();
    kubelet.pull("boxed", APP).await.unwrap();
    forget(&rig);
    let found = kubelet.find("boxed", APP).await.unwrap();
    assert_eq!(found, rig.sim("kata").images().pop());
    assert_eq!(asked(&rig, "ImageStatus"), ["kata"]);
    // After the next restart of the kubelet, criswitch learns the new annotations from another pull.
    let kubelet = kubelet.restarted();
    kubelet.pull("boxed", APP).await.unwrap();
    forget(&rig);
    kubelet.find("boxed", APP).await.unwrap();
    assert_eq!(asked(&rig, "ImageStatus"), ["kata"]);
}

#[tokio::test]
async fn a_creation_teaches_criswitch_the_new_annotations_of_its_pod() {
    let (rig, _, boxed) = two_pods().await;
    let id = rig.sim("kata").add_image(APP);
    let kubelet = Kubelet::new(&rig).restarted();
    kubelet.create((&boxed, "boxed"), &id, APP).await.unwrap();
    forget(&rig);
    assert_eq!(kubelet.find("boxed", "other:1").await.unwrap(), None);
    assert_eq!(asked(&rig, "ImageStatus"), ["kata"]);
}

#[tokio::test]
async fn an_image_that_every_store_has_is_present_for_an_unknown_pod() {
    let rig =
        Rig::start(["runc", "kata"].map(|name| Sim::new(name).stores(image("sha256:11")))).await;
    for name in ["runc", "kata"] {
        rig.run_pod(name, name).await;
    }
    let kubelet = Kubelet::new(&rig).restarted();
    for pod in ["runc", "kata"] {
        assert_eq!(
            kubelet.find(pod, APP).await.unwrap(),
            Some(image("sha256:11"))
        );
    }
}

#[tokio::test]
async fn an_image_that_differs_between_stores_is_absent_for_an_unknown_pod() {
    let rig = Rig::start([
        Sim::new("runc").stores(image("sha256:11")),
        Sim::new("kata").stores(image("sha256:22")),
    ])
    .await;
    for name in ["runc", "kata"] {
        rig.run_pod(name, name).await;
    }
    let kubelet = Kubelet::new(&rig).restarted();
    assert_eq!(kubelet.find("kata", APP).await.unwrap(), None);
}

#[tokio::test]
async fn images_do_not_differ_if_only_the_form_of_their_id_differs() {
    let rig = Rig::start([
        Sim::new("runc").stores(image("sha256:11")),
        Sim::new("crio").stores(image("11")),
    ])
    .await;
    for name in ["runc", "crio"] {
        rig.run_pod(name, name).await;
    }
    let kubelet = Kubelet::new(&rig).restarted();
    assert!(kubelet.find("crio", APP).await.unwrap().is_some());
}

/// For a pod with `imagePullPolicy: Never`, the kubelet looks up the image again and never pulls it.
#[tokio::test]
async fn a_pod_that_asks_again_without_a_pull_gets_the_image_of_a_store_that_has_it() {
    let (rig, plain, _) = two_pods().await;
    let id = rig.sim("runc").add_image(APP);
    let kubelet = Kubelet::new(&rig).restarted();
    assert_eq!(kubelet.find("plain", APP).await.unwrap(), None);
    let found = kubelet.find("plain", APP).await.unwrap().unwrap();
    assert_eq!(found.id, id);
    kubelet.create((&plain, "plain"), &id, APP).await.unwrap();
    // criswitch now knows the pod's new annotations.
    forget(&rig);
    kubelet.find("plain", "other:1").await.unwrap();
    assert_eq!(asked(&rig, "ImageStatus"), ["runc"]);
}

#[tokio::test]
async fn an_image_that_no_store_has_stays_absent() {
    let (rig, _, _) = two_pods().await;
    let kubelet = Kubelet::new(&rig).restarted();
    for _ in 0..3 {
        assert_eq!(kubelet.find("plain", APP).await.unwrap(), None);
    }
}

/// The pods `plain` on runc and `boxed` on kata. Only `boxed` has the annotation `team`.
async fn annotated() -> Rig {
    let rig = runc_and_kata().await;
    rig.run_pod("runc", "plain").await;
    let mut config = pod_config("boxed");
    config.annotations.insert("team".into(), "a".into());
    let request = cri::RunPodSandboxRequest {
        config: Some(config),
        runtime_handler: "kata".to_owned(),
    };
    rig.runtime().run_pod_sandbox(request).await.unwrap();
    rig
}

#[tokio::test]
async fn other_annotations_narrow_down_the_stores_of_an_unknown_pod() {
    for restart in [false, true] {
        let mut rig = annotated().await;
        if restart {
            rig.restart_switch().await;
            rig.pods().await.unwrap();
        }
        rig.sim("runc").add_image(APP);
        let kubelet = Kubelet::new(&rig).restarted();
        assert_eq!(
            kubelet.find("plain", APP).await.unwrap(),
            rig.sim("runc").images().pop()
        );
        rig.sim("kata").add_image("box:1");
        assert_eq!(kubelet.find("plain", "box:1").await.unwrap(), None);
    }
}

#[tokio::test]
async fn a_pod_that_is_not_ready_is_not_a_candidate_for_an_unknown_pod() {
    let (rig, _, boxed) = two_pods().await;
    rig.stop_pod(&boxed).await.unwrap();
    rig.pods().await.unwrap();
    let id = rig.sim("runc").add_image(APP);
    let kubelet = Kubelet::new(&rig).restarted();
    assert_eq!(kubelet.find("plain", APP).await.unwrap().unwrap().id, id);
    assert_eq!(asked(&rig, "ImageStatus"), ["runc"]);
}

#[tokio::test]
async fn a_backend_that_is_down_does_not_count_for_an_unknown_pod() {
    let (rig, _, _) = two_pods().await;
    let id = rig.sim("runc").add_image(APP);
    // This pull invalidates kata's cached list of images.
    Kubelet::new(&rig).pull("boxed", "other:1").await.unwrap();
    stopped(&rig, "kata").await;
    let kubelet = Kubelet::new(&rig).restarted();
    assert_eq!(kubelet.find("plain", APP).await.unwrap().unwrap().id, id);
    stopped(&rig, "runc").await;
    Kubelet::new(&rig)
        .pull("plain", "other:1")
        .await
        .unwrap_err();
}

#[tokio::test]
async fn image_status_for_an_unknown_pod_fails_while_every_store_is_down() {
    let (rig, _, _) = two_pods().await;
    for pod in ["plain", "boxed"] {
        Kubelet::new(&rig).pull(pod, APP).await.unwrap();
    }
    for name in ["runc", "kata"] {
        stopped(&rig, name).await;
    }
    let kubelet = Kubelet::new(&rig).restarted();
    let failed = kubelet.find("plain", APP).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable, "{failed}");
}

/// The pod runs on kata, and at first only runc has each image. In `order`, `k` restarts the kubelet and `s` restarts
/// criswitch.
#[tokio::test]
async fn a_container_gets_its_image_after_restarts_in_any_order() {
    for order in ["k", "s", "ks", "sk", "ksk", "sks"] {
        let (mut rig, _, boxed) = two_pods().await;
        let mut start = 0;
        for (step, what) in order.chars().enumerate() {
            match what {
                'k' => start += 1,
                _ => {
                    rig.restart_switch().await;
                    rig.pods().await.unwrap();
                }
            }
            let image = format!("registry.k8s.io/app:{step}");
            rig.sim("runc").add_image(&image);
            let kubelet = (0..start).fold(Kubelet::new(&rig), |kubelet, _| kubelet.restarted());
            let found = kubelet.find("boxed", &image).await.unwrap();
            assert_eq!(found, None, "{order}, {step}");
            let pulled = kubelet.pull("boxed", &image).await.unwrap();
            let boxed = (&*boxed, "boxed");
            let created = kubelet.create(boxed, &pulled, &image).await.unwrap();
            rig.remove(&created).await.unwrap();
            let found = kubelet.find("boxed", &image).await.unwrap();
            assert_eq!(found, rig.sim("kata").images().pop(), "{order}, {step}");
        }
    }
}
