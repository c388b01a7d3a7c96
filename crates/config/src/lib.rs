//! Configuration: from the text of the files to a checked, valid [`Config`].
//!
//! `disk` and `files` read the files, `text` parses them, `value` and `check` validate. All problems are reported at
//! once, each with its file, line and column. Nothing here connects to a backend or binds a socket. `watch` reports
//! changed files.

pub mod address;
mod advice;
mod backend_id;
mod check;
pub mod disk;
pub mod exit;
mod files;
mod foreign;
pub mod keys;
mod kinds;
pub mod kubernetes;
pub mod labels_file;
mod lines;
mod log;
mod metrics;
pub mod options;
pub mod problem;
mod scheduling;
pub mod specification;
mod text;
mod trust;
mod value;
pub mod watch;
pub mod wording;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use criswitch_platform::paths;
use criswitch_platform::users::UserId;

use crate::address::Address;
use text::Written;

pub use backend_id::{BackendId, BackendIds};
pub use keys::{Applies, KEYS, Key, KeyKind};
pub use kinds::{Program, RuntimeKind};
pub use log::{LogConfig, LogFormat, LogLevels, MODULES};
pub use metrics::MetricsListen;
pub use problem::{Origin, Place, Problem, Problems};
pub use scheduling::{Operator, Scheduling, TaintEffect, Toleration};
pub use value::duration_text;

/// The path of the main file, unless `--config` sets a different path.
pub const DEFAULT_PATH: &str = paths::CONFIG;
/// The environment variable with the path of the main file, for both programs.
pub const CONFIG_VARIABLE: &str = "CRISWITCH_CONFIG";
/// The state directories of the shipped systemd unit.
pub const UNIT_DIRECTORIES: [&str; 2] = ["/run/criswitch/state", "/var/lib/criswitch"];
/// The socket that criswitch listens on, unless the configuration sets a different one.
pub const DEFAULT_LISTEN: &str = paths::LISTEN;

/// A configuration that has passed every check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The socket that the kubelet and crictl dial.
    pub listen: Address,
    /// How long calls in flight may continue after SIGTERM.
    pub shutdown_timeout: Duration,
    /// The largest gRPC message that criswitch reads or merges, in bytes.
    pub max_message: usize,
    /// How long the first calls wait for backends that are not ready yet; may be zero.
    pub start_wait: Duration,
    /// The value of `list_timeout` for backends whose rows have none.
    pub list_timeout: Duration,
    /// The value of `stats_timeout` for backends whose rows have none.
    pub stats_timeout: Duration,
    /// The value of `stale_lists` for backends whose rows have none.
    pub stale_lists: Duration,
    /// The directory for state that is lost at a reboot; see [`Config::directories`].
    pub runtime_dir: Option<PathBuf>,
    /// The directory for state that survives a reboot; see [`Config::directories`].
    pub state_dir: Option<PathBuf>,
    /// The users that may connect, in addition to root and the user of criswitch.
    pub allow_uids: Vec<UserId>,
    /// Whether criswitch reloads automatically when the files change.
    pub watch: bool,
    /// The file for the labels of the node; `None` if criswitch writes no labels.
    pub labels_file: Option<PathBuf>,
    /// How long a backend may fail until the labels of its handlers are removed; [`Duration::MAX`] for no limit.
    pub labels_failed_after: Duration,
    /// The levels and the format of log lines.
    pub log: LogConfig,
    /// The address that serves metrics; `None` if metrics are not served.
    pub metrics: Option<MetricsListen>,
    /// The routing table: handlers and backends.
    pub table: Table,
    /// Notes about valid settings that the operator should know of: one sentence for each setting, with its file and
    /// line.
    pub notes: Vec<String>,
    /// The positions of the values that the files set, by the name of the key.
    pub places: BTreeMap<&'static str, Place>,
    /// The path of the main file. A reload reads this file again.
    pub path: PathBuf,
    /// Every file that was read, the main one first.
    pub files: Vec<PathBuf>,
    /// A hash of the names and contents of the files, as 16 hex digits.
    pub hash: String,
}

/// The directories of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directories {
    /// The directory for state of one boot: the files of backends.
    pub runtime: PathBuf,
    /// The directory for state that outlives the boot: the register.
    pub state: PathBuf,
}

/// The routing table: which backend runs the pods of a handler.
///
/// A merged reply begins with the backend of the default handler. The other backends follow in the order of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The backends.
    pub backends: Vec<BackendConfig>,
    /// The rows, sorted by name.
    pub handlers: Vec<Handler>,
    /// The row for pods that name no handler; it is also in `handlers`.
    pub default: Handler,
}

/// A row of the routing table: a handler and its backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handler {
    /// The name in the RuntimeClass: an RFC 1123 label.
    pub name: String,
    /// The id of one of [`Table::backends`].
    pub backend: BackendId,
    /// The backend's name for the handler; empty for the backend's own default.
    pub backend_handler: String,
    /// The kind of runtime that the row names. Routing does not use it.
    pub kind: Option<RuntimeKind>,
    /// The file and line of the row; `None` if the handler was registered automatically.
    pub origin: Option<Origin>,
    /// Settings for the handler's RuntimeClass. Routing does not use them.
    pub scheduling: Scheduling,
}

/// A CRI socket that criswitch calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendConfig {
    /// The id of the backend. A reload keeps the id of a socket that criswitch already knows.
    pub id: BackendId,
    /// The name under `[backends]`, else the name of the first handler whose row has the socket.
    pub name: String,
    /// The socket that the backend serves.
    pub socket: Address,
    /// How long a merged call waits for the backend before it serves the backend's cached list; not zero.
    pub list_timeout: Duration,
    /// How long a merged call for stats waits for the backend before it serves cached stats or omits the backend; not
    /// zero.
    pub stats_timeout: Duration,
    /// The largest age of cached lists that are served while the backend does not answer. With zero, no cached lists
    /// are served; [`Duration::MAX`] means no limit.
    pub stale_lists: Duration,
    /// Whether criswitch automatically registers handlers that the backend reports and that have no row.
    pub auto_register: bool,
    /// Whether the backend may already have pods of the kubelet when criswitch runs for the first time. If not, lists
    /// omit the backend until it answers.
    pub required: bool,
    /// The user, besides root, whose process may serve the socket without a warning.
    pub user: Option<UserId>,
    /// The file and line of the backend's row, else of the first handler row with the backend's socket; `None` if no
    /// file names the backend.
    pub origin: Option<Origin>,
}

impl BackendConfig {
    /// A backend without a row: criswitch waits for it without limit and never serves its cached lists.
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

/// Whether `name` is valid for a handler or backend: an RFC 1123 label.
pub fn is_label(name: &str) -> bool {
    value::label("", name).is_ok()
}

impl Config {
    /// Reads and checks `path` and the drop-ins `conf.d/*.toml` beside it, sorted by name.
    ///
    /// # Errors
    /// Every problem of every file, sorted by file, line and column.
    pub fn load(path: &Path) -> Result<Config, Problems> {
        let mut problems = Problems::default();
        let files = files::read(path, &mut problems);
        let mut config = Config::of_files(path, &files, problems)?;
        config.notes.extend(trust::notes(&config));
        Ok(config)
    }

    /// Returns the first valid `listen` socket in `path` and its drop-ins, even if the files have other problems. If no
    /// file has a valid `listen`, returns the default socket.
    ///
    /// # Errors
    /// If no file has a valid `listen`, and `path` cannot be read.
    pub fn listen_of(path: &Path) -> Result<Address, Problems> {
        let mut problems = Problems::default();
        let files = files::read(path, &mut problems);
        match Written::listen(&files) {
            Some(listen) => Ok(listen),
            None if files.first().is_some_and(|file| file.path() == path) => {
                Ok(Address::default_listen())
            }
            None => Err(problems),
        }
    }

    /// Checks the contents of files, the main one first. The paths only name the files in problems.
    ///
    /// # Errors
    /// Every problem of every text, sorted by file, line and column.
    pub fn of_texts(texts: &[(&Path, &[u8])]) -> Result<Config, Problems> {
        let mut problems = Problems::default();
        let main = texts.first().map_or(Path::new(""), |(path, _)| path);
        let files: Vec<_> = texts
            .iter()
            .enumerate()
            .filter_map(|(index, (path, text))| {
                files::decode_file(Place::start(index, path), text.to_vec(), &mut problems)
            })
            .collect();
        Config::of_files(main, &files, problems)
    }

    /// The two sets of directories in which a daemon with this configuration may keep its state: with the directories
    /// `systemd` that systemd passed to this process, and with the directories of the shipped systemd unit.
    pub fn state_directories(&self, systemd: [Option<PathBuf>; 2]) -> [Directories; 2] {
        let of_unit = UNIT_DIRECTORIES.map(|path| Some(PathBuf::from(path)));
        [systemd, of_unit].map(|systemd| self.directories(systemd))
    }

    /// The directories for the state: the values of `runtime_dir` and `state_dir`, else the directories of systemd,
    /// else the default paths of the operating system.
    pub fn directories(&self, systemd: [Option<PathBuf>; 2]) -> Directories {
        let [runtime, state] = systemd;
        let [runtime_default, state_default] = paths::state(self.listen.path());
        Directories {
            runtime: self
                .runtime_dir
                .clone()
                .or(runtime)
                .unwrap_or(runtime_default),
            state: self.state_dir.clone().or(state).unwrap_or(state_default),
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
            written.add_file(file, &mut problems);
        }
        check::check(files, &written, &Place::start(0, main), &mut problems)
            .filter(|_| problems.is_empty())
            .ok_or(problems)
    }
}

impl Handler {
    /// A row without a file, for a handler that `backend` reports.
    pub fn auto_registered(name: &str, backend: BackendId) -> Handler {
        Handler {
            name: name.to_owned(),
            backend,
            backend_handler: name.to_owned(),
            origin: None,
            kind: None,
            scheduling: Scheduling::default(),
        }
    }

    /// The name of the handler's RuntimeClass.
    pub fn class(&self) -> &str {
        self.scheduling.class.as_deref().unwrap_or(&self.name)
    }
}

impl Table {
    /// The backend with this id.
    pub fn backend(&self, id: BackendId) -> Option<&BackendConfig> {
        self.backends.iter().find(|row| row.id == id)
    }

    /// The row for pods with the handler `name`. An empty `name` means the default handler.
    pub fn handler(&self, name: &str) -> Option<&Handler> {
        if name.is_empty() {
            return Some(&self.default);
        }
        let at = self
            .handlers
            .binary_search_by(|row| row.name.as_str().cmp(name));
        self.handlers.get(at.ok()?)
    }

    /// The table's name for the handler `name` of `backend`; `None` if no row routes to that handler.
    ///
    /// If several rows route to the handler, the row that started a pod is unknown, so `name` is returned unchanged.
    pub fn name_for<'n>(&'n self, backend: BackendId, name: &'n str) -> Option<&'n str> {
        let mut rows = self
            .handlers
            .iter()
            .filter(|row| row.backend == backend && row.backend_handler == name);
        let first = rows.next()?;
        Some(rows.next().map_or(&first.name, |_| name))
    }

    /// Whether a row gives a handler of the backend a name that differs from the backend's own name for the handler.
    pub fn renames(&self, backend: BackendId) -> bool {
        self.handlers
            .iter()
            .any(|row| row.backend == backend && row.backend_handler != row.name)
    }

    /// The table's names for all handlers of `backend`, for many look-ups.
    pub fn names_of(&self, backend: BackendId) -> NamesOfHandlers<'_> {
        let mut names: HashMap<&str, (&str, bool)> = HashMap::new();
        for row in self.handlers.iter().filter(|row| row.backend == backend) {
            names
                .entry(&row.backend_handler)
                .and_modify(|(_, is_one_of_several)| *is_one_of_several = true)
                .or_insert((&row.name, false));
        }
        NamesOfHandlers(names)
    }
}

/// The table's names for the handlers of one backend. Maps the backend's name for a handler to the table's first name
/// for it, and to whether the table has several names for it.
#[derive(Debug)]
pub struct NamesOfHandlers<'t>(HashMap<&'t str, (&'t str, bool)>);

impl<'t> NamesOfHandlers<'t> {
    /// As [`Table::name_for`].
    pub fn name_for<'n>(&self, name: &'n str) -> Option<&'n str>
    where
        't: 'n,
    {
        let (first, is_one_of_several) = self.0.get(name)?;
        Some(if *is_one_of_several { name } else { first })
    }

    /// As `name_for`, for an image. If several rows route to the handler, any of them routes to the image.
    pub fn image_name_for(&self, name: &str) -> Option<&'t str> {
        Some(self.0.get(name)?.0)
    }
}
