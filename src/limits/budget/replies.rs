//! The memory for the replies of one backend, and its parts.

use criswitch_cri::rpc::Row;

use super::{Budget, MESSAGES};
use crate::limits::places::User;

/// How many of [`MESSAGES`] parts of the memory two kinds of replies may take: all replies to users other than root and
/// criswitch's own user, and the large replies to calls that are not lists, such as `ExecSync`. So two parts are left
/// for lists of root, and for small replies.
const PARTS: usize = 3;

/// The memory for the replies of one backend.
#[derive(Debug)]
pub struct Replies {
    own: UserReplies,
    others: UserReplies,
}

/// The memory for replies to some users.
#[derive(Debug)]
struct UserReplies {
    all: Budget,
    /// The part of calls that are not lists.
    items: Budget,
}

fn part(all: &Budget) -> usize {
    all.limit() / MESSAGES * PARTS
}

impl UserReplies {
    fn of(all: Budget) -> UserReplies {
        let large = all.part(part(&all), None);
        let items = all.part(all.limit(), Some(large));
        UserReplies { all, items }
    }
}

impl Replies {
    /// Memory for replies of at most `max_message` bytes each.
    pub fn new(max_message: usize) -> Replies {
        let all = Budget::for_messages(max_message);
        let others = all.part(part(&all), None);
        Replies {
            own: UserReplies::of(all),
            others: UserReplies::of(others),
        }
    }

    /// The memory for the reply to a call of the RPC in `row` by `user`.
    pub fn of(&self, user: User, row: &Row) -> &Budget {
        let parts = match user {
            User::Own => &self.own,
            User::Other(_) => &self.others,
        };
        match row.list() {
            Some(_) => &parts.all,
            None => &parts.items,
        }
    }

    /// All memory for replies.
    pub fn all(&self) -> &Budget {
        &self.own.all
    }
}

#[cfg(test)]
mod tests {
    use criswitch_cri::rpc::{LIST_PODS, POD_STATUS};

    use super::*;

    const OTHER: User = User::Other(1);

    #[test]
    fn a_largest_message_fits_after_all_replies_to_other_users_and_all_large_replies() {
        for max_message in [1, 16 << 20, 1 << 30] {
            let replies = Replies::new(max_message);
            let mut taken = Vec::new();
            for (user, row) in [(OTHER, &LIST_PODS), (User::Own, &POD_STATUS)] {
                for bytes in [max_message, super::super::SMALL + 1] {
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
