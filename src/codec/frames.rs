//! gRPC's frames: a message with its length before it. No I/O, no panic, whatever the bytes are.

use bytes::{BufMut, Bytes, BytesMut};

/// Bytes before each gRPC message: a compression flag and a big-endian length.
pub const FRAME_HEADER: usize = 5;

/// A gRPC body or stream that is not made of plain messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// Cut off, or of another length than it says.
    #[error("not one whole gRPC message")]
    Length,
    /// Compressed, and it has to be read here.
    #[error("a compressed gRPC message")]
    Compressed,
    /// Longer than this many bytes, which is what may be held.
    #[error("a gRPC message of more than {0} bytes")]
    TooLong(usize),
}

/// Length of the gRPC message whose frame begins with `bytes`, `None` if fewer than [`FRAME_HEADER`] bytes are there.
///
/// # Errors
/// [`BadFrame::Compressed`], also for a flag that gRPC doesn't know.
pub fn frame_length(bytes: &[u8]) -> Result<Option<usize>, BadFrame> {
    match bytes {
        [0, a, b, c, d, ..] => Ok(Some(u32::from_be_bytes([*a, *b, *c, *d]) as usize)),
        [0, ..] | [] => Ok(None),
        _ => Err(BadFrame::Compressed),
    }
}

/// The message of a body that holds exactly one.
///
/// # Errors
/// [`BadFrame`].
pub fn unframe(body: &Bytes) -> Result<Bytes, BadFrame> {
    let length = frame_length(body)?.ok_or(BadFrame::Length)?;
    if body.len() - FRAME_HEADER != length {
        return Err(BadFrame::Length);
    }
    Ok(body.slice(FRAME_HEADER..))
}

/// Cuts the next whole message off the beginning of `stream`, `None` if more bytes have to come first.
///
/// # Errors
/// [`BadFrame::Compressed`], and [`BadFrame::TooLong`] as soon as the frame says that its message is over `limit`.
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

/// The frame header of a message of `length` bytes; gRPC has no message above 4 GiB.
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
