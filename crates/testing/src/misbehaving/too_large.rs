//! A list above `max_message`, in a frame with the correct length.
//!
//! A runtime may have a higher limit than criswitch: CRI-O's is 80 MiB.

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body::Frame;

use super::{Reply, of_frames};

const PIECE: &[u8] = &[0; 1 << 16];
/// The number of pieces: 32 MiB in total, twice the limit.
const PIECES: u32 = 512;

pub fn too_large(rpc: &str) -> Option<Reply> {
    let length = PIECES * PIECE.len() as u32;
    let prefix = [&[0][..], &length.to_be_bytes()].concat();
    let pieces = (0..PIECES).map(|_| Frame::data(Bytes::from_static(PIECE)));
    let frames = stream::iter([Frame::data(prefix.into())]).chain(stream::iter(pieces));
    (rpc == "ListContainers").then(|| of_frames(frames))
}
