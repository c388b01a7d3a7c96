//! A call that makes a pod: until its end is heard, its backend may have one that nobody knows of.

use tokio::time::Instant;

use crate::ownership::{BackendId, Creation};
use crate::switch::Switch;

/// Such a call under way, until this is dropped.
#[derive(Debug)]
pub(crate) struct Creating<'a> {
    switch: &'a Switch,
    creation: Creation,
    sent: bool,
    told: bool,
}

impl Creating<'_> {
    /// It may make a pod from now on.
    pub(crate) fn sent(&mut self) {
        self.sent = true;
        self.switch.owners().sent_creating(self.creation);
    }

    /// The pod has been told and learned. A failure tells nothing: something may be left behind of it.
    pub(crate) fn told(mut self) {
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

/// A call that makes a pod of this uid is to go to `backend`, which has to stay for it.
pub(crate) fn creating(switch: &Switch, backend: BackendId, uid: String) -> Creating<'_> {
    Creating {
        switch,
        creation: switch.owners().begin_creating(backend, uid),
        sent: false,
        told: false,
    }
}
