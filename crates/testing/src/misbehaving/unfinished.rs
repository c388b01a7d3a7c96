//! Large replies that never end, while the runtime answers all other calls.
//!
//! A runtime that is stopped while it sends leaves such replies. The unfinished replies take memory until the runtime
//! continues or ends.

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body::Frame;

use super::{CONTAINER, Reply, containers, fine, of_frames};

/// The length of the part of a reply that is sent, in bytes.
const BEGUN: usize = 15 << 20;
const PIECE: &[u8] = &[0; 1 << 20];
/// The length of a list, in bytes: more than the rest of 128 MiB after eight unfinished replies.
pub const LONG_LIST: usize = 9 << 20;

pub fn unfinished(rpc: &str) -> Option<Reply> {
    let prefix = [&[0][..], &(16_u32 << 20).to_be_bytes()].concat();
    let pieces = stream::repeat_with(|| Frame::data(Bytes::from_static(PIECE)));
    let begun = stream::iter([Frame::data(prefix.into())]).chain(pieces.take(BEGUN / PIECE.len()));
    (rpc == "ContainerStatus").then(|| of_frames(begun.chain(stream::pending())))
}

/// Like [`unfinished`]. The list of containers has a text of [`LONG_LIST`] bytes.
pub fn unfinished_beside_a_long_list(rpc: &str) -> Option<Reply> {
    let list = || {
        let mut list = containers([CONTAINER]);
        list.containers[0]
            .annotations
            .extend([("text".to_owned(), "x".repeat(LONG_LIST))]);
        fine(&list)
    };
    match rpc {
        "ListContainers" => Some(list()),
        rpc => unfinished(rpc),
    }
}
