//! Builds the events that criswitch makes itself, from the facts that it knows about a pod. Does no I/O, but reads the
//! clock.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};

use criswitch_cri::codec::protobuf::{self, Malformed};
use criswitch_cri::rpc::fields::{
    container_event_response, pod_sandbox, pod_sandbox_metadata, pod_sandbox_status,
};

// Values of `ContainerEventType`.
pub(super) const STARTED: u64 = 1;
pub(super) const STOPPED: u64 = 2;
pub(super) const DELETED: u64 = 3;
/// The value of `SANDBOX_NOTREADY` in `PodSandboxState`.
pub(super) const NOT_READY: u64 = 1;

/// Builds a `ContainerEventResponse` with the current time.
pub(super) fn event(id: &str, kind: u64, status: &[u8], containers: &[Bytes]) -> Bytes {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let mut out = BytesMut::new();
    protobuf::put_bytes(
        &mut out,
        container_event_response::CONTAINER_ID,
        id.as_bytes(),
    );
    protobuf::put_varint(
        &mut out,
        container_event_response::CONTAINER_EVENT_TYPE,
        kind,
    );
    protobuf::put_varint(
        &mut out,
        container_event_response::CREATED_AT,
        u64::try_from(now.as_nanos()).unwrap_or(u64::MAX),
    );
    protobuf::put_bytes(
        &mut out,
        container_event_response::POD_SANDBOX_STATUS,
        status,
    );
    for container in containers {
        protobuf::put_bytes(
            &mut out,
            container_event_response::CONTAINERS_STATUSES,
            container,
        );
    }
    out.freeze()
}

/// Builds the `PodSandboxStatus` of a removed pod, in the state not ready. `listed` is the pod's item in the last list.
pub(super) fn gone_pod(id: &str, listed: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    protobuf::put_bytes(&mut out, pod_sandbox_status::ID, id.as_bytes());
    out.extend_from_slice(&pod_status(listed).unwrap_or_default());
    protobuf::put_varint(&mut out, pod_sandbox_status::STATE, NOT_READY);
    out.freeze()
}

/// Builds the `PodSandboxStatus` of a removed pod of which only the id and the uid are known.
pub(super) fn removed_pod(id: &str, uid: &str) -> Bytes {
    let mut out =
        BytesMut::from(protobuf::with_string(&[], &[pod_sandbox_status::ID], id).as_ref());
    protobuf::put_bytes(
        &mut out,
        pod_sandbox_status::METADATA,
        &protobuf::with_string(&[], &[pod_sandbox_metadata::UID], uid),
    );
    protobuf::put_varint(&mut out, pod_sandbox_status::STATE, NOT_READY);
    out.freeze()
}

/// Converts a listed `PodSandbox` to a `PodSandboxStatus`, whose fields have different numbers.
fn pod_status(pod: &[u8]) -> Result<Bytes, Malformed> {
    let mut out = BytesMut::new();
    for field in protobuf::fields(pod) {
        let field = field?;
        let number = match field.number {
            pod_sandbox::METADATA => pod_sandbox_status::METADATA,
            pod_sandbox::CREATED_AT => pod_sandbox_status::CREATED_AT,
            pod_sandbox::LABELS => pod_sandbox_status::LABELS,
            pod_sandbox::ANNOTATIONS => pod_sandbox_status::ANNOTATIONS,
            pod_sandbox::RUNTIME_HANDLER => pod_sandbox_status::RUNTIME_HANDLER,
            _ => continue,
        };
        match field.value {
            protobuf::Value::Bytes(value) => protobuf::put_bytes(&mut out, number, value),
            protobuf::Value::Varint(value) => protobuf::put_varint(&mut out, number, value),
            protobuf::Value::Other => {}
        }
    }
    Ok(out.freeze())
}
