//! Limits on what clients and backends may take.

pub mod budget;
pub mod flood;

use std::time::Duration;

/// Calls in flight at once, of all clients; a kubelet has a few for each pod at most. A reply that is all there and waits
/// to be read counts in memory instead.
pub const MAX_CALLS: usize = 4096;
/// How long a client may take to send a request, which is one message: clients that stop in the middle must not add up.
pub const REQUEST_LIMIT: Duration = Duration::from_secs(30);

/// Header lists up to this size pass, both ways: a 16 KiB `grpc-message` must.
pub const MAX_HEADERS: u32 = 1 << 20;
/// What one stream may have under way unread, in bytes. A stream that its client does not read holds that much here, so
/// it is reserved for each.
pub const STREAM_WINDOW: u32 = 1 << 16;
/// What all streams of a connection may have: as much as all calls together, so that unread streams never hold up
/// another. h2 derives from it how many tiny frames it keeps unread, so it is no larger than that.
pub const CONNECTION_WINDOW: u32 = STREAM_WINDOW * MAX_CALLS as u32;
