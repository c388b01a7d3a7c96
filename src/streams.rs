//! Streams of several backends as one: whole messages as they come, ended by the first failure.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use http::HeaderMap;
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tonic::{Code, Status};

use crate::backend::{Answer, Backend, error_chain};
use crate::fanout::named;
use crate::owners::Mark;
use crate::reply::{self, Reply};
use crate::rpc::{EVENT_HANDLER, Goes, Merge, Row, Then};
use crate::switch::{Call, Failed, Switch};
use crate::{status, wire};

impl Switch {
    /// The messages of all `backends` as they come; `instead` is the list for a backend that lacks the stream.
    pub(crate) fn interleave(
        self: &Arc<Self>,
        call: &Call,
        backends: Vec<Arc<Backend>>,
        instead: Option<&'static Row>,
    ) -> Reply {
        let having = Arc::new(AtomicUsize::new(backends.len()));
        let feeds = backends.into_iter().map(|backend| {
            let (switch, call, having) = (Arc::clone(self), call.clone(), Arc::clone(&having));
            let asked = self.owners().mark();
            let feed = Feed {
                switch,
                call,
                backend,
                instead,
                asked,
                having,
                messages: None,
            };
            stream::try_unfold(feed, Feed::next).boxed()
        });
        reply::of_frames(until_failure(stream::select_all(feeds)))
    }
}

/// Frames of the messages up to the first failure, which is the last; trailers in any case.
fn until_failure(
    messages: impl Stream<Item = Result<Bytes, Failed>> + Send,
) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send {
    let frames = messages.map_ok(|message| Frame::data(wire::frame(&message)));
    let end = stream::once(ready(Ok(Frame::trailers(reply::ok_trailers()))));
    let mut failed = false;
    frames.chain(end).scan((), move |(), frame| {
        if failed {
            return ready(None);
        }
        ready(Some(Ok(frame.unwrap_or_else(|failure| {
            failed = true;
            Frame::trailers(failure.into_trailers())
        }))))
    })
}

/// One backend's part of a stream.
struct Feed {
    switch: Arc<Switch>,
    call: Call,
    backend: Arc<Backend>,
    instead: Option<&'static Row>,
    /// When the stream was asked for, in the order of what was learned.
    asked: Mark,
    /// How many backends have the RPC, as far as is known.
    having: Arc<AtomicUsize>,
    /// `None` until the call is sent.
    messages: Option<Messages>,
}

impl Feed {
    async fn next(mut self) -> Result<Option<(Bytes, Feed)>, Failed> {
        let message = match self.read().await {
            Ok(message) => message,
            Err(failed) => self.list_instead(failed).await?,
        };
        match message {
            Some(message) => Ok(Some((self.learn(message)?, self))),
            None => {
                self.switch.settle(&self.call, &self.backend, self.asked);
                Ok(None)
            }
        }
    }

    async fn read(&mut self) -> Result<Option<Bytes>, Failed> {
        let messages = match &mut self.messages {
            Some(messages) => messages,
            none => none.insert(Messages::open(&self.backend, &self.call).await?),
        };
        messages.next(&self.backend).await
    }

    /// The unary list of a backend that lacks the stream, `None` if it lacks that too and may; else the failure.
    async fn list_instead(&mut self, failed: Failed) -> Result<Option<Bytes>, Failed> {
        let nothing_came = self
            .messages
            .as_ref()
            .is_none_or(|messages| messages.count == 0);
        let row = match self.instead {
            Some(row) if failed.code() == Code::Unimplemented && nothing_came => row,
            _ => return Err(self.named(failed)),
        };
        let answer = self
            .backend
            .ask(row, &self.call.reading_headers(), self.call.body.clone())
            .await?;
        self.messages = Some(Messages::ended());
        match answer.code() {
            Code::Ok => Ok(Some(self.backend.message(&answer)?)),
            Code::Unimplemented if self.may_be_left_out(row) => Ok(None),
            _ => Err(named(&self.backend, answer)),
        }
    }

    /// A backend that lacks the list too is left out where the list's row allows it, unless it is the last one.
    fn may_be_left_out(&self, row: &Row) -> bool {
        let Goes::All(_, Merge::Concat(lacking)) = row.goes else {
            return false;
        };
        self.switch.may_lack(lacking, &self.backend)
            && self.having.fetch_sub(1, Ordering::Relaxed) > 1
    }

    fn named(&self, failed: Failed) -> Failed {
        match failed {
            Failed::Answer(answer) => named(&self.backend, *answer),
            status => status,
        }
    }

    fn learn(&self, message: Bytes) -> Result<Bytes, Status> {
        let changed = match (&self.call.row.then, &self.call.row.goes) {
            (Then::Learn(kind), _) => self.switch.learn_list(*kind, &self.backend, &message)?,
            (_, Goes::All(_, Merge::Events)) => {
                self.switch
                    .renamed(&self.backend, &message, EVENT_HANDLER)?
            }
            _ => None,
        };
        Ok(changed.unwrap_or(message))
    }
}

/// A backend's stream, cut into messages: a data frame may end anywhere in one.
struct Messages {
    head: http::response::Parts,
    body: Option<Incoming>,
    buffer: BytesMut,
    trailers: Option<HeaderMap>,
    count: u64,
}

impl Messages {
    async fn open(backend: &Backend, call: &Call) -> Result<Messages, Status> {
        let (head, body) = backend
            .call(call.row, &call.reading_headers(), call.body.clone())
            .await?
            .into_parts();
        Ok(Messages {
            head,
            body: Some(body),
            buffer: BytesMut::new(),
            trailers: None,
            count: 0,
        })
    }

    /// A stream that has come to a good end.
    fn ended() -> Messages {
        let (head, ()) = http::Response::new(()).into_parts();
        let trailers = Some(reply::ok_trailers());
        Messages {
            head,
            body: None,
            buffer: BytesMut::new(),
            trailers,
            count: 0,
        }
    }

    async fn next(&mut self, backend: &Backend) -> Result<Option<Bytes>, Failed> {
        loop {
            if let Some(message) = self.take(backend)? {
                self.count += 1;
                return Ok(Some(message));
            }
            let frame = match &mut self.body {
                Some(body) => body.frame().await,
                None => None,
            };
            match frame
                .transpose()
                .map_err(|error| backend.unavailable(&error_chain(&error)))?
            {
                None => return self.end(backend),
                Some(frame) => match frame.into_data() {
                    Ok(data) => self.buffer.extend_from_slice(&data),
                    Err(frame) => self.trailers = frame.into_trailers().ok(),
                },
            }
        }
    }

    /// The next whole message in the buffer.
    fn take(&mut self, backend: &Backend) -> Result<Option<Bytes>, Status> {
        let length = wire::frame_length(&self.buffer)
            .map_err(|fault| backend.bad_reply(&format!("it sent {fault}")))?;
        match length {
            Some(length) if length > backend.max_message => Err(status::backend_reply_too_large(
                &backend.name,
                &backend.socket,
                backend.max_message,
            )),
            Some(length) if self.buffer.len() >= wire::FRAME_HEADER + length => Ok(Some(
                self.buffer
                    .split_to(wire::FRAME_HEADER + length)
                    .split_off(wire::FRAME_HEADER)
                    .freeze(),
            )),
            _ => Ok(None),
        }
    }

    fn end(&mut self, backend: &Backend) -> Result<Option<Bytes>, Failed> {
        if !self.buffer.is_empty() {
            return Err(backend
                .bad_reply("its stream ended within a message")
                .into());
        }
        let answer = Answer {
            head: self.head.clone(),
            body: Bytes::new(),
            trailers: self.trailers.take(),
        };
        match answer.status() {
            None => Err(backend
                .unavailable("its stream ended without a status")
                .into()),
            Some(Code::Ok) => Ok(None),
            Some(_) => Err(Failed::Answer(Box::new(answer))),
        }
    }
}
