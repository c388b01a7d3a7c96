//! The switch ends at any moment, in order or killed, and the next one goes on where it was.

use crate::binary::Node;
use crate::faults::{names, runc_and_kata};
use crate::wait::until;

#[tokio::test]
async fn a_new_switch_has_every_pod_once_and_its_owner() {
    let mut rig = runc_and_kata().await;
    let (pod, container) = rig.run("kata", "boxed").await;
    rig.run("runc", "plain").await;
    for _ in 0..3 {
        rig.restart_switch().await;
        assert_eq!(names(&rig.pods().await.unwrap()), ["boxed", "plain"]);
        assert_eq!(rig.containers().await.unwrap().len(), 2);
    }
    rig.stop(&container).await.unwrap();
    rig.remove_pod(&pod).await.unwrap();
    assert_eq!(names(&rig.pods().await.unwrap()), ["plain"]);
}

#[tokio::test]
async fn the_socket_is_back_when_the_new_one_has_started_and_old_clients_go_on() {
    let mut rig = runc_and_kata().await;
    rig.run("kata", "web").await;
    // Made before; its channel dials again by itself, as the kubelet's does.
    let client = crate::support::Client::new(&rig.socket);
    client.pods().await.unwrap();
    rig.restart_switch().await;
    until(async || client.pods().await.is_ok()).await;
}

#[tokio::test]
async fn killed_in_the_middle_of_calls_it_leaves_nothing_in_the_way_of_the_next() {
    let node = Node::new();
    let mut created = 0;
    for moment in [
        "idle",
        "RunPodSandbox",
        "ListPodSandbox",
        "GetContainerEvents",
    ] {
        let process = node.serve().await;
        node.runc.hold(moment);
        let kill = async {
            if moment != "idle" {
                let held =
                    |journal: &crate::support::Journal| journal.held.contains(&moment.to_owned());
                node.runc.until(held).await;
            }
            process.signal("KILL");
            process.end().await
        };
        let events = criswitch::cri::GetEventsRequest {};
        let mut runtime = node.client.runtime();
        let (_, _, _, output) = tokio::join!(
            async {
                if moment == "RunPodSandbox" {
                    node.client.run_pod("", "cut").await.unwrap_err();
                }
            },
            async {
                if moment == "ListPodSandbox" {
                    node.client.pods().await.unwrap_err();
                }
            },
            async {
                // Kept to the end: dropped, it takes the backend's stream with it.
                match moment {
                    "GetContainerEvents" => runtime.get_container_events(events).await.ok(),
                    _ => None,
                }
            },
            kill
        );
        assert_eq!(output.status.code(), None, "{moment}");
        node.runc.release(moment);
        let _next = node.serve().await;
        assert_eq!(node.client.pods().await.unwrap().len(), created, "{moment}");
        node.client.run_pod("", moment).await.unwrap();
        created += 1;
        assert_eq!(
            node.client.pods().await.unwrap(),
            node.runc.pods(),
            "{moment}"
        );
    }
    // Its socket, what it was started with, and the runtime's: nothing piled up.
    let files = std::fs::read_dir(node.socket_directory()).unwrap();
    let names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
    assert!(names.len() <= 2, "{names:?}");
}

#[tokio::test]
async fn a_pod_that_was_made_while_the_switch_was_killed_is_there_afterwards() {
    let node = Node::new();
    let process = node.serve().await;
    node.runc.hold_reply("RunPodSandbox");
    let kill = async {
        node.runc.until_done("RunPodSandbox").await;
        process.signal("KILL");
        process.end().await
    };
    let (failed, _) = tokio::join!(node.client.run_pod("", "web"), kill);
    failed.unwrap_err();
    let _next = node.serve().await;
    let pods = node.client.pods().await.unwrap();
    assert_eq!(names(&pods), ["web"]);
    assert_eq!(node.runc.calls("RunPodSandbox").len(), 1);
    node.client.remove_pod(&pods[0].id).await.unwrap();
}
