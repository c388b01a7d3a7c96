//! `criswitch node plan`: the steps that would change a node, and the findings that prevent the changes. The command
//! changes nothing.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use criswitch_client::arguments::directory;
use criswitch_client::columns::columns_if_any;
use criswitch_client::exit::Verdict;
use criswitch_client::output::Output;
use criswitch_client::program::daemon_beside;
use criswitch_client::terminal::{self, print};
use criswitch_config::specification::Specification;
use criswitch_config::wording::counted;
use serde_json::{Value, json};

use super::checks::{self, CHECKS, Check, NOTES};
use super::facts::{Discover, MachineFacts};
use super::finding::{Finding, advice};
use super::layout::Layout;
use super::steps::{self, PlannedStep};

/// The specification of a node.
#[derive(Args)]
pub(super) struct SpecificationArguments {
    /// The specification of the node: a configuration with the table [node]; without it, the runtimes are discovered.
    #[arg(long, value_name = "FILE")]
    spec: Option<PathBuf>,
    /// The directory with the programs to install, if it is not the directory of this program.
    #[arg(long, value_name = "DIR", hide = true)]
    programs: Option<PathBuf>,
}

/// The arguments of `criswitch node plan`.
#[derive(Args)]
pub struct PlanArguments {
    #[command(flatten)]
    source: SpecificationArguments,
    /// Plan for the machine whose root is this directory, for example a mounted image.
    #[arg(long, value_name = "DIR", default_value = "/", value_parser = directory)]
    root: PathBuf,
    #[command(flatten)]
    output: Output,
}

/// The meaning of a finding for the plan.
#[derive(Clone, Copy, PartialEq, Eq, strum::AsRefStr)]
#[strum(serialize_all = "lowercase")]
enum FindingMeaning {
    Rejected,
    /// The check could not be made. The finding counts like a finding that is not accepted.
    Unknown,
    Accepted,
    /// The check cannot decide this on any node, so the finding prevents no change.
    Note,
}

/// The plan for a node: its steps, and the findings that may prevent them.
pub(super) struct NodePlan<'f> {
    facts: &'f MachineFacts<'f>,
    pub(super) steps: Vec<PlannedStep>,
    findings: Vec<(FindingMeaning, &'static Check, Finding)>,
}

impl PlanArguments {
    pub fn run(&self, discover: Discover) -> anyhow::Result<Verdict> {
        let specification = self.source.specification()?;
        let facts = self.source.facts(&specification, &self.root, discover)?;
        let plan = NodePlan::of(&facts);
        print(match self.output.encoding() {
            Some(encoding) => encoding.document(plan.json(None))?,
            None => plan.text()?.into(),
        })?;
        Ok(plan.verdict())
    }
}

impl SpecificationArguments {
    pub(super) fn specification(&self) -> anyhow::Result<Specification> {
        Ok(match &self.spec {
            Some(path) => Specification::load(path, &checks::acceptable())?,
            None => Specification::default(),
        })
    }

    pub(super) fn facts<'a>(
        &self,
        specification: &'a Specification,
        directory: &'a Path,
        discover: Discover,
    ) -> anyhow::Result<MachineFacts<'a>> {
        let own = std::env::current_exe()?;
        let program = match &self.programs {
            Some(folder) => folder.join("criswitch"),
            None => own,
        };
        let programs = [
            ("criswitch", read(&program)?),
            ("criswitchd", read(&daemon_beside(&program))?),
        ];
        MachineFacts::look(specification, directory, programs, discover)
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))
}

impl<'f> NodePlan<'f> {
    pub(super) fn of(facts: &'f MachineFacts<'f>) -> NodePlan<'f> {
        let steps = steps::plan(facts);
        let accept = &facts.specification.accept;
        let findings = checks::look(&CHECKS, facts, &steps)
            .into_iter()
            .map(|(check, finding)| {
                let meaning = if accept.iter().any(|name| name == check.name) {
                    FindingMeaning::Accepted
                } else if finding.is_unknown {
                    FindingMeaning::Unknown
                } else {
                    FindingMeaning::Rejected
                };
                (meaning, check, finding)
            });
        let notes = checks::look(&NOTES, facts, &steps)
            .into_iter()
            .map(|(check, note)| (FindingMeaning::Note, check, note));
        NodePlan {
            facts,
            findings: findings.chain(notes).collect(),
            steps,
        }
    }

    pub(super) fn verdict(&self) -> Verdict {
        match (self.open().count(), self.steps.len()) {
            (0, 0) => Verdict::Fine,
            (0, _) => Verdict::WouldChange,
            _ => Verdict::NotFine,
        }
    }

    /// The findings that prevent a change.
    fn open(&self) -> impl Iterator<Item = &(FindingMeaning, &'static Check, Finding)> {
        self.findings.iter().filter(|(state, ..)| {
            matches!(state, FindingMeaning::Rejected | FindingMeaning::Unknown)
        })
    }

    /// Whether all findings that prevent a change are young pods.
    pub(super) fn must_wait(&self) -> bool {
        self.open().next().is_some()
            && self.open().all(|(state, check, _)| {
                *state == FindingMeaning::Rejected && check.name == "young-pod"
            })
    }

    /// The table of the steps; empty if there are none.
    fn steps_text(&self) -> anyhow::Result<String> {
        let rows = self.steps.iter().flat_map(|PlannedStep { step, changes }| {
            changes
                .iter()
                .map(move |change| [step, &*change.place, &change.what].map(str::to_owned))
        });
        columns_if_any(&["STEP", "PLACE", "CHANGE"], rows)
    }

    pub(super) fn text(&self) -> anyhow::Result<String> {
        let kubelet = match &self.facts.layout {
            Ok(Layout { name, unit, .. }) => format!("kubelet: {unit}, {name}\n"),
            Err(_) => String::new(),
        };
        let findings: String = self
            .findings
            .iter()
            .map(|(state, check, finding)| {
                let line = finding.line(&finding.what);
                format!("{} {}: {line}\n", state.as_ref(), check.name)
            })
            .collect();
        let end = match (self.open().count(), self.steps.len()) {
            (0, 0) => "ready: nothing would change\n".to_owned(),
            (0, steps) => format!("would change: {}\n", counted(steps, "step")),
            (open, _) => format!("rejected: {}\n", counted(open, "finding")),
        };
        Ok(terminal::paragraphs([
            kubelet,
            self.steps_text()?,
            terminal::wrapped(&findings),
            end,
        ]))
    }

    /// The JSON output; `is_changed` is whether an apply has changed the machine.
    pub(super) fn json(&self, is_changed: Option<bool>) -> Value {
        let findings = self.findings.iter().map(|(state, check, found)| {
            json!({
                "check": check.name,
                "state": state.as_ref(),
                "mayAccept": check.may_accept,
                "places": found.places,
                "what": found.what,
                "try": advice(&found.hint),
            })
        });
        let problems = self.open().map(|(_, _, found)| {
            json!({ "path": found.places.first(), "what": found.what, "try": advice(&found.hint) })
        });
        let state = match self.verdict() {
            Verdict::Fine => "ready",
            Verdict::WouldChange => "wouldChange",
            _ => "rejected",
        };
        let layout = self.facts.layout.as_ref().ok();
        json!({
            "problems": problems.collect::<Vec<_>>(),
            "state": state,
            "changed": is_changed,
            "version": env!("CARGO_PKG_VERSION"),
            "layout": layout.map(|layout| json!({ "name": layout.name, "unit": layout.unit })),
            "steps": self.steps,
            "findings": findings.collect::<Vec<_>>(),
        })
    }
}
