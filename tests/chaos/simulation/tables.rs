//! The routing table at each moment: the backends of handlers, the backends that criswitch must have, and the joined
//! backends, which take part in calls to all backends.
//!
//! The model first checks the table and the backends of criswitch against the truth. Then it uses them to judge
//! replies.

use std::time::Duration;

use criswitch::switch::Switch;
use criswitch::topology::Live;
use criswitch_config::address::Address;
use criswitch_config::{BackendId, Config, Handler, Table};
use criswitch_cri::codec::admin::Changes;
use criswitch_cri::rpc::Kind;
use tokio::time::Instant;

use super::files::RUNTIMES;
use super::offers::{self, Offers};
use super::truth::{Before, CallId, Moment, Thing, Truth};

/// An automatically registered handler is saved within this time.
const SAVED: Duration = Duration::from_secs(3);

/// The id that the backend of each runtime has in the tables of the model.
const IDS: [BackendId; RUNTIMES] = [
    BackendId::new(0),
    BackendId::new(1),
    BackendId::new(2),
    BackendId::new(3),
];

/// The id of a runtime's backend in the tables of the model.
pub fn id_of(runtime: usize) -> BackendId {
    IDS[runtime]
}

/// The runtime of a row in the tables of the model.
pub fn runtime_of(row: &Handler) -> usize {
    let mut ids = IDS.iter();
    ids.position(|id| *id == row.backend)
        .expect("a backend of the model")
}

/// A table, and the moment from which the table applies. The ids of its backends are those of the model.
#[derive(Debug)]
pub struct Era {
    pub from: Moment,
    pub table: Table,
}

/// A runtime as a backend of criswitch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub id: BackendId,
    /// Whether the backend takes part in calls to all backends.
    pub joined: bool,
    /// Whether criswitch has listed everything of the backend, so that the backend may join.
    pub made_ready: bool,
}

pub type Places = [Option<Place>; RUNTIMES];

/// All tables so far, and the current backends.
#[derive(Debug, Default)]
pub struct Tables {
    /// The rows in the files.
    written: Option<Table>,
    /// Whether criswitch has loaded the files since the last check.
    is_loaded: bool,
    pub eras: Vec<Era>,
    pub places: Places,
    /// Every id that a backend has had in this instance.
    pub ids: Vec<BackendId>,
    /// The backends that criswitch has removed or forgotten, each with the moment.
    pub left: Vec<(Moment, usize)>,
    /// The last call before criswitch removed or forgot each backend.
    pub calls_before: [CallId; RUNTIMES],
    /// Whether an operator made criswitch forget a backend.
    pub forgotten: [bool; RUNTIMES],
    /// The default backends so far, each with its first moment.
    default_backends: Vec<(Moment, usize)>,
    /// Automatically registered handlers, each with its backend and the time of its registration.
    registered: Vec<(String, usize, Instant)>,
}

impl Tables {
    pub fn now(&self) -> &Table {
        &self.eras.last().expect("there is one from the start").table
    }

    /// The table at `from`, and the later tables that began before `until`.
    pub fn between(&self, from: Moment, until: Moment) -> impl Iterator<Item = &Table> {
        let first = self.eras.iter().rposition(|era| era.from <= from);
        let eras = self.eras.iter().skip(first.unwrap_or(0));
        eras.take_while(move |era| era.from <= from || era.from < until)
            .map(|era| &era.table)
    }

    /// Notes that criswitch has listed everything of a backend.
    pub fn made_ready(&mut self, runtime: usize) {
        if let Some(place) = &mut self.places[runtime] {
            place.made_ready = true;
        }
    }

    /// Whether criswitch has removed or forgotten a backend after `from`.
    pub fn has_left(&self, runtime: usize, from: Moment) -> bool {
        let mut left = self.left.iter();
        left.any(|(at, gone)| *gone == runtime && *at > from)
    }

    /// The default backend at `from`, and all later default backends.
    pub fn default_backends(&self, from: Moment) -> impl Iterator<Item = usize> {
        let first = self
            .default_backends
            .iter()
            .rposition(|(at, _)| *at <= from);
        let default_backends = self.default_backends.iter().skip(first.unwrap_or(0));
        default_backends.map(|(_, default_backend)| *default_backend)
    }
}

impl Truth {
    /// Notes that criswitch uses `config` from now on.
    pub fn begin_era(&mut self, config: &Config) {
        self.tables.written = Some(numbered(&config.table));
        self.tables.is_loaded = true;
    }

    /// Checks the table that criswitch uses against the files and the reports of backends with `auto_register`.
    fn look_at_table(&mut self, live: &Live) -> Result<(), String> {
        let table = numbered(&live.table);
        for runtime in 0..RUNTIMES {
            let joined = self.tables.places[runtime].is_some_and(|place| place.joined);
            let in_order = self.relied_upon(runtime, Instant::now());
            if joined && in_order && self.offers[runtime].are_due() {
                self.offers[runtime].receive();
            }
        }
        let written = self.tables.written.as_ref().expect("there are files");
        let had_pods = |runtime: usize| {
            let mut things = self.things.iter();
            things.any(|it| it.kind == Kind::Pod && it.sources().any(|at| at == runtime))
        };
        let (before, now) = (&self.tables.places, places(live));
        let id = |place: Option<Place>| place.map(|place| place.id);
        let is_new = |runtime: usize| id(before[runtime]) != id(now[runtime]);
        offers::wrong_table(written, &table, &self.offers, had_pods, is_new)?;
        for row in table.handlers.iter().filter(|row| row.origin.is_none()) {
            self.offers[runtime_of(row)].be_registered(&row.name);
        }
        let before = std::mem::take(&mut self.tables.registered);
        let registered = table
            .handlers
            .iter()
            .filter(|row| row.origin.is_none())
            .map(|row| {
                let is_it = |(name, backend, _): &&(String, usize, Instant)| {
                    (name, *backend) == (&row.name, runtime_of(row))
                };
                let since = before.iter().find(is_it).map(|(.., since)| *since);
                (
                    row.name.clone(),
                    runtime_of(row),
                    since.unwrap_or_else(Instant::now),
                )
            });
        self.tables.registered = registered.collect();
        let last = self.tables.eras.last();
        if self.tables.is_loaded || last.is_none_or(|era| era.table != table) {
            let from = self.tick();
            self.tables.eras.push(Era { from, table });
            self.tables.is_loaded = false;
        }
        Ok(())
    }

    /// Notes that criswitch has received the last report of every backend.
    pub fn all_reports_received(&mut self) {
        let there = self
            .tables
            .places
            .iter()
            .zip(&mut self.offers)
            .filter(|(place, _)| place.is_some());
        there.for_each(|(_, offers)| offers.receive());
    }

    /// Checks a new instance, which has started with the current table. A backend that the new instance knows from the
    /// previous instance must be joined.
    pub fn begin_places(&mut self, switch: &Switch) -> Result<(), String> {
        self.offers.iter_mut().for_each(Offers::forget);
        let live = switch.live();
        let before = self.before;
        let registered = self.tables.registered.clone();
        self.look_at_table(&live)?;
        self.are_kept(&registered)?;
        let now = self.tick();
        self.tables.places = places(&live);
        self.tables.ids = live.backends.iter().map(|backend| backend.id).collect();
        self.tables
            .default_backends
            .push((now, default_backend(&live)));
        for runtime in 0..RUNTIMES {
            let named = names(self.tables.now(), runtime);
            let place = self.tables.places[runtime];
            let joined = place.is_some_and(|place| place.joined);
            let wrong = match before[runtime] {
                Before::Absent => !named && place.is_some(),
                Before::Out => joined,
                Before::Joined => named && !joined,
                Before::Unsure => false,
            };
            if wrong {
                let before = before[runtime];
                return Err(format!(
                    "backend {runtime} was {before:?} and is {place:?} at the start"
                ));
            }
        }
        Ok(())
    }

    /// Checks that a new instance has the automatically registered handlers of the previous instance.
    fn are_kept(&self, registered: &[(String, usize, Instant)]) -> Result<(), String> {
        let table = self.tables.now();
        for (name, backend, since) in registered {
            let row = table.backend(id_of(*backend));
            let registers = row.is_some_and(|row| row.auto_register);
            let is_due = self.saved[*backend] && registers && since.elapsed() > SAVED;
            if is_due && table.handler(name).is_none() {
                return Err(format!(
                    "handler {name:?} of backend {backend} was forgotten"
                ));
            }
        }
        Ok(())
    }

    /// Checks the backends of criswitch: no needed backend may be missing, and no backend may join too early or too
    /// late.
    pub fn look(&mut self, switch: &Switch) -> Result<(), String> {
        let live = switch.live();
        self.look_at_table(&live)?;
        let seen = places(&live);
        for (runtime, seen) in seen.into_iter().enumerate() {
            if let Some(wrong) = self.wrong_place(runtime, seen) {
                let named = if names(self.tables.now(), runtime) {
                    "named"
                } else {
                    "not named"
                };
                return Err(format!("backend {runtime}, {named} by the table, {wrong}"));
            }
            self.take_place(runtime, seen);
        }
        self.look_at_default(default_backend(&live))
    }

    fn wrong_place(&self, runtime: usize, seen: Option<Place>) -> Option<&'static str> {
        let (named, owns) = (names(self.tables.now(), runtime), self.owns(runtime));
        let in_order = self.relied_upon(runtime, Instant::now());
        match (self.tables.places[runtime], seen) {
            (_, None) if named => Some("is not there"),
            (_, None) if owns => Some("is gone, and owns pods"),
            (None, Some(_)) if !named => Some("was added"),
            (None, Some(now)) if now.joined => Some("has joined before it was listed"),
            (Some(before), Some(now)) if before.id != now.id => match (owns, now.joined) {
                (true, _) => Some("was forgotten, and owns pods"),
                (_, true) => Some("has joined before it was listed again"),
                _ => None,
            },
            (Some(before), Some(now)) if before.joined && !now.joined => {
                Some("is no longer joined")
            }
            (Some(before), Some(now)) if now.joined && !before.joined && !before.made_ready => {
                Some("has joined before it was listed")
            }
            (Some(_), Some(now)) if in_order && !now.joined => {
                Some("is healthy, but has not joined")
            }
            _ => None,
        }
    }

    fn take_place(&mut self, runtime: usize, seen: Option<Place>) {
        let before = self.tables.places[runtime];
        let same = before.map(|place| place.id) == seen.map(|place| place.id);
        let made_ready = same && before.is_some_and(|place| place.made_ready);
        self.tables.places[runtime] = seen.map(|place| Place {
            made_ready,
            ..place
        });
        if same {
            return;
        }
        if before.is_some() {
            let now = self.tick();
            self.tables.left.push((now, runtime));
            self.forget_things(runtime);
            self.settle_left(runtime);
        }
        self.tables.ids.extend(seen.map(|place| place.id));
        // A backend with a new id is new to criswitch, which has forgotten everything about the old backend.
        self.listings.retain(|listing| listing.backend != runtime);
        self.offers[runtime].forget();
        self.disturbed(runtime);
        let its = self.things.iter_mut().filter(|it| it.backend == runtime);
        its.for_each(|thing| thing.learned = None);
    }

    /// Checks which backend answers for the node: the backend of the default row or, until that backend has joined, the
    /// previous default backend.
    fn look_at_default(&mut self, default_backend: usize) -> Result<(), String> {
        let joined = |runtime: usize| self.tables.places[runtime].is_some_and(|it| it.joined);
        let default = runtime_of(&self.tables.now().default);
        let before = self
            .tables
            .default_backends
            .last()
            .map(|(_, before)| *before);
        let before = before.filter(|before| self.tables.places[*before].is_some());
        let due = before.filter(|_| !joined(default)).unwrap_or(default);
        // Once the default backend was forgotten, any earlier default backend may answer for the node.
        let mut default_backends = self.tables.default_backends.iter();
        let is_earlier = default_backends.any(|(_, earlier)| *earlier == default_backend);
        let is_forgotten = self.tables.forgotten[default] && !joined(default);
        if default_backend != due && !(is_forgotten && is_earlier) {
            return Err(format!(
                "backend {default_backend} answers for the node; expected backend {due}"
            ));
        }
        if before != Some(default_backend) {
            let now = self.tick();
            self.tables.default_backends.push((now, default_backend));
        }
        Ok(())
    }

    /// Whether the backend has a pod or container that was created through criswitch or that criswitch knows.
    fn owns(&self, runtime: usize) -> bool {
        let mut things = self.things.iter();
        // The items of a backend that is away may pass to another backend that lists all of them. criswitch knows that
        // an item has passed once the list of its owner shows it.
        let faulty = !self.relied_upon(runtime, Instant::now());
        things.any(|it| {
            let made = it.maker != 0 && !it.unanswered;
            let owns = if it.copies.is_empty() {
                it.is_settled(Moment::MAX)
            } else {
                it.owned && (made || !faulty)
            };
            it.backend == runtime && it.gone.is_none() && owns && (made || it.learned.is_some())
        })
    }

    /// A backend that is named in no file and owns nothing, but still exists.
    pub fn idle(&self) -> Option<usize> {
        (0..RUNTIMES).find(|runtime| {
            let there = self.tables.places[*runtime].is_some();
            let lists = |it: &Thing| it.gone.is_none() && it.is_listed_by(*runtime);
            let creates = self.kept_until[*runtime].is_some_and(|at| at > Instant::now());
            let is_empty = !creates && !self.things.iter().any(lists);
            there && !names(self.tables.now(), *runtime) && is_empty
        })
    }

    /// Checks the changes that criswitch reports for a reload.
    pub fn changed(&self, changes: &Changes) -> Result<(), String> {
        let mut last = self.tables.eras.iter().rev().map(|era| &era.table);
        let (Some(after), Some(before)) = (last.next(), last.next()) else {
            return Err("there was no table before".to_owned());
        };
        let less = |one: &Table, other: &Table| -> Vec<String> {
            let names = one.handlers.iter().map(|row| row.name.clone());
            names.filter(|name| other.handler(name).is_none()).collect()
        };
        let led = |row: &Handler| (row.backend, row.backend_handler.clone());
        let moved: Vec<_> = after
            .handlers
            .iter()
            .filter(|row| {
                let old = before.handler(&row.name);
                old.is_some_and(|old| led(old) != led(row))
            })
            .map(|row| row.name.as_str())
            .collect();
        let shown: Vec<_> = changes
            .handlers_moved
            .iter()
            .map(|moved| moved.name.as_str())
            .collect();
        let right = changes.handlers_added == less(after, before)
            && changes.handlers_removed == less(before, after)
            && shown == moved;
        if right {
            return Ok(());
        }
        Err(format!(
            "criswitch reported wrong changes for a reload: {changes:?}"
        ))
    }
}

/// The number of the runtime at this socket.
pub fn number(socket: &Address) -> usize {
    let path = socket.to_string();
    path[1..].parse().expect("a runtime's number")
}

/// The runtimes of criswitch's unnamed backends: the backends that are named in no file.
pub fn unnamed(live: &Live) -> Vec<usize> {
    let unnamed = live.backends.iter().filter(|it| !live.names(it.id));
    unnamed.map(|backend| number(&backend.socket)).collect()
}

pub fn names(table: &Table, runtime: usize) -> bool {
    table.backend(id_of(runtime)).is_some()
}

fn places(live: &Live) -> Places {
    let mut places = Places::default();
    for backend in &live.backends {
        places[number(&backend.socket)] = Some(Place {
            id: backend.id,
            joined: backend.has_joined(),
            made_ready: false,
        });
    }
    places
}

fn default_backend(live: &Live) -> usize {
    let default_backend = live.backend(live.default_backend()).expect("it is there");
    number(&default_backend.socket)
}

fn numbered(table: &Table) -> Table {
    let id = |socket: &Address| id_of(number(socket));
    let of_row = |row: &Handler| id(&table.backend(row.backend).expect("a row's backend").socket);
    let mut numbered = table.clone();
    for row in numbered.handlers.iter_mut() {
        row.backend = of_row(row);
    }
    numbered.default.backend = of_row(&table.default);
    for row in &mut numbered.backends {
        row.id = id(&row.socket);
    }
    numbered
}
