//! A backend that answers a merged call with an error: its cached part replaces the answer, and the error passes only
//! if no backend has an answer that can be used.

use std::time::Duration;

use criswitch_cri::codec::cri;
use prost::Message;
use tonic::{Code, Status};

use crate::calls::{holds, text_of};
use crate::faults::{backends_ready, node, state_of, status};
use crate::logged::Logged;
use crate::support::{RawReply, Rig, Sim, frame_raw};

/// The part of a backend in a merged reply if the backend's answer cannot be used.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Has {
    /// The items of its last answer.
    Cached,
    /// Nothing: nothing is cached, and the call may omit the backend.
    Nothing,
}

/// Every merged RPC with this rule. For each RPC: the part of a backend that answered before and now fails.
const MERGED: [(&str, Has); 13] = [
    ("ListPodSandbox", Has::Cached),
    ("StreamPodSandboxes", Has::Cached),
    ("ListContainers", Has::Cached),
    ("StreamContainers", Has::Cached),
    ("ListImages", Has::Cached),
    ("StreamImages", Has::Cached),
    ("ListContainerStats", Has::Cached),
    ("StreamContainerStats", Has::Cached),
    ("ListPodSandboxStats", Has::Cached),
    ("StreamPodSandboxStats", Has::Cached),
    ("ListPodSandboxMetrics", Has::Cached),
    ("ListMetricDescriptors", Has::Cached),
    ("ImageFsInfo", Has::Nothing),
];

/// The mark of kata's part in each reply.
const MARK: &[u8] = b"\xc2\xb8\x02\x0apart-kata!";

fn row(rpc: &str) -> &'static criswitch_cri::rpc::Row {
    let found = criswitch_cri::rpc::ROWS.iter().find(|row| row.name == rpc);
    found.unwrap()
}

/// Makes the call without a filter.
async fn ask(rig: &Rig, rpc: &str) -> RawReply {
    rig.raw(&row(rpc).path(), &[], frame_raw(b"")).await
}

/// Three backends with a pod each. kata's part of each merged reply has a mark.
async fn marked() -> Rig {
    let kata = Sim::new("kata").image("only-kata:1");
    let sims = [Sim::new("runc"), kata, Sim::new("gvisor")];
    let rig = node("start_wait = \"0s\"", sims).await;
    for name in ["runc", "kata", "gvisor"] {
        rig.run(name, &format!("on-{name}")).await;
    }
    for (rpc, _) in MERGED {
        match rpc {
            // The merge drops kata's items, because runc has the same.
            "ListMetricDescriptors" | "ImageFsInfo" => rig.sim("kata").append_raw(rpc, MARK),
            _ => rig.sim("kata").append_to_items(rpc, MARK),
        }
        let reply = ask(&rig, rpc).await;
        assert!(holds(&reply, "part-kata!"), "{rpc}: {}", text_of(&reply));
    }
    rig
}

#[tokio::test]
async fn an_error_of_one_backend_is_replaced_by_its_cached_part_and_named_until_it_answers() {
    let rig = marked().await;
    let kata = rig.sim("kata");
    for (rpc, has) in MERGED {
        kata.fail(rpc, Status::unknown("the shim is gone"));
        for _ in 0..2 {
            let reply = ask(&rig, rpc).await;
            assert_eq!(reply.code(), Code::Ok, "{rpc}: {}", text_of(&reply));
            let is_cached = holds(&reply, "part-kata!");
            assert_eq!(is_cached, has == Has::Cached, "{rpc}: {has:?}");
        }
        let failing = state_of(&rig, "kata").await["failingRpcs"].clone();
        assert_eq!(failing.as_array().unwrap().len(), 1, "{failing}");
        assert_eq!(failing[0]["rpc"], rpc);
        let cause = failing[0]["cause"].as_str().unwrap();
        assert!(cause.starts_with("Unknown: the shim is gone"), "{cause}");
        let status = status(&rig).await;
        let message = backends_ready(&status);
        for part in ["kata", rpc, "the shim is gone"] {
            assert!(message.contains(part), "{rpc}: {message}");
        }
        kata.heal(rpc);
        let reply = ask(&rig, rpc).await;
        assert!(holds(&reply, "part-kata!"), "{rpc}");
        let shown = state_of(&rig, "kata").await;
        assert_eq!(shown["failingRpcs"].as_array().unwrap().len(), 0, "{shown}");
        for age in ["staleListAgeSeconds", "statsLateSeconds"] {
            assert!(shown[age].is_null(), "{rpc}: {shown}");
        }
        assert!(shown["listProblem"].is_null(), "{rpc}: {shown}");
    }
}

#[tokio::test]
async fn an_error_passes_if_no_backend_has_an_answer_that_can_be_used() {
    let rig = marked().await;
    for (rpc, _) in MERGED {
        for sim in &rig.sims {
            sim.fail(rpc, Status::unknown("the shim is gone"));
        }
        let reply = ask(&rig, rpc).await;
        assert_eq!(reply.code(), Code::Unknown, "{rpc}");
        assert!(text_of(&reply).starts_with("the shim is gone"), "{rpc}");
        rig.sims.iter().for_each(|sim| sim.heal(rpc));
        let reply = ask(&rig, rpc).await;
        assert_eq!(reply.code(), Code::Ok, "{rpc}: {}", text_of(&reply));
    }
}

#[tokio::test]
async fn an_error_passes_if_the_other_backends_are_silent() {
    let rig = marked().await;
    for name in ["runc", "gvisor"] {
        crate::calls::stopped(&rig, name).await;
    }
    for (rpc, _) in MERGED {
        rig.sim("kata")
            .fail(rpc, Status::unknown("the shim is gone"));
        let reply = ask(&rig, rpc).await;
        assert_eq!(reply.code(), Code::Unknown, "{rpc}: {}", text_of(&reply));
    }
}

#[tokio::test]
async fn the_error_of_a_single_backend_passes_and_is_named() {
    let rig = node("", [Sim::new("runc")]).await;
    rig.pods().await.unwrap();
    for (rpc, _) in MERGED {
        rig.sim("runc").fail(rpc, Status::unknown("broken"));
        let reply = ask(&rig, rpc).await;
        assert_eq!((reply.code(), &*text_of(&reply)), (Code::Unknown, "broken"));
        let failing = state_of(&rig, "runc").await["failingRpcs"][0].clone();
        assert_eq!(failing["rpc"], rpc);
        assert_eq!(failing["cause"], "Unknown: broken");
        rig.sim("runc").heal(rpc);
        let reply = ask(&rig, rpc).await;
        assert_eq!(reply.code(), Code::Ok, "{rpc}");
        let failing = state_of(&rig, "runc").await["failingRpcs"].clone();
        assert_eq!(failing.as_array().unwrap().len(), 0, "{rpc}: {failing}");
    }
}

/// Without cached items, an error has the same effect as a missing answer: lists fail, and stats omit the backend.
#[tokio::test]
async fn an_error_without_a_cached_part_fails_lists_and_is_omitted_from_stats() {
    let sims = ["runc", "kata"].map(Sim::new);
    let rig = node("stale_lists = \"0s\"", sims).await;
    for name in ["runc", "kata"] {
        rig.run(name, &format!("on-{name}")).await;
    }
    for (rpc, _) in MERGED {
        rig.sim("kata").fail(rpc, Status::aborted("broken"));
        let reply = ask(&rig, rpc).await;
        let is_list = row(rpc).is_list();
        let code = if is_list { Code::Aborted } else { Code::Ok };
        assert_eq!(reply.code(), code, "{rpc}: {}", text_of(&reply));
        let shown = state_of(&rig, "kata").await;
        assert_eq!(shown["listProblem"].is_string(), is_list, "{rpc}: {shown}");
        if is_list {
            assert!(text_of(&reply).contains("kata"), "{rpc}");
            let problem = shown["listProblem"].as_str().unwrap();
            for part in ["Aborted: broken", "older than `stale_lists`"] {
                assert!(problem.contains(part), "{problem}");
            }
        }
        rig.sim("kata").heal(rpc);
        let reply = ask(&rig, rpc).await;
        assert_eq!(reply.code(), Code::Ok, "{rpc}");
    }
}

/// If the reply omitted the default backend, the kubelet would use the file system of another backend as the node's
/// image file system.
#[tokio::test]
async fn the_default_backends_error_of_image_fs_info_passes() {
    let rig = marked().await;
    rig.sim("runc")
        .fail("ImageFsInfo", Status::unknown("the shim is gone"));
    let reply = ask(&rig, "ImageFsInfo").await;
    assert_eq!(reply.code(), Code::Unknown);
}

/// Every client needs the lists of pods and containers, so for these lists `Unimplemented` is handled like any other
/// error.
#[tokio::test]
async fn lists_of_pods_and_containers_that_a_backend_suddenly_lacks_are_served_from_cache() {
    let rig = marked().await;
    for rpc in ["ListPodSandbox", "ListContainers"] {
        rig.sim("kata")
            .fail(rpc, Status::unimplemented("unknown service"));
        let reply = ask(&rig, rpc).await;
        assert_eq!(reply.code(), Code::Ok, "{rpc}: {}", text_of(&reply));
        assert!(holds(&reply, "part-kata!"), "{rpc}");
    }
}

#[tokio::test]
async fn errors_are_logged_once_a_minute_and_so_is_the_recovery() {
    let logged = Logged::here();
    let rig = marked().await;
    let words = "the backend's answer cannot be used";
    let lines = || logged.lines(&["WARN", "backend=kata", words]).len();
    let list = async || ask(&rig, "ListContainerStats").await;
    rig.sim("kata")
        .fail("ListContainerStats", Status::unknown("the shim is gone"));
    for _ in 0..3 {
        list().await;
    }
    assert_eq!(lines(), 1, "{}", logged.text());
    assert_eq!(logged.lines(&[words, "the shim is gone"]).len(), 1);
    crate::support::clock::later(Duration::from_secs(60)).await;
    list().await;
    assert_eq!(lines(), 2, "{}", logged.text());
    rig.sim("kata").heal("ListContainerStats");
    for _ in 0..2 {
        list().await;
    }
    let recovery = "the backend's answers can be used again";
    assert_eq!(logged.lines(&["INFO", "kata", recovery]).len(), 1);
}

/// For each list: bytes that make an item undecodable for clients. The item's id, and the fields that criswitch itself
/// reads, are well-formed.
const UNDECODABLE: [(&str, &[u8]); 12] = [
    // A label that is not UTF-8.
    ("ListPodSandbox", b"\x2a\x0b\x0a\x03key\x12\x04caf\xe9"),
    ("StreamPodSandboxes", b"\x2a\x0b\x0a\x03key\x12\x04caf\xe9"),
    ("ListContainers", b"\x42\x0b\x0a\x03key\x12\x04caf\xe9"),
    ("StreamContainers", b"\x42\x0b\x0a\x03key\x12\x04caf\xe9"),
    // A tag that is not UTF-8.
    ("ListImages", b"\x12\x04caf\xe9"),
    ("StreamImages", b"\x12\x04caf\xe9"),
    // Attributes whose metadata is cut off.
    ("ListContainerStats", b"\x0a\x04\x12\x02\x0a\x7f"),
    ("StreamContainerStats", b"\x0a\x04\x12\x02\x0a\x7f"),
    ("ListPodSandboxStats", b"\x0a\x04\x12\x02\x0a\x7f"),
    ("StreamPodSandboxStats", b"\x0a\x04\x12\x02\x0a\x7f"),
    // A metric that is cut off.
    ("ListPodSandboxMetrics", b"\x12\x02\x0a\x7f"),
    // A help that is not UTF-8.
    ("ListMetricDescriptors", b"\x12\x04caf\xe9"),
];

#[tokio::test]
async fn an_item_that_clients_cannot_decode_reaches_no_client_and_its_backend_is_named() {
    for (rpc, fault) in UNDECODABLE {
        let rig = marked().await;
        let before = ask(&rig, rpc).await;
        rig.sim("kata").append_to_items(rpc, fault);
        for time in 0..2 {
            let reply = ask(&rig, rpc).await;
            if row(rpc).streams() && time == 0 && reply.code() != Code::Ok {
                // The first stream may have sent messages before the bad message arrived. The error at its end shows
                // that the stream is incomplete.
                assert_eq!(reply.code(), Code::Internal, "{rpc}");
                continue;
            }
            assert_eq!(reply.code(), Code::Ok, "{rpc}: {}", text_of(&reply));
            assert!(holds(&reply, "part-kata!"), "{rpc}");
            assert!(!reply.body.windows(fault.len()).any(|it| it == fault));
        }
        let failing = state_of(&rig, "kata").await["failingRpcs"].clone();
        assert_eq!(failing[0]["rpc"], rpc, "{failing}");
        let cause = failing[0]["cause"].as_str().unwrap();
        for part in ["Internal", "\"kata\"", "clients cannot decode the item"] {
            assert!(cause.contains(part), "{rpc}: {cause}");
        }
        rig.sim("kata").append_to_items(rpc, b"".as_slice());
        let reply = ask(&rig, rpc).await;
        assert_eq!(reply.code(), Code::Ok, "{rpc}");
        assert!(reply.body.len() >= before.body.len() / 2, "{rpc}");
        let failing = state_of(&rig, "kata").await["failingRpcs"].clone();
        assert_eq!(failing.as_array().unwrap().len(), 0, "{rpc}: {failing}");
    }
}

#[tokio::test]
async fn a_stream_that_fails_after_its_first_message_has_the_cached_pods_of_its_backend() {
    let rig = node("start_wait = \"0s\"", ["runc", "kata"].map(Sim::new)).await;
    for number in 0..5 {
        rig.run("kata", &format!("pod-{number}")).await;
    }
    let whole = rig.pods().await.unwrap().len();
    let kata = rig.sim("kata");
    kata.end_streams(Status::data_loss("no more"));
    for _ in 0..2 {
        let reply = ask(&rig, "StreamPodSandboxes").await;
        assert_eq!(reply.code(), Code::Ok, "{}", text_of(&reply));
        assert_eq!(pods_of(&reply), whole);
    }
    kata.resume_streams();
    let reply = ask(&rig, "StreamPodSandboxes").await;
    assert_eq!((reply.code(), pods_of(&reply)), (Code::Ok, whole));
    let failing = state_of(&rig, "kata").await["failingRpcs"].clone();
    assert_eq!(failing.as_array().unwrap().len(), 0, "{failing}");
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
