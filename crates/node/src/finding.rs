//! The findings about a machine: its problems, and the reasons not to change it.

use std::fmt;

/// A problem of the machine, or a reason not to change it.
#[derive(Clone)]
pub struct Finding {
    /// The pods, files, units or backends with the problem.
    pub(super) places: Vec<String>,
    pub(super) what: String,
    /// Empty if criswitch knows no advice.
    pub(super) hint: String,
    /// Whether criswitch could not check the places, so that it is unknown whether there is a problem.
    pub(super) is_unknown: bool,
}

pub(super) fn report(
    findings: &mut Vec<Finding>,
    place: impl ToString,
    what: impl ToString,
    hint: impl ToString,
) {
    findings.push(Finding::new([place], what, hint));
}

/// Adds a finding that criswitch could not check a place.
pub(super) fn unknown(findings: &mut Vec<Finding>, place: impl ToString, what: impl ToString) {
    findings.push(Finding::unknown([place], what, ""));
}

impl Finding {
    /// A finding about these places; no finding if there are none.
    pub(super) fn new(
        places: impl IntoIterator<Item = impl ToString>,
        what: impl ToString,
        hint: impl ToString,
    ) -> Finding {
        Finding {
            places: places.into_iter().map(|place| place.to_string()).collect(),
            what: what.to_string(),
            hint: hint.to_string(),
            is_unknown: false,
        }
    }

    /// A finding that criswitch could not check these places.
    pub(super) fn unknown(
        places: impl IntoIterator<Item = impl ToString>,
        what: impl ToString,
        hint: impl ToString,
    ) -> Finding {
        Finding {
            is_unknown: true,
            ..Finding::new(places, what, hint)
        }
    }

    pub(super) fn place(&self) -> String {
        self.places.join(", ")
    }

    /// The finding as one line.
    pub(super) fn line(&self, what: &str) -> String {
        let hint = advice(&self.hint).map(|hint| format!("; try {hint}"));
        format!("{}: {what}{}", self.place(), hint.unwrap_or_default())
    }

    pub(super) fn text(&self) -> String {
        let kind = if self.is_unknown { "unknown: " } else { "" };
        format!("{kind}{}", self.what)
    }
}

pub(super) fn advice(hint: &str) -> Option<&str> {
    (!hint.is_empty()).then_some(hint)
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line(&self.text()))
    }
}
