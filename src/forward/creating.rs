//! A call that creates a pod: until its reply is read, its backend may have an unknown pod.

use tokio::time::Instant;

use crate::ownership::{BackendId, Creation};
use crate::switch::Switch;

/// A call in flight that creates a pod, until this is dropped.
#[derive(Debug)]
pub(crate) struct Creating<'a> {
    switch: &'a Switch,
    creation: Creation,
    sent: bool,
    told: bool,
}

impl Creating<'_> {
    /// The call may create a pod from now on.
    pub(crate) fn sent(&mut self) {
        self.sent = true;
        self.switch.owners().sent_creating(self.creation);
    }

    /// The backend reported the pod, and criswitch learned it. After a failed call, parts of a pod may still exist.
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

/// A call that creates a pod of this uid is about to go to `backend`, so a reload must keep the backend.
pub(crate) fn creating(switch: &Switch, backend: BackendId, uid: String) -> Creating<'_> {
    Creating {
        switch,
        creation: switch.owners().begin_creating(backend, uid),
        sent: false,
        told: false,
    }
}
