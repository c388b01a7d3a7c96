//! An upgrade: this version restores the states that earlier versions have written.

use std::fs;
use std::path::{Path, PathBuf};

use criswitch::store::{Boot, Found, LastKnown, Saved};
use criswitch_config::Directories;
use criswitch_cri::codec::cri;
use tonic::Code;

use crate::faults::{names, state_of};
use crate::support::Rig;

/// The states that these commits wrote while the backends `runc` and `kata` ran pods. The states have the paths of the
/// sockets, at which nothing listens here: all backends are down.
const COMMITS: [&str; 2] = ["c0d2c554", WITH_STATUSES];
/// The commit whose state has a value in each field: `kata` hung while it created a pod, after a pull and after calls
/// for statuses; the runtime of `runc` was not ready; `gvisor` had never answered.
const WITH_STATUSES: &str = "aeb1114b";
const SOCKETS: &str = "/tmp/criswitch-upgrade";

fn state_of_commit(commit: &str) -> PathBuf {
    PathBuf::from(format!("tests/data/state-{commit}"))
}

async fn upgraded(commit: &str) -> Rig {
    Rig::with_config([], |directory| {
        let to = Path::new(directory).join("criswitch.sock.state");
        fs::create_dir(&to).unwrap();
        for file in fs::read_dir(state_of_commit(commit)).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
        let rows =
            ["runc", "kata", "gvisor"].map(|name| format!("{name} = '{SOCKETS}/{name}.sock'\n"));
        format!(
            "default_handler = 'runc'\nstart_wait = '0s'\n[handlers]\n{}",
            rows.concat()
        )
    })
    .await
}

#[tokio::test]
async fn an_upgrade_keeps_the_lists_the_owners_and_the_handlers_of_earlier_versions() {
    for commit in COMMITS {
        keeps_the_state(&upgraded(commit).await).await;
    }
}

async fn keeps_the_state(rig: &Rig) {
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
        assert_eq!(state_of(rig, backend).await["pods"], count);
    }
}

#[tokio::test]
async fn an_upgrade_keeps_the_statuses_of_a_backend_that_hung() {
    let rig = upgraded(WITH_STATUSES).await;
    let containers = rig.containers().await.unwrap();
    let of_kata = |it: &&cri::Container| it.metadata.as_ref().unwrap().name == "db";
    let container = containers.iter().find(of_kata).unwrap();
    let request = cri::PodSandboxStatusRequest {
        pod_sandbox_id: container.pod_sandbox_id.clone(),
        verbose: false,
    };
    let kept = rig.runtime().pod_sandbox_status(request).await.unwrap();
    assert_eq!(kept.into_inner().status.unwrap().runtime_handler, "kata");
    let request = cri::ContainerStatusRequest {
        container_id: container.id.clone(),
        verbose: false,
    };
    let kept = rig.runtime().container_status(request).await.unwrap();
    let status = kept.into_inner().status.unwrap();
    assert_eq!(status.state(), cri::ContainerState::ContainerRunning);
}

/// Reads the facts that no call shows, so that their fields in the file keep their numbers.
#[test]
fn an_upgrade_reads_each_fact_of_a_backend() {
    let directory = state_of_commit(WITH_STATUSES);
    let directories = Directories {
        runtime: directory.clone(),
        state: directory,
    };
    let boot = Boot {
        id: "first".to_owned(),
        machine: "machine".to_owned(),
    };
    let mut found = Found::look(&directories, &boot).unwrap();
    let mut saved = |name| match found.take(&format!("{SOCKETS}/{name}.sock")) {
        LastKnown::Saved(saved, _) => *saved,
        other => panic!("{name}: {other:?}"),
    };
    let (runc, kata, gvisor): (Saved, Saved, Saved) =
        (saved("runc"), saved("kata"), saved("gvisor"));
    assert!(kata.images_outdated && kata.creating);
    assert!(!kata.pod_statuses.is_empty() && !kata.container_statuses.is_empty());
    assert!(runc.unready_since.is_some() && gvisor.never_answered);
}
