//! Parses a handler row's scheduling and overhead for its RuntimeClass.

use toml::de::{DeArray, DeTable, DeValue};

use super::rows::{RowFields, Texts};
use super::{At, KeyValue, Walk};
use crate::config::keys::{self, Key};
use crate::config::problem::Place;

/// A row's settings for its RuntimeClass; all are optional.
#[derive(Debug, Default)]
pub(in crate::config) struct Scheduling {
    pub(in crate::config) class: Option<At<String>>,
    /// Quantities by the names of their resources.
    pub(in crate::config) overhead: Texts,
    /// Label keys and values.
    pub(in crate::config) node_selector: Vec<(At<String>, At<String>)>,
    pub(in crate::config) tolerations: Vec<Toleration>,
}

#[derive(Debug)]
pub(in crate::config) struct Toleration {
    pub(in crate::config) place: Place,
    pub(in crate::config) texts: Texts,
}

impl Walk<'_> {
    pub(super) fn scheduling(&mut self, row: &RowFields<'_>) -> Scheduling {
        let overhead = row.tables.get("overhead");
        let selector = row.tables.get("node_selector");
        let tolerations = row.tables.get("tolerations");
        Scheduling {
            class: row.texts.get("class").cloned(),
            overhead: overhead.map_or_else(Texts::new, |entry| self.overhead(entry)),
            node_selector: selector.map_or_else(Vec::new, |entry| self.selector(entry)),
            tolerations: tolerations.map_or_else(Vec::new, |entry| self.tolerations(entry)),
        }
    }

    fn overhead(&mut self, entry: &KeyValue<'_>) -> Texts {
        let DeValue::Table(table) = entry.value else {
            self.wrong_type(entry, "a table", example(entry));
            return Texts::new();
        };
        self.fields("overhead", table).texts
    }

    fn selector(&mut self, entry: &KeyValue<'_>) -> Vec<(At<String>, At<String>)> {
        let DeValue::Table(table) = entry.value else {
            self.wrong_type(entry, "a table", example(entry));
            return Vec::new();
        };
        let labels = self.file.entries(table);
        let labels = labels.iter().filter_map(|label| {
            let value = self.text(label, "text in quotes")?;
            Some((label.name(), value))
        });
        labels.collect()
    }

    fn tolerations(&mut self, entry: &KeyValue<'_>) -> Vec<Toleration> {
        let DeValue::Array(values) = entry.value else {
            self.wrong_type(entry, "an array of tables", example(entry));
            return Vec::new();
        };
        let tables = self.tables(entry, values);
        let tolerations = tables.into_iter();
        tolerations
            .filter_map(|(table, place)| self.toleration(table, place))
            .collect()
    }

    /// The tables of an array. Reports elements of other types.
    fn tables<'t>(
        &mut self,
        entry: &KeyValue<'_>,
        values: &'t DeArray<'t>,
    ) -> Vec<(&'t DeTable<'t>, Place)> {
        let mut tables = Vec::new();
        for value in values.iter() {
            let place = self.file.place(value.span().start);
            match value.get_ref() {
                DeValue::Table(table) => tables.push((table, place)),
                other => {
                    let (key, other) = (entry.key, super::type_of(other));
                    let what = format!("{key:?} contains {other}; only tables are allowed");
                    self.problems.report(&place, what, example(entry));
                }
            }
        }
        tables
    }

    /// `None` if a field has a problem. A misspelt key may be the key that seems to be missing, so the toleration is
    /// not checked further.
    fn toleration(&mut self, table: &DeTable<'_>, place: Place) -> Option<Toleration> {
        let before = self.problems.len();
        let texts = self.fields("tolerations", table).texts;
        (self.problems.len() == before).then_some(Toleration { place, texts })
    }
}

/// An example value for a row's field that is a table.
fn example(entry: &KeyValue<'_>) -> String {
    keys::written("handlers", entry.key).map_or_else(String::new, Key::example)
}
