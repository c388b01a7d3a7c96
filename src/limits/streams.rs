//! Counts the calls on the connections to a backend, because a backend may allow few HTTP/2 streams on each connection
//! (`SETTINGS_MAX_CONCURRENT_STREAMS`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// The most further connections to one backend, for calls that find no free stream. With a backend that allows 8
/// streams on each connection, an `ExecSync` for each of a node's 110 pods still finds a stream.
pub const MAX_FURTHER_CONNECTIONS: usize = 15;

/// Users other than root and criswitch's own user may together use as many streams of a backend as this many of its
/// connections have: half of all, if all further connections open. So their calls leave streams for the calls of root.
pub(crate) const OTHERS_CONNECTIONS: usize = MAX_FURTHER_CONNECTIONS.div_ceil(2);

/// The calls on one connection, or the calls of some users.
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
pub(crate) type CallSlots = (StreamSlot, Option<StreamSlot>);

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

    /// The calls that wait for a stream.
    pub(crate) fn queue(&self) -> &StreamQueue {
        &self.queue
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
    pub(crate) async fn until<T>(&self, mut take: impl FnMut() -> Option<T>) -> T {
        let freed = if self.is_probe {
            &self.queue.freed_for_probe
        } else {
            &self.queue.freed
        };
        loop {
            let mut freed = std::pin::pin!(freed.notified());
            freed.as_mut().enable();
            if let Some(taken) = take() {
                return taken;
            }
            freed.await;
        }
    }
}
