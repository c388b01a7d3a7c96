//! What is known of a backend from what it last said: it stands in where the backend is silent.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::lists::{Lists, Snapshot};
use crate::rpc::{Row, Then};

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
    /// How many lists its last known ones have stood in for it in.
    pub stood_in: u64,
    /// How many lists it was left out of.
    pub left_out: u64,
    /// How many pods and containers of other backends it lists.
    pub claims: usize,
    /// How many list items, stats and events were dropped because they are about another backend's pods or containers.
    pub dropped: u64,
    /// What it has missed of merged replies and has not answered since.
    pub(crate) late: Vec<&'static Row>,
    /// What something has stood in for it in, or it was left out of, which was logged; until it answers again.
    pub(crate) absent: Vec<&'static Row>,
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
        let lists = self.absent.iter().filter_map(|row| match row.then {
            Then::Learn(list) => self.lists.get(list),
            _ => None,
        });
        lists.map(Snapshot::age).max()
    }

    /// Whether it has missed this, or a list that has to agree with it.
    pub(crate) fn is_late_with(&self, row: &Row) -> bool {
        self.late.iter().any(|late| late.goes_with(row))
    }

    /// Whether its last known lists stand in for it.
    pub(crate) fn is_stale(&self) -> bool {
        self.absent.iter().any(|row| row.is_list())
    }

    /// Whether it is left out of statistics.
    pub(crate) fn is_left_out(&self) -> bool {
        self.absent.iter().any(|row| !row.is_list())
    }

    /// It is only absent still in what it has not answered.
    pub(crate) fn is_back(&mut self) {
        let Known { late, absent, .. } = self;
        absent.retain(|row| late.iter().any(|late| late.goes_with(row)));
    }
}
