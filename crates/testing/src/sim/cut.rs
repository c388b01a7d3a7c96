//! Replies in odd pieces, and stream lists that stop after their first message.

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use http_body::{Body as _, Frame};
use http_body_util::{BodyStream, StreamBody};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::BoxStream;

use super::Sim;

/// The rest of a stream list, after its first message.
#[derive(Clone, Default)]
pub enum Rest {
    #[default]
    Comes,
    Waits,
    Fails(Status),
}

/// A stream list that waits, fails or continues after its first message, as [`Rest`] says.
pub fn interruptible<M: Send + 'static>(sim: Sim, messages: Vec<M>) -> BoxStream<M> {
    let messages = stream::iter(messages.into_iter().enumerate());
    Box::pin(messages.then(move |(at, message)| {
        let sim = sim.clone();
        async move {
            if at > 0 {
                rest(&sim).await?;
            }
            Ok(message)
        }
    }))
}

async fn rest(sim: &Sim) -> Result<(), Status> {
    let mut journal = sim.0.journal.subscribe();
    match journal
        .wait_for(|journal| !matches!(journal.rest, Rest::Waits))
        .await
        .map(|journal| journal.rest.clone())
    {
        Ok(Rest::Fails(status)) => Err(status),
        _ => Ok(()),
    }
}

/// Records the body of the reply in the journal while it is sent.
pub fn watch(sim: &Sim, rpc: String, reply: http::Response<Body>) -> http::Response<Body> {
    if reply.body().is_end_stream() {
        return reply;
    }
    let sim = sim.clone();
    let note = move |frame: &Frame<Bytes>| {
        if let Some(data) = frame.data_ref() {
            sim.edit(|journal| {
                let sent = journal.sent.entry(rpc.clone()).or_default();
                sent.extend_from_slice(data);
            });
        }
    };
    reply.map(|body| Body::new(StreamBody::new(BodyStream::new(body).inspect_ok(note))))
}

/// Cuts a reply into data frames of `length` bytes, regardless of message boundaries.
pub fn chop(reply: http::Response<Body>, length: usize) -> http::Response<Body> {
    reply.map(|body| {
        let frames = BodyStream::new(body).map_ok(move |frame| {
            let frames = match frame.into_data() {
                Ok(data) => pieces(&data, length),
                Err(trailers) => vec![trailers],
            };
            stream::iter(frames.into_iter().map(Ok::<_, Status>))
        });
        Body::new(StreamBody::new(frames.try_flatten()))
    })
}

fn pieces(data: &Bytes, length: usize) -> Vec<Frame<Bytes>> {
    let pieces = data.chunks(length);
    pieces
        .map(|piece| Frame::data(data.slice_ref(piece)))
        .collect()
}
