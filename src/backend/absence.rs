//! Records that a backend is late or silent in merged replies, and logs it once until the backend is back.

use tokio::time::Instant;
use tonic::Status;

use super::Backend;
use crate::backend::known::{Absence, Known};
use crate::errors;
use crate::rpc::{self, List, Row};

/// The most metrics of a backend that are logged because their samples are omitted.
const MOST_UNFIT: usize = 256;

/// A backend's part of a merged reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contribution {
    pub(crate) row: &'static Row,
    /// Whether the outcome of the call counts for all calls of its row.
    pub(crate) is_of_all: bool,
}

impl Backend {
    /// The backend has not given its part of a merged reply in time. The session probes it.
    pub(crate) fn is_late(&self, contribution: Contribution) {
        self.nudges.suspected.notify_one();
        if !contribution.is_of_all {
            return;
        }
        let row = contribution.row;
        if row.is_list() && !self.known.lock().is_late_with(row) {
            let (rpc, timeout) = (row.name, self.list_timeout());
            tracing::warn!(backend = %self.name(), rpc, ?timeout, "backend is late with a list; criswitch asks again in the background");
        }
        self.miss(row);
    }

    /// Awaits the next piece of a backend's part, however long it takes. Marks the backend late after the timeout.
    pub(crate) async fn next_of<T>(
        &self,
        contribution: Contribution,
        next: impl Future<Output = T>,
    ) -> T {
        let mut next = std::pin::pin!(next);
        if let Ok(next) = tokio::time::timeout(self.timeout(contribution.row), &mut next).await {
            return next;
        }
        self.is_late(contribution);
        next.await
    }

    /// The backend has missed its part of a merged reply. criswitch asks in the background until it answers.
    pub(crate) fn miss(&self, row: &'static Row) {
        if note(&mut self.known.lock().late, row, false) {
            self.nudges.missed.notify_one();
        }
    }

    /// The backend has answered a call that it had missed.
    pub(crate) fn has_answered(&self, row: &Row) {
        self.is_back(|known| known.late.retain(|late| late.row.name != row.name));
    }

    /// The backend has answered with complete lists.
    pub(crate) fn caught_up(&self) {
        self.is_back(|known| {
            known
                .late
                .retain(|late| !late.row.goes_with(&rpc::LIST_PODS))
        });
    }

    fn is_back(&self, change: impl FnOnce(&mut Known)) {
        let mut known = self.known.lock();
        let missed = |known: &Known| {
            let late = known.late.iter().any(|late| late.row.is_list());
            (late || known.is_stale(), known.lacks_more_than_lists())
        };
        let before = missed(&known);
        change(&mut known);
        known.is_back();
        let now = missed(&known);
        if before.0 && !now.0 {
            tracing::info!(backend = %self.name(), "backend answers lists again");
        }
        if before.1 && !now.1 {
            tracing::info!(backend = %self.name(), "backend answers calls for stats again");
        }
    }

    /// Records whether a list of everything fails because of the backend, and why.
    pub(crate) fn note_list(&self, list: List, failed: Option<&str>) {
        let failed_lists = &mut self.known.lock().failed_lists;
        match failed {
            Some(cause) => failed_lists.insert(list, errors::cut(cause).into_owned()),
            None => failed_lists.remove(&list),
        };
    }

    /// A reply had the backend's cached list; logged once until the backend is back.
    pub(crate) fn stands_in(&self, row: &'static Row, status: &Status) {
        let mut known = self.known.lock();
        known.lists_from_cache += 1;
        if !known.is_stale() {
            let cause = status.message();
            tracing::warn!(backend = %self.name(), rpc = row.name, cause, "backend does not answer; serving its cached lists");
        }
        note(&mut known.absent, row, false);
    }

    /// A reply had the backend's cached stats; logged once until the backend is back.
    pub(crate) fn is_served_from_cache(&self, contribution: Contribution, status: &Status) {
        let mut known = self.known.lock();
        known.stats_from_cache += 1;
        if !contribution.is_of_all {
            return;
        }
        let row = contribution.row;
        if !known.lacks_more_than_lists() {
            let cause = status.message();
            tracing::warn!(backend = %self.name(), rpc = row.name, cause, "backend does not answer; serving its cached stats");
        }
        note(&mut known.absent, row, false);
    }

    /// A merged reply omitted the backend; logged once until the backend is back.
    pub(crate) fn is_omitted(&self, contribution: Contribution, status: &Status) {
        let mut known = self.known.lock();
        known.lists_omitted += 1;
        if !contribution.is_of_all {
            return;
        }
        let row = contribution.row;
        if !known.absent.iter().any(|absence| absence.omitted) {
            let cause = status.message();
            tracing::warn!(backend = %self.name(), rpc = row.name, cause, "backend does not answer; omitting it from stats");
        }
        note(&mut known.absent, row, true);
    }

    /// Whether this is the first omitted sample of this metric; always `false` after [`MOST_UNFIT`] metrics.
    pub(crate) fn is_first_unfit(&self, metric: &str) -> bool {
        let unfit = &mut self.known.lock().unfit;
        unfit.len() < MOST_UNFIT && unfit.insert(metric.to_owned())
    }

    /// Why criswitch does not send this call to the backend now.
    pub(crate) fn silence(&self, contribution: Contribution) -> Option<Status> {
        if let Some(cause) = self.link().state.cause() {
            return Some(self.unavailable(cause));
        }
        let is_late = contribution.is_of_all && self.known.lock().is_late_with(contribution.row);
        is_late.then(|| self.unavailable("it has not answered an earlier call of this kind yet"))
    }
}

/// Adds a row unless it is in the list; returns whether it was added.
fn note(absences: &mut Vec<Absence>, row: &'static Row, omitted: bool) -> bool {
    let noted = absences.iter_mut().find(|noted| noted.row.name == row.name);
    if let Some(noted) = noted {
        noted.omitted = omitted;
        return false;
    }
    let since = Instant::now();
    absences.push(Absence {
        row,
        since,
        omitted,
    });
    true
}
