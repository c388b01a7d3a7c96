//! A list without an end: unary as one message of 4 GiB, streamed as endless containers.
//!
//! A loop in a runtime's store can cause such a list. Such a list is also the cheapest way to fill a client's memory.

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body::Frame;

use super::{Reply, containers, of_frames};
use crate::frame;

const PIECE: &[u8] = &[0; 1 << 16];
/// The prefix of the streamed containers' ids.
pub const ENDLESS_ENTRY: &str = "endless-";

pub fn endless(rpc: &str) -> Option<Reply> {
    match rpc {
        "ListContainers" => Some(unary()),
        "StreamContainers" => Some(streamed()),
        _ => None,
    }
}

fn unary() -> Reply {
    let prefix = [&[0][..], &u32::MAX.to_be_bytes()].concat();
    let pieces = stream::repeat_with(|| Frame::data(Bytes::from_static(PIECE)));
    of_frames(stream::iter([Frame::data(prefix.into())]).chain(pieces))
}

fn streamed() -> Reply {
    let messages = (0_u64..).map(|number| {
        let ids: Vec<_> = (0..1000)
            .map(|part| format!("{ENDLESS_ENTRY}{number}-{part}-{}", "x".repeat(1000)))
            .collect();
        Frame::data(frame(&containers(ids.iter().map(String::as_str))))
    });
    of_frames(stream::iter(messages))
}
