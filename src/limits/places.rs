//! Limits on how many connections and calls exist at once.

use std::sync::Arc;

use criswitch_cri::rpc::Row;
use fnv::FnvHashMap;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    MAX_ADMIN_CALLS, MAX_CALLS, OTHERS_ADMIN_CALLS, OTHERS_CALLS, RESERVED_CALLS, USER_ADMIN_CALLS,
    USER_CALLS,
};

/// A limit on how many connections or calls exist at once. A clone is the same limit.
#[derive(Clone, Debug)]
pub(crate) struct CountLimit {
    pub(crate) most: usize,
    /// The limited resource, as error messages name it.
    pub(crate) what: &'static str,
    free: Arc<Semaphore>,
}

/// One permit from each of several limits. Dropping the value returns the permits.
#[derive(Debug)]
pub(crate) struct Places {
    permits: Vec<OwnedSemaphorePermit>,
}

impl Places {
    /// Whether one of the permits is of `limit`.
    pub(crate) fn has(&self, limit: &CountLimit) -> bool {
        self.permits
            .iter()
            .any(|permit| Arc::ptr_eq(permit.semaphore(), &limit.free))
    }
}

impl CountLimit {
    pub(crate) fn new(most: usize, what: &'static str) -> CountLimit {
        let free = Arc::new(Semaphore::new(most));
        CountLimit { most, what, free }
    }

    fn is_unused(&self) -> bool {
        self.free.available_permits() == self.most
    }
}

/// Takes one permit from each of `limits`.
///
/// # Errors
/// If a limit has no free permit: the first such limit. No permit is taken then.
pub(crate) fn take<'l>(
    limits: impl IntoIterator<Item = &'l CountLimit>,
) -> Result<Places, &'l CountLimit> {
    let permits = limits.into_iter().map(|limit| {
        Arc::clone(&limit.free)
            .try_acquire_owned()
            .map_err(|_| limit)
    });
    Ok(Places {
        permits: permits.collect::<Result<_, _>>()?,
    })
}

/// The user of a client. The limits are stricter for [`User::Other`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// Root, or the user that criswitch runs as. The kubelet's calls come from such a user.
    Own,
    /// Any other user, by its number.
    Other(u32),
}

impl User {
    /// Whether the user is neither root nor the user that criswitch runs as.
    pub(crate) fn is_other(self) -> bool {
        self != User::Own
    }
}

/// The limits on the calls of users other than root and criswitch's own user.
#[derive(Debug)]
struct OthersLimits {
    /// The limit on the calls of all these users together.
    all: CountLimit,
    /// The pattern for the limit on the calls of each of these users. It counts no calls itself.
    one: CountLimit,
    /// The limits of these users. Only users in `allow_uids` can connect, so these are few.
    users: Mutex<FnvHashMap<u32, CountLimit>>,
}

impl OthersLimits {
    fn new(all: CountLimit, one: CountLimit) -> OthersLimits {
        let users = Mutex::default();
        OthersLimits { all, one, users }
    }

    /// The limits on the calls of `user`.
    fn of(&self, user: User) -> Vec<CountLimit> {
        let User::Other(uid) = user else {
            return Vec::new();
        };
        let mut users = self.users.lock();
        let one = users
            .entry(uid)
            .or_insert_with(|| CountLimit::new(self.one.most, self.one.what));
        vec![one.clone(), self.all.clone()]
    }
}

/// The limits on calls in flight, of all clients.
#[derive(Debug)]
pub(crate) struct CallLimits {
    all: CountLimit,
    long: CountLimit,
    others: OthersLimits,
}

impl Default for CallLimits {
    fn default() -> CallLimits {
        let long = "calls of GetContainerEvents, ExecSync, PullImage and PullSecurityProfile";
        let others = "calls by users other than root and criswitch's own user";
        CallLimits {
            all: CountLimit::new(MAX_CALLS, "calls"),
            long: CountLimit::new(MAX_CALLS - RESERVED_CALLS, long),
            others: OthersLimits::new(
                CountLimit::new(OTHERS_CALLS, others),
                CountLimit::new(USER_CALLS, "calls by this user"),
            ),
        }
    }
}

impl CallLimits {
    /// Whether no call is in flight.
    pub(crate) fn is_unused(&self) -> bool {
        self.all.is_unused()
    }

    /// Takes the permits for a call of the RPC of `row` by a client of `user`.
    ///
    /// # Errors
    /// If a limit has no free permit: that limit.
    pub(crate) fn place(&self, row: &Row, user: User) -> Result<Places, CountLimit> {
        let others = self.others.of(user);
        let long = row.is_long.then_some(&self.long);
        take(others.iter().chain(long).chain([&self.all])).map_err(CountLimit::clone)
    }
}

/// The limits on calls of the admin service in flight, of all clients.
#[derive(Debug)]
pub(crate) struct AdminLimits {
    all: CountLimit,
    others: OthersLimits,
}

impl Default for AdminLimits {
    fn default() -> AdminLimits {
        let others = "calls of the admin service by users other than root and criswitch's own user";
        AdminLimits {
            all: CountLimit::new(MAX_ADMIN_CALLS, "calls of the admin service"),
            others: OthersLimits::new(
                CountLimit::new(OTHERS_ADMIN_CALLS, others),
                CountLimit::new(USER_ADMIN_CALLS, "calls of the admin service by this user"),
            ),
        }
    }
}

impl AdminLimits {
    /// Whether no call is in flight.
    pub(crate) fn is_unused(&self) -> bool {
        self.all.is_unused()
    }

    /// Takes the permits for a call of the admin service by a client of `user`.
    ///
    /// # Errors
    /// If a limit has no free permit: that limit.
    pub(crate) fn place(&self, user: User) -> Result<Places, CountLimit> {
        take(self.others.of(user).iter().chain([&self.all])).map_err(CountLimit::clone)
    }
}

#[cfg(test)]
mod tests {
    use criswitch_cri::rpc::{EVENTS, LIST_PODS};

    use super::*;

    /// Takes all free permits, and returns them with the limit that was reached.
    fn fill(limits: &CallLimits, row: &Row, user: User) -> (Vec<Places>, usize) {
        let mut places = Vec::new();
        loop {
            match limits.place(row, user) {
                Ok(place) => places.push(place),
                Err(limit) => return (places, limit.most),
            }
        }
    }

    #[test]
    fn long_calls_leave_places_for_short_ones() {
        let limits = CallLimits::default();
        let (long, reached) = fill(&limits, &EVENTS, User::Own);
        assert_eq!((long.len(), reached), (3072, 3072));
        let (short, reached) = fill(&limits, &LIST_PODS, User::Own);
        assert_eq!((short.len(), reached), (RESERVED_CALLS, MAX_CALLS));
    }

    #[test]
    fn calls_of_other_users_leave_places_for_all_calls_of_the_kubelet() {
        let limits = CallLimits::default();
        for row in [&LIST_PODS, &EVENTS] {
            let users = (1..9).map(|uid| fill(&limits, row, User::Other(uid)).0);
            let others: Vec<_> = users.flatten().collect();
            assert_eq!(others.len(), OTHERS_CALLS);
            let (long, _) = fill(&limits, &EVENTS, User::Own);
            assert!(long.len() >= RESERVED_CALLS, "{}", long.len());
        }
    }

    #[test]
    fn calls_of_one_user_leave_places_for_each_other_user() {
        let limits = CallLimits::default();
        for row in [&LIST_PODS, &EVENTS] {
            let (first, reached) = fill(&limits, row, User::Other(1));
            assert_eq!((first.len(), reached), (USER_CALLS, USER_CALLS));
            let (second, _) = fill(&limits, row, User::Other(2));
            assert_eq!(second.len(), OTHERS_CALLS - USER_CALLS);
        }
    }

    #[test]
    fn admin_calls_of_other_users_leave_places_for_root() {
        let limits = &AdminLimits::default();
        let of = |user| std::iter::from_fn(move || limits.place(user).ok());
        let first: Vec<_> = of(User::Other(1)).collect();
        assert_eq!(first.len(), USER_ADMIN_CALLS);
        let second: Vec<_> = of(User::Other(2)).collect();
        assert_eq!(first.len() + second.len(), OTHERS_ADMIN_CALLS);
        assert_eq!(of(User::Other(3)).count(), 0);
        let own: Vec<_> = of(User::Own).collect();
        assert_eq!(own.len(), MAX_ADMIN_CALLS - OTHERS_ADMIN_CALLS);
    }

    /// A call that one limit rejects takes no permit from any other limit.
    #[test]
    fn a_rejected_call_takes_no_part_of_any_limit() {
        let limits = CallLimits::default();
        let (long, _) = fill(&limits, &EVENTS, User::Own);
        for _ in 0..MAX_CALLS {
            assert!(limits.place(&EVENTS, User::Other(1)).is_err());
        }
        drop(long);
        assert_eq!(fill(&limits, &LIST_PODS, User::Own).0.len(), MAX_CALLS);
    }
}
