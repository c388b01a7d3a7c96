//! The clients that watch the state of the daemon. All of them get the same messages, which one task makes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Mutex, Notify, Semaphore, watch};
use tokio::time::Instant;
use tonic::Status;

/// A state of the daemon as a gRPC frame, or why there is none.
pub(crate) type StateFrame = Result<Bytes, Status>;

/// The clients that watch the state, and the last state that was made for them.
#[derive(Debug)]
pub(crate) struct Watchers {
    /// `None` until a state was made for the present watchers.
    state: watch::Sender<Option<StateFrame>>,
    /// Notified when a client begins to watch.
    begun: Notify,
    /// Allows one piece of work of [`Watchers::run_serialized`] at a time.
    turn: Arc<Semaphore>,
    /// The result and the time of the last check of the node's health.
    health: Mutex<Option<(Instant, NodeHealth)>>,
}

/// The health of the node and of each backend, by the backend's name, as gRPC's health service reports it: true is
/// serving.
#[derive(Clone, Debug)]
pub(crate) struct NodeHealth {
    pub node: bool,
    pub backends: Vec<(Arc<str>, bool)>,
}

impl NodeHealth {
    /// The health of the backend with this name, or of the node if the name is empty. `None` if no backend has the
    /// name.
    pub(crate) fn of(&self, service: &str) -> Option<bool> {
        if service.is_empty() {
            return Some(self.node);
        }
        Some(self.backends.iter().find(|(name, _)| **name == *service)?.1)
    }
}

impl Default for Watchers {
    fn default() -> Watchers {
        Watchers {
            state: watch::Sender::new(None),
            begun: Notify::new(),
            turn: Arc::new(Semaphore::new(1)),
            health: Mutex::default(),
        }
    }
}

impl Watchers {
    /// Does `work`, which looks at the whole state and takes long with many pods, on another thread. One piece of work
    /// is done at a time. Returns `None` if the work panics.
    pub(crate) async fn run_serialized<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let turn = Arc::clone(&self.turn).acquire_owned().await.ok()?;
        tokio::task::spawn_blocking(move || {
            let worked = work();
            drop(turn);
            worked
        })
        .await
        .ok()
    }

    /// The health of the node and its backends. Clients share the result of a check that is younger than `age`. Returns
    /// `None` if the check panics.
    pub(crate) async fn health(
        &self,
        age: Duration,
        look: impl FnOnce() -> NodeHealth + Send + 'static,
    ) -> Option<NodeHealth> {
        let mut last = self.health.lock().await;
        if let Some((at, health)) = &*last
            && at.elapsed() < age
        {
            return Some(health.clone());
        }
        let health = self.run_serialized(look).await?;
        *last = Some((Instant::now(), health.clone()));
        Some(health)
    }

    /// Begins to watch. The first watcher gets no state that was sent to earlier watchers.
    pub(crate) fn watch(&self) -> watch::Receiver<Option<StateFrame>> {
        if self.state.receiver_count() == 0 {
            self.state.send_replace(None);
        }
        let mut watched = self.state.subscribe();
        watched.mark_changed();
        self.begun.notify_one();
        watched
    }

    /// Waits until a client begins to watch. Returns at once if a client has begun since the last call.
    pub(crate) async fn wait_for_watcher(&self) {
        self.begun.notified().await;
    }

    /// Whether no client watches.
    pub(crate) fn is_empty(&self) -> bool {
        self.state.receiver_count() == 0
    }

    /// Whether no state was made for the present watchers yet.
    pub(crate) fn has_none(&self) -> bool {
        self.state.borrow().is_none()
    }

    /// Sends a state to all watchers.
    pub(crate) fn send(&self, state: StateFrame) {
        self.state.send_replace(Some(state));
    }
}
