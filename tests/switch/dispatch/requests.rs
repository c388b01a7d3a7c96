//! Requests that cannot be served: criswitch rejects them and sends them to no backend.

use bytes::Bytes;
use criswitch::gate::MOST_PAIRS;
use criswitch::ownership::MOST;
use http::Request;
use http_body_util::Full;
use tonic::Code;

use crate::calls::{part, send, text_of};
use crate::support::{Rig, Sim, frame_raw};

const RUNTIME: &str = "/runtime.v1.RuntimeService";
const IMAGES: &str = "/runtime.v1.ImageService";

/// Connects both backends first, so that afterwards they receive only the test's calls.
async fn runc_and_kata() -> Rig {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    rig.pods().await.unwrap();
    rig
}

/// The number of calls that the backends have received.
async fn calls(rig: &Rig) -> usize {
    let mut calls = 0;
    for sim in &rig.sims {
        let count = |journal: &crate::support::Journal| {
            calls += journal.calls.len();
            true
        };
        sim.until(count).await;
    }
    calls
}

#[tokio::test]
async fn a_request_whose_key_is_not_protobuf_is_rejected() {
    let rig = runc_and_kata().await;
    let before = calls(&rig).await;
    // In order: an id that is cut off, an id of the wrong type, an id that is not UTF-8, a group without an end, and
    // field number 0.
    let ids: [&[u8]; 5] = [
        b"\x0a\x40ab",
        b"\x08\x01",
        b"\x0a\x02\xff\xfe",
        b"\x0b",
        b"\x02\x00",
    ];
    for rpc in [
        "StopPodSandbox",
        "PodSandboxStatus",
        "CreateContainer",
        "StartContainer",
        "ExecSync",
        "RemoveContainer",
    ] {
        for message in ids {
            rejected(&rig, &format!("{RUNTIME}/{rpc}"), message).await;
        }
    }
    let handlers: [&[u8]; 3] = [b"\x12\x05ab", b"\x10\x01", b"\x12\x02\xff\xfe"];
    for message in handlers {
        rejected(&rig, &format!("{RUNTIME}/RunPodSandbox"), message).await;
    }
    for message in [b"\x1a\x05ab".as_slice(), b"\x18\x01", b"\x1a\x02\xff\xfe"] {
        rejected(&rig, &format!("{RUNTIME}/RestorePod"), message).await;
    }
    assert_eq!(calls(&rig).await, before);
}

#[tokio::test]
async fn an_image_call_whose_keys_are_not_protobuf_is_rejected() {
    let rig = runc_and_kata().await;
    let before = calls(&rig).await;
    // In the first message the image is a number. In the others the image's handler is a number, is not UTF-8, or is
    // cut off.
    let images: [&[u8]; 4] = [
        b"\x08\x01",
        b"\x0a\x03\x98\x01\x01",
        b"\x0a\x05\x9a\x01\x02\xff\xfe",
        b"\x0a\x04\x9a\x01\x40a",
    ];
    for rpc in ["PullImage", "ImageStatus", "RemoveImage"] {
        for message in images {
            rejected(&rig, &format!("{IMAGES}/{rpc}"), message).await;
        }
    }
    // The annotations are cut off.
    rejected(
        &rig,
        &format!("{IMAGES}/ImageStatus"),
        b"\x0a\x04\x12\x02\x0a\x40",
    )
    .await;
    // The sandbox configuration of a pull is a number, or has a uid that is not UTF-8.
    for message in [b"\x18\x01".as_slice(), b"\x1a\x06\x0a\x04\x12\x02\xff\xfe"] {
        rejected(&rig, &format!("{IMAGES}/PullImage"), message).await;
    }
    assert_eq!(calls(&rig).await, before);
}

#[tokio::test]
async fn a_list_with_a_filter_that_is_not_protobuf_is_rejected() {
    let rig = runc_and_kata().await;
    let before = calls(&rig).await;
    let filters: [&[u8]; 3] = [
        b"\x08\x01",
        b"\x0a\x03\x0a\x40a",
        b"\x0a\x04\x0a\x02\xff\xfe",
    ];
    for rpc in [
        "ListPodSandbox",
        "ListContainers",
        "ListContainerStats",
        "ListPodSandboxStats",
        "StreamPodSandboxes",
        "StreamContainers",
    ] {
        for message in filters {
            rejected(&rig, &format!("{RUNTIME}/{rpc}"), message).await;
        }
    }
    assert_eq!(calls(&rig).await, before);
}

/// Asserts InvalidArgument with the RPC's name.
async fn rejected(rig: &Rig, path: &str, message: &[u8]) {
    let reply = rig.raw(path, &[], frame_raw(message)).await;
    let rpc = path.rsplit('/').next().unwrap();
    assert_eq!(reply.code(), Code::InvalidArgument, "{path} {message:x?}");
    assert!(reply.text().contains(rpc), "{}", reply.text());
    assert!(reply.body.is_empty());
}

#[tokio::test]
async fn a_selector_with_more_labels_than_an_item_may_have_is_rejected() {
    let rig = runc_and_kata().await;
    for (rpc, field) in [
        ("ListPodSandbox", 3),
        ("StreamPodSandboxes", 3),
        ("ListContainers", 4),
        ("ListContainerStats", 3),
        ("ListPodSandboxStats", 2),
    ] {
        let request = |labels: usize| {
            let label = |label| part(field, part(1, format!("label-{label}").into_bytes()));
            part(1, (0..labels).flat_map(label).collect())
        };
        let path = format!("{RUNTIME}/{rpc}");
        let before = calls(&rig).await;
        let reply = rig
            .raw(&path, &[], frame_raw(&request(MOST_PAIRS + 1)))
            .await;
        assert_eq!(reply.code(), Code::InvalidArgument, "{rpc}");
        let text = text_of(&reply);
        let fault = "the label selector has 4097 labels; the limit is 4096";
        assert!(text.contains(fault), "{rpc}: {text}");
        assert_eq!(calls(&rig).await, before, "{rpc}");
        let most = rig.raw(&path, &[], frame_raw(&request(MOST_PAIRS))).await;
        assert_eq!(most.code(), Code::Ok, "{rpc}: {}", text_of(&most));
    }
}

#[tokio::test]
async fn a_request_that_is_not_one_plain_message_is_rejected() {
    let rig = runc_and_kata().await;
    let before = calls(&rig).await;
    let whole = frame_raw(b"");
    let bodies: [(&[u8], Code); 8] = [
        // No message, half a prefix, half a message, extra bytes, two messages, a length of 4 GiB.
        (b"", Code::InvalidArgument),
        (b"\0\0\0", Code::InvalidArgument),
        (b"\0\0\0\0\x05ab", Code::InvalidArgument),
        (b"\0\0\0\0\0ab", Code::InvalidArgument),
        (&[&whole[..], &whole].concat(), Code::InvalidArgument),
        (b"\0\xff\xff\xff\xff", Code::InvalidArgument),
        // A compressed message, and a message with an unknown flag.
        (b"\x01\0\0\0\0", Code::Unimplemented),
        (b"\x80\0\0\0\0", Code::Unimplemented),
    ];
    let runtime = ["Version", "Status", "ListPodSandbox", "RunPodSandbox"];
    let paths = runtime.map(|rpc| format!("{RUNTIME}/{rpc}"));
    let images = ["ImageStatus", "PullImage"].map(|rpc| format!("{IMAGES}/{rpc}"));
    for path in paths.iter().chain(&images) {
        for (body, code) in bodies {
            let reply = rig.raw(path, &[], body.to_vec()).await;
            assert_eq!(reply.code(), code, "{path} {body:x?}: {}", reply.text());
        }
    }
    assert_eq!(calls(&rig).await, before);
}

#[tokio::test]
async fn an_unknown_rpc_or_service_is_unimplemented_and_sent_nowhere() {
    let rig = runc_and_kata().await;
    let before = calls(&rig).await;
    for path in [
        "/runtime.v1.RuntimeService/Teleport",
        "/runtime.v1.ImageService/Version",
        "/runtime.v1alpha2.RuntimeService/Version",
        "/runtime.v2.RuntimeService/Version",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/Version",
        "/runtime.v1.RuntimeService/Version/",
        "/",
    ] {
        let reply = rig.raw(path, &[], frame_raw(b"")).await;
        assert_eq!(reply.code(), Code::Unimplemented, "{path}");
        assert!(reply.text().contains(path), "{}", reply.text());
    }
    assert_eq!(calls(&rig).await, before);
}

#[tokio::test]
async fn a_request_that_is_not_grpc_gets_http_status_415() {
    let rig = runc_and_kata().await;
    let before = calls(&rig).await;
    let raw = (*rig).raw().await;
    for kind in [None, Some("application/json"), Some("text/html")] {
        let mut request = Request::post(format!("http://localhost{RUNTIME}/Version"));
        if let Some(kind) = kind {
            request = request.header("content-type", kind);
        }
        let body = Full::new(Bytes::from_static(b"{}"));
        let reply = raw.send(request.body(body).unwrap()).await.unwrap();
        assert_eq!(reply.status(), http::StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
    assert_eq!(calls(&rig).await, before);
}

#[tokio::test]
async fn a_content_type_that_names_the_encoding_counts_as_grpc() {
    let rig = runc_and_kata().await;
    let raw = (*rig).raw().await;
    let request = Request::post(format!("http://localhost{RUNTIME}/Version"))
        .header("content-type", "application/grpc+proto")
        .header("te", "trailers");
    let request = request.body(Full::new(frame_raw(b""))).unwrap();
    let reply = raw.send(request).await.unwrap();
    assert_eq!(reply.status(), http::StatusCode::OK);
}

/// Each step of a call reads all fields of the request.
#[tokio::test]
async fn a_request_with_too_many_fields_is_rejected() {
    let rig = Rig::start([Sim::new("runc")]).await;
    // Field 15, which is unknown, with the value 0.
    for (fields, code) in [(MOST, Code::Ok), (MOST + 1, Code::InvalidArgument)] {
        let request = frame_raw(&b"\x78\0".repeat(fields));
        let reply = send(&rig, "ListContainers", request).await;
        assert_eq!(reply.code(), code, "{}", text_of(&reply));
    }
}
