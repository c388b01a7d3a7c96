//! Keys of the head that are written below a table, the commonest slip in TOML: told as that, and read all the same.

use toml::de::DeValue;

use super::{KeyValue, Walk};
use crate::config::{keys, value};

impl Walk<'_> {
    /// Whether a row of `table` was such a key. One that can be a row is none: a handler may be called `watch`.
    pub(super) fn stray(&mut self, table: &str, entry: &KeyValue<'_>) -> bool {
        let key = keys::written("", entry.key).or_else(|| keys::renamed("", entry.key));
        if key.is_none() || can_be_row(table, entry) {
            return false;
        }
        let what = format!("{:?} is a key of the head, not of [{table}]", entry.key);
        self.problems
            .tell(&entry.at, what, "it above the first [table]");
        // What it says is judged too, and it is not missed.
        self.key("", entry);
        true
    }
}

fn can_be_row(table: &str, entry: &KeyValue<'_>) -> bool {
    let is_row = match (table, entry.value) {
        ("handlers" | "backends", DeValue::Table(_)) => true,
        ("handlers", DeValue::String(_)) => true,
        ("backends", DeValue::String(socket)) => socket.contains('/'),
        ("handlers" | "backends", _) => false,
        _ => return keys::written(table, entry.key).is_some(),
    };
    is_row && value::label("", entry.key).is_ok()
}
