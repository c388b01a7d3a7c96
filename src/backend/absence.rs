//! How merged replies do without a backend that is late or silent: noted, and told once until it is back.

use tonic::Status;

use super::Backend;
use crate::known::Known;
use crate::rpc::{self, Row};

impl Backend {
    /// It has not given its part of a merged reply in time: it is probed too.
    pub(crate) fn is_late(&self, row: &'static Row) {
        self.suspect();
        if row.is_list() && !self.locked().is_late_with(row) {
            let (rpc, timeout) = (row.name, self.list_timeout());
            tracing::warn!(backend = %self.name(), rpc, ?timeout, "backend is late with a list; it is asked in the background");
        }
        self.miss(row);
    }

    /// What comes next of its part of a merged reply, however long that takes; it may be found late meanwhile.
    pub(crate) async fn next_of<T>(&self, row: &'static Row, next: impl Future<Output = T>) -> T {
        let mut next = std::pin::pin!(next);
        if let Ok(next) = tokio::time::timeout(self.list_timeout(), &mut next).await {
            return next;
        }
        self.is_late(row);
        next.await
    }

    /// It has missed its part of a merged reply: it is asked in the background until it answers.
    pub(crate) fn miss(&self, row: &'static Row) {
        if note(&mut self.locked().late, row) {
            self.missed.notify_one();
        }
    }

    /// It has answered what it had missed.
    pub(crate) fn has_answered(&self, row: &Row) {
        self.is_back(|known| known.late.retain(|late| late.name != row.name));
    }

    /// It has been listed whole.
    pub(crate) fn caught_up(&self) {
        self.is_back(|known| known.late.retain(|late| !late.goes_with(&rpc::LIST_PODS)));
    }

    fn is_back(&self, change: impl FnOnce(&mut Known)) {
        let mut known = self.locked();
        let missed = |known: &Known| {
            let late = known.late.iter().any(|row| row.is_list());
            (late || known.is_stale(), known.is_left_out())
        };
        let before = missed(&known);
        change(&mut known);
        known.is_back();
        let now = missed(&known);
        if before.0 && !now.0 {
            tracing::info!(backend = %self.name(), "backend is in lists again");
        }
        if before.1 && !now.1 {
            tracing::info!(backend = %self.name(), "backend is in statistics again");
        }
    }

    /// It may hang, which a probe will tell.
    pub(crate) fn suspect(&self) {
        self.suspected.notify_one();
    }

    /// Its last known list has stood in for it; told once until it is back.
    pub(crate) fn stands_in(&self, row: &'static Row, status: &Status) {
        let mut known = self.locked();
        known.stood_in += 1;
        if !known.is_stale() {
            let cause = status.message();
            tracing::warn!(backend = %self.name(), rpc = row.name, cause, "the last known lists stand in for a silent backend");
        }
        note(&mut known.absent, row);
    }

    /// A merged reply did without it; told once until it is back.
    pub(crate) fn is_left_out(&self, row: &'static Row, status: &Status) {
        let mut known = self.locked();
        known.left_out += 1;
        if !known.is_left_out() {
            let cause = status.message();
            tracing::warn!(backend = %self.name(), rpc = row.name, cause, "a silent backend is left out of statistics");
        }
        note(&mut known.absent, row);
    }

    /// Why there is no use in asking it for this list now.
    pub(crate) fn silence(&self, row: &Row) -> Option<Status> {
        if let Some(cause) = self.link().state.cause() {
            return Some(self.unavailable(cause));
        }
        let is_late = self.locked().is_late_with(row);
        is_late.then(|| self.unavailable("it is late with its lists"))
    }
}

/// Adds a row that is not there yet; whether it was not.
fn note(rows: &mut Vec<&'static Row>, row: &'static Row) -> bool {
    let is_new = !rows.iter().any(|noted| noted.name == row.name);
    if is_new {
        rows.push(row);
    }
    is_new
}
