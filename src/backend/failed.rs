//! How a call to backends fails: with criswitch's own status, or with a backend's reply.

use criswitch_cri::codec::grpc;
use http::HeaderMap;
use tonic::{Code, Status};

use crate::backend::Backend;
use crate::backend::answer::Answer;
use crate::errors;
use crate::telemetry::counters::code_name;

/// A failed call.
#[derive(Debug)]
pub(crate) enum Failed {
    /// A status that criswitch made.
    Status(Status),
    /// A backend's reply.
    Answer(Box<Answer>),
}

impl Failed {
    pub(crate) fn code(&self) -> Code {
        match self {
            Failed::Status(status) => status.code(),
            Failed::Answer(answer) => answer.code(),
        }
    }

    /// Whether the backend gave no complete answer. Any other failure is an answer that criswitch cannot use: an error,
    /// or a reply that it cannot read.
    pub(crate) fn is_silence(&self) -> bool {
        matches!(self, Failed::Status(status) if errors::is_silence(status))
    }

    /// Whether clients may have caused the failure; see [`errors::is_of_clients`].
    pub(crate) fn is_of_clients(&self) -> bool {
        matches!(self, Failed::Status(status) if errors::is_of_clients(status))
    }

    /// Whether the backend gave no complete answer, or answered `Unavailable`.
    pub(crate) fn is_unavailable(&self) -> bool {
        self.is_silence() || self.code() == Code::Unavailable
    }

    /// Joins several failures: the status of the first failure, with the texts of the others appended. `None` if
    /// `failed` is empty.
    pub(crate) fn all(failed: Vec<Failed>) -> Option<Failed> {
        let mut failed = failed.into_iter();
        let mut first = failed.next()?;
        let others: Vec<String> = failed.map(|failed| failed.text()).collect();
        if !others.is_empty() {
            first.append(&others.join("; "));
        }
        Some(first)
    }

    /// The gRPC code and the text of the failure, for log lines and reports.
    pub(crate) fn code_and_text(&self) -> String {
        match self {
            Failed::Status(status) => format!("{}: {}", code_name(status.code()), status.message()),
            Failed::Answer(answer) => answer.code_and_text(),
        }
    }

    /// The text of the failure, without its code.
    pub(crate) fn text(&self) -> String {
        match self {
            Failed::Status(status) => status.message().to_owned(),
            Failed::Answer(answer) => answer.plain_text(),
        }
    }

    fn append(&mut self, text: &str) {
        match self {
            Failed::Status(status) => *status = errors::with_others(status, text),
            Failed::Answer(answer) => answer.set_text(errors::appended(answer.text(), text)),
        }
    }

    /// Appends the backend's name to the text of a backend's reply, for calls to several backends.
    pub(crate) fn named(self, backend: &Backend) -> Failed {
        match self {
            Failed::Answer(answer) => named(backend, *answer),
            status => status,
        }
    }

    /// Prefixes the text of criswitch's own status with the handler that the pod asked for. A backend's reply stays
    /// unchanged.
    pub(crate) fn of_handler(self, handler: &str) -> Failed {
        match self {
            Failed::Status(status) => errors::of_handler(handler, &status).into(),
            answer @ Failed::Answer(_) => answer,
        }
    }

    /// The trailers that end a stream with this failure.
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

/// The error reply of one of several backends: the backend's own status, with the backend's name appended to the text.
pub(crate) fn named(backend: &Backend, mut answer: Answer) -> Failed {
    let text = errors::named(answer.text(), &backend.name(), &backend.socket);
    answer.set_text(text);
    Failed::Answer(Box::new(answer))
}

#[cfg(test)]
mod tests {
    use criswitch_config::address::Address;

    use super::*;

    #[test]
    fn a_full_memory_is_neither_silence_nor_an_error_of_the_backend() {
        let socket = Address::default_listen();
        let full = Failed::from(errors::no_memory_for_reply("kata", &socket, 1));
        assert!(full.is_of_clients() && !full.is_silence());
        let too_large = errors::backend_reply_too_large("kata", &socket, 1);
        assert!(!Failed::from(too_large).is_of_clients());
    }
}
