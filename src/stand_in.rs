//! What a merged reply has of a backend that does not answer: its last known list, or nothing where that is allowed.

use bytes::Bytes;
use tonic::{Code, Status};

use crate::backend::Backend;
use crate::call::{Call, Failed};
use crate::fanout::Share;
use crate::filter::filter;
use crate::rpc::{self, Kind, List, Silent, Then};
use crate::switch::Switch;

impl Switch {
    /// What one backend has to say to a merged call: its `own` share, or what may stand in for that.
    ///
    /// It is waited for as long as its `list_timeout` if something can stand in, else until it is proven to hang.
    ///
    /// # Errors
    /// What `own` says; `Unavailable` if the backend hangs.
    pub(crate) async fn with_stand_in(
        &self,
        call: &Call,
        backend: &Backend,
        own: impl Future<Output = Result<Share, Failed>>,
    ) -> Result<Share, Failed> {
        if let Some(status) = backend.silence(call.row)
            && let Some(share) = self.stand_in(call, backend, &status)
        {
            return Ok(share);
        }
        let mut own = std::pin::pin!(backend.patiently(own));
        let answered = match tokio::time::timeout(backend.list_timeout(), &mut own).await {
            Ok(answered) => answered,
            Err(_) => {
                let status = backend.unavailable("it is late");
                let share = self.stand_in(call, backend, &status);
                // A last list may be had by the next call.
                match share.is_some() || call.row.is_list() {
                    true => backend.is_late(call.row),
                    false => backend.suspect(),
                }
                match share {
                    Some(share) => return Ok(share),
                    None => own.await,
                }
            }
        };
        match answered {
            Err(Failed::Status(status)) if status.code() == Code::Unavailable => {
                let Some(share) = self.stand_in(call, backend, &status) else {
                    return Err(Failed::Status(status));
                };
                // Its connection may live on, and then nothing else would tell that it answers again.
                backend.miss(call.row);
                Ok(share)
            }
            answered => answered,
        }
    }

    /// What stands in for `backend`, which is silent as `status` says; `None` if nothing can.
    fn stand_in(&self, call: &Call, backend: &Backend, status: &Status) -> Option<Share> {
        let is_default = backend.id == call.live.speaker();
        match (call.row.merge().and_then(rpc::silent)?, &call.row.then) {
            (Silent::LastKnown, Then::Learn(list)) => {
                let message = self.last_known(call, *list, backend)?;
                backend.stands_in(call.row, status);
                Some(Share::Message(message))
            }
            (Silent::LeftOut, _) => Some(leave_out(call, backend, status)),
            (Silent::LeftOutUnlessDefault, _) if !is_default => {
                Some(leave_out(call, backend, status))
            }
            _ => None,
        }
    }

    /// The last whole list of `backend`, as the call filters it; `None` if it is too old, or lacks what the backend
    /// is known to own.
    fn last_known(&self, call: &Call, list: List, backend: &Backend) -> Option<Bytes> {
        let snapshot = backend.known().lists.get(list)?.clone();
        if snapshot.age() >= self.live().config.stale_lists {
            return None;
        }
        let request = call.message();
        let filtered = match list.kind() {
            None => filter(list, &snapshot.message, &request, |_| true),
            Some(kind) => {
                let owners = self.owners();
                let owned = owners.of(kind, backend.id);
                let mut missing = owned.clone();
                let filtered = filter(list, &snapshot.message, &request, |id| {
                    missing.remove(id);
                    owned.contains(id)
                });
                // A pod that came after the list would look gone; and on a container whose pod no list of pods has,
                // the kubelet crashes.
                let stray = kind == Kind::Container && owners.has_stray(backend.id);
                (missing.is_empty() && !stray).then_some(filtered)?
            }
        };
        let message = filtered.ok()?;
        let renamed = self.listed_as(list, backend, &message).ok()?;
        Some(renamed.unwrap_or(message))
    }
}

fn leave_out(call: &Call, backend: &Backend, status: &Status) -> Share {
    backend.is_left_out(call.row, status);
    Share::Nothing(status.clone().into())
}
