//! A pull may take any time. It continues even if its backend is too busy to answer a probe.

use std::time::Duration;

use criswitch_cri::codec::cri;
use tonic::Status;

use crate::faults::{hung, node, state_of};
use crate::support::{Rig, Sim, image_spec};

/// The time after which a probe has detected a hang: longer than the time until an idle backend is probed, plus the
/// timeout of the probe.
const FOUND_OUT: Duration = Duration::from_secs(9);

async fn pull(rig: &Rig) -> Result<String, Status> {
    let request = cri::PullImageRequest {
        image: Some(image_spec("app")),
        ..Default::default()
    };
    let pulled = rig.images().pull_image(request).await?;
    Ok(pulled.into_inner().image_ref)
}

/// Pulls an image into every store. The backend `busy` completes its pull only after it has missed a probe.
async fn pulled_by_a_busy(busy: &str, sims: &[Sim]) -> Rig {
    let rig = Rig::start(sims.to_vec()).await;
    rig.pods().await.unwrap();
    let sim = rig.sim(busy);
    sim.hold_reply("PullImage");
    let busy_with_it = async {
        sim.until_done("PullImage").await;
        sim.hold("Version");
        tokio::time::sleep(FOUND_OUT).await;
        assert_eq!(state_of(&rig, busy).await["state"], "unresponsive");
        sim.release("PullImage");
    };
    let (pulled, ()) = tokio::join!(pull(&rig), busy_with_it);
    assert_eq!(pulled.unwrap(), sims[0].images()[0].id);
    assert!(!sim.cancelled().iter().any(|rpc| rpc.contains("PullImage")));
    sim.release("Version");
    rig
}

#[tokio::test]
async fn a_pull_with_one_backend_survives_an_unanswered_probe() {
    pulled_by_a_busy("runc", &[Sim::new("runc")]).await;
}

#[tokio::test]
async fn a_pull_into_every_store_survives_an_unanswered_probe() {
    pulled_by_a_busy("kata", &[Sim::new("runc"), Sim::new("kata")]).await;
}

#[tokio::test]
async fn a_pull_into_every_store_is_not_sent_to_a_backend_that_hangs() {
    let keys = "start_wait = \"0s\"\nlist_timeout = \"200ms\"";
    let rig = node(keys, [Sim::new("runc"), Sim::new("kata")]).await;
    rig.pods().await.unwrap();
    hung(&rig, "kata").await;
    let failed = pull(&rig).await.unwrap_err();
    assert!(failed.message().contains("\"kata\""), "{failed}");
    assert_eq!(rig.sim("runc").images().len(), 1);
    assert!(rig.sim("kata").calls("PullImage").is_empty());
}
