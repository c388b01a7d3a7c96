//! Records that a backend is late or silent in merged replies, or that its answers cannot be used. Logs each once until
//! the backend answers again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use criswitch_config::wording::span;
use criswitch_cri::error_text;
use criswitch_cri::rpc::{self, Merge, ROWS, Row};
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::Status;

use super::Wakeups;
use crate::backend::failed::Failed;
use crate::backend::known::{Absence, Failure, Known};
use crate::backend::late_reads::LateReads;
use crate::backend::settings::Settings;
use crate::telemetry::log_limit::{Recovery, RepeatedFailures};

/// The most metrics of one backend for which criswitch logs omitted samples.
const MOST_UNFIT: usize = 256;

/// A backend's part of a merged reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contribution {
    pub(crate) row: &'static Row,
    /// Whether a late or missing answer to this call counts for all calls of its RPC; see `Call::counts_for_all`.
    pub(crate) is_of_all: bool,
}

/// The content of a merged reply in place of a backend's answer.
#[derive(Clone, Copy)]
pub(crate) enum Replaced {
    CachedList,
    CachedStats,
    Nothing,
}

/// The facts that a backend last reported, and how its answers have failed.
#[derive(Debug)]
pub struct Record {
    settings: Arc<Settings>,
    wakeups: Arc<Wakeups>,
    known: Mutex<Known>,
    /// Limits the log lines about answers that cannot be used, by the name of the RPC.
    failing: Mutex<BTreeMap<&'static str, RepeatedFailures>>,
}

impl Record {
    pub(super) fn new(settings: Arc<Settings>, wakeups: Arc<Wakeups>) -> Record {
        Record {
            settings,
            wakeups,
            known: Mutex::default(),
            failing: Mutex::default(),
        }
    }

    /// The facts that the backend last reported.
    pub fn known(&self) -> Known {
        self.known.lock().clone()
    }

    /// Changes the known facts of the backend.
    pub fn learn<T>(&self, change: impl FnOnce(&mut Known) -> T) -> T {
        change(&mut self.known.lock())
    }

    /// Records that criswitch begins to set up a connection. Clears unusable answers and late reads, because they say
    /// nothing about the new connection.
    pub(crate) fn connected(&self) {
        let mut known = self.known.lock();
        known.late_reads = LateReads::default();
        known.config_late = None;
        known.connected = Some(Instant::now());
        known.failures.clear();
        known.broken_events = None;
        known.doubts.clear();
        // The process at the socket may be a different version of the runtime.
        known.lacking.clear();
    }

    /// Counts items that were dropped because they are about another backend's pods or containers.
    pub(crate) fn drops(&self, items: usize) {
        if items > 0 {
            self.known.lock().dropped += items as u64;
        }
    }

    /// Counts an event that was dropped because it is about another backend's pod or container. Logs the first one.
    pub(crate) fn drops_event(&self) {
        self.drops(1);
        if !std::mem::replace(&mut self.known.lock().drops_events, true) {
            tracing::warn!(
                backend = %self.settings.name(),
                "backend sends events about a pod or container of another backend; criswitch drops these events. If \
                 both sockets belong to one runtime, configure one backend for both"
            );
        }
    }

    /// Counts an event that was dropped because clients cannot use it. Logs the first one.
    pub(crate) fn drops_unreadable_event(&self, fault: &str) {
        self.drops(1);
        if !std::mem::replace(&mut self.known.lock().drops_unreadable_events, true) {
            let backend = self.settings.name();
            tracing::warn!(%backend, fault, "backend sends events that clients cannot use; criswitch drops these events");
        }
    }

    /// The wall-clock time of the backend's last complete unary reply. The current time if the backend has never sent
    /// one.
    pub(crate) fn answered_at(&self) -> SystemTime {
        let age = self.answered().map_or(Duration::ZERO, |at| at.elapsed());
        let now = SystemTime::now();
        now.checked_sub(age).unwrap_or(now)
    }

    /// The time of the backend's last complete unary reply. `None` if the backend has never sent one.
    pub(crate) fn answered(&self) -> Option<Instant> {
        self.known.lock().answered
    }

    /// Records that the backend did not answer a merged call in time, and makes the session probe the backend.
    pub(crate) fn note_late(&self, contribution: Contribution) {
        self.wakeups.suspected.notify_one();
        if !contribution.is_of_all {
            return;
        }
        let row = contribution.row;
        if row.is_list() && !self.known.lock().is_late_with(row) {
            let (rpc, timeout) = (row.name, self.settings.list_timeout());
            tracing::warn!(backend = %self.settings.name(), rpc, ?timeout, "backend is late with a list; criswitch asks again in the background");
        }
        self.miss(row);
    }

    /// Why `request`, a short read, is not sent now: the backend has not answered an earlier read of the same RPC in
    /// time. `None` if an answer is expected.
    pub(super) fn late_read(&self, row: &Row, request: &Bytes) -> Option<Status> {
        let (since, is_new) = self.known.lock().late_reads.check(row, request)?;
        if is_new {
            self.wakeups.late_reads.notify_one();
        }
        Some(self.unanswered(row, since))
    }

    /// The status of a call of `row`, an RPC that the backend has not answered since `since`.
    fn unanswered(&self, row: &Row, since: Instant) -> Status {
        let (rpc, time) = (row.name, span(since.elapsed()));
        let cause = format!("it has not answered {rpc} for {time}");
        self.settings.unavailable(&cause)
    }

    /// Records that the backend did not answer `request`, a short read, in time. The session repeats the read until the
    /// backend answers it. Logs the first late read of each RPC.
    pub(super) fn note_late_read(&self, row: &'static Row, request: &Bytes) {
        if self.known.lock().late_reads.note(row, request, true) {
            let (rpc, timeout) = (row.name, self.settings.list_timeout());
            tracing::warn!(backend = %self.settings.name(), rpc, ?timeout, "backend is late with a call; criswitch repeats it in the background");
        }
        self.wakeups.late_reads.notify_one();
    }

    /// Like [`Record::note_late_read`], for a read that the backend broke off over a connection that lasts.
    pub(crate) fn note_broken_read(&self, row: &'static Row, request: &Bytes) {
        if self.known.lock().late_reads.note(row, request, false) {
            let rpc = row.name;
            tracing::warn!(backend = %self.settings.name(), rpc, "backend breaks off a call; criswitch repeats it in the background");
        }
        self.wakeups.late_reads.notify_one();
    }

    /// Records that the backend has answered `request`, a short read that was late.
    pub(crate) fn read_answered(&self, row: &Row, request: &Bytes) {
        if self.known.lock().late_reads.answered(row, request) {
            tracing::info!(backend = %self.settings.name(), rpc = row.name, "backend answers the call again");
        }
    }

    /// Why a runtime configuration is not sent now: the backend has not answered an earlier one in time. `None` if an
    /// answer is expected.
    pub(crate) fn late_config(&self) -> Option<Status> {
        let since = self.known.lock().config_late?;
        Some(self.unanswered(&rpc::UPDATE_RUNTIME_CONFIG, since))
    }

    /// Records that the backend did not answer a runtime configuration in time. The session sends the latest
    /// configuration again until the backend answers.
    pub(crate) fn note_late_config(&self) {
        let since = &mut self.known.lock().config_late;
        since.get_or_insert_with(Instant::now);
    }

    /// Records that the backend did not answer a merged call. The session repeats the call in the background until the
    /// backend answers.
    pub(crate) fn miss(&self, row: &'static Row) {
        if note(&mut self.known.lock().late, row, false) {
            self.wakeups.missed.notify_one();
        }
    }

    /// Records that the backend has answered the RPC in `row`, so that the backend is no longer late with this RPC.
    pub(crate) fn clear_late(&self, row: &Row) {
        self.recover(|known| known.late.retain(|late| late.row.name != row.name));
    }

    /// Records that the backend has sent complete lists of its pods and containers, so that it is no longer late with
    /// them.
    pub(crate) fn caught_up(&self) {
        self.recover(|known| {
            known
                .late
                .retain(|late| !late.row.goes_with(&rpc::LIST_PODS))
        });
    }

    fn recover(&self, change: impl FnOnce(&mut Known)) {
        let mut known = self.known.lock();
        let before = missed(&known);
        change(&mut known);
        known.clear_absences();
        let now = missed(&known);
        if before.0 && !now.0 {
            tracing::info!(backend = %self.settings.name(), "backend answers lists again");
        }
        if before.1 && !now.1 {
            tracing::info!(backend = %self.settings.name(), "backend answers calls for stats or ImageFsInfo again");
        }
    }

    /// Records whether the backend's answer to a merged call for all items can be used; `failed` is the cause if not.
    /// Logs the first failure, then one failure a minute, then the recovery.
    pub(crate) fn note_answer(&self, row: &'static Row, failed: Option<&str>) {
        let mut known = self.known.lock();
        let mut failures = known.failures.iter();
        let at = failures.position(|it| it.row.has_content_of(row));
        let name = self.settings.name();
        match (failed, at) {
            (None, None) => {}
            (None, Some(at)) => {
                let first = known.failures.remove(at).row;
                known.absent.retain(|it| !it.row.has_content_of(row));
                let mut failing = self.failing.lock();
                let recovery = failing.entry(first.name).or_default().succeeded();
                if let Some(Recovery { after, failed }) = recovery {
                    tracing::info!(backend = %name, rpc = row.name, ?after, failed, "the backend's answers can be used again");
                }
            }
            (Some(cause), at) => {
                // A stream and its unary list count as one RPC: the one that failed first.
                let first = at
                    .map(|at| known.failures.remove(at))
                    .unwrap_or(Failure::of(row));
                let cause = error_text::cut(cause).into_owned();
                let mut failing = self.failing.lock();
                let row = first.row;
                if let Some(failed) = failing.entry(row.name).or_default().failed() {
                    tracing::warn!(backend = %name, rpc = row.name, cause, failed, "the backend's answer cannot be used; merged replies have its cached items, omit it, or fail");
                }
                known.failures.push(Failure {
                    times: first.times + 1,
                    cause,
                    ..first
                });
            }
        }
    }

    /// Records that the backend breaks off each stream of events at once, because of `cause`. Logs the first failure,
    /// then one failure a minute.
    pub(crate) fn note_broken_events(&self, cause: &str) {
        let row = &rpc::EVENTS;
        let cause = error_text::cut(cause.to_owned()).into_owned();
        if let Some(failed) = self.failing.lock().entry(row.name).or_default().failed() {
            tracing::warn!(backend = %self.settings.name(), rpc = row.name, cause, failed, "backend breaks off the streams of its events; clients get its events late, criswitch tries again");
        }
        let broken = &mut self.known.lock().broken_events;
        let first = broken.take().unwrap_or_else(|| Failure::of(row));
        *broken = Some(Failure {
            times: first.times + 1,
            cause,
            ..first
        });
    }

    /// Records that a stream of the backend's events stays open, or that no client needs one.
    pub(crate) fn clear_broken_events(&self) {
        self.known.lock().broken_events = None;
        // `forget` and a new connection clear the fault, and only this stream shows that the backend has recovered.
        let mut failing = self.failing.lock();
        let ended = failing.entry(rpc::EVENTS.name).or_default().succeeded();
        if let Some(Recovery { after, failed }) = ended {
            tracing::info!(backend = %self.settings.name(), rpc = rpc::EVENTS.name, ?after, failed, "the backend's answers can be used again");
        }
    }

    /// Records that the answer to a client's call for all items cannot be used, perhaps because of the client. The
    /// session then makes the call itself, and records the answer to its own call.
    pub(crate) fn doubt(&self, row: &'static Row) {
        self.known.lock().doubt(row);
    }

    /// Records whether the backend has the RPC in `row`: `lacks` is the code and the text of an `Unimplemented`, and
    /// `None` for any other answer. Logs that the backend lacks an RPC that every runtime must have, at most once a
    /// minute, unless [`note_answer`] logs it.
    ///
    /// [`note_answer`]: Record::note_answer
    pub(crate) fn note_rpc(&self, row: &Row, lacks: Option<String>) {
        let mut known = self.known.lock();
        let at = known
            .lacking
            .iter()
            .position(|lack| lack.row.name == row.name);
        let is_logged_here = !row.may_lack && row.merge().and_then(Merge::items).is_none();
        let name = self.settings.name();
        let Some(cause) = lacks else {
            if row.probe().is_some() {
                known.offered.insert(row.name);
            }
            let Some(at) = at else { return };
            known.lacking.remove(at);
            if is_logged_here
                && let Some(Recovery { after, failed }) =
                    self.failing.lock().entry(row.name).or_default().succeeded()
            {
                tracing::info!(backend = %name, rpc = row.name, ?after, failed, "the backend's answers can be used again");
            }
            return;
        };
        known.offered.remove(row.name);
        let since = at.map_or_else(Instant::now, |at| known.lacking.remove(at).since);
        let Some(row) = ROWS.iter().find(|it| it.name == row.name) else {
            return;
        };
        let cause = error_text::cut(cause).into_owned();
        if is_logged_here
            && let Some(failed) = self.failing.lock().entry(row.name).or_default().failed()
        {
            tracing::warn!(backend = %name, rpc = row.name, cause, failed, "the backend lacks an RPC that every runtime must have; its pods cannot run without it");
        }
        known.lacking.push(Failure {
            row,
            since,
            times: 1,
            cause,
        });
    }

    /// Records how a merged reply replaced the backend's answer, because of `why`. Logs silence once until the backend
    /// answers again.
    pub(crate) fn note_replaced(&self, contribution: Contribution, by: Replaced, why: &Failed) {
        let mut known = self.known.lock();
        let (count, is_known, text) = match by {
            Replaced::CachedList => {
                let is_known = known.is_stale();
                let text = "backend does not answer; serving its cached lists";
                (&mut known.lists_from_cache, is_known, text)
            }
            Replaced::CachedStats => {
                let is_known = known.lacks_more_than_lists();
                let text = "backend does not answer; serving its cached stats";
                (&mut known.stats_from_cache, is_known, text)
            }
            Replaced::Nothing => {
                let is_known = known.absent.iter().any(|absence| absence.omitted);
                let text = "backend does not answer; omitting it from merged replies";
                (&mut known.replies_omitted, is_known, text)
            }
        };
        *count += 1;
        if !contribution.is_of_all {
            return;
        }
        let row = contribution.row;
        if why.is_silence() && !is_known {
            let cause = why.text();
            tracing::warn!(backend = %self.settings.name(), rpc = row.name, cause, "{text}");
        }
        note(&mut known.absent, row, matches!(by, Replaced::Nothing));
    }

    /// Records that labels or samples of `metric` are omitted. Returns whether the metric was added to the record: at
    /// most [`MOST_UNFIT`] metrics are recorded, and each only once.
    pub(crate) fn note_unfit(&self, metric: &str) -> bool {
        let unfit = &mut self.known.lock().unfit;
        unfit.len() < MOST_UNFIT && unfit.insert(metric.to_owned())
    }
}

/// Whether the backend has missed lists, and whether it has missed other calls.
fn missed(known: &Known) -> (bool, bool) {
    let late = known.late.iter().any(|late| late.row.is_list());
    (late || known.is_stale(), known.lacks_more_than_lists())
}

/// Adds `row` to `absences`, or updates `omitted` if the row is already there. Returns whether the row was added.
fn note(absences: &mut Vec<Absence>, row: &'static Row, omitted: bool) -> bool {
    let noted = absences.iter_mut().find(|noted| noted.row.name == row.name);
    if let Some(noted) = noted {
        noted.omitted = omitted;
        return false;
    }
    absences.push(Absence {
        row,
        since: Instant::now(),
        omitted,
    });
    true
}

#[cfg(test)]
mod tests {
    use criswitch_config::BackendConfig;
    use criswitch_config::address::Address;

    use super::*;
    use crate::ownership::ids;

    #[test]
    fn a_late_answer_counts_until_the_backend_answers_and_an_unusable_one_until_the_next_good_one()
    {
        let socket = Address::default_listen();
        let settings = Settings::of(&BackendConfig::without_row(ids::A, "a", &socket), 1);
        let record = Record::new(settings.into(), Arc::default());
        let row = &rpc::LIST_PODS;
        record.miss(row);
        assert!(record.known().is_late_with(row));
        record.clear_late(row);
        assert!(!record.known().is_late_with(row));
        record.note_answer(row, Some("it is empty"));
        assert_eq!(record.known().failures.len(), 1);
        record.note_answer(row, None);
        assert!(record.known().failures.is_empty());
    }
}
