//! The calls that create pods: calls in flight, and calls whose result is unknown. The backend of such a call may have
//! a pod that criswitch does not know. A restart keeps only the fact that a backend has such a call.

use std::time::Duration;

use tokio::time::Instant;

use super::BackendId;

/// A list requested this long after a call ended with an unknown result shows whether the call created a pod.
const SETTLED: Duration = Duration::from_secs(10);
/// How long a call of the last run of criswitch may go on. CRI-O sets up a pod's network for up to 5 minutes, even
/// after its client has disconnected. The kubelet's deadline is 4 minutes.
const LONGEST: Duration = Duration::from_secs(300);
/// The most calls with an unknown result whose uids are remembered. A further call counts as a call for any uid.
const MOST_UNKNOWN: usize = 4096;

/// The calls that create a pod, under way or with an unknown result.
#[derive(Debug, Default)]
pub struct Creations {
    begun: u64,
    unknown: Vec<PossiblePod>,
}

/// The number of a call that creates a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Creation(u64);

/// A pod that may exist.
#[derive(Debug)]
struct PossiblePod {
    creation: Creation,
    backend: BackendId,
    /// The uid; if empty, it is unknown and any uid matches.
    uid: String,
    stage: CreationStage,
}

/// The progress of a call that creates a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CreationStage {
    /// The call is not sent yet. A reload must keep its backend.
    Unsent,
    Sent,
    /// The call ended at this time, and its result is unknown.
    Unknown(Instant),
    /// The last run of criswitch may have made the call, which ends at `ends` at the latest. `is_known` if that run
    /// saved that it had such a call: then the backend must stay.
    OfLastRun {
        ends: Instant,
        is_known: bool,
    },
}

impl CreationStage {
    /// Whether there is such a call for certain.
    fn is_known(self) -> bool {
        !matches!(
            self,
            CreationStage::OfLastRun {
                is_known: false,
                ..
            }
        )
    }
}

impl PossiblePod {
    fn is_unknown(&self) -> bool {
        matches!(self.stage, CreationStage::Unknown(_))
    }

    fn is_same(&self, ended: &PossiblePod) -> bool {
        self.is_unknown() && self.backend == ended.backend && self.uid == ended.uid
    }
}

impl Creations {
    /// Records the start of a call that creates a pod with this uid at `backend`. The caller must pass the result to
    /// [`Creations::end`] when the call ends.
    pub fn begin(&mut self, backend: BackendId, uid: String) -> Creation {
        self.add(backend, uid, CreationStage::Unsent)
    }

    /// Records that criswitch starts at `now`: a call of the last run may still create a pod of any uid at `backend`.
    /// `is_known` if the last run saved that it had such a call.
    pub fn begin_run(&mut self, backend: BackendId, is_known: bool, now: Instant) {
        let ends = now + LONGEST;
        let stage = CreationStage::OfLastRun { ends, is_known };
        self.add(backend, String::new(), stage);
    }

    fn add(&mut self, backend: BackendId, uid: String, stage: CreationStage) -> Creation {
        self.begun += 1;
        let creation = Creation(self.begun);
        self.unknown.push(PossiblePod {
            creation,
            backend,
            uid,
            stage,
        });
        creation
    }

    /// Forgets all calls to `backend` that may still create a pod.
    pub(super) fn forget(&mut self, backend: BackendId) {
        self.unknown.retain(|it| it.backend != backend);
    }

    /// Records that the call of `creation` is sent now.
    pub fn sent(&mut self, creation: Creation) {
        let mut unknown = self.unknown.iter_mut();
        if let Some(sent) = unknown.find(|it| it.creation == creation) {
            sent.stage = CreationStage::Sent;
        }
    }

    /// Records that the call of `creation` has ended. If the result of the call is unknown, `open` is the time of its
    /// end.
    pub fn end(&mut self, creation: Creation, open: Option<Instant>) {
        let mut unknown = self.unknown.iter();
        let Some(place) = unknown.position(|it| it.creation == creation) else {
            return;
        };
        let ended = self.unknown.swap_remove(place);
        if let Some(at) = open {
            self.end_unknown(ended, at);
        }
    }

    fn end_unknown(&mut self, mut ended: PossiblePod, at: Instant) {
        ended.stage = CreationStage::Unknown(at);
        let open = self.unknown.iter().filter(|it| it.is_unknown()).count();
        if open >= MOST_UNKNOWN && !self.unknown.iter().any(|it| it.is_same(&ended)) {
            ended.uid.clear();
        }
        self.unknown.retain(|it| !it.is_same(&ended));
        self.unknown.push(ended);
    }

    /// Records that a complete list of the pods of `backend`, requested at `asked`, was learned. The list shows the
    /// results of calls that ended long enough before `asked`. Returns whether there were such calls.
    pub fn listed(&mut self, backend: BackendId, asked: Instant) -> bool {
        let before = self.unknown.len();
        self.unknown.retain(|it| match it.stage {
            CreationStage::Unknown(ended) | CreationStage::OfLastRun { ends: ended, .. } => {
                it.backend != backend || asked < ended + SETTLED
            }
            CreationStage::Unsent | CreationStage::Sent => true,
        });
        self.unknown.len() < before
    }

    /// The backends that may have an unknown pod of `uid`.
    pub(super) fn with_uid(&self, uid: &str) -> impl Iterator<Item = BackendId> {
        let possible = self.unknown.iter().filter(move |it| {
            it.stage != CreationStage::Unsent && (it.uid == uid || it.uid.is_empty())
        });
        possible.map(|it| it.backend)
    }

    /// The backends with a call under way that creates a pod of exactly this uid.
    pub(super) fn sent_with_uid(&self, uid: &str) -> impl Iterator<Item = BackendId> {
        self.unknown
            .iter()
            .filter(move |it| it.stage == CreationStage::Sent && it.uid == uid)
            .map(|it| it.backend)
    }

    /// Whether a call that creates a pod of exactly this uid was sent to `backend`, and its result is unknown.
    pub(crate) fn may_have(&self, backend: BackendId, uid: &str) -> bool {
        self.uids(backend).any(|it| it == uid)
    }

    /// The uids of the pods that `backend` may have without criswitch knowing their ids.
    pub(super) fn uids(&self, backend: BackendId) -> impl Iterator<Item = &str> {
        self.unknown
            .iter()
            .filter(move |it| it.backend == backend && it.stage != CreationStage::Unsent)
            .map(|it| it.uid.as_str())
    }

    /// Whether a known call may have created an unknown pod at `backend`, or is about to be sent to `backend`.
    pub(crate) fn is_at(&self, backend: BackendId) -> bool {
        let mut its = self.unknown.iter().filter(|it| it.backend == backend);
        its.any(|it| it.stage.is_known())
    }

    /// Whether a known call may have created an unknown pod at `backend`.
    pub(crate) fn may_be_at(&self, backend: BackendId) -> bool {
        let mut its = self.unknown.iter().filter(|it| it.backend == backend);
        its.any(|it| it.stage.is_known() && it.stage != CreationStage::Unsent)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ids::{B, C};
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
    fn a_call_that_was_not_sent_needs_its_backend_and_has_made_no_pod() {
        let mut creations = Creations::default();
        let creation = creations.begin(B, "a".to_owned());
        assert!(creations.is_at(B) && with_uid(&creations, "a").is_empty());
        assert!(!creations.may_be_at(B));
        creations.sent(creation);
        assert!(creations.may_be_at(B));
        assert_eq!(with_uid(&creations, "a"), [B]);
        creations.end(creation, None);
        assert!(!creations.is_at(B));
    }

    #[test]
    fn a_creation_without_a_result_counts_until_a_list_that_was_requested_late_enough_arrives() {
        let ended = Instant::now();
        let mut creations = Creations::default();
        let [first, second] = [(); 2].map(|()| sent(&mut creations, B, "a"));
        let other = sent(&mut creations, C, "b");
        creations.end(first, None);
        assert_eq!(with_uid(&creations, "a"), [B], "the other is under way");
        creations.end(second, Some(ended));
        creations.end(other, None);
        assert!(creations.is_at(B) && !creations.is_at(C));
        creations.listed(B, ended + SETTLED - Duration::from_millis(1));
        creations.listed(C, ended + SETTLED);
        assert_eq!(with_uid(&creations, "a"), [B]);
        creations.listed(B, ended + SETTLED);
        assert!(creations.unknown.is_empty());
    }

    #[test]
    fn a_call_of_the_last_run_may_create_a_pod_of_any_uid_for_some_minutes_and_a_saved_call_keeps_its_backend()
     {
        let now = Instant::now();
        let mut creations = Creations::default();
        creations.begin_run(B, false, now);
        creations.begin_run(C, true, now);
        assert!(!creations.listed(B, now + LONGEST + SETTLED - Duration::from_millis(1)));
        assert_eq!(with_uid(&creations, "a"), [B, C]);
        assert!(!creations.is_at(B) && creations.is_at(C));
        assert!(creations.listed(B, now + LONGEST + SETTLED));
        creations.forget(C);
        assert!(creations.unknown.is_empty());
    }

    #[test]
    fn an_unknown_uid_matches_any_uid_and_so_do_uids_beyond_the_limit() {
        let ended = Instant::now();
        let mut creations = Creations::default();
        let mut open = |backend, uid: &str| {
            let creation = sent(&mut creations, backend, uid);
            creations.end(creation, Some(ended));
            creations.unknown.len()
        };
        for number in 0..MOST_UNKNOWN {
            let uid = number.to_string();
            assert_eq!(open(B, &uid), open(B, &uid));
        }
        for number in 0..MOST_UNKNOWN {
            assert_eq!(open(C, &format!("more-{number}")), MOST_UNKNOWN + 1);
        }
        assert_eq!(with_uid(&creations, "none"), [C]);
        assert_eq!(with_uid(&creations, "0"), [B, C]);
    }
}
