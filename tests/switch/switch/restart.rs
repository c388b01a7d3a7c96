//! criswitch ends at any time, by a shutdown or a kill, and the next process continues from the saved state.

use std::time::Duration;

use criswitch_cri::codec::cri::GetEventsRequest;

use crate::calls::{By, holds, narrowed_to, send};
use crate::faults::{directly, names, node, runc_and_kata, until_state};
use crate::server::binary::Node;
use crate::support::{Client, Rig, Sim, clock};
use crate::wait::until;

#[tokio::test]
async fn after_a_restart_every_pod_is_listed_once_and_has_its_owner() {
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
async fn clients_reconnect_after_a_restart() {
    let mut rig = runc_and_kata().await;
    rig.run("kata", "web").await;
    // This client is created before the restart. Its channel reconnects automatically, as the kubelet's channel does.
    let client = crate::support::Client::new(&rig.socket);
    client.pods().await.unwrap();
    rig.restart_switch().await;
    until(async || client.pods().await.is_ok()).await;
}

/// Makes a call, which fails because criswitch is killed while the call is in flight. Returns a stream of events, if
/// any: dropping the stream would end the backend's stream too early.
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
async fn criswitch_killed_during_calls_leaves_nothing_that_blocks_the_next_process() {
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
        // Wait until the backend has noticed the disconnect. A call that is released earlier would still create the
        // pod.
        node.runc
            .until(|journal| journal.cancelled.contains(&rpc.to_owned()))
            .await;
        node.runc.release(rpc);
        let _next = node.serve().await;
        assert_eq!(node.client.pods().await.unwrap().len(), pods, "{rpc}");
        node.client.run_pod("", rpc).await.unwrap();
        assert_eq!(node.client.pods().await.unwrap(), node.runc.pods(), "{rpc}");
    }
    // Only the socket, the lock and the state are left, so files do not accumulate.
    let files = std::fs::read_dir(node.socket_directory()).unwrap();
    let names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
    assert!(names.len() <= 3, "{names:?}");
}

#[tokio::test]
async fn a_pod_created_while_criswitch_was_killed_is_listed_afterwards() {
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

/// Lists pods by the uid of `web`. Returns for each of `pods` whether the list has it, and for each backend how many
/// such list calls it has received so far.
async fn listed_by_uid(rig: &Rig, pods: [&str; 2]) -> ([bool; 2], Vec<usize>) {
    let mut lists = narrowed_to("", "", "uid-of-web")
        .into_iter()
        .filter(|list| list.rpc == "ListPodSandbox" && list.by == By::Uid);
    let request = lists.next().unwrap().request;
    let reply = send(rig, "ListPodSandbox", request.clone()).await;
    let asked = rig.sims.iter().map(|sim| {
        let calls = sim.calls("ListPodSandbox");
        calls.iter().filter(|call| call.body == request).count()
    });
    (pods.map(|pod| holds(&reply, pod)), asked.collect())
}

#[tokio::test]
async fn a_pod_created_after_a_restart_by_an_earlier_call_is_in_lists_filtered_by_its_uid() {
    let sims = ["runc", "kata", "third"].map(Sim::new);
    let mut rig = node("start_wait = \"0s\"", sims).await;
    // The pod's handler was changed: the old sandbox is on kata, and the kubelet creates the new one on runc.
    let old = rig.run_pod("kata", "web").await;
    let runc = rig.sim("runc").clone();
    runc.hold("RunPodSandbox");
    let client = Client::new(&rig.socket);
    let end = async {
        runc.until_held("RunPodSandbox").await;
        rig.restart_switch().await;
    };
    let (failed, ()) = tokio::join!(client.run_pod("runc", "web"), end);
    failed.unwrap_err();
    runc.until(|journal| !journal.cancelled.is_empty()).await;
    runc.release("RunPodSandbox");
    for sim in &rig.sims {
        until_state(&rig, sim.name(), "ready").await;
    }
    // A real runtime may complete the cancelled call later. The test creates the pod of that call directly.
    let new = directly(&runc).run_pod("runc", "web").await.unwrap();
    assert_eq!(
        listed_by_uid(&rig, [&old, &new]).await,
        ([true; 2], vec![1; 3])
    );
    clock::later(Duration::from_secs(311)).await;
    rig.pods().await.unwrap();
    assert_eq!(
        listed_by_uid(&rig, [&old, &new]).await,
        ([true; 2], vec![2, 2, 1])
    );
}
