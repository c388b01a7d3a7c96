//! Automatic registration: adds the handlers that backends with `auto_register` report and that the configuration does
//! not name. Does no I/O.

use std::collections::BTreeMap;

use criswitch_config::{BackendId, Handler, Table, is_label};
use criswitch_cri::codec::protobuf;
use criswitch_cri::rpc::fields::{runtime_handler, status_response};

use crate::backend::known::Report;

/// The most handlers registered for one backend; a runtime has a dozen at most.
const MOST: usize = 256;

/// A handler that several backends with `auto_register` report, or still have from an earlier report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disputed {
    /// The handler's name.
    pub handler: String,
    /// The backends that report the handler, or still have it from an earlier report.
    pub backends: Vec<BackendId>,
    /// The backend that keeps the handler for now, because it had the handler first and runs pods.
    pub kept_by: Option<BackendId>,
}

pub(crate) struct AutoRegisteredHandler {
    pub name: String,
    pub backend: BackendId,
    pub runs_pods: bool,
}

/// Returns `table` with the handlers that its backends with `auto_register` report, and the handlers that several of
/// these backends report. A report never replaces a handler of the configuration. No backend gets a new handler until
/// every backend with `auto_register` has reported or counts as absent, because a later report may have the same
/// handler.
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
        let holder = held
            .iter()
            .find(|it| it.name == name)
            .filter(|it| backends.contains(&it.backend));
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
        let row = taker.map(|taker| Handler::auto_registered(&name, taker));
        table.handlers.extend(row);
    }
    table.handlers.sort_by(|a, b| a.name.cmp(&b.name));
    (table, disputed)
}

/// For each reported handler that the table does not name, the backends that report it. A backend without a report
/// keeps the handlers that it has in `held`.
fn offers(
    table: &Table,
    reports: &[(BackendId, Report)],
    held: &[AutoRegisteredHandler],
) -> BTreeMap<String, Vec<BackendId>> {
    let mut offers: BTreeMap<String, Vec<BackendId>> = BTreeMap::new();
    for (backend, report) in reports {
        let names = match report {
            Report::Status(status) => advertised(status),
            Report::Awaited | Report::Absent => held
                .iter()
                .filter(|it| it.backend == *backend)
                .map(|it| it.name.as_str())
                .collect(),
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

/// The handlers in `status` that a RuntimeClass can name, at most [`MOST`]; none if `status` cannot be decoded.
fn advertised(status: &[u8]) -> Vec<&str> {
    let names = protobuf::all_bytes(status, &[status_response::RUNTIME_HANDLERS])
        .unwrap_or_default()
        .into_iter()
        .filter_map(|handler| protobuf::string(handler, &[runtime_handler::NAME]).ok());
    names.filter(|name| is_label(name)).take(MOST).collect()
}
