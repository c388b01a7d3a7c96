//! Large replies of which the end never comes, while the runtime answers all else.
//!
//! A runtime that is stopped while it sends looks like this, and its replies take memory for as long as that lasts.

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body::Frame;

use super::{Reply, of_frames};

/// How much of a reply comes.
const BEGUN: usize = 15 << 20;
const PIECE: &[u8] = &[0; 1 << 20];

pub fn unfinished(rpc: &str) -> Option<Reply> {
    let prefix = [&[0][..], &(16_u32 << 20).to_be_bytes()].concat();
    let pieces = stream::repeat_with(|| Frame::data(Bytes::from_static(PIECE)));
    let begun = stream::iter([Frame::data(prefix.into())]).chain(pieces.take(BEGUN / PIECE.len()));
    (rpc == "ContainerStatus").then(|| of_frames(begun.chain(stream::pending())))
}
