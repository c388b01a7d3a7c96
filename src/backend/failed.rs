//! How a call to backends fails: by criswitch's own status, or by a backend's reply.

use http::HeaderMap;
use tonic::{Code, Status};

use crate::backend::Backend;
use crate::backend::answer::Answer;
use crate::codec::grpc;
use crate::errors;
use crate::telemetry::counters::code_name;

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
            Failed::Status(status) => *status = errors::with_others(status, text),
            Failed::Answer(answer) => answer.set_text(errors::appended(answer.text(), text)),
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
            Failed::Status(status) => grpc::trailers(&status),
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
    let text = errors::named(answer.text(), &backend.name(), &backend.socket);
    answer.set_text(text);
    Failed::Answer(Box::new(answer))
}
