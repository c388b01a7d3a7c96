//! What an entry of the table of configuration keys can say; [`KEYS`] is the table.
//!
//! The parser, the checks, `criswitch check`, the reload, `config/criswitch.toml`, `docs/configuration.md` and the hints
//! at misspelt keys take what they need to know of a key from its entry.

mod table;

use std::fmt::{self, Display};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::value::{duration_text, size};
use super::{BackendConfig, Config};
pub use table::KEYS;
pub(super) use table::SOCKET_EXAMPLE;

/// A key of the configuration.
pub struct Key {
    /// The table of the file that has the key, or the field of a row; empty above the tables.
    pub table: &'static str,
    /// The name. It begins with the name of the table if the key stands once in a configuration, as `log.level`.
    pub name: &'static str,
    /// An earlier name, which is rejected with an error that has the new one.
    old_name: &'static str,
    /// What the value is.
    pub kind: KeyKind,
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
pub enum KeyKind {
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
pub enum ConfigValue {
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
    Config(fn(&Config) -> ConfigValue),
    Backend(fn(&BackendConfig) -> ConfigValue),
    Nowhere,
}

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
    pub fn value(&self, config: &Config) -> Option<ConfigValue> {
        match self.value {
            Reader::Config(value) => Some(value(config)),
            _ => None,
        }
    }

    /// The value of a backend, if the key is one of a backend.
    pub fn value_of(&self, backend: &BackendConfig) -> Option<ConfigValue> {
        match self.value {
            Reader::Backend(value) => Some(value(backend)),
            _ => None,
        }
    }

    /// The name and the value for programs: a unit ends the name.
    pub fn json(&self, value: ConfigValue) -> (String, Json) {
        let name = self.name.replace('.', "_");
        match value {
            ConfigValue::Duration(Duration::MAX) => (name + "_ms", Json::Null),
            ConfigValue::Duration(duration) => (name + "_ms", json!(millis(duration))),
            ConfigValue::Size(bytes) => (name + "_bytes", json!(bytes)),
            ConfigValue::Text(text) => (name, json!(text)),
            ConfigValue::Boolean(on) => (name, json!(on)),
            ConfigValue::User(user) => (name, json!(user)),
            ConfigValue::Users(users) => (name, json!(users)),
        }
    }

    /// A text as a file has it.
    pub fn quoted(&self, text: &str) -> String {
        match self.kind {
            KeyKind::Text(_) | KeyKind::Duration | KeyKind::Size => format!("{text:?}"),
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
                KeyKind::Duration => {
                    assert!(super::super::value::duration(default, &key.limits).is_ok())
                }
                KeyKind::Size => assert!(super::super::value::bytes(default, &key.limits).is_ok()),
                _ => assert_eq!(key.limits.most, "", "{}", key.name),
            }
        }
    }
}
