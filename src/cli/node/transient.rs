//! The unit of systemd in which a command changes this machine. It does not end with the shell, the pod or the kubelet
//! that has started it. Its name is a lock, and after its end it undoes what is incomplete.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail, ensure};
use criswitch::platform::remove;

use super::actions::pause;
use super::unit::properties;
use crate::cli::{Verdict, print};

const UNIT: &str = "criswitch-apply.service";
/// The output of the unit, also on a machine without journal.
const OUTPUT: &str = "/run/criswitch-apply.log";

/// Runs the command of this process in the unit, and shows the output until its end.
pub(super) fn run() -> anyhow::Result<Verdict> {
    ensure!(
        !is_active()?,
        "another criswitch changes this machine now; try again when {UNIT} has ended"
    );
    // A failure of an earlier run is shown until here.
    Command::new("systemctl")
        .args(["reset-failed", "--quiet", UNIT])
        .output()?;
    remove(Path::new(OUTPUT))?;
    let program = std::env::current_exe()?;
    let directory = std::env::current_dir()?;
    let (program, directory) = (program.display(), directory.display());
    let mut start = Command::new("systemd-run");
    start.args(["--quiet", &format!("--unit={UNIT}")]);
    let properties = [
        format!("StandardOutput=append:{OUTPUT}"),
        format!("WorkingDirectory={directory}"),
        format!("ExecStopPost=\"{program}\" node undo --here --interrupted"),
        // The undo has time limits of its own.
        "TimeoutStopSec=infinity".to_owned(),
    ];
    start.args(properties.map(|property| format!("--property={property}")));
    start.arg("--").arg(program.to_string());
    let started = start
        .args(std::env::args_os().skip(1))
        .arg("--here")
        .output();
    let started = started.context("cannot start systemd-run")?;
    let said = String::from_utf8_lossy(&started.stderr);
    ensure!(
        started.status.success(),
        "cannot start {UNIT}: {}",
        said.trim()
    );
    follow()?;
    verdict()
}

/// Shows the output of the unit until its end.
fn follow() -> anyhow::Result<()> {
    let mut output = None;
    loop {
        // systemd does not answer while it executes itself again.
        let is_last = is_active().is_ok_and(|is_active| !is_active);
        if output.is_none() {
            output = File::open(OUTPUT).ok();
        }
        let mut bytes = Vec::new();
        if let Some(output) = &mut output {
            output.read_to_end(&mut bytes)?;
        }
        print(String::from_utf8_lossy(&bytes).into_owned())?;
        if is_last {
            return Ok(());
        }
        pause()?;
    }
}

/// The verdict of the unit that has ended. systemd has forgotten a unit that succeeded.
fn verdict() -> anyhow::Result<Verdict> {
    let (result, status) = (show("Result")?, show("ExecMainStatus")?);
    Command::new("systemctl")
        .args(["reset-failed", "--quiet", UNIT])
        .output()?;
    match (result.as_str(), status.as_str()) {
        ("success", _) => Ok(Verdict::Fine),
        ("exit-code", "1") => Ok(Verdict::NotFine),
        ("exit-code", "2") => Ok(Verdict::WouldChange),
        ("exit-code", "78") => Ok(Verdict::WrongConfiguration),
        _ => bail!("{UNIT} ended with the result {result} {status}; see criswitch node status"),
    }
}

fn is_active() -> anyhow::Result<bool> {
    let state = show("ActiveState")?;
    Ok(!["inactive", "failed"].contains(&state.as_str()))
}

/// A property of the unit.
fn show(property: &str) -> anyhow::Result<String> {
    let asked = properties(UNIT, [property]);
    let [value] = asked.context("systemd does not answer systemctl")?;
    Ok(value)
}
