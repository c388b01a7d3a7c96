//! Handlers that backends advertise and no row names: of a backend that the configuration lets adopt they are the
//! table's too. Pure.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::config::{Handler, Scheduling, Table, is_label};
use crate::owners::BackendId;
use crate::wire;

/// Handlers that are taken from one backend; a runtime has a dozen at most.
const MOST: usize = 256;
/// The handlers in a `StatusResponse`.
const HANDLERS: u32 = 3;

/// A handler that two adopting backends advertise: neither gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disputed {
    /// What both call it.
    pub handler: String,
    /// Who advertises it.
    pub backends: Vec<BackendId>,
}

/// `table` with the handlers that its adopting backends advertise in their `StatusResponse`s, and those that it lacks
/// because several do. What is written by hand wins.
pub(crate) fn adopted(table: &Table, statuses: &[(BackendId, Bytes)]) -> (Table, Vec<Disputed>) {
    let mut offers: BTreeMap<&str, Vec<BackendId>> = BTreeMap::new();
    for row in table.backends.iter().filter(|row| row.adopt) {
        let status = statuses.iter().find(|(id, _)| *id == row.id);
        for name in status.iter().flat_map(|(_, status)| advertised(status)) {
            let offered = offers.entry(name).or_default();
            if table.handler(name).is_none() && !offered.contains(&row.id) {
                offered.push(row.id);
            }
        }
    }
    let mut table = table.clone();
    let mut disputed = Vec::new();
    for (name, backends) in offers {
        match backends.as_slice() {
            [] => {}
            [one] => table.handlers.push(handler(name, *one)),
            _ => disputed.push(Disputed {
                handler: name.to_owned(),
                backends,
            }),
        }
    }
    table.handlers.sort_by(|a, b| a.name.cmp(&b.name));
    (table, disputed)
}

fn handler(name: &str, backend: BackendId) -> Handler {
    Handler {
        name: name.to_owned(),
        backend,
        backend_handler: name.to_owned(),
        origin: None,
        scheduling: Scheduling::default(),
    }
}

/// The names that a RuntimeClass can ask for; what cannot be read has none.
fn advertised(status: &[u8]) -> Vec<&str> {
    let handlers = wire::all_bytes(status, &[HANDLERS]).unwrap_or_default();
    let names = handlers
        .into_iter()
        .filter_map(|handler| wire::string(handler, &[1]).ok());
    names.filter(|name| is_label(name)).take(MOST).collect()
}
