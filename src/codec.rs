//! Works on bytes only: protobuf, gRPC frames and headers. Knows nothing of pods.

pub mod admin;
pub mod cri;
pub mod frames;
pub mod grpc;
pub mod protobuf;
