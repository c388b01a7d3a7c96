//! gRPC over HTTP/2: header names, and the trailers that end a call.

use http::{HeaderMap, HeaderName, HeaderValue, header};
use tonic::Status;

/// The header or trailer with the status code that ends every call.
pub const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
/// The header or trailer with the status text, percent-encoded.
pub const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// The trailers that end a call with `status`.
pub fn trailers(status: &Status) -> HeaderMap {
    let (mut head, ()) = status.clone().into_http().into_parts();
    head.headers.remove(header::CONTENT_TYPE);
    head.headers
}

/// The trailers of a successful call.
pub fn ok_trailers() -> HeaderMap {
    HeaderMap::from_iter([(GRPC_STATUS, HeaderValue::from_static("0"))])
}
