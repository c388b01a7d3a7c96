//! Decides which clients may connect, and limits their number. The kernel reports the user of a client, so criswitch
//! decides before it reads a byte from the connection.

use fnv::FnvHashMap;

use crate::limits::places::{self, Limit, Places, User};
use crate::limits::{MAX_CONNECTIONS, RESERVED_CONNECTIONS, USER_CONNECTIONS};
use crate::platform::Peer;
use crate::telemetry::counters::Reason;
use crate::telemetry::log_limit::LogLimit;

const ALL_HAVE_ENOUGH: &str = "all clients together have reached the limit on connections";
const OTHERS_HAVE_ENOUGH: &str =
    "users other than root and criswitch's own user have reached the limit on their connections";
const USER_HAS_ENOUGH: &str = "its user has reached the limit on connections of one user";

#[derive(Debug)]
pub(crate) struct Admission {
    all: Limit,
    /// The limit on the connections of all users together, except root and criswitch's own user.
    others: Limit,
    /// The limit on the connections of each user in `allow_uids`.
    users: FnvHashMap<u32, Limit>,
    turned_away: LogLimit,
    closed: LogLimit,
}

/// A permit for one client connection. Dropping this value releases the permit.
#[derive(Debug)]
pub(crate) struct ConnectionPlace {
    peer: Option<Peer>,
    /// Whether the client's user is root or criswitch's own, or another user.
    pub(crate) user: User,
    _places: Places,
}

impl Admission {
    /// Admits root, the user that criswitch runs as, and the users in `allowed`.
    pub(crate) fn new(allowed: &[u32]) -> Admission {
        let of_user = |uid: &u32| (*uid, Limit::new(USER_CONNECTIONS, USER_HAS_ENOUGH));
        Admission {
            all: Limit::new(MAX_CONNECTIONS, ALL_HAVE_ENOUGH),
            others: Limit::new(MAX_CONNECTIONS - RESERVED_CONNECTIONS, OTHERS_HAVE_ENOUGH),
            users: allowed.iter().map(of_user).collect(),
            turned_away: LogLimit::default(),
            closed: LogLimit::default(),
        }
    }

    /// Takes a permit for the client's connection.
    ///
    /// # Errors
    /// The reason, if the client is rejected. The reason is also logged.
    pub(crate) fn admit(&self, peer: Option<Peer>) -> Result<ConnectionPlace, Reason> {
        let Some((user, limits)) = peer.and_then(|peer| self.limits(peer)) else {
            let cause = "its user may not connect; see `allow_uids`";
            self.turn_away(peer, None, cause);
            return Err(Reason::User);
        };
        let _places = places::take(limits).map_err(|limit| {
            self.turn_away(peer, Some(limit.most), limit.what);
            Reason::Connections
        })?;
        Ok(ConnectionPlace {
            peer,
            user,
            _places,
        })
    }

    /// Returns the limits on a user's connections, or `None` if the user may not connect.
    fn limits(&self, peer: Peer) -> Option<(User, Vec<&Limit>)> {
        if peer.is_own() {
            return Some((User::Own, vec![&self.all]));
        }
        let user = self.users.get(&peer.uid?)?;
        Some((User::Other, vec![user, &self.others, &self.all]))
    }

    fn turn_away(&self, peer: Option<Peer>, limit: Option<usize>, cause: &str) {
        let Some(omitted) = self.turned_away.line() else {
            return;
        };
        let (uid, pid) = ids(peer);
        tracing::warn!(uid, pid, limit, omitted, "a client is rejected: {cause}");
    }

    /// Logs that criswitch closes the connection of an admitted client.
    pub(crate) fn cut_off(&self, place: &ConnectionPlace, cause: &str) {
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
    use super::*;
    use crate::platform::users::{self, ROOT};

    const OTHER: u32 = 1_000_000;

    fn peer(uid: u32) -> Option<Peer> {
        let uid = Some(uid);
        Some(Peer { uid, pid: None })
    }

    /// Takes permits for this user until no permit is left.
    fn fill(admission: &Admission, uid: u32) -> Vec<ConnectionPlace> {
        let places = std::iter::repeat_with(|| admission.admit(peer(uid)));
        places.map_while(Result::ok).collect()
    }

    #[test]
    fn root_and_criswitchs_own_user_are_always_allowed() {
        let admission = Admission::new(&[OTHER]);
        let own = users::own();
        for uid in [ROOT, own, OTHER] {
            assert!(admission.admit(peer(uid)).is_ok(), "{uid}");
        }
        let refused = admission.admit(peer(OTHER + 1));
        assert_eq!(refused.unwrap_err(), Reason::User);
    }

    #[test]
    fn no_more_clients_than_the_limit_get_a_place_until_one_leaves() {
        let admission = Admission::new(&[]);
        let client = peer(ROOT);
        let mut places: Vec<_> = (0..MAX_CONNECTIONS)
            .map(|_| admission.admit(client).unwrap())
            .collect();
        assert_eq!(admission.admit(client).unwrap_err(), Reason::Connections);
        places.pop();
        assert!(admission.admit(client).is_ok());
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
            let refused = admission.admit(peer(OTHER));
            assert_eq!(refused.unwrap_err(), Reason::Connections);
        }
        drop(all);
        assert_eq!(fill(&admission, OTHER).len(), USER_CONNECTIONS);
    }
}
