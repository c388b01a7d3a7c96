//! From what the runtimes say to a table: names, whose a handler is, the default. Pure.

use super::names;
use super::places::SocketPlace;
use crate::cli::probe::Probed;

/// A backend with more handlers than this adopts them: a row for each would say nothing more.
pub(super) const MOST_ROWS: usize = 4;

/// What is to be written. The first backend is the default's.
pub(super) struct Plan {
    pub(super) backends: Vec<Planned>,
    pub(super) rows: Vec<PlannedRow>,
    /// The name of the row for pods that name no handler.
    pub(super) default: String,
}

/// A backend that answered.
pub(super) struct Planned {
    pub(super) place: SocketPlace,
    pub(super) found: Probed,
    pub(super) adopts: bool,
}

/// A handler of a backend, and what becomes of it.
pub(super) struct PlannedRow {
    /// Its name in the table, or a name that it could have there.
    pub(super) name: String,
    /// Index into [`Plan::backends`].
    pub(super) backend: usize,
    /// What the backend calls it; empty for the backend's own default.
    pub(super) handler: String,
    pub(super) fate: Fate,
}

/// Whether a handler gets a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It has one.
    Written,
    /// Its backend adopts it.
    Adopted,
    /// An earlier backend, by its index, has one of this name.
    Taken(usize),
    /// No RuntimeClass can have this name.
    NoLabel,
}

/// The table for these backends; the earlier one has a handler that several have.
pub(super) fn plan(mut backends: Vec<Planned>) -> Plan {
    let mut rows: Vec<PlannedRow> = Vec::new();
    for (id, backend) in backends.iter().enumerate() {
        for handler in offered(&backend.found) {
            let row = row(&rows, id, handler);
            rows.push(row);
        }
    }
    let default = default(&mut rows, &backends);
    for (id, backend) in backends.iter().enumerate().skip(1) {
        if offered(&backend.found).is_empty() {
            own_default(&mut rows, id, backend);
        }
    }
    name_others(&mut rows, &backends);
    let adopting = adopting(&rows, &backends);
    if let Some((id, backend)) = adopting.and_then(|id| Some((id, backends.get_mut(id)?))) {
        backend.adopts = true;
        adopt(&mut rows, id, &default);
    }
    rows.sort_by(|a, b| (a.backend, &a.name).cmp(&(b.backend, &b.name)));
    Plan {
        backends,
        rows,
        default,
    }
}

/// The handlers that a runtime lists, else those that its configuration has; sorted.
pub(super) fn offered(found: &Probed) -> Vec<&str> {
    let mut names = found.handler_names();
    if names.is_empty() {
        names = found
            .configured
            .handlers
            .iter()
            .map(String::as_str)
            .collect();
    }
    names.sort_unstable();
    names.dedup();
    names
}

fn row(rows: &[PlannedRow], backend: usize, handler: &str) -> PlannedRow {
    let written = rows
        .iter()
        .find(|row| row.is_written() && row.name == handler);
    let label = names::label_of(handler);
    let fate = match written {
        _ if label.as_deref() != Some(handler) => Fate::NoLabel,
        Some(other) => Fate::Taken(other.backend),
        None => Fate::Written,
    };
    PlannedRow {
        name: label.unwrap_or_default(),
        backend,
        handler: handler.to_owned(),
        fate,
    }
}

/// Gives each handler without a row a name that it could have: no other one's.
fn name_others(rows: &mut [PlannedRow], backends: &[Planned]) {
    let (written, others): (Vec<&mut PlannedRow>, Vec<&mut PlannedRow>) =
        rows.iter_mut().partition(|row| row.is_written());
    let mut taken: Vec<String> = written.iter().map(|row| row.name.clone()).collect();
    for row in others.into_iter().filter(|row| !row.name.is_empty()) {
        let backend = backends.get(row.backend).map(|backend| &backend.place.name);
        let longer =
            backend.and_then(|backend| names::label_of(&format!("{}-{backend}", row.name)));
        let wishes = [Some(row.name.clone()), longer].into_iter().flatten();
        row.name = names::first_free(wishes, &row.name, |name| {
            taken.iter().any(|other| other == name)
        });
        taken.push(row.name.clone());
    }
}

/// What the first backend runs such pods with today: the handler that it tells, its only one, or a row for whatever
/// its own default is.
fn default(rows: &mut Vec<PlannedRow>, backends: &[Planned]) -> String {
    let Some(first) = backends.first() else {
        return String::new();
    };
    let offered = offered(&first.found);
    let told = match (&first.found.configured.default, offered.as_slice()) {
        (Some(told), _) => Some(told.as_str()),
        (None, [only]) => Some(*only),
        _ => None,
    };
    let written = rows
        .iter()
        .find(|row| row.backend == 0 && row.is_written() && Some(row.name.as_str()) == told);
    match written {
        Some(row) => row.name.clone(),
        None => own_default(rows, 0, first),
    }
}

/// Adds a row for whatever the backend's own default is.
fn own_default(rows: &mut Vec<PlannedRow>, backend: usize, planned: &Planned) -> String {
    let name = &planned.place.name;
    let told = planned.found.configured.default.clone();
    let told = told.filter(|told| names::label_of(told).as_ref() == Some(told));
    let wishes = told
        .into_iter()
        .chain([name.clone(), format!("{name}-default")]);
    let name = names::first_free(wishes, name, |name| rows.iter().any(|row| row.name == name));
    rows.push(PlannedRow {
        name: name.clone(),
        backend,
        handler: String::new(),
        fate: Fate::Written,
    });
    name
}

/// The backend that lists the most handlers, if these are many.
fn adopting(rows: &[PlannedRow], backends: &[Planned]) -> Option<usize> {
    let count = |id: usize| {
        rows.iter()
            .filter(|row| row.backend == id && row.is_written())
            .count()
    };
    let ids = backends
        .iter()
        .enumerate()
        .filter(|(_, backend)| !backend.found.handlers.is_empty());
    // The earlier of two that have the same number.
    let most = ids.map(|(id, _)| id).rev().max_by_key(|id| count(*id))?;
    (count(most) > MOST_ROWS).then_some(most)
}

/// A row stays where it says something: it is the default, or it settles whose a name is.
fn adopt(rows: &mut [PlannedRow], backend: usize, default: &str) {
    let disputed: Vec<String> = rows
        .iter()
        .filter(|row| row.fate == Fate::Taken(backend))
        .map(|row| row.handler.clone())
        .collect();
    for row in rows
        .iter_mut()
        .filter(|row| row.backend == backend && row.is_written())
    {
        let said = row.name == default || row.handler.is_empty() || disputed.contains(&row.name);
        if !said {
            row.fate = Fate::Adopted;
        }
    }
}

impl PlannedRow {
    pub(super) fn is_written(&self) -> bool {
        self.fate == Fate::Written
    }
}
