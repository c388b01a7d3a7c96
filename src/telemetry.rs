//! What is told of a call when it has ended: one line, at the level of its row. Never what it carried.

use tokio::time::Instant;
use tracing::Span;
use tracing::field::{Empty, display};

use crate::rpc::{Kind, Log, Row};
use crate::status;

/// A call under way; its line is written when it ends, as `CANCELLED` if it is dropped before.
#[derive(Debug)]
pub struct CallLog {
    row: &'static Row,
    started: Instant,
    span: Span,
    ended: bool,
}

impl CallLog {
    /// A call of `row` that begins now.
    pub fn begin(row: &'static Row) -> CallLog {
        let rpc = row.name;
        let span = match row.log {
            Log::Change => {
                tracing::info_span!(
                    "call",
                    rpc,
                    backend = Empty,
                    handler = Empty,
                    pod = Empty,
                    container = Empty
                )
            }
            Log::Read => {
                tracing::debug_span!("call", rpc, backend = Empty, pod = Empty, container = Empty)
            }
            Log::Poll => tracing::trace_span!("call", rpc, backend = Empty),
        };
        CallLog {
            row,
            started: Instant::now(),
            span,
            ended: false,
        }
    }

    /// The span that all of the call's lines are in.
    pub fn span(&self) -> &Span {
        &self.span
    }

    /// When it began.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// The call has ended with this code, a number as in `grpc-status`.
    pub fn end(&mut self, code: &str) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let _in_span = self.span.enter();
        let code = tonic::Code::from_bytes(code.as_bytes());
        // To the microsecond.
        let elapsed_ms = self.started.elapsed().as_micros() as f64 / 1000.0;
        match self.row.log {
            Log::Change => tracing::info!(?code, elapsed_ms),
            Log::Read => tracing::debug!(?code, elapsed_ms),
            Log::Poll => tracing::trace!(?code, elapsed_ms),
        }
    }
}

impl Drop for CallLog {
    fn drop(&mut self) {
        self.end("1");
    }
}

/// Notes in the span of the call where it goes.
pub fn note_backend(name: &str) {
    Span::current().record("backend", name);
}

/// Notes the handler that the call's pod runs with.
pub fn note_handler(name: &str) {
    Span::current().record("handler", name);
}

/// Notes the pod or container that the call is for, or that it made.
pub fn note_id(kind: Kind, id: &str) {
    let field = match kind {
        Kind::Pod => "pod",
        Kind::Container => "container",
    };
    Span::current().record(field, display(status::shown(id)));
}
