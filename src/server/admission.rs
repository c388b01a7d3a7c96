//! Decides which clients may connect, and limits their number. The kernel reports the user of a client, so criswitch
//! decides before it reads a byte from the connection.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use criswitch_platform::Peer;
use fnv::FnvHashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::limits::places::{self, CountLimit, Places, User};
use crate::limits::{MAX_CONNECTIONS, RESERVED_CONNECTIONS, USER_CONNECTIONS};
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
    /// The connections that have not sent the HTTP/2 preface yet, the oldest first. Some of them may have ended.
    silent: Mutex<VecDeque<Weak<ConnectionPermit>>>,
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
    /// Notified when a new client takes the place.
    pub(crate) taken: Notify,
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
            silent: Mutex::default(),
            rejected_log: LogLimit::default(),
            closed: LogLimit::default(),
        }
    }

    /// Takes a permit for the client's connection. If no permit is left, takes the permit of the oldest connection that
    /// has not sent the HTTP/2 preface.
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
            && self.free_silent(limit, user)
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
            taken: Notify::new(),
        });
        let mut silent = self.silent.lock();
        silent.retain(|it| it.strong_count() > 0);
        silent.push_back(Arc::downgrade(&place));
        Ok(place)
    }

    /// Frees the permits of the oldest silent connection that has a permit of `limit`. A client of another user never
    /// takes the place of root or of criswitch's own user. Returns whether there was such a connection.
    fn free_silent(&self, limit: &CountLimit, user: User) -> bool {
        let silent = self.silent.lock();
        let freed = silent.iter().filter_map(Weak::upgrade).find_map(|it| {
            let may_take = !user.is_other() || it.user.is_other();
            let places = it.places.lock().take_if(|its| may_take && its.has(limit))?;
            it.taken.notify_one();
            Some(places)
        });
        freed.is_some()
    }

    /// Records that a connection has sent the HTTP/2 preface, and so keeps its place.
    pub(crate) fn note_preface(&self, place: &Arc<ConnectionPermit>) {
        let place = Arc::downgrade(place);
        self.silent.lock().retain(|it| !it.ptr_eq(&place));
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

    /// Admits a client that sends the preface.
    fn admit(admission: &Admission, uid: u32) -> Result<Arc<ConnectionPermit>, Reason> {
        let place = admission.admit(peer(uid))?;
        admission.note_preface(&place);
        Ok(place)
    }

    /// Takes permits for this user until no permit is left.
    fn fill(admission: &Admission, uid: u32) -> Vec<Arc<ConnectionPermit>> {
        let places = std::iter::repeat_with(|| admit(admission, uid));
        places.map_while(Result::ok).collect()
    }

    fn has_place(place: &ConnectionPermit) -> bool {
        place.places.lock().is_some()
    }

    #[test]
    fn a_new_client_takes_the_place_of_the_oldest_connection_without_a_preface() {
        let admission = Admission::new(&[]);
        let speaking = admit(&admission, ROOT).unwrap();
        let silent: Vec<_> = (1..MAX_CONNECTIONS)
            .map(|_| admission.admit(peer(ROOT)).unwrap())
            .collect();
        let new = admit(&admission, ROOT).unwrap();
        assert!(!has_place(&silent[0]) && silent[1..].iter().all(|it| has_place(it)));
        assert!(silent[0].taken.notified().now_or_never().is_some());
        assert!(has_place(&speaking) && has_place(&new));
        drop(silent);
        assert_eq!(fill(&admission, ROOT).len(), MAX_CONNECTIONS - 2);
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
        assert!(of_root.iter().chain(&of_roots).all(|it| has_place(it)));
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
        let mut places: Vec<_> = (0..MAX_CONNECTIONS)
            .map(|_| admit(&admission, ROOT).unwrap())
            .collect();
        let rejected = admit(&admission, ROOT);
        assert_eq!(rejected.unwrap_err(), Reason::Connections);
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
