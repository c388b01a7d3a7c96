//! Streamed lists: every item of every backend, like the unary lists.

use std::collections::BTreeSet;

use bytes::Bytes;
use criswitch_cri::codec::{cri, protobuf};
use tokio_stream::StreamExt;
use tonic::{Code, Status};

use crate::calls::{assert_names_the_dead, narrowed_to, send, stopped, text_of};
use crate::faults::{directly, node};
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

/// Five pods on each backend.
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

/// Asserts that a stream has exactly the items that these runtimes sent for these RPCs.
#[track_caller]
fn assert_merged(rig: &Rig, rpcs: &[(&str, &str)], reply: &RawReply) {
    assert_eq!(reply.code(), Code::Ok, "{}", text_of(reply));
    let mut sent = Vec::new();
    for (sim, rpc) in rpcs {
        let items = items_of(&messages_of(&rig.sim(sim).sent(rpc)));
        assert!(!items.is_empty(), "{rpc}: {sim} sent nothing");
        sent.extend(items);
    }
    let mut items = items_of(&reply.messages());
    items.sort_unstable();
    sent.sort_unstable();
    assert!(items == sent, "{} items of {}", items.len(), sent.len());
}

/// The items in these messages, and their other fields.
fn items_of(messages: &[Bytes]) -> Vec<Bytes> {
    let fields = messages.iter().flat_map(|message| {
        let fields = protobuf::fields(message);
        fields.map(|field| Bytes::copy_from_slice(field.unwrap().raw))
    });
    fields.collect()
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
async fn a_stream_has_every_item_of_every_backend() {
    let rig = runc_and_kata().await;
    for rpc in every_stream() {
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        assert_merged(&rig, &[("runc", rpc), ("kata", rpc)], &reply);
    }
}

#[tokio::test]
async fn an_item_that_a_backend_repeats_is_sent_once() {
    let rig = runc_and_kata().await;
    let kata = rig.sim("kata");
    // Another test covers lists of pods and containers.
    let stats = STREAMS[2..].iter().map(|(_, list)| *list);
    for rpc in every_stream().chain(stats) {
        let whole = items_of(&send(&rig, rpc, frame_raw(b"")).await.messages()).len();
        let sent = kata.sent(rpc);
        let again = messages_of(&sent).swap_remove(0);
        kata.append_raw(rpc, again.clone());
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        // Timestamps in stats may differ in length by a few bytes, so the test compares the lengths only roughly.
        let more = kata.sent(rpc).len().saturating_sub(sent.len());
        assert!(more > again.len() / 2, "{rpc}: nothing is repeated");
        assert_eq!(items_of(&reply.messages()).len(), whole, "{rpc}");
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
            assert_merged(&rig, &[("runc", rpc), ("kata", rpc)], &reply);
        }
    }
}

#[tokio::test]
async fn a_stream_keeps_unknown_fields() {
    let newer = |name| Sim::new(name).newer();
    let rig = five_pods_each([newer("runc"), newer("kata")]).await;
    for rpc in every_stream() {
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        assert_merged(&rig, &[("runc", rpc), ("kata", rpc)], &reply);
    }
}

#[tokio::test]
async fn a_backend_that_lacks_a_stream_is_asked_for_the_list() {
    let old = Sim::new("old").lacks(every_stream());
    let rig = five_pods_each([Sim::new("runc"), old]).await;
    for (stream, list) in STREAMS {
        let reply = send(&rig, stream, frame_raw(b"")).await;
        assert_merged(&rig, &[("runc", stream), ("old", list)], &reply);
    }
}

#[tokio::test]
async fn a_stream_that_every_backend_lacks_is_made_of_their_lists() {
    let old = |name| Sim::new(name).lacks(every_stream());
    let rig = five_pods_each([old("one"), old("two")]).await;
    for (stream, list) in STREAMS {
        let reply = send(&rig, stream, frame_raw(b"")).await;
        assert_merged(&rig, &[("one", list), ("two", list)], &reply);
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
        assert_merged(&rig, &[("old", list)], &reply);
        let calls = rig.sim("old").calls(list);
        assert_eq!(calls.last().unwrap().body, stream.request, "{stream:?}");
    }
}

#[tokio::test]
async fn streamed_metrics_omit_a_backend_that_lacks_both_stream_and_list() {
    let rpcs = ["StreamPodSandboxMetrics", "ListPodSandboxMetrics"];
    let rig = five_pods_each([Sim::new("runc"), Sim::new("old").lacks(rpcs)]).await;
    let reply = send(&rig, rpcs[0], frame_raw(b"")).await;
    assert_merged(&rig, &[("runc", rpcs[0])], &reply);

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
    assert_merged(&rig, &[("runc", rpcs[0])], &reply);
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
        assert_merged(&rig, &[("runc", rpc)], &reply);
    }
}

#[tokio::test]
async fn an_empty_message_ends_no_stream() {
    let empty_first = |name| Sim::new(name).set(|settings| settings.empty_message_first = true);
    let rig = five_pods_each([Sim::new("runc"), empty_first("kata")]).await;
    for rpc in every_stream() {
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        assert_merged(&rig, &[("runc", rpc), ("kata", rpc)], &reply);
    }
}

#[tokio::test]
async fn a_stream_has_the_cached_items_of_a_backend_that_fails_or_dies_during_it() {
    for rpc in every_stream() {
        let rig = runc_and_kata().await;
        let kata = rig.sim("kata");
        let whole = items_of(&send(&rig, rpc, frame_raw(b"")).await.messages()).len();
        kata.end_streams(Status::data_loss("no more"));
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        assert_eq!(reply.code(), Code::Ok, "{rpc}: {}", text_of(&reply));
        assert_eq!(items_of(&reply.messages()).len(), whole, "{rpc}");

        kata.stall_streams();
        let asked = kata.calls(rpc).len();
        let dies = async {
            until(async || kata.calls(rpc).len() > asked).await;
            kata.stop().await;
        };
        let (reply, ()) = tokio::join!(send(&rig, rpc, frame_raw(b"")), dies);
        assert_eq!(reply.code(), Code::Ok, "{rpc}: {}", text_of(&reply));
        assert_eq!(items_of(&reply.messages()).len(), whole, "{rpc}");
    }
}

#[tokio::test]
async fn a_long_list_is_streamed_in_small_messages() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    for number in 0..10 {
        for sim in &rig.sims {
            let name = format!("{number}-{}", "x".repeat(3 << 10));
            directly(sim).run_pod("", &name).await.unwrap();
        }
    }
    let rpc = "StreamPodSandboxes";
    let reply = send(&rig, rpc, frame_raw(b"")).await;
    assert_merged(&rig, &[("runc", rpc), ("kata", rpc)], &reply);
    let messages = reply.messages();
    assert!(messages.iter().all(|message| message.len() <= 64 << 10));
    assert!((2..20).contains(&messages.len()), "{}", messages.len());
}

#[tokio::test]
async fn a_stream_of_a_single_backend_never_looks_complete_when_it_dies() {
    let rig = Rig::start([Sim::new("runc")]).await;
    let runc = directly(rig.sim("runc"));
    for name in ["a", "b", "c"] {
        runc.run_pod("", name).await.unwrap();
    }
    rig.sim("runc").stall_streams();
    let request = cri::StreamPodSandboxesRequest { filter: None };
    let mut stream = rig
        .runtime()
        .stream_pod_sandboxes(request)
        .await
        .unwrap()
        .into_inner();
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
