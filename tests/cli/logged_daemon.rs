//! The whole log of a running daemon.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use crate::processes;
use crate::support::{ConfigFiles, PATIENCE};
use crate::text;

/// A running daemon with every line of its log. The daemon is killed if the test ends first.
pub(crate) struct LoggedDaemon {
    child: Child,
    lines: Receiver<String>,
    log: Vec<String>,
}

impl LoggedDaemon {
    /// Starts the daemon and waits until it serves.
    pub(crate) fn start(files: &ConfigFiles) -> LoggedDaemon {
        LoggedDaemon::start_as(crate::daemon(text(&files.main())))
    }

    /// Starts the daemon with this command and waits until it serves.
    pub(crate) fn start_as(mut serve: Command) -> LoggedDaemon {
        processes::with_own_state(&serve);
        let mut child = serve.stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let lines = stderr.lines().map(Result::unwrap);
            lines.for_each(|line| sender.send(line).unwrap_or_default());
        });
        let log = Vec::new();
        let mut shown = LoggedDaemon { child, lines, log };
        shown.until("socket_activated");
        shown
    }

    /// Waits for a log line that contains `words`, and returns the line.
    #[track_caller]
    pub(crate) fn until(&mut self, words: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self
                .lines
                .recv_timeout(left)
                .unwrap_or_else(|_| panic!("no {words:?} in {:#?}", self.log));
            self.log.push(line.clone());
            if line.contains(words) {
                return line;
            }
        }
    }

    /// The log lines since the last call, without waiting for more.
    pub(crate) fn so_far(&mut self) -> impl Iterator<Item = &String> {
        let seen = self.log.len();
        self.log.extend(self.lines.try_iter());
        self.log.iter().skip(seen)
    }

    pub(crate) fn ends(mut self) {
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let kill = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(kill.unwrap().success());
    }

    /// Kills the daemon and returns its whole log.
    pub(crate) fn end(mut self) -> String {
        self.child.kill().unwrap();
        self.log.extend(self.lines.iter());
        self.log.join("\n")
    }
}

impl Drop for LoggedDaemon {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
