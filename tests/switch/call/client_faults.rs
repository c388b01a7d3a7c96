//! The headers and the deadline of a client. A backend that rejects the headers, or ends a call at the deadline, is not
//! at fault.

use std::time::Duration;

use bytes::Bytes;
use criswitch::limits::places::User;
use criswitch_cri::codec::cri;
use criswitch_cri::rpc::{Patience, ROWS};
use tonic::{Code, Status};

use crate::calls::{ID_CALLS, IdCall, holds, path, text_of};
use crate::faults::{backends_ready, node, state_of, status};
use crate::support::{RawClient, RawReply, Rig, Sim, clock, frame, frame_raw, image_spec};
use crate::wait;

/// Metadata that the backends of these tests reject.
const ODD: (&str, &str) = ("x-odd-bin", "no base64!");
/// A header that gRPC reserves. grpc-go does not know it, so grpc-go decodes it like metadata.
const RESERVED: (&str, &str) = ("grpc-x-bin", "no base64!");
const TIMEOUT: (&str, &str) = ("grpc-timeout", "37S");

/// The merged calls for all items whose failures criswitch reports.
const MERGED: [&str; 12] = [
    "ListPodSandbox",
    "StreamPodSandboxes",
    "ListContainers",
    "StreamContainers",
    "ListImages",
    "StreamImages",
    "ListContainerStats",
    "StreamContainerStats",
    "ListPodSandboxStats",
    "StreamPodSandboxStats",
    "ListPodSandboxMetrics",
    "ImageFsInfo",
];

async fn call(rig: &Rig, rpc: &str, headers: &[(&str, &str)], body: Bytes) -> RawReply {
    let row = ROWS.iter().find(|row| row.name == rpc).unwrap();
    rig.raw(&row.path(), headers, body).await
}

async fn ask(rig: &Rig, rpc: &str, headers: &[(&str, &str)]) -> RawReply {
    call(rig, rpc, headers, frame_raw(b"")).await
}

/// The rejections of a header: by a status as grpc-go rejects metadata, and by a reset of the stream.
fn rejections() -> [Option<Status>; 2] {
    [Some(Status::internal("malformed binary metadata")), None]
}

/// Asserts that criswitch reports no fault of kata.
async fn assert_no_fault(rig: &Rig, rpc: &str) {
    let shown = state_of(rig, "kata").await;
    assert_eq!(shown["failingRpcs"], serde_json::json!([]), "{rpc}");
    for fault in ["staleListAgeSeconds", "statsLateSeconds", "listProblem"] {
        assert!(shown[fault].is_null(), "{rpc}: {shown}");
    }
    assert_eq!(backends_ready(&status(rig).await), "", "{rpc}");
}

fn image_request() -> Bytes {
    frame(&cri::ImageStatusRequest {
        image: Some(image_spec("app:1")),
        ..Default::default()
    })
}

#[tokio::test]
async fn a_merged_call_has_the_metadata_of_its_client_and_criswitchs_own_headers() {
    let sims = ["runc", "kata"].map(|name| Sim::new(name).image("app:1"));
    let rig = node("start_wait = \"0s\"", sims).await;
    rig.run("kata", "web").await;
    let headers = [
        TIMEOUT,
        ("user-agent", "grpc-go/1.70"),
        ("grpc-accept-encoding", "gzip"),
        ("grpc-encoding", "gzip"),
        ("grpc-previous-rpc-attempts", "3"),
        ("traceparent", "00-abc-01"),
        ("grpc-trace-bin", "AAA"),
        ("x-any", "one"),
        ("x-any", "two"),
    ];
    let others = ["ImageStatus", "PullImage", "RemoveImage"].map(|rpc| (rpc, image_request()));
    let empty = ["Status", "RuntimeConfig", "UpdateRuntimeConfig"];
    let empty = MERGED.into_iter().chain(empty);
    for (rpc, body) in empty.map(|rpc| (rpc, frame_raw(b""))).chain(others) {
        // Only the default backend gets the client's own `Status` and the first `RuntimeConfig` call.
        let asked = match rpc {
            "Status" | "RuntimeConfig" => rig.sim("runc"),
            _ => rig.sim("kata"),
        };
        let before = asked.calls(rpc).len();
        let reply = call(&rig, rpc, &headers, body).await;
        assert_eq!(reply.code(), Code::Ok, "{rpc}: {}", text_of(&reply));
        let got = &asked.calls(rpc)[before];
        let values = got.headers.get_all("x-any").iter();
        assert_eq!(values.collect::<Vec<_>>(), ["one", "two"], "{rpc}");
        assert_eq!(got.header("traceparent"), Some("00-abc-01"), "{rpc}");
        assert_eq!(got.header("grpc-trace-bin"), Some("AAA"), "{rpc}");
        let agent = got.header("user-agent").unwrap();
        assert!(agent.starts_with("criswitch/"), "{rpc}: {agent}");
        assert!(agent.ends_with(" (for a client)"), "{rpc}: {agent}");
        let grpc = got.headers.keys().map(http::HeaderName::as_str);
        let grpc: Vec<_> = grpc.filter(|name| name.starts_with("grpc-")).collect();
        assert_eq!(grpc, ["grpc-trace-bin"], "{rpc}");
    }
}

#[tokio::test]
async fn an_encoding_that_a_client_names_for_its_plain_message_reaches_no_backend() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let (pod, _) = rig.run("kata", "web").await;
    let body = frame(&cri::PodSandboxStatusRequest {
        pod_sandbox_id: pod,
        verbose: false,
    });
    let headers = [("grpc-encoding", "gzip"), ("host", "elsewhere")];
    let reply = call(&rig, "PodSandboxStatus", &headers, body).await;
    assert_eq!(reply.code(), Code::Ok, "{}", text_of(&reply));
    let got = rig.sim("kata").calls("PodSandboxStatus").pop().unwrap();
    for (name, _) in headers {
        assert_eq!(got.header(name), None);
    }
}

#[tokio::test]
async fn metadata_that_a_backend_rejects_costs_a_merged_reply_nothing() {
    let sims = [Sim::new("runc"), Sim::new("kata").image("only-kata:1")];
    let rig = node("start_wait = \"0s\"", sims).await;
    rig.run("kata", "web").await;
    for rpc in MERGED {
        // Only fresh items of kata have this mark.
        let mark = b"\xc2\xb8\x02\x0apart-kata!".as_slice();
        match rpc {
            "ImageFsInfo" => rig.sim("kata").append_raw(rpc, mark),
            _ => rig.sim("kata").append_to_items(rpc, mark),
        }
        for with in rejections() {
            rig.sim("kata").reject_header(ODD.0, with);
            let reply = ask(&rig, rpc, &[ODD]).await;
            assert_eq!(reply.code(), Code::Ok, "{rpc}: {}", text_of(&reply));
            assert!(rpc == "ImageFsInfo" || holds(&reply, "part-kata!"), "{rpc}");
            assert_no_fault(&rig, rpc).await;
        }
    }
    let failed = Status::unknown("the shim is gone");
    rig.sim("kata").fail("ListPodSandbox", failed);
    ask(&rig, "ListPodSandbox", &[ODD]).await;
    let failing = state_of(&rig, "kata").await["failingRpcs"].clone();
    assert_eq!(failing[0]["rpc"], "ListPodSandbox", "its own fault");
}

#[tokio::test]
async fn a_merged_call_that_changes_something_is_sent_once_with_the_metadata() {
    let sims = ["runc", "kata"].map(|name| Sim::new(name).image("app:1"));
    let rig = Rig::start(sims).await;
    rig.sim("kata")
        .reject_header(ODD.0, rejections()[0].clone());
    let reply = call(&rig, "PullImage", &[ODD], image_request()).await;
    assert_eq!(reply.code(), Code::Internal);
    assert_eq!(rig.sim("kata").calls("PullImage").len(), 1);
}

#[tokio::test]
async fn the_only_backend_is_not_at_fault_for_a_client_that_it_rejects() {
    for rpc in MERGED {
        let rig = node("start_wait = \"0s\"", [Sim::new("kata")]).await;
        rig.run("kata", "web").await;
        let kata = rig.sim("kata");
        let past = Some(Status::deadline_exceeded("context deadline exceeded"));
        let headers = rejections().map(|with| (ODD, with));
        let [malformed, _] = rejections();
        let others = [(TIMEOUT, past), (RESERVED, malformed)];
        for (header, with) in headers.into_iter().chain(others) {
            kata.reject_header(header.0, with);
            let reply = ask(&rig, rpc, &[header]).await;
            // criswitch does not forward a stream of pods unchanged while it may rename handlers, so it can send the
            // call again without the header.
            let is_renamed = rpc == "StreamPodSandboxes";
            assert!(reply.code() != Code::Ok || is_renamed, "{rpc}");
            assert_no_fault(&rig, rpc).await;
            clock::later(Duration::from_secs(40)).await;
            assert_no_fault(&rig, rpc).await;
        }
        // If criswitch's own call fails too, the failure is a fault of the backend.
        kata.fail(rpc, Status::unknown("the shim is gone"));
        ask(&rig, rpc, &[ODD]).await;
        let is_reported = async || {
            clock::later(Duration::from_secs(1)).await;
            state_of(&rig, "kata").await["failingRpcs"][0]["rpc"] == rpc
        };
        wait::until(is_reported).await;
    }
}

/// criswitch would repeat a short read that is noted.
#[tokio::test]
async fn a_short_read_that_a_backend_breaks_off_because_of_its_client_is_not_noted() {
    let rig = node("start_wait = \"0s\"", [Sim::new("runc"), Sim::new("kata")]).await;
    let (pod, container) = rig.run("kata", "web").await;
    let kata = rig.sim("kata");
    let short = |call: &&IdCall| {
        ROWS.iter()
            .any(|row| row.name == call.rpc && row.patience == Patience::Short)
    };
    for read in ID_CALLS.iter().filter(short) {
        kata.reject_header(ODD.0, None);
        let request = read.request(read.pick(&pod, &container));
        let sent = kata.calls(read.rpc).len() + 1;
        call(&rig, read.rpc, &[ODD], request.clone()).await;
        clock::later(Duration::from_secs(1)).await;
        assert_no_fault(&rig, read.rpc).await;
        assert_eq!(kata.calls(read.rpc).len(), sent, "{} again", read.rpc);
        let reply = call(&rig, read.rpc, &[], request.clone()).await;
        assert_eq!(reply.code(), Code::Ok, "{}: {}", read.rpc, text_of(&reply));
        assert_eq!(kata.calls(read.rpc).len(), sent + 1, "{}", read.rpc);
        kata.reset(read.rpc);
        let other = RawClient::over(rig.connect_as(User::Other(1000))).await;
        other.call(&path(read.rpc), &[], request.clone()).await;
        assert_no_fault(&rig, read.rpc).await;
        // The same failure of a call of root is the backend's fault.
        call(&rig, read.rpc, &[], request).await;
        let failing = state_of(&rig, "kata").await["failingRpcs"].clone();
        assert_eq!(failing[0]["rpc"], read.rpc, "{failing}");
        kata.heal(read.rpc);
        let is_healed = async || {
            clock::later(Duration::from_secs(1)).await;
            state_of(&rig, "kata").await["failingRpcs"] == serde_json::json!([])
        };
        wait::until(is_healed).await;
    }
}

#[tokio::test]
async fn a_backend_that_observes_the_deadline_of_a_client_is_not_degraded() {
    let rig = node("start_wait = \"0s\"", [Sim::new("runc"), Sim::new("kata")]).await;
    rig.run("kata", "web").await;
    let past = Status::deadline_exceeded("context deadline exceeded");
    rig.sim("kata").reject_header(TIMEOUT.0, Some(past));
    for rpc in MERGED {
        for timeout in [TIMEOUT, ("grpc-timeout", "50m")] {
            let reply = ask(&rig, rpc, &[timeout]).await;
            assert_eq!(reply.code(), Code::Ok, "{rpc}: {}", text_of(&reply));
        }
        assert_no_fault(&rig, rpc).await;
    }
}
