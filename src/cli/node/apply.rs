//! `criswitch node apply`, `undo` and `status`: the changes of a plan, all or none.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use criswitch::config::specification::Mode;
use criswitch::platform::kernel;
use serde_json::json;

use super::journal::{self, Generation, Journal, New};
use super::plan::{self, Source};
use super::root::Root;
use super::steps::{Content, Planned};
use crate::cli::output::Output;
use crate::cli::{Verdict, directory, print};

const APPLY_CODES: &str = "\
Exit codes: 0 the machine is as specified, 1 refused, or failed and
undone, 2 with mode = \"check\" in the specification: something would
change, 78 the specification is wrong.";

const UNDO_CODES: &str = "\
Exit codes: 0 undone, or nothing to undo, 1 a file could not be undone.";

const STATUS_CODES: &str = "\
Exit codes: 0 shown; with --ready: the machine is as specified, 1 with
--ready: it is not.";

/// The machine that a command changes.
#[derive(Args)]
struct Target {
    /// The root of a machine that does not run, for example a mounted image.
    #[arg(long, value_name = "DIR", value_parser = directory)]
    root: PathBuf,
    /// End after this number of changes on the disk, as a crash would.
    #[arg(long, hide = true)]
    end_at: Option<usize>,
}

/// The arguments of `criswitch node apply`.
#[derive(Args)]
#[command(after_help = APPLY_CODES)]
pub(in crate::cli) struct Apply {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    target: Target,
}

/// The arguments of `criswitch node undo`.
#[derive(Args)]
#[command(after_help = UNDO_CODES)]
pub(in crate::cli) struct Undo {
    #[command(flatten)]
    target: Target,
}

/// The arguments of `criswitch node status`.
#[derive(Args)]
#[command(after_help = STATUS_CODES)]
pub(in crate::cli) struct Status {
    /// Show the state of the machine whose root is this directory.
    #[arg(long, value_name = "DIR", default_value = "/", value_parser = directory)]
    root: PathBuf,
    /// Exit with status 1 unless all files are as `apply` has made them.
    #[arg(long)]
    ready: bool,
    #[command(flatten)]
    pub(in crate::cli) output: Output,
}

impl Target {
    /// The absolute path of the root. Rejects a machine that runs.
    fn directory(&self) -> anyhow::Result<PathBuf> {
        if !kernel::IS_LINUX {
            bail!("criswitch node is for nodes of Linux");
        }
        let directory = fs::canonicalize(&self.root).context("the root cannot be read")?;
        if Root::of(&directory).runs() {
            bail!(
                "{} has processes; this command changes only machines that do not run",
                self.root.display()
            );
        }
        if let Some(moment) = self.end_at {
            journal::end_at(moment);
        }
        Ok(directory)
    }
}

impl Apply {
    pub(in crate::cli) fn run(&self) -> anyhow::Result<Verdict> {
        let directory = self.target.directory()?;
        let root = Root::of(&directory);
        if Journal::read(&root)?.is_open {
            undo(&root)?;
        }
        let specification = self.source.specification()?;
        let facts = self.source.facts(&specification, &directory)?;
        let plan = plan::Plan::of(&facts);
        print(plan.text()?)?;
        if plan.verdict() != Verdict::WouldChange || specification.mode == Mode::Check {
            return Ok(plan.verdict());
        }
        let mut journal = Journal::open(&root)?;
        let applied = journal.apply(env!("CARGO_PKG_VERSION"), files(&plan.steps));
        drop(journal);
        match applied {
            Ok(()) => print(format!(
                "installed; criswitch node undo --root {} undoes it\n",
                self.target.root.display()
            )),
            Err(error) => Err(error.context(match undo(&root)? {
                Verdict::Fine => "all changes are undone",
                _ => "not all changes are undone",
            })),
        }
    }
}

/// The files that the steps change.
fn files(steps: &[Planned]) -> impl Iterator<Item = (&Path, New<'_>)> {
    let changes = steps.iter().flat_map(|planned| &planned.changes);
    changes.filter_map(|change| {
        let new = match change.content.as_ref()? {
            Content::Link(target) => New::Link(target),
            Content::File { bytes, mode } => New::File(bytes, *mode),
        };
        Some((Path::new(&change.place), new))
    })
}

/// Undoes the last changes of the journal.
fn undo(root: &Root<'_>) -> anyhow::Result<Verdict> {
    let mut journal = Journal::open(root)?;
    let left = journal.undo()?;
    if left.is_empty() {
        return print("undone\n");
    }
    let lines = left.iter().map(|path| {
        format!(
            "{}: somebody else has changed the file; change it yourself, then undo again\n",
            path.display()
        )
    });
    print(lines.collect::<String>())?;
    Ok(Verdict::NotFine)
}

impl Undo {
    pub(in crate::cli) fn run(&self) -> anyhow::Result<Verdict> {
        let directory = self.target.directory()?;
        let root = Root::of(&directory);
        match Journal::read(&root)?.generations.is_empty() {
            true => print("nothing to undo\n"),
            false => undo(&root),
        }
    }
}

impl Status {
    pub(in crate::cli) fn run(&self) -> anyhow::Result<Verdict> {
        let root = Root::of(&self.root);
        let journal = Journal::read(&root)?;
        let drifted = journal.drifted()?;
        let last = journal.generations.last();
        let state = match (last, &journal.undone) {
            (None, None) => "notInstalled",
            (None, Some(_)) => "undone",
            (Some(_), _) if journal.is_open => "interrupted",
            (Some(_), _) if !drifted.is_empty() => "drifted",
            (Some(_), _) => "installed",
        };
        let at = last.map_or(journal.undone.as_ref(), |Generation { at, .. }| Some(at));
        let version = last.map(|its| &its.version);
        let paths: Vec<_> = drifted
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        print(match self.output.encoding() {
            Some(encoding) => encoding.document(json!({
                "state": state, "at": at, "version": version, "drifted": paths,
            }))?,
            None => {
                let [version, at] =
                    [version, at].map(|text| text.map_or(String::new(), |text| format!(" {text}")));
                let lines = paths.iter().map(|path| format!("differs: {path}\n"));
                format!("{state}{version}{at}\n{}", lines.collect::<String>()).into()
            }
        })?;
        Ok(match self.ready && state != "installed" {
            true => Verdict::NotFine,
            false => Verdict::Fine,
        })
    }
}
