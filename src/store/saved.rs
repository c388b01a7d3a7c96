//! What the files contain, as protobuf messages.

use std::collections::HashMap;

use bytes::Bytes;
use prost::Message;

/// What is saved of one backend: what criswitch would serve for it if it were away.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Saved {
    /// The boot that this belongs to.
    #[prost(string, tag = "1")]
    pub boot: String,
    /// The run of criswitch that wrote it, counted over all starts. Each start writes every backend's file again, so a
    /// file of an earlier run is old.
    #[prost(uint64, tag = "2")]
    pub run: u64,
    /// Its socket.
    #[prost(string, tag = "3")]
    pub socket: String,
    /// Its name.
    #[prost(string, tag = "4")]
    pub name: String,
    /// It is part of lists.
    #[prost(bool, tag = "5")]
    pub joined: bool,
    /// An encoded `ListPodSandboxResponse`; none if criswitch could serve none.
    #[prost(bytes = "bytes", optional, tag = "6")]
    pub pods: Option<Bytes>,
    /// An encoded `ListContainersResponse`.
    #[prost(bytes = "bytes", optional, tag = "7")]
    pub containers: Option<Bytes>,
    /// An encoded `ListImagesResponse`.
    #[prost(bytes = "bytes", optional, tag = "8")]
    pub images: Option<Bytes>,
    /// The handlers that its pods were created with, by the pods' ids.
    #[prost(map = "string, string", tag = "9")]
    pub handlers: HashMap<String, String>,
    /// Its pods and containers that another backend lists too, and nobody knows whose they are.
    #[prost(string, repeated, tag = "10")]
    pub disputed: Vec<String>,
    /// An encoded `ListMetricDescriptorsResponse`; none if the backend has not described its metrics.
    #[prost(bytes = "bytes", optional, tag = "11")]
    pub descriptors: Option<Bytes>,
    /// Its last `VersionResponse`.
    #[prost(bytes = "bytes", tag = "12")]
    pub version: Bytes,
    /// Its last `StatusResponse`, not verbose.
    #[prost(bytes = "bytes", tag = "13")]
    pub status: Bytes,
    /// Its automatically registered handlers.
    #[prost(string, repeated, tag = "14")]
    pub auto_registered: Vec<String>,
}

impl Saved {
    /// Whether the backend may have pods or containers that are not in its saved lists.
    pub(crate) fn is_partial(&self) -> bool {
        self.joined && (self.pods.is_none() || self.containers.is_none())
    }
}

/// All backends that criswitch has had since the boot.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Register {
    #[prost(string, tag = "1")]
    pub(super) boot: String,
    #[prost(string, tag = "2")]
    pub(super) machine: String,
    /// The run of criswitch that wrote it.
    #[prost(uint64, tag = "3")]
    pub(super) run: u64,
    #[prost(string, repeated, tag = "4")]
    pub(super) sockets: Vec<String>,
}
