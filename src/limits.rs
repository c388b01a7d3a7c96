//! Limits on what clients and backends may use.

pub mod budget;
pub mod flood;
pub mod places;

use std::time::Duration;

/// Calls in flight at once, of all clients; a kubelet has at most a few for each pod. A reply that is complete and
/// waits for its client counts as memory instead.
pub const MAX_CALLS: usize = 4096;
/// Calls reserved for short calls, out of [`MAX_CALLS`]: long calls such as streams never block lists or the start and
/// end of pods.
pub const RESERVED_CALLS: usize = 1024;
/// Calls in flight at once of all users other than root and criswitch's own: they never block the kubelet.
pub const OTHERS_CALLS: usize = 2048;
/// Connections of clients at once; the kubelet has two, crictl two for each command.
pub const MAX_CONNECTIONS: usize = 256;
/// Connections reserved for root and the user that criswitch runs as: other users never block the kubelet.
pub const RESERVED_CONNECTIONS: usize = 64;
/// Connections at once of each other user.
pub const USER_CONNECTIONS: usize = 64;
/// Calls of the admin service in flight at once, of all clients. A `WatchState` is one call.
pub const MAX_ADMIN_CALLS: usize = 64;
/// Admin calls of all users other than root and criswitch's own: they never block root's commands.
pub const OTHERS_ADMIN_CALLS: usize = 32;
/// The largest request of the admin service, in bytes.
pub const MAX_ADMIN_REQUEST: usize = 64 << 10;
/// How long a call of the admin service may take until the first message of its reply.
pub const ADMIN_LIMIT: Duration = Duration::from_secs(30);
/// How long a client may take to send a request, which is one message: stalled clients must not add up.
pub const REQUEST_LIMIT: Duration = Duration::from_secs(30);

/// The largest headers, and the largest trailers, of a backend's reply: a `grpc-message` of 16 KiB must pass.
pub const REPLY_HEADERS: u32 = 1 << 20;
/// The largest headers, and the largest trailers, of a client's request. A connection may keep an unfinished header
/// list, which no memory limit counts: 250 of them took 71 MiB.
pub const REQUEST_HEADERS: u32 = 1 << 16;
/// The unread bytes that one stream may have in flight. criswitch reserves as much for each stream, since a stream that
/// its client does not read holds it.
pub const STREAM_WINDOW: u32 = 1 << 16;
/// The unread bytes of all streams of a connection: enough for every call, so that unread streams never block another.
/// h2 derives from this window how many tiny frames it keeps unread, so the window is no larger.
pub const CONNECTION_WINDOW: u32 = STREAM_WINDOW * MAX_CALLS as u32;
