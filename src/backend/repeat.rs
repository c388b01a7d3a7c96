//! Compares a reply with the cached list while the reply arrives. Most polls repeat the last list, and copying a long
//! list costs more than the rest of the call.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};

use criswitch_cri::codec::frames::{self, FRAME_HEADER};

/// A body that drops its data while the data repeats a cached message. At the first difference, the body returns the
/// dropped data, and then all further data.
pub(super) struct Repeat<B> {
    inner: B,
    cached: Bytes,
    /// How many bytes of the cached message's frame have arrived.
    same: usize,
    /// Whether the data differs from the cached message.
    differs: bool,
    /// The frame in which the first difference was found. The body returns this frame after the dropped data.
    next: Option<Frame<Bytes>>,
}

impl<B> Repeat<B> {
    /// Compares `inner` with the message `cached`. If `cached` is empty, nothing is compared.
    pub(super) fn of(inner: B, cached: Bytes) -> Repeat<B> {
        Repeat {
            inner,
            differs: cached.is_empty(),
            cached,
            same: 0,
            next: None,
        }
    }

    /// The cached message, if the whole body has repeated it.
    pub(super) fn whole(self) -> Option<Bytes> {
        let whole = FRAME_HEADER + self.cached.len();
        (!self.differs && self.same == whole).then_some(self.cached)
    }

    /// Whether `data` is the next part of the cached message's frame.
    fn repeats(&self, data: &[u8]) -> bool {
        let (in_header, in_message) = self.compared();
        let (header, message) = data.split_at(data.len().min(FRAME_HEADER - in_header));
        frames::frame_header(self.cached.len())
            .slice(in_header..)
            .starts_with(header)
            && self.cached.slice(in_message..).starts_with(message)
    }

    /// Ends the comparison, and returns the data that was dropped.
    fn dropped(&mut self) -> Frame<Bytes> {
        self.differs = true;
        let (in_header, in_message) = self.compared();
        let header = frames::frame_header(self.cached.len()).slice(..in_header);
        Frame::data([header, self.cached.slice(..in_message)].concat().into())
    }

    /// How many bytes of the frame's header and of the message have arrived.
    fn compared(&self) -> (usize, usize) {
        let in_header = self.same.min(FRAME_HEADER);
        (in_header, self.same - in_header)
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Repeat<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if let Some(next) = self.next.take() {
            return Poll::Ready(Some(Ok(next)));
        }
        loop {
            let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx)).transpose()?;
            let data = frame.as_ref().and_then(Frame::data_ref);
            match data {
                _ if self.differs => {}
                Some(data) if self.repeats(data) => {
                    self.same += data.len();
                    continue;
                }
                None if self.same == FRAME_HEADER + self.cached.len() => {}
                _ if self.same == 0 => self.differs = true,
                _ => {
                    self.next = frame;
                    return Poll::Ready(Some(Ok(self.dropped())));
                }
            }
            return Poll::Ready(frame.map(Ok));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::{FutureExt, stream};
    use http::HeaderMap;
    use http_body_util::{BodyExt, StreamBody};

    use super::*;

    const CACHED: &[u8] = b"the cached list";

    /// Reads a reply in these pieces. Returns the cached message if the pieces repeat that message, and otherwise all
    /// data. The second value says whether the trailers arrived.
    fn read(pieces: &[&[u8]]) -> (Result<Bytes, Vec<u8>>, bool) {
        let pieces = pieces
            .iter()
            .map(|piece| Frame::data(Bytes::copy_from_slice(piece)));
        let frames = pieces.chain([Frame::trailers(HeaderMap::new())]);
        let inner = StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>)));
        let mut body = Repeat::of(inner, Bytes::from_static(CACHED));
        let (mut data, mut has_trailers) = (Vec::new(), false);
        while let Some(frame) = body.frame().now_or_never().unwrap() {
            match frame.unwrap().into_data() {
                Ok(piece) => data.extend_from_slice(&piece),
                Err(_) => has_trailers = true,
            }
        }
        let whole = body.whole();
        assert!(whole.is_none() || data.is_empty());
        (whole.ok_or(data), has_trailers)
    }

    #[test]
    fn a_reply_split_into_pieces_is_recognized_as_the_cached_message_or_keeps_all_its_bytes() {
        let same = frames::frame(CACHED);
        let replies = [
            same.to_vec(),
            frames::frame(b"another list   ").to_vec(),
            frames::frame(b"the cached lisT").to_vec(),
            frames::frame(b"the cached list, and more").to_vec(),
            [&same[..], b"more"].concat(),
            same[..same.len() - 1].to_vec(),
            same[..3].to_vec(),
            Vec::new(),
        ];
        for reply in replies {
            let expected = if reply == same {
                Ok(Bytes::from_static(CACHED))
            } else {
                Err(reply.clone())
            };
            for size in 1..=reply.len().max(1) {
                let pieces: Vec<_> = reply.chunks(size).collect();
                assert_eq!(read(&pieces), (expected.clone(), true), "{size}");
            }
        }
    }
}
