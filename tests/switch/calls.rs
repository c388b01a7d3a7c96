//! All calls for one pod or container, and all lists that can be narrowed to one, as data for tests that check a rule
//! on each of them.

use bytes::Bytes;
use criswitch_cri::codec::cri;
use criswitch_cri::rpc::Kind::{self, Container, Pod};
use criswitch_cri::rpc::{self, ROWS};
use percent_encoding::percent_decode_str;
use prost::encoding;
use tonic::Code;

use crate::support::{Client, RawReply, Rig, Sim, frame, frame_raw};

/// A call whose request has an id in field 1.
pub struct IdCall {
    pub rpc: &'static str,
    pub kind: Kind,
    /// The status code of the reply if no backend has the id.
    pub if_gone: Code,
}

/// All calls with an id. Calls that end a pod or container come last.
pub const ID_CALLS: &[IdCall] = &[
    call("PodSandboxStatus", Pod, Code::NotFound),
    call("PodSandboxStats", Pod, Code::NotFound),
    call("PortForward", Pod, Code::NotFound),
    call("UpdatePodSandboxResources", Pod, Code::NotFound),
    call("CheckpointPod", Pod, Code::NotFound),
    call("CreateContainer", Pod, Code::NotFound),
    call("StartContainer", Container, Code::NotFound),
    call("ContainerStatus", Container, Code::NotFound),
    call("ContainerStats", Container, Code::NotFound),
    call("ExecSync", Container, Code::NotFound),
    call("Exec", Container, Code::NotFound),
    call("Attach", Container, Code::NotFound),
    call("UpdateContainerResources", Container, Code::NotFound),
    call("ReopenContainerLog", Container, Code::NotFound),
    call("CheckpointContainer", Container, Code::NotFound),
    call("StopContainer", Container, Code::Ok),
    call("RemoveContainer", Container, Code::Ok),
    call("StopPodSandbox", Pod, Code::Ok),
    call("RemovePodSandbox", Pod, Code::Ok),
];

const fn call(rpc: &'static str, kind: Kind, if_gone: Code) -> IdCall {
    IdCall { rpc, kind, if_gone }
}

impl IdCall {
    /// The request, with only an id.
    pub fn request(&self, id: &str) -> Bytes {
        // In all of these requests field 1 is the id.
        frame(&cri::StopPodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        })
    }

    pub async fn send(&self, rig: &Rig, id: &str) -> RawReply {
        send(rig, self.rpc, self.request(id)).await
    }

    /// Returns the id that the call needs: the pod's or the container's.
    pub fn pick<'a>(&self, pod: &'a str, container: &'a str) -> &'a str {
        match self.kind {
            Pod => pod,
            Container => container,
        }
    }
}

/// A list narrowed to one pod or container.
#[derive(Debug)]
pub struct Narrowed {
    pub rpc: &'static str,
    pub by: By,
    pub request: Bytes,
}

/// The filter of a narrowed list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Id,
    Pod,
    Uid,
}

/// A unary list, its stream, the kind of its items, and its filter's field numbers for a pod's id and for labels.
type List = (&'static str, &'static str, Kind, Option<u32>, u32);

const LISTS: [List; 4] = [
    ("ListPodSandbox", "StreamPodSandboxes", Pod, None, 3),
    ("ListContainers", "StreamContainers", Container, Some(3), 4),
    (
        "ListContainerStats",
        "StreamContainerStats",
        Container,
        Some(2),
        3,
    ),
    ("ListPodSandboxStats", "StreamPodSandboxStats", Pod, None, 2),
];

/// Every list of pods and containers, unary and streamed, with every filter for one pod or container.
pub fn narrowed_to(pod: &str, container: &str, uid: &str) -> Vec<Narrowed> {
    let mut lists = Vec::new();
    for (unary, stream, kind, pod_field, labels) in LISTS {
        let id = if kind == Pod { pod } else { container };
        let mut filters = vec![(By::Id, text(1, id)), (By::Uid, uid_label(labels, uid))];
        filters.extend(pod_field.map(|field| (By::Pod, text(field, pod))));
        for (by, filter) in filters {
            let request = frame_raw(&part(1, filter));
            lists.extend([unary, stream].map(|rpc| Narrowed {
                rpc,
                by,
                request: request.clone(),
            }));
        }
    }
    lists
}

/// The lists of [`narrowed_to`] with a filter by id, not by uid.
pub fn narrowed_to_ids(pod: &str, container: &str) -> Vec<Narrowed> {
    let mut lists = narrowed_to(pod, container, "");
    lists.retain(|list| list.by != By::Uid);
    lists
}

fn text(field: u32, value: &str) -> Vec<u8> {
    part(field, value.as_bytes().to_vec())
}

/// A field with a string, bytes or a submessage.
pub fn part(field: u32, value: Vec<u8>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encoding::bytes::encode(field, &value, &mut bytes);
    bytes
}

fn uid_label(field: u32, uid: &str) -> Vec<u8> {
    let entry = [text(1, "io.kubernetes.pod.uid"), text(2, uid)].concat();
    part(field, entry)
}

/// Sends a call of the RuntimeService through criswitch.
pub async fn send(rig: &Rig, rpc: &str, request: impl Into<Bytes>) -> RawReply {
    rig.raw(&path(rpc), &[], request).await
}

/// Sends a call directly to a runtime.
pub async fn send_directly(sim: &Sim, rpc: &str, request: impl Into<Bytes>) -> RawReply {
    let client = crate::support::RawClient::connect(&sim.socket()).await;
    client.call(&path(rpc), &[], request).await
}

pub fn path(rpc: &str) -> String {
    format!("/runtime.v1.RuntimeService/{rpc}")
}

/// The text of a reply's status.
pub fn text_of(reply: &RawReply) -> String {
    percent_decode_str(reply.text())
        .decode_utf8()
        .unwrap()
        .into_owned()
}

/// Whether the body of a reply contains these bytes.
pub fn holds(reply: &RawReply, bytes: &str) -> bool {
    let body = &reply.body;
    body.windows(bytes.len())
        .any(|window| window == bytes.as_bytes())
}

/// Stops a runtime as a crash does, and waits until criswitch has noticed.
pub async fn stopped(rig: &Rig, name: &str) {
    rig.sim(name).stop().await;
    // criswitch asks all backends for an unknown id, so this call fails on the dead backend.
    rig.stop_pod("nobodys").await.unwrap_err();
}

/// The number of calls of an RPC at all runtimes.
pub fn calls_anywhere(rig: &Rig, rpc: &str) -> usize {
    rig.sims.iter().map(|sim| sim.calls(rpc).len()).sum()
}

/// Asserts `Unavailable` with a text that names the backend, its socket and the cause.
#[track_caller]
pub fn assert_names_the_dead(reply: &RawReply, sim: &Sim, rpc: &str) {
    let text = text_of(reply);
    assert_eq!(reply.code(), Code::Unavailable, "{rpc}: {text}");
    let socket = sim.socket().display().to_string();
    for word in [sim.name(), &socket, "onnect"] {
        assert!(text.contains(word), "{rpc}: {text} lacks {word}");
    }
}

#[tokio::test]
async fn the_simulated_runtime_has_every_rpc() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("cri.sock");
    let sim = Sim::new("runc");
    sim.serve_on(&socket);
    let raw = Client::new(&socket).raw().await;
    // The stream of events has no end.
    for row in ROWS.iter().filter(|row| row.name != rpc::EVENTS.name) {
        let reply = raw.call(&row.path(), &[], frame_raw(b"")).await;
        assert_ne!(reply.code(), Code::Unimplemented, "{}", row.name);
    }
}
