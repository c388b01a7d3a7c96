//! Pods that a backend may have and nobody knows of: calls that make one, until it was told. In memory only.

use std::time::Duration;

use tokio::time::Instant;

use super::BackendId;

/// How long after the unheard end of a call that makes a pod a list of pods tells what came of it.
const SETTLED: Duration = Duration::from_secs(10);
/// How many uids are remembered of calls that ended unheard; those beyond count as any uid.
const MOST_UNHEARD: usize = 4096;

/// All that are made, and what came of which nobody knows.
#[derive(Debug, Default)]
pub(super) struct Creations(Vec<Unknown>);

/// A pod that may be there.
#[derive(Debug, PartialEq, Eq)]
struct Unknown {
    backend: BackendId,
    /// Its uid; empty if that is not known, and then it may be any.
    uid: String,
    /// When the call that makes it ended unheard, if it has ended.
    ended: Option<Instant>,
}

impl Creations {
    /// A call that makes a pod of `uid` at `backend` begins.
    pub(super) fn begin(&mut self, backend: BackendId, uid: &str) {
        self.0.push(Unknown {
            backend,
            uid: uid.to_owned(),
            ended: None,
        });
    }

    /// It has ended: at the time `unheard`, or so that everything is known of what it made.
    pub(super) fn end(&mut self, backend: BackendId, uid: &str, unheard: Option<Instant>) {
        let is_it = |it: &Unknown| it.backend == backend && it.uid == uid && it.ended.is_none();
        if let Some(place) = self.0.iter().position(is_it) {
            self.0.swap_remove(place);
        }
        if let Some(ended) = unheard {
            self.end_unheard(backend, uid, ended);
        }
    }

    fn end_unheard(&mut self, backend: BackendId, uid: &str, ended: Instant) {
        let unheard =
            |uid: &str, it: &Unknown| it.backend == backend && it.uid == uid && it.ended.is_some();
        let is_full = self.0.iter().filter(|it| it.ended.is_some()).count() >= MOST_UNHEARD;
        let is_new = !self.0.iter().any(|it| unheard(uid, it));
        let uid = if is_full && is_new { "" } else { uid };
        self.0.retain(|it| !unheard(uid, it));
        self.0.push(Unknown {
            backend,
            uid: uid.to_owned(),
            ended: Some(ended),
        });
    }

    /// A whole list of the pods of `backend`, asked for then, has been learned.
    pub(super) fn listed(&mut self, backend: BackendId, asked: Instant) {
        let is_settled = |ended: Instant| asked >= ended + SETTLED;
        self.0
            .retain(|it| it.backend != backend || !it.ended.is_some_and(is_settled));
    }

    /// The backends that may have a pod of `uid`.
    pub(super) fn with_uid(&self, uid: &str) -> impl Iterator<Item = BackendId> {
        let may_be = move |it: &&Unknown| it.uid == uid || it.uid.is_empty();
        self.0.iter().filter(may_be).map(|it| it.backend)
    }

    /// Whether `backend` may have any.
    pub(super) fn is_at(&self, backend: BackendId) -> bool {
        self.0.iter().any(|it| it.backend == backend)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_uid(creations: &Creations, uid: &str) -> Vec<BackendId> {
        let mut backends: Vec<_> = creations.with_uid(uid).collect();
        backends.sort_unstable();
        backends.dedup();
        backends
    }

    #[test]
    fn what_nobody_heard_of_may_be_there_until_a_list_that_was_asked_for_late_enough() {
        let ended = Instant::now();
        let mut creations = Creations::default();
        creations.begin(1, "a");
        creations.begin(1, "a");
        creations.begin(2, "b");
        assert_eq!(with_uid(&creations, "a"), [1]);
        creations.end(1, "a", None);
        assert_eq!(with_uid(&creations, "a"), [1], "the other is under way");
        creations.end(1, "a", Some(ended));
        creations.end(2, "b", None);
        assert!(creations.is_at(1) && !creations.is_at(2));
        creations.listed(1, ended + SETTLED - Duration::from_millis(1));
        creations.listed(2, ended + SETTLED);
        assert_eq!(with_uid(&creations, "a"), [1]);
        creations.listed(1, ended + SETTLED);
        assert_eq!(creations.0, []);
    }

    #[test]
    fn an_unknown_uid_may_be_any_and_so_may_those_beyond_the_limit() {
        let ended = Instant::now();
        let mut creations = Creations::default();
        for number in 0..MOST_UNHEARD {
            creations.end(1, &number.to_string(), Some(ended));
            creations.end(1, &number.to_string(), Some(ended));
        }
        assert!(with_uid(&creations, "none").is_empty());
        for number in 0..MOST_UNHEARD {
            creations.end(2, &format!("more-{number}"), Some(ended));
        }
        assert_eq!(with_uid(&creations, "none"), [2]);
        assert_eq!(with_uid(&creations, "0"), [1, 2]);
        assert_eq!(creations.0.len(), MOST_UNHEARD + 1);
    }
}
