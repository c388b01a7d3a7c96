//! A memory budget that connections share. When the budget is full, the user that holds the most loses one share: the
//! connection with the largest share of this user is closed. Root and criswitch's own user never lose a share to
//! another user.
//!
//! A reply counts here until its client has read it. Clients that read their replies hold little, so only a client that
//! leaves replies unread loses its share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Budget, Pool, Unread, Whole};
use crate::limits::places::User;

/// The divisor for all unread replies together: they may take 1 / 2 of a backend's budget for replies. The rest stays
/// free for replies that clients read.
const ALL: usize = 2;
/// The divisor for the unread replies of one connection: they may take 1 / 4 of a backend's budget for replies.
pub(super) const ONE: usize = 4;

/// The shared budget for replies that clients have not read yet.
#[derive(Clone, Debug)]
pub struct Shares(Arc<SharedMemory>);

#[derive(Debug)]
struct SharedMemory {
    all: Budget,
    /// The most bytes that one share may hold.
    one: usize,
    shares: Mutex<Vec<Weak<Pool>>>,
}

/// The additional fields of a [`Budget`] that is one connection's part of [`Shares`].
#[derive(Debug)]
pub(super) struct MemoryShare {
    of: Shares,
    user: User,
    /// Whether the share was revoked. The bytes of a revoked share no longer count in the shared budget.
    lost: AtomicBool,
    loses: Notify,
}

impl Shares {
    /// A shared budget for unread replies of at most `max_message` bytes each.
    pub fn for_unread(max_message: usize) -> Shares {
        let replies = Budget::for_messages(max_message).limit();
        Shares::of(replies / ALL, replies / ONE)
    }

    fn of(all: usize, one: usize) -> Shares {
        let (all, shares) = (Budget::of(all), Mutex::default());
        Shares(Arc::new(SharedMemory { all, one, shares }))
    }

    /// The share of a new connection of `user`.
    pub fn share(&self, user: User) -> Budget {
        let share = MemoryShare {
            of: self.clone(),
            user,
            lost: AtomicBool::new(false),
            loses: Notify::new(),
        };
        let memory = Budget::new(self.0.one, Whole::Shares(share), None);
        let mut shares = self.0.shares.lock();
        shares.retain(|room| room.strong_count() > 0);
        shares.push(Arc::downgrade(&memory.0));
        memory
    }

    /// The bytes that all shares together hold now.
    pub fn used(&self) -> usize {
        self.0.all.used()
    }

    /// The most bytes that all shares together may hold.
    pub fn limit(&self) -> usize {
        self.0.all.limit()
    }

    /// Orders all shares: shares of root and criswitch's own user come first, then shares of users that hold less come
    /// before those of users that hold more, then smaller shares come before larger ones. Revokes the last share other
    /// than `mine`, if it comes after `mine`. `mine` counts with `than` bytes. Returns whether a share was revoked. The
    /// connection of a revoked share is closed, and the bytes of the share count as free at once.
    fn revoke_largest(&self, mine: &Budget, than: usize) -> bool {
        let shares = self.0.shares.lock();
        let rooms = shares.iter().filter_map(Weak::upgrade).map(Budget);
        let is_mine = |one: &Budget| Arc::ptr_eq(&one.0, &mine.0);
        let held: Vec<_> = rooms
            .filter_map(|one| {
                let user = one.share().filter(|share| !share.is_lost())?.user;
                let used = if is_mine(&one) { than } else { one.used() };
                Some((one, user, used))
            })
            .collect();
        let order = |(_, user, used): &(Budget, User, usize)| {
            let its = held.iter().filter(|(_, of, _)| of == user);
            let of_user: usize = its.map(|(_, _, used)| used).sum();
            (user.is_other(), of_user, *used)
        };
        let own = held.iter().find(|(one, ..)| is_mine(one)).map(order);
        let later = held
            .iter()
            .filter(|(one, _, used)| !is_mine(one) && *used > 0)
            .filter(|other| Some(order(other)) > own);
        let Some((last, _, used)) = later.max_by_key(|other| order(other)) else {
            return false;
        };
        if let Some(share) = last.share() {
            share.revoke(*used);
        }
        true
    }
}

impl MemoryShare {
    /// Reserves `bytes` for `mine`, which already holds `used` bytes. If the shared budget is full, revokes larger
    /// shares.
    pub(super) fn take(&self, mine: &Budget, used: usize, bytes: usize) -> Result<(), Unread> {
        loop {
            if self.is_lost() {
                return Err(Unread::NoMemory(self.of.0.one));
            }
            match self.of.0.all.add(bytes) {
                Err(_) if self.of.revoke_largest(mine, used) => {}
                taken => return taken,
            }
        }
    }

    pub(super) fn give_back(&self, bytes: usize) {
        if !self.is_lost() {
            self.of.0.all.subtract(bytes);
        }
    }

    /// Revokes the share, which holds `used` bytes.
    fn revoke(&self, used: usize) {
        if !self.lost.swap(true, Ordering::Relaxed) {
            self.loses.notify_one();
            self.of.0.all.subtract(used);
        }
    }

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Budget {
    /// Waits until this share is revoked; for ever if the budget is not a share.
    pub(crate) async fn lost(&self) {
        match self.share() {
            Some(share) => share.loses.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Revokes this share, unless it belongs to root or criswitch's own user.
    pub(crate) fn lose(&self) {
        if let Some(share) = self.share().filter(|share| share.user.is_other()) {
            share.revoke(self.used());
        }
    }

    fn share(&self) -> Option<&MemoryShare> {
        match &self.0.whole {
            Whole::Shares(share) => Some(share),
            Whole::Itself | Whole::Budget(_) | Whole::Both(..) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::super::Reservation;
    use super::*;

    fn held(share: &Budget, bytes: usize) -> Result<Reservation, Unread> {
        let mut held = share.held();
        held.grow(bytes)?;
        Ok(held)
    }

    fn is_lost(share: &Budget) -> bool {
        share.lost().now_or_never().is_some()
    }

    #[test]
    fn one_share_has_room_for_a_largest_message_and_all_of_them_leave_room_for_several() {
        for max_message in [1, 16 << 20, 1 << 30] {
            let replies = Budget::for_messages(max_message).limit();
            let unread = Shares::for_unread(max_message);
            assert!(unread.share(User::Own).limit() > max_message);
            assert!(unread.share(User::Own).limit() < unread.limit());
            assert!(replies - unread.limit() >= 4 * max_message);
        }
    }

    #[test]
    fn a_share_is_limited_and_gives_back_to_the_whole() {
        let whole = Shares::of(100, 50);
        let share = whole.share(User::Own);
        let one = held(&share, 50).unwrap();
        assert!(matches!(held(&share, 1), Err(Unread::NoMemory(50))));
        assert_eq!(whole.used(), 50);
        drop(one);
        assert_eq!((whole.used(), share.used()), (0, 0));
    }

    #[test]
    fn a_full_memory_takes_the_largest_share_away() {
        let whole = Shares::of(100, 50);
        let [large, small, reads] = [(); 3].map(|()| whole.share(User::Own));
        let first = held(&large, 50).unwrap();
        let second = held(&small, 40).unwrap();
        let third = held(&reads, 20).unwrap();
        assert!(is_lost(&large) && !is_lost(&small) && !is_lost(&reads));
        assert_eq!(whole.used(), 60);
        // The revoked share reserves nothing more, and does not free its bytes twice.
        assert!(held(&large, 1).is_err());
        drop(first);
        assert_eq!(whole.used(), 60);
        drop((second, third));
        assert_eq!(whole.used(), 0);
    }

    #[test]
    fn a_share_takes_nothing_from_smaller_ones() {
        let whole = Shares::of(100, 50);
        let shares = [(); 3].map(|()| whole.share(User::Own));
        let all: Vec<_> = shares.iter().map(|one| held(one, 33).unwrap()).collect();
        assert!(matches!(held(&shares[0], 10), Err(Unread::NoMemory(100))));
        assert!(!shares.iter().any(is_lost));
        assert_eq!((whole.used(), shares[0].used()), (99, 33));
        // An empty share may revoke several larger shares.
        let reads = whole.share(User::Own);
        assert!(held(&reads, 50).is_ok());
        assert_eq!(shares.iter().filter(|one| is_lost(one)).count(), 2);
        drop(all);
        assert_eq!(whole.used(), 0);
    }

    #[test]
    fn any_number_of_slow_connections_leaves_room_for_one_that_reads() {
        let whole = Shares::of(1000, 500);
        let slow: Vec<_> = (0..100).map(|_| whole.share(User::Own)).collect();
        let mut kept = Vec::new();
        for share in &slow {
            kept.extend(std::iter::from_fn(|| held(share, 10).ok()).take(100));
        }
        for _ in 0..10 {
            assert!(held(&whole.share(User::Own), 500).is_ok());
        }
    }

    #[test]
    fn root_loses_no_share_to_another_user_and_takes_theirs() {
        let whole = Shares::of(100, 50);
        let (root, other) = (whole.share(User::Own), whole.share(User::Other(1)));
        let of_root = held(&root, 50).unwrap();
        let of_other = held(&other, 50).unwrap();
        let later = whole.share(User::Other(2));
        assert!(held(&later, 20).is_ok() && is_lost(&other) && !is_lost(&root));
        drop(of_other);
        let small = held(&later, 10).unwrap();
        let second = whole.share(User::Own);
        assert!(held(&second, 50).is_ok() && is_lost(&later) && !is_lost(&root));
        drop((of_root, small));
        assert_eq!(whole.used(), 0);
    }

    /// A user with many small shares does not take the larger share of a user that holds less.
    #[test]
    fn the_user_that_holds_the_most_loses() {
        let whole = Shares::of(100, 50);
        let many = [(); 7].map(|()| whole.share(User::Other(1)));
        let _small: Vec<_> = many.iter().map(|one| held(one, 10).unwrap()).collect();
        let reads = whole.share(User::Other(2));
        let _read = held(&reads, 30).unwrap();
        assert!(held(&whole.share(User::Other(1)), 10).is_ok());
        assert!(!is_lost(&reads));
        assert!(held(&reads, 20).is_ok());
        assert_eq!(many.iter().filter(|one| is_lost(one)).count(), 2);
    }
}
