//! The settings of a machine, each with the file or process that has it.

use std::fmt;
use std::path::{Path, PathBuf};

use criswitch_config::address::Address;
use criswitch_platform::paths::in_run;
use serde::Serialize;
use serde_json::Value;

use super::finding::{Finding, report};

/// A setting, and the file or process that has it.
#[derive(Clone, Serialize)]
pub(super) struct Setting {
    /// The key in the file, or the flag without its dashes.
    #[serde(skip)]
    pub(super) name: String,
    /// The text before the value in the file or on the command line.
    #[serde(skip)]
    pub(super) before: String,
    pub(super) value: String,
    pub(super) from: String,
}

impl Setting {
    pub(super) fn new(name: &str, before: &str, value: &str, from: &str) -> Setting {
        Setting {
            name: name.to_owned(),
            before: before.to_owned(),
            value: value.to_owned(),
            from: from.to_owned(),
        }
    }

    /// The value of a key in a file. An empty value stays, because it replaces the value of an earlier file.
    pub(super) fn of(file: &Value, key: &str, path: &Path) -> Option<Setting> {
        let value = file.get(key)?;
        let value = match value {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            value => Setting::text_of(value)?,
        };
        Some(Setting::new(
            key,
            &format!("{key}: "),
            &value,
            &path.display().to_string(),
        ))
    }

    /// The text of a value that is neither empty nor an object; the texts of a list with commas between them.
    pub(super) fn text_of(value: &Value) -> Option<String> {
        match value {
            Value::Array(items) => {
                let texts: Vec<_> = items.iter().filter_map(Setting::text_of).collect();
                Some(texts.join(","))
            }
            Value::String(text) if !text.is_empty() => Some(text.clone()),
            Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
            _ => None,
        }
    }

    /// The setting with the new value, in the syntax of its file or command line.
    pub(super) fn instead(&self, value: &str) -> String {
        format!("{}{value}", self.before)
    }
}

/// The last setting with one of these names; `None` if its value is empty.
pub(super) fn last<'a>(settings: &'a [Setting], names: &[&str]) -> Option<&'a Setting> {
    settings
        .iter()
        .rev()
        .find(|setting| names.contains(&setting.name.as_str()))
        .filter(|setting| !setting.value.is_empty())
}

/// Reports an endpoint that is set and is not the endpoint of criswitch.
pub(super) fn judge(
    setting: Option<&Setting>,
    name: &str,
    switch: &str,
    hint: impl fmt::Display,
    findings: &mut Vec<Finding>,
) {
    if let Some(Setting { value, from, .. }) = setting
        && !same(value, switch)
    {
        report(
            findings,
            from,
            format!("{name} is {value}, not criswitch"),
            hint,
        );
    }
}

/// Whether two addresses name the same socket, even if only one of them uses the link `/var/run`. A path with a slash
/// at its end names a directory, and a connection to it fails.
pub(super) fn same(one: &str, other: &str) -> bool {
    one == other || path(one).is_some_and(|one| Some(one) == path(other))
}

fn path(text: &str) -> Option<PathBuf> {
    if text.ends_with('/') || text.ends_with("/.") {
        return None;
    }
    Some(in_run(Address::parse(text).ok()?.path()))
}
