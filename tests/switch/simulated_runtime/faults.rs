//! Faults on demand, where another test would pass by mistake if the fault had no effect.

use criswitch::codec::cri;
use http_body_util::BodyExt;
use prost::Message;
use tokio_stream::StreamExt;
use tonic::{Code, Status};

use super::direct::{Direct, direct};
use crate::support::{Sim, frame_raw};

const LIST_PODS: &str = "/runtime.v1.RuntimeService/ListPodSandbox";

#[tokio::test]
async fn an_rpc_that_the_runtime_lacks_and_an_unknown_rpc_are_unimplemented() {
    let direct = Direct::new(Sim::new("old").lacks(["RuntimeConfig"]));
    let mut runtime = direct.runtime();
    let refused = runtime
        .runtime_config(cri::RuntimeConfigRequest {})
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
    let raw = direct.raw().await;
    let reply = raw
        .call("/runtime.v1.RuntimeService/Teleport", &[], frame_raw(b""))
        .await;
    assert_eq!(reply.code(), Code::Unimplemented);
    runtime
        .version(cri::VersionRequest::default())
        .await
        .unwrap();
}

#[tokio::test]
async fn every_rpc_of_the_cri_is_implemented() {
    let set = include_bytes!(concat!(env!("OUT_DIR"), "/cri.bin"));
    let set = prost_types::FileDescriptorSet::decode(set.as_slice()).unwrap();
    let raw = direct().raw().await;
    let mut answered = 0;
    for service in &set.file[0].service {
        // A stream of events has no end, so this test omits `GetContainerEvents`. The tests of events read such streams.
        let ends = |rpc: &&prost_types::MethodDescriptorProto| rpc.name() != "GetContainerEvents";
        for rpc in service.method.iter().filter(ends) {
            let path = format!("/runtime.v1.{}/{}", service.name(), rpc.name());
            let reply = raw.call(&path, &[], frame_raw(b"")).await;
            assert_ne!(reply.code(), Code::Unimplemented, "{path}");
            answered += 1;
        }
    }
    assert_eq!(answered, 42);
}

#[tokio::test]
async fn bytes_are_appended_to_replies_and_to_items() {
    let direct = direct();
    let mut runtime = direct.runtime();
    direct.run_pod("web").await.unwrap();
    let raw = direct.raw().await;
    let plain = raw.call(LIST_PODS, &[], frame_raw(b"")).await.messages()[0].clone();
    direct.sim.append_raw("ListPodSandbox", "MORE");
    let more = raw.call(LIST_PODS, &[], frame_raw(b"")).await.messages()[0].clone();
    assert_eq!(more, [&plain[..], b"MORE"].concat());

    // The appended bytes set field 7 again. In Protobuf the last value of a singular field counts.
    direct.sim.append_raw("ListPodSandbox", "");
    direct
        .sim
        .append_to_items("ListPodSandbox", b"\x3a\x04kata".as_slice());
    let list = runtime.list_pod_sandbox(cri::ListPodSandboxRequest { filter: None });
    let items = list.await.unwrap().into_inner().items;
    let expected = direct.sim.pods().into_iter().map(|mut pod| {
        pod.runtime_handler = "kata".to_owned();
        pod
    });
    assert_eq!(items, expected.collect::<Vec<_>>());
}

#[tokio::test]
async fn bytes_are_appended_to_every_message_of_a_stream() {
    let direct = direct();
    let mut runtime = direct.runtime();
    for name in ["a", "b", "c"] {
        direct.run_pod(name).await.unwrap();
    }
    let empty = cri::StreamPodSandboxesResponse {
        pod_sandboxes: vec![cri::PodSandbox::default()],
    };
    direct
        .sim
        .append_raw("StreamPodSandboxes", empty.encode_to_vec());
    let stream = runtime.stream_pod_sandboxes(cri::StreamPodSandboxesRequest { filter: None });
    let messages: Vec<_> = stream
        .await
        .unwrap()
        .into_inner()
        .map(|m| m.unwrap().pod_sandboxes.len())
        .collect()
        .await;
    assert_eq!(messages, [3, 2]);
}

#[tokio::test]
async fn a_newer_runtime_sends_fields_that_generated_types_lack() {
    let direct = Direct::new(Sim::new("next").newer());
    direct.run_pod("web").await.unwrap();
    let raw = direct.raw().await;
    let reply = raw.call(LIST_PODS, &[], frame_raw(b"")).await;
    let message = reply.messages()[0].clone();
    assert_eq!(
        message
            .windows(18)
            .filter(|w| w == b"of a later version")
            .count(),
        2
    );
    let known = cri::ListPodSandboxResponse::decode(message.clone()).unwrap();
    assert!(known.encoded_len() < message.len());
}

#[tokio::test]
async fn a_reply_is_cut_into_pieces_of_any_length_and_recorded() {
    let direct = direct();
    direct.run_pod("web").await.unwrap();
    let raw = direct.raw().await;
    let whole = raw.call(LIST_PODS, &[], frame_raw(b"")).await;
    assert_eq!(direct.sim.sent("ListPodSandbox"), whole.body);
    direct.sim.chop(3);
    let reply = raw.begin(LIST_PODS, &[], frame_raw(b"")).await.unwrap();
    let first = reply.into_body().frame().await.unwrap().unwrap();
    assert_eq!(first.into_data().unwrap(), whole.body[..3]);
    let chopped = raw.call(LIST_PODS, &[], frame_raw(b"")).await;
    assert_eq!((chopped.code(), chopped.body), (Code::Ok, whole.body));
}

#[tokio::test]
async fn a_stream_list_hangs_after_its_first_message_and_ends_with_the_given_status() {
    let direct = direct();
    for name in ["a", "b", "c"] {
        direct.run_pod(name).await.unwrap();
    }
    direct.sim.stall_streams();
    let stream = cri::StreamPodSandboxesRequest { filter: None };
    let stream = direct.runtime().stream_pod_sandboxes(stream).await;
    let mut stream = stream.unwrap().into_inner();
    let first = stream.next().await.unwrap().unwrap();
    assert_eq!(first.pod_sandboxes.len(), 2);
    direct.sim.end_streams(Status::data_loss("gone"));
    let end = stream.next().await.unwrap().unwrap_err();
    assert_eq!((end.code(), end.message()), (Code::DataLoss, "gone"));
}
