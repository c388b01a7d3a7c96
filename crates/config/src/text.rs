//! Parses TOML into rows and texts, each with its file, line and column.
//!
//! Reports unknown keys, wrong types and duplicates. Validates only the scheduling of rows: `check` validates the other
//! values.

mod rows;
mod scheduling;

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::ops::Range;

use criswitch_platform::users;
use toml::de::{DeTable, DeValue, Error};

use super::files::ConfigFile;
use super::foreign;
use super::keys::{self, Key, KeyKind};
use super::problem::{Place, Problems, near, nearest};
use super::value::{self, InvalidValue};
use crate::address;
use crate::address::Address;

pub(super) use rows::{BackendRow, Route, RowTarget};

/// The limit on the rows of all tables together. A node has tens of rows. Each row is compared with all others, so
/// thousands of rows would take long.
const MOST_ROWS: usize = 2048;
/// The parser's message for a duplicate key.
const DUPLICATE: &str = "duplicate key";
const TABLES: [&str; 4] = ["handlers", "backends", "log", "metrics"];

#[derive(Clone, Debug)]
pub(super) struct Placed<T> {
    pub(super) value: T,
    pub(super) place: Place,
}

/// The key that every configuration has.
const DEFAULT_HANDLER: &str = "default_handler";

/// The contents of all files together, as written.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// The keys that occur once in a configuration. Each has one text, or a text for each element of its array.
    pub(super) keys: Vec<DefinedKey<Vec<Placed<String>>>>,
    pub(super) handlers: Vec<DefinedKey<Route>>,
    pub(super) backends: Vec<DefinedKey<BackendRow>>,
    /// The position of the first `[handlers]`, for problems of the whole table.
    pub(super) handlers_at: Option<Place>,
    /// Whether a part of the files was not read. A key or row that seems to be missing may be in that part.
    pub(super) partial: bool,
    /// Whether an unknown key is a misspelt `default_handler`, so that it does not count as missing.
    pub(super) has_misspelt_default: bool,
    pub(super) rows: usize,
}

/// A key that is defined once, at the top level or in a table, and its value.
#[derive(Debug)]
pub(super) struct DefinedKey<T> {
    pub(super) name: Placed<String>,
    /// `None` if the value's problem is already reported.
    pub(super) value: Option<T>,
}

/// A key and its value in one file.
struct KeyValue<'t> {
    key: &'t str,
    at: Place,
    value: &'t DeValue<'t>,
    value_at: Place,
}

struct Walk<'a> {
    file: &'a ConfigFile,
    written: &'a mut Written,
    problems: &'a mut Problems,
}

impl Written {
    /// Adds the contents of a file. For a file that is not TOML, reports only the syntax errors.
    pub(super) fn add_file(&mut self, file: &ConfigFile, problems: &mut Problems) {
        let (table, errors) = DeTable::parse_recoverable(&file.text);
        if let Some((line, name)) = foreign::file(&file.text, errors.is_empty()) {
            self.partial = true;
            let what = format!("this is {name}, not criswitch's configuration");
            let hint =
                "criswitch discover, which writes a configuration for the runtimes of this node";
            return problems.report(&file.start.at((line, 1)), what, hint);
        }
        if !errors.is_empty() {
            self.partial = true;
            return report_syntax(file, table.get_ref(), &errors, problems);
        }
        let mut walk = Walk {
            file,
            written: self,
            problems,
        };
        walk.head(table.get_ref());
    }

    /// The first valid `listen` in the files, even if the files have other faults.
    pub(super) fn listen(files: &[ConfigFile]) -> Option<Address> {
        files.iter().find_map(|file| {
            let (table, _) = DeTable::parse_recoverable(&file.text);
            value::listen(table.get_ref().get("listen")?.get_ref().as_str()?).ok()
        })
    }

    pub(super) fn key(&self, name: &str) -> Option<&DefinedKey<Vec<Placed<String>>>> {
        self.keys.iter().find(|row| row.name.value == name)
    }

    pub(super) fn text(&self, name: &str) -> Option<&Placed<String>> {
        self.key(name)?.value.as_ref()?.first()
    }

    pub(super) fn places(&self) -> BTreeMap<&'static str, Place> {
        keys::KEYS
            .iter()
            .filter_map(|key| {
                let place = match key.kind {
                    KeyKind::Users => &self.key(key.name)?.name.place,
                    _ => &self.text(key.name)?.place,
                };
                Some((key.name, place.clone()))
            })
            .collect()
    }
}

impl ConfigFile {
    fn entries<'t>(&self, table: &'t DeTable<'t>) -> Vec<KeyValue<'t>> {
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        entries
            .into_iter()
            .map(|(key, value)| KeyValue {
                key: key.get_ref(),
                at: self.place(key.span().start),
                value: value.get_ref(),
                value_at: self.place(value.span().start),
            })
            .collect()
    }
}

impl KeyValue<'_> {
    fn name(&self) -> Placed<String> {
        Placed {
            value: self.key.to_owned(),
            place: self.at.clone(),
        }
    }

    fn at_value(&self, text: impl Display) -> Placed<String> {
        Placed {
            value: text.to_string(),
            place: self.value_at.clone(),
        }
    }
}

impl Walk<'_> {
    fn head(&mut self, table: &DeTable<'_>) {
        for entry in self.file.entries(table) {
            match entry.key {
                "handlers" => self.handlers(&entry),
                "backends" => self.rows(&entry, Walk::backend),
                "log" => self.rows(&entry, |walk, entry| walk.key("log", entry)),
                "metrics" => self.rows(&entry, |walk, entry| walk.key("metrics", entry)),
                _ => self.key("", &entry),
            }
        }
    }

    fn handlers(&mut self, table: &KeyValue<'_>) {
        self.written.handlers_at.get_or_insert(table.at.clone());
        self.rows(table, Walk::handler);
    }

    fn rows(&mut self, table: &KeyValue<'_>, row: fn(&mut Self, &KeyValue<'_>)) {
        let DeValue::Table(rows) = table.value else {
            self.written.partial = true;
            return self.wrong_type(table, "a table", format_args!("[{}]", table.key));
        };
        for entry in self.file.entries(rows) {
            self.written.rows += 1;
            if self.written.rows > MOST_ROWS {
                return self.too_many(&entry);
            }
            if !self.stray(table.key, &entry) {
                row(self, &entry);
            }
        }
    }

    /// Whether an entry of `table` is a misplaced top-level key, the commonest mistake in TOML. A misplaced key is
    /// reported and still read. An entry that can be a row is not misplaced: a handler may be named `watch`.
    fn stray(&mut self, table: &str, entry: &KeyValue<'_>) -> bool {
        if keys::written("", entry.key).is_none() || can_be_row(table, entry) {
            return false;
        }
        self.problems.report(
            &entry.at,
            format!("{:?} is a top-level key, not a key of [{table}]", entry.key),
            "moving it above the first [table]",
        );
        // Reads the value, so that its problems are reported and the key does not count as missing.
        self.key("", entry);
        true
    }

    fn too_many(&mut self, entry: &KeyValue<'_>) {
        self.written.partial = true;
        self.problems.report(
            &entry.at,
            format!("the tables have more than {MOST_ROWS} rows"),
            "fewer rows",
        );
    }

    fn key(&mut self, table: &str, entry: &KeyValue<'_>) {
        let Some(key) = keys::written(table, entry.key) else {
            return self.unknown(table, entry);
        };
        let value = self.value(key, entry);
        let name = Placed {
            value: key.name.to_owned(),
            place: entry.at.clone(),
        };
        if let Err(first) = add(&mut self.written.keys, name, value) {
            self.twice(entry, format_args!("{:?}", key.name), &first);
        }
    }

    /// The texts of a value: one text, or one text for each element of an array. `None` if the type is wrong, which is
    /// reported.
    fn value(&mut self, key: &Key, entry: &KeyValue<'_>) -> Option<Vec<Placed<String>>> {
        let text = match (key.kind, entry.value) {
            (KeyKind::Users, _) => return self.users(entry, &key.example()),
            (KeyKind::Boolean, DeValue::Boolean(on)) => on.to_string(),
            (KeyKind::Boolean, _) => {
                self.wrong_type(entry, "a boolean", "true or false");
                return None;
            }
            (KeyKind::Integer, value) => {
                let number = match value {
                    DeValue::Integer(it) => i64::from_str_radix(it.as_str(), it.radix()).ok(),
                    _ => None,
                };
                if number.is_none() {
                    self.wrong_type(entry, "an integer of 64 bits", key.example());
                }
                number?.to_string()
            }
            _ => return Some(vec![self.text(entry, &text_like(key, entry))?]),
        };
        Some(vec![entry.at_value(text)])
    }

    /// Users as written: their syntax is not checked here.
    fn users(&mut self, entry: &KeyValue<'_>, example: &str) -> Option<Vec<Placed<String>>> {
        let kind = if users::ARE_INTEGERS {
            "integers"
        } else {
            "strings"
        };
        let DeValue::Array(values) = entry.value else {
            let example = match entry.value {
                DeValue::Integer(user) if users::ARE_INTEGERS => format!("[{user}]"),
                DeValue::String(user) if is_user(user) => format!("[{user}]"),
                _ => format!("an array, such as {example}"),
            };
            self.wrong_type(entry, &format!("an array of {kind}"), example);
            return None;
        };
        let before = self.problems.len();
        let mut found = Vec::new();
        for value in values {
            let place = self.file.place(value.span().start);
            let value = match value.get_ref() {
                DeValue::Integer(integer) if users::ARE_INTEGERS => integer.to_string(),
                DeValue::String(text) if !users::ARE_INTEGERS => text.to_string(),
                other => {
                    let (key, kind_of) = (entry.key, type_of(other));
                    let what = format!("{key:?} contains {kind_of}; only {kind} are allowed");
                    let hint = match other {
                        DeValue::String(user) if is_user(user) => format!("{user} without quotes"),
                        _ => format!("the ids of users, such as {example}"),
                    };
                    self.problems.report(&place, what, hint);
                    continue;
                }
            };
            found.push(Placed { value, place });
        }
        (self.problems.len() == before).then_some(found)
    }

    fn text(&mut self, entry: &KeyValue<'_>, example: &str) -> Option<Placed<String>> {
        let DeValue::String(text) = entry.value else {
            self.wrong_type(entry, "a string", example);
            return None;
        };
        Some(entry.at_value(text))
    }

    fn wrong_type(&mut self, entry: &KeyValue<'_>, wanted: &str, example: impl Display) {
        self.problems.report(
            &entry.value_at,
            format!("{:?} is {}, not {wanted}", entry.key, type_of(entry.value)),
            example,
        );
    }

    /// Reports a name that is not a key of the table.
    fn unknown(&mut self, table: &str, entry: &KeyValue<'_>) {
        let is_short = entry.key.len() < 2 * DEFAULT_HANDLER.len();
        let is_default = is_short && near(entry.key, &[DEFAULT_HANDLER]).is_some();
        self.written.has_misspelt_default |= table.is_empty() && is_default;
        // The rows of a misspelt table are not read.
        let is_table = matches!(entry.value, DeValue::Table(_)) && is_short;
        self.written.partial |= table.is_empty() && is_table && near(entry.key, &TABLES).is_some();
        let what = format!("unknown key {:?}", entry.key);
        // The hint is computed lazily, because only problems that are shown need it.
        let hint = fmt::from_fn(|f| {
            let tables = if table.is_empty() { &TABLES[..] } else { &[] };
            let keys = keys::of_table(table).map(Key::own_name);
            let known: Vec<_> = keys.chain(tables.iter().copied()).collect();
            let other = if table == "handlers" {
                "backends"
            } else {
                "handlers"
            };
            let is_of_other_row = ["handlers", "backends"].contains(&table)
                && keys::written(other, entry.key).is_some();
            match (foreign::key_hint(table, entry.key), known.as_slice()) {
                (Some(hint), _) => f.write_str(hint),
                _ if is_of_other_row => write!(f, "this key in a row of [{other}]"),
                (None, [only]) => write!(f, "{only:?}, the only key of [{table}]"),
                (None, known) => {
                    f.write_str(&nearest(entry.key, known.iter().copied()).unwrap_or_default())
                }
            }
        });
        self.problems.report(&entry.at, what, hint);
    }

    fn twice(&mut self, entry: &KeyValue<'_>, what: impl Display, first: &Place) {
        self.problems.report(
            &entry.at,
            format!("{what} is already defined at {first}"),
            "removing one of the two",
        );
    }
}

/// Whether a text is the number of a user on a system whose ids of users are integers.
fn is_user(text: &str) -> bool {
    users::ARE_INTEGERS && text.parse::<u32>().is_ok()
}

fn can_be_row(table: &str, entry: &KeyValue<'_>) -> bool {
    let is_row = match (table, entry.value) {
        ("handlers" | "backends", DeValue::Table(_)) => true,
        ("handlers", DeValue::String(_)) => true,
        ("backends", DeValue::String(socket)) => address::is_like(socket),
        ("handlers" | "backends", _) => false,
        _ => return keys::written(table, entry.key).is_some(),
    };
    is_row && value::label("", entry.key).is_ok()
}

impl<T> Placed<T> {
    fn map<U>(self, change: impl FnOnce(T) -> U) -> Placed<U> {
        Placed {
            value: change(self.value),
            place: self.place,
        }
    }
}

impl Placed<String> {
    /// The value of the text; `None` if the text is wrong, which is reported.
    pub(super) fn parsed<T>(
        &self,
        parse: impl Fn(&str) -> Result<T, InvalidValue>,
        problems: &mut Problems,
    ) -> Option<T> {
        parse(&self.value)
            .map_err(|wrong| problems.report(&self.place, wrong.what, wrong.hint))
            .ok()
    }
}

/// Adds a row. If a row named `name` already exists, returns the position of the existing row instead.
fn add<T>(
    rows: &mut Vec<DefinedKey<T>>,
    name: Placed<String>,
    value: Option<T>,
) -> Result<(), Place> {
    match rows.iter().find(|row| row.name.value == name.value) {
        Some(first) => Err(first.name.place.clone()),
        None => {
            rows.push(DefinedKey { name, value });
            Ok(())
        }
    }
}

/// The suggestion for a value that must be a string and is not. A number becomes a likely duration or size.
fn text_like(key: &Key, entry: &KeyValue<'_>) -> String {
    match (key.kind, entry.value) {
        (KeyKind::Size, DeValue::Integer(number)) => {
            key.quoted(&value::suggested_size(number.as_str()))
        }
        (KeyKind::Duration, DeValue::Integer(number)) => {
            key.quoted(&value::suggested_duration(number.as_str()))
        }
        _ => key.example(),
    }
}

fn type_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}

/// Reports the syntax errors of a file, at most one for each line: further errors on a line mostly follow from the
/// first.
fn report_syntax(
    file: &ConfigFile,
    table: &DeTable<'_>,
    errors: &[Error],
    problems: &mut Problems,
) {
    let mut last: Option<Place> = None;
    let mut errors: Vec<_> = errors.iter().collect();
    errors.sort_by_key(|error| error.span().unwrap_or_default().start);
    for error in errors {
        let span = error.span().unwrap_or_default();
        let place = file.place(span.start);
        if last.as_ref().is_some_and(|last| last.same_line(&place)) {
            continue;
        }
        let hint = syntax_hint(line_at(&file.text, span.start), error.message());
        // The text is computed lazily, because only problems that are shown need it.
        let what = fmt::from_fn(|f| {
            write!(f, "not valid TOML: {}", error.message())?;
            match error.message() {
                DUPLICATE => first_place(f, file, table, span.clone()),
                _ => Ok(()),
            }
        });
        problems.report(&place, what, hint);
        last = Some(place);
    }
}

/// The line of the text with this position.
fn line_at(text: &str, at: usize) -> &str {
    let (before, after) = text.split_at_checked(at).unwrap_or((text, ""));
    let start = before.rfind('\n').map_or(0, |end| end + 1);
    let end = before.len() + after.find('\n').unwrap_or(after.len());
    text.get(start..end).unwrap_or_default()
}

/// The suggestion for a line that is not TOML. It depends on the first sign of a different syntax in the line.
fn syntax_hint(line: &str, message: &str) -> &'static str {
    const SIGNS: [(&[&str], &str); 4] = [
        (
            &[" <<<<<<< ", " ======= ", " >>>>>>> "],
            "the file without the markers of a merge conflict",
        ),
        (
            &["\u{201c}", "\u{201d}", "\u{2018}", "\u{2019}"],
            "straight quotes, \"",
        ),
        (&["\u{a0}"], "blanks instead of no-break spaces"),
        (&[" //"], "# for a comment"),
    ];
    /// The start of a message of the parser, and the hint for this message.
    const PARSER_HINTS: [(&str, &str); 6] = [
        ("invalid basic string", "a quote at the end of the text"),
        ("missing comma between array", "a comma between the items"),
        ("missing comma", "a comma between the keys"),
        (
            "missing escaped value",
            "single quotes, in which \\ is not an escape",
        ),
        ("string values must be quoted", "text in quotes"),
        ("unclosed table", "] at the end of the header"),
    ];
    const BOOLEANS: [&str; 10] = [
        "False", "No", "Off", "On", "True", "Yes", "no", "off", "on", "yes",
    ];
    // A no-break space at an end of the line stays: it is a sign.
    let line = line.trim_ascii();
    let value = line.split_once('=').map(|(_, value)| value.trim());
    // The blanks let a sign such as ` //` match at both ends of the line too.
    let words = format!(" {line} ");
    let is_path = value.is_some_and(|value| value.starts_with('/'));
    let is_text = value.is_some_and(|value| value.starts_with(['"', '\'']));
    match SIGNS
        .iter()
        .find(|(signs, _)| !is_path && signs.iter().any(|sign| words.contains(sign)))
    {
        _ if message == DUPLICATE && line.starts_with('[') => "moving its rows below the first one",
        _ if message == DUPLICATE => "removing one of the two",
        Some((_, hint)) => hint,
        None if value.is_some_and(|value| BOOLEANS.contains(&value)) => "true or false",
        None if line.starts_with(';') => "# for a comment",
        None if line.ends_with(';') => "the line without the ; at its end",
        None if line.ends_with(',') => "the line without the , at its end",
        None if !is_text && line.contains(": ") && !line.contains('#') => "= in place of :",
        None => PARSER_HINTS
            .into_iter()
            .find(|(start, _)| message.starts_with(start))
            .map_or("key = \"value\", each on one line", |(_, hint)| hint),
    }
}

/// Writes the name of the duplicate key, and the position of the first key with this name.
fn first_place(
    f: &mut fmt::Formatter<'_>,
    file: &ConfigFile,
    table: &DeTable<'_>,
    key: Range<usize>,
) -> fmt::Result {
    let start = key.start;
    let name = file
        .text
        .get(key)
        .unwrap_or_default()
        .trim_matches(['"', '\'']);
    write!(f, " {name:?}")?;
    match last_before(table, name, start) {
        Some(first) => write!(f, ", which is already at {}", file.place(first)),
        None => Ok(()),
    }
}

/// The offset of the last key `name` before `end`. If a table between the two keys also has a key `name`, that key is
/// found instead.
fn last_before(table: &DeTable<'_>, name: &str, end: usize) -> Option<usize> {
    let starts = table.iter().flat_map(|(key, value)| {
        let start = key.span().start;
        let own = (key.get_ref() == name && start < end).then_some(start);
        let below = match value.get_ref() {
            DeValue::Table(below) => last_before(below, name, end),
            _ => None,
        };
        [own, below]
    });
    starts.flatten().max()
}
