//! Messages and headers at their limits.

use bytes::{BufMut, Bytes, BytesMut};
use criswitch::telemetry::counters::Reason;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use crate::calls::send_directly;
use crate::faults::{names, state_of, until_state};
use crate::support::{Rig, Sim, frame_raw};

const POD_STATUS: &str = "/runtime.v1.RuntimeService/PodSandboxStatus";
const LIST_PODS: &str = "/runtime.v1.RuntimeService/ListPodSandbox";
/// The limit of a message if the configuration does not set it.
const DEFAULT_LIMIT: usize = 16 << 20;
const SMALL_LIMIT: usize = 64 << 10;

/// runc and kata, both connected, behind a limit of 64 KiB.
async fn small() -> Rig {
    let text = |directory: &str| {
        format!(
            "default_handler = \"runc\"\nmax_message = \"64KiB\"\n[handlers]\n\
             runc = \"{directory}/runc.sock\"\nkata = \"{directory}/kata.sock\"\n"
        )
    };
    let rig = Rig::with_config([Sim::new("runc"), Sim::new("kata")], text).await;
    rig.pods().await.unwrap();
    rig
}

/// A field with a number that no CRI uses, `bytes` long in all.
fn filler(bytes: usize) -> Bytes {
    let head = |length: usize| {
        let mut head = b"\xc2\xb8\x02".to_vec();
        prost::encoding::encode_varint(length as u64, &mut head);
        head
    };
    // The size of the length prefix depends on the length.
    let length = (0..5).map(|size| bytes - 3 - size);
    let fits = |length: &usize| head(*length).len() + length == bytes;
    let length = length.into_iter().find(fits).unwrap();
    let mut field = BytesMut::from(head(length).as_slice());
    field.put_bytes(b'x', length);
    field.freeze()
}

/// A PodSandboxStatusRequest of exactly `bytes` bytes.
fn pod_status(id: &str, bytes: usize) -> Bytes {
    let mut message = vec![0x0a, id.len() as u8];
    message.extend_from_slice(id.as_bytes());
    let rest = filler(bytes - message.len());
    message.extend_from_slice(&rest);
    assert_eq!(message.len(), bytes);
    frame_raw(&message)
}

async fn takes_up_to(rig: &Rig, limit: usize) {
    let pod = rig.run_pod("kata", "web").await;
    let reply = rig.raw(POD_STATUS, &[], pod_status(&pod, limit)).await;
    assert_eq!(reply.code(), Code::Ok, "{}", reply.text());
    let got = rig.sim("kata").calls("PodSandboxStatus");
    assert!(got[0].body == pod_status(&pod, limit));

    let larger = pod_status(&pod, limit + 1);
    let reply = rig.raw(POD_STATUS, &[], larger).await;
    assert_eq!(reply.code(), Code::ResourceExhausted);
    for part in ["PodSandboxStatus", "max_message", &limit.to_string()] {
        assert!(reply.text().contains(part), "{}", reply.text());
    }
    assert_eq!(rig.sim("kata").calls("PodSandboxStatus").len(), 1);
    assert_eq!(rig.rejected(Reason::Size), 1);
}

#[tokio::test]
async fn a_request_of_16_mib_passes_and_one_byte_more_is_rejected() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    takes_up_to(&rig, DEFAULT_LIMIT).await;
}

#[tokio::test]
async fn the_limit_of_a_request_follows_the_configuration() {
    takes_up_to(&small().await, SMALL_LIMIT).await;
}

#[tokio::test]
async fn a_request_far_above_the_limit_is_rejected_before_its_end() {
    let rig = small().await;
    let pod = rig.run_pod("kata", "web").await;
    let huge = pod_status(&pod, 32 << 20);
    let reply = rig.raw(POD_STATUS, &[], huge).await;
    assert_eq!(reply.code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn a_merged_reply_may_reach_the_limit() {
    let rig = small().await;
    let half = SMALL_LIMIT / 2;
    for sim in &rig.sims {
        sim.append_raw("ListPodSandbox", filler(half));
    }
    let reply = rig.raw(LIST_PODS, &[], frame_raw(b"")).await;
    assert_eq!(reply.code(), Code::Ok, "{}", reply.text());
    assert_eq!(reply.messages()[0].len(), SMALL_LIMIT);
}

/// Makes each pod in the lists of a backend `bytes` larger.
fn grow(rig: &Rig, backend: &str, bytes: usize) {
    let sim = rig.sim(backend);
    sim.append_to_items("ListPodSandbox", filler(bytes));
}

/// The names of the pods in a list.
async fn listed(rig: &Rig) -> Vec<String> {
    let pods = rig.pods().await.unwrap();
    names(&pods).into_iter().map(str::to_owned).collect()
}

/// The failing RPCs of a backend in the daemon's state.
async fn failing(rig: &Rig, backend: &str) -> String {
    state_of(rig, backend).await["failingRpcs"].to_string()
}

/// Two backends with a pod each. The list of kata has just become too large for a merged list. The list of runc is
/// within its share.
async fn too_large_beside_runc() -> Rig {
    let rig = small().await;
    rig.run_pod("runc", "first").await;
    rig.run_pod("kata", "web").await;
    grow(&rig, "runc", 3000);
    assert_eq!(listed(&rig).await, ["first", "web"]);
    grow(&rig, "kata", SMALL_LIMIT - 2000);
    rig
}

#[tokio::test]
async fn the_largest_part_of_a_list_that_is_too_large_is_served_from_cache_and_named() {
    let rig = too_large_beside_runc().await;
    for _ in 0..2 {
        assert_eq!(listed(&rig).await, ["first", "web"]);
    }
    for part in ["ResourceExhausted", "max_message", "backend \\\"kata\\\""] {
        let failing = failing(&rig, "kata").await;
        assert!(failing.contains(part), "no {part} in {failing}");
    }
    assert_eq!(failing(&rig, "runc").await, "[]");
    rig.run_pod("runc", "second").await;
    rig.run_pod("kata", "third").await;
    assert_eq!(listed(&rig).await, ["first", "second", "third", "web"]);
    grow(&rig, "kata", 100);
    assert_eq!(listed(&rig).await.len(), 4);
    assert_eq!(failing(&rig, "kata").await, "[]");
}

#[tokio::test]
async fn a_list_that_is_too_large_is_not_cached_when_its_backend_is_back() {
    let rig = too_large_beside_runc().await;
    let kata = rig.sim("kata");
    kata.stop().await;
    until_state(&rig, "kata", "down").await;
    kata.start();
    until_state(&rig, "kata", "ready").await;
    assert_eq!(listed(&rig).await, ["first", "web"]);
}

/// The part of runc grows within its share, so only the part of kata can be too large.
#[tokio::test]
async fn a_list_without_room_for_a_cached_part_fails_and_names_its_backend_with_all_sizes() {
    let rig = small().await;
    rig.run_pod("runc", "first").await;
    rig.run_pod("kata", "web").await;
    grow(&rig, "kata", 40 << 10);
    assert_eq!(listed(&rig).await, ["first", "web"]);
    grow(&rig, "runc", 30 << 10);
    let rejected = rig.pods().await.unwrap_err();
    assert_eq!(rejected.code(), Code::ResourceExhausted);
    let limit = SMALL_LIMIT.to_string();
    let mut parts = vec![
        "ListPodSandbox",
        "max_message",
        &limit,
        "that of backend \"kata\"",
    ];
    let mut sizes = Vec::new();
    for sim in &rig.sims {
        let reply = send_directly(sim, "ListPodSandbox", frame_raw(b"")).await;
        sizes.push(format!("{} {}", sim.name(), reply.messages()[0].len()));
    }
    parts.extend(sizes.iter().map(String::as_str));
    for part in parts {
        assert!(rejected.message().contains(part), "no {part} in {rejected}");
    }
    assert_eq!(failing(&rig, "runc").await, "[]");
    grow(&rig, "runc", 100);
    assert_eq!(listed(&rig).await, ["first", "web"]);
    assert_eq!(failing(&rig, "kata").await, "[]");
}

#[tokio::test]
async fn one_backends_part_of_a_list_above_the_limit_is_served_from_cache_and_named() {
    let rig = small().await;
    rig.run_pod("kata", "web").await;
    rig.sim("kata")
        .append_raw("ListPodSandbox", filler(SMALL_LIMIT + 1));
    assert_eq!(names(&rig.pods().await.unwrap()), ["web"]);
    let failing = failing(&rig, "kata").await;
    let socket = rig.sim("kata").socket().display().to_string();
    for part in ["kata", &socket, "ResourceExhausted", "max_message"] {
        assert!(failing.contains(part), "{failing}");
    }
}

/// 16 headers with values of `bytes` bytes each.
fn large_values(bytes: usize) -> Vec<(String, String)> {
    let value = "v".repeat(bytes);
    let names = (0..16).map(|n| format!("x-large-{n}"));
    names.map(|name| (name, value.clone())).collect()
}

#[tokio::test]
async fn request_headers_of_nearly_64_kib_pass() {
    let rig = small().await;
    let pod = rig.run_pod("kata", "web").await;
    let values = large_values(3 << 10);
    let headers: Vec<_> = values
        .iter()
        .map(|(n, v)| (n.as_str(), v.as_str()))
        .collect();
    let body = pod_status(&pod, 200);
    let reply = rig.raw(POD_STATUS, &headers, body).await;
    assert_eq!(reply.code(), Code::Ok, "{}", reply.text());
    let got = &rig.sim("kata").calls("PodSandboxStatus")[0];
    for (name, value) in &values {
        assert!(got.header(name) == Some(value), "{name}");
    }
}

#[tokio::test]
async fn reply_headers_of_nearly_1_mib_pass() {
    let rig = small().await;
    let pod = rig.run_pod("kata", "web").await;
    let mut metadata = MetadataMap::new();
    for (name, value) in large_values(63 << 10) {
        let name: tonic::metadata::AsciiMetadataKey = name.parse().unwrap();
        metadata.insert(name, value.parse().unwrap());
    }
    let status = Status::with_metadata(Code::Unknown, "much", metadata);
    rig.sim("kata").fail("PodSandboxStatus", status);
    let reply = rig.raw(POD_STATUS, &[], pod_status(&pod, 200)).await;
    assert_eq!(reply.text(), "much");
    let mut all = reply.headers.clone();
    all.extend(reply.trailers.clone());
    for (name, value) in large_values(63 << 10) {
        assert!(all[&name] == value, "{name}");
    }
}
