//! The labels of the node: its handlers, their features, and the runtimes of its backends. `keep` writes the labels to
//! the file that `labels_file` names, and node-feature-discovery sets them on the node.

mod file;

use std::collections::BTreeMap;

use criswitch_config::kubernetes::is_name;
use criswitch_config::labels_file::{DOMAIN, key};
use criswitch_config::{Handler, Table};
use tokio::time::Instant;

use crate::backend::Backend;
use crate::backend::state::Failing;
use crate::dispatch::fanout::status;
use crate::topology::Live;

pub use file::keep;

/// The labels of the node, and the facts that no label can express.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLabels {
    /// The labels, by key.
    pub labels: BTreeMap<String, String>,
    /// A sentence about each fact that no label can express.
    pub notes: Vec<String>,
}

/// A handler or backend that the labels are made from.
struct Offer<'o> {
    labels: &'o mut NodeLabels,
    /// The name part of the key of the first label, such as `handler.kata`.
    stem: String,
    /// The handler or backend, as messages name it.
    what: String,
}

impl NodeLabels {
    /// The labels of the node now, and the next time at which a backend will have failed for `labels_failed_after`. At
    /// that time, the labels of this backend and of its handlers are removed.
    pub(crate) fn of(live: &Live) -> (NodeLabels, Option<Instant>) {
        let limit = live.config.labels_failed_after;
        let now = Instant::now();
        let mut labels = NodeLabels::default();
        let mut ends = Vec::new();
        for backend in &live.backends {
            let unready = backend.record.known().unready_since;
            let end = match (backend.failing(), unready) {
                (Failing::No, Some(since)) => Failing::Since(since.at),
                (failing, _) => failing,
            };
            let end = match end {
                Failing::No => None,
                // There is no end if the limit is too long for the clock.
                Failing::Since(since) => match since.checked_add(limit) {
                    Some(end) if end <= now => continue,
                    end => end,
                },
                Failing::NeverAnswered => continue,
            };
            if backend.has_joined() && !live.retires(backend.id) {
                ends.extend(end);
                labels.add_backend(backend);
                labels.add_handlers(&live.table, backend);
            }
        }
        (labels, ends.into_iter().min())
    }

    fn add_handlers(&mut self, table: &Table, backend: &Backend) {
        let status = backend.record.known().status;
        let rows = table.handlers.iter();
        for row in rows.filter(|row| row.backend == backend.id) {
            if status::lacks(&status, &row.backend_handler) {
                self.notes.push(format!(
                    "handler {} has no labels: backend {} does not report the handler {:?}",
                    row.name,
                    backend.name(),
                    row.backend_handler
                ))
            } else {
                self.add_handler(row, &status)
            }
        }
    }

    fn add_handler(&mut self, row: &Handler, status: &[u8]) {
        let mut offer = Offer {
            labels: self,
            stem: format!("handler.{}", row.name),
            what: format!("handler {}", row.name),
        };
        if !offer.add("", "true") {
            return;
        }
        for feature in status::features_of(status, &row.backend_handler) {
            offer.add(&format!(".{}", feature.replace('_', "-")), "true");
        }
    }

    fn add_backend(&mut self, backend: &Backend) {
        let [runtime, version, _] = status::identity(&backend.record.known());
        let name = backend.name();
        let mut offer = Offer {
            labels: self,
            stem: format!("backend.{name}"),
            what: format!("backend {name}"),
        };
        if !runtime.is_empty() {
            offer.add(".runtime", &runtime);
        }
        if !version.is_empty() {
            offer.add(".version", release(&version));
        }
    }
}

impl Offer<'_> {
    /// Adds the label whose key ends with `end`. Returns false, and adds a note, if the key or the value is invalid.
    fn add(&mut self, end: &str, value: &str) -> bool {
        let name = format!("{}{end}", self.stem);
        match key(&name) {
            Some(key) if is_name(value) => {
                self.labels.labels.insert(key, value.to_owned());
                return true;
            }
            Some(_) => self.labels.notes.push(format!(
                "{} has no label {DOMAIN}/{name}: {value:?} is not a valid label value",
                self.what
            )),
            None => self.labels.notes.push(format!(
                "{} has no label {DOMAIN}/{name}: the name after the slash is longer than 63 characters",
                self.what
            )),
        }
        false
    }
}

/// The version up to the first character that a label value cannot have: `2.4.2` for `2.4.2+unknown`.
fn release(version: &str) -> &str {
    let end = version.find(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c));
    end.and_then(|end| version.get(..end))
        .unwrap_or(version)
        .trim_end_matches(|c: char| !c.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use criswitch_config::labels_file;

    use super::*;

    #[test]
    fn a_label_has_the_version_without_its_build() {
        for (version, label) in [
            ("2.4.2+unknown", "2.4.2"),
            ("1.6.20~ds1", "1.6.20"),
            ("v1.31.0-rc.1", "v1.31.0-rc.1"),
            ("1.2.-+x", "1.2"),
            ("", ""),
            ("+x", ""),
        ] {
            assert_eq!(release(version), label);
        }
    }

    #[test]
    fn a_handler_whose_name_is_too_long_has_a_note_and_no_label() {
        let mut labels = NodeLabels::default();
        for length in [55, 56] {
            let mut offer = Offer {
                labels: &mut labels,
                stem: format!("handler.{}", "x".repeat(length)),
                what: "handler x".to_owned(),
            };
            assert_eq!(offer.add("", "true"), length == 55);
        }
        assert_eq!(labels.labels.len(), 1);
        assert_eq!(labels.notes.len(), 1);
        assert!(labels_file::handler_key(&"x".repeat(56)).is_none());
    }

    #[test]
    fn a_runtime_whose_name_is_not_a_label_value_has_a_note() {
        let mut labels = NodeLabels::default();
        let mut offer = Offer {
            labels: &mut labels,
            stem: "backend.b".to_owned(),
            what: "backend b".to_owned(),
        };
        assert!(!offer.add(".runtime", "my runtime"));
        assert!(!offer.add(".version", ""));
        let expected = "backend b has no label criswitch.io/backend.b.runtime: \"my runtime\" is not a valid label value";
        assert_eq!(labels.notes[0], expected);
        assert_eq!(labels_file::feature_file(&labels.labels), labels_file::HEAD);
    }
}
