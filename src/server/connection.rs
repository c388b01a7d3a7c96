//! One client's HTTP/2 connection, and the calls on it.

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::FutureExt;
use h2::server::{Connection, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::call::reply::{Body, Reply};
use crate::limits::flood::Unaccepted;
use crate::limits::incoming::IncomingBody;
use crate::limits::{CONNECTION_WINDOW, REQUEST_HEADERS, STREAM_WINDOW};

/// The most calls in flight on one connection. The kubelet has one connection for each CRI service.
const MAX_STREAMS: u32 = 2000;
/// How many calls of a connection begin before other tasks run. If more began, backends would get the first call only
/// after criswitch had read all requests that a client sent at once.
const BEGUN_AT_ONCE: u32 = 4;

/// Serves the calls on `io` with `answer` until the client disconnects. When `closing` completes, sends GOAWAY, so
/// that the client makes no further calls, and serves the calls in flight to their end. `unaccepted` is that of `io`.
/// The second value of `answer` is dropped at the end of the call.
///
/// # Errors
/// If the connection breaks, or the client violates HTTP/2.
pub(super) async fn serve<I, F, C>(
    io: I,
    unaccepted: &Unaccepted,
    answer: impl Fn(Box<http::Request<IncomingBody>>) -> (F, C),
    closing: impl Future<Output = ()>,
) -> Result<(), h2::Error>
where
    I: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = Reply> + Send + 'static,
    C: Send + 'static,
{
    let mut connection: Connection<I, Bytes> = h2::server::Builder::new()
        .max_concurrent_streams(MAX_STREAMS)
        // If this process was paused, a client may have cancelled all its calls before criswitch reads them.
        .max_pending_accept_reset_streams(MAX_STREAMS as usize)
        .max_header_list_size(REQUEST_HEADERS)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .handshake(io)
        .await?;
    let mut closing = pin!(closing.fuse());
    loop {
        for _ in 0..BEGUN_AT_ONCE {
            let accepted = tokio::select! {
                biased;
                () = &mut closing => {
                    connection.graceful_shutdown();
                    continue;
                }
                accepted = poll_fn(|cx| poll_accept(&mut connection, unaccepted, cx)) => accepted,
            };
            let Some(accepted) = accepted else {
                return Ok(());
            };
            let (request, respond) = accepted?;
            // Boxed, because a request passes many functions and is large.
            let request = Box::new(request.map(|stream| IncomingBody::new(stream, None)));
            // All of a call runs in its task, so that a panic ends only this call.
            let (reply, in_flight) = answer(request);
            // The task ends when the connection ends, because h2 then resets all streams. An error of `send` says only
            // that the client has cancelled the call or disconnected.
            tokio::spawn(send(reply, respond).map(|_| drop(in_flight)));
        }
        tokio::task::yield_now().await;
    }
}

/// A call, or the end of the connection.
type Accepted = Option<Result<(http::Request<RecvStream>, SendResponse<Bytes>), h2::Error>>;

/// Accepts the next call. h2 reads until it has got the headers of one call, and the next headers after this call is
/// accepted, or is found to be no call.
fn poll_accept<I: AsyncRead + AsyncWrite + Unpin>(
    connection: &mut Connection<I, Bytes>,
    unaccepted: &Unaccepted,
    cx: &mut Context<'_>,
) -> Poll<Accepted> {
    loop {
        let accepted = connection.poll_accept(cx);
        if !unaccepted.accept() || accepted.is_ready() {
            return accepted;
        }
    }
}

/// Sends the reply to a call.
///
/// # Errors
/// If the client cancels the call or disconnects. In this case `reply` is dropped at once.
async fn send(
    reply: impl Future<Output = Reply>,
    mut respond: SendResponse<Bytes>,
) -> Result<(), h2::Error> {
    let (head, body) = unless_reset(reply, |cx| respond.poll_reset(cx))
        .await?
        .into_parts();
    let is_end = body.is_end_stream();
    let stream = respond.send_response(http::Response::from_parts(head, ()), is_end)?;
    if is_end {
        Ok(())
    } else {
        send_body(body, stream).await
    }
}

async fn send_body(mut body: Body, mut stream: SendStream<Bytes>) -> Result<(), h2::Error> {
    while let Some(Ok(frame)) = unless_reset(body.frame(), |cx| stream.poll_reset(cx)).await? {
        match frame.into_data() {
            Ok(data) => {
                await_capacity(&mut stream, data.len()).await?;
                stream.send_data(data, false)?;
            }
            Err(frame) => return stream.send_trailers(frame.into_trailers().unwrap_or_default()),
        }
    }
    stream.send_data(Bytes::new(), true)
}

/// Waits until the client may receive more data. h2 queues the whole of the next piece, so one byte is enough.
async fn await_capacity(stream: &mut SendStream<Bytes>, length: usize) -> Result<(), h2::Error> {
    if length == 0 {
        return Ok(());
    }
    stream.reserve_capacity(1);
    while stream.capacity() == 0 {
        match poll_fn(|cx| stream.poll_capacity(cx)).await {
            Some(capacity) => drop(capacity?),
            None => return Err(Reason::CANCEL.into()),
        }
    }
    Ok(())
}

/// Awaits `future`.
///
/// # Errors
/// If `reset` completes first: the client has cancelled the call or disconnected.
async fn unless_reset<T>(
    future: impl Future<Output = T>,
    mut reset: impl FnMut(&mut Context<'_>) -> Poll<Result<Reason, h2::Error>>,
) -> Result<T, h2::Error> {
    let mut future = pin!(future);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Ok(value)),
        Poll::Pending => Poll::Ready(Err(ready!(reset(cx))?.into())),
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{ReadBuf, join, sink};
    use tokio::sync::Notify;

    use super::*;
    use crate::limits::flood::{CountedIo, PREFACE};

    const CALLS: usize = 100;
    /// The size of one call's headers.
    const HEAD: usize = 60 << 10;

    /// Bytes that a client has sent, and how many of them were read.
    struct Sent {
        bytes: io::Cursor<Vec<u8>>,
        read: Arc<AtomicUsize>,
    }

    impl AsyncRead for Sent {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            into: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let before = into.filled().len();
            ready!(Pin::new(&mut self.bytes).poll_read(cx, into))?;
            let read = into.filled().len() - before;
            self.read.fetch_add(read, Ordering::Relaxed);
            // The client stays connected.
            if read == 0 {
                Poll::Pending
            } else {
                Poll::Ready(Ok(()))
            }
        }
    }

    fn frame(kind: u8, flags: u8, stream: usize, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        let stream = (stream as u32).to_be_bytes();
        [&length[1..], &[kind, flags], &stream, payload].concat()
    }

    /// HEADERS and CONTINUATION of a call with a header of [`HEAD`] bytes.
    fn call(stream: usize) -> Vec<u8> {
        let rest = HEAD - 127;
        let length = [
            0x7f,
            rest as u8 | 0x80,
            (rest >> 7) as u8 | 0x80,
            (rest >> 14) as u8,
        ];
        // `:method: POST`, `:scheme: http`, `:path: /` and `a: xxx...`.
        let head = [&[0x83, 0x86, 0x84, 0, 1, b'a'], &length[..], &[b'x'; HEAD]].concat();
        let mut frames = Vec::new();
        for (at, payload) in head.chunks(16 << 10).enumerate() {
            let is_last = (at + 1) << 14 >= head.len();
            let kind = if at == 0 { 1 } else { 9 };
            frames.extend(frame(kind, if is_last { 4 } else { 0 }, stream, payload));
        }
        frames
    }

    /// No budget counts the headers of a call before the call is accepted.
    #[tokio::test]
    async fn headers_are_read_only_when_the_calls_before_are_accepted() {
        let calls = (0..CALLS).flat_map(|number| call(2 * number + 1));
        let bytes: Vec<u8> = frame(4, 0, 0, &[]).into_iter().chain(calls).collect();
        let (all, read) = (bytes.len(), Arc::new(AtomicUsize::new(0)));
        let sent = Sent {
            bytes: io::Cursor::new(bytes),
            read: Arc::clone(&read),
        };
        let preface: [u8; PREFACE] = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        let (io, _) = CountedIo::of_client(join(sent, sink()), preface);
        let (accepted, over) = (AtomicUsize::new(0), Notify::new());
        let unaccepted = io.unaccepted();
        let answer = |_| {
            let calls = accepted.fetch_add(1, Ordering::Relaxed) + 1;
            let ahead = read.load(Ordering::Relaxed) - all * calls / CALLS;
            assert!(
                ahead < 4 * HEAD,
                "after {calls} calls, {ahead} bytes more were read"
            );
            if calls == CALLS {
                over.notify_one();
            }
            (std::future::pending(), ())
        };
        let served = serve(io, &unaccepted, answer, std::future::pending());
        tokio::select! {
            ended = served => panic!("{ended:?}"),
            () = over.notified() => {}
        }
    }
}
