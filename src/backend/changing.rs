//! A call that may change a backend's image store: a list from before its end does not count any more.

use super::Backend;
use crate::rpc::{List, Row};

/// Such a call from when it is sent until this is dropped; `None` for any other.
#[derive(Debug)]
pub(super) struct Changing<'a>(Option<&'a Backend>);

impl Changing<'_> {
    /// It was refused. Whatever else ends it, the store may be another one.
    pub(super) fn refused(mut self) {
        self.0 = None;
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        if let Some(backend) = self.0 {
            backend.outdate(List::Images);
            // A list that is under way does not count either.
            backend.has_changed();
        }
    }
}

impl Backend {
    /// A call of `row` is sent now.
    pub(super) fn changing(&self, row: &Row) -> Changing<'_> {
        Changing(row.changes_images().then_some(self))
    }
}
