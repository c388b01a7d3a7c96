//! The log settings: levels of criswitch and of single modules, and the format of lines.

use std::collections::BTreeMap;
use std::fmt;

use strum::{AsRefStr, EnumString, VariantNames};
use tracing::level_filters::LevelFilter;

use super::problem::{near, nearest};
use super::value::{InvalidValue, invalid_value};

/// The modules and crates of criswitch that can have a level of their own.
#[rustfmt::skip]
pub const MODULES: [&str; 17] = [
    "backend", "call", "config", "dispatch", "errors", "gate", "limits", "operator", "ownership", "platform", "serve",
    "server", "session", "store", "switch", "telemetry", "topology",
];

/// The log settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// The most verbose level of lines that are written.
    pub levels: LogLevels,
    /// The format of the lines.
    pub format: LogFormat,
}

/// The most verbose level of lines that are written, for all modules and for single modules. The displayed form can be
/// parsed again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLevels {
    /// The level of modules without an entry in `modules`.
    pub all: LevelFilter,
    /// The level of a module and its submodules, by its path without the crate's name, such as `session`.
    pub modules: BTreeMap<String, LevelFilter>,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, AsRefStr, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum LogFormat {
    /// [`LogFormat::Journald`] if standard error is the journal, else [`LogFormat::Text`].
    Auto,
    /// A line of text with its time, coloured on a terminal.
    Text,
    /// A JSON object on each line.
    Json,
    /// A line of text after its syslog priority (`sd-daemon(3)`), without the time: the journal adds it.
    Journald,
}

const LEVELS: [(&str, LevelFilter); 6] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];
/// The level of modules that `log.level` does not name, if `log.level` has levels of single modules only.
const DEFAULT_LEVEL: LevelFilter = LevelFilter::INFO;

/// Parses the value of `log.level`, such as "info" or "info,session=debug".
pub(super) fn levels(text: &str) -> Result<LogLevels, InvalidValue> {
    let mut all = None;
    let mut modules = BTreeMap::new();
    for part in text.split(',').map(str::trim) {
        let twice = match part.split_once('=') {
            Some((name, text)) => modules.insert(module(name)?, level(text)?).is_some(),
            None => all.replace(level(part)?).is_some(),
        };
        if twice {
            return Err(invalid_value(
                format!("{part:?} sets a level that is already set earlier in this text"),
                "removing one of the two",
            ));
        }
    }
    let all = all.unwrap_or(DEFAULT_LEVEL);
    Ok(LogLevels { all, modules })
}

fn module(name: &str) -> Result<String, InvalidValue> {
    let name = name.trim();
    let path = name.strip_prefix("criswitch::").unwrap_or(name);
    let first = path.split("::").next().unwrap_or_default();
    if MODULES.contains(&first) {
        return Ok(path.to_owned());
    }
    let what = format!("{name:?} is not a module of criswitch");
    let hint = match near(first, &MODULES) {
        Some(name) => format!("{name:?}"),
        None => "a module of docs/architecture.md, such as \"session\"".to_owned(),
    };
    Err(invalid_value(what, &hint))
}

fn level(text: &str) -> Result<LevelFilter, InvalidValue> {
    let text = text.trim();
    if let Some((_, level)) = LEVELS.iter().find(|(name, _)| *name == text) {
        return Ok(*level);
    }
    let hint = if MODULES.contains(&text) {
        format!("\"info,{text}=debug\"")
    } else {
        nearest(text, LEVELS.map(|(name, _)| name)).unwrap_or_default()
    };
    Err(invalid_value(format!("{text:?} is not a log level"), &hint))
}

pub(super) fn format(text: &str) -> Result<LogFormat, InvalidValue> {
    text.parse().map_err(|_| {
        let hint = nearest(text, LogFormat::VARIANTS.iter().copied()).unwrap_or_default();
        invalid_value(format!("{text:?} is not a log format"), &hint)
    })
}

impl fmt::Display for LogLevels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.all)?;
        for (module, level) in &self.modules {
            write!(f, ",{module}={level}")?;
        }
        Ok(())
    }
}
