//! The fields of an entry of [`KEYS`], the table of configuration keys.
//!
//! The parser, the checks, `criswitch check`, reloads, `config/criswitch.toml`, `docs/configuration.md`,
//! criswitch.toml(5) and the hints for misspelt keys all read these entries.

mod schema;
mod table;

use std::fmt::{self, Display};
use std::path::Path;
use std::time::Duration;

use criswitch_platform::users::UserId;
use serde_json::{Value as Json, json};

pub use super::value::Limits;
use super::value::{duration_text, size};
use super::{BackendConfig, Config};
pub use schema::schema;
pub use table::KEYS;
pub(super) use table::SOCKET_EXAMPLE;

/// The tables, each with the heading of its keys in the documentation.
pub const TABLES: [(&str, &str); 7] = [
    ("", "Above the tables"),
    ("log", "`[log]`"),
    ("metrics", "`[metrics]`"),
    ("handlers", "A row of `[handlers]`"),
    ("overhead", "The `overhead` of a handler"),
    ("tolerations", "Each of the `tolerations` of a handler"),
    ("backends", "A row of `[backends]`"),
];

/// A key of the configuration.
pub struct Key {
    /// The key's table in the file. For a key within a field of a row, the name of that field, such as `overhead`.
    /// Empty for top-level keys.
    pub table: &'static str,
    /// The name. It begins with the table's name if the key occurs once in a configuration, such as `log.level`.
    pub name: &'static str,
    /// The kind of value.
    pub kind: KeyKind,
    /// The default value, without quotes for a string.
    pub default: Option<&'static str>,
    /// An example value as written in a file. If it is empty, the default serves as the example.
    example: &'static str,
    /// The bounds of a duration or size.
    pub limits: Limits,
    /// When a changed value applies.
    pub applies: Applies,
    /// The description in the documentation.
    pub help: &'static str,
    value: Reader,
}

/// The kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum KeyKind {
    /// A string, and the meaning of its text.
    #[strum(to_string = "{0}")]
    Text(&'static str),
    /// A string with a number and a unit of time.
    Duration,
    /// A string with a number and a unit of bytes.
    Size,
    /// True or false.
    Boolean,
    /// An integer.
    Integer,
    /// An array of user ids.
    #[strum(to_string = "array of user ids")]
    Users,
    /// A table, or an array of tables, whose fields are keys.
    Table,
}

/// When a changed value applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Applies {
    /// A changed value applies after a reload.
    Reload,
    /// A changed value applies after a restart; a reload with a changed value is rejected.
    Restart,
    /// A changed value applies at the next start; a reload ignores it.
    #[strum(to_string = "next start")]
    NextStart,
    /// The value applies to the output of `criswitch manifests` only.
    #[strum(to_string = "`criswitch manifests`")]
    Manifests,
    /// The value applies to the output of `criswitch explain` and of `criswitch manifests --policy` only.
    #[strum(to_string = "`criswitch explain`")]
    Commands,
}

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigValue {
    /// A string; `None` if it is not set.
    Text(Option<String>),
    /// A time; [`Duration::MAX`] for "unlimited".
    Duration(Duration),
    /// A number of bytes.
    Size(usize),
    /// True or false.
    Boolean(bool),
    /// A user id; `None` if it is not set.
    User(Option<UserId>),
    /// User ids.
    Users(Vec<UserId>),
}

/// Reads a key's value from the configuration or from a backend.
enum Reader {
    Config(fn(&Config) -> ConfigValue),
    Backend(fn(&BackendConfig) -> ConfigValue),
    Nowhere,
}

/// The keys of a table; the top-level keys for an empty name.
pub fn of_table(table: &str) -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(move |key| key.table == table)
}

/// The key with this name in a table, or at the top level if `table` is empty.
pub(super) fn written(table: &str, name: &str) -> Option<&'static Key> {
    of_table(table).find(|key| key.own_name() == name)
}

impl Key {
    /// The name without the table's name.
    pub fn own_name(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or_default()
    }

    /// The value in a configuration, if the key occurs once in a configuration.
    pub fn value(&self, config: &Config) -> Option<ConfigValue> {
        match self.value {
            Reader::Config(value) => Some(value(config)),
            _ => None,
        }
    }

    /// The value of a backend, if the key belongs to a backend.
    pub fn value_of(&self, backend: &BackendConfig) -> Option<ConfigValue> {
        match self.value {
            Reader::Backend(value) => Some(value(backend)),
            _ => None,
        }
    }

    /// The key as a field of JSON output: the name in camelCase with the unit at its end, and the value.
    pub fn json(&self, value: ConfigValue) -> (String, Json) {
        let name = camel_case(self.name);
        match value {
            ConfigValue::Duration(Duration::MAX) => (name + "Ms", Json::Null),
            ConfigValue::Duration(duration) => (name + "Ms", json!(millis(duration))),
            ConfigValue::Size(bytes) => (name + "Bytes", json!(bytes)),
            ConfigValue::Text(text) => (name, json!(text)),
            ConfigValue::Boolean(on) => (name, json!(on)),
            ConfigValue::User(user) => (name, json!(user)),
            ConfigValue::Users(users) => (name, json!(users)),
        }
    }

    /// `text` as a value in a file: in quotes if the value of this key is a string.
    pub fn quoted(&self, text: &str) -> String {
        match self.kind {
            KeyKind::Text(_) | KeyKind::Duration | KeyKind::Size => format!("{text:?}"),
            _ => text.to_owned(),
        }
    }

    /// An example value, as written in a file.
    pub(super) fn example(&self) -> String {
        match (self.example, self.default) {
            ("", Some(default)) => self.quoted(default),
            ("", None) => "text in quotes".to_owned(),
            (example, _) => example.to_owned(),
        }
    }
}

/// Converts a name to camelCase: `list_timeout` becomes `listTimeout`, `log.level` becomes `logLevel`.
fn camel_case(name: &str) -> String {
    let mut words = name.split(['.', '_']);
    let first = words.next().unwrap_or_default().to_owned();
    let capitalized = words.map(|word| {
        let (initial, rest) = word.split_at(word.len().min(1));
        initial.to_uppercase() + rest
    });
    first + &capitalized.collect::<String>()
}

/// The duration in milliseconds. Every duration of a configuration is far below the limit of `u64`.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl ConfigValue {
    fn text(value: impl Display) -> ConfigValue {
        ConfigValue::Text(Some(value.to_string()))
    }

    fn path(path: Option<&Path>) -> ConfigValue {
        ConfigValue::Text(path.map(|path| path.display().to_string()))
    }
}

impl Display for ConfigValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigValue::Text(text) => f.write_str(text.as_deref().unwrap_or_default()),
            ConfigValue::Duration(duration) => f.write_str(&duration_text(*duration)),
            ConfigValue::Size(bytes) => f.write_str(&size(*bytes)),
            ConfigValue::Boolean(on) => on.fmt(f),
            ConfigValue::User(user) => user.map_or(Ok(()), |user| user.fmt(f)),
            ConfigValue::Users(users) => write!(f, "{users:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_one_entry_and_a_key_of_log_or_metrics_begins_with_its_table() {
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
                KeyKind::Duration => {
                    assert!(super::super::value::duration(default, &key.limits).is_ok())
                }
                KeyKind::Size => assert!(super::super::value::bytes(default, &key.limits).is_ok()),
                _ => assert_eq!(key.limits.most, "", "{}", key.name),
            }
        }
    }
}
