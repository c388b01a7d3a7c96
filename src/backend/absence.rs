//! How merged replies do without a backend that is late or silent: noted, and told once until it is back.

use tonic::Status;

use super::Backend;
use crate::known::Absent;
use crate::rpc::Row;

impl Backend {
    /// It has missed a list: it is probed, and asked in the background until it answers.
    pub(crate) fn miss(&self) {
        self.suspect();
        self.missed.notify_one();
        let mut known = self.locked();
        if !std::mem::replace(&mut known.behind, true) {
            let timeout = self.list_timeout();
            tracing::warn!(backend = %self.name(), ?timeout, "backend is late with a list; it is asked in the background");
        }
    }

    /// It has missed statistics: it is left out of them and asked in the background until it answers.
    pub(crate) fn miss_statistics(&self, row: &'static Row) {
        self.suspect();
        let mut known = self.locked();
        if !known.late.iter().any(|late| late.name == row.name) {
            known.late.push(row);
            self.missed_statistics.notify_one();
        }
    }

    /// It has answered for statistics that it had missed.
    pub(crate) fn has_statistics(&self, row: &Row) {
        let mut known = self.locked();
        known.late.retain(|late| late.name != row.name);
        if known.late.is_empty() && std::mem::take(&mut known.absent.left_out) {
            tracing::info!(backend = %self.name(), "backend is in statistics again");
        }
    }

    /// It may hang, which a probe will tell.
    pub(crate) fn suspect(&self) {
        self.suspected.notify_one();
    }

    /// It has been listed whole.
    pub(crate) fn caught_up(&self) {
        let mut known = self.locked();
        let was_behind = std::mem::take(&mut known.behind);
        let absent = Absent {
            stale: false,
            left_out: known.absent.left_out && !known.late.is_empty(),
        };
        if std::mem::replace(&mut known.absent, absent) != absent || was_behind {
            tracing::info!(backend = %self.name(), "backend is in lists and statistics again");
        }
    }

    /// Its last known list has stood in for it; told once until it is back.
    pub(crate) fn stands_in(&self, rpc: &str) {
        let mut known = self.locked();
        known.stood_in += 1;
        if !std::mem::replace(&mut known.absent.stale, true) {
            tracing::warn!(backend = %self.name(), rpc, "the last known lists stand in for a silent backend");
        }
    }

    /// A merged reply did without it; told once until it is back.
    pub(crate) fn is_left_out(&self, rpc: &str, status: &Status) {
        let mut known = self.locked();
        known.left_out += 1;
        if !std::mem::replace(&mut known.absent.left_out, true) {
            let cause = status.message();
            tracing::warn!(backend = %self.name(), rpc, cause, "a silent backend is left out of statistics");
        }
    }

    /// Why there is no use in asking it for this list now.
    pub(crate) fn silence(&self, row: &Row) -> Option<Status> {
        if let Some(cause) = self.link().state.cause() {
            return Some(self.unavailable(cause));
        }
        let known = self.locked();
        let late = known.behind || known.late.iter().any(|late| late.name == row.name);
        late.then(|| self.unavailable("it is late with its lists"))
    }
}
