//! Users. Windows identifies a user or group by a SID.

use std::fmt;

use serde::{Serialize, Serializer};
use winsafe::{ConvertSidToStringSid, HPROCESS, SID, TokenInfo, co};

use crate::{Peer, Server};

/// The most numbers in a SID after `S-1-`: the authority and its 15 parts.
const MOST_NUMBERS: usize = 16;
/// The user of services, and the group of the administrators.
const SYSTEM: &str = "S-1-5-18";
const ADMINISTRATORS: &str = "S-1-5-32-544";

/// A user or group: a security identifier such as `S-1-5-32-544`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sid {
    numbers: [u64; MOST_NUMBERS],
    /// How many of the numbers the SID has.
    count: usize,
}

/// A user that may connect, or that serves a pipe.
pub type UserId = Sid;

/// The configuration key with the users that may connect.
pub const KEY: &str = "allow_sids";
/// The default value of [`KEY`].
pub const DEFAULT: &str = "[]";
/// An example value of [`KEY`].
pub const EXAMPLE: &str = "[\"S-1-5-32-544\"]";
/// The description of [`KEY`].
pub const HELP: &str = "The SIDs of users and groups that may connect, in addition to SYSTEM and the \
    administrators. A user that may connect has the power of an administrator on this node: pods can be privileged.";
/// Whether the users in the configuration are integers, not strings.
pub const ARE_INTEGERS: bool = false;
/// The words of the error about an invalid user.
pub const A_USER_ID: &str = "a security identifier (SID)";
/// The hint in the error about an invalid user.
pub const USER_ID_HINT: &str = "\"S-1-5-32-544\"";

/// The users that may connect if no file has [`KEY`].
pub fn by_default() -> Vec<UserId> {
    Vec::new()
}

/// A user that may connect.
pub fn allowed(text: &str) -> Option<UserId> {
    Sid::parse(text)
}

/// The number of an administrator, for tests of the limits on users. Windows itself has no numbers of users.
pub const ROOT: u32 = 0;

/// The number of the user that criswitch runs as, for the same tests.
pub fn own() -> u32 {
    ROOT
}

impl Sid {
    /// Reads `S-1-` and numbers with dashes between them.
    pub fn parse(text: &str) -> Option<Sid> {
        let mut numbers = [0; MOST_NUMBERS];
        let mut count = 0;
        for part in text.strip_prefix("S-1-")?.split('-') {
            let is_number = part.bytes().all(|byte| byte.is_ascii_digit());
            *numbers.get_mut(count)? = part.parse().ok().filter(|_| is_number)?;
            count += 1;
        }
        (count > 1).then_some(Sid { numbers, count })
    }

    fn of(sid: &SID) -> Option<Sid> {
        Sid::parse(&ConvertSidToStringSid(sid).ok()?)
    }
}

impl Serialize for Sid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A string in quotes, as in a configuration file.
impl fmt::Debug for Sid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl fmt::Display for Sid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("S-1")?;
        self.numbers
            .iter()
            .take(self.count)
            .try_for_each(|number| write!(f, "-{number}"))
    }
}

/// Whether a client with this number may always connect. Windows reports no number.
pub fn is_own(uid: u32) -> bool {
    uid == 0
}

/// The numbers of users. Windows has none: the pipe's security descriptor admits the users.
pub fn uids(_: &[UserId]) -> &[u32] {
    &[]
}

/// Whether users other than SYSTEM and the administrators may connect.
pub fn has_others(allowed: &[UserId]) -> bool {
    !allowed.is_empty()
}

/// Whether criswitch runs with all privileges. Unknown, so messages suggest nothing.
pub fn is_privileged() -> bool {
    true
}

/// The user with this name: `None`, because a user is configured by its SID.
pub fn named(_: &str) -> Option<Result<UserId, (String, &'static str)>> {
    None
}

/// Whether this is the id of every user without an id of its own: false, because Windows has no such id.
pub fn is_unmapped(_: UserId) -> bool {
    false
}

/// The user as a field of the log.
pub fn logged(user: UserId) -> impl tracing::Value {
    tracing::field::display(user)
}

/// An example of the user of a backend.
pub const BACKEND_EXAMPLE: &str = "\"S-1-5-19\"";
/// The description of the key `user` of a backend.
pub const BACKEND_HELP: &str = "The security identifier (SID) of the user whose process serves the pipe. \
    criswitch warns about a process of any other user, except SYSTEM, administrators and the user of criswitch.";

impl Server {
    /// The process with this id. Its user is unknown if criswitch may not examine the process.
    pub(super) fn with_id(pid: u32) -> Server {
        let process = HPROCESS::OpenProcess(co::PROCESS::QUERY_LIMITED_INFORMATION, false, pid);
        let users = process.ok().and_then(|process| Users::of(&process));
        let own = Users::of(&HPROCESS::GetCurrentProcess()).map(|own| own.user);
        Server {
            user: users.as_ref().map(|users| users.user),
            pid: Some(pid.cast_signed()),
            is_own: users.is_some_and(|users| users.is_own(own)),
        }
    }
}

/// The users of a process.
struct Users {
    user: Sid,
    /// The owner of the objects that the process creates. For a process with the privileges of an administrator, this
    /// is the group of the administrators.
    owner: Option<Sid>,
}

impl Users {
    fn of(process: &HPROCESS) -> Option<Users> {
        let token = process.OpenProcessToken(co::TOKEN::QUERY).ok()?;
        let user = token.GetTokenInformation(co::TOKEN_INFORMATION_CLASS::User);
        let owner = token.GetTokenInformation(co::TOKEN_INFORMATION_CLASS::Owner);
        let TokenInfo::User(user) = user.ok()? else {
            return None;
        };
        let owner = match owner {
            Ok(TokenInfo::Owner(owner)) => owner.Owner().and_then(|owner| Sid::of(owner)),
            _ => None,
        };
        let user = Sid::of(user.User.Sid()?)?;
        Some(Users { user, owner })
    }

    /// Whether the process is SYSTEM's or an administrator's, or runs as the user `own`.
    fn is_own(&self, own: Option<Sid>) -> bool {
        let user = Some(self.user);
        user == own || user == Sid::parse(SYSTEM) || self.owner == Sid::parse(ADMINISTRATORS)
    }
}

impl Peer {
    /// Whether the client counts as an administrator. A client whose user is unknown counts too, because the pipe's
    /// security descriptor has admitted the client.
    pub fn is_own(&self) -> bool {
        self.uid.is_none_or(is_own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sid_has_numbers_only() {
        for text in ["S-1-5-18", "S-1-5-32-544", "S-1-5-21-1-2-3-1000"] {
            assert_eq!(Sid::parse(text).unwrap().to_string(), text);
        }
        for text in [
            "",
            "S-1-",
            "S-1-5",
            "BA",
            "S-1-5-18)(A;;GA;;;WD",
            "S-1-5-+1",
            "S-1-5-",
        ] {
            assert_eq!(Sid::parse(text), None, "{text}");
        }
        let longest = "S-1".to_owned() + &"-1".repeat(MOST_NUMBERS);
        assert_eq!(Sid::parse(&longest).unwrap().to_string(), longest);
        assert_eq!(Sid::parse(&(longest + "-1")), None);
    }

    #[test]
    fn a_server_of_the_system_of_an_administrator_or_of_criswitchs_user_is_expected() {
        let sid = |text| Sid::parse(text).unwrap();
        let (own, other) = (sid("S-1-5-21-1-2-3-1000"), sid("S-1-5-21-1-2-3-1001"));
        let is_own = |user, owner| Users { user, owner }.is_own(Some(own));
        assert!(is_own(sid(SYSTEM), None));
        assert!(is_own(own, Some(own)));
        assert!(is_own(other, Some(sid(ADMINISTRATORS))));
        assert!(!is_own(other, Some(other)));
        assert!(!is_own(other, None));
    }

    #[test]
    fn the_user_of_this_process_is_known_and_expected() {
        let server = Server::with_id(std::process::id());
        assert!(server.user.is_some() && server.is_own, "{server:?}");
        let none = Server::with_id(u32::MAX);
        assert!(none.user.is_none() && !none.is_own, "{none:?}");
    }
}
