//! An upgrade: this version restores the state that the version before it has written.

use std::fs;
use std::path::Path;

use criswitch_cri::codec::cri;
use tonic::Code;

use crate::faults::{names, state_of};
use crate::support::Rig;

/// The state that commit c0d2c554 wrote while its backends `runc` and `kata` ran pods. The state has the paths of their
/// sockets, at which nothing listens here: both backends are down.
const STATE: &str = "tests/data/state-c0d2c554";
const TABLE: &str = "default_handler = 'runc'
start_wait = '0s'
[handlers]
runc = '/tmp/criswitch-upgrade/runc.sock'
kata = '/tmp/criswitch-upgrade/kata.sock'";

async fn upgraded() -> Rig {
    Rig::with_config([], |directory| {
        let to = Path::new(directory).join("criswitch.sock.state");
        fs::create_dir(&to).unwrap();
        for file in fs::read_dir(STATE).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
        TABLE.to_owned()
    })
    .await
}

#[tokio::test]
async fn an_upgrade_keeps_the_lists_the_owners_and_the_handlers_of_the_version_before() {
    let rig = upgraded().await;
    let pods = rig.pods().await.unwrap();
    assert_eq!(names(&pods), ["db", "plain", "web"]);
    let handlers: Vec<_> = pods.iter().map(|pod| &pod.runtime_handler).collect();
    assert_eq!(handlers, ["runc", "runc", "kata"], "{pods:?}");
    assert_eq!(rig.containers().await.unwrap().len(), 3);
    let request = cri::ListImagesRequest { filter: None };
    let images = rig.images().list_images(request).await.unwrap();
    assert!(!images.into_inner().images.is_empty());
    for pod in &pods {
        let stopped = rig.stop_pod(&pod.id).await.unwrap_err();
        assert_eq!(stopped.code(), Code::Unavailable);
        let backend = format!("backend \"{}\"", pod.runtime_handler);
        assert!(stopped.message().contains(&backend), "{stopped}");
    }
    for (backend, count) in [("runc", 2), ("kata", 1)] {
        assert_eq!(state_of(&rig, backend).await["pods"], count);
    }
}
