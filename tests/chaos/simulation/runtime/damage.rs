//! A runtime's replies as HTTP/2 responses, intact or damaged.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use criswitch_cri::codec::frames;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use tokio::sync::broadcast;
use tonic::Status;

use super::Runtime;
use crate::simulation::plan::Damage;

pub type Body = UnsyncBoxBody<Bytes, Broken>;

/// The error of a stream that is reset.
#[derive(Debug)]
pub enum Broken {
    Reset,
    /// hyper sends the reason of this error.
    Rejected(h2::Error),
}

impl Broken {
    pub fn rejected() -> Broken {
        Broken::Rejected(h2::Reason::REFUSED_STREAM.into())
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("reset")
    }
}

impl std::error::Error for Broken {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Broken::Reset => None,
            Broken::Rejected(why) => Some(why),
        }
    }
}

type Part = Result<Frame<Bytes>, Broken>;

/// The reply of `runtime`, with `damage`.
pub fn reply(
    runtime: &Arc<Runtime>,
    answer: Result<Vec<Bytes>, Status>,
    damage: Option<Damage>,
) -> Response<Body> {
    let messages = match answer {
        Ok(messages) => messages,
        Err(status) => return unroutable(&status),
    };
    let mut data: Vec<u8> = messages
        .iter()
        .flat_map(|message| frames::frame(message))
        .collect();
    let half = data.len() / 2;
    match damage {
        Some(Damage::DieWithin) => {
            data.truncate(half);
            let runtime = Arc::clone(runtime);
            let end = stream::once(async move {
                // The wait lets the first half of the reply leave before the runtime dies.
                tokio::time::sleep(Duration::from_millis(1)).await;
                runtime.die_within_call();
                Err(Broken::Reset)
            });
            of_stream(stream::once(async { Ok(Frame::data(data.into())) }).chain(end))
        }
        Some(Damage::ResetWithin) => {
            data.truncate(half);
            of_parts(vec![Ok(Frame::data(data.into())), Err(Broken::Reset)])
        }
        Some(Damage::Cut) => {
            data.pop();
            of_parts(vec![Ok(Frame::data(data.into())), Ok(trailers())])
        }
        Some(Damage::NoStatus) => of_parts(vec![Ok(Frame::data(data.into()))]),
        Some(Damage::Split) => {
            let pieces = data
                .chunks(7)
                .map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece))));
            of_parts(pieces.chain([Ok(trailers())]).collect())
        }
        _ => of_parts(vec![Ok(Frame::data(data.into())), Ok(trailers())]),
    }
}

/// A reply that is only a status.
pub fn unroutable(status: &Status) -> Response<Body> {
    let response = status.clone().into_http::<Full<Bytes>>();
    response.map(|body| body.map_err(|never| match never {}).boxed_unsync())
}

/// A message to a subscriber of events.
#[derive(Clone, Debug)]
pub enum Shown {
    Event(Bytes),
    /// The stream ends: `true` means with status 0, `false` means with a reset.
    End(bool),
}

/// A reply that streams events until their end.
pub fn of_events(events: broadcast::Receiver<Shown>) -> Response<Body> {
    of_stream(stream::unfold(Some(events), |events| async {
        let mut events = events?;
        Some(match events.recv().await.ok()? {
            Shown::Event(event) => (Ok(Frame::data(frames::frame(&event))), Some(events)),
            Shown::End(true) => (Ok(trailers()), None),
            Shown::End(false) => (Err(Broken::Reset), None),
        })
    }))
}

fn of_parts(parts: Vec<Part>) -> Response<Body> {
    of_stream(stream::iter(parts))
}

fn of_stream(parts: impl futures_util::Stream<Item = Part> + Send + 'static) -> Response<Body> {
    let mut response = Response::new(StreamBody::new(parts).boxed_unsync());
    let kind = HeaderValue::from_static("application/grpc");
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, kind);
    response
}

fn trailers() -> Frame<Bytes> {
    let status = (
        http::HeaderName::from_static("grpc-status"),
        HeaderValue::from_static("0"),
    );
    Frame::trailers(HeaderMap::from_iter([status]))
}
