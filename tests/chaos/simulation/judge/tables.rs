//! The possible tables of a call, and the backends of the call. A table is possible if it applied between the call's
//! start and the moment when criswitch had read the call.

use criswitch_config::{Handler, Table};
use criswitch_cri::rpc::{Goes, ImageRule};

use super::Case;
use crate::simulation::client::Call;
use crate::simulation::files::RUNTIMES;
use crate::simulation::tables::{Place, id_of, runtime_of};
use crate::simulation::truth::{Moment, Thing};

impl Case<'_> {
    /// The possible tables: those that criswitch may have had when it read the call.
    pub(super) fn tables(&self) -> impl Iterator<Item = &Table> {
        let begun = self.asked.begun;
        let arrived = self.truth.arrivals.iter().find(|at| **at > begun);
        let tables = &self.truth.tables;
        tables.between(begun, arrived.copied().unwrap_or(Moment::MAX))
    }

    /// The handler that the call names. An empty name means the default handler.
    pub(super) fn handler(&self) -> Option<&str> {
        let Call {
            row,
            names,
            handler,
            ..
        } = &self.asked.call;
        match row.goes {
            Goes::Handler(_) => Some(names),
            Goes::Image(..) if !handler.is_empty() => Some(handler),
            _ => None,
        }
    }

    /// The rows of the handler that the call names, in all possible tables.
    pub(super) fn rows(&self) -> impl Iterator<Item = &Handler> {
        let named = self.handler();
        self.tables().filter_map(move |table| table.handler(named?))
    }

    /// Whether at least one possible table lacks the handler that the call names.
    pub(super) fn may_be_unknown(&self) -> bool {
        let named = self.handler();
        let unknown = |table: &Table| named.is_some_and(|name| table.handler(name).is_none());
        self.tables().any(unknown)
    }

    /// Whether a backend with `auto_register` has not been asked for its handlers yet, and so may have the named
    /// handler.
    pub(super) fn may_be_registered(&self) -> bool {
        let same = |at: usize| match self.places(at) {
            [Some(then), Some(now)] => then.id == now.id,
            _ => false,
        };
        let registers = |table: &Table, at: usize| {
            let row = table.backend(id_of(at));
            row.is_some_and(|row| row.auto_register)
        };
        let unknown = |at: usize| self.truth.offers[at].are_unknown() && same(at);
        self.truth.life == self.asked.life
            && (0..RUNTIMES)
                .any(|at| unknown(at) && self.tables().all(|table| registers(table, at)))
    }

    /// Whether every possible table routes the named handler to a healthy backend.
    pub(super) fn handler_in_order(&self) -> bool {
        let relied = |row: &Handler| self.truth.relied_upon(runtime_of(row), self.asked.at);
        !self.may_be_unknown() && self.rows().all(relied)
    }

    /// Whether an image call concerns a backend's store under every possible table.
    pub(super) fn concerns_store(&self, backend: usize) -> bool {
        match self.handler() {
            Some(_) => !self.may_be_unknown() && self.rows().all(|row| runtime_of(row) == backend),
            None => self.sure(backend),
        }
    }

    /// Whether an image call concerns a backend's store under at least one possible table.
    pub(super) fn may_concern_store(&self, backend: usize) -> bool {
        self.handler().is_none() || self.rows().any(|row| runtime_of(row) == backend)
    }

    /// Whether at least one possible table routes no new pods to the backend.
    pub(super) fn may_drain(&self, backend: usize) -> bool {
        let takes = |table: &Table| table.handlers.iter().any(|row| runtime_of(row) == backend);
        self.tables().any(|table| !takes(table))
    }

    /// Whether a pull goes to at least one joined backend that gets new pods. True for any other call.
    pub(super) fn somebody_pulls(&self) -> bool {
        let pulls = matches!(self.asked.call.row.goes, Goes::Image(_, ImageRule::Pull(_)));
        !pulls || (0..RUNTIMES).any(|at| self.sure(at) && !self.may_drain(at))
    }

    /// The backends that may have been the default backend during the call.
    pub(super) fn default_backends(&self) -> impl Iterator<Item = usize> {
        self.truth.tables.default_backends(self.asked.begun)
    }

    fn places(&self, backend: usize) -> [Option<Place>; 2] {
        let now = self.truth.tables.places[backend];
        [self.asked.places[backend], now]
    }

    /// Whether the backend was joined during the whole call. Calls to all backends include only joined backends.
    pub(super) fn sure(&self, backend: usize) -> bool {
        match self.places(backend) {
            [Some(then), Some(now)] => {
                then.id == now.id && then.joined && now.joined && !self.has_left(backend)
            }
            _ => false,
        }
    }

    /// Whether the backend may have been joined at some moment of the call.
    pub(super) fn may(&self, backend: usize) -> bool {
        let mut places = self.places(backend).into_iter().flatten();
        places.any(|place| place.joined) || self.has_left(backend)
    }

    /// Whether criswitch may have had the backend at some moment of the call.
    pub(super) fn was_there(&self, backend: usize) -> bool {
        self.places(backend).iter().any(Option::is_some) || self.has_left(backend)
    }

    /// Whether criswitch has removed or forgotten the backend since the call began, including a backend that was added
    /// after the call began.
    fn has_left(&self, backend: usize) -> bool {
        self.truth.tables.has_left(backend, self.asked.begun)
    }

    /// Whether criswitch must know `thing`. criswitch never forgets an existing pod or container that was created
    /// through criswitch.
    pub(super) fn must_know(&self, thing: &Thing) -> bool {
        self.sure(thing.backend) || thing.maker != 0 && !thing.unanswered
    }

    /// Whether clients may see `name` as the pod's handler. A correct name is any name that a table since the pod's
    /// creation gives to the handler. If such a table has no row for the handler, the backend's own name is correct
    /// too. If the pod was created through criswitch, every table counts, and every row that routes to the handler.
    pub(super) fn is_name(&self, pod: &Thing, name: &str) -> bool {
        // A RunPodSandbox may take long and uses the table of the moment when the call began, so earlier tables count
        // too.
        let created = pod.maker != 0;
        let since = if created { 0 } else { pod.born };
        let mut tables = self.truth.tables.between(since, Moment::MAX);
        // A hostile backend that has claimed the pod may own it after its removal.
        let hostile = self
            .truth
            .hostile()
            .into_iter()
            .filter(|_| pod.gone.is_some());
        let sources: Vec<_> = pod.sources().chain(hostile).collect();
        tables.any(|table| {
            sources.iter().any(|&backend| {
                let leads = |row: &&Handler| {
                    runtime_of(row) == backend && row.backend_handler == pod.handler
                };
                let mut rows = table.handlers.iter().filter(leads);
                let named = table.name_for(id_of(backend), &pod.handler);
                named.unwrap_or(&pod.handler) == name || created && rows.any(|row| row.name == name)
            })
        })
    }
}
