//! The states of a backend's connection.

use std::sync::Arc;
use std::time::SystemTime;

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
    /// Since when a connection has been open; `None` if none is open.
    pub(crate) open_since: Option<Instant>,
    /// Whether a short read has waited too long for a connection since the backend was last ready.
    pub(crate) is_slow: bool,
    /// How many connections have failed or ended.
    pub(crate) failures: u64,
    /// Whether the backend closed its last connection before it became ready, so that the next one may end so too.
    pub(crate) closes_early: bool,
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
