//! The table of now and its backends: what a reload replaces as a whole. Never changes: a call goes by the one that it
//! began with.

pub mod auto_register;
pub mod diff;

use std::collections::HashSet;
use std::sync::Arc;

use tokio::time::Instant;
use tonic::Status;

use crate::backend::Backend;
use crate::config::address::Identities;
use crate::config::{BackendConfig, Config, Handler, Table};
use crate::errors;
use crate::ownership::BackendId;
use auto_register::{AutoRegisteredHandler, Disputed};

/// What is kept of a backend's name, in bytes, when "-old" and a number are put behind it: names have 63 at most.
const LONGEST_KEPT: usize = 50;

/// A table and its backends.
#[derive(Debug)]
pub struct Live {
    /// The configuration, its backends under their ids.
    pub config: Config,
    /// The table that calls are routed by: that of the configuration, and what backends have told of themselves.
    pub table: Table,
    /// Handlers that several backends with `auto_register` have reported.
    pub disputed: Vec<Disputed>,
    /// The table's backends in its order, then those that are kept for the pods that they own.
    pub backends: Vec<Arc<Backend>>,
    /// The backend that speaks for the node until that of the default row has been there.
    before: Option<BackendId>,
}

impl Live {
    /// The table of a start, with the backends that are `kept` for their pods.
    pub(crate) fn first(
        config: Config,
        kept: &[BackendConfig],
        connect: impl Fn(&BackendConfig) -> Backend,
    ) -> Live {
        let rows = config.table.backends.iter();
        let mut backends: Vec<_> = rows.map(|row| Arc::new(connect(row))).collect();
        for row in kept {
            let backend = connect(row);
            take_another_name(&backend, &backends);
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
        let found = rows.filter_map(|row| backends.iter().find(|it| it.id == row.id));
        let reports: Vec<_> = found
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

    /// The same with what its backends report of themselves now; `runs_pods` says whether a backend runs any.
    pub(crate) fn told_anew(&self, runs_pods: impl Fn(BackendId) -> bool) -> Live {
        let (config, backends) = (self.config.clone(), self.backends.clone());
        Live::of(config, backends, self.before, &self.held(runs_pods))
    }

    /// The table of a start, with the handlers that were registered automatically before criswitch was restarted.
    pub(crate) fn restored(&self, held: &[AutoRegisteredHandler]) -> Live {
        Live::of(self.config.clone(), self.backends.clone(), None, held)
    }

    /// The automatically registered handlers.
    fn held(&self, runs_pods: impl Fn(BackendId) -> bool) -> Vec<AutoRegisteredHandler> {
        let held = self.auto_registered().map(|row| AutoRegisteredHandler {
            name: row.name.clone(),
            backend: row.backend,
            runs_pods: runs_pods(row.backend),
        });
        held.collect()
    }

    fn auto_registered(&self) -> impl Iterator<Item = &Handler> {
        let rows = self.table.handlers.iter();
        rows.filter(|row| row.origin.is_none())
    }

    /// The names of the automatically registered handlers of this backend.
    pub(crate) fn auto_registered_by(&self, id: BackendId) -> impl Iterator<Item = &str> {
        let rows = self.auto_registered().filter(move |row| row.backend == id);
        rows.map(|row| row.name.as_str())
    }

    /// When the next backend with `auto_register` that has not reported its handlers counts as absent.
    pub(crate) fn next_absence(&self) -> Option<Instant> {
        let rows = self
            .auto_registering()
            .filter_map(|row| self.backend(row.id).ok());
        rows.filter_map(|backend| backend.awaited_until()).min()
    }

    /// The table after a reload. A socket that is there already stays the same backend; `keep` says whether one that no
    /// file names any more stays for its pods beside those that stay anyway.
    pub(crate) fn next(
        &self,
        mut config: Config,
        identities: &Identities,
        next_id: &mut BackendId,
        connect: impl Fn(&BackendConfig) -> Backend,
        keep: impl Fn(&Backend, &[Arc<Backend>]) -> bool,
        runs_pods: impl Fn(BackendId) -> bool,
    ) -> Live {
        self.identify(&mut config.table, identities, next_id);
        let backends = config.table.backends.iter();
        let mut backends: Vec<_> = backends
            .map(|row| match self.backend(row.id) {
                Ok(backend) => {
                    backend.configure(row);
                    Arc::clone(backend)
                }
                Err(_) => Arc::new(connect(row)),
            })
            .collect();
        for backend in &self.backends {
            let named = backends.iter().any(|named| named.id == backend.id);
            if !named && keep(backend, &backends) {
                take_another_name(backend, &backends);
                backends.push(Arc::clone(backend));
            }
        }
        let before = Some(self.speaker());
        let before = before.filter(|id| backends.iter().any(|backend| backend.id == *id));
        Live::of(config, backends, before, &self.held(runs_pods))
    }

    /// Gives `table`'s backends their ids: those that their sockets have here, by whatever path, else new ones.
    fn identify(&self, table: &mut Table, identities: &Identities, next_id: &mut BackendId) {
        let mut ids = Vec::with_capacity(table.backends.len());
        for row in &mut table.backends {
            // If links have changed and two backends are one by now, the first of them keeps its id.
            let mut here = self.backends.iter();
            let known = here.find(|known| identities.are_one(&known.socket, &row.socket));
            let known = known.filter(|known| !ids.contains(&known.id));
            let id = known.map_or(*next_id, |known| known.id);
            *next_id = (*next_id).max(id + 1);
            row.id = id;
            ids.push(id);
        }
        let handlers = table.handlers.iter_mut();
        for handler in handlers.chain([&mut table.default]) {
            // Places until now, all of them in the table.
            handler.backend = ids.get(handler.backend).copied().unwrap_or(BackendId::MAX);
        }
    }

    /// The same with no other backends than these.
    pub(crate) fn with_only(
        &self,
        left: &HashSet<BackendId>,
        runs_pods: impl Fn(BackendId) -> bool,
    ) -> Live {
        let stays = |backend: &&Arc<Backend>| left.contains(&backend.id);
        Live::of(
            self.config.clone(),
            self.backends.iter().filter(stays).cloned().collect(),
            self.before.filter(|id| left.contains(id)),
            &self.held(runs_pods),
        )
    }

    /// The backend of this id.
    ///
    /// # Errors
    /// `Unavailable` if it is not there any more.
    pub fn backend(&self, id: BackendId) -> Result<&Arc<Backend>, Status> {
        let found = self.backends.iter().find(|backend| backend.id == id);
        found.ok_or_else(errors::gone_backend)
    }

    /// The name of a backend; "" if it is not there any more.
    pub(crate) fn name_of(&self, id: BackendId) -> String {
        let backend = self.backend(id);
        backend.map_or_else(|_| String::new(), |backend| backend.name().to_string())
    }

    /// The backend that speaks for the node: the default row's, or the one before while that was never there.
    pub fn speaker(&self) -> BackendId {
        let default = self.table.default.backend;
        match self.before {
            Some(before) if !self.backend(default).is_ok_and(|new| new.has_joined()) => before,
            _ => default,
        }
    }

    /// The backends that are part of what all are asked, the speaker first.
    pub fn joined(&self) -> Vec<Arc<Backend>> {
        let speaker = self.speaker();
        let joined = self.backends.iter().filter(|backend| backend.has_joined());
        let mut joined: Vec<_> = joined.cloned().collect();
        joined.sort_by_key(|backend| backend.id != speaker);
        joined
    }

    /// Their ids.
    pub(crate) fn all(&self) -> Vec<BackendId> {
        self.joined().iter().map(|backend| backend.id).collect()
    }

    /// Whether there is one backend, whose replies can pass as they come.
    pub(crate) fn is_alone(&self) -> bool {
        self.joined().len() == 1
    }

    /// Whether a row leads to it, so that new pods may come.
    pub fn takes_pods(&self, id: BackendId) -> bool {
        self.table.handlers.iter().any(|row| row.backend == id)
    }

    /// Whether it is kept for its pods only.
    pub fn retires(&self, id: BackendId) -> bool {
        !self.takes_pods(id) && !self.auto_registering().any(|row| row.id == id)
    }

    /// The backends whose handlers are the table's without being written there.
    pub(crate) fn auto_registering(&self) -> impl Iterator<Item = &BackendConfig> {
        self.config
            .table
            .backends
            .iter()
            .filter(|row| row.auto_register)
    }

    /// One of them that has not told of its handlers yet.
    pub(crate) fn untold(&self) -> Option<&Arc<Backend>> {
        let mut backends = self
            .auto_registering()
            .filter_map(|row| self.backend(row.id).ok());
        backends.find(|backend| !backend.known().has_said_status())
    }

    /// Whether a file names it: else it goes when it owns nothing any more.
    pub fn names(&self, id: BackendId) -> bool {
        self.config.table.backends.iter().any(|row| row.id == id)
    }

    /// Those that no file names any more.
    pub(crate) fn unnamed(&self) -> impl Iterator<Item = &Arc<Backend>> {
        let unnamed = |backend: &&Arc<Backend>| !self.names(backend.id);
        self.backends.iter().filter(unnamed)
    }

    /// Whether the table has another name than the backend for one of its handlers.
    pub(crate) fn renames(&self, id: BackendId) -> bool {
        let renamed = |row: &Handler| row.backend == id && row.backend_handler != row.name;
        self.table.handlers.iter().any(renamed)
    }
}

/// A backend that the table does not name any more leaves its name to one that it does.
fn take_another_name(backend: &Backend, named: &[Arc<Backend>]) {
    let taken = |name: &str| named.iter().any(|other| *other.name() == *name);
    let name = backend.name();
    // A row for it is to be valid.
    let short = name.get(..LONGEST_KEPT).unwrap_or(&name);
    let mut names = (1..).map(|count| match count {
        1 => name.to_string(),
        2 => format!("{short}-old"),
        _ => format!("{short}-old-{}", count - 1),
    });
    if let Some(free) = names.find(|name| !taken(name)) {
        backend.rename(&free);
    }
}
