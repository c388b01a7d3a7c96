//! A call that makes a pod: until its end is heard, its backend may have one that nobody knows of.

use tokio::time::Instant;

use super::Switch;
use crate::owners::{BackendId, Creation};

/// Such a call under way, until this is dropped.
#[derive(Debug)]
pub(super) struct Creating<'a> {
    switch: &'a Switch,
    creation: Creation,
    sent: bool,
    told: bool,
}

impl Creating<'_> {
    /// It may make a pod from now on.
    pub(super) fn sent(&mut self) {
        self.sent = true;
        self.switch.owners().sent_creating(self.creation);
    }

    /// The pod has been told and learned. A failure tells nothing: something may be left behind of it.
    pub(super) fn told(mut self) {
        self.told = true;
    }
}

impl Drop for Creating<'_> {
    fn drop(&mut self) {
        let unheard = (self.sent && !self.told).then(Instant::now);
        let mut owners = self.switch.owners();
        owners.end_creating(self.creation, unheard);
    }
}

impl Switch {
    /// A call that makes a pod of this uid is to go to `backend`, which has to stay for it.
    pub(super) fn creating(&self, backend: BackendId, uid: String) -> Creating<'_> {
        Creating {
            switch: self,
            creation: self.owners().begin_creating(backend, uid),
            sent: false,
            told: false,
        }
    }
}
