//! A backend's reply, read to its end.

use bytes::Bytes;
use criswitch_cri::codec::frames;
use criswitch_cri::codec::grpc::{GRPC_DETAILS, GRPC_MESSAGE, GRPC_STATUS, ok_trailers};
use criswitch_cri::error_text::reported;
use criswitch_cri::facts;
use criswitch_cri::rpc::Row;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use percent_encoding::percent_decode;
use tonic::Code;

use crate::telemetry::counters::code_name;

/// The data of a reply.
#[derive(Debug)]
pub enum Data {
    /// The bytes as they arrived, with the gRPC frame header.
    Raw(Bytes),
    /// A message without a gRPC frame header: the cached list, if the reply repeats it byte for byte, or all messages
    /// of a stream joined into one.
    Message(Bytes),
}

/// A complete reply in memory.
#[derive(Debug)]
pub struct Answer {
    /// Status line and headers.
    pub head: http::response::Parts,
    /// The body. Without the gRPC frame header, the body has at most as many bytes as `max_message`, or as a streamed
    /// list may have.
    pub body: Data,
    /// The trailers. `None` if the reply had no trailers.
    pub trailers: Option<HeaderMap>,
}

impl Answer {
    /// A successful answer with this message.
    pub fn of_message(message: &[u8]) -> Answer {
        let (mut head, ()) = http::Response::new(()).into_parts();
        head.headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/grpc"),
        );
        Answer {
            head,
            body: Data::Raw(frames::frame(message)),
            trailers: Some(ok_trailers()),
        }
    }

    /// An answer that has only the trailers `end`.
    pub(crate) fn of_end(end: HeaderMap) -> Answer {
        let (head, ()) = http::Response::new(()).into_parts();
        let (body, trailers) = (Data::Raw(Bytes::new()), Some(end));
        Answer {
            head,
            body,
            trailers,
        }
    }

    fn status_header(&self, name: &HeaderName) -> Option<&HeaderValue> {
        self.trailers
            .as_ref()
            .and_then(|trailers| trailers.get(name))
            .or_else(|| self.head.headers.get(name))
    }

    /// The gRPC code; `Unknown` for a number that gRPC does not define; `None` if the reply ended without a code.
    pub fn status(&self) -> Option<Code> {
        self.status_header(&GRPC_STATUS)
            .map(|code| Code::from_bytes(code.as_bytes()))
    }

    /// The gRPC code; `Unknown` if the reply ended without a code.
    pub fn code(&self) -> Code {
        self.status().unwrap_or(Code::Unknown)
    }

    /// The trailers, if they have the gRPC code. Otherwise the headers without `content-type`.
    pub fn into_trailers(self) -> HeaderMap {
        match self.trailers {
            Some(trailers) if trailers.contains_key(GRPC_STATUS) => trailers,
            _ => {
                let mut headers = self.head.headers;
                headers.remove(header::CONTENT_TYPE);
                headers
            }
        }
    }

    /// The `grpc-message` as sent, percent-encoded.
    pub fn text(&self) -> &[u8] {
        self.status_header(&GRPC_MESSAGE)
            .map_or(&[], HeaderValue::as_bytes)
    }

    /// The decoded `grpc-message` for use in another text, without credentials and cut to
    /// [`error_text::LONGEST_TEXT`](criswitch_cri::error_text::LONGEST_TEXT) bytes.
    pub fn plain_text(&self) -> String {
        reported(&percent_decode(self.text()).decode_utf8_lossy()).into_owned()
    }

    /// The gRPC code and the decoded text, for log lines and reports.
    pub(crate) fn code_and_text(&self) -> String {
        let text = self.plain_text();
        format!("{}: {text}{}", code_name(self.code()), facts::hint(&text))
    }

    /// The code and the text, if the answer to a call of the RPC in `row` is an error. `Unimplemented` is not an error
    /// for an RPC that a runtime may lack: a client that gets it makes a different call.
    pub(crate) fn failure(&self, row: &Row) -> Option<String> {
        let is_error = match self.code() {
            Code::Ok => false,
            Code::Unimplemented => !row.may_lack,
            _ => true,
        };
        is_error.then(|| self.code_and_text())
    }

    /// The code and the text, if the answer is `Unimplemented`.
    pub(crate) fn lacks(&self) -> Option<String> {
        (self.code() == Code::Unimplemented).then(|| self.code_and_text())
    }

    /// Replaces the `grpc-message`. Removes the details, which have the old text.
    pub fn set_text(&mut self, text: HeaderValue) {
        let fields = match &mut self.trailers {
            Some(trailers) if trailers.contains_key(GRPC_STATUS) => trailers,
            _ => &mut self.head.headers,
        };
        fields.remove(GRPC_DETAILS);
        fields.insert(GRPC_MESSAGE, text);
    }
}
