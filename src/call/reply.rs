//! Replies to clients. A body never returns an error. If a reply breaks off, its body ends with an error status in the
//! trailers, so that no truncated reply looks complete.

mod bodies;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use criswitch_cri::codec::frames;
use criswitch_cri::codec::grpc::{GRPC_STATUS, ok_trailers};
use criswitch_cri::rpc::{List, LogRule, Row};
use futures_util::Stream;
use http::{HeaderMap, HeaderValue, header};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use tonic::{Code, Status};

use crate::backend::Backend;
use crate::backend::answer::{Answer, Data};
use crate::backend::failed::Failed;
use crate::backend::unsaved::Unsaved;
use crate::call::fault::PassedCall;
use crate::errors;
use crate::limits::budget::{self, Budget};
use crate::limits::incoming::IncomingBody;
use crate::telemetry::counters::{Counts, Reason};
use bodies::{CountedBody, PassedBody, WholeBody, hold_until_sent};

/// A reply on its way to the client.
pub type Reply = http::Response<Body>;

/// A reply that is not sent yet, and the backends whose unsaved changes it may show.
#[derive(Debug)]
pub(crate) struct Unsent {
    pub reply: Reply,
    pub shows: Unsaved,
}

impl From<Reply> for Unsent {
    fn from(reply: Reply) -> Unsent {
        let shows = Unsaved::default();
        Unsent { reply, shows }
    }
}

impl Unsent {
    /// A reply that shows changes of `backends`.
    pub(crate) fn of<'a>(
        reply: Reply,
        backends: impl IntoIterator<Item = &'a Arc<Backend>>,
    ) -> Unsent {
        let shows = backends.into_iter().collect();
        Unsent { reply, shows }
    }
}

/// The body of a reply.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;
/// The result of a poll for a body's next frame.
pub(crate) type FramePoll = Poll<Option<Result<Frame<Bytes>, Infallible>>>;

/// The largest reply, in bytes, that criswitch sends even without free memory if the call changed something.
const MAX_UNBUDGETED_REPLY: usize = 4096;
/// The approximate memory, in bytes, that a reply needs besides data, headers and trailers: its task and its stream.
const PER_REPLY: usize = 8 << 10;

/// A reply with a status and no message.
pub fn of_status(status: &Status) -> Reply {
    status.clone().into_http()
}

/// The reply to a request that is not gRPC (gRPC over HTTP/2: `Content-Type`).
pub fn not_grpc() -> Reply {
    let mut reply = Reply::default();
    *reply.status_mut() = http::StatusCode::UNSUPPORTED_MEDIA_TYPE;
    // grpc-go also sends a status.
    let invalid = HeaderValue::from(Code::InvalidArgument as i32);
    reply.headers_mut().insert(GRPC_STATUS, invalid);
    reply
}

/// A successful reply with one message. The message consists of `chunks`.
pub fn of_message(chunks: Vec<Bytes>) -> Reply {
    let length = chunks.iter().map(Bytes::len).sum();
    // Omit empty chunks: a client may count empty frames as a flood and close the connection.
    let frames = std::iter::once(frames::frame_header(length))
        .chain(chunks.into_iter().filter(|chunk| !chunk.is_empty()))
        .map(Frame::data)
        .chain(std::iter::once(Frame::trailers(ok_trailers())));
    with_body(WholeBody(frames.collect()).boxed_unsync())
}

/// A successful stream of these messages, none of which is empty.
pub fn of_messages(messages: Vec<Bytes>) -> Reply {
    let frames = messages
        .into_iter()
        .flat_map(|message| [frames::frame_header(message.len()), message])
        .map(Frame::data)
        .chain(std::iter::once(Frame::trailers(ok_trailers())));
    with_body(WholeBody(frames.collect()).boxed_unsync())
}

/// A backend's answer, sent unchanged.
pub fn of_answer(answer: Answer) -> Reply {
    let data = match answer.body {
        Data::Raw(body) => [body, Bytes::new()],
        Data::Message(message) => [frames::frame_header(message.len()), message],
    };
    let frames: VecDeque<_> = data
        .into_iter()
        .filter(|data| !data.is_empty())
        .map(Frame::data)
        .chain(answer.trailers.map(Frame::trailers))
        .collect();
    if frames.is_empty() {
        // The reply has only headers. grpc-go accepts a status in the headers only if no frame follows, not even an
        // empty one.
        return http::Response::from_parts(answer.head, Body::default());
    }
    http::Response::from_parts(answer.head, WholeBody(frames).boxed_unsync())
}

/// The reply for a failed call.
pub(crate) fn of_failed(failed: Failed) -> Reply {
    match failed {
        Failed::Status(status) => of_status(&status),
        Failed::Answer(answer) => of_answer(*answer),
    }
}

/// An answer with `message`, which criswitch changed.
pub fn of_changed(mut answer: Answer, message: Bytes) -> Reply {
    answer.head.headers.remove(header::CONTENT_LENGTH);
    of_answer(Answer {
        body: Data::Message(message),
        ..answer
    })
}

/// A streamed reply. Each data frame has one message, and the last frame has the trailers.
pub fn of_frames(
    frames: impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send + 'static,
) -> Reply {
    with_body(StreamBody::new(frames).boxed_unsync())
}

fn with_body(body: Body) -> Reply {
    let mut reply = http::Response::new(body);
    reply.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/grpc"),
    );
    reply
}

/// A body that has only trailers.
pub(crate) fn end(trailers: HeaderMap) -> Body {
    WholeBody([Frame::trailers(trailers)].into()).boxed_unsync()
}

/// A backend's response that criswitch forwards without reading it. At the end of the response, the cached `list` is
/// dropped, because the client may know newer items. `whole` is set if the response lists all items, and records
/// whether the response failed.
pub(crate) fn passed(
    response: http::Response<IncomingBody>,
    backend: Arc<Backend>,
    list: Option<List>,
    whole: Option<PassedCall>,
) -> Reply {
    let (head, inner) = response.into_parts();
    let mut body = PassedBody {
        inner,
        backend,
        list,
        whole,
        ended: false,
    };
    body.ends(&head.headers);
    Reply::from_parts(head, body.boxed_unsync())
}

/// Counts `reply` towards `unread`, the memory of the client's connection, until the reply is sent. If memory is short,
/// rejects the reply, or ends it with an error if it has begun.
///
/// `place` is the call's permit under the limit on calls in flight, and is returned if the call still needs it. A
/// complete reply counts as memory and needs no permit: a client that leaves such replies unread must not block the
/// calls of other clients.
pub(crate) fn counted<P>(
    mut reply: Reply,
    place: P,
    row: &Row,
    unread: &Budget,
    counts: &Arc<Counts>,
) -> (Reply, Option<P>) {
    let rpc = row.name;
    let body = usize::try_from(reply.body().size_hint().lower()).unwrap_or(usize::MAX);
    let there = body.saturating_add(budget::size(reply.headers()));
    let mut held = unread.held();
    if held.grow(there.saturating_add(PER_REPLY)).is_err() {
        // The client must learn that the change was made.
        if row.log == LogRule::Change && there <= MAX_UNBUDGETED_REPLY {
            return (reply, Some(place));
        }
        counts.reject(Reason::Unread);
        let rejected = of_status(&errors::unread_replies(rpc, unread.limit()));
        return (rejected, Some(place));
    }
    if reply.body().is_end_stream() {
        hold_until_sent(reply.headers_mut(), held);
        return (reply, None);
    }
    // A reply without data in memory is a stream that still runs, so it keeps the permit of its call.
    let place = (body == 0).then_some(place);
    let (limit, counts) = (unread.limit(), Arc::clone(counts));
    let reply = reply.map(|inner| {
        let (inner, end) = (Some(inner), held.split(held.bytes() - body));
        CountedBody {
            inner,
            held,
            end,
            rpc,
            limit,
            counts,
        }
        .boxed_unsync()
    });
    (reply, place)
}

/// Counts the reply to a call that was rejected without a row or a permit towards `unread`, until the reply is sent. If
/// memory is short, the client leaves too many replies unread, and its connection is closed.
pub(crate) fn rejected(reply: Reply, unread: &Budget) -> Reply {
    let mut held = unread.held();
    match held.grow(budget::size(reply.headers()).saturating_add(PER_REPLY)) {
        Ok(()) => holding(reply, held),
        Err(_) => {
            unread.lose();
            reply
        }
    }
}

/// Makes `reply` keep `held` until the end of the reply is sent.
pub fn holding(mut reply: Reply, held: impl Send + 'static) -> Reply {
    if reply.body().is_end_stream() {
        hold_until_sent(reply.headers_mut(), held);
        return reply;
    }
    let mut held = Some(held);
    reply.map(|body| {
        body.map_frame(move |mut frame| {
            if let Some(trailers) = frame.trailers_mut() {
                hold_until_sent(trailers, held.take());
            }
            frame
        })
        .boxed_unsync()
    })
}

#[cfg(test)]
mod tests {

    use criswitch_cri::codec::grpc::trailers;
    use criswitch_cri::rpc;
    use futures_util::stream;
    use http_body_util::BodyExt;

    use super::*;

    /// Counts `reply`. Returns the reply and the memory that it counts towards.
    fn counting(reply: Reply, is_whole: bool) -> (Reply, Budget) {
        let unread = Budget::for_messages(1);
        let (reply, place) = counted(reply, (), &rpc::LIST_PODS, &unread, &Arc::default());
        assert_eq!(place.is_none(), is_whole, "the place of the call");
        (reply, unread)
    }

    #[tokio::test]
    async fn headers_and_trailers_count_until_they_are_sent() {
        let text = "x".repeat(10_000);
        let status = Status::internal(&text);
        let (headers, unread) = counting(of_status(&status), true);
        assert!(unread.used() > text.len());
        assert!(headers.body().is_end_stream());
        let (head, body) = headers.into_parts();
        drop(body);
        assert!(unread.used() > text.len());
        drop(head);
        assert_eq!(unread.used(), 0);

        let frames = [Ok(Frame::trailers(trailers(&status)))];
        let (reply, unread) = counting(of_frames(stream::iter(frames)), false);
        let mut body = reply.into_body();
        let end = body.frame().await.unwrap().unwrap();
        drop(body);
        assert!(unread.used() > text.len());
        drop(end);
        assert_eq!(unread.used(), 0);
    }

    #[test]
    fn a_complete_reply_counts_as_unread_and_releases_the_place_of_its_call() {
        let message = Bytes::from_static(b"pods");
        let (reply, unread) = counting(of_message(vec![message]), true);
        assert!(unread.used() > PER_REPLY);
        drop(reply);
        assert_eq!(unread.used(), 0);
    }

    #[tokio::test]
    async fn a_reply_releases_what_it_holds_when_its_end_is_sent() {
        let (held, letting_go) = std::sync::mpsc::channel::<()>();
        let is_held = || letting_go.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty);
        let reply = holding(of_status(&Status::not_found("")), held.clone());
        assert_eq!(reply.headers().get(GRPC_STATUS).unwrap(), "5");
        let mut body = holding(of_message(Vec::new()), held).into_body();
        drop(reply);
        assert!(is_held());
        let data = body.frame().await.unwrap().unwrap();
        assert!(data.is_data());
        let end = body.frame().await.unwrap().unwrap();
        drop(body);
        assert!(is_held());
        assert_eq!(end.trailers_ref().unwrap().get(GRPC_STATUS).unwrap(), "0");
        drop(end);
        assert!(!is_held());
    }

    #[test]
    fn no_empty_frame_follows_an_answer_that_ends_with_its_headers() {
        let refused = of_status(&Status::not_found("no such image"));
        let (head, _) = refused.into_parts();
        let answer = Answer {
            head,
            body: Data::Raw(Bytes::new()),
            trailers: None,
        };
        let reply = of_answer(answer);
        assert_eq!(reply.headers().get(GRPC_STATUS).unwrap(), "5");
        assert!(reply.body().is_end_stream());
    }
}
