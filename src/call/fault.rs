//! The headers and the deadline that a call to a backend takes over from its client, and whether the client may be the
//! cause of a failure. Only this module decides whether a client may be the cause. The calls that criswitch makes
//! itself take over nothing from a client.

use std::borrow::Cow;
use std::time::Duration;

use criswitch_cri::codec::grpc::{GRPC_ACCEPT_ENCODING, GRPC_ENCODING, GRPC_TIMEOUT};
use criswitch_cri::rpc::Row;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use tokio::time::Instant;
use tonic::Code;

use super::{Call, Failed, Request};
use crate::backend::answer::Answer;
use crate::backend::{Backend, own_headers};
use crate::limits::places::User;

/// The time before a client's deadline at which criswitch stops waiting for a backend.
const REPLY_MARGIN: Duration = Duration::from_millis(200);
/// Headers that are not metadata, besides those that begin with [`RESERVED`]. For a merged call, criswitch sets these
/// headers itself.
const OF_CONNECTION: [HeaderName; 5] = [
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::TE,
    header::USER_AGENT,
    header::HOST,
];
/// The prefix of gRPC's own headers, such as `grpc-timeout` and `grpc-encoding`.
const RESERVED: &str = "grpc-";
/// The headers of OpenCensus, which are metadata although their names are reserved.
const OPEN_CENSUS: [&str; 2] = ["grpc-trace-bin", "grpc-tags-bin"];

/// The headers of traces, which a kubelet sends if it has them on.
const OF_TRACES: [&str; 3] = ["traceparent", "tracestate", "baggage"];

/// The user agent of the calls that criswitch sends to several backends for one client.
const AGENT: &str = concat!("criswitch/", env!("CARGO_PKG_VERSION"), " (for a client)");

/// A backend did not answer while criswitch waited for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Late {
    /// Whether the backend had the whole time, and the call is of root or criswitch's own user. Otherwise the wait says
    /// nothing about the backend: the client's deadline has cut it short, or the call may have waited for its user's
    /// share of the streams.
    pub(crate) is_fault_of_backend: bool,
}

impl Request {
    /// Waits at most `limit` for `asked`, an answer of a backend. Stops before the client's deadline, so that the
    /// client still gets a reply without the backend's answer. The caller pins `asked`: otherwise each future that
    /// waits for `asked` would contain it twice, and each call would move both copies.
    pub(crate) async fn within<T>(
        &self,
        limit: Duration,
        asked: impl Future<Output = T> + Unpin,
    ) -> Result<T, Late> {
        let until_deadline = self
            .deadline
            .map(|at| at.saturating_duration_since(Instant::now()));
        let wait =
            until_deadline.map_or(limit, |time| limit.min(time - REPLY_MARGIN.min(time / 4)));
        tokio::time::timeout(wait, asked).await.map_err(|_| Late {
            is_fault_of_backend: wait == limit && self.user == User::Own,
        })
    }

    /// The headers of a call that goes to one backend as the client sent it. `grpc-accept-encoding` is omitted, so that
    /// the backend sends an uncompressed reply, which criswitch can read.
    pub(crate) fn reading_headers(&self) -> Cow<'_, HeaderMap> {
        if !self.headers.contains_key(GRPC_ACCEPT_ENCODING) {
            return Cow::Borrowed(&self.headers);
        }
        let mut headers = self.headers.clone();
        headers.remove(GRPC_ACCEPT_ENCODING);
        Cow::Owned(headers)
    }

    /// The headers of a call that several backends get: criswitch's own, and the client's metadata. They have no
    /// deadline: criswitch cancels the call when the client's deadline or criswitch's own limit has passed, and only
    /// the latter says something about the backend.
    pub(crate) fn merged_headers(&self) -> HeaderMap {
        let mut headers = own_headers();
        headers.insert(header::USER_AGENT, HeaderValue::from_static(AGENT));
        for (name, value) in self.metadata() {
            headers.append(name, value.clone());
        }
        headers
    }

    /// Whether `code` from one of several backends may be due to the client's metadata, such as a value that is not
    /// base64, or more bytes than the backend accepts. Then criswitch sends the call again without metadata, so that
    /// the backend is the cause of the next failure. `Unimplemented` and `Unavailable` have other causes: the backend
    /// lacks the RPC, or has no connection.
    pub(crate) fn may_be_due_to_metadata(&self, code: Code) -> bool {
        let is_due_to_others = matches!(code, Code::Ok | Code::Unimplemented | Code::Unavailable);
        !is_due_to_others && !self.row.changes() && self.metadata().next().is_some()
    }

    /// Whether the client may be the cause of the failure of this call, which had the client's own headers. Calls of
    /// users other than root and criswitch's own user say nothing about the backend, as in [`Late`]. The headers of
    /// traces are not a cause: a kubelet may send them with each call.
    pub(crate) fn may_be_due_to_client(&self) -> bool {
        let is_odd = self.has_odd_headers_but(&OF_TRACES);
        self.user.is_other() || is_odd || is_over(self.deadline)
    }

    /// Whether the call has headers that criswitch's own calls lack, or another content type. A backend may reject any
    /// of them, also those that gRPC reserves.
    fn has_odd_headers(&self) -> bool {
        self.has_odd_headers_but(&[])
    }

    fn has_odd_headers_but(&self, usual: &[&str]) -> bool {
        let types: [&[u8]; 2] = [b"application/grpc", b"application/grpc+proto"];
        self.headers.iter().any(|(name, value)| {
            if name == header::CONTENT_TYPE {
                !types.contains(&value.as_bytes())
            } else {
                !OF_CONNECTION.contains(name)
                    && !usual.contains(&name.as_str())
                    && ![GRPC_TIMEOUT, GRPC_ENCODING, GRPC_ACCEPT_ENCODING].contains(name)
            }
        })
    }

    /// The client's headers that HTTP/2 and gRPC do not define, such as those of traces.
    fn metadata(&self) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
        self.headers.iter().filter(|(name, _)| {
            let is_reserved = name.as_str().starts_with(RESERVED);
            !OF_CONNECTION.contains(name) && (!is_reserved || OPEN_CENSUS.contains(&name.as_str()))
        })
    }
}

impl Call {
    /// This call as a [`PassedCall`]; `None` if the call asks for only some items.
    pub(crate) fn passed(&self) -> Option<PassedCall> {
        self.asks_for_all().then(|| PassedCall {
            row: self.row,
            deadline: self.deadline,
            is_odd: self.has_odd_headers(),
        })
    }
}

/// A call for all items that goes to the only backend as the client sent it, with the client's headers and deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassedCall {
    pub(crate) row: &'static Row,
    deadline: Option<Instant>,
    /// Whether it has headers that the backend may reject.
    is_odd: bool,
}

impl PassedCall {
    /// Records whether the backend's `answer` can be used. If not, and if the client may be the cause, criswitch makes
    /// the call itself, and records the answer to its own call.
    pub(crate) fn note(self, backend: &Backend, answer: &Answer) {
        self.note_code(backend, answer.code(), answer.failure(self.row).as_deref());
    }

    /// Like [`PassedCall::note`], for a call that failed without an answer that can be used.
    pub(crate) fn note_failed(self, backend: &Backend, why: &Failed) {
        if why.is_of_clients() {
            backend.record.doubt(self.row);
        } else {
            self.note_code(backend, why.code(), Some(&why.code_and_text()));
        }
    }

    fn note_code(self, backend: &Backend, code: Code, failed: Option<&str>) {
        match failed {
            Some(_) if self.may_be_due_to_client(code) => backend.record.doubt(self.row),
            failed => backend.record.note_answer(self.row, failed),
        }
    }

    fn may_be_due_to_client(self, code: Code) -> bool {
        let is_of_deadline = matches!(code, Code::DeadlineExceeded | Code::Cancelled);
        self.is_odd || self.deadline.is_some() && is_of_deadline || is_over(self.deadline)
    }
}

/// Whether the deadline of a client has passed, or passes so soon that the backend may have ended the call because of
/// it.
fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|at| at <= Instant::now() + REPLY_MARGIN)
}
