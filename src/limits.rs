//! Limits on what clients and backends may take.

pub mod budget;
pub mod flood;
pub mod places;

use std::time::Duration;

/// Calls in flight at once, of all clients; a kubelet has a few for each pod at most. A reply that is all there and waits
/// to be read counts in memory instead.
pub const MAX_CALLS: usize = 4096;
/// How many of these are reserved for short calls: calls that last as long as their clients like never keep lists and
/// the start and end of pods out.
pub const RESERVED_CALLS: usize = 1024;
/// Calls in flight at once of all users other than root and criswitch's own: they never keep the kubelet out.
pub const OTHERS_CALLS: usize = 2048;
/// Connections of clients at once; the kubelet has two, crictl two for each command.
pub const MAX_CONNECTIONS: usize = 256;
/// How many of them are reserved for root and the user that criswitch runs as: other users never keep the kubelet out.
pub const RESERVED_CONNECTIONS: usize = 64;
/// Connections at once of each other user.
pub const USER_CONNECTIONS: usize = 64;
/// Calls of the admin service in flight at once, of all clients: each watched state is one.
pub const MAX_ADMIN_CALLS: usize = 64;
/// Those of all users other than root and criswitch's own: they never keep root's commands out.
pub const OTHERS_ADMIN_CALLS: usize = 32;
/// The bytes of a request of the admin service.
pub const MAX_ADMIN_REQUEST: usize = 64 << 10;
/// How long a call of the admin service may take until the first message of its reply.
pub const ADMIN_LIMIT: Duration = Duration::from_secs(30);
/// How long a client may take to send a request, which is one message: clients that stop in the middle must not add up.
pub const REQUEST_LIMIT: Duration = Duration::from_secs(30);

/// The largest headers, and the largest trailers, of a backend's reply: a `grpc-message` of 16 KiB must pass.
pub const REPLY_HEADERS: u32 = 1 << 20;
/// The largest headers, and the largest trailers, of a client's request. Each connection may keep such a list unfinished,
/// which counts in no memory: 250 of them took 71 MiB.
pub const REQUEST_HEADERS: u32 = 1 << 16;
/// What one stream may have under way unread, in bytes. A stream that its client does not read holds that much here, so
/// it is reserved for each.
pub const STREAM_WINDOW: u32 = 1 << 16;
/// What all streams of a connection may have: as much as all calls together, so that unread streams never hold up
/// another. h2 derives from it how many tiny frames it keeps unread, so it is no larger than that.
pub const CONNECTION_WINDOW: u32 = STREAM_WINDOW * MAX_CALLS as u32;
