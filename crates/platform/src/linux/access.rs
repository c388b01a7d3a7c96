//! Reads and sets the access to a socket's file: its mode and its POSIX ACL (`acl(5)`).
//!
//! A user needs write permission on the file to connect. criswitch checks the user of a connection only after the
//! connection has taken a slot in the socket's queue. So only the kernel can keep other users from filling the queue.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;

/// The extended attribute that holds a file's ACL.
const ATTRIBUTE: &str = "system.posix_acl_access";
/// The version of the attribute's format.
const VERSION: u32 = 2;
/// The largest value of an extended attribute in Linux, in bytes.
const MAX_ATTRIBUTE: usize = 64 << 10;

/// The kinds (tags) of ACL entries.
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;
/// The content of the id field in an entry for no particular user or group.
const NO_ID: u32 = u32::MAX;

const NOTHING: u16 = 0;
const READ_WRITE: u16 = 0o6;
const WRITE: u16 = 0o2;
/// The write permissions in a file's mode.
const OWNER_WRITES: u32 = 0o200;
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;

/// The mode of a socket that every user may connect to, if the file system has no ACLs.
const EVERY_USER: u32 = 0o666;

/// An entry of an ACL: its kind, permissions and id.
type AclEntry = (u16, u16, u32);

/// The users that may connect to a socket, besides root.
#[derive(Debug, Default, PartialEq)]
pub(super) struct AllowedUsers {
    pub(super) users: Vec<u32>,
    /// Whether a group may connect.
    pub(super) groups: bool,
    pub(super) every_user: bool,
}

/// A socket's file, opened with `O_PATH`. All changes go to this file, even if a different file is at its path by now.
pub(super) struct Handle {
    file: rustix::fd::OwnedFd,
}

impl Handle {
    pub(super) fn open(socket: &Path) -> io::Result<Handle> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(socket, flags, Mode::empty())?;
        let handle = Handle { file };
        if fs::metadata(handle.path())?.file_type().is_socket() {
            Ok(handle)
        } else {
            Err(io::Error::other("a different file has replaced it"))
        }
    }

    /// Sets the mode, regardless of the umask.
    pub(super) fn set_mode(&self, mode: u32) -> io::Result<()> {
        fs::set_permissions(self.path(), Permissions::from_mode(mode))
    }

    /// Lets the owner and `uids` connect. If the ACL cannot be set, logs a warning and lets all users connect.
    pub(super) fn allow(&self, uids: &[u32]) -> io::Result<()> {
        let acl = encode(uids);
        let set = rustix::fs::setxattr(self.path(), ATTRIBUTE, &acl, XattrFlags::empty());
        let Err(error) = set else {
            return Ok(());
        };
        tracing::warn!(
            %error,
            "cannot set an ACL on the socket, so its mode is 0666: criswitch closes connections of users outside \
             `allow_uids`, but these users can fill the socket's queue, and then no client can connect (EAGAIN); try a \
             `listen` on a file system with ACLs, such as a tmpfs"
        );
        self.set_mode(EVERY_USER)
    }

    fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }
}

impl AllowedUsers {
    /// Reads which users may connect to the socket at `path`.
    pub(super) fn of(path: &Path) -> io::Result<AllowedUsers> {
        let found = fs::metadata(path)?;
        let mut acl = vec![0; MAX_ATTRIBUTE];
        let entries = match rustix::fs::getxattr(path, ATTRIBUTE, &mut acl[..]) {
            Ok(length) => decode(acl.get(..length).unwrap_or_default()),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        Ok(AllowedUsers::new(found.uid(), found.mode(), &entries))
    }

    fn new(owner: u32, mode: u32, entries: &[AclEntry]) -> AllowedUsers {
        let mask = entries
            .iter()
            .find(|(tag, ..)| *tag == MASK)
            .map_or(READ_WRITE, |(_, mask, _)| *mask);
        let mut users = Vec::from_iter((mode & OWNER_WRITES != 0).then_some(owner));
        // If the file has an ACL, the group bits of its mode hold the mask of the ACL instead of group permissions.
        let mut groups = entries.is_empty() && mode & GROUP_WRITES != 0;
        for (tag, permissions, id) in entries {
            match *tag {
                _ if permissions & mask & WRITE == 0 => {}
                USER => users.push(*id),
                OWNING_GROUP | GROUP => groups = true,
                _ => {}
            }
        }
        AllowedUsers {
            users,
            groups,
            every_user: mode & OTHERS_WRITE != 0,
        }
    }
}

/// Encodes an ACL that lets the owner and `uids` connect. The kernel requires this order of the entries: owner, users,
/// owning group, mask, others. Each user has only one entry.
fn encode(uids: &[u32]) -> Vec<u8> {
    let mut uids = uids.to_vec();
    uids.sort_unstable();
    uids.dedup();
    let users = uids.into_iter().map(|uid| (USER, READ_WRITE, uid));
    let rest = [
        (OWNING_GROUP, NOTHING, NO_ID),
        (MASK, READ_WRITE, NO_ID),
        (OTHERS, NOTHING, NO_ID),
    ];
    let owner = [(OWNER, READ_WRITE, NO_ID)].into_iter();
    let mut acl = VERSION.to_le_bytes().to_vec();
    for (tag, permissions, id) in owner.chain(users).chain(rest) {
        acl.extend(tag.to_le_bytes());
        acl.extend(permissions.to_le_bytes());
        acl.extend(id.to_le_bytes());
    }
    acl
}

fn decode(acl: &[u8]) -> Vec<AclEntry> {
    let entries = acl.get(size_of_val(&VERSION)..).unwrap_or_default();
    let (entries, _) = entries.as_chunks::<8>();
    entries
        .iter()
        .map(|entry| {
            let [t0, t1, p0, p1, id @ ..] = *entry;
            let (tag, permissions) = (u16::from_le_bytes([t0, t1]), u16::from_le_bytes([p0, p1]));
            (tag, permissions, u32::from_le_bytes(id))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: u32 = 0;

    #[test]
    fn an_acl_has_each_user_once_between_the_owner_and_the_group() {
        let acl = encode(&[1000, 0, 1000]);
        assert_eq!(
            acl.get(..12).unwrap(),
            b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff"
        );
        let expected = [
            (OWNER, READ_WRITE, NO_ID),
            (USER, READ_WRITE, 0),
            (USER, READ_WRITE, 1000),
            (OWNING_GROUP, NOTHING, NO_ID),
            (MASK, READ_WRITE, NO_ID),
            (OTHERS, NOTHING, NO_ID),
        ];
        assert_eq!(decode(&acl), expected);
        let access = AllowedUsers::new(ROOT, 0o660, &expected);
        assert_eq!(access.users, [ROOT, 0, 1000]);
        assert!(!access.groups && !access.every_user);
    }

    #[test]
    fn the_mask_of_an_acl_limits_users_and_groups() {
        let entries = |mask| {
            [
                (USER, READ_WRITE, 7),
                (GROUP, WRITE, 8),
                (MASK, mask, NO_ID),
            ]
        };
        let open = AllowedUsers::new(ROOT, 0o660, &entries(WRITE));
        assert_eq!((open.users, open.groups), (vec![ROOT, 7], true));
        let closed = AllowedUsers::new(ROOT, 0o640, &entries(0o4));
        assert_eq!((closed.users, closed.groups), (vec![ROOT], false));
    }

    #[test]
    fn without_an_acl_the_mode_decides_which_users_may_connect() {
        let access = |mode| {
            let access = AllowedUsers::new(ROOT, mode, &[]);
            (access.users.len(), access.groups, access.every_user)
        };
        assert_eq!(access(0o600), (1, false, false));
        assert_eq!(access(0o644), (1, false, false));
        assert_eq!(access(0o660), (1, true, false));
        assert_eq!(access(0o606), (1, false, true));
        assert_eq!(access(0o400), (0, false, false));
    }
}
