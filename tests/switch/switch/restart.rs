//! The switch ends at any moment, in order or killed, and the next one goes on where it was.

use criswitch::codec::cri::GetEventsRequest;

use crate::faults::{names, runc_and_kata};
use crate::server::binary::Node;
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

/// What is under way when the switch is killed; it does not end well. Events are kept: dropped, they would take the
/// backend's stream with them.
async fn call(node: &Node, rpc: &str) -> Option<impl Sized> {
    match rpc {
        "RunPodSandbox" => drop(node.client.run_pod("", "cut").await.unwrap_err()),
        "ListPodSandbox" => drop(node.client.pods().await.unwrap_err()),
        _ => {
            let events = GetEventsRequest {};
            return node
                .client
                .runtime()
                .get_container_events(events)
                .await
                .ok();
        }
    }
    None
}

#[tokio::test]
async fn killed_in_the_middle_of_calls_it_leaves_nothing_in_the_way_of_the_next() {
    let node = Node::new();
    let rpcs = ["RunPodSandbox", "ListPodSandbox", "GetContainerEvents"];
    for (pods, rpc) in rpcs.into_iter().enumerate() {
        let process = node.serve().await;
        node.runc.hold(rpc);
        let kill = async {
            node.runc
                .until(|journal| journal.held.contains(&rpc.to_owned()))
                .await;
            process.signal("KILL");
            process.end().await
        };
        let (_kept, output) = tokio::join!(call(&node, rpc), kill);
        assert_eq!(output.status.code(), None, "{rpc}");
        // The backend has seen it go: released before that, it would still make the pod.
        node.runc
            .until(|journal| journal.cancelled.contains(&rpc.to_owned()))
            .await;
        node.runc.release(rpc);
        let _next = node.serve().await;
        assert_eq!(node.client.pods().await.unwrap().len(), pods, "{rpc}");
        node.client.run_pod("", rpc).await.unwrap();
        assert_eq!(node.client.pods().await.unwrap(), node.runc.pods(), "{rpc}");
    }
    // Its socket, and beside it the lock and the state: nothing piles up.
    let files = std::fs::read_dir(node.socket_directory()).unwrap();
    let names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
    assert!(names.len() <= 3, "{names:?}");
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
