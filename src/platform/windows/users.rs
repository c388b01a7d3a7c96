//! Users. Windows identifies a user or group by a SID.

use std::fmt;

use crate::platform::Peer;

/// A user or group that may connect: a security identifier such as `S-1-5-32-544`.
#[derive(Clone, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Sid(String);

/// A user that may connect.
pub type UserId = Sid;

/// The configuration key with the users that may connect, its default, an example, and its description.
pub const KEY: &str = "allow_sids";
pub(crate) const DEFAULT: &str = "[]";
pub(crate) const EXAMPLE: &str = "[\"S-1-5-32-544\"]";
pub(crate) const HELP: &str = "The SIDs of users and groups that may connect, in addition to SYSTEM and the \
    administrators. A user that may connect has the power of an administrator on this node: pods can be privileged.";
/// Whether the users in the configuration are integers, not strings.
pub(crate) const ARE_INTEGERS: bool = false;
/// The words of the error about an invalid user, and its hint.
pub(crate) const A_USER_ID: &str = "a security identifier (SID)";
pub(crate) const USER_ID_HINT: &str = "\"S-1-5-32-544\"";

/// The users that may connect if no file has [`KEY`].
pub(crate) fn by_default() -> Vec<UserId> {
    Vec::new()
}

/// A user that may connect.
pub(crate) fn allowed(text: &str) -> Option<UserId> {
    Sid::parse(text)
}

/// The number of an administrator, for tests of the limits on users. Windows itself has no numbers of users.
#[cfg(test)]
pub(crate) const ROOT: u32 = 0;

/// The number of the user that criswitch runs as, for the same tests.
#[cfg(test)]
pub(crate) fn own() -> u32 {
    ROOT
}

impl Sid {
    /// Reads `S-1-` and numbers with dashes between them.
    pub(crate) fn parse(text: &str) -> Option<Sid> {
        let mut parts = text.strip_prefix("S-1-")?.split('-');
        let is_number = |part: &str| part.parse::<u64>().is_ok() && !part.starts_with('+');
        let is_sid = (2..=16).contains(&parts.clone().count()) && parts.all(is_number);
        is_sid.then(|| Sid(text.to_owned()))
    }
}

/// A string in quotes, as in a configuration file.
impl fmt::Debug for Sid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Sid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a user with this number may always connect. Windows reports no number.
pub(crate) fn is_own(uid: u32) -> bool {
    uid == 0
}

/// The numbers of users. Windows has none: the pipe's security descriptor admits the users.
pub(crate) fn uids(_: &[UserId]) -> &[u32] {
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

/// The number of the user with this name.
///
/// # Errors
/// Always: Windows has no numbers of users.
pub(crate) fn number(_: &str) -> Result<u32, (String, &'static str)> {
    let what = "Windows does not report the user of a pipe's server";
    Err((what.to_owned(), "removing the key"))
}

impl Peer {
    /// Whether the client counts as an administrator. Every client does whose user is unknown: the pipe's security
    /// descriptor has admitted it.
    pub(crate) fn is_own(&self) -> bool {
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
        ] {
            assert_eq!(Sid::parse(text), None, "{text}");
        }
    }
}
