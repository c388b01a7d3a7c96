//! The keys that take one value: their names, defaults and examples.

/// A key that stands once in a configuration, in whichever file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// The switch's own socket.
    Listen,
    /// The handler of a pod that names none.
    Default,
    /// How long calls in flight may go on after SIGTERM.
    Drain,
    /// The largest gRPC message.
    MaxMessage,
    /// The most verbose log lines that are written.
    LogLevel,
}

impl Key {
    /// Every key, in the order of `config/criswitch.toml`.
    pub const ALL: [Key; 5] = [
        Key::Listen,
        Key::Default,
        Key::Drain,
        Key::MaxMessage,
        Key::LogLevel,
    ];

    /// As it is written, after its table's name and a dot if it stands in one.
    pub fn name(self) -> &'static str {
        match self {
            Key::Listen => "listen",
            Key::Default => "default",
            Key::Drain => "drain",
            Key::MaxMessage => "max_message",
            Key::LogLevel => "log.level",
        }
    }

    /// What holds where no file sets it; none where one has to.
    pub fn default_text(self) -> Option<&'static str> {
        match self {
            Key::Listen => Some("/run/criswitch/criswitch.sock"),
            Key::Default => None,
            Key::Drain => Some("10s"),
            Key::MaxMessage => Some("16MiB"),
            Key::LogLevel => Some("info"),
        }
    }

    /// A value that could be written.
    pub(super) fn example(self) -> &'static str {
        self.default_text().unwrap_or("runc")
    }

    pub(super) fn named(name: &str) -> Option<Key> {
        Key::ALL.into_iter().find(|key| key.name() == name)
    }
}
