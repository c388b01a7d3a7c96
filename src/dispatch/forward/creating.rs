//! Records calls that create pods. Until criswitch has read the reply, the backend may have a pod that criswitch does
//! not know.

use criswitch_config::BackendId;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::ownership::{Creation, Owners};

/// A guard for a call in flight that creates a pod. Dropping the guard records the end of the call.
#[derive(Debug)]
pub(crate) struct Creating<'a> {
    owners: &'a Mutex<Owners>,
    creation: Creation,
    sent: bool,
    learned: bool,
}

impl Creating<'_> {
    /// Records that the call is being sent. From now on it may create a pod.
    pub(crate) fn sent(&mut self) {
        self.sent = true;
        self.owners.lock().creations.sent(self.creation);
    }

    /// Records that criswitch has learned the pod from the backend's reply. Without this record, criswitch assumes that
    /// a pod may exist: a failed call may leave parts of a pod.
    pub(crate) fn learned(mut self) {
        self.learned = true;
    }
}

impl Drop for Creating<'_> {
    fn drop(&mut self) {
        let unanswered = (self.sent && !self.learned).then(Instant::now);
        let mut owners = self.owners.lock();
        owners.creations.end(self.creation, unanswered);
    }
}

/// Records a call to `backend` that will create a pod with this uid. A reload keeps the backend while the returned
/// guard lives.
pub(crate) fn creating(owners: &Mutex<Owners>, backend: BackendId, uid: String) -> Creating<'_> {
    Creating {
        owners,
        creation: owners.lock().creations.begin(backend, uid),
        sent: false,
        learned: false,
    }
}
