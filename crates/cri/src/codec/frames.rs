//! gRPC frames: a header with the length of a message, then the message. This module does no I/O, and never panics
//! whatever the bytes are.

use bytes::{BufMut, Bytes, BytesMut};

/// The number of bytes before each gRPC message: one for the compression flag, four for the big-endian length.
pub const FRAME_HEADER: usize = 5;

/// Why a gRPC body or stream cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// The message is cut off, or its length differs from the length in its frame.
    #[error("not exactly one complete gRPC message")]
    Length,
    /// The message is compressed. criswitch reads only uncompressed messages.
    #[error("a compressed gRPC message")]
    Compressed,
    /// The message is longer than this limit, in bytes.
    #[error("a gRPC message of more than {0} bytes")]
    TooLong(usize),
}

/// The length of the gRPC message whose frame begins with `bytes`; `None` for fewer than [`FRAME_HEADER`] bytes.
///
/// # Errors
/// [`BadFrame::Compressed`] if the compression flag is set or unknown.
pub fn frame_length(bytes: &[u8]) -> Result<Option<usize>, BadFrame> {
    match bytes {
        [0, a, b, c, d, ..] => Ok(Some(u32::from_be_bytes([*a, *b, *c, *d]) as usize)),
        [0, ..] | [] => Ok(None),
        _ => Err(BadFrame::Compressed),
    }
}

/// The message of a body with exactly one message.
///
/// # Errors
/// If the body is not exactly one complete, uncompressed message.
pub fn unframe(body: &Bytes) -> Result<Bytes, BadFrame> {
    let length = frame_length(body)?.ok_or(BadFrame::Length)?;
    if body.len() - FRAME_HEADER != length {
        return Err(BadFrame::Length);
    }
    Ok(body.slice(FRAME_HEADER..))
}

/// Removes the next complete message from the beginning of `stream`. `None` if more bytes must arrive first.
///
/// # Errors
/// [`BadFrame::Compressed`], and [`BadFrame::TooLong`] as soon as the frame's length is above `limit`.
pub fn cut(stream: &mut BytesMut, limit: usize) -> Result<Option<Bytes>, BadFrame> {
    match frame_length(stream)? {
        Some(length) if length > limit => Err(BadFrame::TooLong(limit)),
        Some(length) if stream.len() - FRAME_HEADER >= length => {
            let mut frame = stream.split_to(FRAME_HEADER + length);
            Ok(Some(frame.split_off(FRAME_HEADER).freeze()))
        }
        _ => Ok(None),
    }
}

/// The frame header of a message of `length` bytes. A length above `u32::MAX` is capped, because no gRPC message is
/// longer.
pub fn frame_header(length: usize) -> Bytes {
    let length = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    Bytes::from([&[0], length.as_slice()].concat())
}

/// `message` in a gRPC frame.
pub fn frame(message: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(FRAME_HEADER + message.len());
    out.put_slice(&frame_header(message.len()));
    out.put_slice(message);
    out.freeze()
}
