//! The routing table and its backends. A table never changes: a reload replaces it, and a call keeps the table and the
//! backends that it began with.

pub mod auto_register;
pub mod diff;
pub(crate) mod undo;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use criswitch_config::address::Identities;
use criswitch_config::{BackendConfig, BackendId, BackendIds, Config, Handler, Table};
use tokio::time::Instant;
use tonic::Status;

use crate::backend::Backend;
use crate::errors;
use auto_register::{AutoRegisteredHandler, Disputed};

/// How many bytes of a backend's name stay before the suffix "-old" and a number, because a name has at most 63 bytes.
const LONGEST_KEPT: usize = 50;

/// A routing table and its backends.
#[derive(Debug)]
pub struct Live {
    /// The configuration, in which each backend has its id.
    pub config: Config,
    /// The table that routes calls: the handlers of the configuration, and the handlers that backends with
    /// `auto_register` have reported.
    pub table: Table,
    /// Handlers that several backends with `auto_register` have reported.
    pub disputed: Vec<Disputed>,
    /// The backends of the configuration in its order, then the backends that stay only because they own pods.
    pub backends: Vec<Arc<Backend>>,
    /// The backend that answers for the node until the default handler's backend has joined.
    before: Option<BackendId>,
}

/// The routing table after a reload that is not applied yet: the backends still have their old names and settings.
pub(crate) struct Next {
    pub(crate) live: Live,
    /// The new names of backends that the configuration does not name, because other backends now have their names.
    renamed: Vec<(BackendId, String)>,
}

impl Next {
    /// The name that a backend has when the reload is applied.
    pub(crate) fn name_of(&self, backend: &Backend) -> String {
        if let Some(row) = self.live.config.table.backend(backend.id) {
            return row.name.clone();
        }
        let renamed = self.renamed.iter().find(|(id, _)| *id == backend.id);
        renamed.map_or_else(|| backend.name().to_string(), |(_, name)| name.clone())
    }

    /// Applies the new names and settings to the backends, and returns the table.
    pub(crate) fn applied(self) -> Live {
        for row in &self.live.config.table.backends {
            if let Ok(backend) = self.live.backend(row.id) {
                backend.configure(row);
            }
        }
        for (id, name) in &self.renamed {
            if let Ok(backend) = self.live.backend(*id) {
                backend.rename(name);
            }
        }
        self.live
    }
}

impl Live {
    /// The table at the start. `kept` has the backends that the configuration does not name and that may still have
    /// pods or containers.
    pub(crate) fn first(
        config: Config,
        kept: &[BackendConfig],
        connect: impl Fn(&BackendConfig) -> Backend,
    ) -> Live {
        let rows = config.table.backends.iter();
        let mut backends: Vec<_> = rows.map(|row| Arc::new(connect(row))).collect();
        for row in kept {
            let backend = connect(row);
            let taken: Vec<_> = backends.iter().map(|other| other.name()).collect();
            if let Some(free) = free_name(&backend.name(), &taken) {
                backend.rename(&free);
            }
            backends.push(Arc::new(backend));
        }
        Live::of(config, backends, None, &[])
    }

    fn of(
        config: Config,
        backends: Vec<Arc<Backend>>,
        before: Option<BackendId>,
        held: &[AutoRegisteredHandler],
    ) -> Live {
        let rows = config.table.backends.iter().filter(|row| row.auto_register);
        let reports: Vec<_> = rows
            .filter_map(|row| backends.iter().find(|it| it.id == row.id))
            .map(|backend| (backend.id, backend.report()))
            .collect();
        let (table, disputed) = auto_register::extended(&config.table, &reports, held);
        Live {
            config,
            table,
            disputed,
            backends,
            before,
        }
    }

    /// The same table, with the handlers that its backends report now. `runs_pods` says whether a backend runs any
    /// pods.
    pub(crate) fn registered_again(&self, runs_pods: impl Fn(BackendId) -> bool) -> Live {
        let (config, backends) = (self.config.clone(), self.backends.clone());
        Live::of(
            config,
            backends,
            self.before,
            &self.auto_registered_with_pods(runs_pods),
        )
    }

    /// The table at the start, with the handlers that were registered automatically before a restart of criswitch.
    pub(crate) fn restored(&self, held: &[AutoRegisteredHandler]) -> Live {
        Live::of(self.config.clone(), self.backends.clone(), None, held)
    }

    fn auto_registered_with_pods(
        &self,
        runs_pods: impl Fn(BackendId) -> bool,
    ) -> Vec<AutoRegisteredHandler> {
        self.auto_registered()
            .map(|row| AutoRegisteredHandler {
                name: row.name.clone(),
                backend: row.backend,
                runs_pods: runs_pods(row.backend),
            })
            .collect()
    }

    fn auto_registered(&self) -> impl Iterator<Item = &Handler> {
        self.table
            .handlers
            .iter()
            .filter(|row| row.origin.is_none())
    }

    /// The names of the automatically registered handlers of this backend.
    pub(crate) fn auto_registered_by(&self, id: BackendId) -> impl Iterator<Item = &str> {
        self.auto_registered()
            .filter(move |row| row.backend == id)
            .map(|row| row.name.as_str())
    }

    /// When the next backend with `auto_register` counts as absent because it has not reported its handlers. `None` if
    /// criswitch waits for no report.
    pub(crate) fn next_absence(&self) -> Option<Instant> {
        self.auto_registering()
            .filter_map(|row| self.backend(row.id).ok())
            .filter_map(|backend| backend.awaited_until())
            .min()
    }

    /// The table after a reload, which is not applied yet. A backend whose socket is already known keeps its id. A
    /// backend that the configuration no longer names stays if `keep` returns true.
    pub(crate) fn next(
        &self,
        mut config: Config,
        identities: &Identities,
        ids: &mut BackendIds,
        connect: impl Fn(&BackendConfig) -> Backend,
        keep: impl Fn(&Backend) -> bool,
        runs_pods: impl Fn(BackendId) -> bool,
    ) -> Next {
        self.identify(&mut config.table, identities, ids);
        let rows = config.table.backends.iter();
        let mut taken: Vec<Arc<str>> = rows.map(|row| row.name.as_str().into()).collect();
        let rows = config.table.backends.iter();
        let mut backends: Vec<_> = rows
            .map(|row| match self.backend(row.id) {
                Ok(backend) => Arc::clone(backend),
                Err(_) => Arc::new(connect(row)),
            })
            .collect();
        let mut renamed = Vec::new();
        for backend in &self.backends {
            if !backends.iter().any(|named| named.id == backend.id) && keep(backend) {
                let name = backend.name();
                let free = free_name(&name, &taken);
                taken.push(free.as_deref().unwrap_or(&name).into());
                renamed.extend(free.map(|free| (backend.id, free)));
                backends.push(Arc::clone(backend));
            }
        }
        let before = Some(self.default_backend())
            .filter(|id| backends.iter().any(|backend| backend.id == *id));
        let live = Live::of(
            config,
            backends,
            before,
            &self.auto_registered_with_pods(runs_pods),
        );
        Next { live, renamed }
    }

    /// Sets the ids of the backends in `table`. A backend keeps its id if its socket is already known, even under a
    /// different path. Any other backend gets a new id. `identities` has no address that is both known and in a row, so
    /// such a row always keeps the backend of its own path.
    fn identify(&self, table: &mut Table, identities: &Identities, ids: &mut BackendIds) {
        let mut changed = HashMap::new();
        let mut kept = HashSet::new();
        for row in &mut table.backends {
            // If two backends now resolve to one path because a link changed, the first keeps the id.
            let mut here = self.backends.iter();
            let id = here
                .find(|known| identities.are_same_socket(&known.socket, &row.socket))
                .filter(|known| kept.insert(known.id))
                .map_or_else(|| ids.issue(), |known| known.id);
            changed.insert(std::mem::replace(&mut row.id, id), id);
        }
        for handler in table.handlers.iter_mut().chain([&mut table.default]) {
            if let Some(id) = changed.get(&handler.backend) {
                handler.backend = *id;
            }
        }
    }

    /// The same table with only the backends in `left`.
    pub(crate) fn with_only(
        &self,
        left: &HashSet<BackendId>,
        runs_pods: impl Fn(BackendId) -> bool,
    ) -> Live {
        let mut backends = self.backends.clone();
        backends.retain(|backend| left.contains(&backend.id));
        Live::of(
            self.config.clone(),
            backends,
            self.before.filter(|id| left.contains(id)),
            &self.auto_registered_with_pods(runs_pods),
        )
    }

    /// The backend with this id.
    ///
    /// # Errors
    /// `Unavailable` if the backend was removed.
    pub fn backend(&self, id: BackendId) -> Result<&Arc<Backend>, Status> {
        let found = self.backends.iter().find(|backend| backend.id == id);
        found.ok_or_else(errors::gone_backend)
    }

    /// The backends with these ids, except removed backends.
    pub(crate) fn among(&self, ids: &BTreeSet<BackendId>) -> Vec<&Arc<Backend>> {
        self.backends
            .iter()
            .filter(|it| ids.contains(&it.id))
            .collect()
    }

    /// The name of a backend; "" if the backend was removed.
    pub(crate) fn name_of(&self, id: BackendId) -> String {
        let backend = self.backend(id);
        backend.map_or_else(|_| String::new(), |backend| backend.name().to_string())
    }

    /// The default backend is the backend that answers for the node: the default handler's backend. Until that backend
    /// has joined, the previous default backend continues.
    pub fn default_backend(&self) -> BackendId {
        let default = self.table.default.backend;
        match self.before {
            Some(before) if !self.backend(default).is_ok_and(|new| new.has_joined()) => before,
            _ => default,
        }
    }

    /// The backends that take part in merged calls, the default backend first.
    pub fn joined(&self) -> Vec<Arc<Backend>> {
        let default_backend = self.default_backend();
        let mut joined: Vec<_> = self
            .backends
            .iter()
            .filter(|backend| backend.has_joined())
            .cloned()
            .collect();
        joined.sort_by_key(|backend| backend.id != default_backend);
        joined
    }

    /// The ids of the backends that take part in merged calls.
    pub(crate) fn all(&self) -> Vec<BackendId> {
        let default_backend = self.default_backend();
        let joined = self.backends.iter().filter(|backend| backend.has_joined());
        let mut ids: Vec<_> = joined.map(|backend| backend.id).collect();
        ids.sort_by_key(|id| *id != default_backend);
        ids
    }

    /// Whether only one backend takes part in merged calls: its replies need no merge, and its cached lists are not
    /// served.
    pub(crate) fn has_one_backend(&self) -> bool {
        self.backends
            .iter()
            .filter(|backend| backend.has_joined())
            .take(2)
            .count()
            == 1
    }

    /// Whether a row routes to the backend, so that it may get new pods.
    pub fn takes_pods(&self, id: BackendId) -> bool {
        self.table.handlers.iter().any(|row| row.backend == id)
    }

    /// Whether the backend is kept only for its pods.
    pub fn retires(&self, id: BackendId) -> bool {
        !self.takes_pods(id) && !self.auto_registering().any(|row| row.id == id)
    }

    pub(crate) fn auto_registering(&self) -> impl Iterator<Item = &BackendConfig> {
        self.config
            .table
            .backends
            .iter()
            .filter(|row| row.auto_register)
    }

    /// The first backend with `auto_register` that has not reported its handlers yet.
    pub(crate) fn unreported(&self) -> Option<&Arc<Backend>> {
        let mut backends = self
            .auto_registering()
            .filter_map(|row| self.backend(row.id).ok());
        backends.find(|backend| !backend.record.known().has_current_status())
    }

    /// Whether the configuration names the backend. Any other backend is removed when its last pod ends.
    pub fn names(&self, id: BackendId) -> bool {
        self.config.table.backend(id).is_some()
    }

    /// The backends that the configuration does not name.
    pub(crate) fn unnamed(&self) -> impl Iterator<Item = &Arc<Backend>> {
        self.backends
            .iter()
            .filter(|backend| !self.names(backend.id))
    }
}

/// A new name for a backend that the configuration does not name, if a different backend has its `name`. `None` if the
/// name is not in `taken`.
fn free_name(name: &str, taken: &[Arc<str>]) -> Option<String> {
    let is_taken = |name: &str| taken.iter().any(|other| **other == *name);
    if !is_taken(name) {
        return None;
    }
    // Leave room for the suffix: the result must still be a valid DNS label.
    let short = name.get(..LONGEST_KEPT).unwrap_or(name);
    let mut names = (1..).map(|count| match count {
        1 => format!("{short}-old"),
        _ => format!("{short}-old-{count}"),
    });
    names.find(|name| !is_taken(name))
}
