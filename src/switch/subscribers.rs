//! The subscribers to the events of pods and containers. All subscribers share one queue.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, stream};
use http::HeaderMap;
use http_body::Frame;
use parking_lot::Mutex;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};

use crate::call::reply::{self, Reply};
use crate::codec::{frames, grpc};
use crate::errors;
use crate::ownership::BackendId;
use crate::switch::Switch;
use crate::telemetry::counters::Reason;

/// The most events that a client may leave unread before it is cut off.
const QUEUE: usize = 1024;

/// An event, or the trailers that end the stream of every subscriber. An empty event only fills the queue.
pub(crate) type Event = Result<Bytes, HeaderMap>;

/// All subscribers, and the queue of their events.
#[derive(Debug)]
pub(crate) struct Subscribers {
    told: broadcast::Sender<Event>,
    listeners: watch::Sender<usize>,
    /// Backends without events, each with the trailers for subscribers. No client can subscribe while there is such a
    /// backend.
    lacking: Mutex<HashMap<BackendId, HeaderMap>>,
}

impl Default for Subscribers {
    fn default() -> Subscribers {
        Subscribers {
            told: broadcast::Sender::new(QUEUE),
            listeners: watch::Sender::new(0),
            lacking: Mutex::default(),
        }
    }
}

impl Subscribers {
    /// Ends the streams of all subscribers with `end`. Rejects new subscribers until the result is dropped.
    pub(crate) fn lacks(&self, backend: BackendId, end: HeaderMap) -> Lacks<'_> {
        self.lacking.lock().insert(backend, end.clone());
        self.tell(Err(end));
        Lacks {
            subscribers: self,
            backend,
        }
    }

    /// Sends an event to all subscribers.
    pub(crate) fn tell(&self, event: Event) {
        // Sending fails only if there are no subscribers.
        self.told.send(event).ok();
    }

    /// Fills the queue with empty events. Subscribers with unread events then lag and are cut off. The other
    /// subscribers lose no event.
    pub(crate) async fn cut_off_unread(&self) {
        for _ in 0..QUEUE {
            self.tell(Ok(Bytes::new()));
            tokio::task::yield_now().await;
        }
    }

    /// If `wanted`, waits until there is a subscriber; otherwise waits until there is none.
    pub(crate) async fn listened(&self, wanted: bool) {
        let mut listeners = self.listeners.subscribe();
        listeners
            .wait_for(|count| (*count > 0) == wanted)
            .await
            .ok();
    }
}

/// Marks a backend as one without events until this value is dropped: at the latest when there is no subscriber, or
/// when the backend is removed.
pub(crate) struct Lacks<'a> {
    subscribers: &'a Subscribers,
    backend: BackendId,
}

impl Drop for Lacks<'_> {
    fn drop(&mut self) {
        self.subscribers.lacking.lock().remove(&self.backend);
    }
}

/// A client that counts as a subscriber until this value is dropped.
struct Subscriber {
    switch: Arc<Switch>,
    told: broadcast::Receiver<Event>,
    ended: bool,
}

impl Subscriber {
    fn new(switch: &Arc<Switch>) -> Subscriber {
        let told = switch.subscribers.told.subscribe();
        switch
            .subscribers
            .listeners
            .send_modify(|count| *count += 1);
        Subscriber {
            switch: Arc::clone(switch),
            told,
            ended: false,
        }
    }

    /// Waits for the next event that is not empty.
    async fn heard(&mut self) -> Result<Event, RecvError> {
        loop {
            let event = self.told.recv().await;
            if !matches!(&event, Ok(Ok(event)) if event.is_empty()) {
                return event;
            }
        }
    }

    async fn next(mut self) -> Option<(Result<Frame<Bytes>, Infallible>, Subscriber)> {
        if self.ended {
            return None;
        }
        let end = match self.heard().await {
            Ok(Ok(event)) => return Some((Ok(Frame::data(frames::frame(&event))), self)),
            Ok(Err(end)) => end,
            Err(RecvError::Lagged(_)) => {
                self.switch.counts.refuse(Reason::Unread);
                grpc::trailers(&errors::does_not_read(QUEUE))
            }
            Err(RecvError::Closed) => grpc::trailers(&errors::shutting_down()),
        };
        self.ended = true;
        Some((Ok(Frame::trailers(end)), self))
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.switch
            .subscribers
            .listeners
            .send_modify(|count| *count -= 1);
    }
}

/// Begins the shutdown: calls in flight may finish. Ends all streams of events, because they never end by themselves.
pub(crate) fn begin_end(switch: &Switch) {
    switch.ending.begun.cancel();
    switch
        .subscribers
        .tell(Err(grpc::trailers(&errors::shutting_down())));
}

/// Returns a stream of the events of all backends from now on, or `Unimplemented` if a backend has no events.
pub(crate) fn events(switch: &Arc<Switch>) -> Reply {
    if switch.ending.begun.is_cancelled() {
        return reply::of_status(&errors::shutting_down());
    }
    let lacking = switch.subscribers.lacking.lock().values().next().cloned();
    if let Some(end) = lacking {
        return reply::of_frames(stream::iter([Ok(Frame::trailers(end))]));
    }
    reply::of_frames(frames(Subscriber::new(switch)))
}

fn frames(subscriber: Subscriber) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send {
    stream::unfold(subscriber, Subscriber::next)
}
