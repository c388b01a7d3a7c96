//! The users of processes and files.

use std::fs;

use crate::platform::Peer;

/// A user that may connect.
pub type UserId = u32;

/// Root, who may always connect.
pub(crate) const ROOT: u32 = 0;

/// The file with the node's users. A user of a name service must be configured by number, because a name service may
/// not answer.
const USERS: &str = "/etc/passwd";

/// The user that criswitch runs as.
pub(crate) fn own() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether this user is root or the user that criswitch runs as. They may always connect.
pub(crate) fn is_own(uid: u32) -> bool {
    [ROOT, own()].contains(&uid)
}

/// The numbers of users.
pub(crate) fn uids(users: &[UserId]) -> &[u32] {
    users
}

/// Whether criswitch runs with all privileges.
pub fn is_privileged() -> bool {
    rustix::process::geteuid().is_root()
}

/// The number of the user with this name.
///
/// # Errors
/// The sentence that says where the name is missing.
pub(crate) fn number(name: &str) -> Result<u32, String> {
    let users = fs::read(USERS).unwrap_or_default();
    let users = String::from_utf8_lossy(&users);
    let uid = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
    });
    uid.ok_or_else(|| format!("{USERS} has no user {name:?}"))
}

impl Peer {
    /// Whether the process runs as root or as the user that criswitch runs as.
    pub(crate) fn is_own(&self) -> bool {
        self.uid.is_some_and(is_own)
    }
}
