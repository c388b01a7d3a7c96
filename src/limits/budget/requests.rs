//! The memory for requests, and the shares of users and connections.
//!
//! A request that is not complete holds its memory until its client finishes it, at most for
//! [`REQUEST_LIMIT`](crate::limits::REQUEST_LIMIT). So no client, and no user other than root, may hold all of it.
//! Small and large requests have separate budgets, each with the same shares.

use fnv::FnvHashMap;
use parking_lot::Mutex;

use super::{Budget, Whole};
use crate::limits::places::User;

/// The divisor for small requests: they have 1 / 4 of the memory for requests. Large ones have the rest.
const SMALL_PART: usize = 4;
/// The divisor for the requests of all users together, except root and criswitch's own user. The other half is reserved
/// for root and criswitch's own user.
const OTHERS: usize = 2;
/// The divisor for the requests of each other user.
const USER: usize = 3;
/// The divisor for the requests of one connection.
const CONNECTION: usize = 4;

/// The memory for requests of all clients.
#[derive(Debug)]
pub struct Requests {
    all: Budget,
    /// The part of all users except root and criswitch's own user.
    others: Budget,
    /// The parts of these users. Only users in `allow_uids` can connect, so these are few.
    users: Mutex<FnvHashMap<u32, Budget>>,
}

impl Requests {
    /// Memory for requests of at most `max_message` bytes each.
    pub fn new(max_message: usize) -> Requests {
        let limit = Budget::for_messages(max_message).limit();
        let small = limit / SMALL_PART;
        let all = Budget::new(small, Whole::Itself, Some(Budget::of(limit - small)));
        Requests {
            others: all.share_of(&all, OTHERS),
            users: Mutex::default(),
            all,
        }
    }

    /// The share of a new connection of `user`.
    pub fn share(&self, user: User) -> Budget {
        let whole = match user {
            User::Own => self.all.clone(),
            User::Other(uid) => {
                let mut users = self.users.lock();
                users
                    .entry(uid)
                    .or_insert_with(|| self.others.share_of(&self.all, USER))
                    .clone()
            }
        };
        whole.share_of(&self.all, CONNECTION)
    }

    /// The bytes of all requests in memory.
    pub fn used(&self) -> usize {
        self.all.used() + self.all.0.large.as_ref().map_or(0, Budget::used)
    }
}

impl Budget {
    /// Returns a part of this budget. Large reservations in the part count in a part of the budget for large
    /// reservations. The limit of each part is the limit of the corresponding budget of `all`, divided by `divisor`.
    fn share_of(&self, all: &Budget, divisor: usize) -> Budget {
        let both = self.0.large.as_ref().zip(all.0.large.as_ref());
        let large = both.map(|(large, all)| large.part(all.limit() / divisor, None));
        self.part(all.limit() / divisor, large)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Reservation, SMALL};
    use super::*;

    const KIB: usize = 1 << 10;
    const MIB: usize = 1 << 20;

    /// Reserves memory for requests of `bytes` bytes until there is none.
    fn fill(share: &Budget, bytes: usize) -> Vec<Reservation> {
        let held = || {
            let mut held = share.held();
            held.grow(bytes).ok()?;
            Some(held)
        };
        std::iter::from_fn(held).collect()
    }

    #[test]
    fn a_connection_of_any_user_has_room_for_a_largest_message_with_its_headers() {
        for max_message in [1, 16 << 20, 1 << 30] {
            let requests = Requests::new(max_message);
            for user in [User::Own, User::Other(1)] {
                let mut held = requests.share(user).held();
                assert!(held.grow(max_message + MIB).is_ok(), "{max_message}");
            }
        }
    }

    #[test]
    fn no_connection_and_no_other_user_takes_the_memory_of_others() {
        let requests = Requests::new(16 * MIB);
        for (bytes, all) in [(SMALL, 32 * MIB), (MIB, 96 * MIB)] {
            let own = fill(&requests.share(User::Own), bytes);
            assert_eq!(own.len() * bytes, all / 4, "one connection");
            drop(own);
            let connections = [(); 16].map(|()| requests.share(User::Other(1)));
            let first: Vec<_> = connections.iter().map(|it| fill(it, bytes)).collect();
            let held: usize = first.iter().map(Vec::len).sum();
            assert!(
                (all / 3 - bytes..=all / 3).contains(&(held * bytes)),
                "one user"
            );
            let second: Vec<_> = (2..9)
                .map(|uid| fill(&requests.share(User::Other(uid)), bytes))
                .collect();
            let others: usize = held + second.iter().map(Vec::len).sum::<usize>();
            assert_eq!(others * bytes, all / 2, "all other users");
            let own: Vec<_> = (0..4)
                .map(|_| fill(&requests.share(User::Own), bytes))
                .collect();
            let own: usize = own.iter().map(Vec::len).sum();
            assert_eq!(own * bytes, all / 2, "the reserve");
            assert_eq!(requests.used(), all);
        }
        assert_eq!(requests.used(), 0);
    }

    #[test]
    fn large_requests_leave_memory_for_small_ones_and_small_ones_for_large_ones() {
        let requests = Requests::new(16 * MIB);
        let shares = [(); 8].map(|()| requests.share(User::Own));
        for (bytes, other) in [(MIB, SMALL), (SMALL, MIB)] {
            let held: Vec<_> = shares.iter().map(|it| fill(it, bytes)).collect();
            assert!(fill(&shares[7], bytes).is_empty());
            assert!(!fill(&shares[7], other).is_empty());
            drop(held);
        }
    }

    #[test]
    fn a_request_that_becomes_large_gives_back_its_small_part() {
        let requests = Requests::new(16 * MIB);
        let share = requests.share(User::Other(1));
        let mut held = share.held();
        held.grow(SMALL).unwrap();
        assert_eq!(requests.all.used(), SMALL);
        held.grow(KIB).unwrap();
        assert_eq!((requests.all.used(), share.used()), (0, 0));
        assert_eq!(requests.used(), SMALL + KIB);
        drop(held);
        assert_eq!(requests.used(), 0);
    }
}
