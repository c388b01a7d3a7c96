//! The states of a backend's connection.

use std::sync::Arc;
use std::time::SystemTime;

use strum::{AsRefStr, VariantNames};

use crate::backend::Wire;

/// The state of the connection.
#[derive(Clone, Debug)]
pub struct Link {
    /// What it is now.
    pub state: State,
    /// Since when.
    pub since: SystemTime,
    /// How many times it has changed.
    pub transitions: u64,
    /// How many connections have failed or ended.
    pub(crate) failures: u64,
}

/// What the connection is now; `Status`, logs and metrics have its name.
#[derive(Clone, Debug, AsRefStr, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum State {
    /// The first connection is being made, or its pods are being listed for the first time, and no probe has gone
    /// without an answer.
    Connecting,
    /// Its pods are listed and it answers.
    Ready(Wire),
    /// It accepts connections, and a probe got no answer. Calls for one pod still go to it; it is probed on, and
    /// listed before it is ready again.
    Unresponsive(Wire, Arc<str>),
    /// It refuses connections, or the last one ended; the next is made by itself, or as soon as a call wants it.
    Down(Arc<str>),
}

impl State {
    /// Why it is not ready, where that is known.
    pub fn cause(&self) -> Option<&Arc<str>> {
        match self {
            State::Connecting | State::Ready(_) => None,
            State::Unresponsive(_, cause) | State::Down(cause) => Some(cause),
        }
    }
}
