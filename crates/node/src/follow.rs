//! `criswitch node follow`, the program in the pods of the chart. It copies itself and a specification to the node,
//! lets systemd run `criswitch node` there, and reports the state of the node. Nothing changes on the node when the
//! program ends.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use criswitch_client::arguments::directory;
use criswitch_client::exit::Verdict;
use criswitch_client::program::{block_on, daemon_beside};
use criswitch_client::terminal::print;
use criswitch_platform::process;
use criswitch_platform::replace::replace_with;
use tokio::time::sleep;

use super::root::Root;
use super::systemd::TransientUnit;
use super::transient::{APPLY, EndedCommand, LOOK};

/// The copies on the node of the two programs and of the specification.
pub(super) const PROGRAM: &str = "/var/lib/criswitch/node/criswitch";
const DAEMON: &str = "/var/lib/criswitch/node/criswitchd";
const SPEC: &str = "/var/lib/criswitch/node/spec.toml";
/// The limit on a message, in characters. Kubernetes keeps this much of it in an event.
const MAX_MESSAGE: usize = 1000;
/// A pod is ready if its report begins with one of these words. In mode `plan`, no verdict of the plan makes a pod
/// unready, because the DaemonSet controller replaces all pods that are not ready at once.
const READY: [&str; 3] = ["planned", "installed", "uninstalled"];
const UNINSTALLED: &str = "uninstalled\n";
const TWO_PODS: &str = "rejected: a pod of another pool or release follows this node with another specification; try one pool for each \
    node, then deleting this pod\n";

/// The arguments of `criswitch node follow`.
#[derive(Args)]
pub struct FollowArguments {
    /// Plan only, install, or uninstall.
    #[arg(long, value_enum, default_value_t = FollowMode::Plan)]
    mode: FollowMode,
    /// The specification of the node, as for plan and apply.
    #[arg(long, value_name = "FILE")]
    spec: Option<PathBuf>,
    /// The file with the last report, which Kubernetes shows when the container ends.
    #[arg(long, value_name = "FILE", default_value = "/dev/termination-log")]
    message: PathBuf,
    /// Print the last report of the running `criswitch node follow`, and exit.
    #[arg(long)]
    ready: bool,
    /// The directory with /run/systemd and /var/lib/criswitch/node of the node.
    #[arg(long, value_name = "DIR", default_value = "/", value_parser = directory)]
    root: PathBuf,
    /// The time until the first look: a plan rejects a node with a pod that has just started, even if it is this pod.
    #[arg(long, hide = true, value_parser = humantime::parse_duration, default_value = "11s")]
    wait: Duration,
    /// The time between two looks at the node.
    #[arg(long, hide = true, value_parser = humantime::parse_duration, default_value = "60s")]
    period: Duration,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum FollowMode {
    Plan,
    Install,
    Uninstall,
}

/// The process that follows a node.
struct Follower<'a> {
    options: &'a FollowArguments,
    root: Root<'a>,
    /// The specification that has been copied to the node with the programs; `None` before the copies.
    copied: Option<Vec<u8>>,
    /// Whether the change of the node has succeeded or failed. This process does not retry a change that has failed; a
    /// new pod retries it.
    is_decided: bool,
}

impl FollowArguments {
    pub fn run(&self) -> anyhow::Result<Verdict> {
        if self.ready {
            return self.show();
        }
        let follower = Follower {
            options: self,
            root: Root::of(&self.root),
            copied: None,
            is_decided: false,
        };
        block_on(async {
            tokio::select! {
                () = process::shutdown()? => Ok(Verdict::Fine),
                ended = follower.follow() => ended,
            }
        })
    }

    /// Prints the last report on one line: kubectl shows only the first line of an event.
    fn show(&self) -> anyhow::Result<Verdict> {
        let message = fs::read_to_string(&self.message).unwrap_or_default();
        let lines: Vec<_> = message.lines().filter(|line| !line.is_empty()).collect();
        let shown = match lines.as_slice() {
            [] => "no report yet".to_owned(),
            [state] => (*state).to_owned(),
            [state, reasons @ ..] => format!("{state}: {}", reasons.join("; ")),
        };
        print(shown + "\n")?;
        let state = message.split_whitespace().next().unwrap_or_default();
        Ok(Verdict::of(READY.contains(&state)))
    }
}

impl Follower<'_> {
    async fn follow(mut self) -> anyhow::Result<Verdict> {
        self.report("waiting until this pod is old enough for a plan\n")?;
        sleep(self.options.wait).await;
        let mut last = String::new();
        loop {
            let report = self.look().await.unwrap_or_else(|error| {
                if !self.is_replaced() {
                    self.copied = None;
                }
                format!("unknown\n{error:#}\n")
            });
            if report != last {
                print(report.clone())?;
                self.report(&report)?;
                last = report;
            }
            sleep(self.options.period).await;
        }
    }

    fn report(&self, report: &str) -> anyhow::Result<()> {
        let path = &self.options.message;
        fs::write(path, message(report)).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Changes the node if the mode requires it. Returns the report about the node.
    async fn look(&mut self) -> anyhow::Result<String> {
        if self.copied.is_none() {
            // Wait for a change that an earlier pod or an administrator has started.
            if APPLY.is_active(&self.root).await? {
                APPLY.follow(&self.root, None, true).await?;
            }
            self.copied = Some(self.carry().context("cannot copy to the node")?);
        }
        match self.options.mode {
            FollowMode::Plan if self.is_replaced() => Ok(format!("planned\n{TWO_PODS}")),
            FollowMode::Install if self.is_replaced() => Ok(format!("rejected\n{TWO_PODS}")),
            FollowMode::Plan => Ok(format!("planned\n{}", self.plan().await?.output)),
            FollowMode::Install if self.is_decided => self.status().await,
            FollowMode::Install => self.install().await,
            FollowMode::Uninstall if self.is_decided => Ok(UNINSTALLED.to_owned()),
            FollowMode::Uninstall => self.uninstall().await,
        }
    }

    async fn install(&mut self) -> anyhow::Result<String> {
        let plan = self.plan().await?;
        if !matches!(plan.verdict, Verdict::Fine | Verdict::WouldChange) {
            return Ok(format!("rejected\n{}", plan.output));
        }
        self.report("applying\n")?;
        let apply = [&["apply", "--here"], self.source()].concat();
        let applied = self.run(&APPLY, &apply, true).await;
        let status = self.status().await?;
        self.is_decided = status.starts_with("failed")
            || applied.is_ok_and(|ended| ended.verdict == Verdict::Fine);
        Ok(if self.is_decided {
            status
        } else {
            format!("rejected; the node is {status}")
        })
    }

    async fn uninstall(&mut self) -> anyhow::Result<String> {
        let ended = self.run(&APPLY, &["uninstall", "--here"], false).await?;
        if ended.verdict != Verdict::Fine {
            return Ok(format!("notUninstalled\n{}", ended.output));
        }
        self.is_decided = true;
        Ok(UNINSTALLED.to_owned())
    }

    async fn plan(&self) -> anyhow::Result<EndedCommand> {
        self.run(&LOOK, &[&["plan"], self.source()].concat(), false)
            .await
    }

    async fn status(&self) -> anyhow::Result<String> {
        Ok(self.run(&LOOK, &["status", "--ready"], false).await?.output)
    }

    fn source(&self) -> &[&str] {
        match self.options.spec {
            Some(_) => &["--spec", SPEC],
            None => &[],
        }
    }

    /// Runs `criswitch node` on the node.
    async fn run(
        &self,
        unit: &TransientUnit,
        arguments: &[&str],
        is_shown: bool,
    ) -> anyhow::Result<EndedCommand> {
        let command: Vec<_> = ["node"]
            .iter()
            .chain(arguments)
            .map(ToString::to_string)
            .collect();
        unit.run(&self.root, Path::new(PROGRAM), &command, is_shown)
            .await
    }

    /// Whether the copy of the specification on the node is of another pod.
    fn is_replaced(&self) -> bool {
        let copy = fs::read(self.root.at(Path::new(SPEC)));
        let own = self.copied.as_ref().filter(|_| self.options.spec.is_some());
        own.is_some_and(|own| copy.is_ok_and(|copy| copy != *own))
    }

    /// Copies the programs and the specification to the node. Returns the copy of the specification.
    fn carry(&self) -> io::Result<Vec<u8>> {
        let program = std::env::current_exe()?;
        self.copy(&daemon_beside(&program), DAEMON)?;
        self.copy(&program, PROGRAM)?;
        match &self.options.spec {
            Some(spec) => {
                let own = fs::read(spec)?;
                self.copy(spec, SPEC)?;
                Ok(own)
            }
            None => Ok(Vec::new()),
        }
    }

    fn copy(&self, from: &Path, to: &str) -> io::Result<()> {
        // The old copy is replaced, not overwritten, because a unit may still run it.
        replace_with(&self.root.at(Path::new(to)), |new| {
            fs::copy(from, new).map(drop)
        })
    }
}

/// The first line of a report, and as much of its end as Kubernetes shows.
fn message(report: &str) -> String {
    let (first, rest) = report.split_once('\n').unwrap_or((report, ""));
    let start = rest.chars().count().saturating_sub(MAX_MESSAGE);
    let end: String = rest.chars().skip(start).collect();
    format!("{first}\n{end}")
}
