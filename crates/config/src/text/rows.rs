//! Parses rows of `[handlers]` and `[backends]`. The value of a row is a string, or fields in braces.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

use super::{KeyValue, Placed, Walk, add};
use crate::address;
use crate::keys::{self, KeyKind, SOCKET_EXAMPLE};
use crate::scheduling::Scheduling;

/// The fields of a row that are not tables, by the names of their keys.
pub(crate) type Texts = BTreeMap<&'static str, Placed<String>>;

/// The fields of a row, or of a table within a row, by the names of their keys.
#[derive(Default)]
pub(super) struct RowFields<'t> {
    pub(super) texts: Texts,
    pub(super) tables: BTreeMap<&'static str, KeyValue<'t>>,
}

#[derive(Debug)]
pub(crate) struct Route {
    /// `None` if the target's problem is already reported.
    pub(crate) target: Option<Placed<RowTarget>>,
    pub(crate) backend_handler: Option<String>,
    pub(crate) kind: Option<Placed<String>>,
    pub(crate) scheduling: Scheduling,
}

#[derive(Debug)]
pub(crate) struct BackendRow {
    pub(crate) socket: Placed<String>,
    pub(crate) texts: Texts,
}

#[derive(Debug)]
pub(crate) enum RowTarget {
    Backend(String),
    Socket(String),
}

impl Walk<'_> {
    pub(super) fn handler(&mut self, entry: &KeyValue<'_>) {
        let value = match entry.value {
            DeValue::Table(fields) => Some(self.handler_fields(entry, fields)),
            _ => self.text(entry, SOCKET_EXAMPLE).map(|text| Route {
                target: Some(text.map(RowTarget::guess)),
                backend_handler: None,
                kind: None,
                scheduling: Scheduling::default(),
            }),
        };
        if let Err(first) = add(&mut self.written.handlers, entry.name(), value) {
            self.twice(entry, format_args!("handler {:?}", entry.key), &first);
        }
    }

    fn handler_fields(&mut self, row: &KeyValue<'_>, fields: &DeTable<'_>) -> Route {
        let before = self.problems.len();
        let mut fields = self.fields("handlers", fields);
        let [backend, socket, backend_handler, kind] =
            ["backend", "socket", "handler", "kind"].map(|name| fields.texts.remove(name));
        let target = match (backend, socket) {
            (Some(backend), None) => Some(backend.map(RowTarget::Backend)),
            (None, Some(socket)) => Some(socket.map(RowTarget::Socket)),
            (Some(_), Some(_)) => self.no_one_target(row, "both a backend and a socket"),
            // A misspelt key is already reported and may be the missing key, so the missing key is not reported.
            (None, None) if self.problems.len() > before => None,
            (None, None) => self.no_one_target(row, "neither a backend nor a socket"),
        };
        Route {
            target,
            backend_handler: backend_handler.map(|text| text.value),
            kind,
            scheduling: self.scheduling(&fields),
        }
    }

    fn no_one_target(&mut self, row: &KeyValue<'_>, has: &str) -> Option<Placed<RowTarget>> {
        let what = format!("handler {:?} has {has}", row.key);
        self.problems.report(
            &row.value_at,
            what,
            format!("one of the two, such as socket = {SOCKET_EXAMPLE}"),
        );
        None
    }

    pub(super) fn backend(&mut self, entry: &KeyValue<'_>) {
        let value = match entry.value {
            DeValue::Table(fields) => self.backend_fields(entry, fields),
            _ => self.text(entry, SOCKET_EXAMPLE).map(|socket| BackendRow {
                socket,
                texts: Texts::new(),
            }),
        };
        if let Err(first) = add(&mut self.written.backends, entry.name(), value) {
            self.twice(entry, format_args!("backend {:?}", entry.key), &first);
        }
    }

    fn backend_fields(&mut self, row: &KeyValue<'_>, fields: &DeTable<'_>) -> Option<BackendRow> {
        let before = self.problems.len();
        let mut texts = self.fields("backends", fields).texts;
        let socket = texts.remove("socket");
        if socket.is_none() && self.problems.len() == before {
            let what = format!("backend {:?} has no socket", row.key);
            self.problems.report(
                &row.value_at,
                what,
                format_args!("socket = {SOCKET_EXAMPLE}"),
            );
        }
        Some(BackendRow {
            socket: socket?,
            texts,
        })
    }

    /// The fields of a row, or of a table within a row. Reports fields that are not keys of the table `name`.
    pub(super) fn fields<'t>(&mut self, name: &str, table: &'t DeTable<'t>) -> RowFields<'t> {
        let mut fields = RowFields::default();
        for entry in self.file.entries(table) {
            match keys::written(name, entry.key) {
                Some(key) if key.kind == KeyKind::Table => {
                    fields.tables.insert(key.name, entry);
                }
                Some(key) => {
                    fields.texts.extend(
                        self.value(key, &entry)
                            .into_iter()
                            .flatten()
                            .map(|text| (key.name, text)),
                    );
                }
                None => self.unknown(name, &entry),
            }
        }
        fields
    }
}

impl RowTarget {
    /// Distinguishes sockets from names: only a socket contains a slash or a backslash.
    fn guess(text: String) -> RowTarget {
        if address::is_like(&text) {
            RowTarget::Socket(text)
        } else {
            RowTarget::Backend(text)
        }
    }
}
