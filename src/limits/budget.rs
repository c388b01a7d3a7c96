//! Counts the bytes of messages in memory. A message counts until its last part is dropped.
//!
//! All requests share one budget, of which users and connections have parts ([`Requests`]). Each backend has three
//! budgets: for replies to clients and for answers to criswitch's own questions ([`Replies`]), and for events. Replies
//! that clients have not read yet have a budget that the connections share ([`Shares`]). So clients and backends cannot
//! use up each other's memory, and clients cannot use up the memory that criswitch needs itself. Every body that is
//! read counts in a budget.
//!
//! A part of a budget is a budget too. Its bytes also count in the whole.

mod replies;
mod requests;
mod shares;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use criswitch_cri::codec::frames;
use http::HeaderMap;
use http_body::Body;
use http_body_util::BodyExt;
use tonic::Status;

use crate::limits::places::User;

pub use replies::Replies;
pub use requests::Requests;
use shares::MemoryShare;
pub use shares::Shares;

/// The smallest budget for messages, in bytes: 500 replies with 1000 containers each fit.
const LEAST: usize = 128 << 20;
/// A budget for messages holds at least this many messages of the largest size.
const MESSAGES: usize = 8;
/// The divisor for one backend's unread events: they may take 1 / 4 of a budget for messages.
const EVENTS_PART: usize = 4;
/// A message of at most this many bytes, with its headers, is small. Large messages have separate budgets, so that they
/// never block small ones.
pub const SMALL: usize = 64 << 10;
/// The largest buffer, in bytes, that is allocated for a message before its bytes arrive: the rest of a long message
/// may never come.
const MOST_RESERVED: usize = 1 << 20;
/// The memory of one header in addition to its text, in bytes. Measured with short and distinct names.
const PER_HEADER: usize = 160;

/// The most bytes that all budgets together may hold with this many backends. The memory limits of the systemd unit
/// follow from this number.
pub fn most(max_message: usize, backends: usize) -> usize {
    let messages = Budget::for_messages(max_message).limit();
    let events = Budget::for_events(max_message).limit();
    messages + Shares::for_unread(max_message).limit() + backends * (2 * messages + events)
}

/// The most bytes of a streamed list: the unread replies of one connection may take as much.
pub fn most_streamed(max_message: usize) -> usize {
    Budget::for_messages(max_message).limit() / shares::ONE
}

/// A limit on bytes in memory, and the number of bytes in use.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    used: AtomicUsize,
    limit: usize,
    whole: Whole,
    /// The budget for reservations of more than [`SMALL`] bytes; `None` if they count in this budget too.
    large: Option<Budget>,
}

/// The budget of which a budget is a part.
#[derive(Debug)]
enum Whole {
    /// The budget is not part of another budget.
    Itself,
    Budget(Budget),
    /// The bytes count in two budgets.
    Both(Budget, Budget),
    /// The budget is one connection's part of [`Shares`].
    Shares(MemoryShare),
}

/// The memory of one client's connection.
#[derive(Clone, Debug)]
pub struct ClientMemory {
    /// The client's user.
    pub user: User,
    /// For its requests in flight.
    pub requests: Budget,
    /// For the replies that the client has not read yet.
    pub unread: Budget,
}

/// A part of a [`Budget`], released on drop.
#[derive(Debug)]
pub struct Reservation {
    memory: Budget,
    bytes: usize,
}

/// A body that was read to its end.
#[derive(Debug)]
pub struct ReadBody {
    /// The data; counted until its last slice is dropped.
    pub body: Bytes,
    /// The trailers, if any.
    pub trailers: Option<HeaderMap>,
}

/// Why a body could not be read to its end.
#[derive(Debug)]
pub enum Unread {
    /// The body is longer than the limit for a message.
    TooLarge,
    /// The budget is full. The number is its limit in bytes.
    NoMemory(usize),
    /// The body broke off.
    Broken(Status),
}

impl Budget {
    /// A budget for several messages of up to `max_message` bytes each.
    pub fn for_messages(max_message: usize) -> Budget {
        Budget::of(max_message.saturating_mul(MESSAGES).max(LEAST))
    }

    /// A budget for one backend's events that subscribers have not read.
    pub fn for_events(max_message: usize) -> Budget {
        Budget::of(Budget::for_messages(max_message).limit() / EVENTS_PART)
    }

    /// The most bytes that the budget holds.
    pub fn limit(&self) -> usize {
        self.0.limit
    }

    fn of(limit: usize) -> Budget {
        Budget::new(limit, Whole::Itself, None)
    }

    fn new(limit: usize, whole: Whole, large: Option<Budget>) -> Budget {
        Budget(Arc::new(Pool {
            used: AtomicUsize::new(0),
            limit,
            whole,
            large,
        }))
    }

    /// A part of this budget with this limit. Reservations of more than [`SMALL`] bytes count in `large`, if it is
    /// given.
    fn part(&self, limit: usize, large: Option<Budget>) -> Budget {
        Budget::new(limit, Whole::Budget(self.clone()), large)
    }

    /// A part of this budget and of `other` with this limit.
    fn part_of_both(&self, other: &Budget, limit: usize) -> Budget {
        Budget::new(limit, Whole::Both(self.clone(), other.clone()), None)
    }

    /// The bytes in use.
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) -> Result<(), Unread> {
        let before = self.used();
        self.add(bytes)?;
        let taken = match &self.0.whole {
            Whole::Itself => Ok(()),
            Whole::Budget(whole) => whole.take(bytes),
            Whole::Both(one, other) => one
                .take(bytes)
                .and_then(|()| other.take(bytes).inspect_err(|_| one.give_back(bytes))),
            Whole::Shares(share) => share.take(self, before, bytes),
        };
        taken.inspect_err(|_| self.subtract(bytes))
    }

    fn give_back(&self, bytes: usize) {
        self.subtract(bytes);
        match &self.0.whole {
            Whole::Itself => {}
            Whole::Budget(whole) => whole.give_back(bytes),
            Whole::Both(one, other) => {
                one.give_back(bytes);
                other.give_back(bytes);
            }
            Whole::Shares(share) => share.give_back(bytes),
        }
    }

    fn add(&self, bytes: usize) -> Result<(), Unread> {
        let limit = self.limit();
        let used = &self.0.used;
        used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|sum| *sum <= limit)
        })
        .map(drop)
        .map_err(|_| Unread::NoMemory(limit))
    }

    fn subtract(&self, bytes: usize) {
        self.0.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// An empty reservation.
    pub fn held(&self) -> Reservation {
        Reservation {
            memory: self.clone(),
            bytes: 0,
        }
    }

    /// Reads `body` to its end, at most `limit` bytes. Reserves memory for the body, `head` and the trailers.
    ///
    /// # Errors
    /// If the body is too large or breaks off, or if there is no memory for the body; nothing stays reserved then.
    pub async fn read<B>(&self, head: &HeaderMap, body: B, limit: usize) -> Result<ReadBody, Unread>
    where
        B: Body<Data = Bytes, Error = Status> + Unpin,
    {
        let mut held = self.held();
        held.grow(size(head))?;
        let mut body = body;
        let mut whole = Collected::default();
        let mut trailers = None;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(Unread::Broken)?;
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
    /// The bytes reserved.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reserves `bytes` more. A reservation that becomes larger than [`SMALL`] moves to the budget for large ones.
    ///
    /// # Errors
    /// [`Unread::NoMemory`]; nothing is added then.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Unread> {
        let sum = self.bytes.saturating_add(bytes);
        let large = self.memory.0.large.clone().filter(|_| sum > SMALL);
        match large {
            None => self.memory.take(bytes)?,
            Some(large) => {
                large.take(sum)?;
                self.memory.give_back(self.bytes);
                self.memory = large;
            }
        }
        self.bytes = sum;
        Ok(())
    }

    /// Returns `bytes` and keeps the reservation until their last slice is dropped.
    pub fn with(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(HeldBytes { bytes, _held: self })
    }

    /// Moves up to `bytes` of the reservation to a new one.
    pub fn split(&mut self, bytes: usize) -> Reservation {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Reservation {
            memory: self.memory.clone(),
            bytes,
        }
    }

    /// Shrinks the reservation to at most `bytes`, and releases the rest.
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

/// Bytes, and a value that lives as long as any slice of them.
pub(crate) struct HeldBytes<B, T> {
    pub(crate) bytes: B,
    pub(crate) _held: T,
}

impl<B: AsRef<[u8]>, T> AsRef<[u8]> for HeldBytes<B, T> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

/// Collects the pieces of a body in one buffer: a peer that sends single bytes must not cost a buffer for each frame.
#[derive(Default)]
struct Collected {
    first: Bytes,
    all: Vec<u8>,
}

impl Collected {
    fn len(&self) -> usize {
        self.first.len() + self.all.len()
    }

    /// Adds a piece. Stores the first piece without a copy, because most messages have only one piece.
    fn push(&mut self, data: Bytes) {
        if self.len() == 0 {
            self.first = data;
            return;
        }
        if self.all.is_empty() {
            let first = std::mem::take(&mut self.first);
            let announced = frames::frame_length(&first)
                .ok()
                .flatten()
                .unwrap_or(0)
                .saturating_add(frames::FRAME_HEADER)
                .min(MOST_RESERVED);
            self.all.reserve_exact(announced.max(first.len()));
            self.all.extend_from_slice(&first);
        }
        self.all.extend_from_slice(&data);
    }

    fn into_bytes(mut self) -> Bytes {
        if self.all.is_empty() {
            return self.first;
        }
        // The message may be a list that is cached for long, so release its spare capacity.
        self.all.shrink_to_fit();
        Bytes::from(self.all)
    }
}

/// The approximate size of headers or trailers in memory, in bytes.
pub(crate) fn size(head: &HeaderMap) -> usize {
    head.iter()
        .map(|(name, value)| name.as_str().len() + value.len() + PER_HEADER)
        .sum()
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    fn pieces(data: &[&'static str]) -> impl Body<Data = Bytes, Error = Status> + Unpin {
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
    async fn a_body_counts_until_its_last_slice_is_dropped() {
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
    fn a_reservation_counts_until_the_body_it_was_made_for_is_dropped() {
        let memory = Budget::of(10);
        let mut held = memory.held();
        held.grow(5).unwrap();
        let body = held.with(Bytes::from_static(b"abcde"));
        assert_eq!(memory.used(), 5);
        drop(body);
        assert_eq!(memory.used(), 0);
    }

    #[tokio::test]
    async fn a_body_beyond_the_memory_is_rejected_and_gives_back_its_part() {
        let memory = Budget::of(10);
        let first = read(&memory, &["123456"], 10).await.unwrap();
        let second = read(&memory, &["123", "45"], 10).await;
        assert!(matches!(second, Err(Unread::NoMemory(10))), "{second:?}");
        assert_eq!(memory.used(), 6);
        drop(first);
        assert_eq!(read(&memory, &["123", "45"], 10).await.unwrap(), "12345");
    }

    #[tokio::test]
    async fn a_body_over_its_own_limit_is_too_large() {
        let memory = Budget::of(100);
        let whole = read(&memory, &["123", "45"], 4).await;
        assert!(matches!(whole, Err(Unread::TooLarge)), "{whole:?}");
        assert_eq!(memory.used(), 0);
    }

    #[tokio::test]
    async fn headers_count_with_their_body() {
        let memory = Budget::of(1000);
        let mut head = HeaderMap::new();
        head.insert("name", http::HeaderValue::from_static("value"));
        let whole = memory.read(&head, pieces(&[]), 0).await.unwrap();
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
        let frames = [Ok::<_, Status>(Frame::trailers(trailers))];
        let body = StreamBody::new(stream::iter(frames));
        let whole = memory.read(&HeaderMap::new(), body, 0).await.unwrap();
        assert_eq!(memory.used(), 9 + PER_HEADER);
        drop(whole);
    }

    #[test]
    fn a_split_reservation_counts_separately() {
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
