//! The states of a backend's connection.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use criswitch_config::wording::span;
use strum::{AsRefStr, VariantNames};
use tokio::time::Instant;

use crate::backend::wire::Wire;

/// The state of the connection.
#[derive(Clone, Debug)]
pub struct Link {
    /// The current state.
    pub state: State,
    /// When the state began.
    pub since: SystemTime,
    /// How many times the state has changed.
    pub transitions: u64,
    /// When the state last stopped being [`State::Ready`]; `None` if it has not in this run of criswitch.
    pub(crate) ready_until: Option<Instant>,
    /// When the state last became [`State::Ready`].
    pub(crate) ready_since: Option<Instant>,
    /// How many times the state has stopped being [`State::Ready`], without being so for [`STABLE`] in between.
    pub(crate) losses: u32,
    /// Since when a connection has been open; `None` if none is open.
    pub(crate) open_since: Option<Instant>,
    /// Whether a short read has waited too long for a connection since the backend was last ready.
    pub(crate) is_slow: bool,
    /// How many connections have failed or ended.
    pub(crate) failures: u64,
    /// Whether the backend closed its last connection before it became ready, so that the next one may end so too.
    pub(crate) closes_early: bool,
}

/// A backend that stays ready for this long is stable.
const STABLE: Duration = Duration::from_secs(60);
/// A backend that has stopped being ready this many times, without being stable in between, has a fault until it is
/// stable. A restart of a runtime, and the restart after it, are not a fault.
const LOSSES_OF_FAULT: u32 = 3;

impl Link {
    /// Records that the state becomes or stops being [`State::Ready`].
    pub(super) fn note_ready(&mut self, is_ready: bool) {
        let now = Instant::now();
        if is_ready {
            self.ready_since = Some(now);
        } else {
            self.losses = if self.is_stable() {
                1
            } else {
                self.losses.saturating_add(1)
            };
            self.ready_until = Some(now);
        }
    }

    fn is_stable(&self) -> bool {
        self.ready_since
            .is_none_or(|since| since.elapsed() >= STABLE)
    }

    /// Why the backend has a fault although it is ready, as a sentence without its subject: it stops being ready again
    /// and again. `None` if it is stable. So a runtime that crashes every few seconds does not look healthy in between.
    pub(crate) fn instability(&self) -> Option<String> {
        if self.losses < LOSSES_OF_FAULT || self.is_stable() {
            return None;
        }
        let last = self
            .ready_until
            .map(|at| span(at.elapsed()))
            .unwrap_or_default();
        Some(format!(
            "it has stopped being ready {} times, with less than {} ready in between, the last time {last} ago; see the log \
             of its runtime",
            self.losses,
            span(STABLE)
        ))
    }
}

/// The state of a connection. `Status`, logs and metrics show its name in lower case.
#[derive(Clone, Debug, AsRefStr, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum State {
    /// criswitch opens the first connection, or lists the pods for the first time. No probe has failed yet.
    Connecting,
    /// The pods are listed and the backend answers.
    Ready(Wire),
    /// The backend accepts connections, but a probe or one of criswitch's first calls got no answer. No call of a
    /// client goes to it. Probes go on, and the pods are listed before the backend is ready again.
    Unresponsive(Wire, Arc<str>),
    /// Connecting failed, or the last connection ended. The session retries after a pause, or when a call needs a
    /// connection.
    Down(Arc<str>),
}

/// Whether a backend fails, and since when. A change between two states that are not ready does not restart the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failing {
    /// The backend is ready.
    No,
    /// The backend is not ready. It was last ready at this time, or, if it was never ready in this run of criswitch, it
    /// last answered at this time.
    Since(Instant),
    /// criswitch knows of no answer of the backend.
    NeverAnswered,
}

impl State {
    /// Why the backend is not ready, if known.
    pub fn cause(&self) -> Option<&Arc<str>> {
        match self {
            State::Connecting | State::Ready(_) => None,
            State::Unresponsive(_, cause) | State::Down(cause) => Some(cause),
        }
    }
}
