//! Where a call goes, by what is known of the pods and containers; whom nobody knows is asked for, never guessed.

use std::sync::Arc;

use tonic::Status;

use super::Switch;
use crate::call::Call;
use crate::counts::Reason;
use crate::live::Live;
use crate::owners::BackendId;
use crate::route::{Known, Refusal, Target};
use crate::rpc::{Kind, Then};
use crate::{status, telemetry};

impl Switch {
    /// Where a request goes, all backends asked if nobody is known to own its id.
    pub(super) async fn target(self: &Arc<Self>, call: &Call) -> Result<Target, Status> {
        let row = call.row;
        let target = self
            .with_known(&call.live, |known| known.route(row, &call.message()))
            .map_err(|refusal| self.refuse(call, refusal))?;
        match target {
            Target::Miss(kind, id) => self.after_miss(call, kind, id).await,
            Target::UnknownPod(uid) => self.after_unknown_pod(call, &uid).await,
            target => Ok(target),
        }
    }

    /// Asks all backends for the pod of a pull, and returns where the pull goes. A backend that does not answer may have
    /// the pod.
    async fn after_unknown_pod(self: &Arc<Self>, call: &Call, uid: &str) -> Result<Target, Status> {
        let answered = self.question.ask(self).await;
        answered.map_err(|unanswered| status::pod_unknown(uid, &unanswered))?;
        self.with_known(&call.live, |known| known.after_unknown_pod(uid))
            .map_err(|refusal| self.refuse(call, refusal))
    }

    /// Asks all backends for an id that nobody is known to own, and returns where its call goes.
    async fn after_miss(
        self: &Arc<Self>,
        call: &Call,
        kind: Kind,
        id: String,
    ) -> Result<Target, Status> {
        let answered = self.question.ask(self).await;
        let target = self
            .with_known(&call.live, |known| known.after_miss(kind, &id))
            .map_err(|refusal| self.refuse(call, refusal))?;
        match (&target, answered) {
            // The full id, so no other backend can have it.
            (Target::Owner(_, _, full), _) if *full == id => Ok(target),
            // All are asked for what begins so, and what was last known of a silent one stands in for it.
            (Target::Owner(..), Err(_)) if matches!(call.row.then, Then::Learn(_)) => {
                Ok(Target::Backends(call.live.all()))
            }
            (_, Err(unanswered)) => Err(status::owner_unknown(kind, &id, &unanswered)),
            (_, Ok(())) => Ok(target),
        }
    }

    fn refuse(&self, call: &Call, refusal: Refusal) -> Status {
        let name = |id: BackendId| {
            let backend = call.live.backend(id);
            backend.map_or_else(|_| "?".into(), |backend| backend.name())
        };
        match refusal {
            Refusal::Malformed(fault) => status::malformed(call.row.name, &fault),
            Refusal::UnknownHandler(handler) => {
                self.counts.refuse(Reason::UnknownHandler);
                telemetry::note_handler(&handler);
                unknown_handler(&handler, &call.live)
            }
            Refusal::EmptyId(kind) => status::empty_id(call.row.name, kind),
            Refusal::Ambiguous(prefix) => status::ambiguous(&prefix),
            Refusal::Disputed(kind, id, one, other) => {
                status::disputed(kind, &id, &name(one), &name(other))
            }
            Refusal::DoubledPod(uid, backends) => {
                let names: Vec<_> = backends.into_iter().map(name).collect();
                status::doubled_pod(&uid, &names)
            }
        }
    }

    fn with_known<T>(&self, live: &Live, use_it: impl FnOnce(Known<'_>) -> T) -> T {
        let owners = self.owners();
        use_it(Known {
            table: &live.table,
            speaker: live.speaker(),
            all: &live.all(),
            owners: &owners,
            complete: self.question.complete(live),
        })
    }
}

fn unknown_handler(handler: &str, live: &Live) -> Status {
    match live.untold() {
        Some(backend) => status::untold_handler(handler, &backend.name(), &backend.socket),
        None => status::unknown_handler(handler, &live.table),
    }
}
