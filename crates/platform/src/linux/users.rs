//! The users of processes and files.

use std::fs;

use crate::Peer;

/// A user that may connect.
pub type UserId = u32;

/// The configuration key with the users that may connect.
pub const KEY: &str = "allow_uids";
/// The default value of [`KEY`].
pub const DEFAULT: &str = "[0]";
/// An example value of [`KEY`].
pub const EXAMPLE: &str = "";
/// The description of [`KEY`].
pub const HELP: &str = "The numeric ids of users that may connect, in addition to root and the user of \
    criswitch. Such a user has the power of root on this node: pods can be privileged. docs/security.md says how \
    criswitch keeps other users out. If systemd holds the socket, add a drop-in for criswitch.socket (docs/operations.md).";
/// Whether the users in the configuration are integers, not strings.
pub const ARE_INTEGERS: bool = true;
/// The words of the error about an invalid user.
pub const A_USER_ID: &str = "a user id";
/// The hint in the error about an invalid user.
pub const USER_ID_HINT: &str = "0 to 4294967294";

/// The users that may connect if no file has [`KEY`].
pub fn by_default() -> Vec<UserId> {
    vec![ROOT]
}

/// A user that may connect. The largest number is not a user: chown(2) takes it for "no change".
pub fn allowed(text: &str) -> Option<UserId> {
    text.parse().ok().filter(|uid| *uid != u32::MAX)
}

/// Whether this is the id that the kernel shows for every user without an id in this user namespace.
pub fn is_unmapped(user: UserId) -> bool {
    user == 65534
}

/// The user as a field of the log.
pub fn logged(user: UserId) -> impl tracing::Value {
    user
}

/// An example of the user of a backend.
pub const BACKEND_EXAMPLE: &str = "\"1000\"";
/// The description of the key `user` of a backend.
pub const BACKEND_HELP: &str = "The user (a name of `/etc/passwd` or a number) whose process serves the socket. \
    criswitch warns about a process of any other user, except root and the user of criswitch.";

/// Root, who may always connect.
pub const ROOT: u32 = 0;

/// The file with the node's users. A user of a name service must be configured by number, because a name service may
/// not answer.
const USERS: &str = "/etc/passwd";

/// The user that criswitch runs as.
pub fn own() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether this user is root or the user that criswitch runs as. They may always connect.
pub fn is_own(uid: u32) -> bool {
    [ROOT, own()].contains(&uid)
}

/// The numbers of users.
pub fn uids(users: &[UserId]) -> &[u32] {
    users
}

/// Whether users other than root may connect.
pub fn has_others(allowed: &[UserId]) -> bool {
    allowed.iter().any(|uid| *uid != ROOT)
}

/// Whether criswitch runs with all privileges.
pub fn is_privileged() -> bool {
    rustix::process::geteuid().is_root()
}

/// The user with this name, or what is wrong and a hint. `None` if the text is a number.
pub fn named(name: &str) -> Option<Result<UserId, (String, &'static str)>> {
    if name.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let users = fs::read(USERS).unwrap_or_default();
    let users = String::from_utf8_lossy(&users);
    let uid = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
    });
    let hint = "the user's number, such as \"1000\"";
    Some(uid.ok_or_else(|| (format!("{USERS} has no user {name:?}"), hint)))
}

impl Peer {
    /// Whether the process runs as root or as the user that criswitch runs as.
    pub fn is_own(&self) -> bool {
        self.uid.is_some_and(is_own)
    }
}
