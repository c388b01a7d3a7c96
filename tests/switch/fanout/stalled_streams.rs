//! A backend whose streams stall after their first message: the first stream waits for `list_timeout` or
//! `stats_timeout`, later streams do not wait.

use std::time::Duration;

use criswitch_cri::codec::cri;
use prost::Message;
use tonic::Code;

use crate::calls::send;
use crate::faults::{directly, names, node, state_of};
use crate::support::{RawReply, Rig, Sim, frame_raw};
use crate::wait;

/// The deadline of a client.
const DEADLINE: Duration = Duration::from_secs(10);
/// The time that criswitch waits for a backend with a cached list.
const LIST_TIMEOUT: Duration = Duration::from_secs(1);

/// Five pods at kata, in several messages, and one at runc, all listed once. kata's streams stall.
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

/// The reply to a stream, or `None` after `within`.
async fn streamed(rig: &Rig, rpc: &str, within: Duration) -> Option<RawReply> {
    let reply = tokio::time::timeout(within, send(rig, rpc, frame_raw(b"")))
        .await
        .ok()?;
    assert_eq!(reply.code(), Code::Ok, "{rpc}");
    Some(reply)
}

/// The number of pods in a reply to `StreamPodSandboxes`.
fn pods_of(reply: &RawReply) -> usize {
    let messages = reply.messages().into_iter();
    let pods = messages.map(|message| {
        let message = cri::StreamPodSandboxesResponse::decode(message).unwrap();
        message.pod_sandboxes.len()
    });
    pods.sum()
}

#[tokio::test]
async fn later_streams_are_served_from_cache_until_a_stream_of_the_backend_ends() {
    let rig = stalled().await;
    let kata = rig.sim("kata");
    let reply = streamed(&rig, "StreamPodSandboxes", DEADLINE).await;
    assert_eq!(pods_of(&reply.unwrap()), 6);
    for _ in 0..3 {
        let reply = streamed(&rig, "StreamPodSandboxes", LIST_TIMEOUT).await;
        assert_eq!(pods_of(&reply.expect("it waits each time")), 6);
    }
    // Unary lists are not served from cache while the streams stall.
    directly(kata).run_pod("kata", "new").await.unwrap();
    assert!(names(&rig.pods().await.unwrap()).contains(&"new"));
    assert_eq!(kata.calls("StreamPodSandboxes").len(), 2);
    kata.resume_streams();
    wait::until(async || state_of(&rig, "kata").await["staleListAgeSeconds"].is_null()).await;
    let reply = streamed(&rig, "StreamPodSandboxes", LIST_TIMEOUT).await;
    assert_eq!(pods_of(&reply.unwrap()), 7);
    assert_eq!(kata.calls("StreamPodSandboxes").len(), 3);
}

#[tokio::test]
async fn later_streams_of_stats_omit_a_stalled_backend() {
    let rig = stalled().await;
    let rpc = "StreamPodSandboxStats";
    for within in [DEADLINE, LIST_TIMEOUT] {
        let reply = streamed(&rig, rpc, within).await.expect("it waits again");
        assert_eq!(reply.body, rig.sim("runc").sent(rpc));
    }
    rig.sim("kata").resume_streams();
    let so_far = rig.sim("kata").sent(rpc).len() + rig.sim("runc").sent(rpc).len();
    wait::until(async || {
        let reply = streamed(&rig, rpc, LIST_TIMEOUT).await;
        reply.is_some_and(|reply| reply.body.len() > so_far)
    })
    .await;
}
