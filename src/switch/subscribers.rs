//! The subscribers to the events of pods and containers. Each subscriber has a queue of its unread events.
//!
//! While a subscriber lags, criswitch reads no further events from the backends, so that a backend that sends events
//! without a pause cuts off no subscriber that reads. A subscriber that does not catch up in time is cut off, so that
//! the other subscribers get their events. For a subscriber of a user other than root and criswitch's own user no
//! backend waits: otherwise one that lags after the other would delay each event of the kubelet.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use criswitch_config::BackendId;
use criswitch_cri::codec::{frames, grpc};
use criswitch_cri::rpc;
use futures_util::{Stream, stream};
use http::HeaderMap;
use http_body::Frame;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::call::reply::{self, Reply};
use crate::errors;
use crate::gate::Readable;
use crate::limits::USER_SUBSCRIBERS;
use crate::limits::places::User;
use crate::switch::Switch;
use crate::telemetry::counters::Reason;

/// A subscriber with more unread events than this lags. A subscriber of a user other than root and criswitch's own user
/// is cut off instead.
const MOST_UNREAD: usize = 1024;
/// A subscriber that lags has caught up when it has at most this many unread events.
const CAUGHT_UP: usize = MOST_UNREAD / 2;
/// A subscriber with this many unread events is cut off at the next event. Each backend adds few events after the
/// subscriber began to lag, so only a very large number of backends reaches this limit.
const QUEUE: usize = 2 * MOST_UNREAD;
/// How long a backend waits for subscribers to catch up or to free memory, before these subscribers are cut off.
const LAG_LIMIT: Duration = Duration::from_secs(1);

/// All subscribers, and their events.
#[derive(Debug)]
pub(crate) struct Subscribers {
    queues: Mutex<Vec<Arc<Queue>>>,
    listeners: watch::Sender<usize>,
    /// The number of subscribers that lag.
    lagging: watch::Sender<usize>,
    /// Notified when a subscriber has read an event, which may free memory.
    read: Notify,
    /// Backends without events, each with the trailers for subscribers. No client can subscribe while there is such a
    /// backend.
    lacking: Mutex<HashMap<BackendId, HeaderMap>>,
}

/// The queue of one subscriber.
#[derive(Debug)]
struct Queue {
    user: User,
    unread: Mutex<UnreadEvents>,
    /// Notified when an event or the end is added.
    added: Notify,
}

#[derive(Debug, Default)]
struct UnreadEvents {
    events: VecDeque<(BackendId, Readable)>,
    lags: bool,
    /// The end of the stream, after the last of `events`.
    end: Option<End>,
}

/// Why a subscriber's stream ends.
#[derive(Clone, Debug)]
enum End {
    /// The subscriber has left too many events unread.
    CutOff,
    /// Any other reason; the trailers of the stream.
    Trailers(HeaderMap),
}

impl UnreadEvents {
    fn add(&mut self, user: User, backend: BackendId, event: Readable) {
        let most = if user.is_other() { MOST_UNREAD } else { QUEUE };
        match &self.end {
            Some(_) => {}
            None if self.events.len() >= most => self.cut_off(),
            None => self.events.push_back((backend, event)),
        }
    }

    fn next(&mut self) -> Option<Result<Readable, End>> {
        match self.events.pop_front() {
            Some((_, event)) => Some(Ok(event)),
            None => self.end.clone().map(Err),
        }
    }

    fn cut_off(&mut self) {
        self.events = VecDeque::new();
        self.end = Some(End::CutOff);
    }
}

impl Default for Subscribers {
    fn default() -> Subscribers {
        Subscribers {
            queues: Mutex::default(),
            listeners: watch::Sender::new(0),
            lagging: watch::Sender::new(0),
            read: Notify::new(),
            lacking: Mutex::default(),
        }
    }
}

/// The queues with unread events of `backend`, sorted so that the queue with the most bytes of these events comes
/// first.
fn largest_first(queues: &[Arc<Queue>], backend: BackendId) -> impl Iterator<Item = &Arc<Queue>> {
    let mut sizes: Vec<_> = queues
        .iter()
        .map(|queue| {
            let unread = queue.unread.lock();
            let events = unread.events.iter().filter(|(of, _)| *of == backend);
            (events.map(|(_, event)| event.len()).sum::<usize>(), queue)
        })
        .filter(|(size, _)| *size > 0)
        .collect();
    sizes.sort_by_key(|(size, _)| Reverse(*size));
    sizes.into_iter().map(|(_, queue)| queue)
}

impl Subscribers {
    /// Ends the streams of all subscribers with `end`. Rejects new subscribers until the result is dropped.
    pub(crate) fn lacks_events(&self, backend: BackendId, end: HeaderMap) -> LacksEvents<'_> {
        self.lacking.lock().insert(backend, end.clone());
        self.end(&end);
        LacksEvents {
            subscribers: self,
            backend,
        }
    }

    /// Sends an event of `backend` to all subscribers. Then waits while a subscriber lags, at most for [`LAG_LIMIT`].
    /// Then cuts off the subscribers that still lag.
    pub(crate) async fn send(&self, backend: BackendId, event: &Readable) {
        self.change_all(|user, unread| unread.add(user, backend, event.clone()));
        // Let subscribers read the event before the next one comes.
        tokio::task::yield_now().await;
        if *self.lagging.borrow() == 0 {
            return;
        }
        let mut lagging = self.lagging.subscribe();
        let caught_up = lagging.wait_for(|count| *count == 0);
        if tokio::time::timeout(LAG_LIMIT, caught_up).await.is_err() {
            self.cut_off(|unread| unread.lags);
        }
    }

    /// Cuts off subscribers of other users than root and criswitch's own user until `fits` succeeds. Then waits until
    /// `fits` succeeds because subscribers have read events of `backend`, at most for [`LAG_LIMIT`]. Then cuts off any
    /// subscribers.
    pub(crate) async fn make_room<E>(
        &self,
        backend: BackendId,
        mut fits: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        if self.free(backend, User::is_other, &mut fits).is_ok() {
            return Ok(());
        }
        let has_room = async {
            loop {
                let read = self.read.notified();
                if fits().is_ok() {
                    return;
                }
                read.await;
            }
        };
        if tokio::time::timeout(LAG_LIMIT, has_room).await.is_ok() {
            return Ok(());
        }
        self.free(backend, |_| true, fits)
    }

    /// Cuts off the subscriber with the most unread bytes of `backend`, and further ones until `fits` succeeds. Cuts
    /// off only subscribers of these users.
    fn free<E>(
        &self,
        backend: BackendId,
        is_of: impl Fn(User) -> bool,
        mut fits: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let queues = self.queues.lock();
        for queue in largest_first(&queues, backend).filter(|queue| is_of(queue.user)) {
            if fits().is_ok() {
                return Ok(());
            }
            self.change(queue, UnreadEvents::cut_off);
            queue.added.notify_one();
        }
        fits()
    }

    /// Ends the streams of all subscribers, after their unread events.
    fn end(&self, trailers: &HeaderMap) {
        self.change_all(|_, unread| {
            unread
                .end
                .get_or_insert_with(|| End::Trailers(trailers.clone()));
        });
    }

    fn cut_off(&self, is_late: impl Fn(&UnreadEvents) -> bool) {
        self.change_all(|_, unread| {
            if is_late(unread) {
                unread.cut_off();
            }
        });
    }

    fn change_all(&self, change: impl Fn(User, &mut UnreadEvents)) {
        for queue in &*self.queues.lock() {
            self.change(queue, |unread| change(queue.user, unread));
            queue.added.notify_one();
        }
    }

    /// Changes a queue, and counts whether its subscriber lags.
    fn change<T>(&self, queue: &Queue, change: impl FnOnce(&mut UnreadEvents) -> T) -> T {
        let mut unread = queue.unread.lock();
        let (lagged, changed) = (unread.lags, change(&mut unread));
        unread.lags = if lagged {
            unread.events.len() > CAUGHT_UP
        } else {
            unread.events.len() > MOST_UNREAD
        };
        match (lagged, unread.lags) {
            (false, true) => self.lagging.send_modify(|count| *count += 1),
            (true, false) => self.lagging.send_modify(|count| *count -= 1),
            _ => {}
        }
        changed
    }

    /// Waits until there is a subscriber.
    pub(crate) async fn until_some(&self) {
        self.listeners
            .subscribe()
            .wait_for(|count| *count > 0)
            .await
            .ok();
    }

    /// Waits until there is no subscriber.
    pub(crate) async fn until_none(&self) {
        self.listeners
            .subscribe()
            .wait_for(|count| *count == 0)
            .await
            .ok();
    }

    /// Ends all streams of events at the shutdown, because they never end by themselves.
    pub(crate) fn end_for_shutdown(&self) {
        self.end(&grpc::trailers(&errors::shutting_down()));
    }
}

/// Marks a backend as one without events until this value is dropped: at the latest when there is no subscriber, or
/// when the backend is removed.
pub(crate) struct LacksEvents<'a> {
    subscribers: &'a Subscribers,
    backend: BackendId,
}

impl Drop for LacksEvents<'_> {
    fn drop(&mut self) {
        self.subscribers.lacking.lock().remove(&self.backend);
    }
}

/// A client that counts as a subscriber until this value is dropped.
struct Subscriber {
    switch: Arc<Switch>,
    queue: Arc<Queue>,
    ended: bool,
}

impl Subscriber {
    /// `None` if `user` has the most subscribers already.
    fn new(switch: &Arc<Switch>, user: User) -> Option<Subscriber> {
        let subscribers = &switch.subscribers;
        let mut queues = subscribers.queues.lock();
        let of_user = queues.iter().filter(|queue| queue.user == user);
        if user.is_other() && of_user.count() >= USER_SUBSCRIBERS {
            return None;
        }
        let queue = Arc::new(Queue {
            user,
            unread: Mutex::default(),
            added: Notify::new(),
        });
        queues.push(Arc::clone(&queue));
        drop(queues);
        subscribers.listeners.send_modify(|count| *count += 1);
        Some(Subscriber {
            switch: Arc::clone(switch),
            queue,
            ended: false,
        })
    }

    /// Waits for the next event, or for the end of the stream.
    async fn next_event(&self) -> Result<Readable, End> {
        loop {
            if let Some(next) = self
                .switch
                .subscribers
                .change(&self.queue, UnreadEvents::next)
            {
                return next;
            }
            self.queue.added.notified().await;
        }
    }

    async fn next(mut self) -> Option<(Result<Frame<Bytes>, Infallible>, Subscriber)> {
        if self.ended {
            return None;
        }
        let end = match self.next_event().await {
            Ok(event) => {
                let frame = frames::frame(&event);
                drop(event);
                self.switch.subscribers.read.notify_waiters();
                return Some((Ok(Frame::data(frame)), self));
            }
            Err(End::Trailers(trailers)) => trailers,
            Err(End::CutOff) => {
                self.switch.counts.reject(Reason::Unread);
                grpc::trailers(&errors::does_not_read(MOST_UNREAD))
            }
        };
        self.ended = true;
        Some((Ok(Frame::trailers(end)), self))
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let subscribers = &self.switch.subscribers;
        let mut queues = subscribers.queues.lock();
        queues.retain(|queue| !Arc::ptr_eq(queue, &self.queue));
        drop(queues);
        // The queue no longer lags, and its events no longer take memory.
        subscribers.change(&self.queue, |unread| unread.events.clear());
        subscribers.read.notify_waiters();
        subscribers.listeners.send_modify(|count| *count -= 1);
    }
}

/// Returns a stream for `user` of the events of all backends from now on, or `Unimplemented` if a backend has no
/// events.
pub(crate) fn events(switch: &Arc<Switch>, user: User) -> Reply {
    if switch.ending.begun.is_cancelled() {
        return reply::of_status(&errors::shutting_down());
    }
    let lacking = switch.subscribers.lacking.lock().values().next().cloned();
    if let Some(end) = lacking {
        return reply::of_frames(stream::iter([Ok(Frame::trailers(end))]));
    }
    match Subscriber::new(switch, user) {
        Some(subscriber) => reply::of_frames(frames(subscriber)),
        None => {
            switch.counts.reject(Reason::Calls);
            let calls = "calls by this user";
            let full = errors::too_many_calls(rpc::EVENTS.name, USER_SUBSCRIBERS, calls);
            reply::of_status(&full)
        }
    }
}

fn frames(subscriber: Subscriber) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send {
    stream::unfold(subscriber, Subscriber::next)
}
