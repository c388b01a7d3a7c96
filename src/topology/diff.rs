//! The changes of a reload: handlers and backends that are added, removed and moved. Does no I/O.

use criswitch_config::wording::{self, counted};
use criswitch_config::{Applies, BackendId, Config, Handler, KEYS};
use criswitch_cri::codec::admin::{Changes, Moved, Retiring};

use crate::backend::Backend;
use crate::topology::Live;

/// The line for a reload without changes.
const NOTHING: &str = "nothing changed";

fn retiring_lines(retiring: &Retiring) -> Vec<String> {
    let name = &retiring.name;
    let owns = match (retiring.pods, retiring.containers) {
        (Some(pods), Some(containers)) => {
            let (pods, containers) = (counted(pods, "pod"), counted(containers, "container"));
            format!("which owns {pods} and {containers}")
        }
        _ => "whose pods are unknown until criswitch has listed it".to_owned(),
    };
    let line = format!("backend retiring: {name}, {owns}");
    let removal = retiring.unnamed.then(|| wording::removal(name));
    [line].into_iter().chain(removal).collect()
}

/// Whether the reload changed nothing and caused no warning.
pub(crate) fn is_empty(changes: &Changes) -> bool {
    changes.lines == [NOTHING]
}

/// Whether the reload changed nothing. A warning is not a change.
pub(crate) fn has_only_warnings(changes: &Changes) -> bool {
    let without = Changes {
        warnings: Vec::new(),
        lines: Vec::new(),
        ..changes.clone()
    };
    without == Changes::default()
}

/// The changes from `before` to `after`. `owns` counts the pods and containers of a backend; `None` if they were
/// never listed. `name_of` returns the name of a backend after the changes.
pub(crate) fn between(
    before: &Live,
    after: &Live,
    owns: impl Fn(BackendId) -> Option<(u64, u64)>,
    name_of: impl Fn(&Backend) -> String,
) -> Changes {
    let mut changes = of_handlers(before, after, &name_of);
    for backend in &after.backends {
        let name = name_of(backend);
        if let Some(from) = lost_name(before, after, backend).filter(|from| *from != name) {
            changes.backends_renamed.push(Moved {
                name: from.clone(),
                from,
                to: name.clone(),
            });
        }
        match before.backend(backend.id) {
            Err(_) => changes.backends_added.push(name),
            Ok(_) if is_left(before, after, backend.id) => {
                let (pods, containers) = owns(backend.id).unzip();
                changes.backends_retiring.push(Retiring {
                    name,
                    pods,
                    containers,
                    unnamed: !after.names(backend.id),
                });
            }
            Ok(_) => {}
        }
    }
    changes.backends_removed = before
        .backends
        .iter()
        .filter(|backend| after.backend(backend.id).is_err())
        .map(|backend| name_of(backend))
        .collect();
    changes.settings = other_settings(&before.config, &after.config);
    let notes = after.config.notes.iter();
    let new_notes = notes.filter(|note| !before.config.notes.contains(note));
    changes.warnings = other_cgroup_driver(before, after, &name_of)
        .into_iter()
        .chain(new_notes.cloned())
        .chain(old_paths(after))
        .collect();
    changes.lines = in_words(&changes);
    changes
}

fn of_handlers(before: &Live, after: &Live, name_of: &impl Fn(&Backend) -> String) -> Changes {
    let mut changes = Changes::default();
    for row in &after.table.handlers {
        match before
            .table
            .handlers
            .iter()
            .find(|old| old.name == row.name)
        {
            None => changes.handlers_added.push(row.name.clone()),
            Some(old)
                if (old.backend, &old.backend_handler) != (row.backend, &row.backend_handler) =>
            {
                changes.handlers_moved.push(Moved {
                    name: row.name.clone(),
                    from: place(before, old, name_of),
                    to: place(after, row, name_of),
                });
            }
            Some(_) => {}
        }
    }
    changes.handlers_removed = before
        .table
        .handlers
        .iter()
        .map(|row| &row.name)
        .filter(|name| after.table.handler(name).is_none())
        .cloned()
        .collect();
    let (old, new) = (&before.table.default, &after.table.default);
    changes.default_handler = (old.name != new.name).then(|| Moved {
        name: "default_handler".to_owned(),
        from: old.name.clone(),
        to: new.name.clone(),
    });
    changes
}

/// A line for each change.
fn in_words(changes: &Changes) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(each("handler added:", &changes.handlers_added));
    lines.extend(each("handler removed:", &changes.handlers_removed));
    for Moved { from, to, .. } in &changes.backends_renamed {
        lines.push(format!(
            "backend renamed: {from} is now {to}, because the name {from} has another socket"
        ));
    }
    for Moved { name, from, to } in &changes.handlers_moved {
        lines.push(format!("handler moved: {name} from {from} to {to}"));
    }
    if let Some(Moved { from, to, .. }) = &changes.default_handler {
        lines.push(format!("default_handler changed: from {from} to {to}"));
    }
    lines.extend(each("backend added:", &changes.backends_added));
    lines.extend(changes.backends_retiring.iter().flat_map(retiring_lines));
    lines.extend(each("backend removed:", &changes.backends_removed));
    if !changes.settings.is_empty() {
        lines.push(format!("settings changed: {}", changes.settings.join(", ")));
    }
    lines.extend(changes.warnings.iter().cloned());
    if lines.is_empty() {
        lines.push(NOTHING.to_owned());
    }
    lines
}

fn each(what: &str, names: &[String]) -> impl Iterator<Item = String> {
    names.iter().map(move |name| format!("{what} {name}"))
}

/// Returns a warning if the backend that now answers for the node has a different cgroup driver from the backend that
/// answered before.
fn other_cgroup_driver(
    before: &Live,
    after: &Live,
    name_of: impl Fn(&Backend) -> String,
) -> Option<String> {
    let old = before.backend(before.default_backend()).ok()?;
    let new = after.backend(after.default_backend()).ok()?;
    let differs = new
        .record
        .known()
        .has_other_cgroup_driver(&old.record.known());
    let (old, new) = (name_of(old), name_of(new));
    differs.then(|| {
        format!("wrong cgroup driver: {new} uses a different driver than {old}, and the kubelet still uses the driver of {old}; set the same driver for both")
    })
}

/// Returns a warning for each backend whose row has a new path of the socket. criswitch dials the old path and saves
/// the state under it: only a start can take both over to the new path.
fn old_paths(after: &Live) -> impl Iterator<Item = String> {
    let rows = after.config.table.backends.iter();
    rows.filter_map(|row| {
        let (name, old) = (&row.name, &after.backend(row.id).ok()?.socket);
        (row.socket != *old).then(|| {
            format!(
                "old path in use: backend {name} still uses {old}, a different path to the same socket; restart criswitch before that path is removed"
            )
        })
    })
}

/// The name in `before` of a backend that `after` does not name.
fn lost_name(before: &Live, after: &Live, backend: &Backend) -> Option<String> {
    let row = before.config.table.backend(backend.id)?;
    (!after.names(backend.id)).then(|| row.name.clone())
}

/// Whether this change makes the backend retiring, or removes a retiring backend from the configuration.
fn is_left(before: &Live, after: &Live, backend: BackendId) -> bool {
    !before.retires(backend) && after.retires(backend)
        || before.names(backend) && !after.names(backend)
}

/// The changed keys that only a start reads, so that a reload ignores them.
pub(crate) fn next_start(before: &Config, after: &Config) -> Vec<String> {
    changed_keys(Applies::NextStart, before, after)
}

/// The changed keys that no other line reports.
fn other_settings(before: &Config, after: &Config) -> Vec<String> {
    let mut others = changed_keys(Applies::Reload, before, after);
    others.retain(|key| key != "default_handler");
    others
}

/// The changed keys that apply at this time. A key of a backend is followed by the backend's name.
fn changed_keys(applies: Applies, before: &Config, after: &Config) -> Vec<String> {
    let keys = KEYS.iter().filter(|key| key.applies == applies);
    let mut all: Vec<_> = keys
        .clone()
        .filter(|key| key.value(before) != key.value(after))
        .map(|key| key.name.to_owned())
        .collect();
    for row in &after.table.backends {
        let Some(old) = before.table.backend(row.id) else {
            continue;
        };
        let fields = keys.clone().filter(|key| {
            let values = (key.value_of(old), key.value_of(row));
            // A backend without its own timeout inherits the global timeout. A change of the global key is already in
            // `all`.
            let of_all = KEYS
                .iter()
                .find(|all| all.table.is_empty() && all.name == key.name)
                .map(|all| (all.value(before), all.value(after)));
            key.name != "socket" && values.0 != values.1 && of_all != Some(values)
        });
        let is_renamed = applies == Applies::Reload && old.name != row.name;
        let name = is_renamed.then_some("name").into_iter();
        let names = name.chain(fields.map(|key| key.name));
        all.extend(names.map(|field| format!("{field} of backend {}", row.name)));
    }
    all
}

fn place(live: &Live, row: &Handler, name_of: impl Fn(&Backend) -> String) -> String {
    let backend = live.backend(row.backend);
    let name = backend.map_or_else(|_| "?".into(), |backend| name_of(backend));
    wording::place(&name, &row.name, &row.backend_handler)
}
