//! The first line of `criswitch status`: the verdict on the node, and what to do.

use criswitch_advice::verdict::NodeVerdict;
use criswitch_config::wording::counted;
use criswitch_cri::codec::admin::{Problem, State};
use criswitch_cri::facts::Level;
use serde_json::{Value as Json, json};

use criswitch_client::columns::{Paint, coloured};
use criswitch_client::output;
use criswitch_client::terminal::{self, SafeText, plain};

/// The longest verdict that is shown as one line, in bytes. The reasons of a longer one are below its first line.
const LONGEST_LINE: usize = 320;
/// The level of a node that is served, although the files on disk have problems.
const RESTART_FAILS: &str = "serving, but a restart would fail";

/// The verdict, and the problems of the files for which a restart would fail.
pub(super) struct Health {
    verdict: NodeVerdict,
    restart: Vec<Problem>,
}

impl Health {
    /// Derives the health from the daemon's state, the problems in conditions, and the reason why pods cannot be
    /// listed.
    pub(super) fn of(state: &State, conditions: Vec<String>, unlisted: Option<String>) -> Health {
        Health {
            verdict: NodeVerdict::of(state, conditions, unlisted),
            restart: state.configuration.clone().unwrap_or_default().problems,
        }
    }

    /// Whether the whole node is served, and a restart would succeed.
    pub(super) fn is_serving(&self) -> bool {
        self.verdict.level == Level::Serving && self.restart.is_empty()
    }

    fn name(&self) -> &str {
        match self.verdict.level {
            Level::Serving if !self.restart.is_empty() => RESTART_FAILS,
            ref level => level.as_ref(),
        }
    }

    fn paint(&self) -> Paint {
        match self.verdict.level {
            _ if self.is_serving() => Paint::Good,
            Level::Serving | Level::Degraded => Paint::Odd,
            Level::NodeNotReady | Level::ListsFailing => Paint::Bad,
        }
    }

    fn text(&self) -> String {
        let reasons = self.verdict.reasons.join("; ");
        let Some(first) = self.restart.first() else {
            return plain(&reasons);
        };
        let restart = match self.restart.len() {
            1 => first.to_string(),
            count => format!("{first}, and {}", counted(count - 1, "more problem")),
        };
        plain(&match self.verdict.level {
            Level::Serving => restart,
            _ => format!("{reasons}; a restart would fail: {restart}"),
        })
    }

    /// The reasons, each of them in a line of its own if together they are too long for one line.
    fn reasons(&self) -> String {
        let text = self.text();
        if text.len() <= LONGEST_LINE {
            return text;
        }
        let restart = self
            .restart
            .iter()
            .map(|problem| format!("a restart would fail: {problem}"));
        let lines: String = self
            .verdict
            .reasons
            .iter()
            .cloned()
            .chain(restart)
            .map(|line| format!("\n  {}", plain(&line)))
            .collect();
        let problems = counted(self.verdict.reasons.len() + self.restart.len(), "problem");
        match self.verdict.backends.as_slice() {
            [] => format!("{problems}{lines}"),
            backends => format!("{problems}, of {}{lines}", plain(&backends.join(", "))),
        }
    }

    /// The health. The first line has the level, and all reasons if they fit. On a terminal the level has a colour.
    pub(super) fn line(&self) -> SafeText {
        let name = self.name();
        let line = terminal::wrapped(&format!("{name}: {}\n", self.reasons()));
        let rest = line.strip_prefix(name).unwrap_or_default();
        SafeText::table(format!("{}{rest}", coloured(self.paint(), name)))
    }

    pub(super) fn json(&self) -> Json {
        json!({ "state": self.name(), "text": self.text() })
    }

    /// The reasons why the node is not wholly served, and the problems for which a restart would fail.
    pub(super) fn problems(&self) -> Vec<Json> {
        self.verdict
            .reasons
            .iter()
            .filter(|_| self.verdict.level != Level::Serving)
            .map(|reason| output::problem(reason))
            .chain(self.restart.iter().map(|problem| json!(problem)))
            .collect()
    }
}
