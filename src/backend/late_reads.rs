//! The short reads that a backend has not answered in time. Until the backend answers, criswitch sends no further reads
//! of the RPC, and repeats the unanswered reads itself.

use bytes::Bytes;
use tokio::time::Instant;

use criswitch_cri::rpc::Row;

/// The most unanswered requests of one RPC that criswitch repeats at once. Each takes a stream of the connection.
pub(crate) const MOST_REPEATED: usize = 16;
/// The most unanswered requests of one RPC that wait to be repeated, with those that are being repeated.
const MOST_LATE: usize = 256;
/// The longest request that criswitch repeats, in bytes. A request for one item has about 70, and `ImageStatus` has the
/// annotations of the pod, of which Kubernetes allows 256 KiB.
const LONGEST: usize = 512 << 10;
/// The limit on the unanswered requests of one RPC, in bytes.
const MOST_BYTES: usize = 1 << 20;

/// The short reads that a backend has not answered in time.
#[derive(Clone, Debug, Default)]
pub(crate) struct LateReads {
    rpcs: Vec<LateRpc>,
}

/// An RPC that a backend has not answered in time.
#[derive(Clone, Debug)]
pub(crate) struct LateRpc {
    pub(crate) row: &'static Row,
    /// When the first unanswered call was late.
    pub(crate) since: Instant,
    /// Whether all requests of the RPC count as late. Otherwise only the unanswered requests count as late, because the
    /// backend has meanwhile answered a different request of the RPC: one hung container does not delay the others.
    is_for_all: bool,
    /// The unanswered requests, framed, in the order in which they are repeated.
    unanswered: Vec<Bytes>,
}

impl LateRpc {
    /// Adds a request. If there is no room, drops the earliest requests, so that no client can prevent the requests of
    /// other clients from being repeated.
    fn add(&mut self, request: &Bytes) {
        let mut bytes: usize = self.unanswered.iter().map(Bytes::len).sum();
        while let Some(first) = self.unanswered.first()
            && (self.unanswered.len() >= MOST_LATE || bytes + request.len() > MOST_BYTES)
        {
            bytes -= first.len();
            self.unanswered.remove(0);
        }
        self.unanswered.push(request.clone());
    }
}

impl LateReads {
    /// Since when the backend is late with `request`; `None` if it is not. If `request` counts as late only because a
    /// different request of the RPC is unanswered, adds `request` to the requests that criswitch repeats: an answer to
    /// it shows that only the other request is late. The second value says whether `request` was added.
    pub(crate) fn check(&mut self, row: &Row, request: &Bytes) -> Option<(Instant, bool)> {
        let late = self
            .rpcs
            .iter_mut()
            .find(|late| late.row.name == row.name)?;
        if late.unanswered.contains(request) {
            return Some((late.since, false));
        }
        if !late.is_for_all {
            return None;
        }
        let is_repeated = request.len() <= LONGEST;
        if is_repeated {
            late.add(request);
        }
        Some((late.since, is_repeated))
    }

    /// Records that the backend has not answered `request` in time, or broke it off if not `is_for_all`: then criswitch
    /// still sends other requests of the RPC, which cost no wait. Returns whether this is the first unanswered request
    /// of the RPC. A request that is too long is not recorded, because criswitch does not repeat it.
    pub(crate) fn note(&mut self, row: &'static Row, request: &Bytes, is_for_all: bool) -> bool {
        if request.len() > LONGEST {
            return false;
        }
        let at = self.rpcs.iter().position(|late| late.row.name == row.name);
        let Some(late) = at.and_then(|at| self.rpcs.get_mut(at)) else {
            self.rpcs.push(LateRpc {
                row,
                since: Instant::now(),
                is_for_all,
                unanswered: vec![request.clone()],
            });
            return true;
        };
        if !late.unanswered.contains(request) {
            late.is_for_all |= is_for_all;
            late.add(request);
        }
        false
    }

    /// Records that the backend has answered `request`. Returns whether the backend is no longer late with the RPC.
    pub(crate) fn answered(&mut self, row: &Row, request: &Bytes) -> bool {
        let Some(at) = self.rpcs.iter().position(|late| late.row.name == row.name) else {
            return false;
        };
        let Some(late) = self.rpcs.get_mut(at) else {
            return false;
        };
        late.is_for_all = false;
        late.unanswered.retain(|unanswered| unanswered != request);
        let is_over = late.unanswered.is_empty();
        if is_over {
            self.rpcs.remove(at);
        }
        is_over
    }

    /// The RPCs that the backend is late with.
    pub(crate) fn rpcs(&self) -> &[LateRpc] {
        &self.rpcs
    }

    /// Moves `request` behind the other requests of the RPC, because it was repeated and got no answer.
    pub(crate) fn postpone(&mut self, row: &Row, request: &Bytes) {
        let late = self.rpcs.iter_mut().find(|late| late.row.name == row.name);
        if let Some(late) = late
            && let Some(at) = late.unanswered.iter().position(|it| it == request)
        {
            let postponed = late.unanswered.remove(at);
            late.unanswered.push(postponed);
        }
    }

    /// The unanswered requests that criswitch repeats now.
    pub(crate) fn unanswered(&self) -> Vec<(&'static Row, Bytes)> {
        self.rpcs
            .iter()
            .flat_map(|late| {
                late.unanswered
                    .iter()
                    .take(MOST_REPEATED)
                    .map(|it| (late.row, it))
            })
            .map(|(row, request)| (row, request.clone()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use criswitch_cri::rpc::{CONTAINER_STATUS, IMAGE_STATUS, POD_STATUS};

    use super::*;

    const A: Bytes = Bytes::from_static(b"a");
    const B: Bytes = Bytes::from_static(b"b");

    fn is_late(late: &mut LateReads, request: &Bytes) -> bool {
        late.check(&CONTAINER_STATUS, request).is_some()
    }

    #[test]
    fn an_rpc_is_late_until_another_request_is_answered_and_a_request_until_its_own_answer() {
        let mut late = LateReads::default();
        assert!(!is_late(&mut late, &A));
        assert!(late.note(&CONTAINER_STATUS, &A, true));
        assert!(!late.note(&CONTAINER_STATUS, &A, true), "no news");
        assert!(is_late(&mut late, &A) && is_late(&mut late, &B));
        assert!(late.check(&POD_STATUS, &A).is_none(), "another RPC");
        assert_eq!(late.unanswered().len(), 2, "both are repeated");
        assert!(!late.answered(&CONTAINER_STATUS, &B));
        assert!(is_late(&mut late, &A) && !is_late(&mut late, &B));
        assert!(late.answered(&CONTAINER_STATUS, &A));
        assert!(!is_late(&mut late, &A));
        assert!(late.note(&CONTAINER_STATUS, &A, false));
        assert!(is_late(&mut late, &A) && !is_late(&mut late, &B));
    }

    #[test]
    fn few_requests_are_repeated_and_no_long_one() {
        let mut late = LateReads::default();
        assert!(!late.note(&CONTAINER_STATUS, &Bytes::from(vec![0; LONGEST + 1]), true));
        assert!(!is_late(&mut late, &A), "nothing would end this lateness");
        late.note(&CONTAINER_STATUS, &A, true);
        for request in 0..2 * MOST_REPEATED {
            let request = Bytes::from(format!("{request}"));
            assert!(is_late(&mut late, &request));
        }
        assert_eq!(late.unanswered().len(), MOST_REPEATED);
        late.postpone(&CONTAINER_STATUS, &A);
        assert!(late.unanswered().iter().all(|(_, request)| *request != A));
        for request in 0..2 * MOST_LATE {
            late.note(&CONTAINER_STATUS, &Bytes::from(format!("{request}")), true);
        }
        assert_eq!(late.rpcs[0].unanswered.len(), MOST_LATE);
        let long = Bytes::from(vec![0; LONGEST]);
        let mut of_images = LateReads::default();
        assert!(of_images.note(&IMAGE_STATUS, &long, true));
        of_images.note(&IMAGE_STATUS, &Bytes::from(vec![1; LONGEST]), true);
        of_images.note(&IMAGE_STATUS, &A, true);
        let unanswered = of_images.unanswered();
        assert_eq!(unanswered.len(), 2, "no room for a third one");
        assert_eq!(unanswered[1].1, A, "the earliest one makes room");
        late.answered(&CONTAINER_STATUS, &B);
        assert!(!is_late(&mut late, &B));
        late.note(&CONTAINER_STATUS, &Bytes::from_static(b"c"), true);
        assert!(is_late(&mut late, &B), "also without room for the request");
    }
}
