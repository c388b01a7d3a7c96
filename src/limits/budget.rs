//! The bytes of messages that are held at once, counted as long as any part of them lives.
//!
//! Requests have one memory. Each backend has three: for replies to clients, for answers to criswitch's own questions,
//! and for events. Replies that clients have not read yet count in one more memory, of which each connection has a share
//! ([`Shares`]). So clients and backends take no memory from each other, and clients take none that criswitch needs for
//! itself. A body is never read without being counted here.

mod shares;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Body;
use http_body_util::BodyExt;

use crate::codec::frames;
use crate::errors::error_chain;

use shares::MemoryShare;
pub use shares::Shares;

/// What one memory holds at least, in bytes: 500 replies with 1000 containers each.
const LEAST: usize = 128 << 20;
/// How many of the largest messages it holds at least.
const MESSAGES: usize = 8;
/// Which part of such a memory one backend's unread events may take.
const EVENTS_PART: usize = 4;
/// How much room is made at once for a message of which the first piece has come: longer ones may never come whole.
const MOST_RESERVED: usize = 1 << 20;
/// What a header takes beside its text, as measured with short names of which no two are equal.
const PER_HEADER: usize = 160;

/// The most bytes that all memories together hold for so many backends: of requests, of replies that clients have not
/// read, and of each backend replies, answers to criswitch's own questions, and events. The unit's limits follow from it.
pub fn most(max_message: usize, backends: usize) -> usize {
    let messages = Budget::for_messages(max_message).limit();
    let events = Budget::for_events(max_message).limit();
    messages + Shares::for_unread(max_message).limit() + backends * (2 * messages + events)
}

/// A limit on bytes that are held, and how many there are.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    used: AtomicUsize,
    limit: usize,
    /// What it is a share of, if it is one.
    share: Option<MemoryShare>,
}

/// A part of a [`Budget`] that is in use until this is dropped.
#[derive(Debug)]
pub struct Reservation {
    memory: Budget,
    bytes: usize,
}

/// A body that was read to its end.
#[derive(Debug)]
pub struct ReadBody {
    /// Its data; counted until the last slice of it is dropped.
    pub body: Bytes,
    /// Its trailers, if there were any.
    pub trailers: Option<HeaderMap>,
}

/// Why a body could not be read to its end.
#[derive(Debug, PartialEq, Eq)]
pub enum Unread {
    /// It is longer than the message may be.
    TooLarge,
    /// There is no memory left for it; the limit of all.
    NoMemory(usize),
    /// It broke off: why.
    Broken(String),
}

impl Budget {
    /// Room for several messages of at most `max_message` bytes.
    pub fn for_messages(max_message: usize) -> Budget {
        Budget::of(max_message.saturating_mul(MESSAGES).max(LEAST))
    }

    /// Room for one backend's events that a subscriber has not read.
    pub fn for_events(max_message: usize) -> Budget {
        Budget::of(Budget::for_messages(max_message).limit() / EVENTS_PART)
    }

    /// The most that it holds.
    pub fn limit(&self) -> usize {
        self.0.limit
    }

    fn of(limit: usize) -> Budget {
        Budget::new(limit, None)
    }

    fn new(limit: usize, share: Option<MemoryShare>) -> Budget {
        let used = AtomicUsize::new(0);
        Budget(Arc::new(Pool { used, limit, share }))
    }

    /// How many bytes are held.
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) -> Result<(), Unread> {
        let before = self.used();
        self.add(bytes)?;
        let Some(share) = &self.0.share else {
            return Ok(());
        };
        share
            .take(self, before, bytes)
            .inspect_err(|_| self.subtract(bytes))
    }

    fn give_back(&self, bytes: usize) {
        self.subtract(bytes);
        if let Some(share) = &self.0.share {
            share.give_back(bytes);
        }
    }

    fn add(&self, bytes: usize) -> Result<(), Unread> {
        let limit = self.limit();
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= limit);
        let added = (self.0.used).fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        added.map(drop).map_err(|_| Unread::NoMemory(limit))
    }

    fn subtract(&self, bytes: usize) {
        self.0.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// A part that holds nothing yet.
    pub fn held(&self) -> Reservation {
        Reservation {
            memory: self.clone(),
            bytes: 0,
        }
    }

    /// Reads `body`, of at most `limit` bytes, to its end; `head` and trailers are counted with it.
    ///
    /// # Errors
    /// [`Unread`]; nothing of it is held then.
    pub async fn read<B>(&self, head: &HeaderMap, body: B, limit: usize) -> Result<ReadBody, Unread>
    where
        B: Body<Data = Bytes, Error: std::error::Error> + Unpin,
    {
        let mut held = self.held();
        held.grow(size(head))?;
        let mut body = body;
        let mut whole = Collected::default();
        let mut trailers = None;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| Unread::Broken(error_chain(&error)))?;
            match frame.into_data() {
                Ok(data) if data.len() > limit - whole.len() => return Err(Unread::TooLarge),
                Ok(data) => {
                    held.grow(data.len())?;
                    whole.push(data);
                }
                Err(frame) => {
                    trailers = frame.into_trailers().ok();
                    held.grow(trailers.as_ref().map_or(0, size))?;
                }
            }
        }
        let body = whole.into_bytes();
        Ok(ReadBody {
            body: held.with(body),
            trailers,
        })
    }
}

impl Reservation {
    /// How many bytes are held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Holds so many bytes more.
    ///
    /// # Errors
    /// [`Unread::NoMemory`]; nothing is added then.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Unread> {
        self.memory.take(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// `bytes`, for which this is held until the last slice of it is dropped.
    pub fn with(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(HeldBytes { bytes, _held: self })
    }

    /// `bytes` of what is held, as many as there are, apart from the rest.
    pub fn split(&mut self, bytes: usize) -> Reservation {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Reservation {
            memory: self.memory.clone(),
            bytes,
        }
    }

    /// Holds nothing beyond the first `bytes` any more.
    pub fn keep(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        self.bytes -= less;
        self.memory.give_back(less);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.keep(0);
    }
}

/// Bytes, and what is held as long as anybody has a slice of them.
pub(crate) struct HeldBytes<B, T> {
    pub(crate) bytes: B,
    pub(crate) _held: T,
}

impl<B: AsRef<[u8]>, T> AsRef<[u8]> for HeldBytes<B, T> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

/// Data in one piece: a peer that sends a byte a frame must not cost what the frames would.
#[derive(Default)]
struct Collected {
    first: Bytes,
    all: Vec<u8>,
}

impl Collected {
    fn len(&self) -> usize {
        self.first.len() + self.all.len()
    }

    /// The first piece is not copied, as it mostly is the only one.
    fn push(&mut self, data: Bytes) {
        if self.len() == 0 {
            self.first = data;
            return;
        }
        if self.all.is_empty() {
            let first = std::mem::take(&mut self.first);
            let told = frames::frame_length(&first).ok().flatten().unwrap_or(0);
            let told = told.saturating_add(frames::FRAME_HEADER).min(MOST_RESERVED);
            self.all.reserve_exact(told.max(first.len()));
            self.all.extend_from_slice(&first);
        }
        self.all.extend_from_slice(&data);
    }

    fn into_bytes(mut self) -> Bytes {
        if self.all.is_empty() {
            return self.first;
        }
        // A list may be kept for long: without the room that was left to grow.
        self.all.shrink_to_fit();
        Bytes::from(self.all)
    }
}

/// What headers or trailers take, in bytes, about.
pub(crate) fn size(head: &HeaderMap) -> usize {
    head.iter()
        .map(|(name, value)| name.as_str().len() + value.len() + PER_HEADER)
        .sum()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;
    use http_body::Frame;
    use http_body_util::{Full, StreamBody};

    use super::*;

    fn pieces(data: &[&'static str]) -> impl Body<Data = Bytes, Error = Infallible> + Unpin {
        let frames: Vec<_> = data
            .iter()
            .map(|piece| Ok(Frame::data(Bytes::from_static(piece.as_bytes()))))
            .collect();
        StreamBody::new(stream::iter(frames))
    }

    async fn read(memory: &Budget, data: &[&'static str], limit: usize) -> Result<Bytes, Unread> {
        let whole = memory.read(&HeaderMap::new(), pieces(data), limit).await;
        whole.map(|whole| whole.body)
    }

    #[tokio::test]
    async fn what_is_read_counts_until_its_last_slice_is_gone() {
        let memory = Budget::of(10);
        let body = read(&memory, &["ab", "cd", "e"], 5).await.unwrap();
        assert_eq!(body, "abcde");
        let slice = body.slice(1..2);
        drop(body);
        assert_eq!(memory.used(), 5);
        drop(slice);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn what_was_held_before_a_body_was_whole_counts_as_long_as_that() {
        let memory = Budget::of(10);
        let mut held = memory.held();
        held.grow(5).unwrap();
        let body = held.with(Bytes::from_static(b"abcde"));
        assert_eq!(memory.used(), 5);
        drop(body);
        assert_eq!(memory.used(), 0);
    }

    #[tokio::test]
    async fn more_than_there_is_memory_for_is_refused_and_gives_back_what_it_had() {
        let memory = Budget::of(10);
        let first = read(&memory, &["123456"], 10).await.unwrap();
        let second = read(&memory, &["123", "45"], 10).await;
        assert_eq!(second, Err(Unread::NoMemory(10)));
        assert_eq!(memory.used(), 6);
        drop(first);
        assert_eq!(read(&memory, &["123", "45"], 10).await.unwrap(), "12345");
    }

    #[tokio::test]
    async fn a_body_over_its_own_limit_is_too_large() {
        let memory = Budget::of(100);
        assert_eq!(
            read(&memory, &["123", "45"], 4).await,
            Err(Unread::TooLarge)
        );
        assert_eq!(memory.used(), 0);
    }

    #[tokio::test]
    async fn headers_count_with_their_body() {
        let memory = Budget::of(1000);
        let mut head = HeaderMap::new();
        head.insert("name", http::HeaderValue::from_static("value"));
        let whole = memory
            .read(&head, Full::new(Bytes::new()), 0)
            .await
            .unwrap();
        assert_eq!(memory.used(), 9 + PER_HEADER);
        drop(whole);
        assert_eq!(memory.used(), 0);
    }

    #[tokio::test]
    async fn trailers_count_with_their_body() {
        let memory = Budget::of(1000);
        let trailers = HeaderMap::from_iter([(
            http::HeaderName::from_static("name"),
            http::HeaderValue::from_static("value"),
        )]);
        let frames = [Ok::<_, Infallible>(Frame::trailers(trailers))];
        let body = StreamBody::new(stream::iter(frames));
        let whole = memory.read(&HeaderMap::new(), body, 0).await.unwrap();
        assert_eq!(memory.used(), 9 + PER_HEADER);
        drop(whole);
    }

    #[test]
    fn a_part_of_what_is_held_counts_for_itself() {
        let memory = Budget::of(10);
        let mut held = memory.held();
        held.grow(5).unwrap();
        let part = held.split(2);
        drop(held);
        assert_eq!(memory.used(), 2);
        drop(part);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn events_have_room_for_a_largest_message() {
        for max_message in [1, 16 << 20, 1 << 30] {
            assert!(Budget::for_events(max_message).limit() > max_message);
        }
    }

    #[test]
    fn several_of_the_largest_messages_fit() {
        assert_eq!(Budget::for_messages(1).limit(), LEAST);
        assert_eq!(Budget::for_messages(1 << 30).limit(), MESSAGES << 30);
    }
}
