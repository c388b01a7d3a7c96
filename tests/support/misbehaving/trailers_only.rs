//! Replies that are headers and nothing else: a refusal, as servers send it, and an OK that has no message.

use super::{Reply, headers_only};

/// The usual form of an error (gRPC over HTTP/2: Trailers-Only).
pub fn refused_in_headers(rpc: &str) -> Option<Reply> {
    matches!(rpc, "ListContainers" | "ContainerStatus")
        .then(|| headers_only("8", "tired%20of%20lists"))
}

/// No unary call may go well without a message.
pub fn fine_without_a_message(rpc: &str) -> Option<Reply> {
    (rpc == "ListContainers").then(|| headers_only("0", ""))
}
