//! Reads and writes encoded data: protobuf, gRPC frames and gRPC headers. These modules know nothing of pods and
//! backends.

pub mod admin;
pub mod cri;
pub mod frames;
pub mod grpc;
pub mod hpack;
pub mod protobuf;
