//! Replies that consist of headers only: an error, as servers send it, and an OK without a message.

use super::{Reply, headers_only};

/// The usual form of an error (gRPC over HTTP/2: Trailers-Only).
pub fn refused_in_headers(rpc: &str) -> Option<Reply> {
    matches!(rpc, "ListContainers" | "ContainerStatus")
        .then(|| headers_only("8", "tired%20of%20lists"))
}

/// A unary call must not succeed without a message.
pub fn fine_without_a_message(rpc: &str) -> Option<Reply> {
    (rpc == "ListContainers").then(|| headers_only("0", ""))
}
