//! A backend whose streams stall behind their first message: one that waits for it finds out, and the next ones go on.

use std::time::Duration;

use criswitch::codec::cri;
use prost::Message;
use tonic::Code;

use crate::calls::send;
use crate::faults::{directly, names, node, told_of};
use crate::support::{RawReply, Rig, Sim, frame_raw};
use crate::wait;

/// What a client waits for.
const DEADLINE: Duration = Duration::from_secs(10);
/// What the switch waits for where something can stand in.
const LIST_TIMEOUT: Duration = Duration::from_secs(1);

/// Five pods at kata, which makes several messages, and one at runc, listed once; kata's streams stall.
async fn stalled() -> Rig {
    let keys = "start_wait = \"0s\"\nlist_timeout = \"1s\"";
    let rig = node(keys, [Sim::new("runc"), Sim::new("kata")]).await;
    for name in 0..5 {
        rig.run_pod("kata", &format!("boxed-{name}")).await;
    }
    rig.run_pod("runc", "plain").await;
    rig.pods().await.unwrap();
    rig.sim("kata").stall_streams();
    rig
}

/// The reply to a stream, unless it takes longer than this.
async fn streamed(rig: &Rig, rpc: &str, within: Duration) -> Option<RawReply> {
    let reply = tokio::time::timeout(within, send(rig, rpc, frame_raw(b"")));
    let reply = reply.await.ok()?;
    assert_eq!(reply.code(), Code::Ok, "{rpc}");
    Some(reply)
}

/// Of `StreamPodSandboxes`.
fn pods_of(reply: &RawReply) -> usize {
    let messages = reply.messages().into_iter();
    let pods = messages.map(|message| {
        let message = cri::StreamPodSandboxesResponse::decode(message).unwrap();
        message.pod_sandboxes.len()
    });
    pods.sum()
}

#[tokio::test]
async fn its_last_known_list_stands_in_for_the_next_stream_until_one_comes_to_its_end() {
    let rig = stalled().await;
    let kata = rig.sim("kata");
    tokio::time::pause();
    assert!(
        streamed(&rig, "StreamPodSandboxes", DEADLINE)
            .await
            .is_none()
    );
    for _ in 0..3 {
        let reply = streamed(&rig, "StreamPodSandboxes", LIST_TIMEOUT).await;
        assert_eq!(pods_of(&reply.expect("it waits each time")), 6);
    }
    tokio::time::resume();
    // Lists in one piece are its own all the while.
    directly(kata).run_pod("kata", "new").await.unwrap();
    assert!(names(&rig.pods().await.unwrap()).contains(&"new"));
    assert_eq!(kata.calls("StreamPodSandboxes").len(), 2);
    kata.resume_streams();
    wait::until(async || told_of(&rig, "kata").await["staleListAgeSeconds"].is_null()).await;
    let reply = streamed(&rig, "StreamPodSandboxes", LIST_TIMEOUT).await;
    assert_eq!(pods_of(&reply.unwrap()), 7);
    assert_eq!(kata.calls("StreamPodSandboxes").len(), 3);
}

#[tokio::test]
async fn streams_of_statistics_go_without_it_then() {
    let rig = stalled().await;
    tokio::time::pause();
    let rpc = "StreamPodSandboxStats";
    assert!(streamed(&rig, rpc, DEADLINE).await.is_none());
    let reply = streamed(&rig, rpc, LIST_TIMEOUT).await;
    assert_eq!(
        reply.expect("it waits again").body,
        rig.sim("runc").sent(rpc)
    );
    tokio::time::resume();
    rig.sim("kata").resume_streams();
    let so_far = rig.sim("kata").sent(rpc).len() + rig.sim("runc").sent(rpc).len();
    wait::until(async || {
        let reply = streamed(&rig, rpc, LIST_TIMEOUT).await;
        reply.is_some_and(|reply| reply.body.len() > so_far)
    })
    .await;
}
