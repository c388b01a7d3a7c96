//! Counts the calls on the connections to a backend, because a backend may allow few HTTP/2 streams on each connection
//! (`SETTINGS_MAX_CONCURRENT_STREAMS`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fnv::FnvHashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// How many further connections criswitch opens to one backend, for calls that find no free stream. If the backend
/// allows 8 streams on each connection, these are enough for an `ExecSync` in each of a node's 110 pods.
pub const MAX_FURTHER_CONNECTIONS: usize = 15;

/// The calls on one connection.
#[derive(Debug)]
pub(crate) struct Streams {
    used: AtomicUsize,
    queue: Arc<StreamQueue>,
}

/// The calls that wait for a free stream on any connection to a backend.
#[derive(Debug, Default)]
pub(crate) struct StreamQueue {
    waiting: AtomicUsize,
    /// Wakes one call, which then looks for a free stream.
    freed: Notify,
    /// Wakes probes, which do not wait behind the calls.
    freed_for_probe: Notify,
    /// Notified when a call begins to wait.
    crowded: Notify,
}

/// A stream in use. Dropping the value frees the stream.
#[derive(Debug)]
pub(crate) struct StreamSlot(Arc<Streams>);

/// The slots of a call: its stream, and its part of the streams for users other than root and criswitch's own user.
pub(crate) type CallSlots = (StreamSlot, Option<UserSlot>);

/// The calls of users other than root and criswitch's own user, on all connections to a backend.
#[derive(Debug, Default)]
pub(crate) struct OthersStreams {
    /// The calls of each user. Only users in `allow_uids` can connect, so these are few.
    users: Mutex<FnvHashMap<u32, UserStreams>>,
}

/// The calls of one user.
#[derive(Debug, Default)]
struct UserStreams {
    used: usize,
    /// Wakes one call of the user, which then tries to take a slot.
    freed: Arc<Notify>,
}

/// A part in use of the streams for other users. Dropping the value frees the part.
#[derive(Debug)]
pub(crate) struct UserSlot {
    others: Arc<OthersStreams>,
    user: u32,
}

impl Drop for UserSlot {
    fn drop(&mut self) {
        let mut users = self.others.users.lock();
        if let Some(own) = users.get_mut(&self.user) {
            own.used -= 1;
        }
        // A free slot is enough for at most one call of each user.
        users.values().for_each(|user| user.freed.notify_one());
    }
}

impl OthersStreams {
    /// Takes a slot for a call of `user`. `most` is the limit on the calls of all these users together. A user gets a
    /// slot only while at least as many slots as the user has, and one more, are free. So a user takes at most half of
    /// what the others leave. The first call of a user may exceed `most`, up to nearly twice as many, because some
    /// connections may have closed since the calls of the others began.
    pub(crate) fn take(self: &Arc<OthersStreams>, user: u32, most: usize) -> Option<UserSlot> {
        let mut users = self.users.lock();
        let used: usize = users.values().map(|user| user.used).sum();
        let own = users.entry(user).or_default();
        let is_first = own.used == 0 && used + 1 < most.saturating_mul(2);
        if own.used >= most.saturating_sub(used) && !is_first {
            return None;
        }
        own.used += 1;
        Some(UserSlot {
            others: Arc::clone(self),
            user,
        })
    }

    /// Waits until a call of `user` gets a slot, or until `is_over`. `most` returns the limit on the calls of all other
    /// users together.
    pub(crate) async fn slot(
        self: &Arc<OthersStreams>,
        user: u32,
        most: impl Fn() -> usize,
        is_over: impl Fn() -> bool,
    ) -> Option<UserSlot> {
        let freed = Arc::clone(&self.users.lock().entry(user).or_default().freed);
        until(&freed, || {
            if is_over() {
                return Some(None);
            }
            self.take(user, most()).map(Some)
        })
        .await
    }

    /// Wakes all calls that wait, because a limit or the state of the backend has changed.
    pub(crate) fn wake_all(&self) {
        let users = self.users.lock();
        users.values().for_each(|user| user.freed.notify_waiters());
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.0.used.fetch_sub(1, Ordering::SeqCst);
        if self.0.queue.is_crowded() {
            self.0.queue.freed.notify_one();
            self.0.queue.freed_for_probe.notify_waiters();
        }
    }
}

/// A call that waits for a free stream.
pub(crate) struct WaitingCall<'a> {
    queue: &'a StreamQueue,
    is_probe: bool,
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        self.queue.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Streams {
    pub(crate) fn new(queue: Arc<StreamQueue>) -> Arc<Streams> {
        let used = AtomicUsize::new(0);
        Arc::new(Streams { used, queue })
    }

    /// Takes a stream if fewer than `limit` are in use.
    pub(crate) fn take(self: &Arc<Streams>, limit: usize) -> Option<StreamSlot> {
        if self.used.fetch_add(1, Ordering::SeqCst) < limit {
            return Some(StreamSlot(Arc::clone(self)));
        }
        self.used.fetch_sub(1, Ordering::SeqCst);
        None
    }

    pub(crate) fn is_unused(&self) -> bool {
        self.used.load(Ordering::SeqCst) == 0
    }
}

impl StreamQueue {
    /// Whether a call waits for a free stream.
    pub(crate) fn is_crowded(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Returns as soon as a call waits for a free stream.
    pub(crate) async fn crowded(&self) {
        while !self.is_crowded() {
            self.crowded.notified().await;
        }
    }

    /// Wakes all calls that wait: a connection has opened or has ended.
    pub(crate) fn wake_all(&self) {
        self.freed.notify_waiters();
        self.freed_for_probe.notify_waiters();
    }

    /// Joins the queue. A probe does not wait behind the calls.
    pub(crate) fn join(&self, is_probe: bool) -> WaitingCall<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.crowded.notify_one();
        WaitingCall {
            queue: self,
            is_probe,
        }
    }
}

impl WaitingCall<'_> {
    /// Waits until `take` returns a value. Calls `take` at once, and again when a stream is free.
    pub(crate) async fn until<T>(&self, take: impl FnMut() -> Option<T>) -> T {
        let freed = if self.is_probe {
            &self.queue.freed_for_probe
        } else {
            &self.queue.freed
        };
        until(freed, take).await
    }
}

/// Waits until `take` returns a value. Calls `take` at once, and again after each notification of `freed`.
async fn until<T>(freed: &Notify, mut take: impl FnMut() -> Option<T>) -> T {
    loop {
        let mut notified = std::pin::pin!(freed.notified());
        notified.as_mut().enable();
        if let Some(taken) = take() {
            return taken;
        }
        notified.await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_takes_at_most_half_of_the_streams_that_other_users_leave() {
        let others = Arc::new(OthersStreams::default());
        let slots =
            |user, most| -> Vec<_> { std::iter::from_fn(|| others.take(user, most)).collect() };
        let first = slots(1, 64);
        assert_eq!(first.len(), 32);
        let second = slots(2, 64);
        assert_eq!(second.len(), 16);
        assert_eq!(slots(3, 64).len(), 8);
        drop(second);
        assert_eq!(slots(3, 64).len(), 16);
        drop(first);
        assert_eq!(slots(1, 1).len(), 1, "a single stream is for anyone");
    }

    #[test]
    fn the_first_call_of_a_user_finds_a_stream_although_connections_have_closed() {
        let others = Arc::new(OthersStreams::default());
        let _first: Vec<_> = std::iter::from_fn(|| others.take(1, 64)).collect();
        let second = others.take(2, 20);
        assert!(second.is_some() && others.take(2, 20).is_none());
        assert!(others.take(3, 17).is_none(), "a stream is left for root");
    }
}
