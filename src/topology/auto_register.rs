//! Automatic registration: a backend with `auto_register` gets the handlers that it advertises and that no row names.
//! Pure.

use std::collections::BTreeMap;

use crate::backend::known::Report;
use crate::codec::protobuf;
use crate::config::{Handler, Scheduling, Table, is_label};
use crate::ownership::BackendId;
use crate::rpc::fields::{runtime_handler, status_response};

/// Handlers that are taken from one backend; a runtime has a dozen at most.
const MOST: usize = 256;

/// A handler that several backends with `auto_register` advertise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disputed {
    /// The name that they all have for it.
    pub handler: String,
    /// The backends that advertise it.
    pub backends: Vec<BackendId>,
    /// The one of them that keeps it for now: it had the handler first, and runs pods.
    pub kept_by: Option<BackendId>,
}

/// An automatically registered handler and its backend.
pub(crate) struct AutoRegisteredHandler {
    /// Its name.
    pub name: String,
    /// The backend that has it.
    pub backend: BackendId,
    /// Whether that backend runs pods.
    pub runs_pods: bool,
}

/// `table` with the handlers that its backends with `auto_register` advertise, and those that several of them advertise.
/// A handler in the configuration wins. No backend gets a new handler before every such backend has reported or is
/// absent: the handler might be another backend's too.
pub(crate) fn extended(
    table: &Table,
    reports: &[(BackendId, Report)],
    held: &[AutoRegisteredHandler],
) -> (Table, Vec<Disputed>) {
    let is_complete = !reports
        .iter()
        .any(|(_, report)| matches!(report, Report::Awaited));
    let mut table = table.clone();
    let mut disputed = Vec::new();
    for (name, backends) in offers(&table, reports, held) {
        let holder = held.iter().find(|it| it.name == name);
        let holder = holder.filter(|it| backends.contains(&it.backend));
        let taker = match (backends.as_slice(), holder) {
            ([one], Some(holder)) if holder.backend == *one => Some(*one),
            ([one], _) => is_complete.then_some(*one),
            (_, Some(holder)) if holder.runs_pods => Some(holder.backend),
            _ => None,
        };
        if backends.len() > 1 {
            disputed.push(Disputed {
                handler: name.clone(),
                kept_by: taker,
                backends,
            });
        }
        table
            .handlers
            .extend(taker.map(|taker| handler(&name, taker)));
    }
    table.handlers.sort_by(|a, b| a.name.cmp(&b.name));
    (table, disputed)
}

/// The backends that advertise each handler which the table does not name. A backend without a report keeps the handlers
/// that it had before criswitch was restarted.
fn offers(
    table: &Table,
    reports: &[(BackendId, Report)],
    held: &[AutoRegisteredHandler],
) -> BTreeMap<String, Vec<BackendId>> {
    let mut offers: BTreeMap<String, Vec<BackendId>> = BTreeMap::new();
    for (backend, report) in reports {
        let names = match report {
            Report::Status(status) => advertised(status),
            Report::Awaited | Report::Absent => {
                let held = held.iter().filter(|it| it.backend == *backend);
                held.map(|it| it.name.as_str()).collect()
            }
        };
        for name in names {
            if table.handler(name).is_some() {
                continue;
            }
            let offered = offers.entry(name.to_owned()).or_default();
            if !offered.contains(backend) {
                offered.push(*backend);
            }
        }
    }
    offers
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
    let handlers =
        protobuf::all_bytes(status, &[status_response::RUNTIME_HANDLERS]).unwrap_or_default();
    let names = handlers
        .into_iter()
        .filter_map(|handler| protobuf::string(handler, &[runtime_handler::NAME]).ok());
    names.filter(|name| is_label(name)).take(MOST).collect()
}
