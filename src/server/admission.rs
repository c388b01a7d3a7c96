//! Decides which clients may connect, and limits their number. The kernel reports the user of a client, so criswitch
//! decides before it reads a byte from the connection.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use criswitch_platform::Peer;
use fnv::FnvHashMap;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::limits::budget::Budget;
use crate::limits::places::{self, CountLimit, Places, User};
use crate::limits::{LEAVING_CONNECTIONS, MAX_CONNECTIONS, RESERVED_CONNECTIONS, USER_CONNECTIONS};
use crate::telemetry::counters::Reason;
use crate::telemetry::log_limit::LogLimit;

const ALL_HAVE_ENOUGH: &str = "all clients together have reached the limit on connections";
const OTHERS_HAVE_ENOUGH: &str =
    "users other than root and criswitch's own user have reached the limit on their connections";
const USER_HAS_ENOUGH: &str = "its user has reached the limit on connections of one user";

#[derive(Debug)]
pub(crate) struct Admission {
    all: CountLimit,
    /// The limit on the connections of all users together, except root and criswitch's own user.
    others: CountLimit,
    /// The limit on the connections of each user in `allow_uids`.
    users: FnvHashMap<u32, CountLimit>,
    /// The connections that still have a place. Some of them may have ended.
    open: Mutex<Vec<Weak<ConnectionPermit>>>,
    /// The limits on the connections whose place a new client has taken, and that end with a GOAWAY: of root and
    /// criswitch's own user, and of other users.
    leaving: [CountLimit; 2],
    rejected_log: LogLimit,
    closed: LogLimit,
}

/// A permit for one client connection. Dropping this value releases the permit.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    peer: Option<Peer>,
    /// The client's user.
    pub(crate) user: User,
    /// `None` after a new client has taken the place.
    places: Mutex<Option<Places>>,
    pub(crate) usage: Arc<ConnectionUse>,
}

/// The use of one client connection.
#[derive(Debug)]
pub struct ConnectionUse {
    calls: Mutex<ConnectionCalls>,
    /// The replies that the client has not read yet; empty until the client has sent the HTTP/2 preface.
    unread: OnceLock<Budget>,
    /// Cancelled when a new client takes the place of the connection.
    pub(crate) taken: CancellationToken,
}

#[derive(Debug)]
struct ConnectionCalls {
    /// Whether the client has sent the HTTP/2 preface.
    has_preface: bool,
    in_flight: usize,
    /// The time of the connection, or of the end of its last call.
    last: Instant,
}

/// A call in flight. Dropping this value ends the call.
pub(super) struct CallInFlight(Arc<ConnectionUse>);

impl Drop for CallInFlight {
    fn drop(&mut self) {
        let mut calls = self.0.calls.lock();
        calls.in_flight -= 1;
        calls.last = Instant::now();
    }
}

impl Default for ConnectionUse {
    fn default() -> ConnectionUse {
        ConnectionUse {
            calls: Mutex::new(ConnectionCalls {
                has_preface: false,
                in_flight: 0,
                last: Instant::now(),
            }),
            unread: OnceLock::new(),
            taken: CancellationToken::new(),
        }
    }
}

impl ConnectionUse {
    pub(super) fn begin(self: &Arc<ConnectionUse>) -> CallInFlight {
        self.calls.lock().in_flight += 1;
        CallInFlight(Arc::clone(self))
    }

    /// Records that the client has sent the HTTP/2 preface. Its unread replies count in `unread`.
    pub(crate) fn note_preface(&self, unread: Budget) {
        self.unread.set(unread).ok();
        self.calls.lock().has_preface = true;
    }

    /// Whether a call is in flight, or the client has not read a reply.
    fn is_busy(&self) -> bool {
        self.calls.lock().in_flight > 0 || self.unread.get().is_some_and(|it| it.used() > 0)
    }

    /// A key that is smaller the sooner a new client may take the place: first of a connection without a preface, then
    /// of the connection that has had no call for longest. `None` while the connection is busy.
    fn unused_for(&self) -> Option<(bool, Instant)> {
        if self.is_busy() {
            return None;
        }
        let calls = self.calls.lock();
        Some((calls.has_preface, calls.last))
    }
}

impl Admission {
    /// Admits root, the user that criswitch runs as, and the users in `allowed`.
    pub(crate) fn new(allowed: &[u32]) -> Admission {
        Admission {
            all: CountLimit::new(MAX_CONNECTIONS, ALL_HAVE_ENOUGH),
            others: CountLimit::new(MAX_CONNECTIONS - RESERVED_CONNECTIONS, OTHERS_HAVE_ENOUGH),
            users: allowed
                .iter()
                .map(|uid| (*uid, CountLimit::new(USER_CONNECTIONS, USER_HAS_ENOUGH)))
                .collect(),
            open: Mutex::default(),
            leaving: [(); 2].map(|()| CountLimit::new(LEAVING_CONNECTIONS, "connections that end")),
            rejected_log: LogLimit::default(),
            closed: LogLimit::default(),
        }
    }

    /// Takes a permit for the client's connection. If no permit is left, takes the permit of a connection without
    /// calls: of the oldest one that has not sent the HTTP/2 preface, or else of the one that has had no call for
    /// longest.
    ///
    /// # Errors
    /// The reason, if the client is rejected. The reason is also logged.
    pub(crate) fn admit(&self, peer: Option<Peer>) -> Result<Arc<ConnectionPermit>, Reason> {
        let Some((user, limits)) = peer.and_then(|peer| self.limits(peer)) else {
            let cause = "its user may not connect; see `allow_uids`";
            self.log_rejection(peer, None, cause);
            return Err(Reason::User);
        };
        let mut places = places::take(limits.iter().copied());
        if let Err(limit) = places
            && self.free_unused(limit, user)
        {
            places = places::take(limits.iter().copied());
        }
        let places = places.map_err(|limit| {
            self.log_rejection(peer, Some(limit.most), limit.what);
            Reason::Connections
        })?;
        let place = Arc::new(ConnectionPermit {
            peer,
            user,
            places: Mutex::new(Some(places)),
            usage: Arc::default(),
        });
        let mut open = self.open.lock();
        open.retain(|it| it.strong_count() > 0);
        open.push(Arc::downgrade(&place));
        Ok(place)
    }

    /// Frees the permits of an unused connection that has a permit of `limit`. A client of another user never takes the
    /// place of root or of criswitch's own user. Returns whether there was such a connection.
    fn free_unused(&self, limit: &CountLimit, user: User) -> bool {
        let mut open = self.open.lock();
        let unused = open.iter().enumerate().filter_map(|(at, it)| {
            let it = it.upgrade()?;
            let may_take = !user.is_other() || it.user.is_other();
            let has = may_take && it.places.lock().as_ref()?.has(limit);
            has.then_some((it.usage.unused_for()?, at))
        });
        let Some(place) = unused.min().and_then(|(_, at)| open.remove(at).upgrade()) else {
            return false;
        };
        place.places.lock().take();
        place.usage.taken.cancel();
        true
    }

    /// Completes when a connection whose place was taken must end, even if the client has not answered its GOAWAY:
    /// `limit` after the place was taken, and for root and criswitch's own user once the connection is not busy either.
    /// At once if too many connections end.
    pub(crate) async fn left(&self, place: &ConnectionPermit, limit: Duration) {
        place.usage.taken.cancelled().await;
        let [own, others] = &self.leaving;
        let is_other = place.user.is_other();
        let Ok(_leaving) = places::take([if is_other { others } else { own }]) else {
            return;
        };
        tokio::time::sleep(limit).await;
        while !is_other && place.usage.is_busy() {
            tokio::time::sleep(limit).await;
        }
    }

    /// Returns the limits on a user's connections, or `None` if the user may not connect.
    fn limits(&self, peer: Peer) -> Option<(User, Vec<&CountLimit>)> {
        if peer.is_own() {
            return Some((User::Own, vec![&self.all]));
        }
        let uid = peer.uid?;
        let user = self.users.get(&uid)?;
        Some((User::Other(uid), vec![user, &self.others, &self.all]))
    }

    fn log_rejection(&self, peer: Option<Peer>, limit: Option<usize>, cause: &str) {
        let Some(omitted) = self.rejected_log.line() else {
            return;
        };
        let (uid, pid) = ids(peer);
        tracing::warn!(uid, pid, limit, omitted, "a client is rejected: {cause}");
    }

    /// Logs that criswitch closes the connection of an admitted client.
    pub(crate) fn cut_off(&self, place: &ConnectionPermit, cause: &str) {
        let Some(omitted) = self.closed.line() else {
            return;
        };
        let (uid, pid) = ids(place.peer);
        tracing::warn!(
            uid,
            pid,
            omitted,
            "a client's connection is closed: {cause}"
        );
    }
}

/// The user and the process of a client, as far as they are known.
fn ids(peer: Option<Peer>) -> (Option<u32>, Option<i32>) {
    peer.map_or((None, None), |peer| (peer.uid, peer.pid))
}

#[cfg(test)]
mod tests {
    use criswitch_platform::users::{self, ROOT};
    use futures_util::FutureExt;

    use super::*;

    const OTHER: u32 = 1_000_000;

    fn peer(uid: u32) -> Option<Peer> {
        let uid = Some(uid);
        Some(Peer { uid, pid: None })
    }

    fn unread() -> Budget {
        Budget::for_messages(1)
    }

    /// A client that has sent the preface, and has a call in flight.
    type Busy = (Arc<ConnectionPermit>, CallInFlight);

    fn admit(admission: &Admission, uid: u32) -> Result<Busy, Reason> {
        let place = admission.admit(peer(uid))?;
        place.usage.note_preface(unread());
        let call = place.usage.begin();
        Ok((place, call))
    }

    /// Takes permits for this user until no permit is left.
    fn fill(admission: &Admission, uid: u32) -> Vec<Busy> {
        let places = std::iter::repeat_with(|| admit(admission, uid));
        places.map_while(Result::ok).collect()
    }

    fn has_place(place: &ConnectionPermit) -> bool {
        place.places.lock().is_some()
    }

    #[test]
    fn a_new_client_takes_the_place_of_the_oldest_connection_without_a_preface() {
        let admission = Admission::new(&[]);
        let busy = admit(&admission, ROOT).unwrap();
        let idle = admission.admit(peer(ROOT)).unwrap();
        idle.usage.note_preface(unread());
        let silent: Vec<_> = (2..MAX_CONNECTIONS)
            .map(|_| admission.admit(peer(ROOT)).unwrap())
            .collect();
        let new = admit(&admission, ROOT).unwrap();
        assert!(!has_place(&silent[0]) && silent[1..].iter().all(|it| has_place(it)));
        assert!(silent[0].usage.taken.is_cancelled());
        assert!(has_place(&busy.0) && has_place(&idle) && has_place(&new.0));
        drop(silent);
        assert_eq!(fill(&admission, ROOT).len(), MAX_CONNECTIONS - 2);
        assert!(!has_place(&idle));
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_client_takes_the_place_of_the_connection_that_has_had_no_call_for_longest() {
        let admission = Admission::new(&[]);
        let mut places = fill(&admission, ROOT);
        let (last, call) = places.pop().unwrap();
        let (first, other) = places.swap_remove(0);
        drop(call);
        tokio::time::advance(Duration::from_millis(1)).await;
        drop(other);
        assert!(admission.admit(peer(ROOT)).is_ok());
        assert!(!has_place(&last) && has_place(&first));
        let left = admission.left(&last, Duration::from_secs(1));
        let call = last.usage.begin();
        let ended = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            drop(call);
        };
        let begun = Instant::now();
        tokio::join!(left, ended);
        assert!(
            begun.elapsed() >= Duration::from_secs(5),
            "a late call ends"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_at_once_if_too_many_end_and_keeps_its_place_for_unread_replies() {
        let admission = Admission::new(&[]);
        let reader = admission.admit(peer(ROOT)).unwrap();
        let replies = unread();
        reader.usage.note_preface(replies.clone());
        let mut held = replies.held();
        held.grow(1).unwrap();
        let idle: Vec<_> = (0..=LEAVING_CONNECTIONS)
            .map(|_| admission.admit(peer(ROOT)).unwrap())
            .collect();
        let _busy = fill(&admission, ROOT);
        assert!(has_place(&reader) && !idle.iter().any(|it| has_place(it)));
        let limit = Duration::from_secs(1);
        let leaves = |place| Box::pin(admission.left(place, limit));
        let mut leaving: Vec<_> = idle.iter().map(|it| leaves(it)).collect();
        let last = leaving.pop().unwrap();
        assert!(leaving.iter_mut().all(|it| it.now_or_never().is_none()));
        assert!(last.now_or_never().is_some());
    }

    #[test]
    fn a_client_takes_a_silent_place_only_of_the_limit_that_is_reached_and_never_of_root() {
        let admission = Admission::new(&[OTHER, OTHER + 1]);
        let of_root = admission.admit(peer(ROOT)).unwrap();
        let of_another = admission.admit(peer(OTHER + 1)).unwrap();
        let places = fill(&admission, OTHER);
        assert_eq!(places.len(), USER_CONNECTIONS);
        let rejected = admission.admit(peer(OTHER));
        assert_eq!(rejected.unwrap_err(), Reason::Connections);
        drop(of_another);
        let of_roots = fill(&admission, ROOT);
        assert!(!has_place(&of_root), "root takes a place of root");
        drop(places);
        let of_root: Vec<_> = (0..USER_CONNECTIONS)
            .map(|_| admission.admit(peer(ROOT)).unwrap())
            .collect();
        let rejected = admission.admit(peer(OTHER));
        assert_eq!(rejected.unwrap_err(), Reason::Connections);
        let of_roots = of_roots.iter().map(|(place, _)| place);
        assert!(of_root.iter().chain(of_roots).all(|it| has_place(it)));
    }

    #[test]
    fn root_and_criswitchs_own_user_are_always_allowed() {
        let admission = Admission::new(&[OTHER]);
        let own = users::own();
        for uid in [ROOT, own, OTHER] {
            assert!(admission.admit(peer(uid)).is_ok(), "{uid}");
        }
        let rejected = admission.admit(peer(OTHER + 1));
        assert_eq!(rejected.unwrap_err(), Reason::User);
    }

    #[test]
    fn no_more_clients_than_the_limit_get_a_place_until_one_leaves() {
        let admission = Admission::new(&[]);
        let mut places = fill(&admission, ROOT);
        assert_eq!(places.len(), MAX_CONNECTIONS);
        assert!(matches!(admit(&admission, ROOT), Err(Reason::Connections)));
        places.pop();
        assert!(admit(&admission, ROOT).is_ok());
    }

    #[test]
    fn a_user_has_its_own_limit_and_gets_a_place_again_when_a_client_leaves() {
        let admission = Admission::new(&[OTHER, OTHER + 1]);
        let mut places = fill(&admission, OTHER);
        assert_eq!(places.len(), USER_CONNECTIONS);
        assert!(admission.admit(peer(OTHER + 1)).is_ok());
        assert!(admission.admit(peer(ROOT)).is_ok());
        places.pop();
        assert_eq!(fill(&admission, OTHER).len(), 1);
    }

    #[test]
    fn other_users_together_never_take_the_reserved_places() {
        let users: Vec<u32> = (OTHER..OTHER + 9).collect();
        let admission = Admission::new(&users);
        let taken = users.iter().map(|uid| fill(&admission, *uid));
        let mut places: Vec<_> = taken.flatten().collect();
        assert_eq!(places.len(), MAX_CONNECTIONS - RESERVED_CONNECTIONS);
        places.extend(fill(&admission, ROOT));
        assert_eq!(places.len(), MAX_CONNECTIONS);
    }

    /// A client that one limit rejects takes no permit of another limit.
    #[test]
    fn a_rejected_client_takes_no_part_of_any_limit() {
        let admission = Admission::new(&[OTHER]);
        let all = fill(&admission, ROOT);
        for _ in 0..2 * USER_CONNECTIONS {
            let rejected = admission.admit(peer(OTHER));
            assert_eq!(rejected.unwrap_err(), Reason::Connections);
        }
        drop(all);
        assert_eq!(fill(&admission, OTHER).len(), USER_CONNECTIONS);
    }
}
