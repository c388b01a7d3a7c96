//! THE TABLE of configuration keys. The parser, the checks, `criswitch check`, the reload, `config/criswitch.toml`,
//! `docs/configuration.md` and the hints at misspelt keys take what they need to know of a key from its entry.

use std::fmt::{self, Display};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::value::{UNLIMITED, duration_text, size};
use super::{BackendConfig, Config};

/// A key of the configuration.
pub struct Key {
    /// The table of the file that has the key, or the field of a row; empty above the tables.
    pub table: &'static str,
    /// The name. It begins with the name of the table if the key stands once in a configuration, as `log.level`.
    pub name: &'static str,
    /// An earlier name, which is rejected with an error that has the new one.
    old_name: &'static str,
    /// What the value is.
    pub kind: Kind,
    /// The value of a configuration without the key, without the quotes of a string.
    pub default: Option<&'static str>,
    /// A value, as a file has it, where the default is none.
    example: &'static str,
    /// What the value may be.
    pub limits: Limits,
    /// When a changed value applies.
    pub applies: Applies,
    /// What the key is for.
    pub help: &'static str,
    value: Reader,
}

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A string, and what it says.
    Text(&'static str),
    /// A string: a number and a unit of time.
    Duration,
    /// A string: a number and a unit of bytes.
    Size,
    /// True or false.
    Boolean,
    /// An integer.
    Integer,
    /// An array of user ids.
    Users,
    /// A table, or an array of tables, whose fields are keys.
    Table,
}

/// The smallest and the largest value of a duration or size.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Whether zero is allowed.
    pub zero: bool,
    /// The largest value; empty for any.
    pub most: &'static str,
    /// Whether "unlimited" is allowed.
    pub unlimited: bool,
}

/// When a changed value applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applies {
    /// After a reload.
    Reload,
    /// After a restart; a reload with a changed value is rejected.
    Restart,
    /// At the next start; a reload ignores it.
    NextStart,
    /// To the output of `criswitch manifests` only.
    Manifests,
}

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A string; none if it is not set.
    Text(Option<String>),
    /// [`Duration::MAX`] for "unlimited".
    Duration(Duration),
    /// In bytes.
    Size(usize),
    /// True or false.
    Boolean(bool),
    /// A user id; none if it is not set.
    User(Option<u32>),
    /// User ids.
    Users(Vec<u32>),
}

/// Where the value of a key is.
enum Reader {
    Config(fn(&Config) -> Value),
    Backend(fn(&BackendConfig) -> Value),
    Nowhere,
}

const NO_LIMITS: Limits = Limits {
    zero: true,
    most: "",
    unlimited: false,
};
/// Longer than any pod's grace period that a node's shutdown would wait for, than any start, and than any list that is
/// better than none.
const WAIT: Limits = Limits {
    most: "1h",
    ..NO_LIMITS
};
/// A timeout of zero would give no backend time to answer.
const TIMEOUT: Limits = Limits {
    zero: false,
    ..WAIT
};
const AGE: Limits = Limits {
    unlimited: true,
    ..WAIT
};
/// A reply is merged in memory; the kubelet itself accepts 16 MiB.
const MESSAGE: Limits = Limits {
    zero: false,
    most: "1GiB",
    unlimited: false,
};

const KEY: Key = Key {
    table: "",
    name: "",
    old_name: "",
    kind: Kind::Text("string"),
    default: None,
    example: "",
    limits: NO_LIMITS,
    applies: Applies::Reload,
    help: "",
    value: Reader::Nowhere,
};
const HANDLER: Key = Key {
    table: "handlers",
    ..KEY
};
const BACKEND: Key = Key {
    table: "backends",
    ..KEY
};
const OVERHEAD: Key = Key {
    table: "overhead",
    kind: Kind::Text("quantity"),
    applies: Applies::Manifests,
    ..KEY
};
const TOLERATION: Key = Key {
    table: "tolerations",
    applies: Applies::Manifests,
    ..KEY
};
const SOCKET: Kind = Kind::Text("socket path");
/// A socket that could be a backend's.
pub(super) const SOCKET_EXAMPLE: &str = "\"/run/containerd/containerd.sock\"";

/// Every key, in the order of `config/criswitch.toml`.
pub static KEYS: &[Key] = &[
    Key {
        name: "listen",
        kind: SOCKET,
        default: Some(super::DEFAULT_LISTEN),
        applies: Applies::Restart,
        help: "The socket that the kubelet (`--container-runtime-endpoint`) and crictl connect to: a path, or `unix://` and \
               a path, of at most 107 bytes. Not `/run/containerd/containerd.sock` and no path that ends in \
               `run/crio/crio.sock`: the kubelet gives these a meaning of their own. If systemd holds the socket, change \
               `ListenStream=` of `criswitch.socket` too.",
        value: Reader::Config(|config| Value::text(&config.listen)),
        ..KEY
    },
    Key {
        name: "default_handler",
        old_name: "default",
        kind: Kind::Text("handler"),
        example: "\"runc\"",
        help: "The row of `[handlers]` for pods without a RuntimeClass. Required. Its backend also answers for the node: its \
               version, and whether the runtime and the network are ready.",
        value: Reader::Config(|config| Value::text(&config.table.default.name)),
        ..KEY
    },
    Key {
        name: "shutdown_timeout",
        old_name: "drain",
        kind: Kind::Duration,
        default: Some("10s"),
        limits: WAIT,
        help: "How long calls in flight may take when the daemon is told to stop, such as \"500ms\", \"10s\" or \"1m\".",
        value: Reader::Config(|config| Value::Duration(config.shutdown_timeout)),
        ..KEY
    },
    Key {
        name: "max_message",
        kind: Kind::Size,
        default: Some("16MiB"),
        limits: MESSAGE,
        applies: Applies::Restart,
        help: "The largest message that is read, and the largest list that is merged. The kubelet itself accepts 16 MiB, so \
               a larger limit is for other clients only.",
        value: Reader::Config(|config| Value::Size(config.max_message)),
        ..KEY
    },
    Key {
        name: "start_wait",
        kind: Kind::Duration,
        default: Some("30s"),
        limits: WAIT,
        applies: Applies::NextStart,
        help: "How long the first lists after a start wait for backends that are not there yet, so that criswitch may start \
               before them. A backend whose lists are known from before a restart is waited for 1 s only. Version, Status, \
               ImageFsInfo and RuntimeConfig wait 1 s for the default backend.",
        value: Reader::Config(|config| Value::Duration(config.start_wait)),
        ..KEY
    },
    Key {
        name: "list_timeout",
        kind: Kind::Duration,
        default: Some("2s"),
        limits: TIMEOUT,
        help: "How long a merged call waits for a backend, if the cached list of the backend can be served or the backend may \
               be omitted. A backend's row may have its own.",
        value: Reader::Config(|config| Value::Duration(config.list_timeout)),
        ..KEY
    },
    Key {
        name: "stats_timeout",
        kind: Kind::Duration,
        default: Some("2s"),
        limits: TIMEOUT,
        help: "How long a merged call for stats, metrics or metric descriptors waits for a backend. After that its last stats \
               are served, for 2 minutes at most and with their own timestamps, and then the backend is omitted. A \
               backend's row may have its own. CRI-O does not answer calls for all stats while it stops a container, so its \
               stats are late for that long; calls for one pod or container are not affected.",
        value: Reader::Config(|config| Value::Duration(config.stats_timeout)),
        ..KEY
    },
    Key {
        name: "stale_lists",
        kind: Kind::Duration,
        default: Some(UNLIMITED),
        limits: AGE,
        help: "How old the cached lists of a backend may be. While a backend does not answer, its last complete lists of \
               pods, containers and images are served from cache. With \"unlimited\" they are served until the backend \
               answers again, so the node loses nothing but that backend's own pods. With a duration (\"0s\" for never) \
               every list of the node fails after that, and in the end the node's pods are evicted. Stats are never cached \
               longer than 2 minutes. A backend's row may have its own.",
        value: Reader::Config(|config| Value::Duration(config.stale_lists)),
        ..KEY
    },
    Key {
        name: "runtime_dir",
        kind: Kind::Text("directory"),
        default: Some(""),
        example: "\"/run/criswitch/state\"",
        applies: Applies::Restart,
        help: "Where the state of this boot is saved: what each backend had last, so that lists are complete after a restart \
               while a backend is away. Only root can read it, and a tmpfs is best. \"\": the directory of systemd's unit, \
               `/run/criswitch/state`; without systemd the path of the socket with `.state` behind it.",
        value: Reader::Config(|config| Value::path(config.runtime_dir.as_deref())),
        ..KEY
    },
    Key {
        name: "state_dir",
        kind: Kind::Text("directory"),
        default: Some(""),
        example: "\"/var/lib/criswitch\"",
        applies: Applies::Restart,
        help: "Where the state is saved that outlives the boot, and by which a restart is known from a reboot. \"\": the \
               directory of systemd's unit, `/var/lib/criswitch`; without systemd the path of the socket with `.state` \
               behind it.",
        value: Reader::Config(|config| Value::path(config.state_dir.as_deref())),
        ..KEY
    },
    Key {
        name: "allow_uids",
        kind: Kind::Users,
        default: Some("[0]"),
        applies: Applies::Restart,
        help: "The users, by number, whose processes may connect besides root's and those of the user that criswitch runs as. \
               An ACL on the socket lets them in and nobody else. If its file system has no ACLs, the mode is 0666: \
               connections of other users are closed, but they can fill the socket's queue. A socket of systemd needs a \
               drop-in (README, \"Under systemd\"). A user who may connect has the power of root on this node: pods can be \
               privileged. Each of these users may have 64 connections at once.",
        value: Reader::Config(|config| Value::Users(config.allow_uids.clone())),
        ..KEY
    },
    Key {
        name: "watch",
        kind: Kind::Boolean,
        default: Some("false"),
        help: "Whether criswitch reloads automatically when this file or a file in `conf.d` has changed. criswitch looks at \
               the files every 2 s and waits until two looks in a row are equal. A symbolic link may lead to the files, as \
               in a mounted ConfigMap.",
        value: Reader::Config(|config| Value::Boolean(config.watch)),
        ..KEY
    },
    Key {
        name: "backend",
        kind: Kind::Text("backend"),
        help: "The name of the backend that runs the handler's pods. A row has a backend or a socket, not both.",
        ..HANDLER
    },
    Key {
        name: "socket",
        kind: SOCKET,
        example: SOCKET_EXAMPLE,
        help: "The path of the backend's socket. A backend without a name is named after the first handler with its socket.",
        ..HANDLER
    },
    Key {
        name: "handler",
        help: "The backend's name for the handler, if it differs; \"\" for the backend's own default.",
        ..HANDLER
    },
    Key {
        name: "overhead",
        kind: Kind::Table,
        example: "{ cpu = \"250m\", memory = \"120Mi\" }",
        applies: Applies::Manifests,
        help: "What each pod of the RuntimeClass costs besides its containers.",
        ..HANDLER
    },
    Key {
        name: "node_selector",
        kind: Kind::Table,
        example: "{ \"example.com/kata\" = \"true\" }",
        applies: Applies::Manifests,
        help: "The labels that a node must have to run pods of the RuntimeClass.",
        ..HANDLER
    },
    Key {
        name: "tolerations",
        kind: Kind::Table,
        example: "[{ key = \"example.com/kata\", operator = \"Exists\" }]",
        applies: Applies::Manifests,
        help: "The taints that pods of the RuntimeClass tolerate: an array of tables.",
        ..HANDLER
    },
    Key {
        name: "cpu",
        example: "\"250m\"",
        help: "Processor time.",
        ..OVERHEAD
    },
    Key {
        name: "memory",
        example: "\"120Mi\"",
        help: "Memory.",
        ..OVERHEAD
    },
    Key {
        name: "key",
        help: "The key of the taint; without it, with the operator \"Exists\", every taint.",
        ..TOLERATION
    },
    Key {
        name: "operator",
        default: Some("Equal"),
        example: "\"Exists\"",
        help: "\"Equal\" if the taint must have the value, \"Exists\" if any value is tolerated.",
        ..TOLERATION
    },
    Key {
        name: "value",
        help: "The value of the taint.",
        ..TOLERATION
    },
    Key {
        name: "effect",
        example: "\"NoSchedule\"",
        help: "\"NoSchedule\", \"PreferNoSchedule\" or \"NoExecute\"; without it, all of them.",
        ..TOLERATION
    },
    Key {
        name: "toleration_seconds",
        kind: Kind::Integer,
        example: "300",
        help: "How long the taint is tolerated, with the effect \"NoExecute\" only; without it, forever.",
        ..TOLERATION
    },
    Key {
        name: "socket",
        kind: SOCKET,
        example: SOCKET_EXAMPLE,
        help: "The path of the socket. Required; a row may also be the path alone, without braces.",
        value: Reader::Backend(|backend| Value::text(&backend.socket)),
        ..BACKEND
    },
    Key {
        name: "list_timeout",
        kind: Kind::Duration,
        example: "\"5s\"",
        limits: TIMEOUT,
        help: "As `list_timeout` above the tables, for this backend.",
        value: Reader::Backend(|backend| Value::Duration(backend.list_timeout)),
        ..BACKEND
    },
    Key {
        name: "stats_timeout",
        kind: Kind::Duration,
        example: "\"5s\"",
        limits: TIMEOUT,
        help: "As `stats_timeout` above the tables, for this backend.",
        value: Reader::Backend(|backend| Value::Duration(backend.stats_timeout)),
        ..BACKEND
    },
    Key {
        name: "stale_lists",
        kind: Kind::Duration,
        example: "\"5s\"",
        limits: AGE,
        help: "As `stale_lists` above the tables, for this backend.",
        value: Reader::Backend(|backend| Value::Duration(backend.stale_lists)),
        ..BACKEND
    },
    Key {
        name: "auto_register",
        old_name: "adopt",
        kind: Kind::Boolean,
        default: Some("false"),
        help: "Whether each handler that the backend advertises and that no row of any file names is registered \
               automatically, as a handler of that name.",
        value: Reader::Backend(|backend| Value::Boolean(backend.auto_register)),
        ..BACKEND
    },
    Key {
        name: "required",
        kind: Kind::Boolean,
        default: Some("true"),
        applies: Applies::NextStart,
        help: "Whether the backend may have pods that the kubelet knows where criswitch has never run. If true, lists wait \
               for it (`start_wait`) and fail until it has been listed. If false, lists omit it until it answers.",
        value: Reader::Backend(|backend| Value::Boolean(backend.required)),
        ..BACKEND
    },
    Key {
        name: "user",
        kind: Kind::Text("user"),
        example: "\"1000\"",
        help: "The user, a name of `/etc/passwd` or a number, whose process serves the socket. criswitch warns of users other \
               than this one, root and its own.",
        value: Reader::Backend(|backend| Value::User(backend.user)),
        ..BACKEND
    },
    Key {
        table: "log",
        name: "log.level",
        kind: Kind::Text("levels"),
        default: Some("info"),
        help: "The most verbose lines that are written: off, error, warn, info, debug or trace. warn shows changes that fail, \
               with pod and cause. info shows changes (pods and containers that start and end, backends up and down), debug \
               also calls that read, trace also the kubelet's polling. Modules of criswitch may have levels of their own: \
               \"info,session=debug,backend=trace\".",
        value: Reader::Config(|config| Value::text(&config.log.levels)),
        ..KEY
    },
    Key {
        table: "log",
        name: "log.format",
        kind: Kind::Text("format"),
        default: Some("auto"),
        applies: Applies::Restart,
        help: "The format of log lines. text: for people, with the time, coloured on a terminal. json: an object each, with \
               `message`, `trace_id` and so on. journald: each begins with its priority, which systemd's journal takes from \
               it. auto: journald if systemd has connected standard error to the journal, else text.",
        value: Reader::Config(|config| Value::text(config.log.format.name())),
        ..KEY
    },
    Key {
        table: "metrics",
        name: "metrics.listen",
        kind: Kind::Text("socket path or address"),
        default: Some(""),
        example: "\"127.0.0.1:9199\"",
        applies: Applies::Restart,
        help: "Where metrics are served (GET /metrics, Prometheus' text format): the path of a Unix socket, for root alone and \
               neither `listen` nor a backend's, or a loopback address such as \"127.0.0.1:9199\" or \"[::1]:9199\", which \
               every user of the node can read; \"\" for nowhere. Under systemd `criswitch-metrics.socket` has the loopback \
               address: enable that instead, and restart criswitch.service.",
        value: Reader::Config(|config| {
            Value::Text(config.metrics.as_ref().map(ToString::to_string))
        }),
        ..KEY
    },
];

/// The keys of a table, or of the head.
pub fn of_table(table: &str) -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(move |key| key.table == table)
}

/// The key that has this name in a table, or above the tables.
pub(super) fn written(table: &str, name: &str) -> Option<&'static Key> {
    of_table(table).find(|key| key.own_name() == name)
}

/// The key of a table that had this name before.
pub(super) fn renamed(table: &str, name: &str) -> Option<&'static Key> {
    of_table(table).find(|key| !name.is_empty() && key.old_name == name)
}

impl Key {
    /// The name without that of the table.
    pub fn own_name(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or_default()
    }

    /// The value in a configuration, if the key stands once in it.
    pub fn value(&self, config: &Config) -> Option<Value> {
        match self.value {
            Reader::Config(value) => Some(value(config)),
            _ => None,
        }
    }

    /// The value of a backend, if the key is one of a backend.
    pub fn value_of(&self, backend: &BackendConfig) -> Option<Value> {
        match self.value {
            Reader::Backend(value) => Some(value(backend)),
            _ => None,
        }
    }

    /// The name and the value for programs: a unit ends the name.
    pub fn json(&self, value: Value) -> (String, Json) {
        let name = self.name.replace('.', "_");
        match value {
            Value::Duration(Duration::MAX) => (name + "_ms", Json::Null),
            Value::Duration(duration) => (name + "_ms", json!(millis(duration))),
            Value::Size(bytes) => (name + "_bytes", json!(bytes)),
            Value::Text(text) => (name, json!(text)),
            Value::Boolean(on) => (name, json!(on)),
            Value::User(user) => (name, json!(user)),
            Value::Users(users) => (name, json!(users)),
        }
    }

    /// A text as a file has it.
    pub fn quoted(&self, text: &str) -> String {
        match self.kind {
            Kind::Text(_) | Kind::Duration | Kind::Size => format!("{text:?}"),
            _ => text.to_owned(),
        }
    }

    /// A value that could be written, as a file has it.
    pub(super) fn example(&self) -> String {
        match (self.example, self.default) {
            ("", Some(default)) => self.quoted(default),
            ("", None) => "text in quotes".to_owned(),
            (example, _) => example.to_owned(),
        }
    }
}

/// Every duration of a configuration is far below what fits.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Value {
    fn text(value: impl Display) -> Value {
        Value::Text(Some(value.to_string()))
    }

    fn path(path: Option<&Path>) -> Value {
        Value::Text(path.map(|path| path.display().to_string()))
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(text) => f.write_str(text.as_deref().unwrap_or_default()),
            Value::Duration(duration) => f.write_str(&duration_text(*duration)),
            Value::Size(bytes) => f.write_str(&size(*bytes)),
            Value::Boolean(on) => on.fmt(f),
            Value::User(user) => user.map_or(Ok(()), |user| user.fmt(f)),
            Value::Users(users) => write!(f, "{users:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_entry_and_begins_with_its_table_if_it_stands_once_in_a_configuration() {
        for (index, key) in KEYS.iter().enumerate() {
            let same = |other: &Key| (other.table, other.name) == (key.table, key.name);
            assert_eq!(KEYS.iter().position(same), Some(index), "{}", key.name);
            assert_eq!(
                key.name.contains('.'),
                ["log", "metrics"].contains(&key.table)
            );
            assert_eq!(
                key.own_name(),
                key.name
                    .trim_start_matches("log.")
                    .trim_start_matches("metrics.")
            );
            assert!(
                !key.help.is_empty() && key.help.ends_with('.'),
                "{}",
                key.name
            );
        }
    }

    #[test]
    fn the_default_of_a_key_is_within_its_limits() {
        for key in KEYS {
            let default = key.default.unwrap_or("10s");
            match key.kind {
                Kind::Duration => {
                    assert!(super::super::value::duration(default, &key.limits).is_ok())
                }
                Kind::Size => assert!(super::super::value::bytes(default, &key.limits).is_ok()),
                _ => assert_eq!(key.limits.most, "", "{}", key.name),
            }
        }
    }
}
