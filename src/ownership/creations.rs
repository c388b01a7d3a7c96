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
pub(super) struct Creations {
    begun: u64,
    unknown: Vec<PossiblePod>,
}

/// One call that makes a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Creation(u64);

/// A pod that may be there.
#[derive(Debug)]
struct PossiblePod {
    creation: Creation,
    backend: BackendId,
    /// Its uid; empty if that is not known, and then it may be any.
    uid: String,
    stage: CreationStage,
}

/// How far the call has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CreationStage {
    /// It needs its backend, which has not got it.
    Unsent,
    Sent,
    /// It ended then, and nobody heard what it made.
    Unheard(Instant),
}

impl PossiblePod {
    fn is_unheard(&self) -> bool {
        matches!(self.stage, CreationStage::Unheard(_))
    }
}

impl Creations {
    /// A call that is to make a pod of `uid` at `backend` begins.
    pub(super) fn begin(&mut self, backend: BackendId, uid: String) -> Creation {
        self.begun += 1;
        let creation = Creation(self.begun);
        self.unknown.push(PossiblePod {
            creation,
            backend,
            uid,
            stage: CreationStage::Unsent,
        });
        creation
    }

    /// It is sent now.
    pub(super) fn sent(&mut self, creation: Creation) {
        let mut unknown = self.unknown.iter_mut();
        if let Some(sent) = unknown.find(|it| it.creation == creation) {
            sent.stage = CreationStage::Sent;
        }
    }

    /// It has ended: at the time `unheard`, or so that everything is known of what it made.
    pub(super) fn end(&mut self, creation: Creation, unheard: Option<Instant>) {
        let mut unknown = self.unknown.iter();
        let Some(place) = unknown.position(|it| it.creation == creation) else {
            return;
        };
        let ended = self.unknown.swap_remove(place);
        if let Some(at) = unheard {
            self.end_unheard(ended, at);
        }
    }

    fn end_unheard(&mut self, mut ended: PossiblePod, at: Instant) {
        ended.stage = CreationStage::Unheard(at);
        let is_same = |it: &PossiblePod, ended: &PossiblePod| {
            it.backend == ended.backend && it.uid == ended.uid && it.is_unheard()
        };
        let unheard = self.unknown.iter().filter(|it| it.is_unheard()).count();
        if unheard >= MOST_UNHEARD && !self.unknown.iter().any(|it| is_same(it, &ended)) {
            ended.uid.clear();
        }
        self.unknown.retain(|it| !is_same(it, &ended));
        self.unknown.push(ended);
    }

    /// A whole list of the pods of `backend`, asked for then, has been learned.
    pub(super) fn listed(&mut self, backend: BackendId, asked: Instant) {
        let is_settled = |stage: CreationStage| match stage {
            CreationStage::Unheard(ended) => asked >= ended + SETTLED,
            CreationStage::Unsent | CreationStage::Sent => false,
        };
        self.unknown
            .retain(|it| it.backend != backend || !is_settled(it.stage));
    }

    /// The backends that may have a pod of `uid`.
    pub(super) fn with_uid(&self, uid: &str) -> impl Iterator<Item = BackendId> {
        let may_be = move |it: &&PossiblePod| {
            it.stage != CreationStage::Unsent && (it.uid == uid || it.uid.is_empty())
        };
        self.unknown.iter().filter(may_be).map(|it| it.backend)
    }

    /// The backends at which a call that creates a pod of exactly this uid is under way.
    pub(super) fn sent_with_uid(&self, uid: &str) -> impl Iterator<Item = BackendId> {
        let is_it = move |it: &&PossiblePod| it.stage == CreationStage::Sent && it.uid == uid;
        self.unknown.iter().filter(is_it).map(|it| it.backend)
    }

    /// Whether `backend` may have any, or is to get one.
    pub(super) fn is_at(&self, backend: BackendId) -> bool {
        self.unknown.iter().any(|it| it.backend == backend)
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

    fn sent(creations: &mut Creations, backend: BackendId, uid: &str) -> Creation {
        let creation = creations.begin(backend, uid.to_owned());
        creations.sent(creation);
        creation
    }

    #[test]
    fn what_was_not_sent_needs_its_backend_and_is_not_there() {
        let mut creations = Creations::default();
        let creation = creations.begin(1, "a".to_owned());
        assert!(creations.is_at(1) && with_uid(&creations, "a").is_empty());
        creations.sent(creation);
        assert_eq!(with_uid(&creations, "a"), [1]);
        creations.end(creation, None);
        assert!(!creations.is_at(1));
    }

    #[test]
    fn what_nobody_heard_of_may_be_there_until_a_list_that_was_asked_for_late_enough() {
        let ended = Instant::now();
        let mut creations = Creations::default();
        let [first, second] = [(); 2].map(|()| sent(&mut creations, 1, "a"));
        let other = sent(&mut creations, 2, "b");
        creations.end(first, None);
        assert_eq!(with_uid(&creations, "a"), [1], "the other is under way");
        creations.end(second, Some(ended));
        creations.end(other, None);
        assert!(creations.is_at(1) && !creations.is_at(2));
        creations.listed(1, ended + SETTLED - Duration::from_millis(1));
        creations.listed(2, ended + SETTLED);
        assert_eq!(with_uid(&creations, "a"), [1]);
        creations.listed(1, ended + SETTLED);
        assert!(creations.unknown.is_empty());
    }

    #[test]
    fn an_unknown_uid_may_be_any_and_so_may_those_beyond_the_limit() {
        let ended = Instant::now();
        let mut creations = Creations::default();
        let mut unheard = |backend, uid: &str| {
            let creation = sent(&mut creations, backend, uid);
            creations.end(creation, Some(ended));
            creations.unknown.len()
        };
        for number in 0..MOST_UNHEARD {
            let uid = number.to_string();
            assert_eq!(unheard(1, &uid), unheard(1, &uid));
        }
        for number in 0..MOST_UNHEARD {
            assert_eq!(unheard(2, &format!("more-{number}")), MOST_UNHEARD + 1);
        }
        assert_eq!(with_uid(&creations, "none"), [2]);
        assert_eq!(with_uid(&creations, "0"), [1, 2]);
    }
}
