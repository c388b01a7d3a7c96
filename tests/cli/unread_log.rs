//! criswitch while no process reads its standard error: it still answers calls, drops and counts log lines, and ends at
//! a signal.

use std::io::{BufRead, BufReader, PipeReader};
use std::process::{Child, Command};

use criswitch::telemetry::log_queue::LOG_QUEUE_BYTES;
use criswitch_cri::codec::cri::StatusRequest;

use crate::serve::one_backend;
use crate::support::{Client, ConfigFiles, PATIENCE, Sim};
use crate::text;

/// A number of rejected calls whose log lines do not fit in a pipe.
const A_PIPE: usize = 1000;
/// A number of rejected calls whose log lines do not fit in the pipe and the queue together.
const TOO_MANY: usize = A_PIPE + LOG_QUEUE_BYTES / 100;
/// The number of calls that are sent at the same time.
const AT_ONCE: usize = 100;

/// A daemon whose standard error is a pipe.
struct Unread {
    process: Child,
    client: Client,
    _files: ConfigFiles,
}

impl Unread {
    async fn start() -> (Unread, PipeReader) {
        let (files, listen, backend) = one_backend();
        Sim::new("runc").serve_on(&backend);
        let (reader, writer) = std::io::pipe().unwrap();
        let mut serve = crate::daemon(text(&files.main()));
        let process = serve.stderr(writer).spawn().unwrap();
        let _files = files;
        let client = Client::new(&listen);
        let unread = Unread {
            process,
            client,
            _files,
        };
        unread.status().await;
        (unread, reader)
    }

    /// Waits until the daemon answers.
    async fn status(&self) {
        let asked = async {
            let ask = || async { self.client.runtime().status(StatusRequest::default()).await };
            while ask().await.is_err() {}
        };
        tokio::time::timeout(PATIENCE, asked).await.unwrap();
    }

    /// Makes at least this many calls, each of which is rejected with a log line. Returns the number of calls.
    async fn reject(&self, calls: usize) -> usize {
        let rounds = calls.div_ceil(AT_ONCE);
        for _ in 0..rounds {
            let calls = (0..AT_ONCE).map(|_| self.client.run_pod("unknown", "web"));
            let answered = futures_util::future::join_all(calls);
            let answered = tokio::time::timeout(PATIENCE, answered).await;
            for rejected in answered.expect("calls are answered") {
                let rejected = rejected.unwrap_err();
                assert_eq!(rejected.code(), tonic::Code::InvalidArgument, "{rejected}");
            }
        }
        rounds * AT_ONCE
    }

    async fn ends(mut self) {
        let pid = self.process.id().to_string();
        let kill = Command::new("kill").args(["-s", "TERM", &pid]).status();
        assert!(kill.unwrap().success());
        let ended = tokio::task::spawn_blocking(move || self.process.wait().unwrap());
        let ended = tokio::time::timeout(PATIENCE, ended).await;
        assert_eq!(ended.expect("SIGTERM ends it").unwrap().code(), Some(0));
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

#[tokio::test]
async fn an_unread_standard_error_delays_neither_calls_nor_the_shutdown() {
    let (daemon, _reader) = Unread::start().await;
    daemon.reject(A_PIPE).await;
    daemon.status().await;
    daemon.ends().await;
}

#[tokio::test]
async fn one_line_reports_the_number_of_dropped_lines_when_a_reader_is_back() {
    let (daemon, reader) = Unread::start().await;
    let sent = daemon.reject(TOO_MANY).await;
    let mut lines = BufReader::new(reader).lines().map(Result::unwrap);
    let read = move || {
        let mut rejected = 0;
        loop {
            let line = lines.next().unwrap();
            if let Some((_, dropped)) = line.split_once("log lines were dropped: ") {
                return (rejected, dropped.to_owned(), lines);
            }
            rejected += usize::from(line.contains("InvalidArgument"));
        }
    };
    let read = tokio::time::timeout(PATIENCE, tokio::task::spawn_blocking(read)).await;
    let (rejected, dropped, _reader) = read.expect("a report").unwrap();
    let dropped: usize = dropped.rsplit_once("lines=").unwrap().1.parse().unwrap();
    assert_eq!(
        rejected + dropped,
        sent,
        "{rejected} lines, {dropped} dropped"
    );
    assert!(
        dropped > 0 && rejected > A_PIPE,
        "{rejected} lines, {dropped} dropped"
    );
    daemon.ends().await;
}
