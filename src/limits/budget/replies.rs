//! The memory for the replies of one backend, and its parts.

use criswitch_cri::rpc::Row;
use fnv::FnvHashMap;
use parking_lot::Mutex;

use super::{Budget, MESSAGES};
use crate::limits::places::User;

/// The memory has [`MESSAGES`] parts. Two kinds of replies may take this many parts each: all replies to users other
/// than root and criswitch's own user, and the large replies to calls of root that are not lists, such as `ExecSync`.
/// So two parts are left for lists of root, and for small replies.
const PARTS: usize = 3;
/// The divisor for the large replies to calls of users other than root and criswitch's own user that are not lists:
/// 1 / 2 of the memory of these users. The rest is left for their lists and small replies.
const LARGE: usize = 2;
/// The divisor for the memory that a single user other than root and criswitch's own user must leave to the rest of
/// these users: 1 / 4 of their memory of each kind.
const LEFT: usize = 4;

/// The memory for the replies of one backend.
#[derive(Debug)]
pub struct Replies {
    own: UserReplies,
    /// The part of all users except root and criswitch's own user.
    others: Budget,
    /// The memory that large replies to calls that are not lists may take of `others`. These replies also count in the
    /// part of their user.
    others_large: Budget,
    /// The parts of these users. Only users in `allow_uids` can connect, so these are few.
    users: Mutex<FnvHashMap<u32, UserReplies>>,
}

/// The memory for replies to some users.
#[derive(Clone, Debug)]
struct UserReplies {
    all: Budget,
    /// The part for replies to calls that are not lists.
    items: Budget,
}

impl UserReplies {
    /// Large replies that are not lists take memory of `large`.
    fn of(all: Budget, large: Budget) -> UserReplies {
        let items = all.part(all.limit(), Some(large));
        UserReplies { all, items }
    }
}

impl Replies {
    /// Memory for replies of at most `max_message` bytes each.
    pub fn new(max_message: usize) -> Replies {
        let all = Budget::for_messages(max_message);
        let part = all.limit() / MESSAGES * PARTS;
        let (others, large) = (all.part(part, None), all.part(part, None));
        Replies {
            others_large: Budget::of(others.limit() / LARGE),
            others,
            users: Mutex::default(),
            own: UserReplies::of(all, large),
        }
    }

    /// The memory for the reply to a call of the RPC in `row` by `user`.
    pub fn of(&self, user: User, row: &Row) -> Budget {
        let parts = match user {
            User::Own => self.own.clone(),
            User::Other(uid) => self
                .users
                .lock()
                .entry(uid)
                .or_insert_with(|| self.user())
                .clone(),
        };
        match row.list() {
            Some(_) => parts.all,
            None => parts.items,
        }
    }

    /// The part of one other user.
    fn user(&self) -> UserReplies {
        let most = |whole: &Budget| whole.limit() - whole.limit() / LEFT;
        let all = self.others.part(most(&self.others), None);
        let large = all.part_of_both(&self.others_large, most(&self.others_large));
        UserReplies::of(all, large)
    }

    /// All memory for replies.
    pub fn all(&self) -> &Budget {
        &self.own.all
    }
}

#[cfg(test)]
mod tests {
    use criswitch_cri::rpc::{LIST_PODS, POD_STATUS};

    use super::super::SMALL;
    use super::*;

    const OTHER: User = User::Other(1);

    #[test]
    fn a_largest_message_fits_after_all_replies_to_other_users_and_all_large_replies() {
        for max_message in [1, 16 << 20, 1 << 30] {
            let replies = Replies::new(max_message);
            let mut taken = Vec::new();
            for (user, row) in [(OTHER, &LIST_PODS), (User::Own, &POD_STATUS)] {
                for bytes in [max_message, SMALL + 1] {
                    let held = || {
                        let mut held = replies.of(user, row).held();
                        held.grow(bytes).ok()?;
                        Some(held)
                    };
                    taken.extend(std::iter::from_fn(held).take(10_000));
                }
            }
            let mut list = replies.of(User::Own, &LIST_PODS).held();
            assert!(list.grow(max_message).is_ok(), "{max_message}");
            let mut small = replies.of(User::Own, &POD_STATUS).held();
            assert!(small.grow(1).is_ok(), "{max_message}");
            drop((taken, list, small));
            assert_eq!(replies.all().used(), 0);
        }
    }

    #[test]
    fn no_other_user_takes_the_memory_of_another_one() {
        let replies = Replies::new(16 << 20);
        let mut taken = Vec::new();
        for (row, bytes) in [(&LIST_PODS, SMALL), (&POD_STATUS, SMALL + 1)] {
            let held = || {
                let mut held = replies.of(OTHER, row).held();
                held.grow(bytes).ok()?;
                Some(held)
            };
            taken.extend(std::iter::from_fn(held));
        }
        let used: usize = replies.all().used();
        assert!(used >= replies.others.limit() / 2, "{used}");
        for row in [&LIST_PODS, &POD_STATUS] {
            let mut held = replies.of(User::Other(2), row).held();
            assert!(held.grow(4 << 20).is_ok());
        }
        drop(taken);
    }

    #[test]
    fn a_largest_list_of_an_other_user_fits_with_a_rewritten_copy() {
        for max_message in [1, 16 << 20, 1 << 30] {
            let replies = Replies::new(max_message);
            let mut held = replies.of(OTHER, &LIST_PODS).held();
            assert!(held.grow(2 * max_message + (1 << 20)).is_ok());
        }
    }

    #[test]
    fn large_replies_to_other_users_leave_memory_for_their_lists() {
        for max_message in [1, 16 << 20, 1 << 30] {
            let replies = Replies::new(max_message);
            let mut taken = Vec::new();
            for user in 1..5 {
                let held = || {
                    let mut held = replies.of(User::Other(user), &POD_STATUS).held();
                    held.grow(max_message.max(SMALL + 1)).ok()?;
                    Some(held)
                };
                taken.extend(std::iter::from_fn(held).take(1000));
            }
            let mut list = replies.of(User::Other(5), &LIST_PODS).held();
            assert!(list.grow(max_message + (1 << 20)).is_ok(), "{max_message}");
        }
    }

    #[test]
    fn a_largest_message_of_each_kind_fits_for_each_user() {
        for max_message in [1, 16 << 20, 1 << 30] {
            let replies = Replies::new(max_message);
            for user in [User::Own, OTHER] {
                for row in [&LIST_PODS, &POD_STATUS] {
                    let mut held = replies.of(user, row).held();
                    assert!(held.grow(max_message + (1 << 20)).is_ok(), "{max_message}");
                }
            }
        }
    }
}
