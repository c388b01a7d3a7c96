//! Configuration: text to a checked [`Config`] that cannot be wrong.
//!
//! `files` are read from the `disk`, `text` is what they say, `value` and `check` judge it. Every problem is told at
//! once, each with its place. Nothing here dials a backend or binds a socket. `watch` reports changes of the files.

pub mod address;
mod advice;
mod check;
pub(crate) mod disk;
mod files;
pub mod keys;
mod kubernetes;
mod lines;
mod log;
mod metrics;
mod problem;
mod scheduling;
mod text;
mod trust;
mod value;
pub mod watch;
pub mod wording;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::address::Address;
use crate::ownership::BackendId;
use crate::store::Directories;
use text::Written;

pub use keys::{Applies, KEYS, Key, KeyKind};
pub use log::{LogConfig, LogFormat, LogLevels, MODULES};
pub use metrics::MetricsListen;
pub use problem::{Origin, Place, Problem, Problems};
pub use scheduling::{Effect, Operator, Scheduling, Toleration};
pub use value::duration_text;

/// Where the configuration is unless the command line says otherwise.
pub const DEFAULT_PATH: &str = "/etc/criswitch/criswitch.toml";
/// Where the switch listens unless the configuration says otherwise.
pub const DEFAULT_LISTEN: &str = "/run/criswitch/criswitch.sock";

/// A configuration that has passed every check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The socket that the kubelet and crictl dial.
    pub listen: Address,
    /// How long calls in flight may go on after SIGTERM.
    pub shutdown_timeout: Duration,
    /// The largest gRPC message, in bytes, that is read or merged.
    pub max_message: usize,
    /// How long the first calls wait for backends that are not there yet; may be zero.
    pub start_wait: Duration,
    /// How long a merged call waits for a backend that has no [`BackendConfig::list_timeout`] of its own.
    pub list_timeout: Duration,
    /// How long a merged call for stats waits for a backend that has no [`BackendConfig::stats_timeout`] of its own.
    pub stats_timeout: Duration,
    /// How old cached lists may be of a backend that has no [`BackendConfig::stale_lists`] of its own.
    pub stale_lists: Duration,
    /// Where the state of this boot is saved; see [`Config::directories`].
    pub runtime_dir: Option<PathBuf>,
    /// Where the state is saved that outlives the boot.
    pub state_dir: Option<PathBuf>,
    /// The users that may connect, besides root and the switch's own.
    pub allow_uids: Vec<u32>,
    /// Whether changes of the files are taken up by themselves.
    pub watch: bool,
    /// What is logged, and how.
    pub log: LogConfig,
    /// Where metrics are served; none for nowhere.
    pub metrics: Option<MetricsListen>,
    /// Handlers and backends.
    pub table: Table,
    /// What works, and the operator should know: one sentence each, with its place.
    pub notes: Vec<String>,
    /// The places of the values that are written, by the names of their keys.
    pub places: BTreeMap<&'static str, Place>,
    /// The main file.
    pub path: PathBuf,
    /// Every file that was read, the main one first.
    pub files: Vec<PathBuf>,
    /// 16 hex digits that change with any name or byte of the files.
    pub hash: String,
}

/// The handler table: which backend runs the pods of a handler.
///
/// Backends stand in the order of every merged reply: the default handler's first, then as the files name them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Backends; their ids are their places here, until a reload.
    pub backends: Vec<BackendConfig>,
    /// Rows, sorted by name.
    pub handlers: Vec<Handler>,
    /// The row among them for pods that name no handler.
    pub default: Handler,
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handler {
    /// The name in the RuntimeClass: an RFC 1123 label.
    pub name: String,
    /// The id of one of [`Table::backends`].
    pub backend: BackendId,
    /// What the backend calls it; empty for the backend's own default.
    pub backend_handler: String,
    /// Where the row is written; none where its backend has told of it.
    pub origin: Option<Origin>,
    /// For its RuntimeClass only.
    pub scheduling: Scheduling,
}

/// A CRI socket that is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendConfig {
    /// Its place in the table, until a reload gives it the id that its socket has already.
    pub id: BackendId,
    /// The name under `[backends]`, or that of the first handler whose row gave the socket.
    pub name: String,
    /// Where it serves.
    pub socket: Address,
    /// How long a merged call waits for it where something can stand in for it; not zero.
    pub list_timeout: Duration,
    /// How long a merged call for stats waits for it; not zero.
    pub stats_timeout: Duration,
    /// How old its cached lists may be that are served while it does not answer: zero for never, [`Duration::MAX`] for no
    /// limit.
    pub stale_lists: Duration,
    /// Whether handlers that it advertises and no row names are registered automatically.
    pub auto_register: bool,
    /// Whether it may have pods that clients know where criswitch has never run. If not, it is part of lists from when it
    /// answers.
    pub required: bool,
    /// The user, beside root, whose process may serve its socket without a warning.
    pub user: Option<u32>,
    /// Where its row, or that of the first handler that gives its socket, is written; none where no file names it.
    pub origin: Option<Origin>,
}

impl BackendConfig {
    /// A backend without a row: nothing limits how long criswitch waits for it, and its cached lists are not served.
    pub fn without_row(id: BackendId, name: &str, socket: &Address) -> BackendConfig {
        BackendConfig {
            id,
            name: name.to_owned(),
            socket: socket.clone(),
            list_timeout: Duration::MAX,
            stats_timeout: Duration::MAX,
            stale_lists: Duration::ZERO,
            auto_register: false,
            required: true,
            user: None,
            origin: None,
        }
    }
}

/// Whether a handler or backend may be called so.
pub fn is_label(name: &str) -> bool {
    value::label("", name).is_ok()
}

impl Config {
    /// Reads and checks `path` and the drop-ins `conf.d/*.toml` beside it, in the order of their names.
    ///
    /// # Errors
    /// Every problem of every file, by place.
    pub fn load(path: &Path) -> Result<Config, Problems> {
        let mut problems = Problems::default();
        let files = files::read(path, &mut problems);
        let mut config = Config::of_files(path, &files, problems)?;
        let own = rustix::process::geteuid().as_raw();
        config.notes.extend(trust::notes(&config, own));
        Ok(config)
    }

    /// The socket that `path` and its drop-ins say to listen on, whatever else is wrong with them; the default where
    /// they do not say it.
    ///
    /// # Errors
    /// Nothing says it, and `path` cannot be read.
    pub fn listen_of(path: &Path) -> Result<Address, Problems> {
        let mut problems = Problems::default();
        let files = files::read(path, &mut problems);
        match Written::listen(&files) {
            Some(listen) => Ok(listen),
            None if files.first().is_some_and(|file| file.path() == path) => {
                Ok(Address::Unix(DEFAULT_LISTEN.into()))
            }
            None => Err(problems),
        }
    }

    /// Checks what files contain, the main one first; their paths only name them in problems.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn of_texts(texts: &[(&Path, &[u8])]) -> Result<Config, Problems> {
        let mut problems = Problems::default();
        let main = texts.first().map_or(Path::new(""), |(path, _)| path);
        let texts = texts.iter().enumerate();
        let files = texts.filter_map(|(index, (path, text))| {
            files::text(Place::start(index, path), text.to_vec(), &mut problems)
        });
        let files: Vec<_> = files.collect();
        Config::of_files(main, &files, problems)
    }

    /// Where the state is saved: where the keys say, else where systemd says, else beside the socket.
    pub fn directories(&self, systemd: [Option<PathBuf>; 2]) -> Directories {
        let Address::Unix(socket) = &self.listen;
        let beside = || {
            let mut path = socket.clone().into_os_string();
            path.push(".state");
            PathBuf::from(path)
        };
        let [runtime, state] = systemd;
        Directories {
            runtime: self.runtime_dir.clone().or(runtime).unwrap_or_else(beside),
            state: self.state_dir.clone().or(state).unwrap_or_else(beside),
        }
    }

    fn of_files(
        main: &Path,
        files: &[files::ConfigFile],
        mut problems: Problems,
    ) -> Result<Config, Problems> {
        let mut written = Written {
            partial: !problems.is_empty(),
            ..Written::default()
        };
        for file in files {
            written.read(file, &mut problems);
        }
        let config = check::check(files, &written, &Place::start(0, main), &mut problems);
        config.filter(|_| problems.is_empty()).ok_or(problems)
    }
}

impl Table {
    /// The row of a pod that asks for the handler `name`; empty for one that names none.
    pub fn handler(&self, name: &str) -> Option<&Handler> {
        if name.is_empty() {
            return Some(&self.default);
        }
        let at = self
            .handlers
            .binary_search_by(|row| row.name.as_str().cmp(name));
        self.handlers.get(at.ok()?)
    }

    /// The table's name for what `backend` calls `name`, `None` if no row routes to it.
    ///
    /// Where several rows route to it, nobody knows which one a pod was started by: that is the backend's own name.
    pub fn name_for<'n>(&'n self, backend: BackendId, name: &'n str) -> Option<&'n str> {
        let rows = self.handlers.iter();
        let mut rows = rows.filter(|row| row.backend == backend && row.backend_handler == name);
        let first = rows.next()?;
        Some(rows.next().map_or(&first.name, |_| name))
    }
}
