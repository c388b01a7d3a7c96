//! gRPC over HTTP/2: the names of headers, and the trailers that end a call.

use http::{HeaderMap, HeaderValue, header};
use tonic::Status;

/// The header and trailer that ends every call.
pub const GRPC_STATUS: &str = "grpc-status";
/// Its text, percent-encoded.
pub const GRPC_MESSAGE: &str = "grpc-message";

/// The trailers that carry `status`.
pub fn trailers(status: &Status) -> HeaderMap {
    let (mut head, ()) = status.clone().into_http().into_parts();
    head.headers.remove(header::CONTENT_TYPE);
    head.headers
}

/// The trailers of a call that went well.
pub fn ok_trailers() -> HeaderMap {
    HeaderMap::from_iter([(
        header::HeaderName::from_static(GRPC_STATUS),
        HeaderValue::from_static("0"),
    )])
}
