//! The configuration of a runtime, as its verbose Status reports it.

use std::collections::BTreeMap;

use criswitch_config::{Program, RuntimeKind};
use criswitch_cri::codec::cri::StatusResponse;
use criswitch_cri::facts;
use serde_json::Value;

/// The value of `SandboxIsolation` for Hyper-V isolation, in the options of containerd's shim for Windows.
const HYPERVISOR: u64 = 1;

/// The configuration that a runtime reports. CRI-O reports only `default` and `pause_image`.
#[derive(Default)]
pub struct Configured {
    /// The handler for pods that name no handler.
    pub default: Option<String>,
    /// The cgroup driver of the default handler.
    pub(super) cgroup_driver: Option<&'static str>,
    /// The configuration of each handler.
    pub runtimes: BTreeMap<String, Runtime>,
    /// Whether the runtime gives containers SELinux labels, if SELinux is enabled on the node.
    pub selinux: Option<bool>,
    /// The image of pod sandboxes. containerd 2.x, which pins this image, does not report it.
    pub(super) pause_image: Option<String>,
}

/// The configuration of a handler.
pub struct Runtime {
    /// The kind of runtime; `None` if the program is of no known kind.
    pub kind: Option<RuntimeKind>,
    /// Whether privileged containers get no devices of the node; `None` if the configuration does not show it.
    pub privileged_without_host_devices: Option<bool>,
    /// The configuration file of the shim; `None` if it has none.
    pub config_path: Option<String>,
    /// The type of the shim, such as `io.containerd.kata.v2`; empty if it is unknown.
    pub shim: String,
    /// Whether the program is NVIDIA's, which starts runc or crun.
    pub is_nvidia: bool,
    /// Whether the shim for Windows starts containers in Hyper-V isolation; `None` if the configuration does not show
    /// it.
    pub hypervisor: Option<bool>,
}

/// The configuration in a verbose Status; `None` if the runtime does not report it. containerd and newer versions of
/// CRI-O report it.
pub(super) fn configured(status: &StatusResponse) -> Option<Configured> {
    let config = &facts::configuration(&status.info)?;
    let default = text(config, "/containerd/defaultRuntimeName")
        .or_else(|| text(config, "/crio/DefaultRuntime"));
    Some(Configured {
        cgroup_driver: facts::configured_cgroup_driver(config).map(facts::cgroup_driver_name),
        default: default.map(str::to_owned),
        runtimes: config
            .pointer("/containerd/runtimes")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .map(|(name, it)| (name.clone(), runtime(it)))
            .collect(),
        selinux: match config.get("crio") {
            Some(_) => Some(true),
            None => config.get("enableSelinux").and_then(Value::as_bool),
        },
        pause_image: text(config, "/sandboxImage").map(str::to_owned),
    })
}

/// The text at `pointer` in a configuration; `None` if it is missing or empty.
fn text<'c>(config: &'c Value, pointer: &str) -> Option<&'c str> {
    config
        .pointer(pointer)
        .and_then(Value::as_str)
        .filter(|text| !text.is_empty())
}

/// A handler in containerd's configuration.
fn runtime(handler: &Value) -> Runtime {
    let runtime_type = text(handler, "/runtimeType").unwrap_or_default();
    let binary = text(handler, "/options/BinaryName")
        .or_else(|| text(handler, "/runtimeEngine"))
        .unwrap_or_default();
    Runtime {
        kind: RuntimeKind::of_program(Program {
            path: text(handler, "/runtimePath").unwrap_or_default(),
            runtime_type,
            binary,
        }),
        privileged_without_host_devices: handler
            .get("privileged_without_host_devices")
            .and_then(Value::as_bool),
        config_path: text(handler, "/options/ConfigPath").map(str::to_owned),
        is_nvidia: binary.contains("nvidia-container-runtime"),
        shim: runtime_type.to_owned(),
        hypervisor: handler
            .pointer("/options/SandboxIsolation")
            .and_then(Value::as_u64)
            .map(|isolation| isolation == HYPERVISOR),
    }
}
