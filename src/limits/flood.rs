//! Reads the frames of a connection before h2 does. Replaces the authority of requests, which h2 may reject, withholds
//! the headers of a call until the calls before it are accepted, and limits floods of HTTP/2 frames without content,
//! such as PING. Such a frame costs its sender almost nothing, but h2 handles each frame on the thread that serves all
//! calls.
//!
//! h2 itself limits empty DATA frames, CONTINUATION frames, and calls that are reset before they were read. h2 accepts
//! any number of unknown frames, PRIORITY, WINDOW_UPDATE, PING, SETTINGS and RST_STREAM. The limit of h2 on small DATA
//! frames counts only unread frames, and criswitch reads frames at once.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, BufStream, ReadBuf};
use tokio::time::Instant;

use criswitch_cri::codec::hpack::{self, SEARCHED};

/// The length in bytes of the HTTP/2 preface, which a client sends first.
pub(crate) const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();
/// How many cheap frames a peer may send each second, in addition to the allowance for its calls and for criswitch's
/// own frames (`FOR_CONTENT`). Every frame is cheap except HEADERS that begin a call, and DATA of [`SMALL_DATA`] bytes
/// or more. A new connection starts with a budget of this many frames, not with the larger [`CHEAP_BURST`].
pub const CHEAP_FRAMES: u32 = 1000;
/// The largest number of unused cheap frames that a peer can accumulate. It exceeds the number of calls on a
/// connection, because a peer may cancel all its calls at once.
pub const CHEAP_BURST: u32 = 10_000;
/// DATA frames with fewer bytes than this are cheap. gRPC libraries send a message, or its beginning, in one DATA frame
/// together with the 5 bytes of its gRPC header. A backend's event has an id of 64 characters, so the frames of a
/// stream of events are never cheap. The allowance for each call (`FOR_CONTENT`) covers the few small requests and
/// replies.
pub const SMALL_DATA: u32 = 64;
/// How many cheap frames a peer may send for each call that it begins, and for each frame with content that criswitch
/// sends. Frames with content are HEADERS, and DATA that is not small.
///
/// The peer's own DATA adds no allowance, because the peer could send any amount of DATA.
///
/// The allowance covers the cheap frames of every honest peer, however busy the connection is:
/// - For each DATA frame that it receives, grpc-go sends at most four: two WINDOW_UPDATEs for the stream (one of them
///   when a large message begins), one for the connection, and a PING that measures the round trip. h2, and so tonic,
///   sends two WINDOW_UPDATEs: one for the stream and one for the connection.
/// - For each call, a client sends at most three: a small DATA frame, an empty DATA frame after it, and RST_STREAM.
/// - For each reply, a backend sends at most four: HEADERS, a small DATA frame, HEADERS again, and RST_STREAM.
///   criswitch sent at least HEADERS for that call, and these HEADERS allow four cheap frames.
/// - A peer acknowledges each SETTINGS and PING. criswitch sends SETTINGS once, and PING at most once, at shutdown.
const FOR_CONTENT: u32 = 4;
/// The reason for closing the connection of a peer that sends too many cheap frames.
pub(crate) const CAUSE: &str =
    "it sends more than 1000 HTTP/2 frames a second without content, such as PING";

/// The length in bytes of a frame's header, which has the frame's length, kind, flags and stream.
const HEADER: u32 = 9;
/// The length in bytes of the largest DATA frame that grpc-go accepts, with its header. Kubelet, containerd and CRI-O
/// use grpc-go.
const FRAME: usize = HEADER as usize + (16 << 10);
/// The size of the buffer for reads, and of the buffer for writes: four of the largest frames.
const BATCH: usize = 4 * FRAME;
/// The kinds of frames with content.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
/// The reserved bit before a stream's number.
const RESERVED: u32 = 1 << 31;

/// A connection: a socket, or an in-memory pipe in the fault simulation. Connections are boxed, so that HTTP/2 is
/// compiled only once.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<I: AsyncRead + AsyncWrite + Send + Unpin> Io for I {}

/// A connection that counts its frames. Reading fails if the peer sends too many cheap frames.
pub struct CountedIo {
    io: BufStream<Box<dyn Io>>,
    /// Whether the next flush waits for further frames.
    holds: bool,
    /// Bytes that were read from `io` already, and that the next reads return: the preface, or a part of HEADERS.
    next: Bytes,
    /// The first bytes of a client's HEADERS, while they are not complete or are withheld. h2 gets none of these
    /// HEADERS before the authority is replaced.
    partial: Option<Partial>,
    /// Whether the peer sends requests.
    is_client: bool,
    unaccepted: Unaccepted,
    read: Frames,
    written: Frames,
    budget: FrameBudget,
    flooded: Flooded,
}

/// The first bytes of the payload of HEADERS.
#[derive(Debug)]
struct Partial {
    bytes: Vec<u8>,
    /// How many bytes are still missing.
    missing: usize,
    flags: u8,
}

/// Whether a connection was closed because of a flood.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flooded(Arc<AtomicBool>);

impl Flooded {
    pub(crate) fn is_true(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Whether h2 has got HEADERS that may belong to a call that is not accepted yet. Until the call is accepted, h2 gets
/// no further HEADERS, because a call's headers count in no memory limit before.
#[derive(Clone, Debug, Default)]
pub struct Unaccepted(Arc<AtomicBool>);

impl Unaccepted {
    fn is_some(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Lets h2 get the next HEADERS. Returns whether it has got any since the last time.
    pub(crate) fn accept(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

impl CountedIo {
    /// A client's connection, after the bytes of the preface were read.
    pub(crate) fn of_client(io: impl Io + 'static, preface: [u8; PREFACE]) -> (CountedIo, Flooded) {
        let (mut counted, flooded) =
            CountedIo::new(Box::new(io), Frames::behind(0), Frames::behind(0));
        counted.next = Bytes::copy_from_slice(&preface);
        counted.is_client = true;
        (counted, flooded)
    }

    /// A connection to a backend.
    pub(crate) fn of_backend(io: impl Io + 'static) -> (CountedIo, Flooded) {
        CountedIo::new(Box::new(io), Frames::behind(0), Frames::behind(PREFACE))
    }

    fn new(io: Box<dyn Io>, read: Frames, written: Frames) -> (CountedIo, Flooded) {
        let flooded = Flooded::default();
        let counted = CountedIo {
            io: BufStream::with_capacity(BATCH, BATCH, io),
            holds: false,
            next: Bytes::new(),
            partial: None,
            is_client: false,
            unaccepted: Unaccepted::default(),
            read,
            written,
            budget: FrameBudget::default(),
            flooded: flooded.clone(),
        };
        (counted, flooded)
    }

    pub(crate) fn unaccepted(&self) -> Unaccepted {
        self.unaccepted.clone()
    }

    /// Counts the frames in `bytes`, up to HEADERS that h2 does not get yet. Returns the number of bytes before them.
    fn count_read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let (mut begun, mut at, mut end) = (Begun::default(), 0, bytes.len());
        while let Some(frame) = self.read.next(bytes, &mut at, &mut begun) {
            if !self.is_client || frame.kind != HEADERS {
                continue;
            }
            let searched = frame.length.min(SEARCHED);
            let payload = bytes.get_mut(at..at + searched);
            match payload.filter(|_| !self.unaccepted.is_some()) {
                Some(payload) => {
                    hpack::replace_authority(payload, frame.flags);
                    self.unaccepted.begin();
                }
                None => {
                    end = at;
                    self.read.skip = frame.length - searched;
                    self.partial = Some(Partial {
                        missing: searched,
                        bytes: Vec::with_capacity(searched),
                        flags: frame.flags,
                    });
                    break;
                }
            }
        }
        if self.budget.allows(begun) {
            return Ok(end);
        }
        self.flooded.0.store(true, Ordering::Relaxed);
        Err(io::Error::other(CAUSE))
    }

    /// Reads the missing bytes of `partial`, with the unused part of `into` as the buffer. Returns whether the peer has
    /// sent any bytes.
    fn poll_missing(
        &mut self,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
        mut partial: Partial,
    ) -> Poll<io::Result<bool>> {
        let length = partial.missing.min(into.remaining());
        let mut unused = ReadBuf::new(into.initialize_unfilled_to(length));
        let read = Pin::new(&mut self.io).poll_read(context, &mut unused);
        partial.bytes.extend_from_slice(unused.filled());
        partial.missing -= unused.filled().len();
        let is_open = length == 0 || !unused.filled().is_empty();
        match partial.missing {
            0 => {
                hpack::replace_authority(&mut partial.bytes, partial.flags);
                self.unaccepted.begin();
                self.next = partial.bytes.into();
            }
            _ => self.partial = Some(partial),
        }
        read.map_ok(|()| is_open)
    }

    fn count_written(&mut self, bytes: &[u8]) {
        let begun = self.written.pass(bytes);
        self.budget.earn(begun.headers + begun.data);
    }
}

/// Reads the headers of frames from the bytes of a connection. Stores no payload.
#[derive(Debug)]
struct Frames {
    /// Bytes to skip before the next header: the preface or a payload.
    skip: usize,
    /// The bytes of the current header that were read so far. `passed` is their number.
    header: u128,
    passed: u32,
    /// The highest number of a stream that had HEADERS.
    last_call: u32,
}

/// A frame whose header was read.
struct FrameHeader {
    kind: u8,
    flags: u8,
    length: usize,
}

/// How many frames of each kind began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Begun {
    /// HEADERS with content.
    headers: u32,
    /// HEADERS that begin a call: the first HEADERS of a stream. `headers` counts them too.
    calls: u32,
    /// DATA that is not small.
    data: u32,
    /// All other frames.
    rest: u32,
}

impl Begun {
    /// The number of cheap frames. HEADERS that begin no call are cheap, because h2 ignores any number of them on a
    /// stream that it has reset.
    fn cheap(self) -> u32 {
        self.rest + self.headers - self.calls
    }
}

impl Frames {
    fn behind(skip: usize) -> Frames {
        Frames {
            skip,
            header: 0,
            passed: 0,
            last_call: 0,
        }
    }

    /// Counts the frames whose headers end within these bytes.
    fn pass(&mut self, bytes: &[u8]) -> Begun {
        let (mut begun, mut at) = (Begun::default(), 0);
        while self.next(bytes, &mut at, &mut begun).is_some() {}
        begun
    }

    /// Counts the next frame whose header ends within these bytes, from `at` on, and sets `at` to the end of the
    /// header.
    fn next(&mut self, bytes: &[u8], at: &mut usize, begun: &mut Begun) -> Option<FrameHeader> {
        loop {
            let skipped = self.skip.min(bytes.len() - *at);
            self.skip -= skipped;
            *at += skipped;
            let byte = bytes.get(*at)?;
            *at += 1;
            self.header = self.header << 8 | u128::from(*byte);
            self.passed += 1;
            if self.passed == HEADER {
                return Some(self.begin(begun));
            }
        }
    }

    /// Counts the frame whose header is complete, and skips its payload.
    fn begin(&mut self, begun: &mut Begun) -> FrameHeader {
        let [.., a, b, c, kind, flags, e, f, g, h] = self.header.to_be_bytes();
        let length = u32::from_be_bytes([0, a, b, c]);
        let stream = u32::from_be_bytes([e, f, g, h]) & !RESERVED;
        let last_call = self.last_call;
        *self = Frames::behind(length as usize);
        self.last_call = last_call;
        match kind {
            DATA if length >= SMALL_DATA => begun.data += 1,
            HEADERS if length > 0 => {
                begun.headers += 1;
                begun.calls += u32::from(stream > last_call);
                self.last_call = last_call.max(stream);
            }
            _ => begun.rest += 1,
        }
        FrameHeader {
            kind,
            flags,
            length: length as usize,
        }
    }
}

/// How many cheap frames a peer may send now.
#[derive(Debug)]
struct FrameBudget {
    left: f64,
    at: Instant,
}

impl Default for FrameBudget {
    fn default() -> FrameBudget {
        FrameBudget {
            left: CHEAP_FRAMES.into(),
            at: Instant::now(),
        }
    }
}

impl FrameBudget {
    /// Counts frames of the peer. Returns whether the peer is still within its limit.
    fn allows(&mut self, begun: Begun) -> bool {
        let now = Instant::now();
        let passed = now.duration_since(self.at).as_secs_f64();
        self.at = now;
        self.left += passed * f64::from(CHEAP_FRAMES);
        self.earn(begun.calls);
        self.left -= f64::from(begun.cheap());
        self.left >= 0.0
    }

    fn earn(&mut self, content: u32) {
        let earned = self.left + f64::from(content) * f64::from(FOR_CONTENT);
        self.left = earned.min(CHEAP_BURST.into());
    }
}

impl AsyncRead for CountedIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if !self.next.is_empty() {
                let length = self.next.len().min(into.remaining());
                into.put_slice(&self.next.split_to(length));
                return Poll::Ready(Ok(()));
            }
            if self.partial.is_some() && self.unaccepted.is_some() {
                // No waker: the task that accepts calls reads again as soon as it has accepted the call.
                return Poll::Pending;
            }
            if let Some(partial) = self.partial.take() {
                if ready!(self.poll_missing(context, into, partial))? {
                    continue;
                } else {
                    return Poll::Ready(Ok(()));
                }
            }
            let read = ready!(Pin::new(&mut self.io).poll_fill_buf(context))?;
            let (before, length) = (into.filled().len(), read.len().min(into.remaining()));
            into.put_slice(read.get(..length).unwrap_or_default());
            let read = into.filled_mut().get_mut(before..).unwrap_or_default();
            let passed = self.count_read(read)?;
            Pin::new(&mut self.io).consume(passed);
            into.set_filled(before + passed);
            return Poll::Ready(Ok(()));
        }
    }
}

impl AsyncWrite for CountedIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write(context, bytes))?;
        self.holds = written >= FRAME;
        self.count_written(bytes.get(..written).unwrap_or_default());
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write_vectored(context, slices))?;
        self.holds = written >= FRAME;
        let mut left = written;
        for slice in slices {
            let part = slice.get(..left.min(slice.len())).unwrap_or_default();
            left -= part.len();
            self.count_written(part);
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    /// h2 flushes after each large frame, although more frames follow. So the first flush after a large frame waits for
    /// the next frames or the next flush, and wakes the task to make sure that this flush comes.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if std::mem::take(&mut self.holds) {
            context.waker().wake_by_ref();
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const PING: u8 = 6;
    const CONTINUATION: u8 = 9;
    const UNKNOWN: u8 = 0xfa;

    fn frame(kind: u8, length: u8, stream: u8) -> Vec<u8> {
        let header = [0, 0, length, kind, 0xff, 0x80, 0, 0, stream];
        [&header[..], &vec![DATA; length.into()]].concat()
    }

    fn rest(frames: u32) -> Begun {
        Begun {
            rest: frames,
            ..Begun::default()
        }
    }

    #[test]
    fn frames_are_counted_wherever_they_are_cut() {
        let frames = [
            (DATA, 64, 1),
            (DATA, 63, 1),
            (PING, 8, 0),
            (HEADERS, 1, 3),
            (HEADERS, 1, 5),
            (HEADERS, 1, 3),
            (HEADERS, 1, 5),
            (DATA, 0, 1),
            (HEADERS, 0, 7),
            (CONTINUATION, 30, 1),
            (UNKNOWN, 255, 1),
        ]
        .map(|(kind, length, stream)| frame(kind, length, stream));
        let sent = [&[DATA; PREFACE][..], &frames.concat()].concat();
        for size in 1..sent.len() {
            let mut counted = Frames::behind(PREFACE);
            let begun = sent.chunks(size).map(|part| counted.pass(part));
            let begun = begun.fold(Begun::default(), |all, begun| Begun {
                headers: all.headers + begun.headers,
                calls: all.calls + begun.calls,
                data: all.data + begun.data,
                rest: all.rest + begun.rest,
            });
            let all = Begun {
                headers: 4,
                calls: 2,
                data: 1,
                rest: 6,
            };
            assert_eq!(begun, all, "{size}");
        }
    }

    #[test]
    fn the_length_of_a_frame_is_read_whole() {
        let mut frames = Frames::behind(0);
        frames.pass(&[1, 2, 3, DATA, 0, 0, 0, 0, 1]);
        assert_eq!(frames.skip, 0x01_02_03);
    }

    #[tokio::test]
    async fn headers_are_withheld_until_the_call_before_is_accepted() {
        let (near, mut far) = tokio::io::duplex(BATCH);
        let (mut io, _) = CountedIo::of_client(near, [DATA; PREFACE]);
        let (unaccepted, ping) = (io.unaccepted(), frame(PING, 8, 0));
        let calls = [(1, 20), (3, 20), (5, 0)]
            .map(|(stream, length)| [frame(HEADERS, length, stream), ping.clone()].concat());
        far.write_all(&calls.concat()).await.unwrap();
        let (mut read, header) = (Vec::new(), HEADER as usize);
        let mut passed = PREFACE;
        for (call, next) in calls.iter().zip([header, header, 0]) {
            while io.read_buf(&mut read).now_or_never().is_some() {}
            passed += call.len();
            // h2 also gets the frame header of the next HEADERS.
            assert_eq!(read.len(), passed + next);
            assert!(unaccepted.accept());
        }
        assert!(!unaccepted.accept());
    }

    #[tokio::test]
    async fn a_large_frame_waits_one_flush_for_the_next_frame() {
        let (near, mut far) = tokio::io::duplex(2 * BATCH);
        let (mut io, _) = CountedIo::of_backend(near);
        let mut written = vec![0; 2 * BATCH];
        for _ in 0..2 {
            io.write_all(&[0; FRAME]).await.unwrap();
            io.flush().await.unwrap();
            assert!(far.read(&mut written).now_or_never().is_none());
        }
        io.flush().await.unwrap();
        assert_eq!(far.read(&mut written).await.unwrap(), 2 * FRAME);
        io.write_all(b"small").await.unwrap();
        io.flush().await.unwrap();
        assert_eq!(far.read(&mut written).await.unwrap(), b"small".len());
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_may_send_cheap_frames_at_a_steady_rate_and_one_burst_after_a_pause() {
        let mut budget = FrameBudget::default();
        assert!(budget.allows(rest(CHEAP_FRAMES)));
        for _ in 0..100 {
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(budget.allows(rest(CHEAP_FRAMES)));
        }
        tokio::time::advance(Duration::from_hours(1)).await;
        assert!(budget.allows(rest(CHEAP_BURST)));
        assert!(!budget.allows(rest(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn small_data_and_further_headers_of_a_call_add_no_allowance() {
        let within = [
            Begun { data: 1, ..rest(1) },
            Begun {
                headers: 1,
                ..rest(0)
            },
        ];
        for begun in within {
            let mut budget = FrameBudget::default();
            let allowed = (0..2 * CHEAP_FRAMES).take_while(|_| budget.allows(begun));
            assert_eq!(allowed.count(), CHEAP_FRAMES as usize, "{begun:?}");
        }
    }

    /// The peer makes and cancels calls without a pause, and sends the most cheap frames that grpc-go sends for a call.
    #[tokio::test(start_paused = true)]
    async fn a_peer_that_answers_content_with_cheap_frames_never_reaches_the_limit() {
        let mut budget = FrameBudget::default();
        for call in 0..10 * CHEAP_BURST {
            let begun = Begun {
                headers: 1,
                calls: 1,
                ..rest(3)
            };
            assert!(budget.allows(begun), "{call}");
            // criswitch replies with headers, a message and trailers. The peer answers the message with four cheap
            // frames.
            budget.earn(3);
            assert!(budget.allows(rest(4)), "{call}");
        }
        // criswitch sends many messages. The peer answers each message with four cheap frames.
        for message in 0..10 * CHEAP_BURST {
            budget.earn(1);
            assert!(budget.allows(rest(4)), "{message}");
        }
    }

    /// The backend sends many small replies, and then a long stream of events.
    #[tokio::test(start_paused = true)]
    async fn a_busy_backend_never_reaches_the_limit() {
        let mut budget = FrameBudget::default();
        for call in 0..10 * CHEAP_BURST {
            // criswitch sends a request: headers and a message.
            budget.earn(2);
            let reply = Begun {
                headers: 2,
                ..rest(5)
            };
            assert!(budget.allows(reply), "{call}");
        }
        let event = Begun { data: 1, ..rest(0) };
        for event_number in 0..10 * CHEAP_BURST {
            assert!(budget.allows(event), "{event_number}");
        }
    }
}
