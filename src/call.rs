//! A call that was read, and how it fails: what the path of a call hands from step to step.
//!
//! Does no I/O, and sends a call nowhere.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use tonic::{Code, Status};

use crate::answer::Answer;
use crate::backend::Backend;
use crate::counts::code_name;
use crate::learn::asks_for_all;
use crate::live::Live;
use crate::memory::Memory;
use crate::reply::{self, Reply};
use crate::rpc::{Goes, Row, Then};
use crate::{status, wire};

/// A request that was read.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// Its row.
    pub row: &'static Row,
    /// Its headers, as they came.
    pub headers: HeaderMap,
    /// Its body: one framed message.
    pub body: Bytes,
    /// The table that it began with, and ends with.
    pub live: Arc<Live>,
    /// The name of the table's row that it goes by, if it goes by one.
    pub handler: Option<Arc<str>>,
    /// Where its reply counts until its client has read it.
    pub unread: Memory,
}

impl Call {
    /// Its message.
    pub(crate) fn message(&self) -> Bytes {
        self.body.slice(wire::FRAME_HEADER..)
    }

    /// Whether it asks for all that there is.
    pub(crate) fn asks_for_all(&self) -> bool {
        match self.row.then {
            Then::Learn(list) | Then::Keep(list) => asks_for_all(list, &self.message()),
            _ => true,
        }
    }

    /// Whether it may be taken for all calls of its row. One for the stats of some may not: CRI-O keeps a call for all
    /// waiting for one container that stops, and answers for each of the others at once.
    pub(crate) fn speaks_for_all(&self) -> bool {
        !self.row.is_stats() || self.asks_for_all()
    }

    /// Whether it is about one pod or container, so that its owner alone may answer.
    pub(crate) fn names_one(&self) -> bool {
        matches!(&self.row.goes, Goes::All(filter, _) if filter.names_one(&self.message()))
    }

    /// The pod that its filter names beside containers; none if it names none.
    pub(crate) fn filters_pod<'r>(&self, request: &'r [u8]) -> Option<&'r str> {
        let Goes::All(filter, _) = &self.row.goes else {
            return None;
        };
        let pod = wire::string(request, filter.pod?).ok()?;
        (!pod.is_empty()).then_some(pod)
    }

    /// The same call with the string at `path` set.
    pub(crate) fn with_string(&self, path: &[u32], value: &str) -> Call {
        Call {
            body: wire::frame(&wire::with_string(&self.message(), path, value)),
            ..self.clone()
        }
    }

    /// Its headers, less what would let the reply come compressed.
    pub(crate) fn reading_headers(&self) -> HeaderMap {
        let mut headers = self.headers.clone();
        headers.remove("grpc-accept-encoding");
        headers
    }
}

/// A call that did not go well.
#[derive(Debug)]
pub(crate) enum Failed {
    /// By the switch's own word.
    Status(Status),
    /// By a backend's word.
    Answer(Box<Answer>),
}

impl Failed {
    /// Its code.
    pub(crate) fn code(&self) -> Code {
        match self {
            Failed::Status(status) => status.code(),
            Failed::Answer(answer) => answer.code(),
        }
    }

    /// What the client gets.
    pub(crate) fn into_reply(self) -> Reply {
        match self {
            Failed::Status(status) => reply::of_status(&status),
            Failed::Answer(answer) => reply::of_answer(*answer),
        }
    }

    /// Several failures as one: the first one's status, with the texts of the others behind its own. `None` if there
    /// was none.
    pub(crate) fn all(failed: Vec<Failed>) -> Option<Failed> {
        let mut failed = failed.into_iter();
        let mut first = failed.next()?;
        let others: Vec<String> = failed.map(|failed| failed.text()).collect();
        if !others.is_empty() {
            first.append(&others.join("; "));
        }
        Some(first)
    }

    /// Its code and its text.
    pub(crate) fn told(&self) -> String {
        format!("{}: {}", code_name(self.code()), self.text())
    }

    fn text(&self) -> String {
        match self {
            Failed::Status(status) => status.message().to_owned(),
            Failed::Answer(answer) => answer.plain_text().into_owned(),
        }
    }

    fn append(&mut self, text: &str) {
        match self {
            Failed::Status(status) => *status = status::with_others(status, text),
            Failed::Answer(answer) => answer.set_text(status::appended(answer.text(), text)),
        }
    }

    /// A backend's word with its name behind the text, for calls that several were asked.
    pub(crate) fn named(self, backend: &Backend) -> Failed {
        match self {
            Failed::Answer(answer) => named(backend, *answer),
            status => status,
        }
    }

    /// The trailers that end a stream with it.
    pub(crate) fn into_trailers(self) -> HeaderMap {
        match self {
            Failed::Status(status) => reply::trailers(&status),
            Failed::Answer(answer) => answer.into_trailers(),
        }
    }
}

impl From<Status> for Failed {
    fn from(status: Status) -> Failed {
        Failed::Status(status)
    }
}

/// A backend's refusal where several were asked: its own status, with its name behind the text.
pub(crate) fn named(backend: &Backend, mut answer: Answer) -> Failed {
    let text = status::named(answer.text(), &backend.name(), &backend.socket);
    answer.set_text(text);
    Failed::Answer(Box::new(answer))
}
