//! Stream lists: every message of every backend, complete, and the true status at the end.

use std::collections::BTreeSet;

use bytes::Bytes;
use criswitch_cri::codec::{cri, protobuf};
use http_body_util::BodyExt;
use tokio_stream::StreamExt;
use tonic::{Code, Status};

use crate::calls::{assert_names_the_dead, narrowed_to, path, send, stopped, text_of};
use crate::faults::node;
use crate::support::{RawReply, Rig, Sim, frame_raw};
use crate::wait::until;

/// Streams, and the unary lists of the same items.
const STREAMS: [(&str, &str); 5] = [
    ("StreamPodSandboxes", "ListPodSandbox"),
    ("StreamContainers", "ListContainers"),
    ("StreamContainerStats", "ListContainerStats"),
    ("StreamPodSandboxStats", "ListPodSandboxStats"),
    ("StreamPodSandboxMetrics", "ListPodSandboxMetrics"),
];

fn every_stream() -> impl Iterator<Item = &'static str> {
    STREAMS.iter().map(|(stream, _)| *stream)
}

/// Five pods on each backend, so that each sends three messages.
async fn five_pods_each(sims: impl IntoIterator<Item = Sim>) -> Rig {
    pods_each(5, sims).await
}

async fn pods_each(pods: usize, sims: impl IntoIterator<Item = Sim>) -> Rig {
    let rig = Rig::start(sims).await;
    for sim in &rig.sims {
        for n in 0..pods {
            rig.run(sim.name(), &format!("{}-{n}", sim.name())).await;
        }
    }
    rig
}

async fn runc_and_kata() -> Rig {
    five_pods_each([Sim::new("runc"), Sim::new("kata")]).await
}

/// Asserts that a stream has exactly the messages that these runtimes sent for these RPCs.
#[track_caller]
fn assert_interleaved(rig: &Rig, rpcs: &[(&str, &str)], reply: &RawReply) {
    assert_eq!(reply.code(), Code::Ok, "{}", text_of(reply));
    let mut messages = reply.messages();
    for (sim, rpc) in rpcs {
        let sent = messages_of(&rig.sim(sim).sent(rpc));
        assert!(!sent.is_empty(), "{rpc}: {sim} sent nothing");
        for message in sent {
            let found = messages.iter().position(|other| *other == message);
            let found = found.unwrap_or_else(|| panic!("{rpc}: a message of {sim} is missing"));
            messages.remove(found);
        }
    }
    assert!(messages.is_empty(), "{} too many", messages.len());
}

fn messages_of(body: &Bytes) -> Vec<Bytes> {
    let (headers, trailers) = Default::default();
    let body = body.clone();
    let reply = RawReply {
        headers,
        body,
        trailers,
    };
    reply.messages()
}

#[tokio::test]
async fn the_cached_list_of_a_stream_does_not_count_as_unread() {
    let rig = runc_and_kata().await;
    for stream in every_stream() {
        let reply = send(&rig, stream, frame_raw(b"")).await;
        assert_eq!(reply.code(), Code::Ok, "{stream}");
        until(async || rig.unread() == 0).await;
    }
}

#[tokio::test]
async fn a_stream_has_every_message_of_every_backend() {
    let rig = runc_and_kata().await;
    for rpc in every_stream() {
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        assert_eq!(reply.messages().len(), 6, "{rpc}");
        assert_interleaved(&rig, &[("runc", rpc), ("kata", rpc)], &reply);
    }
}

/// The number of items in all messages of a reply.
fn items_of(reply: &RawReply) -> usize {
    let messages = reply.messages();
    let items = messages
        .iter()
        .map(|message| protobuf::all_bytes(message, &[1]).unwrap().len());
    items.sum()
}

#[tokio::test]
async fn an_item_that_a_backend_repeats_is_sent_once() {
    let rig = runc_and_kata().await;
    let kata = rig.sim("kata");
    // Another test covers lists of pods and containers.
    let stats = STREAMS[2..].iter().map(|(_, list)| *list);
    for rpc in every_stream().chain(stats) {
        let whole = items_of(&send(&rig, rpc, frame_raw(b"")).await);
        let sent = kata.sent(rpc);
        let again = messages_of(&sent).swap_remove(0);
        kata.append_raw(rpc, again.clone());
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        // Timestamps in stats may differ in length by a few bytes, so the test compares the lengths only roughly.
        let more = kata.sent(rpc).len().saturating_sub(sent.len());
        assert!(more > again.len() / 2, "{rpc}: nothing is repeated");
        assert_eq!(items_of(&reply), whole, "{rpc}");
    }
}

#[tokio::test]
async fn messages_stay_whole_however_a_backend_splits_them() {
    // criswitch treats many small pieces as a flood, so the replies that are cut into small pieces have few pods.
    for (length, pods) in [(3, 1), (7, 1), (64, 5), (1000, 5)] {
        for rpc in every_stream() {
            let rig = pods_each(pods, [Sim::new("runc"), Sim::new("kata")]).await;
            for sim in &rig.sims {
                sim.chop(length);
            }
            let reply = send(&rig, rpc, frame_raw(b"")).await;
            assert_interleaved(&rig, &[("runc", rpc), ("kata", rpc)], &reply);
        }
    }
}

#[tokio::test]
async fn a_stream_keeps_unknown_fields() {
    let newer = |name| Sim::new(name).newer();
    let rig = five_pods_each([newer("runc"), newer("kata")]).await;
    for rpc in every_stream() {
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        assert_interleaved(&rig, &[("runc", rpc), ("kata", rpc)], &reply);
    }
}

#[tokio::test]
async fn a_slow_backend_delays_no_message_of_another_backend() {
    let rig = runc_and_kata().await;
    rig.sim("runc").stall_streams();
    let request = cri::StreamPodSandboxesRequest { filter: None };
    let stream = rig.runtime().stream_pod_sandboxes(request).await.unwrap();
    let mut stream = stream.into_inner();
    let mut handlers = Vec::new();
    // The client receives two pods in runc's first message, and all five pods of kata.
    while handlers.len() < 7 {
        let message = stream.next().await.unwrap().unwrap();
        let pods = message.pod_sandboxes.into_iter();
        handlers.extend(pods.map(|pod| pod.runtime_handler));
    }
    assert_eq!(handlers.iter().filter(|name| *name == "kata").count(), 5);
}

#[tokio::test]
async fn a_backend_that_lacks_a_stream_is_asked_for_the_list() {
    let old = Sim::new("old").lacks(every_stream());
    let rig = five_pods_each([Sim::new("runc"), old]).await;
    for (stream, list) in STREAMS {
        let reply = send(&rig, stream, frame_raw(b"")).await;
        assert_interleaved(&rig, &[("runc", stream), ("old", list)], &reply);
    }
}

#[tokio::test]
async fn a_stream_that_every_backend_lacks_is_made_of_their_lists() {
    let old = |name| Sim::new(name).lacks(every_stream());
    let rig = five_pods_each([old("one"), old("two")]).await;
    for (stream, list) in STREAMS {
        let reply = send(&rig, stream, frame_raw(b"")).await;
        assert_interleaved(&rig, &[("one", list), ("two", list)], &reply);
    }
}

#[tokio::test]
async fn a_narrowed_stream_that_the_owner_lacks_is_made_of_its_list() {
    let old = Sim::new("old").lacks(every_stream());
    let rig = Rig::start([Sim::new("runc"), old]).await;
    let (pod, container) = rig.run("old", "web").await;
    let streams = narrowed_to(&pod, &container, "uid-of-web").into_iter();
    for stream in streams.filter(|list| list.rpc.starts_with("Stream")) {
        let reply = send(&rig, stream.rpc, stream.request.clone()).await;
        let (_, list) = STREAMS.iter().find(|(rpc, _)| *rpc == stream.rpc).unwrap();
        assert_interleaved(&rig, &[("old", list)], &reply);
        let calls = rig.sim("old").calls(list);
        assert_eq!(calls.last().unwrap().body, stream.request, "{stream:?}");
    }
}

#[tokio::test]
async fn streamed_metrics_omit_a_backend_that_lacks_both_stream_and_list() {
    let rpcs = ["StreamPodSandboxMetrics", "ListPodSandboxMetrics"];
    let rig = five_pods_each([Sim::new("runc"), Sim::new("old").lacks(rpcs)]).await;
    let reply = send(&rig, rpcs[0], frame_raw(b"")).await;
    assert_interleaved(&rig, &[("runc", rpcs[0])], &reply);

    let old = |name| Sim::new(name).lacks(rpcs);
    let rig = five_pods_each([old("one"), old("two")]).await;
    let reply = send(&rig, rpcs[0], frame_raw(b"")).await;
    assert_eq!(reply.code(), Code::Unimplemented);
}

#[tokio::test]
async fn streamed_pod_stats_are_unimplemented_if_a_backend_with_pods_lacks_stream_and_list() {
    let rpcs = ["StreamPodSandboxStats", "ListPodSandboxStats"];
    let rig = Rig::start([Sim::new("runc"), Sim::new("old").lacks(rpcs)]).await;
    rig.run("runc", "web").await;
    let reply = send(&rig, rpcs[0], frame_raw(b"")).await;
    assert_interleaved(&rig, &[("runc", rpcs[0])], &reply);
    rig.run("old", "web").await;
    let reply = send(&rig, rpcs[0], frame_raw(b"")).await;
    assert_eq!(reply.code(), Code::Unimplemented);
}

#[tokio::test]
async fn a_stream_without_a_cached_list_fails_with_the_name_of_the_backend_that_is_down() {
    let sims = ["runc", "kata"].map(Sim::new);
    sims[1].hold("ListPodSandbox");
    let rig = node("start_wait = \"0s\"", sims).await;
    stopped(&rig, "kata").await;
    for rpc in ["StreamPodSandboxes", "StreamContainers"] {
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        assert_names_the_dead(&reply, rig.sim("kata"), rpc);
    }
}

#[tokio::test]
async fn the_items_streamed_last_are_served_for_a_dead_backend() {
    let rig = runc_and_kata().await;
    for rpc in ["StreamPodSandboxes", "StreamContainers"] {
        send(&rig, rpc, frame_raw(b"")).await;
    }
    stopped(&rig, "kata").await;
    for rpc in ["StreamPodSandboxes", "StreamContainers"] {
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        assert_eq!(reply.code(), Code::Ok, "{rpc}: {}", text_of(&reply));
        for sim in &rig.sims {
            for message in messages_of(&sim.sent(rpc)) {
                let found = reply
                    .body
                    .windows(message.len())
                    .any(|part| part == message);
                assert!(found, "{rpc}: items of {} are missing", sim.name());
            }
        }
    }
}

#[tokio::test]
async fn streams_of_stats_omit_a_dead_backend() {
    let rig = runc_and_kata().await;
    stopped(&rig, "kata").await;
    for rpc in every_stream().skip(2) {
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        assert_interleaved(&rig, &[("runc", rpc)], &reply);
    }
}

#[tokio::test]
async fn an_empty_message_ends_no_stream() {
    let empty_first = |name| Sim::new(name).set(|settings| settings.empty_message_first = true);
    let rig = five_pods_each([Sim::new("runc"), empty_first("kata")]).await;
    for rpc in every_stream() {
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        assert_eq!(reply.code(), Code::Ok, "{rpc}");
        let messages = reply.messages();
        assert_eq!(
            messages.iter().filter(|m| !m.is_empty()).count(),
            6,
            "{rpc}"
        );
    }
}

#[tokio::test]
async fn a_stream_ends_with_the_error_of_a_backend_that_fails_during_it() {
    let rig = runc_and_kata().await;
    let words = "DataLoss: 50% of caf\u{e9}s";
    rig.sim("kata").end_streams(Status::data_loss(words));
    for rpc in every_stream() {
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        let text = text_of(&reply);
        assert_eq!(reply.code(), Code::DataLoss, "{rpc}: {text}");
        assert!(text.starts_with(words), "{rpc}: {text}");
        assert!(text.contains("kata"), "{rpc}: {text}");
    }
}

#[tokio::test]
async fn a_stream_never_looks_complete_when_a_backend_dies_during_it() {
    for rpc in every_stream() {
        let rig = runc_and_kata().await;
        let kata = rig.sim("kata");
        kata.stall_streams();
        let client = crate::support::RawClient::connect(&rig.socket).await;
        let reply = client.begin(&path(rpc), &[], frame_raw(b"")).await.unwrap();
        let (head, mut body) = reply.into_parts();
        // The stream begins with runc's three messages and kata's first.
        let mut whole = Vec::new();
        while messages_in(&whole) < 4 {
            let frame = body.frame().await.unwrap().unwrap();
            whole.extend_from_slice(&frame.into_data().unwrap());
        }
        kata.stop().await;
        let rest = body.collect().await.unwrap();
        let reply = RawReply {
            headers: head.headers,
            trailers: rest.trailers().cloned().unwrap_or_default(),
            body: rest.to_bytes(),
        };
        let text = text_of(&reply);
        assert_eq!(reply.code(), Code::Unavailable, "{rpc}: {text}");
        assert!(text.contains("kata"), "{rpc}: {text}");
    }
}

/// The number of complete messages in these bytes.
fn messages_in(mut bytes: &[u8]) -> usize {
    let mut count = 0;
    while let Some([_, length @ ..]) = bytes.first_chunk::<5>() {
        let length = u32::from_be_bytes(*length) as usize;
        let Some(rest) = bytes.get(5 + length..) else {
            break;
        };
        (bytes, count) = (rest, count + 1);
    }
    count
}

#[tokio::test]
async fn a_stream_of_a_single_backend_never_looks_complete_when_it_dies() {
    let rig = five_pods_each([Sim::new("runc")]).await;
    rig.sim("runc").stall_streams();
    let request = cri::StreamPodSandboxesRequest { filter: None };
    let stream = rig.runtime().stream_pod_sandboxes(request).await.unwrap();
    let mut stream = stream.into_inner();
    stream.next().await.unwrap().unwrap();
    rig.sim("runc").stop().await;
    let end = stream.next().await.unwrap().unwrap_err();
    assert_eq!(end.code(), Code::Unavailable);
    assert!(end.message().contains("runc"), "{end}");
}

#[tokio::test]
async fn a_stream_without_items_succeeds() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    for rpc in every_stream() {
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        assert_eq!((reply.code(), reply.body.len()), (Code::Ok, 0), "{rpc}");
    }
}

#[tokio::test]
async fn a_stream_cancelled_by_its_client_ends_at_every_backend() {
    let rig = runc_and_kata().await;
    for sim in &rig.sims {
        sim.hold("StreamContainers");
    }
    let call = send(&rig, "StreamContainers", frame_raw(b""));
    let held = async {
        for sim in &rig.sims {
            sim.until_held("StreamContainers").await;
        }
    };
    tokio::select! {
        _ = call => panic!("answered while held"),
        () = held => {}
    }
    for sim in &rig.sims {
        sim.until(|journal| journal.cancelled == ["StreamContainers"])
            .await;
    }
}

#[test]
fn the_tests_know_every_stream_of_pods_and_containers() {
    let rows = criswitch_cri::rpc::ROWS.iter().filter(|row| row.streams());
    let names = rows
        .map(|row| row.name)
        .filter(|name| !["StreamImages", "GetContainerEvents"].contains(name));
    let known: BTreeSet<_> = every_stream().collect();
    assert_eq!(known, names.collect());
}
