//! `criswitch reload`: tells the daemon to read its configuration again, and shows what came of it.

use std::fs;
use std::path::{self, Path};
use std::time::Duration;

use anyhow::{Context, bail};
use criswitch::config::Problems;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value as Json;
use tokio::time::Instant;

use super::running::DaemonInfo;
use super::{Daemon, Reload, Verdict, print, terminal};

/// How long a reload may take.
const LIMIT: Duration = Duration::from_secs(30);
/// Between two looks at whether it is done.
const PAUSE: Duration = Duration::from_millis(50);

impl Reload {
    pub(super) fn run(self) -> anyhow::Result<Verdict> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let outcome = runtime.block_on(reload(&self.daemon))?;
        if self.json {
            print(format!("{outcome:#}\n"))?;
        } else {
            show(&outcome)?;
        }
        Ok(match problems(&outcome) {
            None => Verdict::Fine,
            Some(_) => Verdict::WrongConfiguration,
        })
    }
}

/// What the daemon tells of the first reload that began after this.
async fn reload(daemon: &Daemon) -> anyhow::Result<Json> {
    let switch = daemon.connect().await;
    let switch = switch.map_err(|error| match daemon.socket {
        // They stand for themselves.
        _ if error.is::<Problems>() => error,
        Some(_) => error.context("not reloaded"),
        None => error.context("not reloaded (if `listen` was changed: that needs a restart, so set it back or restart criswitch)"),
    })?;
    let pid = pid(&switch.info().await?)?;
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| unseen(pid, error))?;
    // Whoever answers now is alive, so the number is still its own.
    let info = switch.info().await?;
    if self::pid(&info)? != pid {
        bail!("criswitch was restarted meanwhile; try again");
    }
    same_file(&daemon.file.path, &info)?;
    heeds(pid)?;
    let wanted = number(&info, "/reloads/begun") + 1;
    pidfd_send_signal(&process, Signal::HUP).with_context(|| {
        format!(
            "cannot signal criswitch, process {}; are you root?",
            pid.as_raw_nonzero()
        )
    })?;
    let end = Instant::now() + LIMIT;
    loop {
        let info = switch.info().await?;
        if number(&info, "/reloads/count") >= wanted {
            let mut outcome = outcome(&info, wanted)?;
            let problems: Vec<_> = serde_json::from_value::<DaemonInfo>(info)?
                .restart_problems()
                .collect();
            if let Some(outcome) = outcome.as_object_mut() {
                outcome.insert("restartProblems".to_owned(), problems.into());
            }
            return Ok(outcome);
        }
        if Instant::now() > end {
            bail!("no outcome within {LIMIT:?}; see criswitch's log");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn pid(info: &Json) -> anyhow::Result<Pid> {
    let pid = i32::try_from(number(info, "/pid")).ok();
    pid.and_then(Pid::from_raw)
        .context("criswitch does not say which process it is; is it of another version?")
}

fn outcome(info: &Json, wanted: u64) -> anyhow::Result<Json> {
    let recent = info.pointer("/reloads/recent").and_then(Json::as_array);
    let mut recent = recent.into_iter().flatten();
    let own = recent.find(|outcome| number(outcome, "/number") == wanted);
    let own = own.cloned();
    own.context("too many reloads since; see criswitch's log")
}

/// Zero where there is none.
fn number(info: &Json, path: &str) -> u64 {
    info.pointer(path)
        .and_then(Json::as_u64)
        .unwrap_or_default()
}

/// Why nothing has changed, if that is so.
fn problems(outcome: &Json) -> Option<&str> {
    outcome.pointer("/problems").and_then(Json::as_str)
}

/// A daemon in a container has a number of its own there.
fn unseen(pid: Pid, error: rustix::io::Errno) -> anyhow::Error {
    let pid = pid.as_raw_nonzero();
    anyhow::anyhow!(
        "criswitch calls itself process {pid}, which is not to be seen here ({error}); \
        try this command where it runs, in its container or pod"
    )
}

/// A daemon reads the file that it was started with.
fn same_file(path: &Path, info: &Json) -> anyhow::Result<()> {
    let its = info.pointer("/configuration/path").and_then(Json::as_str);
    let its = its.unwrap_or_default();
    // It may be gone, which the daemon is to tell.
    let full = |path: &Path| path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| full(path));
    if real(path) == real(Path::new(its)) {
        return Ok(());
    }
    bail!(
        "criswitch on that socket runs with {its}, not with {}; try --config {its}",
        path.display()
    )
}

/// A process that does not handle SIGHUP would end of it; and in another container the number is somebody else's.
fn heeds(pid: Pid) -> anyhow::Result<()> {
    let path = format!("/proc/{}/comm", pid.as_raw_nonzero());
    let name = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    // A binary may have its target's name after its own.
    if !name.starts_with("criswitch") {
        bail!(
            "process {} is {:?} here; try this command where criswitch runs, in its container or pod",
            pid.as_raw_nonzero(),
            name.trim_end()
        );
    }
    let path = format!("/proc/{}/status", pid.as_raw_nonzero());
    let status = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // The lowest bit is signal 1, SIGHUP.
    match caught {
        Some(mask) if mask & 1 == 1 => Ok(()),
        _ => bail!(
            "process {} does not take SIGHUP, so it is not criswitch",
            pid.as_raw_nonzero()
        ),
    }
}

fn show(outcome: &Json) -> anyhow::Result<()> {
    if let Some(problems) = problems(outcome) {
        let told = format!("{problems}\ncriswitch: not reloaded: nothing has changed\n");
        terminal::complain(&told);
        return Ok(());
    }
    let lines = ["/changes/lines", "/restartProblems"].into_iter();
    let lines = lines.filter_map(|path| outcome.pointer(path)?.as_array());
    let lines = lines.flatten().filter_map(Json::as_str);
    let text: String = lines.map(terminal::wrapped_first).collect();
    print(text).map(drop)
}
