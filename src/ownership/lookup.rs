//! The query to all backends for the owner of an unknown id. Calls for unknown ids share a query.
//!
//! A call joins only a query that has not begun: the lists of a running query may be older than the id. A query does
//! not wait for an earlier one, because one backend may be slow to answer the earlier one.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tonic::Status;

use criswitch_config::BackendId;

/// The most queries that run at once. While this many run, further calls share the next query. It begins when one of
/// the running queries ends: at the latest after the longest `list_timeout` of all backends.
const MOST_QUERIES: usize = 4;

type Query = BoxFuture<'static, Result<(), Status>>;

/// The places for running queries, and the next query. A query is dropped when no call waits for it any more.
pub(crate) struct OwnerLookup {
    places: Arc<Semaphore>,
    slots: Arc<Mutex<Slots>>,
}

#[derive(Default)]
struct Slots {
    /// The query that waits for a place.
    next: Option<WeakShared<Query>>,
    listed: HashSet<BackendId>,
}

impl Default for OwnerLookup {
    fn default() -> OwnerLookup {
        OwnerLookup {
            places: Arc::new(Semaphore::new(MOST_QUERIES)),
            slots: Arc::default(),
        }
    }
}

impl OwnerLookup {
    /// Runs `query` against every backend, or joins the next query if one waits already.
    ///
    /// # Errors
    /// The errors of the query that ran.
    pub(crate) async fn ask(
        &self,
        query: impl Future<Output = Result<(), Status>> + Send + 'static,
    ) -> Result<(), Status> {
        self.join(query).await
    }

    fn join(
        &self,
        query: impl Future<Output = Result<(), Status>> + Send + 'static,
    ) -> Shared<Query> {
        let mut slots = self.slots.lock();
        if let Some(next) = slots.next.as_ref().and_then(WeakShared::upgrade) {
            return next;
        }
        let (places, shared) = (Arc::clone(&self.places), Arc::clone(&self.slots));
        let next = async move {
            let _place = places.acquire().await;
            // From now on, no call joins this query.
            shared.lock().next = None;
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

impl fmt::Debug for OwnerLookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnerLookup").finish_non_exhaustive()
    }
}
