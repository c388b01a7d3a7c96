//! The contents of the state files, as protobuf messages.

use std::collections::HashMap;

use bytes::Bytes;
use prost::Message;

/// The saved state of a backend: everything that criswitch serves while the backend does not answer.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Saved {
    /// The boot that the state belongs to.
    #[prost(string, tag = "1")]
    pub boot: String,
    /// The number of the run of criswitch that wrote the file. Each start of criswitch begins a new run and writes
    /// every backend's file again, so a file of an earlier run is old.
    #[prost(uint64, tag = "2")]
    pub run: u64,
    /// The backend's socket.
    #[prost(string, tag = "3")]
    pub socket: String,
    /// The backend's name.
    #[prost(string, tag = "4")]
    pub name: String,
    /// Whether merged calls include the backend.
    #[prost(bool, tag = "5")]
    pub joined: bool,
    /// An encoded `ListPodSandboxResponse`; `None` if there is no cached list to serve.
    #[prost(bytes = "bytes", optional, tag = "6")]
    pub pods: Option<Bytes>,
    /// An encoded `ListContainersResponse`.
    #[prost(bytes = "bytes", optional, tag = "7")]
    pub containers: Option<Bytes>,
    /// An encoded `ListImagesResponse`.
    #[prost(bytes = "bytes", optional, tag = "8")]
    pub images: Option<Bytes>,
    // Earlier versions saved disputed ids as 10.
    /// By pod id: the handler of the routing table that the pod was created with.
    #[prost(map = "string, string", tag = "9")]
    pub handlers: HashMap<String, String>,
    /// An encoded `ListMetricDescriptorsResponse`; `None` if the backend has not described its metrics.
    #[prost(bytes = "bytes", optional, tag = "11")]
    pub descriptors: Option<Bytes>,
    /// The last `VersionResponse`.
    #[prost(bytes = "bytes", tag = "12")]
    pub version: Bytes,
    /// The last `StatusResponse`, not verbose.
    #[prost(bytes = "bytes", tag = "13")]
    pub status: Bytes,
    /// The backend's automatically registered handlers.
    #[prost(string, repeated, tag = "14")]
    pub auto_registered: Vec<String>,
    /// The last `UpdateRuntimeConfigRequest` of a client, as a gRPC frame. It is the same in the files of all backends.
    #[prost(bytes = "bytes", optional, tag = "15")]
    pub runtime_config: Option<Bytes>,
    /// The ids of the pods that were created through criswitch.
    #[prost(string, repeated, tag = "16")]
    pub created: Vec<String>,
    /// The ids of the pods in `handlers` that were created with the default handler, because the request named no
    /// handler.
    #[prost(string, repeated, tag = "17")]
    pub with_default_row: Vec<String>,
    /// The last `ListMetricDescriptorsResponse` that a client received. It is the same in the files of all backends.
    #[prost(bytes = "bytes", optional, tag = "18")]
    pub given_descriptors: Option<Bytes>,
    /// The kept `PodSandboxStatusResponse`s, the longest unused first. Empty if the backend answered all calls.
    #[prost(message, repeated, tag = "19")]
    pub pod_statuses: Vec<SavedStatus>,
    /// The kept `ContainerStatusResponse`s, the longest unused first. Empty if the backend answered all calls.
    #[prost(message, repeated, tag = "20")]
    pub container_statuses: Vec<SavedStatus>,
    /// Whether `images` may be outdated, so that only a call for all images gets them.
    #[prost(bool, tag = "21")]
    pub images_outdated: bool,
    /// Whether a call that creates a pod was under way, or had an unknown result.
    #[prost(bool, tag = "22")]
    pub creating: bool,
    /// Whether the backend has never answered criswitch.
    #[prost(bool, tag = "23")]
    pub never_answered: bool,
    /// Since when the backend reports that its runtime is not ready, in seconds since 1970.
    #[prost(uint64, optional, tag = "24")]
    pub unready_since: Option<u64>,
}

/// The kept status of a pod or container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SavedStatus {
    /// The id of the pod or container.
    #[prost(string, tag = "1")]
    pub id: String,
    /// The reply as the backend sent it.
    #[prost(bytes = "bytes", tag = "2")]
    pub message: Bytes,
}

impl Saved {
    /// Whether the backend may have pods or containers that are not in its saved lists.
    pub(crate) fn is_partial(&self) -> bool {
        self.joined && (self.pods.is_none() || self.containers.is_none())
    }
}

/// The register: the sockets of all backends that criswitch has.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Register {
    #[prost(string, tag = "1")]
    pub(super) boot: String,
    #[prost(string, tag = "2")]
    pub(super) machine: String,
    /// The run of criswitch that wrote the register.
    #[prost(uint64, tag = "3")]
    pub(super) run: u64,
    #[prost(string, repeated, tag = "4")]
    pub(super) sockets: Vec<String>,
}
