//! Reads a handler row's scheduling and overhead for its RuntimeClass, and checks them by the API server's rules.

use std::str::FromStr;

use strum::VariantNames;
use toml::de::{DeTable, DeValue};

use super::rows::{RowFields, Texts};
use super::{KeyValue, Placed, Walk, type_of};
use crate::keys::{self, Key};
use crate::kubernetes;
use crate::problem::{Place, Problems, nearest};
use crate::scheduling::{Operator, Scheduling, TaintEffect, Toleration};
use crate::value::{InvalidValue, invalid_value};

impl Walk<'_> {
    /// The valid settings of a row. Reports invalid settings.
    pub(super) fn scheduling(&mut self, row: &RowFields<'_>) -> Scheduling {
        let mut scheduling = Scheduling::default();
        if let Some(class) = row.texts.get("class") {
            scheduling.class = class.parsed(kubernetes::class, self.problems);
        }
        if let Some(table) = self.table(row, "overhead") {
            for (resource, text) in self.fields("overhead", table).texts {
                let parse = match resource {
                    "cpu" => kubernetes::cpu,
                    _ => kubernetes::memory,
                };
                let quantity = text.parsed(parse, self.problems);
                scheduling
                    .overhead
                    .extend(quantity.map(|quantity| (resource.to_owned(), quantity)));
            }
        }
        if let Some(table) = self.table(row, "node_selector") {
            for label in self.file.entries(table) {
                if let Some(value) = self.text(&label, "text in quotes") {
                    let key = label.name().parsed(kubernetes::label_key, self.problems);
                    let value = value.parsed(kubernetes::label_value, self.problems);
                    scheduling.node_selector.extend(key.zip(value));
                }
            }
        }
        if let Some(entry) = row.tables.get("tolerations") {
            scheduling.tolerations = self.tolerations(entry);
        }
        scheduling
    }

    fn table<'t>(&mut self, row: &RowFields<'t>, name: &str) -> Option<&'t DeTable<'t>> {
        let entry = row.tables.get(name)?;
        match entry.value {
            DeValue::Table(table) => Some(table),
            _ => {
                self.wrong_type(entry, "a table", example(entry));
                None
            }
        }
    }

    fn tolerations(&mut self, entry: &KeyValue<'_>) -> Vec<Toleration> {
        let mut tolerations: Vec<Toleration> = Vec::new();
        let DeValue::Array(values) = entry.value else {
            self.wrong_type(entry, "an array of tables", example(entry));
            return tolerations;
        };
        for value in values.iter() {
            let place = self.file.place(value.span().start);
            let DeValue::Table(table) = value.get_ref() else {
                let (key, other) = (entry.key, type_of(value.get_ref()));
                self.problems.report(
                    &place,
                    format!("{key:?} contains {other}; only tables are allowed"),
                    example(entry),
                );
                continue;
            };
            let before = self.problems.len();
            let texts = self.fields("tolerations", table).texts;
            // A misspelt key may be the key that seems to be missing, so the toleration is not checked further.
            if self.problems.len() > before {
                continue;
            }
            let Some(toleration) = self.toleration(&texts, &place) else {
                continue;
            };
            if tolerations.iter().any(|it| it.same_taints(&toleration)) {
                let what = "this toleration is already in the list";
                self.problems
                    .report(&place, what, "removing one of the two");
            }
            tolerations.push(toleration);
        }
        tolerations
    }

    fn toleration(&mut self, texts: &Texts, place: &Place) -> Option<Toleration> {
        let problems = &mut *self.problems;
        // Parses all fields before the first `?`, so that all problems are reported.
        let key = or_default(texts, "key", kubernetes::label_key, problems);
        let operator = or_default(texts, "operator", operator, problems);
        let value = or_default(texts, "value", kubernetes::label_value, problems);
        let effect = or_default(texts, "effect", effect, problems);
        let seconds = texts.get("toleration_seconds");
        let toleration = Toleration {
            key: key?,
            operator: operator?,
            value: value?,
            effect: effect?,
            seconds: seconds.and_then(|text| text.value.parse().ok()),
        };
        let exists = toleration.operator == Operator::Exists;
        if toleration.key.is_empty() && !exists {
            let what =
                "a toleration without a key matches every taint and needs the operator Exists";
            problems.report(place, what, "operator = \"Exists\", or a key");
        }
        if let (true, Some(value)) = (exists, written(texts, "value")) {
            let what = "the operator Exists takes no value";
            problems.report(&value.place, what, "operator = \"Equal\", or no value");
        }
        if let (Some(seconds), false) = (seconds, toleration.effect == TaintEffect::NoExecute) {
            let what = "\"toleration_seconds\" is for the effect NoExecute only";
            problems.report(&seconds.place, what, "effect = \"NoExecute\"");
        }
        Some(toleration)
    }
}

/// The text of a field, if the field is written and not empty.
fn written<'t>(texts: &'t Texts, name: &str) -> Option<&'t Placed<String>> {
    texts.get(name).filter(|text| !text.value.is_empty())
}

/// The value of a field; the default if no text is written; `None` if the text is wrong, which is reported.
fn or_default<T: Default>(
    texts: &Texts,
    name: &str,
    parse: fn(&str) -> Result<T, InvalidValue>,
    problems: &mut Problems,
) -> Option<T> {
    match written(texts, name) {
        Some(text) => text.parsed(parse, problems),
        None => Some(T::default()),
    }
}

fn operator(text: &str) -> Result<Operator, InvalidValue> {
    one_of("an operator", text)
}

fn effect(text: &str) -> Result<TaintEffect, InvalidValue> {
    one_of("an effect", text)
}

/// The variant with this name.
fn one_of<T: FromStr + VariantNames>(kind: &str, text: &str) -> Result<T, InvalidValue> {
    text.parse().map_err(|_| {
        let hint = nearest(
            text,
            T::VARIANTS.iter().copied().filter(|name| !name.is_empty()),
        );
        invalid_value(
            format!("{text:?} is not {kind} of tolerations"),
            &hint.unwrap_or_default(),
        )
    })
}

/// An example value for a row's field that is a table.
fn example(entry: &KeyValue<'_>) -> String {
    keys::written("handlers", entry.key).map_or_else(String::new, Key::example)
}
