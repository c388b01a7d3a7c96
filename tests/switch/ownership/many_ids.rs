//! The number of pods and containers that criswitch remembers for a backend is limited, whatever the backend lists.

use criswitch::ownership::{LONGEST_ID, MOST};
use tonic::Code;

use crate::calls::{part, send, text_of};
use crate::faults::{names, state_of};
use crate::support::misbehaving::*;
use crate::support::{RawReply, Rig, Sim, frame_raw};

/// A runtime with one pod, and a misbehaving runtime whose streams are larger than a cached list may be.
async fn beside(misbehaviour: Misbehaviour) -> (Rig, Misbehaving) {
    let keys = "max_message = '1MiB'";
    let (rig, bad) = Rig::beside_bad(Sim::new("runc"), keys, misbehaviour).await;
    rig.run("runc", "web").await;
    rig.pods().await.unwrap();
    bad.misbehave();
    (rig, bad)
}

async fn stream(rig: &Rig) -> RawReply {
    send(rig, "StreamPodSandboxes", frame_raw(b"")).await
}

/// The number of pods or containers that criswitch knows of the backend `bad`.
async fn known(rig: &Rig, what: &str) -> usize {
    let shown = state_of(rig, "bad").await;
    shown[what].as_u64().unwrap() as usize
}

/// Repeats a call until criswitch rejects a reply that has too many ids.
async fn until_refused(mut call: impl AsyncFnMut() -> RawReply) -> RawReply {
    for _ in 0..4 * MOST / EVER_NEW {
        let reply = call().await;
        if text_of(&reply).contains("it lists more than") {
            return reply;
        }
    }
    panic!("never rejected");
}

#[tokio::test]
async fn pods_that_are_missing_in_a_stream_too_long_to_cache_are_forgotten() {
    let (rig, _bad) = beside(ever_new).await;
    for _ in 0..3 {
        let reply = stream(&rig).await;
        assert_eq!(reply.code(), Code::Ok, "{}", text_of(&reply));
        assert_eq!(known(&rig, "pods").await, EVER_NEW);
    }
}

#[tokio::test]
async fn streams_that_break_off_add_no_ids() {
    let (rig, _bad) = beside(ever_new_and_broken_off).await;
    for _ in 0..3 {
        let reply = stream(&rig).await;
        assert_eq!(reply.code(), Code::Ok, "{}", text_of(&reply));
        assert_eq!(known(&rig, "pods").await, 1, "the cached pod");
    }
}

#[tokio::test]
async fn filtered_lists_add_no_more_ids_than_the_limit() {
    let (rig, _bad) = beside(ever_new).await;
    let exited = frame_raw(&part(1, part(2, vec![1 << 3, 2])));
    let rejected = until_refused(async || send(&rig, "ListContainers", exited.clone()).await);
    assert_eq!(rejected.await.code(), Code::Internal);
    let known = known(&rig, "containers").await;
    assert!((MOST..2 * MOST).contains(&known), "{known}");
}

#[tokio::test]
async fn a_call_whose_reply_has_an_id_that_is_too_long_fails_and_the_id_is_not_remembered() {
    let (rig, _bad) = beside(long_ids::<{ LONGEST_ID + 1 }>).await;
    assert_eq!(rig.containers().await.unwrap().len(), 2, "one is cached");
    let failing = state_of(&rig, "bad").await["failingRpcs"][0].clone();
    let run = rig.try_run("bad", "web").await.unwrap_err();
    assert_eq!(run.code(), Code::Internal, "{run}");
    for text in [failing["cause"].as_str().unwrap(), run.message()] {
        assert!(text.contains("\"bad\"") && text.contains("1024"), "{text}");
    }
    assert_eq!(known(&rig, "pods").await, 1);
    assert_eq!(known(&rig, "containers").await, 1);
    assert_eq!(names(&rig.pods().await.unwrap()), ["", "web"]);
    rig.run("runc", "another").await;
}
