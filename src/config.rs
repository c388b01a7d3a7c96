//! Configuration: text to a checked [`Config`] that cannot be wrong.

use std::time::Duration;

use crate::address::Address;

/// A configuration that has passed every check.
#[derive(Clone, Debug)]
pub struct Config {
    /// The socket that the kubelet and crictl dial.
    pub listen: Address,
    /// How long calls in flight may go on after SIGTERM.
    pub drain: Duration,
    /// The largest gRPC message, in bytes, that is read or merged.
    pub max_message: usize,
    /// The most verbose log lines that are written.
    pub log_level: tracing::level_filters::LevelFilter,
    /// Handlers and backends.
    pub table: Table,
}

/// The handler table: which backend runs the pods of a handler.
///
/// Backends stand in the order of every merged reply: the default handler's first, then as the files name them.
#[derive(Clone, Debug)]
pub struct Table {
    /// Backends; a [`Handler::backend`] is an index into this.
    pub backends: Vec<BackendConfig>,
    /// Rows, sorted by name.
    pub handlers: Vec<Handler>,
    /// Index into `handlers` of the row for pods that name no handler.
    pub default: usize,
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handler {
    /// The name in the RuntimeClass: an RFC 1123 label.
    pub name: String,
    /// Index into [`Table::backends`].
    pub backend: usize,
    /// What the backend calls it; empty for the backend's own default.
    pub backend_handler: String,
}

/// A CRI socket that is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendConfig {
    /// The name under `[backends]`, or that of the first handler whose row gave the socket.
    pub name: String,
    /// Where it serves.
    pub socket: Address,
}

impl Table {
    /// The row of a handler; the default row for the empty name.
    pub fn handler(&self, name: &str) -> Option<&Handler> {
        if name.is_empty() {
            return Some(self.default_row());
        }
        self.handlers.iter().find(|row| row.name == name)
    }

    /// The row of a pod that names no handler.
    pub fn default_row(&self) -> &Handler {
        &self.handlers[self.default]
    }

    /// The table's name for what `backend` calls `name`, `None` if they are the same or the table has none.
    ///
    /// Where several rows lead to it, the row of the same name counts, else the first by name.
    pub fn name_for(&self, backend: usize, name: &str) -> Option<&str> {
        let mut rows = self
            .handlers
            .iter()
            .filter(|row| row.backend == backend && row.backend_handler == name);
        let first = rows.clone().next()?;
        (!rows.any(|row| row.name == name)).then_some(first.name.as_str())
    }
}
