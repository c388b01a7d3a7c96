//! The handler that each pod was created with, as far as criswitch knows it. Does no I/O.

use std::collections::{HashMap, HashSet};

use tokio::time::Instant;

use super::{BackendId, PodNames, Pods};

/// The longest handler name that criswitch accepts from a backend, in bytes. A RuntimeClass cannot have a longer one.
pub(crate) const LONGEST_HANDLER: usize = 63;
/// The most pods of a backend whose handlers criswitch asks for. criswitch adds the reported names to the backend's
/// lists, which makes the lists longer.
const MOST_REPORTED: usize = 4096;

/// The handler that a pod was created with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StartedWith {
    /// criswitch has not asked the backend for the handler.
    #[default]
    Unknown,
    /// The question to the backend failed `times` times in a row. criswitch may ask again from `again` on.
    Failed {
        /// The number of failures.
        times: u32,
        /// The time of the next attempt.
        again: Instant,
    },
    /// The backend does not report the handler.
    Unreported,
    /// The backend's own name for the handler, as reported; empty for the backend's default.
    Handler(String),
    /// The row of the routing table with this name.
    Row(String),
    /// The row with this name, which was the default handler's row when the pod was created: the request named no
    /// handler.
    DefaultRow(String),
}

/// A pod with an unknown handler, for which criswitch may ask the backend now.
#[derive(Debug, PartialEq, Eq)]
pub struct Unasked {
    /// The pod's id.
    pub id: String,
    /// The number of failed questions.
    pub failures: u32,
}

impl Pods {
    /// The handler that this pod of `backend` was created with.
    pub fn started_with(&self, id: &str, backend: BackendId) -> &StartedWith {
        let names = self.names(id, backend);
        names.map_or(&StartedWith::Unknown, |names| &names.started_with)
    }

    /// Up to `most` pods of `backend` with an unknown handler, for which criswitch may ask the backend at `now`.
    pub fn without_handler(&self, backend: BackendId, now: Instant, most: usize) -> Vec<Unasked> {
        let its = self.by_id.iter().filter(|(_, pod)| pod.backend == backend);
        let reported = its
            .clone()
            .filter(|(_, pod)| matches!(pod.more.started_with, StartedWith::Handler(_)))
            .count();
        its.filter_map(|(id, pod)| {
            let failures = pod.more.failures_until(now)?;
            let id = id.clone();
            Some(Unasked { id, failures })
        })
        .take(most.min(MOST_REPORTED.saturating_sub(reported)))
        .collect()
    }

    /// Learns the handler of this pod from `backend`'s answer. The answer does not replace a known row.
    pub fn learn_handler(&mut self, id: &str, backend: BackendId, answer: StartedWith) {
        self.changes += 1;
        let pod = self.by_id.get_mut(id).filter(|pod| pod.backend == backend);
        let known = pod.map(|pod| &mut pod.more.started_with);
        if let Some(known) = known.filter(|known| known.row().is_none()) {
            *known = answer;
        }
    }

    /// Whether clients may see a pod of `backend` with a handler name that differs from the backend's list, even if the
    /// routing table renames no handler of the backend.
    pub fn has_started_otherwise(&self, backend: BackendId) -> bool {
        let mut its = self.by_id.values().filter(|pod| pod.backend == backend);
        its.any(|pod| match &pod.more.started_with {
            StartedWith::Row(row) | StartedWith::DefaultRow(row) => *row != pod.more.handler,
            StartedWith::Handler(_) => pod.more.handler.is_empty(),
            _ => false,
        })
    }

    /// The row that each pod of `backend` was created with, if known, by the pod's id.
    pub fn rows(&self, backend: BackendId) -> HashMap<String, String> {
        let its = self.by_id.iter().filter(|(_, pod)| pod.backend == backend);
        its.filter_map(|(id, pod)| Some((id, pod.more.started_with.row()?)))
            .map(|(id, row)| (id.clone(), row.to_owned()))
            .collect()
    }

    /// The ids of the pods of `backend` that were created with [`StartedWith::DefaultRow`].
    pub fn with_default_row(&self, backend: BackendId) -> Vec<String> {
        let its = self.by_id.iter().filter(|(_, pod)| pod.backend == backend);
        its.filter(|(_, pod)| matches!(pod.more.started_with, StartedWith::DefaultRow(_)))
            .map(|(id, _)| id.clone())
            .collect()
    }

    /// Restores the results of [`Pods::rows`] and [`Pods::with_default_row`] from an earlier run of criswitch.
    pub fn restore_rows(
        &mut self,
        backend: BackendId,
        rows: HashMap<String, String>,
        with_default_row: &[String],
    ) {
        let with_default_row: HashSet<_> = with_default_row.iter().collect();
        for (id, row) in rows {
            let started_with = if with_default_row.contains(&id) {
                StartedWith::DefaultRow(row)
            } else {
                StartedWith::Row(row)
            };
            self.learn_handler(&id, backend, started_with);
        }
    }

    /// Sets the row of each pod whose row is unknown, if `row_of` returns a row for the pod's backend and the backend's
    /// name of the pod's handler.
    pub fn keep_rows(&mut self, row_of: impl Fn(BackendId, &str) -> Option<String>) {
        self.changes += 1;
        for pod in self.by_id.values_mut() {
            let handler = pod.more.listed_handler();
            if let Some(row) = handler.and_then(|handler| row_of(pod.backend, handler)) {
                pod.more.started_with = StartedWith::Row(row);
            }
        }
    }
}

impl PodNames {
    /// The backend's name for the handler, as listed or reported; `None` if the pod's row is known, or the name is
    /// unknown.
    fn listed_handler(&self) -> Option<&str> {
        match &self.started_with {
            StartedWith::Row(_) | StartedWith::DefaultRow(_) => None,
            _ if !self.handler.is_empty() => Some(&self.handler),
            StartedWith::Handler(handler) => Some(handler),
            _ => None,
        }
    }

    /// How many questions for the handler have failed; `None` if criswitch need not ask, or may not ask yet.
    fn failures_until(&self, now: Instant) -> Option<u32> {
        match self.started_with {
            _ if !self.handler.is_empty() => None,
            StartedWith::Unknown => Some(0),
            StartedWith::Failed { times, again } => (again <= now).then_some(times),
            _ => None,
        }
    }
}

impl StartedWith {
    /// The name of the row that the pod was created with, if known.
    pub fn row(&self) -> Option<&str> {
        match self {
            StartedWith::Row(row) | StartedWith::DefaultRow(row) => Some(row),
            _ => None,
        }
    }

    /// The handler that a backend reported. A longer name than a RuntimeClass may have counts as unreported.
    pub fn reported(handler: Option<String>) -> StartedWith {
        handler
            .filter(|handler| handler.len() <= LONGEST_HANDLER)
            .map_or(StartedWith::Unreported, StartedWith::Handler)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use criswitch_cri::codec::protobuf;
    use criswitch_cri::rpc::Kind;

    use super::super::ids::{A, B};
    use super::super::{Mark, Owners};
    use super::*;

    /// Returns owners that have learned a list of pods from backend 0. `pods` has the id and the handler of each pod.
    fn listed(pods: &[(&str, &str)]) -> Owners {
        let mut list = bytes::BytesMut::new();
        for (id, handler) in pods {
            let pod = protobuf::with_string(&protobuf::with_string(&[], &[1], id), &[7], handler);
            protobuf::put_bytes(&mut list, 1, &pod);
        }
        let mut owners = Owners::default();
        owners.learn(Kind::Pod, A, &list, Mark(0)).unwrap();
        owners
    }

    fn unasked(owners: &Owners, now: Instant) -> Vec<(String, u32)> {
        let mut unasked: Vec<_> = owners
            .pods
            .without_handler(A, now, usize::MAX)
            .into_iter()
            .map(|it| (it.id, it.failures))
            .collect();
        unasked.sort();
        unasked
    }

    #[test]
    fn a_backend_is_asked_once_for_each_pod_without_a_handler_and_again_some_time_after_a_failure()
    {
        let now = Instant::now();
        let mut owners = listed(&[("a", ""), ("b", ""), ("c", ""), ("d", "runc")]);
        owners
            .pods
            .learn_handler("a", A, StartedWith::Handler("crun".to_owned()));
        owners
            .pods
            .learn_handler("b", A, StartedWith::reported(None));
        let again = now + Duration::from_secs(1);
        owners
            .pods
            .learn_handler("c", A, StartedWith::Failed { times: 1, again });
        assert!(unasked(&owners, now).is_empty());
        assert_eq!(unasked(&owners, again), [("c".to_owned(), 1)]);
        assert!(owners.pods.without_handler(A, again, 0).is_empty());
        assert!(owners.pods.without_handler(B, again, 9).is_empty());
    }

    #[test]
    fn a_backends_report_replaces_no_row_and_applies_to_its_own_pods_only() {
        let mut owners = Owners::default();
        let names = PodNames {
            started_with: StartedWith::Row("gold".to_owned()),
            ..PodNames::default()
        };
        owners.own_pod("a", A, names, Mark(0));
        let row = StartedWith::Row("gold".to_owned());
        owners.pods.learn_handler("a", A, StartedWith::Unreported);
        assert_eq!(owners.pods.started_with("a", A), &row);
        assert_eq!(owners.pods.started_with("a", B), &StartedWith::Unknown);
        assert!(owners.pods.has_started_otherwise(A) && !owners.pods.has_started_otherwise(B));
    }

    #[test]
    fn rows_are_kept_for_pods_that_the_backend_lists_or_reports() {
        let mut owners = listed(&[("listed", "kata"), ("reported", ""), ("unknown", "")]);
        owners
            .pods
            .learn_handler("reported", A, StartedWith::Handler(String::new()));
        owners.pods.keep_rows(|_, handler| {
            Some(if handler.is_empty() { "own" } else { "gold" }.to_owned())
        });
        let row = |row: &str| StartedWith::Row(row.to_owned());
        assert_eq!(owners.pods.started_with("listed", A), &row("gold"));
        assert_eq!(owners.pods.started_with("reported", A), &row("own"));
        assert_eq!(
            owners.pods.started_with("unknown", A),
            &StartedWith::Unknown
        );
        owners.pods.keep_rows(|_, _| Some("silver".to_owned()));
        assert_eq!(owners.pods.started_with("listed", A), &row("gold"));
    }

    #[test]
    fn a_very_long_name_is_not_remembered() {
        let long = Some("x".repeat(LONGEST_HANDLER + 1));
        assert_eq!(StartedWith::reported(long), StartedWith::Unreported);
    }

    #[test]
    fn the_handlers_of_a_limited_number_of_pods_are_asked_for() {
        let ids: Vec<_> = (0..=MOST_REPORTED).map(|id| id.to_string()).collect();
        let pods: Vec<_> = ids.iter().map(|id| (id.as_str(), "")).collect();
        let mut owners = listed(&pods);
        let unasked = |owners: &Owners| {
            let pods = owners.pods.without_handler(A, Instant::now(), usize::MAX);
            pods.len()
        };
        assert_eq!(unasked(&owners), MOST_REPORTED);
        for id in &ids[..MOST_REPORTED - 1] {
            let reported = StartedWith::reported(Some("kata".to_owned()));
            owners.pods.learn_handler(id, A, reported);
        }
        assert_eq!(unasked(&owners), 1);
        let reported = StartedWith::reported(Some("kata".to_owned()));
        owners
            .pods
            .learn_handler(&ids[0], A, StartedWith::Unreported);
        assert_eq!(unasked(&owners), 2);
        owners.pods.learn_handler(&ids[0], A, reported);
        assert_eq!(unasked(&owners), 1);
    }
}
