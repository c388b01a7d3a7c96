//! Makes a routing table from the replies of the runtimes, with one row for each handler. If several backends have a
//! handler, the first backend gets the row. Does no I/O.

use criswitch_client::probe::Probed;
use criswitch_config::{RuntimeKind, is_label};

use super::places::SocketPlace;

/// The configuration to print or write. The first backend has the default handler.
pub(super) struct ConfigPlan {
    pub(super) backends: Vec<PlannedBackend>,
    /// Sorted by backend, then by name.
    pub(super) rows: Vec<PlannedRow>,
    /// The name of the row for pods that name no handler.
    pub(super) default: String,
}

/// A backend that answered.
pub(super) struct PlannedBackend {
    pub(super) place: SocketPlace,
    pub(super) found: Probed,
}

/// A handler of a backend.
pub(super) struct PlannedRow {
    pub(super) name: String,
    /// Index into [`ConfigPlan::backends`].
    pub(super) backend: usize,
    /// The backend's name for the handler; empty for the backend's own default.
    pub(super) handler: String,
    /// Why the row is commented out; `None` for a row without a conflict.
    pub(super) conflict: Option<String>,
}

/// Plans the configuration for `backends`. If several backends have a handler, the first backend gets the row.
pub(super) fn plan(backends: Vec<PlannedBackend>) -> ConfigPlan {
    let default = backends.first().map(default).unwrap_or_default();
    let mut rows: Vec<PlannedRow> = Vec::new();
    for (id, backend) in backends.iter().enumerate() {
        let mut offered = offered(&backend.found);
        let own = (offered.is_empty() || id == 0 && !offered.contains(&default.as_str()))
            .then_some(backend.place.name.as_str());
        offered.extend(own);
        for name in offered {
            rows.push(PlannedRow {
                conflict: conflict(&rows, &backends, name),
                name: name.to_owned(),
                backend: id,
                handler: if own == Some(name) { "" } else { name }.to_owned(),
            });
        }
    }
    rows.sort_by(|a, b| (a.backend, &a.name).cmp(&(b.backend, &b.name)));
    ConfigPlan {
        backends,
        rows,
        default,
    }
}

/// The handlers that a runtime lists, else the handlers in its configuration; sorted.
fn offered(found: &Probed) -> Vec<&str> {
    let mut names = found.handler_names();
    if names.is_empty() {
        names.extend(found.configured.runtimes.keys().map(String::as_str));
    }
    names.sort_unstable();
    names.dedup();
    names
}

/// The row for pods that name no handler: the default that the backend reports, else the backend's only handler. If
/// neither is known, a row with the backend's name, which leaves the choice to the backend.
fn default(backend: &PlannedBackend) -> String {
    let offered = offered(&backend.found);
    match (&backend.found.configured.default, offered.as_slice()) {
        (Some(reported), _) => Some(reported.as_str()),
        (None, [only]) => Some(*only),
        (None, _) => None,
    }
    .filter(|name| offered.contains(name) && is_label(name))
    .unwrap_or(&backend.place.name)
    .to_owned()
}

/// Why a further row cannot have the name `name`; `None` if the name is valid and free.
fn conflict(rows: &[PlannedRow], backends: &[PlannedBackend], name: &str) -> Option<String> {
    if !is_label(name) {
        return Some("not valid in a RuntimeClass".to_owned());
    }
    let first = rows.iter().find(|row| row.name == name)?;
    Some(format!(
        "taken by {}, which comes first",
        backends.get(first.backend)?.place.name
    ))
}

impl PlannedRow {
    /// The kind of runtime of the row's handler, by the backend's configuration or else by the handler's name.
    pub(super) fn kind(&self, backend: &PlannedBackend) -> Option<RuntimeKind> {
        match backend.found.runtime(&self.handler) {
            Some(runtime) => runtime.kind,
            None => {
                RuntimeKind::of_name(&self.handler).or_else(|| RuntimeKind::of_name(&self.name))
            }
        }
    }

    /// The name of the row as text. A name that is not a DNS label is quoted, with escapes for control characters.
    pub(super) fn shown_name(&self) -> String {
        if is_label(&self.name) {
            self.name.clone()
        } else {
            format!("{:?}", self.name)
        }
    }
}
