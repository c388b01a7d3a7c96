//! The queue of log lines, with a limit, and the thread that writes them.
//!
//! The thread that serves calls only adds to the queue. If standard error is not read, the queue fills, and further
//! lines are dropped and counted. Calls and probes never wait for standard error, and the exit waits for at most
//! [`LAST_LINES`].

use std::borrow::Cow;
use std::convert::Infallible;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tracing_subscriber::fmt::MakeWriter;

/// The limit on waiting log lines, in bytes. The writing thread may hold the same amount again. A line that does not
/// fit is dropped.
pub const LOG_QUEUE_BYTES: usize = 1 << 20;
/// The longest time that the exit waits for the last lines to be written.
pub const LAST_LINES: Duration = Duration::from_secs(1);
/// The bytes that end a line.
const LINE_BREAKS: [u8; 2] = *b"\n\r";
/// The size of the writing thread's stack. The thread formats only the line about dropped lines, so it needs little
/// stack.
const STACK_BYTES: usize = 128 << 10;

/// Log lines that wait to be written. Clones share one queue.
#[derive(Clone, Debug, Default)]
pub struct LogQueue(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    writer: OnceLock<ThreadId>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// The bytes of complete lines.
    lines: Vec<u8>,
    /// The number of lines dropped since the start of the process.
    dropped: u64,
    ended: bool,
}

/// The handle of the writing thread. A drop of the handle waits until the waiting lines are written, but at most
/// [`LAST_LINES`].
#[derive(Debug)]
pub struct LogWriter {
    queue: LogQueue,
    /// Disconnects when the thread has ended.
    ended: Receiver<Infallible>,
}

impl LogQueue {
    /// Adds a line, or drops it if the queue is full. Never waits for the output.
    pub fn add(&self, line: &[u8]) {
        let mut waiting = self.0.waiting.lock();
        if self.0.writer.get() == Some(&thread::current().id()) {
            // Only the line about dropped lines comes from the writing thread. The dropped lines came before the
            // waiting lines, so the line about them goes before the waiting lines, even if the queue is full.
            waiting.lines.splice(0..0, line.iter().copied());
        } else if waiting.lines.len() + line.len() > LOG_QUEUE_BYTES {
            waiting.dropped += 1;
        } else {
            waiting.lines.extend_from_slice(line);
        }
        drop(waiting);
        self.0.changed.notify_one();
    }

    /// The number of lines dropped since the start of the process.
    pub fn dropped(&self) -> u64 {
        self.0.waiting.lock().dropped
    }

    /// Starts the thread that writes the lines to `out`. After lines were dropped and the output can be written again,
    /// the thread calls `report` with the number of dropped lines. The line that `report` logs precedes later lines.
    ///
    /// # Errors
    /// The system cannot start the thread.
    pub fn write_to(
        &self,
        out: impl Write + Send + 'static,
        report: impl Fn(u64) + Send + 'static,
    ) -> io::Result<LogWriter> {
        let (sending, ended) = sync_channel(0);
        let queue = self.clone();
        let thread = thread::Builder::new().name("log".to_owned());
        thread.stack_size(STACK_BYTES).spawn(move || {
            queue.0.writer.set(thread::current().id()).ok();
            queue.write_all(out, &report);
            drop(sending);
        })?;
        let queue = self.clone();
        Ok(LogWriter { queue, ended })
    }

    fn write_all(&self, mut out: impl Write, report: &impl Fn(u64)) {
        let mut reported = 0;
        while let Some((lines, dropped)) = self.next() {
            if out.write_all(&lines).is_err() {
                let lost = lines.iter().filter(|byte| **byte == b'\n').count();
                self.0.waiting.lock().dropped += lost as u64;
            } else if dropped > reported {
                report(dropped - reported);
                reported = dropped;
            }
        }
    }

    /// Waits for lines. Returns all waiting lines with the number of lines dropped so far; `None` if the [`LogWriter`]
    /// was dropped and no lines wait.
    fn next(&self) -> Option<(Vec<u8>, u64)> {
        let mut waiting = self.0.waiting.lock();
        let changed = &self.0.changed;
        changed.wait_while(&mut waiting, |it| it.lines.is_empty() && !it.ended);
        let lines = std::mem::take(&mut waiting.lines);
        (!lines.is_empty()).then_some((lines, waiting.dropped))
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        self.queue.0.waiting.lock().ended = true;
        self.queue.0.changed.notify_one();
        self.ended.recv_timeout(LAST_LINES).ok();
    }
}

/// tracing-subscriber writes each line with one call of `write`, so `write` gets complete lines.
impl<'a> MakeWriter<'a> for LogQueue {
    type Writer = &'a LogQueue;

    fn make_writer(&'a self) -> &'a LogQueue {
        self
    }
}

impl Write for &LogQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.add(&on_one_line(line));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Escapes line breaks before the end of `line`, so that no text of a backend or client can begin a line.
fn on_one_line(line: &[u8]) -> Cow<'_, [u8]> {
    let text = line.strip_suffix(b"\n").unwrap_or(line);
    if !text.iter().any(|byte| LINE_BREAKS.contains(byte)) {
        return line.into();
    }
    let escaped = text.iter().flat_map(|byte| {
        if LINE_BREAKS.contains(byte) {
            byte.escape_ascii().collect::<Vec<u8>>()
        } else {
            vec![*byte]
        }
    });
    escaped.chain(*b"\n").collect()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use super::*;

    /// An output for tests. Each write waits for a message on `turns`. Writes fail after the sender of `turns` is
    /// dropped.
    struct Turns {
        turns: Receiver<()>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Turns {
        fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
            self.turns.recv().map_err(io::Error::other)?;
            self.written.lock().extend_from_slice(lines);
            Ok(lines.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A queue whose report is the line `dropped N`, its writer, the sender of turns, and the written bytes.
    fn queue() -> (
        LogQueue,
        LogWriter,
        std::sync::mpsc::Sender<()>,
        Arc<Mutex<Vec<u8>>>,
    ) {
        let (give, turns) = channel();
        let written = Arc::default();
        let (queue, out) = (
            LogQueue::default(),
            Turns {
                turns,
                written: Arc::clone(&written),
            },
        );
        let reports = queue.clone();
        let report = move |lines: u64| reports.add(format!("dropped {lines}\n").as_bytes());
        let writer = queue.write_to(out, report).unwrap();
        (queue, writer, give, written)
    }

    fn text(written: &Mutex<Vec<u8>>) -> String {
        String::from_utf8(written.lock().clone()).unwrap()
    }

    /// Waits until the writing thread has removed all lines from the queue.
    fn taken(queue: &LogQueue) {
        while !queue.0.waiting.lock().lines.is_empty() {
            thread::yield_now();
        }
    }

    #[test]
    fn no_text_begins_a_line_of_its_own() {
        let (queue, writer, give, written) = queue();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .without_time()
            .with_writer(queue)
            .finish();
        let hostile = "metric\r\n<3>criswitch: forged";
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(%hostile, "omitted {hostile}");
        });
        give.send(()).unwrap();
        drop(writer);
        let text = text(&written);
        let escaped = r"metric\r\n<3>criswitch: forged";
        assert_eq!(text.matches(escaped).count(), 2, "{text}");
        assert_eq!(text.find(['\r', '\n']), Some(text.len() - 1), "{text}");
    }

    #[test]
    fn a_report_stands_where_lines_were_dropped() {
        let (queue, writer, give, written) = queue();
        queue.add(b"first\n");
        taken(&queue);
        let long = [&[b'x'; LOG_QUEUE_BYTES - 1][..], b"\n"].concat();
        queue.add(&long);
        queue.add(b"no room\n");
        queue.add(b"no room\n");
        assert_eq!(queue.dropped(), 2);
        give.send(()).unwrap();
        taken(&queue);
        queue.add(b"last\n");
        (0..3).for_each(|_| give.send(()).unwrap());
        drop(writer);
        let long = String::from_utf8(long).unwrap();
        assert_eq!(text(&written), format!("first\n{long}dropped 2\nlast\n"));
        assert_eq!(queue.dropped(), 2);
    }

    #[test]
    fn lines_that_cannot_be_written_count_as_dropped_without_a_report() {
        let (queue, writer, give, written) = queue();
        drop(give);
        queue.add(b"one\n");
        taken(&queue);
        queue.add(b"two\nthree\n");
        drop(writer);
        assert_eq!((queue.dropped(), text(&written)), (3, String::new()));
    }

    #[test]
    fn the_end_waits_a_limited_time_for_an_output_that_hangs() {
        let (queue, writer, _give, _) = queue();
        queue.add(b"one\n");
        let begun = Instant::now();
        drop(writer);
        assert!(begun.elapsed() >= LAST_LINES);
    }
}
