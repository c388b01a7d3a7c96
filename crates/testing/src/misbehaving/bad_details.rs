//! Error details that are not base64. A gRPC library that decodes them panics (tonic does).

use super::{Body, Reply};
use http::Response;

pub fn bad_details(rpc: &str) -> Option<Reply> {
    if !matches!(rpc, "ListContainers" | "ContainerStatus") {
        return None;
    }
    let reply = Response::builder()
        .header("content-type", "application/grpc")
        .header("grpc-status", "9")
        .header("grpc-message", "not%20now")
        .header("grpc-status-details-bin", "!! this is not base64 !!");
    Some(reply.body(Body::default()).unwrap())
}
