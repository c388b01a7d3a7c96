//! The query to all backends for the owner of an unknown id. Calls for unknown ids share a query.
//!
//! A call joins only a query that has not begun: the lists of a running query may be older than the id.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;
use tonic::Status;

use crate::ownership::BackendId;

/// The longest time that the next query waits for the end of the running query.
const LONGEST: Duration = Duration::from_secs(30);

type Query = BoxFuture<'static, Result<(), Status>>;

/// The running query and the next one. A query is dropped when no call waits for it any more.
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
    /// Runs `query` against every backend, or joins the next query if one waits already.
    ///
    /// # Errors
    /// The errors of the query that ran.
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
                // Wait for the end of the running query. The wait has a limit, because a reply may never come.
                drop(tokio::time::timeout(LONGEST, running).await);
            }
            shared.lock().begin();
            query.await
        };
        let next = next.boxed().shared();
        slots.next = next.downgrade();
        next
    }

    /// Records that the backend's pods and containers have been learned.
    pub(crate) fn listed(&self, backend: BackendId) {
        self.slots.lock().listed.insert(backend);
    }

    /// Whether the backend's pods and containers have been learned at least once.
    pub(crate) fn has_listed(&self, backend: BackendId) -> bool {
        self.slots.lock().listed.contains(&backend)
    }

    /// Forgets that the backend's pods and containers have been learned.
    pub(crate) fn forget(&self, backend: BackendId) {
        self.slots.lock().listed.remove(&backend);
    }

    /// Whether the pods and containers of all these backends have been learned at least once.
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
