//! Limits on the connections, calls, memory and HTTP/2 frames of clients and backends.

pub mod budget;
pub mod flood;
pub mod incoming;
pub mod places;
pub mod streams;

use std::time::Duration;

/// The most calls of all clients in flight at once. A kubelet has at most a few for each pod. A call whose complete
/// reply waits for its client does not count here: the reply counts as memory instead.
pub const MAX_CALLS: usize = 4096;
/// How many of [`MAX_CALLS`] are reserved for short calls: long calls, such as streams, never block lists or the start
/// and end of pods.
pub const RESERVED_CALLS: usize = 1024;
/// The most calls in flight at once of all users together, except root and criswitch's own user. So calls of other
/// users never block the kubelet.
pub const OTHERS_CALLS: usize = 2048;
/// The most calls in flight at once of each user other than root and criswitch's own user. So no user takes all of
/// [`OTHERS_CALLS`].
pub const USER_CALLS: usize = 1024;
/// The most streams of events at once of each user other than root and criswitch's own user. The queue of each stream
/// takes memory that no budget counts.
pub const USER_SUBSCRIBERS: usize = 16;
/// The most connections of clients at once. The kubelet has two connections, and crictl two for each command.
pub const MAX_CONNECTIONS: usize = 256;
/// The limit on client connections that end with a GOAWAY because a new client has taken their place.
pub const LEAVING_CONNECTIONS: usize = 32;
/// How many of [`MAX_CONNECTIONS`] are reserved for root and the user that criswitch runs as: other users never block
/// the kubelet.
pub const RESERVED_CONNECTIONS: usize = 64;
/// The most connections at once of each user other than root and criswitch's own user.
pub const USER_CONNECTIONS: usize = 64;
/// The most calls of the admin service in flight at once, of all clients. A `WatchState` stream is one call.
pub const MAX_ADMIN_CALLS: usize = 64;
/// The most calls of the admin service in flight at once of all users together, except root and criswitch's own user.
/// So calls of other users never block root's commands.
pub const OTHERS_ADMIN_CALLS: usize = 32;
/// The most calls of the admin service in flight at once of each of these users.
pub const USER_ADMIN_CALLS: usize = 16;
/// The largest request of the admin service, in bytes.
pub const MAX_ADMIN_REQUEST: usize = 64 << 10;
/// How long a call of the admin service may take until the first message of its reply.
pub const ADMIN_LIMIT: Duration = Duration::from_secs(30);
/// The largest message on which criswitch works without a pause, in bytes. Reading a list of 16 MiB takes 56 ms,
/// learning it 20 ms, and merging it about as long (`cargo bench --bench calls`).
const WITHOUT_PAUSE: usize = 1 << 20;
/// How long a client may take to send its request message. Without this limit, stalled requests would add up until
/// criswitch rejects all calls.
pub const REQUEST_LIMIT: Duration = Duration::from_secs(30);

/// The largest size of the headers of a backend's reply, and of its trailers, in bytes. A `grpc-message` of 16 KiB must
/// fit.
pub const REPLY_HEADERS: u32 = 1 << 20;
/// The largest size of the headers of a client's request, and of its trailers, in bytes. Each connection may hold one
/// unfinished header list, which no memory limit counts, and those of a few calls that it is just beginning
/// ([`flood::Unaccepted`]). 250 connections with unfinished lists took 71 MiB.
pub const REQUEST_HEADERS: u32 = 1 << 16;
/// The HTTP/2 window of one stream: the most unread bytes in flight. criswitch reserves this much memory for each
/// streamed list that it passes on, because a client may leave a full window unread. No message of a streamed merged
/// list is larger, unless a single item is larger.
pub const STREAM_WINDOW: u32 = 1 << 16;
/// The HTTP/2 window of all streams of a connection together, in bytes. A full window of every call fits, so that
/// unread streams never block another stream. The window is no larger than that, because h2 derives from this window
/// how many tiny unread frames h2 stores.
pub const CONNECTION_WINDOW: u32 = STREAM_WINDOW * MAX_CALLS as u32;

/// Lets other calls go first if work on a large `message` is next.
pub(crate) async fn give_way(message: &[u8]) {
    if message.len() > WITHOUT_PAUSE {
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[tokio::test]
    async fn only_work_on_a_large_message_lets_other_work_go_first() {
        for (size, order) in [
            (WITHOUT_PAUSE, ["message", "other"]),
            (WITHOUT_PAUSE + 1, ["other", "message"]),
        ] {
            let done = RefCell::new(Vec::new());
            let message = async {
                give_way(&vec![0; size]).await;
                done.borrow_mut().push("message");
            };
            tokio::join!(message, async { done.borrow_mut().push("other") });
            assert_eq!(*done.borrow(), order);
        }
    }
}
