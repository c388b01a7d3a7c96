//! The events that the switch makes itself, from what it knows of a pod. Pure.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};

use crate::codec::protobuf::{self, Malformed};

// `ContainerEventType`.
pub(super) const STARTED: u64 = 1;
pub(super) const STOPPED: u64 = 2;
pub(super) const DELETED: u64 = 3;
/// `SANDBOX_NOTREADY` of `PodSandboxState`.
pub(super) const NOT_READY: u64 = 1;

/// A `ContainerEventResponse` of now.
pub(super) fn event(id: &str, kind: u64, status: &[u8], containers: &[Bytes]) -> Bytes {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let mut out = BytesMut::new();
    protobuf::put_bytes(&mut out, 1, id.as_bytes());
    protobuf::put_varint(&mut out, 2, kind);
    protobuf::put_varint(
        &mut out,
        3,
        u64::try_from(now.as_nanos()).unwrap_or(u64::MAX),
    );
    protobuf::put_bytes(&mut out, 4, status);
    for container in containers {
        protobuf::put_bytes(&mut out, 5, container);
    }
    out.freeze()
}

/// A pod of which this was listed last, as a `PodSandboxStatus` that is not ready.
pub(super) fn gone_pod(id: &str, listed: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    protobuf::put_bytes(&mut out, 1, id.as_bytes());
    // What cannot be read is left out.
    out.extend_from_slice(&pod_status(listed).unwrap_or_default());
    protobuf::put_varint(&mut out, 3, NOT_READY);
    out.freeze()
}

/// All that is known of a pod that was removed.
pub(super) fn removed_pod(id: &str, uid: &str) -> Bytes {
    let mut out = BytesMut::from(protobuf::with_string(&[], &[1], id).as_ref());
    protobuf::put_bytes(&mut out, 2, &protobuf::with_string(&[], &[2], uid));
    protobuf::put_varint(&mut out, 3, NOT_READY);
    out.freeze()
}

/// A `PodSandboxStatus` from a listed `PodSandbox`, whose fields have other numbers.
fn pod_status(pod: &[u8]) -> Result<Bytes, Malformed> {
    let mut out = BytesMut::new();
    for field in protobuf::fields(pod) {
        let field = field?;
        match (field.number, field.value) {
            (2, protobuf::Value::Bytes(value)) => protobuf::put_bytes(&mut out, 2, value),
            (4, protobuf::Value::Varint(created_at)) => {
                protobuf::put_varint(&mut out, 4, created_at)
            }
            (number @ 5..=7, protobuf::Value::Bytes(value)) => {
                protobuf::put_bytes(&mut out, number + 2, value);
            }
            _ => {}
        }
    }
    Ok(out.freeze())
}
