//! Merged stats omit a silent backend that has no cached stats. Status and one log line report the omission.

use tonic::Code;

use crate::calls::{assert_names_the_dead, narrowed_to, send, stopped, text_of};
use crate::faults::{hung, runc_and_kata, state_of, until_state, wake};
use crate::logged::Logged;
use crate::support::frame_raw;

const STATISTICS: [&str; 6] = [
    "ListContainerStats",
    "ListPodSandboxStats",
    "ListPodSandboxMetrics",
    "StreamContainerStats",
    "StreamPodSandboxStats",
    "StreamPodSandboxMetrics",
];

/// criswitch does not decode the items of these lists completely. It must still detect a reply that ends within an
/// item.
const UNREAD: [&str; 5] = [
    "/runtime.v1.RuntimeService/ListContainerStats",
    "/runtime.v1.RuntimeService/ListPodSandboxStats",
    "/runtime.v1.RuntimeService/ListPodSandboxMetrics",
    "/runtime.v1.RuntimeService/ListMetricDescriptors",
    "/runtime.v1.ImageService/ListImages",
];

#[tokio::test]
async fn stats_omit_a_hung_backend_at_once_until_it_answers() {
    let logged = Logged::here();
    let rig = runc_and_kata().await;
    for handler in ["runc", "kata"] {
        rig.run(handler, &format!("on-{handler}")).await;
    }
    hung(&rig, "kata").await;
    for rpc in STATISTICS {
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        assert_eq!(reply.code(), Code::Ok, "{rpc}");
        let own = rig.sim("runc").sent(rpc);
        assert!(
            reply.body == own && !own.is_empty(),
            "{rpc}: not runc's alone"
        );
    }
    assert_eq!(state_of(&rig, "kata").await["repliesOmitted"], 6);
    assert_eq!(
        logged
            .lines(&["omitting it from merged replies", "kata"])
            .len(),
        1
    );
    wake(rig.sim("kata"));
    until_state(&rig, "kata", "ready").await;
    let reply = send(&rig, "ListPodSandboxStats", frame_raw(b"")).await;
    let parts = ["runc", "kata"].map(|name| rig.sim(name).sent("ListPodSandboxStats"));
    assert_eq!(
        reply.messages(),
        [parts.map(|part| part[5..].to_vec()).concat()]
    );
}

/// An empty list would mean that nothing runs.
#[tokio::test]
async fn stats_that_only_dead_backends_have_are_an_error() {
    let rig = runc_and_kata().await;
    let (pod, container) = rig.run("kata", "web").await;
    stopped(&rig, "kata").await;
    for list in narrowed_to(&pod, &container, "uid-of-web") {
        if STATISTICS.contains(&list.rpc) {
            let reply = send(&rig, list.rpc, list.request).await;
            assert_names_the_dead(&reply, rig.sim("kata"), list.rpc);
        }
    }
    rig.sim("runc").stop().await;
    for rpc in STATISTICS {
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        assert_eq!(reply.code(), Code::Unavailable, "{rpc}");
    }
}

/// A backend's reply ends within a field. If criswitch appended the next backend's stats to this reply, that field
/// would swallow the start of these stats.
#[tokio::test]
async fn incomplete_stats_of_a_backend_do_not_reach_clients_and_are_named() {
    let rig = runc_and_kata().await;
    for handler in ["runc", "kata"] {
        rig.run(handler, &format!("on-{handler}")).await;
    }
    for path in UNREAD {
        let (_, rpc) = path.rsplit_once('/').unwrap();
        // These bytes begin a field of 127 bytes, without its content.
        rig.sim("runc").append_raw(rpc, b"\x0a\x7f".as_slice());
        let reply = rig.raw(path, &[], frame_raw(b"")).await;
        assert_eq!(reply.code(), Code::Ok, "{rpc}: {}", text_of(&reply));
        let end = &reply.body[reply.body.len() - 2..];
        assert!(reply.body.len() > 7 && end != b"\x0a\x7f", "{rpc}");
        let failing = state_of(&rig, "runc").await["failingRpcs"].clone();
        assert_eq!(failing[0]["rpc"], rpc, "{failing}");
        let cause = failing[0]["cause"].as_str().unwrap();
        assert!(cause.starts_with("Internal: ") && cause.contains("malformed"));
        rig.sim("runc").append_raw(rpc, b"".as_slice());
        let reply = rig.raw(path, &[], frame_raw(b"")).await;
        assert_eq!(reply.code(), Code::Ok, "{rpc}: {}", text_of(&reply));
        let failing = state_of(&rig, "runc").await["failingRpcs"].clone();
        assert_eq!(failing.as_array().unwrap().len(), 0, "{rpc}: {failing}");
    }
}
