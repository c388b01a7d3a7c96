//! What a call may go by: the tables from its begin until the switch has read it, and the backends that take part.

use criswitch::config::{Handler, Table};
use criswitch::rpc::{Goes, ImageRule};

use super::Case;
use crate::simulation::client::Call;
use crate::simulation::files::RUNTIMES;
use crate::simulation::tables::Place;
use crate::simulation::truth::{Moment, Thing};

impl Case<'_> {
    /// The tables that the switch may have had when it had read the call.
    pub(super) fn tables(&self) -> impl Iterator<Item = &Table> {
        let begun = self.asked.begun;
        let arrived = self.truth.arrivals.iter().find(|at| **at > begun);
        let tables = &self.truth.tables;
        tables.between(begun, arrived.copied().unwrap_or(Moment::MAX))
    }

    /// The handler that it names; pods that name none are the default's.
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

    /// The rows of that.
    pub(super) fn rows(&self) -> impl Iterator<Item = &Handler> {
        let named = self.handler();
        self.tables().filter_map(move |table| table.handler(named?))
    }

    /// Whether one of these tables does not have the handler.
    pub(super) fn may_be_unknown(&self) -> bool {
        let named = self.handler();
        let unknown = |table: &Table| named.is_some_and(|name| table.handler(name).is_none());
        self.tables().any(unknown)
    }

    /// Whether a backend with `auto_register` has not been asked for its handlers yet: this may be one.
    pub(super) fn may_be_registered(&self) -> bool {
        let same = |at: usize| match self.places(at) {
            [Some(then), Some(now)] => then.id == now.id,
            _ => false,
        };
        let registers = |table: &Table, at: usize| {
            let mut rows = table.backends.iter();
            rows.any(|row| row.auto_register && row.id == at)
        };
        let unknown = |at: usize| self.truth.offers[at].are_unknown() && same(at);
        self.truth.life == self.asked.life
            && (0..RUNTIMES)
                .any(|at| unknown(at) && self.tables().all(|table| registers(table, at)))
    }

    /// Whether the handler is a backend's that is in order.
    pub(super) fn handler_in_order(&self) -> bool {
        let relied = |row: &Handler| self.truth.relied_upon(row.backend, self.asked.at);
        !self.may_be_unknown() && self.rows().all(relied)
    }

    /// Whether an image call concerns a backend's store by each of these tables.
    pub(super) fn concerns_store(&self, backend: usize) -> bool {
        match self.handler() {
            Some(_) => !self.may_be_unknown() && self.rows().all(|row| row.backend == backend),
            None => self.sure(backend),
        }
    }

    /// Whether by one of them.
    pub(super) fn may_concern_store(&self, backend: usize) -> bool {
        self.handler().is_none() || self.rows().any(|row| row.backend == backend)
    }

    /// Whether by one of these tables no pod may come to a backend.
    pub(super) fn may_drain(&self, backend: usize) -> bool {
        let takes = |table: &Table| table.handlers.iter().any(|row| row.backend == backend);
        self.tables().any(|table| !takes(table))
    }

    /// It is no pull, or somebody whom pods may come to takes part in it.
    pub(super) fn somebody_pulls(&self) -> bool {
        let pulls = matches!(self.asked.call.row.goes, Goes::Image(_, ImageRule::Pull(_)));
        !pulls || (0..RUNTIMES).any(|at| self.sure(at) && !self.may_drain(at))
    }

    /// Who may have spoken for the node meanwhile.
    pub(super) fn speakers(&self) -> impl Iterator<Item = usize> {
        self.truth.tables.speakers(self.asked.begun)
    }

    fn places(&self, backend: usize) -> [Option<Place>; 2] {
        let now = self.truth.tables.places[backend];
        [self.asked.places[backend], now]
    }

    /// Whether the backend has taken part all the time.
    pub(super) fn sure(&self, backend: usize) -> bool {
        match self.places(backend) {
            [Some(then), Some(now)] => then.id == now.id && then.joined && now.joined,
            _ => false,
        }
    }

    /// Whether the backend may have taken part.
    pub(super) fn may(&self, backend: usize) -> bool {
        let mut places = self.places(backend).into_iter().flatten();
        places.any(|place| place.joined) || self.has_left(backend)
    }

    /// Whether the switch may have had the backend.
    pub(super) fn was_there(&self, backend: usize) -> bool {
        self.places(backend).iter().any(Option::is_some) || self.has_left(backend)
    }

    /// Whether the switch has let go of the backend meanwhile: it may also have come only then.
    fn has_left(&self, backend: usize) -> bool {
        self.truth.tables.has_left(backend, self.asked.begun)
    }

    /// Whether the switch must find what is there: nothing that was made through it is ever lost.
    pub(super) fn must_know(&self, thing: &Thing) -> bool {
        self.sure(thing.backend) || thing.maker != 0 && !thing.unheard
    }

    /// Whether `name` is what clients may be shown as the pod's handler: the row that it was created by, the name that a
    /// table has had for its handler since the pod is there, or the backend's own name where that table has none.
    pub(super) fn is_name(&self, pod: &Thing, name: &str) -> bool {
        // A call that creates goes by the table that it began with, and may take long.
        let created = pod.maker != 0;
        let since = if created { 0 } else { pod.born };
        let mut tables = self.truth.tables.between(since, Moment::MAX);
        tables.any(|table| {
            let leads =
                |row: &&Handler| row.backend == pod.backend && row.backend_handler == pod.handler;
            let mut rows = table.handlers.iter().filter(leads);
            let named = table.name_for(pod.backend, &pod.handler);
            named.unwrap_or(&pod.handler) == name || created && rows.any(|row| row.name == name)
        })
    }
}
