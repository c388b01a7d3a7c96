//! The units of systemd in which a command changes this machine, or looks at it. A unit does not end with the shell,
//! the pod or the kubelet that has started it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::iter;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use criswitch_client::exit::Verdict;
use criswitch_client::program::block_on;
use criswitch_client::terminal::print;
use criswitch_platform::{create_new, remove};
use tokio::time::sleep;

use super::changes::{PRIVATE, make_directories, missing};
use super::journal::{DIRECTORY, FILE};
use super::root::Root;
use super::stages::RECOVER_PROGRAM;
use super::systemd::{SOCKET, Systemd, TransientUnit};

/// The pause between two checks of a unit.
const PAUSE: Duration = Duration::from_millis(200);
/// How much of a unit's output is read, in bytes.
const MAX_OUTPUT: u64 = 1 << 20;

/// Changes the machine. Only one unit can have this name, so the name is a lock. When a command has ended, the unit
/// undoes incomplete changes.
pub(super) const APPLY: TransientUnit = TransientUnit {
    name: "criswitch-apply.service",
    input: None,
    output: "/var/lib/criswitch/node/apply.log",
    errors: None,
    after: &["node", "undo", "--here", "--interrupted"],
};

/// Looks at the machine, and changes nothing.
pub(super) const LOOK: TransientUnit = TransientUnit {
    name: "criswitch-look.service",
    input: None,
    output: "/var/lib/criswitch/node/look.log",
    errors: None,
    after: &[],
};

/// The result of a command that has ended.
pub(super) struct EndedCommand {
    pub(super) verdict: Verdict,
    pub(super) output: String,
}

/// The file for the progress of a change whose output is for programs.
const PROGRESS: &str = "/var/lib/criswitch/node/apply.err";

/// Runs the command of this process in the unit that changes this machine, and shows the output until its end. If the
/// output is for programs, the progress is not part of it.
pub(super) fn run(is_for_programs: bool) -> anyhow::Result<Verdict> {
    let program = std::env::current_exe()?;
    let mut arguments = std::env::args_os()
        .skip(1)
        .map(|word| word.into_string())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|word| anyhow!("the argument {} is not UTF-8", word.display()))?;
    arguments.push("--here".to_owned());
    let made = missing(Path::new(DIRECTORY));
    make_directories(&made)?;
    let root = Root::of(Path::new("/"));
    let unit = TransientUnit {
        errors: is_for_programs.then_some(PROGRESS),
        ..APPLY
    };
    let ended = block_on(unit.run(&root, &program, &arguments, true));
    // A command without a journal has changed nothing, so its output must not stay either, unless another command still
    // writes it.
    if !root.has(FILE) && !block_on(APPLY.is_active(&root)).unwrap_or(true) {
        remove(Path::new(unit.output)).ok();
        for directory in made.iter().rev() {
            fs::remove_dir(directory).ok();
        }
    }
    Ok(ended?.verdict)
}

impl TransientUnit {
    /// Runs a command of this program on the machine below `root`, and shows the output if `is_shown`.
    pub(super) async fn run(
        &self,
        root: &Root<'_>,
        program: &Path,
        arguments: &[String],
        is_shown: bool,
    ) -> anyhow::Result<EndedCommand> {
        ensure!(
            !self.is_active(root).await?,
            "another criswitch changes this machine now; try again when {} has ended",
            self.name
        );
        // systemd shows the failure of an earlier run until this reset.
        self.reset(root).await?;
        let output = root.at(Path::new(self.output));
        remove(&output)?;
        if let Some(errors) = self.errors {
            remove(&root.at(Path::new(errors)))?;
        }
        // Opened before the start: the end of an uninstall removes the file.
        let output = create_new(&output, PRIVATE).and_then(|_| File::open(&output))?;
        let program = program
            .to_str()
            .context("the program's path is not UTF-8")?;
        // An undo may remove its own program; then the program of the recover unit exists.
        let after = match self.after {
            [] => Vec::new(),
            after => vec![command(RECOVER_PROGRAM, after), command(program, after)],
        };
        Systemd(&socket(root))
            .start(
                self,
                command(program, arguments),
                &after,
                &std::env::current_dir()?,
            )
            .await?;
        let output = self.follow(root, Some(output), is_shown).await?;
        if let Some(errors) = self.errors {
            Self::show_errors(&root.at(Path::new(errors)))?;
        }
        Ok(EndedCommand {
            verdict: self.verdict(root).await?,
            output,
        })
    }

    /// Copies standard error of the command that has ended, and removes its file.
    fn show_errors(file: &Path) -> anyhow::Result<()> {
        if file.exists() {
            io::copy(&mut File::open(file)?, &mut io::stderr().lock())?;
            remove(file)?;
        }
        Ok(())
    }

    /// Waits until the unit ends. Returns its output.
    pub(super) async fn follow(
        &self,
        root: &Root<'_>,
        mut file: Option<File>,
        is_shown: bool,
    ) -> anyhow::Result<String> {
        let mut output = Vec::new();
        loop {
            // systemd does not answer during a daemon-reexec: treat the unit as active.
            let is_last = self.is_active(root).await.is_ok_and(|is_active| !is_active);
            if file.is_none() {
                file = File::open(root.at(Path::new(self.output))).ok();
            }
            let start = output.len();
            if let Some(file) = &mut file {
                file.take(MAX_OUTPUT.saturating_sub(start as u64))
                    .read_to_end(&mut output)?;
            }
            let new = output.get(start..).unwrap_or_default();
            if is_shown {
                print(String::from_utf8_lossy(new).into_owned())?;
            }
            if is_last {
                return Ok(String::from_utf8_lossy(&output).into_owned());
            }
            sleep(PAUSE).await;
        }
    }

    /// The verdict of the command that has ended. systemd has forgotten a unit that succeeded, and reports `success`
    /// for it.
    async fn verdict(&self, root: &Root<'_>) -> anyhow::Result<Verdict> {
        let result = self.property(root, "Service", "Result").await?;
        let status = self.property(root, "Service", "ExecMainStatus").await?;
        self.reset(root).await?;
        let verdict = match result.as_str() {
            "success" => Some(Verdict::Fine),
            "exit-code" => status.parse().ok().and_then(Verdict::from_repr),
            _ => None,
        };
        verdict.with_context(|| {
            format!(
                "{} ended with the result {result} {status}; see criswitch node status",
                self.name
            )
        })
    }

    async fn reset(&self, root: &Root<'_>) -> anyhow::Result<()> {
        match self.property(root, "Unit", "ActiveState").await?.as_str() {
            "failed" => Systemd(&socket(root)).reset(self.name).await,
            _ => Ok(()),
        }
    }

    /// Whether the unit runs, or is about to.
    pub(super) async fn is_active(&self, root: &Root<'_>) -> anyhow::Result<bool> {
        let job = self.property(root, "Unit", "Job").await?;
        let state = self.property(root, "Unit", "ActiveState").await?;
        Ok(job != "0" || !["inactive", "failed"].contains(&state.as_str()))
    }

    async fn property(&self, root: &Root<'_>, of: &str, name: &str) -> anyhow::Result<String> {
        Systemd(&socket(root)).property(self.name, of, name).await
    }
}

fn command(program: &str, arguments: &[impl ToString]) -> Vec<String> {
    iter::once(program.to_owned())
        .chain(arguments.iter().map(ToString::to_string))
        .collect()
}

fn socket(root: &Root<'_>) -> PathBuf {
    root.at(Path::new(SOCKET))
}
