//! `criswitch reload`: makes the daemon read its configuration again, and shows what came of it.

use std::fs;
use std::path::{self, Path};

use anyhow::bail;
use criswitch::codec::admin::{ReloadResponse, State, reload};
use criswitch::config::Problems;
use serde_json::{Value as Json, json};

use super::{Daemon, Reload, Verdict, print, terminal};

impl Reload {
    pub(super) fn run(self) -> anyhow::Result<Verdict> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let response = runtime.block_on(ask(&self.daemon))?;
        if self.json {
            print(format!("{:#}\n", json(&response)?))?;
        } else {
            show(&response)?;
        }
        Ok(match problems(&response) {
            None => Verdict::Fine,
            Some(_) => Verdict::WrongConfiguration,
        })
    }
}

async fn ask(daemon: &Daemon) -> anyhow::Result<ReloadResponse> {
    let running = daemon.connect().await;
    let running = running.map_err(|error| match daemon.socket {
        // They stand for themselves.
        _ if error.is::<Problems>() => error,
        Some(_) => error.context("not reloaded"),
        None => error.context("not reloaded (a changed `listen` needs a restart: restart criswitch, or set `listen` back)"),
    })?;
    same_file(&daemon.file.path, &running.state().await?)?;
    running.reload().await
}

/// A daemon reads the file that it was started with.
fn same_file(path: &Path, state: &State) -> anyhow::Result<()> {
    let its = state.configuration.clone().unwrap_or_default().path;
    // It may be gone, which the daemon is to tell.
    let full = |path: &Path| path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| full(path));
    if real(path) == real(Path::new(&its)) {
        return Ok(());
    }
    bail!(
        "the configuration file of the running criswitch is {its}, not {}; try --config {its}",
        path.display()
    )
}

/// Why nothing has changed, if that is so.
fn problems(response: &ReloadResponse) -> Option<&str> {
    match response.reload.as_ref()?.result.as_ref()? {
        reload::Result::Problems(problems) => Some(problems),
        reload::Result::Changes(_) => None,
    }
}

fn json(response: &ReloadResponse) -> anyhow::Result<Json> {
    let mut json = serde_json::to_value(&response.reload)?;
    if let Some(json) = json.as_object_mut() {
        json.insert(
            "restartProblems".to_owned(),
            json!(response.restart_problems),
        );
    }
    Ok(json)
}

fn show(response: &ReloadResponse) -> anyhow::Result<()> {
    if let Some(problems) = problems(response) {
        let told = format!("{problems}\ncriswitch: not reloaded: nothing has changed\n");
        terminal::complain(&told);
        return Ok(());
    }
    let result = response
        .reload
        .as_ref()
        .and_then(|reload| reload.result.as_ref());
    let lines = match result {
        Some(reload::Result::Changes(changes)) => changes.lines.as_slice(),
        _ => &[],
    };
    let lines = lines.iter().chain(&response.restart_problems);
    let text: String = lines.map(|line| terminal::wrapped_first(line)).collect();
    print(text).map(drop)
}
