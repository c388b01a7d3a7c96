//! gRPC over HTTP/2: header names, and the trailers that end a call.

use http::{HeaderMap, HeaderValue, header};
use tonic::Status;

/// The header or trailer with the status code that ends every call.
pub const GRPC_STATUS: &str = "grpc-status";
/// The header or trailer with the status text, percent-encoded.
pub const GRPC_MESSAGE: &str = "grpc-message";

/// The trailers for `status`.
pub fn trailers(status: &Status) -> HeaderMap {
    let (mut head, ()) = status.clone().into_http().into_parts();
    head.headers.remove(header::CONTENT_TYPE);
    head.headers
}

/// The trailers of a successful call.
pub fn ok_trailers() -> HeaderMap {
    HeaderMap::from_iter([(
        header::HeaderName::from_static(GRPC_STATUS),
        HeaderValue::from_static("0"),
    )])
}
