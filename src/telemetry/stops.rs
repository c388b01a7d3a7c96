//! The last containers that clients stopped, so that `criswitch node apply` knows which containers ended on their own.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// The most containers that are remembered.
const MOST: usize = 1024;
/// The longest id that is remembered, in bytes. A client may send a longer one, but no container has it.
const LONGEST: usize = 1024;

/// The ids of containers for which a client called `StopContainer`.
#[derive(Debug, Default)]
pub struct Stops(Mutex<VecDeque<String>>);

impl Stops {
    pub(crate) fn note(&self, id: &str) {
        if id.len() > LONGEST {
            return;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_clients_take_limited_memory() {
        let stops = Stops::default();
        stops.note(&"x".repeat(LONGEST + 1));
        assert!(stops.all().is_empty());
        for number in 0..2 * MOST {
            stops.note(&number.to_string());
        }
        assert_eq!(stops.all().len(), MOST);
    }
}
