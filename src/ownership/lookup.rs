//! The question to all backends that many misses share: who owns what?
//!
//! A miss joins only a question that has not begun, since a list that is under way may be older than the id.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;
use tonic::Status;

use crate::ownership::BackendId;

/// How long those who ask next wait for the end of the question under way.
const LONGEST: Duration = Duration::from_secs(30);

type Query = BoxFuture<'static, Result<(), Status>>;

/// The question under way and the one after it; gone when nobody waits for it any more.
#[derive(Default)]
pub(crate) struct Question {
    slots: Arc<Mutex<Slots>>,
}

#[derive(Default)]
struct Slots {
    running: Option<WeakShared<Query>>,
    next: Option<WeakShared<Query>>,
    listed: HashSet<BackendId>,
}

impl Question {
    /// Asks every backend by `query`, together with all that ask now.
    ///
    /// # Errors
    /// Those of the query that answers.
    pub(crate) async fn ask(
        &self,
        query: impl Future<Output = Result<(), Status>> + Send + 'static,
    ) -> Result<(), Status> {
        let asking = self.join(query);
        asking.await
    }

    fn join(
        &self,
        query: impl Future<Output = Result<(), Status>> + Send + 'static,
    ) -> Shared<Query> {
        let mut slots = self.slots.lock();
        if let Some(next) = slots.next.as_ref().and_then(WeakShared::upgrade) {
            return next;
        }
        let running = slots.running.as_ref().and_then(WeakShared::upgrade);
        let shared = Arc::clone(&self.slots);
        let next = async move {
            if let Some(running) = running {
                // Its own askers want its outcome, this one only its end; an answer may be lost.
                drop(tokio::time::timeout(LONGEST, running).await);
            }
            shared.lock().begin();
            query.await
        };
        let next = next.boxed().shared();
        slots.next = next.downgrade();
        next
    }

    /// A backend's pods and containers have been learned at least once.
    pub(crate) fn listed(&self, backend: BackendId) {
        self.slots.lock().listed.insert(backend);
    }

    /// Whether they have.
    pub(crate) fn has_listed(&self, backend: BackendId) -> bool {
        self.slots.lock().listed.contains(&backend)
    }

    /// The backend is gone.
    pub(crate) fn forget(&self, backend: BackendId) {
        self.slots.lock().listed.remove(&backend);
    }

    /// Whether all of these have been.
    pub(crate) fn have_listed(&self, mut backends: impl Iterator<Item = BackendId>) -> bool {
        let slots = self.slots.lock();
        backends.all(|backend| slots.listed.contains(&backend))
    }
}

impl Slots {
    fn begin(&mut self) {
        self.running = self.next.take();
    }
}

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Question").finish_non_exhaustive()
    }
}
