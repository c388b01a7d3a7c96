//! The keys that take one value: their names, defaults and examples.

/// Keys that have a new name: the old name, and the new one.
const RENAMED: [(&str, &str); 3] = [
    ("default", "default_handler"),
    ("drain", "shutdown_timeout"),
    ("adopt", "auto_register"),
];

/// The new name of a key that is written with its old one.
pub(super) fn renamed(old: &str) -> Option<&'static str> {
    let renamed = RENAMED.iter().find(|(name, _)| *name == old);
    renamed.map(|(_, new)| *new)
}

/// A key that stands once in a configuration, in whichever file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// The switch's own socket.
    Listen,
    /// The handler of a pod that names none.
    DefaultHandler,
    /// How long calls in flight may go on after SIGTERM.
    ShutdownTimeout,
    /// The largest gRPC message.
    MaxMessage,
    /// How long the first calls wait for backends that are not there yet.
    StartWait,
    /// How long a merged call waits for a backend that something can stand in for.
    ListTimeout,
    /// How long a merged call for stats waits for a backend.
    StatsTimeout,
    /// How old the cached lists of a backend may be that are served while it does not answer.
    StaleLists,
    /// Where the state of this boot is.
    RuntimeDir,
    /// Where the state is that outlives the boot.
    StateDir,
    /// Who may connect.
    AllowUids,
    /// Whether changes of the files are taken up by themselves.
    Watch,
    /// The most verbose log lines that are written.
    LogLevel,
    /// What log lines look like.
    LogFormat,
    /// Where metrics are served.
    MetricsListen,
}

impl Key {
    /// Every key, in the order of `config/criswitch.toml`.
    pub const ALL: [Key; 15] = [
        Key::Listen,
        Key::DefaultHandler,
        Key::ShutdownTimeout,
        Key::MaxMessage,
        Key::StartWait,
        Key::ListTimeout,
        Key::StatsTimeout,
        Key::StaleLists,
        Key::RuntimeDir,
        Key::StateDir,
        Key::AllowUids,
        Key::Watch,
        Key::LogLevel,
        Key::LogFormat,
        Key::MetricsListen,
    ];

    /// As it is written, after its table's name and a dot if it stands in one.
    pub fn name(self) -> &'static str {
        match self {
            Key::Listen => "listen",
            Key::DefaultHandler => "default_handler",
            Key::ShutdownTimeout => "shutdown_timeout",
            Key::MaxMessage => "max_message",
            Key::StartWait => "start_wait",
            Key::ListTimeout => "list_timeout",
            Key::StatsTimeout => "stats_timeout",
            Key::StaleLists => "stale_lists",
            Key::RuntimeDir => "runtime_dir",
            Key::StateDir => "state_dir",
            Key::AllowUids => "allow_uids",
            Key::Watch => "watch",
            Key::LogLevel => "log.level",
            Key::LogFormat => "log.format",
            Key::MetricsListen => "metrics.listen",
        }
    }

    /// What holds where no file sets it, without the quotes of a string; none where one has to.
    pub fn default_text(self) -> Option<&'static str> {
        match self {
            Key::Listen => Some(super::DEFAULT_LISTEN),
            Key::DefaultHandler => None,
            Key::ShutdownTimeout => Some("10s"),
            Key::MaxMessage => Some("16MiB"),
            Key::StartWait => Some("30s"),
            Key::ListTimeout | Key::StatsTimeout => Some("2s"),
            Key::StaleLists => Some("unlimited"),
            Key::AllowUids => Some("[0]"),
            Key::Watch => Some("false"),
            Key::LogLevel => Some("info"),
            Key::LogFormat => Some("auto"),
            Key::RuntimeDir | Key::StateDir | Key::MetricsListen => Some(""),
        }
    }

    /// A value that could be written.
    pub(super) fn example(self) -> &'static str {
        match self {
            Key::DefaultHandler => "runc",
            Key::MetricsListen => "127.0.0.1:9199",
            Key::RuntimeDir => "/run/criswitch/state",
            Key::StateDir => "/var/lib/criswitch",
            _ => self.default_text().unwrap_or_default(),
        }
    }

    pub(super) fn named(name: &str) -> Option<Key> {
        Key::ALL.into_iter().find(|key| key.name() == name)
    }

    /// Whether a key of this name stands above the tables.
    pub(super) fn is_of_head(name: &str) -> bool {
        !name.contains('.') && Key::named(name).is_some()
    }
}
