//! What is known of a backend from what it last said: it stands in where the backend is silent.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use tokio::net::unix::UCred;
use tokio::time::Instant;

use crate::backend::disks::Disks;
use crate::backend::lists::{Lists, Snapshot};
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
    /// When the backend last answered an earlier run of criswitch at the latest, if `status` is from that run.
    status_before: Option<Instant>,
    /// Its cgroup driver (`RuntimeConfigResponse.linux.cgroup_driver`), `None` if it has no opinion.
    pub cgroup_driver: Option<u64>,
    /// Its last whole lists and stats.
    pub lists: Lists,
    /// Why the last question for all items of a list failed.
    pub(crate) failed_lists: BTreeMap<List, String>,
    /// The file systems of its images.
    pub(crate) disks: Disks,
    /// The process that listened at its socket when it was last connected to.
    pub(crate) peer: Option<UCred>,
    /// When it last answered anything.
    pub(crate) answered: Option<Instant>,
    /// How many lists its last known ones have stood in for it in.
    pub lists_from_cache: u64,
    /// How many replies to calls for stats had its cached stats.
    pub stats_from_cache: u64,
    /// How many lists it was left out of.
    pub lists_omitted: u64,
    /// How many pods and containers of other backends it lists.
    pub claims: usize,
    /// How many list items, stats and events were dropped because they are about another backend's pods or containers.
    pub dropped: u64,
    /// When it was last greeted: a process that is new may describe its metrics in another way.
    pub(crate) greeted: Option<Instant>,
    /// When it last had to describe its metrics.
    described: Option<Instant>,
    /// Metrics of which samples were omitted, which was logged.
    pub(crate) unfit: BTreeSet<String>,
    /// What it has missed of merged replies and has not answered since.
    pub(crate) late: Vec<Absence>,
    /// What it is absent from, which was logged; until it answers again.
    pub(crate) absent: Vec<Absence>,
}

/// What a backend has not given its own part of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Absence {
    pub row: &'static Row,
    /// Since when.
    pub since: Instant,
    /// Nothing was served in the place of its part the last time.
    pub omitted: bool,
}

impl Known {
    /// It says this `StatusResponse` now. Returns whether the last one was different.
    pub(crate) fn say_status(&mut self, status: Bytes) -> bool {
        let last = std::mem::replace(&mut self.status, status);
        self.status_at = Some(Instant::now());
        self.status != last
    }

    /// The backend said this to an earlier run of criswitch, and last answered that run at `at` or before.
    pub(crate) fn restore(&mut self, version: Bytes, status: Bytes, at: Instant) {
        self.version = version;
        self.status_before = (!status.is_empty()).then_some(at);
        self.status = status;
    }

    /// It has been asked for the descriptors of its metrics and has answered, whether it has any or not.
    pub(crate) fn describe(&mut self) {
        self.described = Some(Instant::now());
    }

    /// Whether the descriptors of its metrics are those of the process that serves it now.
    pub(crate) fn has_described(&self) -> bool {
        let descriptors = self.lists.get(List::MetricDescriptors);
        let taken = descriptors.map(|descriptors| descriptors.taken);
        let described = taken.max(self.described);
        described.is_some() && described >= self.greeted
    }

    /// Whether it has said its status to this run of criswitch.
    pub(crate) fn has_said_status(&self) -> bool {
        self.status_at.is_some()
    }

    /// Whether it has said its status so lately.
    pub(crate) fn said_status_within(&self, time: Duration) -> bool {
        let at = self.status_at.or(self.status_before);
        at.is_some_and(|at| at.elapsed() < time)
    }

    /// How old the lists are that stand in for it, if they do.
    pub fn stale_age(&self) -> Option<Duration> {
        self.oldest(|list| !list.is_stats())
    }

    /// How old the stats are that are served in the place of its own, if any are.
    pub fn stale_stats_age(&self) -> Option<Duration> {
        self.oldest(List::is_stats)
    }

    /// Whether its cached list of this kind is served.
    pub(crate) fn is_from_cache(&self, list: List) -> bool {
        let mut absent = self.absent.iter();
        absent.any(|absence| absence.row.list() == Some(list) && !absence.omitted)
    }

    /// Whether it has missed a list of this kind, and has not answered since.
    pub(crate) fn misses(&self, list: List) -> bool {
        let mut late = self.late.iter();
        late.any(|late| late.row.list() == Some(list))
    }

    /// How old its cached lists of pods and containers are, whether they are served or not; `None` if it has none.
    pub(crate) fn cached_list_age(&self) -> Option<Duration> {
        let pods = self.lists.get(List::Pods)?.age();
        let containers = self.lists.get(List::Containers)?.age();
        Some(pods.max(containers))
    }

    fn oldest(&self, is_wanted: impl Fn(List) -> bool) -> Option<Duration> {
        let served = self.absent.iter().filter(|absence| !absence.omitted);
        let lists = served.filter_map(|absence| absence.row.list());
        let cached = lists
            .filter(|list| is_wanted(*list))
            .filter_map(|list| self.lists.get(list));
        cached.map(Snapshot::age).max()
    }

    /// For how long it has not given its own stats, if it does not.
    pub fn stats_late_for(&self) -> Option<Duration> {
        let absences = self.late.iter().chain(&self.absent);
        let stats = absences.filter(|absence| absence.row.is_stats());
        stats.map(|absence| absence.since.elapsed()).max()
    }

    /// Whether a reply to a call for stats had nothing of it.
    pub fn is_without_stats(&self) -> bool {
        self.absent
            .iter()
            .any(|absence| absence.row.is_stats() && absence.omitted)
    }

    /// Whether it has missed this, or a list that has to agree with it.
    pub(crate) fn is_late_with(&self, row: &Row) -> bool {
        self.late.iter().any(|late| late.row.goes_with(row))
    }

    /// Whether its last known lists stand in for it.
    pub(crate) fn is_stale(&self) -> bool {
        self.absent.iter().any(|absence| absence.row.is_list())
    }

    /// Whether it does not give its own part of anything else.
    pub(crate) fn lacks_more_than_lists(&self) -> bool {
        self.absent.iter().any(|absence| !absence.row.is_list())
    }

    /// It is only absent still in what it has not answered.
    pub(crate) fn is_back(&mut self) {
        let Known { late, absent, .. } = self;
        absent.retain(|absence| late.iter().any(|late| late.row.goes_with(absence.row)));
    }
}

/// What a backend with `auto_register` reports of its handlers.
pub(crate) enum Report {
    /// Its `StatusResponse`.
    Status(Bytes),
    /// Nothing yet, and it may still do so: nobody knows which handlers it has.
    Awaited,
    /// Nothing, for longer than it is waited for.
    Absent,
}
