//! Calls for one pod or container go unchanged to its owner alone.

use std::collections::BTreeSet;

use criswitch_cri::rpc::{Goes, ROWS};
use tonic::Code;

use crate::calls::{ID_CALLS, assert_names_the_dead, calls_anywhere, path, send, stopped};
use crate::support::{Rig, Sim, frame_raw};

#[test]
fn the_tests_know_every_call_for_an_id() {
    let by_id = |goes: &Goes| matches!(goes, Goes::Owner(..) | Goes::OwnerWithImage(_));
    let rows: BTreeSet<_> = ROWS
        .iter()
        .filter(|row| by_id(&row.goes))
        .map(|row| row.name)
        .collect();
    let known: BTreeSet<_> = ID_CALLS.iter().map(|call| call.rpc).collect();
    assert_eq!(known, rows);
}

#[tokio::test]
async fn a_call_for_an_id_arrives_byte_for_byte_with_its_metadata_at_the_owner_alone() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    for call in ID_CALLS {
        let (pod, container) = rig.run("kata", call.rpc).await;
        let id = call.pick(&pod, &container);
        // The message has the id, then a field number that no CRI uses.
        let message = [&call.request(id)[5..], b"\xc2\xb8\x02\x03new"].concat();
        let before = rig.sim("kata").calls(call.rpc).len();
        let headers = [
            ("grpc-timeout", "9S"),
            ("tracestate", "a=b"),
            ("x-any", "1"),
        ];
        let reply = rig
            .raw(&path(call.rpc), &headers, frame_raw(&message))
            .await;
        assert_ne!(reply.code(), Code::NotFound, "{}", call.rpc);
        let arrived = &rig.sim("kata").calls(call.rpc)[before..];
        assert_eq!(arrived.len(), 1, "{}", call.rpc);
        assert_eq!(arrived[0].message(), message, "{}", call.rpc);
        for (name, value) in headers {
            assert_eq!(arrived[0].header(name), Some(value), "{}", call.rpc);
        }
        assert!(rig.sim("runc").calls(call.rpc).is_empty(), "{}", call.rpc);
    }
}

#[tokio::test]
async fn a_call_for_an_id_is_unavailable_while_the_owner_is_down_and_is_sent_nowhere_else() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let (pod, container) = rig.run("kata", "web").await;
    stopped(&rig, "kata").await;
    for call in ID_CALLS {
        let reply = call.send(&rig, call.pick(&pod, &container)).await;
        assert_names_the_dead(&reply, rig.sim("kata"), call.rpc);
        assert!(rig.sim("runc").calls(call.rpc).is_empty(), "{}", call.rpc);
    }
}

#[tokio::test]
async fn a_call_for_an_id_returns_the_owners_own_error() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let (pod, container) = rig.run("kata", "web").await;
    for call in ID_CALLS {
        let mut rejection = tonic::Status::with_details(
            Code::Aborted,
            "RegistryUnavailable: caf\u{e9} 100%",
            b"\x08\x0a".as_slice().into(),
        );
        rejection
            .metadata_mut()
            .insert("x-why", "because".parse().unwrap());
        rig.sim("kata").fail(call.rpc, rejection);
        let id = call.pick(&pod, &container);
        let through = call.send(&rig, id).await;
        let direct = crate::calls::send_directly(rig.sim("kata"), call.rpc, call.request(id)).await;
        assert_eq!(through.code(), Code::Aborted, "{}", call.rpc);
        assert_eq!(through.text(), direct.text(), "{}", call.rpc);
        for header in ["grpc-status-details-bin", "x-why"] {
            assert!(direct.headers.contains_key(header));
            assert_eq!(through.headers.get(header), direct.headers.get(header));
        }
    }
}

#[tokio::test]
async fn an_rpc_or_service_outside_the_cri_is_unimplemented() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let teleport = send(&rig, "Teleport", frame_raw(b"")).await;
    assert_eq!(teleport.code(), Code::Unimplemented);
    for path in [
        "/runtime.v1alpha2.RuntimeService/Version",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/runtime.v1.ImageService/Version",
    ] {
        let reply = rig.raw(path, &[], frame_raw(b"")).await;
        assert_eq!(reply.code(), Code::Unimplemented, "{path}");
    }
    for rpc in ["Teleport", "Check"] {
        assert_eq!(calls_anywhere(&rig, rpc), 0);
    }
}
