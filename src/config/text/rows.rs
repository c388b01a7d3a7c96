//! Rows of `[handlers]` and `[backends]`: a text alone, or fields in braces.

use std::collections::BTreeMap;
use std::fmt::Display;

use toml::de::{DeTable, DeValue};

use super::{At, KeyValue, Scheduling, Walk, add};

const SOCKET: &str = "\"/run/containerd/containerd.sock\"";
const HANDLER: [&str; 6] = [
    "backend",
    "socket",
    "handler",
    "overhead",
    "node_selector",
    "tolerations",
];
const BACKEND: [&str; 7] = [
    "socket",
    "list_timeout",
    "stats_timeout",
    "stale_lists",
    "auto_register",
    "required",
    "user",
];

/// The fields of a row, or of a table within one.
pub(super) type RowFields<'t> = BTreeMap<&'t str, KeyValue<'t>>;

/// The value of a handler's row.
#[derive(Debug)]
pub(in crate::config) struct Route {
    /// None where its problem has been told.
    pub(in crate::config) target: Option<At<Target>>,
    pub(in crate::config) backend_handler: Option<String>,
    pub(in crate::config) scheduling: Scheduling,
}

/// The value of a backend's row.
#[derive(Debug)]
pub(in crate::config) struct Settings {
    pub(in crate::config) socket: At<String>,
    pub(in crate::config) list_timeout: Option<At<String>>,
    pub(in crate::config) stats_timeout: Option<At<String>>,
    pub(in crate::config) stale_lists: Option<At<String>>,
    pub(in crate::config) auto_register: bool,
    pub(in crate::config) required: bool,
    pub(in crate::config) user: Option<At<String>>,
}

/// What a handler's row points to.
#[derive(Debug)]
pub(in crate::config) enum Target {
    Backend(String),
    Socket(String),
}

impl Walk<'_> {
    pub(super) fn handler(&mut self, entry: &KeyValue<'_>) {
        let value = match entry.value {
            DeValue::Table(fields) => Some(self.handler_fields(entry, fields)),
            _ => self.text(entry, SOCKET).map(|text| Route {
                target: Some(text.map(Target::guess)),
                backend_handler: None,
                scheduling: Scheduling::default(),
            }),
        };
        if let Err(first) = add(&mut self.written.handlers, entry.name(), value) {
            self.twice(entry, format_args!("handler {:?}", entry.key), &first);
        }
    }

    fn handler_fields(&mut self, row: &KeyValue<'_>, fields: &DeTable<'_>) -> Route {
        let told = self.problems.len();
        let fields = self.fields(fields, &HANDLER);
        let backend = self.text_in(&fields, "backend");
        let socket = self.text_in(&fields, "socket");
        let backend_handler = self.text_in(&fields, "handler");
        let target = match (backend, socket) {
            (Some(backend), None) => Some(backend.map(Target::Backend)),
            (None, Some(socket)) => Some(socket.map(Target::Socket)),
            (Some(_), Some(_)) => self.no_one_target(row, "both a backend and a socket"),
            // What is missing may be what was misspelt.
            (None, None) if self.problems.len() > told => None,
            (None, None) => self.no_one_target(row, "neither a backend nor a socket"),
        };
        Route {
            target,
            backend_handler: backend_handler.map(|text| text.value),
            scheduling: self.scheduling(&fields),
        }
    }

    fn no_one_target(&mut self, row: &KeyValue<'_>, has: &str) -> Option<At<Target>> {
        let what = format!("handler {:?} has {has}", row.key);
        let hint = format!("one of the two, such as socket = {SOCKET}");
        self.problems.tell(&row.value_at, what, hint);
        None
    }

    pub(super) fn backend(&mut self, entry: &KeyValue<'_>) {
        let value = match entry.value {
            DeValue::Table(fields) => self.backend_fields(entry, fields),
            _ => self.text(entry, SOCKET).map(|socket| Settings {
                socket,
                list_timeout: None,
                stats_timeout: None,
                stale_lists: None,
                auto_register: false,
                required: true,
                user: None,
            }),
        };
        if let Err(first) = add(&mut self.written.backends, entry.name(), value) {
            self.twice(entry, format_args!("backend {:?}", entry.key), &first);
        }
    }

    fn backend_fields(&mut self, row: &KeyValue<'_>, fields: &DeTable<'_>) -> Option<Settings> {
        let told = self.problems.len();
        let fields = self.fields(fields, &BACKEND);
        let socket = self.text_in(&fields, "socket");
        let [list_timeout, stats_timeout, stale_lists] =
            ["list_timeout", "stats_timeout", "stale_lists"]
                .map(|name| self.text_like(&fields, name, "\"5s\""));
        let [auto_register, required] =
            ["auto_register", "required"].map(|name| self.boolean(fields.get(name)?));
        let user = self.text_like(&fields, "user", "\"1000\"");
        if socket.is_none() && self.problems.len() == told {
            let what = format!("backend {:?} has no socket", row.key);
            self.problems
                .tell(&row.value_at, what, format_args!("socket = {SOCKET}"));
        }
        Some(Settings {
            socket: socket?,
            list_timeout,
            stats_timeout,
            stale_lists,
            auto_register: auto_register.is_some_and(|on| on.value),
            required: required.is_none_or(|required| required.value),
            user,
        })
    }

    /// The fields that a table may have; any other is told.
    pub(super) fn fields<'t>(
        &mut self,
        table: &'t DeTable<'t>,
        known: &[&'t str],
    ) -> RowFields<'t> {
        let mut fields = RowFields::new();
        for entry in self.file.entries(table) {
            if let Some(name) = self.known_name(&entry, known) {
                fields.insert(name, entry);
            }
        }
        fields
    }

    fn text_in(&mut self, fields: &RowFields<'_>, name: &str) -> Option<At<String>> {
        self.text_like(fields, name, "text in quotes")
    }

    /// As [`Walk::text`], of a field that may not be there.
    pub(super) fn text_like(
        &mut self,
        fields: &RowFields<'_>,
        name: &str,
        example: impl Display,
    ) -> Option<At<String>> {
        let entry = fields.get(name)?;
        self.text(entry, &example.to_string())
    }
}

impl Target {
    /// A socket has a slash in it, a backend's name has none.
    fn guess(text: String) -> Target {
        if text.contains('/') {
            Target::Socket(text)
        } else {
            Target::Backend(text)
        }
    }
}
