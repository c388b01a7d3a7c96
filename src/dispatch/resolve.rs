//! Finds the target of a call from the known pods and containers. If an id is unknown, criswitch asks all backends and
//! does not guess.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use criswitch_config::BackendId;
use criswitch_cri::rpc::{Kind, Patience};
use tokio::time::Instant;
use tonic::Status;

use crate::backend::Backend;
use crate::call::Request;
use crate::call::log::{self, CallLog};
use crate::call::route::{Knowledge, Target, Unroutable};
use crate::dispatch::fanout::fallback;
use crate::dispatch::forward::short;
use crate::dispatch::own;
use crate::errors;
use crate::ownership::may_be_short;
use crate::switch::Switch;
use crate::telemetry::counters::{Counts, Reason};
use crate::topology::Live;

/// The target of a request. If the owner is not connected, waits for its connection: criswitch lists the owner before
/// it is ready, and these lists may show that the owner lost the item and that another backend has it.
pub(crate) async fn target(
    switch: &Arc<Switch>,
    request: &Request,
    log: &CallLog,
) -> Result<Target, Status> {
    let search = Search { switch, request };
    let target = search.known_target().await?;
    if let Target::Owner(owner, kind, id) = &target
        && !request.row.is_list()
        && let Ok(owner) = request.live.backend(*owner)
        && !owner.connection.is_open()
    {
        log.waits_for(owner, *kind, id);
        if connects(request, owner).await {
            return search.known_target().await;
        }
    }
    Ok(target)
}

/// Waits for the next attempt to connect to `owner`: for a short read at most `list_timeout`, and not again while the
/// backend is late with the RPC, because a kept status may answer it.
async fn connects(request: &Request, owner: &Backend) -> bool {
    let connected = pin!(owner.wire());
    match request.row.patience {
        Patience::Short if !request.live.has_one_backend() => {
            short::in_time(request, owner, connected).await.is_ok()
        }
        Patience::Short => request
            .within(owner.list_timeout(), connected)
            .await
            .is_ok_and(|wire| wire.is_ok()),
        Patience::Read | Patience::Change | Patience::Create => connected.await.is_ok(),
    }
}

/// The search for the target of a request.
struct Search<'a> {
    switch: &'a Arc<Switch>,
    request: &'a Request,
}

impl Search<'_> {
    /// The target by the owners that are known now. Asks all backends if the id has no known owner.
    async fn known_target(&self) -> Result<Target, Status> {
        let (row, message) = (self.request.row, self.request.message());
        match self.with_known(|known| known.route(row, &message))? {
            Target::Miss(kind, id) => self.after_miss(kind, id).await,
            Target::UnknownPod(uid) => self.after_unknown_pod(&uid).await,
            target => Ok(target),
        }
    }

    /// Asks all backends for the pod of a pull, and returns the target of the pull. Fails if a backend does not answer,
    /// because this backend may have the pod.
    async fn after_unknown_pod(&self, uid: &str) -> Result<Target, Status> {
        self.ask_all()
            .await
            .map_err(|unanswered| errors::pod_unknown(uid, &unanswered))?;
        self.with_known(|known| known.after_unknown_pod(uid))
    }

    /// Asks all backends for an id without a known owner, and returns the target of the call. Does not ask for a
    /// complete id that a client removed through criswitch.
    async fn after_miss(&self, kind: Kind, id: String) -> Result<Target, Status> {
        let Search { switch, request } = self;
        let removed = switch.owners().removals.owner_of(&id);
        let had = removed.filter(|backend| request.live.backend(*backend).is_ok());
        if let Some(backend) = had.filter(|_| !may_be_short(&id)) {
            return Ok(Target::Owner(backend, kind, id));
        }
        let answered = self.ask_all().await;
        let target = self.with_known(|known| known.after_miss(kind, &id))?;
        match (&target, answered) {
            // The request has the complete id, so the answer of a silent backend cannot change the target.
            (Target::Owner(_, _, full), _) if *full == id => Ok(target),
            // The id in this list call is short, and a silent backend may have an id with the same beginning. So call
            // all backends; the cached list replaces the reply of a silent backend.
            (Target::Owner(..), Err(_)) if request.row.is_list() => {
                Ok(Target::Backends(request.live.all()))
            }
            // Clients get complete merged lists, and only one id in these lists begins with this text. So the short id
            // is unambiguous.
            (Target::Owner(..), Err(_)) if fallback::lists_are_whole(switch) => Ok(target),
            (Target::Owner(..), Err(unanswered)) => {
                Err(errors::short_id_unknown(kind, &id, &unanswered))
            }
            (_, Err(unanswered)) => match had {
                // A client removed this id through criswitch, and only this backend had it. So the call needs no other
                // backend.
                Some(backend) => Ok(Target::Owner(backend, kind, id)),
                None => Err(errors::owner_unknown(kind, &id, &unanswered)),
            },
            (_, Ok(())) => Ok(target),
        }
    }

    /// Asks all backends for their lists. Stops waiting before the client's deadline.
    async fn ask_all(&self) -> Result<(), Status> {
        let (asked, begun) = (Arc::clone(self.switch), Instant::now());
        let query = async move { own::list_every(&asked).await };
        let answered = pin!(self.switch.question.ask(query));
        let answered = self.request.within(Duration::MAX, answered).await;
        answered.unwrap_or_else(|_| {
            let silent: Vec<_> = self
                .switch
                .live()
                .joined()
                .iter()
                .filter(|backend| backend.record.answered() < Some(begun))
                .map(|backend| backend.unavailable(errors::BEFORE_DEADLINE))
                .collect();
            Err(errors::deadline_before_answers(&silent))
        })
    }

    /// Finds the target by what criswitch knows.
    fn with_known(
        &self,
        find: impl FnOnce(Knowledge<'_>) -> Result<Target, Unroutable>,
    ) -> Result<Target, Status> {
        let (switch, live) = (self.switch, &self.request.live);
        let joined = live.backends.iter().filter(|backend| backend.has_joined());
        let owners = switch.owners();
        let found = find(Knowledge {
            table: &live.table,
            default_backend: live.default_backend(),
            all: &live.all(),
            owners: &owners,
            complete: switch
                .question
                .have_listed(joined.map(|backend| backend.id)),
        });
        drop(owners);
        found.map_err(|unroutable| rejected(&switch.counts, self.request, unroutable))
    }
}

fn rejected(counts: &Counts, request: &Request, unroutable: Unroutable) -> Status {
    let name = |id: BackendId| {
        let backend = request.live.backend(id);
        backend.map_or_else(|_| "?".into(), |backend| backend.name())
    };
    match unroutable {
        Unroutable::Malformed(fault) => errors::malformed(request.row.name, &fault),
        Unroutable::UnknownHandler(handler) => {
            counts.reject(Reason::UnknownHandler);
            log::note_handler(&handler);
            unknown_handler(&handler, &request.live)
        }
        Unroutable::EmptyId(kind) => errors::empty_id(request.row.name, kind),
        Unroutable::Ambiguous(prefix) => errors::ambiguous(&prefix),
        Unroutable::DoubledPod(uid, backends) => {
            let names: Vec<_> = backends.into_iter().map(name).collect();
            errors::doubled_pod(&uid, &names)
        }
    }
}

fn unknown_handler(handler: &str, live: &Live) -> Status {
    match live.unreported() {
        Some(backend) => errors::unreported_handler(handler, &backend.name(), &backend.socket),
        None => errors::unknown_handler(handler, &live.table),
    }
}
