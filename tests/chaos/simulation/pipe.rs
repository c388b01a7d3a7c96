//! A backend's end of a connection in memory. The pipe can block, like a stopped process, or move only a few bytes at
//! once.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

/// A valve that all connections of a backend share.
#[derive(Clone, Default)]
pub struct Valve(Arc<Mutex<Setting>>);

#[derive(Default)]
struct Setting {
    shut: bool,
    /// The largest number of bytes of one write; 0 means no limit.
    sip: usize,
    waiting: Vec<Waker>,
}

impl Valve {
    /// Shuts or opens the valve. A shut valve lets no byte through.
    pub fn set_shut(&self, shut: bool) {
        let mut setting = self.0.lock().unwrap();
        setting.shut = shut;
        setting.waiting.drain(..).for_each(Waker::wake);
    }

    pub fn is_shut(&self) -> bool {
        self.0.lock().unwrap().shut
    }

    /// Limits the bytes of one write; 0 means no limit.
    pub fn sip(&self, bytes: usize) {
        self.0.lock().unwrap().sip = bytes;
    }

    /// How many of `wanted` bytes may pass now.
    fn pass(&self, wanted: usize, cx: &Context<'_>) -> Poll<usize> {
        let mut setting = self.0.lock().unwrap();
        if setting.shut {
            setting.waiting.push(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(match setting.sip {
            0 => wanted,
            sip => wanted.min(sip),
        })
    }
}

pub struct Pipe {
    stream: DuplexStream,
    valve: Valve,
}

impl Pipe {
    pub fn new(stream: DuplexStream, valve: Valve) -> Pipe {
        Pipe { stream, valve }
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.valve.pass(0, cx) {
            Poll::Ready(_) => Pin::new(&mut self.stream).poll_read(cx, buffer),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.valve.pass(bytes.len(), cx) {
            Poll::Ready(count) => Pin::new(&mut self.stream).poll_write(cx, &bytes[..count]),
            Poll::Pending => Poll::Pending,
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
