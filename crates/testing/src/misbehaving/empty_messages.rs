//! A streamed list of endless empty messages. They have no bytes, so no limit on bytes ends the stream.

use bytes::Bytes;
use futures_util::stream;
use http_body::Frame;

use super::{Reply, of_frames};

/// 3000 empty messages: each is only the five bytes before a message.
static MESSAGES: [u8; 5 * 3000] = [0; 5 * 3000];

pub fn empty_messages(rpc: &str) -> Option<Reply> {
    let frames = stream::repeat_with(|| Frame::data(Bytes::from_static(&MESSAGES)));
    (rpc == "StreamContainers").then(|| of_frames(frames))
}
