//! What a handler's row says for its RuntimeClass' scheduling and overhead, as written.

use toml::de::{DeArray, DeTable, DeValue};

use super::rows::RowFields;
use super::{At, KeyValue, Walk};
use crate::config::problem::Place;

const TOLERATION: [&str; 5] = ["key", "operator", "value", "effect", "toleration_seconds"];
/// The resources that an overhead may have, each with a value that could be written.
const OVERHEAD: [(&str, &str); 2] = [("cpu", "\"250m\""), ("memory", "\"120Mi\"")];
const OVERHEAD_EXAMPLE: &str = "{ cpu = \"250m\", memory = \"120Mi\" }";
const SELECTOR_EXAMPLE: &str = "{ \"example.com/kata\" = \"true\" }";
const TOLERATIONS_EXAMPLE: &str = "[{ key = \"example.com/kata\", operator = \"Exists\" }]";

/// Nothing of it need be there.
#[derive(Debug, Default)]
pub(in crate::config) struct Scheduling {
    /// A resource's name and its quantity.
    pub(in crate::config) overhead: Vec<(&'static str, At<String>)>,
    /// A label's key and value.
    pub(in crate::config) node_selector: Vec<(At<String>, At<String>)>,
    pub(in crate::config) tolerations: Vec<Toleration>,
}

/// One of the tolerations.
#[derive(Debug)]
pub(in crate::config) struct Toleration {
    pub(in crate::config) place: Place,
    pub(in crate::config) key: Option<At<String>>,
    pub(in crate::config) operator: Option<At<String>>,
    pub(in crate::config) value: Option<At<String>>,
    pub(in crate::config) effect: Option<At<String>>,
    pub(in crate::config) seconds: Option<At<i64>>,
}

impl Walk<'_> {
    pub(super) fn scheduling(&mut self, row: &RowFields<'_>) -> Scheduling {
        let overhead = row.get("overhead").map(|entry| self.overhead(entry));
        let selector = row.get("node_selector").map(|entry| self.selector(entry));
        let tolerations = row.get("tolerations").map(|entry| self.tolerations(entry));
        Scheduling {
            overhead: overhead.unwrap_or_default(),
            node_selector: selector.unwrap_or_default(),
            tolerations: tolerations.unwrap_or_default(),
        }
    }

    fn overhead(&mut self, entry: &KeyValue<'_>) -> Vec<(&'static str, At<String>)> {
        let DeValue::Table(table) = entry.value else {
            self.wrong_type(entry, "a table", OVERHEAD_EXAMPLE);
            return Vec::new();
        };
        let fields = self.fields(table, &OVERHEAD.map(|(name, _)| name));
        let quantities = OVERHEAD
            .iter()
            .filter_map(|(name, example)| Some((*name, self.text_like(&fields, name, example)?)));
        quantities.collect()
    }

    fn selector(&mut self, entry: &KeyValue<'_>) -> Vec<(At<String>, At<String>)> {
        let DeValue::Table(table) = entry.value else {
            self.wrong_type(entry, "a table", SELECTOR_EXAMPLE);
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
            self.wrong_type(entry, "an array of tables", TOLERATIONS_EXAMPLE);
            return Vec::new();
        };
        let tables = self.tables(entry, values);
        let tolerations = tables.into_iter();
        tolerations
            .filter_map(|(table, place)| self.toleration(table, place))
            .collect()
    }

    /// The tables of an array that may have nothing else in it.
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
                    let what = format!("{key:?} has {other} in it, not only tables");
                    self.problems.tell(&place, what, TOLERATIONS_EXAMPLE);
                }
            }
        }
        tables
    }

    /// None where something of it has been told: what it lacks may be what was misspelt.
    fn toleration(&mut self, table: &DeTable<'_>, place: Place) -> Option<Toleration> {
        let told = self.problems.len();
        let fields = self.fields(table, &TOLERATION);
        let mut text = |name, example| self.text_like(&fields, name, example);
        let toleration = Toleration {
            place,
            key: text("key", "text in quotes"),
            operator: text("operator", "\"Exists\""),
            value: text("value", "text in quotes"),
            effect: text("effect", "\"NoSchedule\""),
            seconds: fields
                .get("toleration_seconds")
                .and_then(|entry| self.seconds(entry)),
        };
        (self.problems.len() == told).then_some(toleration)
    }

    fn seconds(&mut self, entry: &KeyValue<'_>) -> Option<At<i64>> {
        let number = match entry.value {
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => None,
        };
        let Some(value) = number else {
            self.wrong_type(entry, "an integer of 64 bits", "300");
            return None;
        };
        let place = entry.value_at.clone();
        Some(At { value, place })
    }
}
