//! `criswitch node apply`, `undo`, `uninstall` and `status`: the changes of a plan, all or none.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, iter};

use anyhow::{Context, bail, ensure};
use clap::Args;
use criswitch_client::arguments::directory;
use criswitch_client::exit::Verdict;
use criswitch_client::output::{self, Output};
use criswitch_client::program::block_on;
use criswitch_client::terminal::{keep_output_for_programs, print, progress};
use criswitch_config::specification::Specification;
use serde_json::json;

use super::actions::{self, Runner, Work};
use super::facts::{Discover, MachineFacts};
use super::faults::{self, Faults};
use super::journal::{ApplyFailure, Journal};
use super::plan::{NodePlan, SpecificationArguments};
use super::root::Root;
use super::{stages, systemd, transient, workloads};

/// How long an apply waits until all pods are old enough for a restart of the kubelet, and the pause between two
/// checks.
const YOUNG_LIMIT: Duration = Duration::from_secs(60);
const YOUNG_PAUSE: Duration = Duration::from_secs(2);
const UNKNOWN_PODS: &str =
    "not all pods are known, and nothing has changed; criswitch node undo does not look at pods";

/// The machine that a command changes.
#[derive(Args)]
struct TargetMachine {
    /// Change the machine whose root is this directory, such as a mounted image. It must not be running, unless it is
    /// this machine.
    #[arg(long, value_name = "DIR", default_value = "/", value_parser = directory)]
    root: PathBuf,
    /// Run in this process, not in a unit of systemd.
    #[arg(long, hide = true)]
    here: bool,
    #[command(flatten)]
    faults: Faults,
}

/// The arguments of `criswitch node apply`.
#[derive(Args)]
pub struct ApplyArguments {
    #[command(flatten)]
    source: SpecificationArguments,
    #[command(flatten)]
    target: TargetMachine,
    #[command(flatten)]
    output: Output,
}

/// The arguments of `criswitch node undo`.
#[derive(Args)]
pub struct UndoArguments {
    #[command(flatten)]
    target: TargetMachine,
    /// Undo only changes that were interrupted.
    #[arg(long, hide = true)]
    interrupted: bool,
    /// Undo before the kubelet starts.
    #[arg(long, hide = true)]
    boot: bool,
}

/// The arguments of `criswitch node uninstall`.
#[derive(Args)]
pub struct UninstallArguments {
    #[command(flatten)]
    target: TargetMachine,
}

/// The arguments of `criswitch node status`.
#[derive(Args)]
pub struct NodeStatusArguments {
    /// Show the state of the machine whose root is this directory.
    #[arg(long, value_name = "DIR", default_value = "/", value_parser = directory)]
    root: PathBuf,
    /// Exit with status 1 unless the machine matches its last apply.
    #[arg(long)]
    ready: bool,
    #[command(flatten)]
    output: Output,
}

impl TargetMachine {
    /// The root of the machine; `None` if a systemd unit must make the changes instead of this process. Rejects a
    /// running machine other than this one.
    fn find(&self) -> anyhow::Result<Option<PathBuf>> {
        let directory = fs::canonicalize(&self.root).context("the root cannot be read")?;
        let root = Root::of(&directory);
        if root.runs() && !root.is_this_machine() {
            bail!(
                "{} has processes; use / or the root of a machine that is not running",
                self.root.display()
            );
        }
        if root.is_this_machine() && !self.here {
            return Ok(None);
        }
        faults::set(&self.faults);
        Ok(Some(directory))
    }
}

impl ApplyArguments {
    pub fn run(&self, discover: Discover) -> anyhow::Result<Verdict> {
        let Some(directory) = self.target.find()? else {
            return transient::run(self.output.encoding().is_some());
        };
        if self.output.encoding().is_some() {
            keep_output_for_programs();
        }
        let root = Root::of(&directory);
        if Journal::read(&root)?.is_open {
            let left = undo(&root)?;
            ensure!(left.is_empty(), "the last change is not undone:\n{left}");
            progress("undone\n");
        }
        let specification = self.source.specification()?;
        let facts = self.facts_without_young_pods(&specification, &directory, discover)?;
        let plan = NodePlan::of(&facts);
        if self.output.encoding().is_none() {
            print(plan.text()?)?;
        }
        let number = specification.generation.unwrap_or(facts.number);
        let has_changes = match plan.verdict() {
            Verdict::WouldChange => true,
            // The number of a new specification is recorded in the journal even if the specification changes nothing.
            Verdict::Fine => number > facts.number,
            _ => false,
        };
        if has_changes {
            apply(&root, &facts, &plan, number)?;
        }
        self.ended(&plan, has_changes)
    }

    /// Prints the result of a command that did not fail.
    fn ended(&self, plan: &NodePlan<'_>, is_changed: bool) -> anyhow::Result<Verdict> {
        if let Some(encoding) = self.output.encoding() {
            print(encoding.document(plan.json(Some(is_changed)))?)?;
        } else if is_changed {
            print("installed; criswitch node undo undoes it\n")?;
        }
        Ok(if is_changed {
            Verdict::Fine
        } else {
            plan.verdict()
        })
    }

    /// The facts of the machine, read again until no pod is too young, but at most for `YOUNG_LIMIT`.
    fn facts_without_young_pods<'a>(
        &self,
        specification: &'a Specification,
        directory: &'a Path,
        discover: Discover,
    ) -> anyhow::Result<MachineFacts<'a>> {
        let mut begun = None;
        loop {
            let facts = self.source.facts(specification, directory, discover)?;
            let is_over = begun.is_some_and(|at: Instant| at.elapsed() >= YOUNG_LIMIT);
            if is_over || !NodePlan::of(&facts).must_wait() {
                return Ok(facts);
            }
            begun.get_or_insert_with(|| {
                progress("waiting for pods that are younger than 10 seconds\n");
                Instant::now()
            });
            actions::pause(YOUNG_PAUSE)?;
        }
    }
}

/// Makes the changes of a plan. Undoes them if one fails.
fn apply(
    root: &Root<'_>,
    facts: &MachineFacts<'_>,
    plan: &NodePlan<'_>,
    number: u64,
) -> anyhow::Result<()> {
    let program = std::env::current_exe()
        .and_then(fs::read)
        .context("the program cannot be read")?;
    let recover = stages::recover(facts, &plan.steps, program);
    let new = stages::of_plan(facts, &plan.steps, &recover);
    let mut journal = Journal::open(root)?;
    let generations = journal.generations.len();
    let Err(error) = journal.apply(
        env!("CARGO_PKG_VERSION"),
        number,
        &new,
        &mut Runner::new(root, false),
    ) else {
        return Ok(());
    };
    if !journal.is_open {
        return Err(error.context(if journal.generations.len() > generations {
            "all changes are made"
        } else {
            "nothing has changed"
        }));
    }
    // The step is in the journal, unless the disk is full.
    let step = match journal.fail(&format!("{error:#}")) {
        Ok(failure) => failure.step,
        Err(_) => "unknown".to_owned(),
    };
    let left = journal.undo(&mut Runner::new(root, false))?.lines();
    progress(if left.is_empty() { "undone\n" } else { &left });
    Err(error.context(if left.is_empty() {
        format!("step {step} has failed, and all changes are undone")
    } else {
        format!("step {step} has failed, and not all changes are undone")
    }))
}

/// Undoes the last changes of the journal. Returns a line for each file and action that it could not undo.
fn undo(root: &Root<'_>) -> anyhow::Result<String> {
    Ok(Journal::open(root)?
        .undo(&mut Runner::new(root, false))?
        .lines())
}

/// Prints the result of an undo. `left` has a line for each file and action that it could not undo.
fn undone(left: String) -> anyhow::Result<Verdict> {
    if left.is_empty() {
        return print("undone\n");
    }
    print(left)?;
    Ok(Verdict::NotFine)
}

impl UndoArguments {
    pub fn run(&self) -> anyhow::Result<Verdict> {
        let Some(directory) = self.target.find()? else {
            return transient::run(false);
        };
        let root = Root::of(&directory);
        let journal = Journal::read(&root)?;
        if !self.interrupted {
            return if journal.generations.is_empty() {
                print("nothing to undo\n")
            } else {
                undone(undo(&root)?)
            };
        }
        if !journal.is_open {
            if journal.has_temporary() {
                Journal::open(&root)?.remove_temporary(&mut Runner::new(&root, self.boot))?;
            }
            return Ok(Verdict::Fine);
        }
        systemd::take_time();
        let mut journal = Journal::open(&root)?;
        if journal.failure.is_none() {
            journal.fail("the command was interrupted")?;
        }
        undone(journal.undo(&mut Runner::new(&root, self.boot))?.lines())
    }
}

impl UninstallArguments {
    pub fn run(&self) -> anyhow::Result<Verdict> {
        let Some(directory) = self.target.find()? else {
            return transient::run(false);
        };
        let root = Root::of(&directory);
        let journal = Journal::read(&root)?;
        if journal.generations.is_empty() {
            print("nothing to undo\n")?;
        }
        for number in 0..journal.generations.len() {
            // A pod may have started since the previous generation was undone.
            let needing = match (root.is_this_machine(), number) {
                (false, _) => Vec::new(),
                (true, 0) => needing(&journal)?,
                // The previous undo may have stopped criswitch, so that it lists no pods.
                (true, _) => needing(&Journal::read(&root)?).unwrap_or_default(),
            };
            if !needing.is_empty() {
                let what = match number {
                    0 => "nothing has changed",
                    _ => "not all is undone",
                };
                let hint = "kubectl drain, or removing them, then again";
                print(format!("{}\n{what}; try {hint}\n", needing.join("\n")))?;
                return Ok(Verdict::NotFine);
            }
            if undone(undo(&root)?)? != Verdict::Fine {
                return Ok(Verdict::NotFine);
            }
        }
        Journal::open(&root)?.remove(&mut Runner::new(&root, false))?;
        Ok(Verdict::Fine)
    }
}

/// The pods that criswitch lists, including pods of backends without a row, and that the kubelet would lose if it used
/// its previous runtime again.
fn needing(journal: &Journal<'_>) -> anyhow::Result<Vec<String>> {
    let endpoint = journal.works().find_map(|work| match work {
        Work::Serve { endpoint, .. } => Some(endpoint),
        _ => None,
    });
    let previous = journal.works().filter_map(|work| match work {
        Work::Restart { pods_of, .. } => Some(pods_of),
        _ => None,
    });
    // `works` begins with the newest generation, so the last endpoint is the one from before the first generation.
    let (Some(endpoint), Some(previous)) = (endpoint, previous.last()) else {
        return Ok(Vec::new());
    };
    let kept = workloads::at(previous).context(UNKNOWN_PODS)?;
    let listed = workloads::at(endpoint).context(UNKNOWN_PODS)?;
    let state = actions::state(endpoint).context(UNKNOWN_PODS)?;
    Ok(listed
        .iter()
        .filter(|(id, pod)| pod.runs && pod.pod.is_none() && !kept.contains_key(*id))
        .map(|(id, pod)| {
            let owner = state.backends.iter().find(|it| it.pod_ids.contains(id));
            let socket = owner.map_or("an unknown backend", |owner| &owner.socket);
            format!(
                "{}: runs on {socket}, which the kubelet will no longer call",
                pod.name
            )
        })
        .collect())
}

impl NodeStatusArguments {
    pub fn run(&self) -> anyhow::Result<Verdict> {
        let root = Root::of(&self.root);
        let journal = Journal::read(&root)?;
        let drifted = drifted(&journal, &root)?;
        let state = state(&journal, &root, !drifted.is_empty());
        let last = journal.generations.last();
        let undone = journal.undone.as_ref();
        let at = last.map(|last| &last.at).or(undone.map(|(at, _)| at));
        let version = last.map(|last| &last.version);
        let problems = undone.map_or(&[][..], |(_, problems)| problems);
        print(match self.output.encoding() {
            Some(encoding) => encoding.document(json!({
                "state": state, "at": at, "version": version, "drifted": drifted,
                "generation": journal.number(), "failure": journal.failure, "problems": problems,
            }))?,
            None => {
                let words = [version, at].into_iter().flatten().map(String::as_str);
                let first = iter::once(state).chain(words).collect::<Vec<_>>().join(" ");
                let failed = journal
                    .failure
                    .as_ref()
                    .map(|ApplyFailure { at, step, why }| {
                        format!("step {step} has failed at {at}: {why}")
                    });
                let lines = [first].into_iter().chain(failed);
                let lines = lines.chain(drifted.iter().map(|what| format!("differs: {what}")));
                let undone = problems.iter().map(|what| format!("not undone: {what}"));
                output::name_lines(lines.chain(undone)).into()
            }
        })?;
        Ok(Verdict::of(!self.ready || state == "installed"))
    }
}

/// Whether a command changes this machine now.
fn is_changing(root: &Root<'_>) -> bool {
    root.is_this_machine() && block_on(transient::APPLY.is_active(root)).unwrap_or(false)
}

/// The state of a machine with this journal.
fn state(journal: &Journal<'_>, root: &Root<'_>, has_drifted: bool) -> &'static str {
    match (journal.generations.last(), &journal.undone) {
        (Some(_), _) if journal.is_open && is_changing(root) => "changing",
        (Some(_), _) if journal.is_open => "interrupted",
        _ if journal.failure.is_some() => "failed",
        (None, None) => "notInstalled",
        (None, Some(_)) => "undone",
        (Some(_), _) if has_drifted => "drifted",
        (Some(_), _) => "installed",
    }
}

/// The files, and on this machine also the services, that differ from the journal.
fn drifted(journal: &Journal<'_>, root: &Root<'_>) -> anyhow::Result<Vec<String>> {
    let files = journal.drifted()?;
    let serve = journal.works().find(|it| matches!(it, Work::Serve { .. }));
    let verify = journal.works().find(|it| matches!(it, Work::Verify { .. }));
    let services = [serve, verify]
        .into_iter()
        .flatten()
        .filter(|_| root.is_this_machine() && !journal.is_open)
        .filter_map(|work| work.drift(root));
    Ok(files
        .iter()
        .map(|path| path.display().to_string())
        .chain(services)
        .collect())
}
