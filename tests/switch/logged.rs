//! The log lines of a test.

use std::io;
use std::sync::{Arc, Mutex, OnceLock};

/// A second subscriber, which drops all lines. With a single subscriber, the first thread that reaches a log line
/// decides for all threads whether the line is enabled. That thread may belong to a test without a log. With two
/// subscribers, `tracing` asks both.
static SECOND: OnceLock<tracing::Dispatch> = OnceLock::new();

/// The log of this thread while this value lives.
pub struct Logged {
    text: Arc<Mutex<Vec<u8>>>,
    _until: tracing::subscriber::DefaultGuard,
}

impl Logged {
    pub fn here() -> Logged {
        SECOND.get_or_init(|| {
            tracing_subscriber::fmt()
                .with_writer(io::sink)
                .finish()
                .into()
        });
        let text = Arc::new(Mutex::new(Vec::new()));
        let lines = Writer(Arc::clone(&text));
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || lines.clone())
            .finish();
        let _until = tracing::subscriber::set_default(subscriber);
        Logged { text, _until }
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.text.lock().unwrap().clone()).unwrap()
    }

    /// The lines that contain all of these words.
    pub fn lines(&self, words: &[&str]) -> Vec<String> {
        let text = self.text();
        let lines = text.lines();
        let with_all = lines.filter(|line| words.iter().all(|word| line.contains(word)));
        with_all.map(str::to_owned).collect()
    }
}

#[derive(Clone)]
struct Writer(Arc<Mutex<Vec<u8>>>);

impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
