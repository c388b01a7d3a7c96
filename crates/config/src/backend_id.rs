//! The ids of backends.

/// Identifies a backend: unique for the life of the process, never reused. An id is not a position in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendId(u32);

impl BackendId {
    /// The id with this number, for tests. The daemon gets each id from [`BackendIds`].
    pub const fn new(number: u32) -> BackendId {
        BackendId(number)
    }
}

/// Issues the ids of backends, each once.
#[derive(Clone, Debug, Default)]
pub struct BackendIds {
    next: u32,
}

impl BackendIds {
    /// Issues none of the `used` ids.
    pub fn except(used: impl Iterator<Item = BackendId>) -> BackendIds {
        BackendIds {
            next: used
                .map(|BackendId(number)| number + 1)
                .max()
                .unwrap_or_default(),
        }
    }

    /// Returns an id that was never issued before.
    pub fn issue(&mut self) -> BackendId {
        let id = BackendId(self.next);
        self.next += 1;
        id
    }
}
