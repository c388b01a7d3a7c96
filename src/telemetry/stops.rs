//! The last containers that clients stopped, so that `criswitch node apply` knows which containers ended on their own.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// The most containers that are remembered.
const MOST: usize = 1024;

/// The ids of containers for which a client called `StopContainer`.
#[derive(Debug, Default)]
pub struct Stops(Mutex<VecDeque<String>>);

impl Stops {
    pub(crate) fn note(&self, id: &str) {
        let mut all = self.0.lock();
        if all.len() == MOST {
            all.pop_front();
        }
        all.push_back(id.to_owned());
    }

    /// The remembered ids, the newest at the end.
    pub fn all(&self) -> Vec<String> {
        self.0.lock().iter().cloned().collect()
    }
}
