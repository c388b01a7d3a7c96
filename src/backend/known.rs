//! The facts that a backend last reported. criswitch serves them while the backend is silent.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use criswitch_config::wording::failing_rpc;
use criswitch_cri::rpc::{self, List, Row};
use criswitch_platform::Server;
use tokio::time::Instant;

use crate::backend::disks::Disks;
use crate::backend::late_reads::LateReads;
use crate::backend::lists::{Lists, Snapshot};
use crate::gate::Readable;
use criswitch_cri::facts;

/// The fault of a backend whose cgroup driver [differs from the default backend's](Known::has_other_cgroup_driver).
pub(crate) const WRONG_CGROUP_DRIVER: &str = "the backend's cgroup driver differs from the default backend's: the kubelet uses one \
    driver for all pods, so it sets the limits of this backend's pods in the wrong cgroups; set the same driver for the \
    kubelet and all backends";

/// The facts that a backend last reported. Replies are stored encoded.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The `VersionResponse`.
    pub version: Readable,
    /// The `StatusResponse`, without the `info` of a verbose status.
    pub status: Readable,
    /// Since when the backend reports that its runtime is not ready.
    pub(crate) unready_since: Option<UnreadySince>,
    /// When the backend sent `status` to this run of criswitch.
    status_at: Option<Instant>,
    /// For a `status` from an earlier run of criswitch: the backend last answered that run at this time or before.
    status_before: Option<Instant>,
    /// The cgroup driver (`RuntimeConfigResponse.linux.cgroup_driver`), `None` if the backend reports none.
    pub cgroup_driver: Option<u64>,
    /// Whether the backend was asked for its cgroup driver and has not answered.
    pub(crate) owes_cgroup_driver: bool,
    /// The cached lists and stats: the last complete ones.
    pub lists: Lists,
    /// The merged RPCs whose last answer from the backend cannot be used. An RPC is removed by the next good answer.
    pub(crate) failures: Vec<Failure>,
    /// The merged RPCs whose last answer cannot be used, perhaps because of the client's metadata or deadline.
    pub(crate) doubts: Vec<&'static Row>,
    /// The RPCs whose last answer over this connection was `Unimplemented`.
    pub(crate) lacking: Vec<Failure>,
    /// The names of the RPCs that clients probe with an empty id and that the backend has: its last answer to a call of
    /// the RPC was not `Unimplemented`.
    pub(crate) offered: BTreeSet<&'static str>,
    /// The file systems of the backend's images.
    pub(crate) disks: Disks,
    /// The process that listened at the socket when criswitch last connected.
    pub(crate) server: Option<Server>,
    /// When the backend last sent a complete unary reply.
    pub(crate) answered: Option<Instant>,
    /// How many replies to list calls had a cached list of the backend.
    pub lists_from_cache: u64,
    /// How many replies to calls for stats had cached stats of the backend.
    pub stats_from_cache: u64,
    /// How many merged replies omitted the backend.
    pub replies_omitted: u64,
    /// How many pods and containers of other backends this backend lists.
    pub claims: usize,
    /// How many ready pods this backend lists with the uid of a pod that another backend created through criswitch.
    pub doubles: usize,
    /// How many containers this backend lists with the uid label of another backend's pod.
    pub mislabelled: usize,
    /// Whether an event was dropped because it is about another backend's pod or container.
    pub(crate) drops_events: bool,
    /// Whether an event was dropped because clients cannot decode it.
    pub(crate) drops_unreadable_events: bool,
    /// How many list items, stats and events were dropped because they are about another backend's pods or containers,
    /// and how many events because clients cannot use them.
    pub dropped: u64,
    /// When criswitch last began to set up a connection. Metric descriptors from before that time do not count, because
    /// a new process of the backend may report different ones.
    pub(crate) connected: Option<Instant>,
    /// When the backend last answered a call for its metric descriptors.
    described: Option<Instant>,
    /// The metrics whose omitted labels or samples criswitch has logged.
    pub(crate) unfit: BTreeSet<String>,
    /// The RPCs of merged calls that the backend did not answer in time. An RPC is removed when the backend answers it.
    pub(crate) late: Vec<Absence>,
    /// The short reads that the backend has not answered in time.
    pub(crate) late_reads: LateReads,
    /// Since when the backend has not answered a runtime configuration.
    pub(crate) config_late: Option<Instant>,
    /// The streams of events that the backend breaks off, although clients subscribe. `None` while a stream is open.
    pub(crate) broken_events: Option<Failure>,
    /// The RPCs whose replies had cached items of the backend, or omitted the backend. An RPC is removed when the
    /// backend answers again.
    pub(crate) absent: Vec<Absence>,
}

/// When a backend began to report that its runtime is not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnreadySince {
    pub at: Instant,
    /// The same as a time of the wall clock, for the state on disk.
    pub time: SystemTime,
}

/// An RPC that a backend has not answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Absence {
    pub row: &'static Row,
    /// When the absence began.
    pub since: Instant,
    /// Whether the last merged reply had no items of the backend, not even cached items.
    pub omitted: bool,
}

/// An RPC whose last answer from a backend is an error or cannot be read, or that the backend is late with.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub row: &'static Row,
    /// When the first of these answers came, or when the first call was late.
    pub since: Instant,
    /// The number of these answers. 0 if the backend does not answer.
    pub times: u64,
    /// The code and the text of the last answer.
    pub cause: String,
}

impl Failure {
    /// An RPC without such an answer so far.
    pub(crate) fn of(row: &'static Row) -> Failure {
        Failure {
            row,
            since: Instant::now(),
            times: 0,
            cause: String::new(),
        }
    }

    /// The failure as a sentence without its subject, the backend.
    pub(crate) fn text(&self) -> String {
        let seconds = self.since.elapsed().as_secs();
        failing_rpc(self.row.name, self.times, seconds, &self.cause)
    }
}

impl Known {
    /// How many items this backend lists that belong to other backends, by their id, or by the uid of their pod.
    pub(crate) fn foreign_items(&self) -> usize {
        self.claims + self.doubles + self.mislabelled
    }

    /// Whether the cgroup driver differs from that of another backend. An unknown driver does not count as different.
    pub(crate) fn has_other_cgroup_driver(&self, other: &Known) -> bool {
        self.cgroup_driver
            .zip(other.cgroup_driver)
            .is_some_and(|(own, other)| own != other)
    }

    /// Records that a client may be the cause of a failed call of `row`.
    pub(crate) fn doubt(&mut self, row: &'static Row) {
        let mut doubts = self.doubts.iter();
        if !doubts.any(|doubt| doubt.name == row.name) {
            self.doubts.push(row);
        }
    }

    /// The RPCs whose last answer cannot be used, including those in `doubts`. Clears `doubts`.
    pub(crate) fn take_unusable(&mut self) -> Vec<&'static Row> {
        let doubts = std::mem::take(&mut self.doubts);
        self.failures
            .iter()
            .map(|failure| failure.row)
            .chain(doubts)
            .collect()
    }

    /// Stores the current `StatusResponse`. Returns whether it differs from the last one.
    pub(crate) fn set_status(&mut self, status: Readable) -> bool {
        let last = std::mem::replace(&mut self.status, status);
        self.status_at = Some(Instant::now());
        let since = self.unready_since.unwrap_or_else(|| UnreadySince {
            at: Instant::now(),
            time: SystemTime::now(),
        });
        self.unready_since = facts::is_unready(&self.status).then_some(since);
        *self.status != *last
    }

    /// Restores the replies that an earlier run of criswitch saved. The backend answered that run at `at` or before.
    pub(crate) fn restore(&mut self, version: Readable, status: Readable, at: Instant) {
        self.version = version;
        self.status_before = (!status.is_empty()).then_some(at);
        self.status = status;
    }

    /// Forgets what the backend has reported of its items, its handlers and its features.
    pub(crate) fn forget(&mut self) {
        self.lists = Lists::default();
        self.absent.clear();
        self.failures.clear();
        self.late.clear();
        self.late_reads = LateReads::default();
        self.broken_events = None;
        (self.claims, self.doubles, self.mislabelled) = (0, 0, 0);
        self.status = Readable::default();
        (self.status_at, self.status_before, self.unready_since) = (None, None, None);
    }

    /// Records that the backend has answered a call for its metric descriptors, even if it has none.
    pub(crate) fn describe(&mut self) {
        self.described = Some(Instant::now());
    }

    /// Whether the backend has reported its metric descriptors since criswitch last began to set up a connection.
    pub(crate) fn has_described(&self) -> bool {
        let descriptors = self.lists.get(List::MetricDescriptors);
        let described = descriptors
            .map(|descriptors| descriptors.taken)
            .max(self.described);
        described.is_some() && described >= self.connected
    }

    /// Whether the backend has sent a status to this run of criswitch.
    pub(crate) fn has_current_status(&self) -> bool {
        self.status_at.is_some()
    }

    /// Whether the last status is less than `time` old.
    pub(crate) fn has_status_within(&self, time: Duration) -> bool {
        let at = self.status_at.or(self.status_before);
        at.is_some_and(|at| at.elapsed() < time)
    }

    /// The age of the oldest cached list of pods or containers that is served for the backend. `None` if none is
    /// served.
    pub fn stale_age(&self) -> Option<Duration> {
        self.oldest(|list| list.kind().is_some())
    }

    /// The age of the cached list of images that is served for the backend. `None` if it is not served.
    pub fn stale_image_age(&self) -> Option<Duration> {
        self.oldest(|list| list == List::Images)
    }

    /// The age of the oldest cached stats that are served for the backend. `None` if no cached stats are served.
    pub fn stale_stats_age(&self) -> Option<Duration> {
        self.oldest(List::is_stats)
    }

    /// Whether the cached list of this kind is served.
    pub(crate) fn is_from_cache(&self, list: List) -> bool {
        self.absent
            .iter()
            .any(|absence| absence.row.list() == Some(list) && !absence.omitted)
    }

    /// Whether the backend did not answer a call for a list of this kind in time, and has not answered since.
    pub(crate) fn misses(&self, list: List) -> bool {
        let mut late = self.late.iter();
        late.any(|late| late.row.list() == Some(list))
    }

    /// The last answer to a call for this list, if it cannot be used.
    pub(crate) fn failure_of(&self, list: List) -> Option<&Failure> {
        self.failures
            .iter()
            .find(|failure| failure.row.list() == Some(list))
    }

    /// The RPCs that fail now. These are the merged RPCs whose last answer cannot be used, and the RPCs that the
    /// backend lacks although every runtime must have them. They are also the streams of events that the backend breaks
    /// off, and the RPCs that the backend is late with: short reads, `Status`, `ImageFsInfo`, the runtime
    /// configuration, and lists that no cached list has replaced yet.
    pub(crate) fn failing_rpcs(&self) -> Vec<Failure> {
        let required = self.lacking.iter().filter(|lack| {
            let mut failures = self.failures.iter();
            !lack.row.may_lack && failures.all(|it| !it.row.has_content_of(lack.row))
        });
        let late_reads = self.late_reads.rpcs().iter().filter(|late| {
            self.lacking
                .iter()
                .all(|lack| lack.row.name != late.row.name)
        });
        // `criswitch status` reports stats and served cached lists separately.
        let late_merged = self.late.iter().filter(|late| {
            let mut failures = self.failures.iter();
            let mut lacking = self.lacking.iter();
            let mut absent = self.absent.iter();
            let is_list = late.row.is_list() && absent.all(|it| !it.row.goes_with(late.row));
            (is_list || late.row.list().is_none())
                && failures.all(|it| it.row.name != late.row.name)
                && lacking.all(|lack| lack.row.name != late.row.name)
        });
        let late_config = self.config_late;
        let late = late_reads
            .map(|late| (late.row, late.since))
            .chain(late_merged.map(|late| (late.row, late.since)))
            .chain(late_config.map(|since| (&rpc::UPDATE_RUNTIME_CONFIG, since)))
            .map(|(row, since)| Failure {
                since,
                ..Failure::of(row)
            });
        self.failures
            .iter()
            .chain(required)
            .chain(&self.broken_events)
            .cloned()
            .chain(late)
            .collect()
    }

    /// Since when the backend has sent no usable status although it was asked; `None` if it has sent one.
    pub(crate) fn without_status_since(&self) -> Option<Instant> {
        let is_status = |row: &Row| row.name == rpc::STATUS.name;
        let late = self.late.iter().filter(|late| is_status(late.row));
        let failed = self.failures.iter().filter(|failed| is_status(failed.row));
        late.map(|late| late.since)
            .chain(failed.map(|failed| failed.since))
            .min()
    }

    /// The names of the RPCs that the backend lacks, sorted.
    pub(crate) fn lacking_rpcs(&self) -> Vec<&'static str> {
        let mut names: Vec<_> = self.lacking.iter().map(|lack| lack.row.name).collect();
        names.sort_unstable();
        names
    }

    /// The age of the older of the two cached lists, of pods and of containers, even if these lists are not served.
    /// `None` if one of them is missing.
    pub(crate) fn cached_list_age(&self) -> Option<Duration> {
        let pods = self.lists.get(List::Pods)?.age();
        let containers = self.lists.get(List::Containers)?.age();
        Some(pods.max(containers))
    }

    fn oldest(&self, is_wanted: impl Fn(List) -> bool) -> Option<Duration> {
        let served = self.absent.iter().filter(|absence| !absence.omitted);
        served
            .filter_map(|absence| absence.row.list())
            .filter(|list| is_wanted(*list))
            .filter_map(|list| self.lists.get(list))
            .map(Snapshot::age)
            .max()
    }

    /// How long replies to calls for stats have lacked current stats of the backend. `None` if the replies have them.
    pub fn stats_late_for(&self) -> Option<Duration> {
        let absences = self.late.iter().chain(&self.absent);
        absences
            .filter(|absence| absence.row.is_stats())
            .map(|absence| absence.since.elapsed())
            .max()
    }

    /// Whether the last reply to a call for stats omitted the backend.
    pub fn is_without_stats(&self) -> bool {
        self.absent
            .iter()
            .any(|absence| absence.row.is_stats() && absence.omitted)
    }

    /// Whether the backend is late with this RPC, or with a list that must agree with the list of this RPC.
    pub(crate) fn is_late_with(&self, row: &Row) -> bool {
        self.late.iter().any(|late| late.row.goes_with(row))
    }

    /// Whether merged lists lack current items of the backend: they have its cached items, or omit the backend.
    pub(crate) fn is_stale(&self) -> bool {
        self.absent.iter().any(|absence| absence.row.is_list())
    }

    /// Whether replies other than lists, such as stats, lack current items of the backend.
    pub(crate) fn lacks_more_than_lists(&self) -> bool {
        self.absent.iter().any(|absence| !absence.row.is_list())
    }

    /// Clears the absences, except for the RPCs that the backend is still late with or still fails.
    pub(crate) fn clear_absences(&mut self) {
        let Known {
            late,
            absent,
            failures,
            ..
        } = self;
        absent.retain(|absence| {
            late.iter().any(|late| late.row.goes_with(absence.row))
                || failures
                    .iter()
                    .any(|failure| failure.row.has_content_of(absence.row))
        });
    }
}

/// A report of handlers by a backend with `auto_register`.
pub(crate) enum Report {
    /// The `StatusResponse`.
    Status(Readable),
    /// No report yet, but a report may still come: the handlers are unknown.
    Awaited,
    /// The backend did not report its handlers in time.
    Absent,
}

#[cfg(test)]
mod tests {
    use criswitch_cri::codec::cri;
    use prost::Message;

    use super::*;

    #[test]
    fn a_runtime_that_was_not_ready_before_a_restart_is_not_ready_after_it() {
        let condition = cri::RuntimeCondition {
            r#type: facts::RUNTIME_READY.to_owned(),
            ..Default::default()
        };
        let status = cri::RuntimeStatus {
            conditions: vec![condition],
        };
        let status = cri::StatusResponse {
            status: Some(status),
            ..Default::default()
        };
        let status = Readable::status(&status.encode_to_vec().into()).unwrap();
        let mut known = Known::default();
        known.restore(Readable::default(), status.clone(), Instant::now());
        assert!(!known.set_status(status));
        assert!(known.unready_since.is_some());
        assert!(known.set_status(Readable::default()));
        assert_eq!(known.unready_since, None);
    }
}
