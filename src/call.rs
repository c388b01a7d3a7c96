//! A call that was read, and how it fails: what the path of a call hands from step to step.
//!
//! Does no I/O, and sends a call nowhere.

pub(crate) mod ending;
pub mod log;
pub mod reply;
pub mod route;
mod watched;

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use tonic::{Code, Status};

use crate::backend::{Backend, Contribution};
pub(crate) use watched::watched;

use crate::backend::answer::Answer;
use crate::call::reply::Reply;
use crate::codec::frames;
use crate::codec::grpc;
use crate::codec::protobuf::{self, Field};
use crate::errors;
use crate::limits::budget::Budget;
use crate::rpc::fields::IMAGE_TEXTS;
use crate::rpc::fields::{FILTER, image_filter};
use crate::rpc::{Goes, List, Row, Then};
use crate::telemetry::counters::code_name;
use crate::topology::Live;

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
    pub unread: Budget,
}

impl Call {
    /// Its message.
    pub(crate) fn message(&self) -> Bytes {
        self.body.slice(frames::FRAME_HEADER..)
    }

    /// Whether it asks for all that there is.
    pub(crate) fn asks_for_all(&self) -> bool {
        match self.row.then {
            Then::Learn(list) | Then::Keep(list) => asks_for_all(list, &self.message()),
            _ => true,
        }
    }

    /// The list that it asks for all items of.
    pub(crate) fn whole_list(&self) -> Option<List> {
        match self.row.then {
            Then::Learn(list) if self.asks_for_all() => Some(list),
            _ => None,
        }
    }

    /// Whether it may be taken for all calls of its row. One for the stats of some may not: CRI-O keeps a call for all
    /// waiting for one container that stops, and answers for each of the others at once.
    pub(crate) fn speaks_for_all(&self) -> bool {
        !self.row.is_stats() || self.asks_for_all()
    }

    /// What a backend contributes to the reply.
    pub(crate) fn contribution(&self) -> Contribution {
        Contribution {
            row: self.row,
            is_of_all: self.speaks_for_all(),
        }
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
        let pod = protobuf::string(request, filter.pod?).ok()?;
        (!pod.is_empty()).then_some(pod)
    }

    /// The same call with the string at `path` set.
    pub(crate) fn with_string(&self, path: &[u32], value: &str) -> Call {
        Call {
            body: frames::frame(&protobuf::with_string(&self.message(), path, value)),
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

/// Whether a list's request narrows nothing: it has no fields but empty filters. Of a filter that comes in parts each
/// counts, and nobody knows what fields of a later CRI leave out.
pub(crate) fn asks_for_all(list: List, request: &[u8]) -> bool {
    all_fields(request, |field| {
        let filter = field.bytes().ok();
        let is_empty = |filter: &[u8]| match list {
            // An empty state in the filter of a pod or container is a state: the one with the number 0.
            List::Images => names_no_image(filter),
            _ => filter.is_empty(),
        };
        field.number == FILTER && filter.is_some_and(is_empty)
    })
}

/// Whether an image filter has nothing but image specs without a name: `crictl images` sends an empty spec.
fn names_no_image(filter: &[u8]) -> bool {
    all_fields(filter, |image| {
        let spec = image.bytes().ok();
        image.number == image_filter::IMAGE
            && spec.is_some_and(|spec| all_fields(spec, is_empty_text))
    })
}

fn is_empty_text(field: &Field<'_>) -> bool {
    IMAGE_TEXTS.contains(&field.number) && field.bytes().is_ok_and(<[u8]>::is_empty)
}

fn all_fields(message: &[u8], is: impl Fn(&Field<'_>) -> bool) -> bool {
    protobuf::fields(message).all(|field| field.is_ok_and(|field| is(&field)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_asked_for_by_nothing_but_empty_filters() {
        let (empty, filter) = (&[0x0a, 0][..], &[0x0a, 2, 0x12, 0][..]);
        let unknown = &[0x48, 1][..];
        for (parts, all) in [
            (vec![], true),
            (vec![empty], true),
            (vec![empty, empty], true),
            (vec![filter], false),
            (vec![filter, empty], false),
            (vec![empty, filter], false),
            (vec![unknown], false),
            (vec![empty, unknown], false),
            (vec![&[0x0a]], false),
        ] {
            for list in [List::Pods, List::Containers, List::Images] {
                let request = parts.concat();
                assert_eq!(asks_for_all(list, &request), all, "{list:?} {parts:x?}");
            }
        }
    }

    #[test]
    fn all_images_are_asked_for_by_an_image_spec_without_texts() {
        let in_filter = |image: &[u8]| {
            let filter = [&[0x0a, image.len() as u8], image].concat();
            [&[0x0a, filter.len() as u8], &*filter].concat()
        };
        // An empty spec, an empty name, an empty handler; a name, a handler, an annotation, a field of a later CRI.
        for (image, all) in [
            (&[][..], true),
            (&[0x0a, 0], true),
            (&[0x9a, 1, 0], true),
            (&[0x0a, 1, b'a'], false),
            (&[0x9a, 1, 1, b'a'], false),
            (&[0x12, 0], false),
            (&[0xaa, 1, 0], false),
        ] {
            let request = in_filter(image);
            assert_eq!(asks_for_all(List::Images, &request), all, "{image:x?}");
            // Field 1 of the other filters is an id.
            assert!(!asks_for_all(List::Pods, &request));
        }
    }
}
