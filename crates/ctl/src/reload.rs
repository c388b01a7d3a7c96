//! `criswitch reload`: makes the daemon read its configuration again, and shows the changes or the problems.

use std::fs;
use std::path::{self, Path, PathBuf};

use anyhow::ensure;
use clap::Args;
use criswitch_client::arguments::Daemon;
use criswitch_client::exit::Verdict;
use criswitch_client::output::Output;
use criswitch_client::program::block_on;
use criswitch_client::running::Running;
use criswitch_client::terminal::{self, print};
use criswitch_config::problem::lines;
use criswitch_cri::codec::admin::{
    PlanReloadResponse, Problem, Problems, ReloadResponse, State, reload,
};
use serde_json::{Value as Json, json};

use super::dry_run;

/// The arguments of `criswitch reload`.
#[derive(Args)]
pub(super) struct ReloadArguments {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    output: Output,
    /// Show what a reload would change and whether that can be undone, and change nothing.
    #[arg(long)]
    dry_run: bool,
}

const UNKNOWN: &str = "the running criswitch gives no outcome that this version knows; see `criswitch status` for both \
    versions";

impl ReloadArguments {
    pub(super) fn run(self) -> anyhow::Result<Verdict> {
        if self.dry_run {
            let plan = block_on(ask(&self.daemon, "no dry run", Running::plan_reload))?;
            ensure!(plan.changes.is_some() || !plan.problems.is_empty(), UNKNOWN);
            return self.show_plan(&plan);
        }
        let response = block_on(ask(&self.daemon, "not reloaded", Running::reload))?;
        ensure!(
            response
                .reload
                .as_ref()
                .and_then(|it| it.result.as_ref())
                .is_some(),
            UNKNOWN
        );
        let problems = problems(&response);
        match self.output.encoding() {
            Some(encoding) => print(encoding.document(json(&response)?)?).map(drop)?,
            None if problems.is_none() => show(&response)?,
            None => {}
        }
        let Some(problems) = problems else {
            return Ok(Verdict::Fine);
        };
        let problems = lines(problems);
        terminal::print_stderr(&format!(
            "{problems}\ncriswitch: not reloaded: nothing has changed\n"
        ));
        Ok(Verdict::WrongConfiguration)
    }

    fn show_plan(&self, plan: &PlanReloadResponse) -> anyhow::Result<Verdict> {
        print(match self.output.encoding() {
            Some(encoding) => encoding.document(serde_json::to_value(plan)?)?,
            None => dry_run::text(plan),
        })?;
        if let Some(complaint) = dry_run::complaint(plan) {
            terminal::print_stderr(&complaint);
        }
        Ok(dry_run::verdict(plan))
    }
}

/// Connects to the daemon that uses the configuration file, and sends the request. `failed` begins the error if the
/// connection fails.
async fn ask<T>(
    daemon: &Daemon,
    failed: &str,
    request: impl AsyncFnOnce(&Running) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let running = daemon
        .connect()
        .await
        .map_err(|error| match daemon.socket {
            // Problems of the files need no context.
            _ if error.is::<criswitch_config::Problems>() => error,
            Some(_) => error.context(failed.to_owned()),
            None => error.context(format!(
                "{failed} (if you changed `listen`, restart criswitch or set `listen` back)"
            )),
        })?;
    same_file(&daemon.file.path, &running.state().await?)?;
    request(&running).await
}

/// Checks that `path` is the file that the daemon reloads. A daemon always reloads the file with which it was started.
///
/// # Errors
/// It is a different file.
pub(super) fn same_file(path: &Path, state: &State) -> anyhow::Result<()> {
    let its = state.configuration.clone().unwrap_or_default().path;
    ensure!(
        real(path) == real(Path::new(&its)),
        "the configuration file of the running criswitch is {its}, not {}; try --config {its}",
        path.display()
    );
    Ok(())
}

/// The canonical path. A missing file has no canonical path; the daemon then reports that the file is missing.
fn real(path: &Path) -> PathBuf {
    fs::canonicalize(path)
        .or_else(|_| path::absolute(path))
        .unwrap_or_else(|_| path.to_owned())
}

/// The problems for which the daemon rejected the configuration; `None` if it was applied.
fn problems(response: &ReloadResponse) -> Option<&[Problem]> {
    match response.reload.as_ref()?.result.as_ref()? {
        reload::Result::Problems(Problems { problems }) => Some(problems),
        reload::Result::Changes(_) => None,
    }
}

fn json(response: &ReloadResponse) -> anyhow::Result<Json> {
    let mut json = serde_json::to_value(&response.reload)?;
    if let Some(json) = json.as_object_mut() {
        json.insert(
            "problems".to_owned(),
            json!(problems(response).unwrap_or_default()),
        );
        json.entry("changes").or_insert(Json::Null);
        json.insert(
            "restartProblems".to_owned(),
            json!(response.restart_problems),
        );
    }
    Ok(json)
}

fn show(response: &ReloadResponse) -> anyhow::Result<()> {
    let changes = match response.reload.as_ref().and_then(|it| it.result.as_ref()) {
        Some(reload::Result::Changes(changes)) => changes.lines.as_slice(),
        _ => &[],
    };
    print(
        changes
            .iter()
            .chain(&response.restart_problems)
            .map(|line| terminal::wrapped_first(line))
            .collect::<String>(),
    )
    .map(drop)
}
