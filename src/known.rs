//! What is known of a backend from what it last said: it stands in where the backend is silent.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::lists::{Lists, Snapshot};
use crate::rpc::{List, Row};

/// What a backend last said of itself, as encoded.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Its `VersionResponse`.
    pub version: Bytes,
    /// Its `StatusResponse`, not verbose.
    pub status: Bytes,
    /// When it said that.
    status_at: Option<Instant>,
    /// Its cgroup driver (`RuntimeConfigResponse.linux.cgroup_driver`), `None` if it has no opinion.
    pub cgroup_driver: Option<u64>,
    /// Its last whole lists.
    pub lists: Lists,
    /// When it last answered anything.
    pub(crate) answered: Option<Instant>,
    /// When a call that makes a pod there ended unheard, until a list has told what came of it.
    pub(crate) unsettled: Option<Instant>,
    /// How many lists its last known ones have stood in for it in.
    pub stood_in: u64,
    /// How many lists it was left out of.
    pub left_out: u64,
    /// It has missed a list and has not been listed whole since.
    pub(crate) behind: bool,
    /// The statistics that it has missed and has not answered since.
    pub(crate) late: Vec<&'static Row>,
    /// Something has stood in for it, or it was left out, and that was logged; until it is listed whole again.
    pub absent: Absent,
}

impl Known {
    /// It says this `StatusResponse` now.
    pub(crate) fn say_status(&mut self, status: Bytes) {
        self.status = status;
        self.status_at = Some(Instant::now());
    }

    /// Whether it has ever said its status.
    pub(crate) fn has_said_status(&self) -> bool {
        self.status_at.is_some()
    }

    /// Whether it has said its status so lately.
    pub(crate) fn said_status_within(&self, time: Duration) -> bool {
        self.status_at.is_some_and(|at| at.elapsed() < time)
    }

    /// How old the lists are that stand in for it, if they do.
    pub fn stale_age(&self) -> Option<Duration> {
        let lists = [List::Pods, List::Containers].map(|list| self.lists.get(list));
        let oldest = lists.into_iter().flatten().map(Snapshot::age).max()?;
        self.absent.stale.then_some(oldest)
    }
}

/// How merged replies do without a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Absent {
    /// Its last known lists stand in for it.
    pub stale: bool,
    /// It is left out of statistics.
    pub left_out: bool,
}
