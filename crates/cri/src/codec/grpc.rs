//! gRPC over HTTP/2: header names, and the trailers that end a call.

use std::time::Duration;

use h2::Reason;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use tonic::{Code, Status};

use super::protobuf;

/// The header or trailer with the status code that ends every call.
pub const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
/// The header or trailer with the status text, percent-encoded.
pub const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// The trailer with the status as a protobuf message: code, text and details. grpc-go prefers the text in this message
/// to `grpc-message`.
pub const GRPC_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
/// The header with the compression algorithms that a client accepts.
pub const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
/// The header with the compression algorithm of the messages.
pub const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
/// The header with a call's deadline.
pub const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

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

/// The client's deadline, counted from the start of its call.
pub fn timeout(headers: &HeaderMap) -> Option<Duration> {
    protobuf::timeout(headers.get(GRPC_TIMEOUT)?.to_str().ok()?)
}

/// The status code for an error of HTTP/2 (gRPC over HTTP/2: `Errors`). `is_late` says whether the deadline of the call
/// has passed. The end of a connection, with or without GOAWAY, is `Unavailable`.
pub fn code_of(error: &h2::Error, is_late: bool) -> Code {
    match error.reason() {
        Some(reason) if error.is_reset() => code_of_reset(reason, is_late),
        _ => Code::Unavailable,
    }
}

fn code_of_reset(reason: Reason, is_late: bool) -> Code {
    match reason {
        Reason::CANCEL if is_late => Code::DeadlineExceeded,
        Reason::CANCEL => Code::Cancelled,
        Reason::REFUSED_STREAM => Code::Unavailable,
        Reason::ENHANCE_YOUR_CALM => Code::ResourceExhausted,
        Reason::INADEQUATE_SECURITY => Code::PermissionDenied,
        _ => Code::Internal,
    }
}
