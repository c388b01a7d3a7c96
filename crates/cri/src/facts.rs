//! Facts about a runtime that its replies show. The daemon, the labels, `check --probe` and `discover` read them here,
//! so that all of them report the same.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::Value as Json;
use strum::{AsRefStr, VariantArray};

use crate::codec::protobuf::{self, Malformed};
use crate::error_text::reported;
use crate::rpc::fields::{runtime_condition, runtime_status, status_response};

/// The conditions of a runtime that the kubelet requires to be true (cri-api). Other conditions are warnings, such as
/// containerd's condition for deprecated features.
pub const NEEDED: [&str; 2] = [RUNTIME_READY, "NetworkReady"];

/// The condition that is false while the runtime can start no pod.
pub const RUNTIME_READY: &str = "RuntimeReady";

/// The condition of criswitch that says whether all backends are ready; the kubelet does not read it.
pub const BACKENDS_READY: &str = "BackendsReady";

/// How criswitch serves the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, AsRefStr, VariantArray)]
pub enum Level {
    /// Every backend is ready, and its answers can be used.
    #[strum(serialize = "serving")]
    Serving,
    /// A backend is not ready, or some of its answers cannot be used.
    #[strum(serialize = "degraded")]
    Degraded,
    /// The default backend has been silent for so long that the kubelet reports the node as not ready.
    #[strum(serialize = "node not ready")]
    NodeNotReady,
    /// The kubelet gets no list of pods, containers or images.
    #[strum(serialize = "lists failing")]
    ListsFailing,
}

/// `CgroupDriver` of the CRI.
const SYSTEMD: u64 = 0;
const CGROUPFS: u64 = 1;

/// A decoded `RuntimeCondition` of the CRI.
pub struct Condition<'a> {
    /// The type of the condition.
    pub kind: Cow<'a, str>,
    /// Whether the condition is true.
    pub status: bool,
    /// The reason, as one word.
    pub reason: Cow<'a, str>,
    /// The reason, for people.
    pub message: Cow<'a, str>,
}

/// The conditions in a `StatusResponse`.
///
/// # Errors
/// If a condition cannot be decoded.
pub fn conditions(status: &[u8]) -> Result<Vec<Condition<'_>>, Malformed> {
    protobuf::all_bytes(
        status,
        &[status_response::STATUS, runtime_status::CONDITIONS],
    )?
    .into_iter()
    .map(|condition| {
        Ok(Condition {
            kind: text(condition, runtime_condition::TYPE)?,
            status: protobuf::varint(condition, &[runtime_condition::STATUS])? != 0,
            reason: text(condition, runtime_condition::REASON)?,
            message: text(condition, runtime_condition::MESSAGE)?,
        })
    })
    .collect()
}

/// The text of a field for display. Its credentials are removed, a long text is shortened, and bytes that are not UTF-8
/// are replaced.
pub fn text(message: &[u8], number: u32) -> Result<Cow<'_, str>, Malformed> {
    let text = String::from_utf8_lossy(protobuf::bytes(message, &[number])?);
    Ok(reported(&text).into_owned().into())
}

/// Whether a `StatusResponse` has the condition `RuntimeReady`, and it is false.
pub fn is_unready(status: &[u8]) -> bool {
    conditions(status).is_ok_and(|conditions| {
        conditions
            .iter()
            .any(|condition| condition.kind == RUNTIME_READY && !condition.status)
    })
}

/// The name of a `CgroupDriver` of the CRI.
pub fn cgroup_driver_name(driver: u64) -> &'static str {
    match driver {
        SYSTEMD => "systemd",
        CGROUPFS => "cgroupfs",
        _ => "unknown",
    }
}

/// The configuration in the `info` of a verbose `StatusResponse`. containerd and newer versions of CRI-O report it.
pub fn configuration(info: &HashMap<String, String>) -> Option<Json> {
    serde_json::from_str(info.get("config")?).ok()
}

/// The cgroup driver of containerd's default handler in a [`configuration`], as a `CgroupDriver` of the CRI. `None` if
/// the handler does not use runc. containerd before 2.0 has no `RuntimeConfig`, so only its configuration shows the
/// driver.
pub fn configured_cgroup_driver(configuration: &Json) -> Option<u64> {
    let default = configuration.pointer("/containerd/defaultRuntimeName")?;
    let handler = configuration
        .pointer("/containerd/runtimes")?
        .get(default.as_str()?)?;
    let is_runc = handler.get("runtimeType")?.as_str()?.contains(".runc.");
    let is_systemd = handler
        .pointer("/options/SystemdCgroup")
        .and_then(Json::as_bool)
        .unwrap_or_default();
    is_runc.then_some(if is_systemd { SYSTEMD } else { CGROUPFS })
}

/// The hint for an operator, if a runtime answers a call with this text. Empty for most texts.
pub fn hint(text: &str) -> &'static str {
    if text.contains("unknown service runtime.v1.RuntimeService") {
        "; the runtime is too old, or its CRI plugin is disabled (disabled_plugins, as in Docker's packages)"
    } else {
        ""
    }
}
