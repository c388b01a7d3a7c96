//! The actions of a change: calls of systemctl, and waits until criswitch and the kubelet serve.
//!
//! On a machine that does not run, an action only removes labels and state.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use criswitch_client::program::{block_on, within};
use criswitch_client::running::Running;
use criswitch_client::terminal::progress;
use criswitch_config::address::Address;
use criswitch_config::specification::Tries;
use criswitch_cri::codec::admin::State;
use criswitch_platform::remove;
use serde::{Deserialize, Serialize};

use super::faults::moment;
use super::kubelet::Kubelet;
use super::root::Root;
use super::settings::same;
use super::tries;
use super::unit::{Unit, properties};
use super::workloads::{self, Workloads};

/// The pause between two checks of a condition.
const PAUSE: Duration = Duration::from_millis(200);
/// How long the health endpoint of the kubelet may take.
const HEALTH_LIMIT: Duration = Duration::from_secs(2);
const REQUEST: &[u8] = b"GET /healthz HTTP/1.0\r\n\r\n";
const RESTART: &str = "restart";
const NO_ANSWER: &str = "systemd does not answer systemctl";
/// How long a call of systemctl may take. By default, systemd kills a unit that does not stop within 90 s, and a unit
/// that does not start within a further 90 s.
const SYSTEMCTL_LIMIT: Duration = Duration::from_secs(600);
/// The exit code of systemctl for a unit that does not exist.
const NO_UNIT: i32 = 5;
/// The directories with criswitch's state, and the subdirectory of the journal, which stays.
const STATE: [&str; 2] = ["/var/lib/criswitch", "/run/criswitch"];
const OWN: &str = "node";

/// The actions of a stage.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Actions {
    /// Run after the files are changed.
    pub(super) forward: Vec<Action>,
    /// Run before and after the files are restored, if an action of the stage may have begun.
    pub(super) before_undo: Vec<Action>,
    pub(super) after_undo: Vec<Action>,
}

/// An action.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Action {
    /// The step of the plan.
    pub(super) step: String,
    pub(super) work: Work,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Work {
    /// Call systemctl with these arguments. Stopping a unit that does not exist succeeds.
    Systemctl(Vec<String>),
    /// Wait until criswitch serves this endpoint, and lists the pods of these backends.
    Serve {
        endpoint: String,
        backends: Vec<String>,
        within: Duration,
    },
    /// Try each handler of criswitch at this endpoint.
    Try { endpoint: String, how: Tries },
    /// Remove the pods that an interrupted try has left on these backends.
    RemoveTried { backends: Vec<String> },
    /// Restart the kubelet. The runtime at the endpoint `pods_of` has its pods.
    Restart {
        unit: String,
        pods_of: String,
        /// Whether the kubelet ran when the change was planned. If not, it is restarted only if it runs now.
        ran: bool,
    },
    /// Wait until the kubelet serves with this endpoint, and has kept its pods.
    Verify {
        unit: String,
        endpoint: String,
        within: Duration,
        settle: Duration,
    },
    /// Check that no kubelet uses this endpoint of criswitch, before criswitch stops. If this check fails, the undo
    /// stops.
    Release { endpoint: String },
    /// Remove the state of criswitch.
    Forget,
    /// Remove the labels of the node, which criswitch leaves when it stops.
    RemoveLabels(PathBuf),
}

/// Runs actions.
pub(super) struct Runner<'a> {
    root: &'a Root<'a>,
    /// Whether the machine is booting: the kubelet has not started, and waits for this process.
    pub(super) is_boot: bool,
    /// Whether the actions belong to an undo, which continues after failures.
    pub(super) is_undo: bool,
    /// Whether the kubelet's restart has failed, so that its process may still use its previous endpoint.
    is_restart_failed: bool,
    /// The pods and containers of the kubelet before its restart.
    before: Option<Workloads>,
    /// Whether the kubelet did not run, so that there is nothing to restart and to verify.
    is_kubelet_stopped: bool,
}

impl<'a> Runner<'a> {
    pub(super) fn new(root: &'a Root<'a>, is_boot: bool) -> Runner<'a> {
        Runner {
            root,
            is_boot,
            is_undo: false,
            is_restart_failed: false,
            before: None,
            is_kubelet_stopped: false,
        }
    }

    pub(super) fn run(&mut self, action: &Action) -> anyhow::Result<()> {
        // Labels that stay on a disk would let the scheduler send pods to the node after its boot.
        let is_of_files = matches!(action.work, Work::RemoveLabels(_) | Work::Forget);
        if !self.root.is_this_machine() && !is_of_files {
            return Ok(());
        }
        let started = Instant::now();
        let done = self.work(&action.work);
        moment();
        let (step, what) = (&action.step, action.work.words());
        let seconds = started.elapsed().as_secs_f64();
        let end = if done.is_ok() { "done" } else { "failed" };
        progress(&format!("{step}: {what}: {end} after {seconds:.1} s\n"));
        done
    }

    fn work(&mut self, work: &Work) -> anyhow::Result<()> {
        match work {
            Work::Systemctl(arguments)
                if self.is_boot && arguments.contains(&RESTART.to_owned()) =>
            {
                // At boot criswitch waits for this process, so this process must not wait for criswitch.
                systemctl(&[&["--no-block".to_owned()], arguments.as_slice()].concat())
            }
            Work::Systemctl(arguments) => systemctl(arguments),
            Work::Forget => forget(self.root).context("cannot remove the state of criswitch"),
            Work::RemoveLabels(file) => remove(&self.root.place(file))
                .with_context(|| format!("cannot remove {}", file.display())),
            // The kubelet waits for this process, and starts with its previous files.
            Work::Restart { .. }
            | Work::Serve { .. }
            | Work::Try { .. }
            | Work::RemoveTried { .. }
            | Work::Verify { .. }
            | Work::Release { .. }
                if self.is_boot =>
            {
                Ok(())
            }
            Work::Try { endpoint, how } => tries::all(endpoint, *how),
            Work::RemoveTried { backends } => tries::remove(backends),
            Work::Serve {
                endpoint,
                backends,
                within,
            } => wait(*within, Duration::ZERO, || lists(endpoint, backends)),
            Work::Restart { unit, pods_of, ran } => self.restart(unit, pods_of, *ran),
            Work::Release { endpoint } => self.release(endpoint),
            Work::Verify { .. } if self.is_kubelet_stopped => Ok(()),
            Work::Verify {
                unit,
                endpoint,
                within,
                settle,
            } => {
                wait(*within, *settle, || self.verify(unit, endpoint))?;
                // A longer wait cannot make these pods known, so this check is not a part of `verify`.
                ensure!(
                    self.before.is_some(),
                    "the pods before the restart are not known"
                );
                Ok(())
            }
        }
    }

    fn restart(&mut self, unit: &str, pods_of: &str, ran: bool) -> anyhow::Result<()> {
        self.is_kubelet_stopped = !ran && Unit::is_stopped(unit).context(NO_ANSWER)?;
        if self.is_kubelet_stopped {
            return Ok(());
        }
        let before = workloads::at(pods_of);
        if !self.is_undo
            && let Err(error) = before
        {
            return Err(error.context("the pods before the restart are not known"));
        }
        self.before = before.ok();
        let restarted = systemctl(&[RESTART.to_owned(), unit.to_owned()]);
        self.is_restart_failed = restarted.is_err();
        restarted
    }

    /// Checks that no kubelet uses an endpoint of criswitch.
    fn release(&self, endpoint: &str) -> anyhow::Result<()> {
        let kubelet = Kubelet::read(self.root, &mut Vec::new());
        let is_used = kubelet.endpoint().is_some_and(|used| same(used, endpoint));
        ensure!(
            !(is_used || self.is_restart_failed && kubelet.pid.is_some()),
            "the kubelet may still use criswitch, so criswitch keeps serving; try restarting the kubelet with its own runtime \
             endpoint, then undo again"
        );
        Ok(())
    }

    /// Checks that the kubelet serves with an endpoint, and has kept its pods if these are known. Returns its main
    /// process.
    fn verify(&self, unit: &str, endpoint: &str) -> anyhow::Result<String> {
        let process = active(unit)?;
        uses(self.root, endpoint)?;
        if let Some(before) = &self.before {
            workloads::kept(before, endpoint)?;
        }
        Ok(process)
    }
}

impl Work {
    pub(super) fn words(&self) -> String {
        match self {
            Work::Systemctl(arguments) => format!("systemctl {}", arguments.join(" ")),
            Work::Serve { endpoint, .. } => format!("criswitch serves {endpoint}"),
            Work::Try { .. } => "each handler starts pods".to_owned(),
            Work::RemoveTried { .. } => "remove the pods of a try".to_owned(),
            Work::Restart { unit, .. } => format!("systemctl restart {unit}"),
            Work::Verify { unit, endpoint, .. } => {
                format!("{unit} serves with {endpoint} and has kept its pods")
            }
            Work::Release { endpoint } => format!("no kubelet uses {endpoint}"),
            Work::Forget => "remove the state of criswitch".to_owned(),
            Work::RemoveLabels(file) => format!("remove {}", file.display()),
        }
    }

    /// How the machine differs now from its state at the end of this action; `None` if it does not differ.
    pub(super) fn drift(&self, root: &Root<'_>) -> Option<String> {
        let (place, found) = match self {
            Work::Serve { endpoint, .. } => ("criswitch", serves(endpoint)),
            Work::Verify { unit, endpoint, .. } => {
                (&**unit, active(unit).and_then(|_| uses(root, endpoint)))
            }
            _ => return None,
        };
        Some(format!("{place}: {:#}", found.err()?))
    }
}

fn call_systemctl(arguments: &[&str]) -> anyhow::Result<Output> {
    let mut systemctl = Command::new("systemctl");
    systemctl.args(arguments);
    within(SYSTEMCTL_LIMIT, systemctl)
}

fn systemctl(arguments: &[String]) -> anyhow::Result<()> {
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let output = call_systemctl(&arguments)?;
    let units = arguments.strip_prefix(&["stop"]);
    if let Some(units) = units {
        // A unit that has failed stays in systemd's list of units, even without its file. A unit that systemd does not
        // know needs no reset.
        call_systemctl(&[&["reset-failed", "--quiet"], units].concat()).ok();
    }
    if output.status.success() || (units.is_some() && output.status.code() == Some(NO_UNIT)) {
        return Ok(());
    }
    bail!(
        "systemctl {}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    )
}

/// Waits until `look` succeeds, and then returns the same value for the time `settle`.
fn wait(
    within: Duration,
    settle: Duration,
    look: impl Fn() -> anyhow::Result<String>,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut good: Option<(String, Instant)> = None;
    loop {
        let (found, now) = (look(), Instant::now());
        let is_late = started.elapsed() > within + settle;
        good = match (found, good) {
            (Ok(value), Some((old, since))) if value == old => Some((old, since)),
            (Ok(_), Some(_)) if is_late => bail!("it keeps restarting"),
            (Ok(value), _) => Some((value, now)),
            (Err(error), _) if is_late => {
                return Err(error.context(format!("not within {within:?}")));
            }
            (Err(_), _) => None,
        };
        if good
            .as_ref()
            .is_some_and(|(_, since)| since.elapsed() >= settle)
        {
            return Ok(());
        }
        pause(PAUSE)?;
    }
}

/// Waits for this time.
pub(super) fn pause(time: Duration) -> anyhow::Result<()> {
    block_on(async {
        tokio::time::sleep(time).await;
        Ok(())
    })
}

/// The state that the criswitch at this endpoint reports.
pub(super) fn state(endpoint: &str) -> anyhow::Result<State> {
    let socket = Address::parse(endpoint)?;
    block_on(async { Running::connect(&socket).await?.state().await })
}

fn serves(endpoint: &str) -> anyhow::Result<()> {
    state(endpoint).map(drop)
}

/// Checks that criswitch serves an endpoint and lists the pods of these backends.
fn lists(endpoint: &str, backends: &[String]) -> anyhow::Result<String> {
    serves(endpoint)?;
    for backend in backends {
        workloads::kept(&workloads::at(backend)?, endpoint)?;
    }
    Ok(String::new())
}

/// Checks that a unit is active. Returns its main process.
fn active(unit: &str) -> anyhow::Result<String> {
    let [state, process] = properties(unit, ["ActiveState", "MainPID"]).context(NO_ANSWER)?;
    ensure!(state == "active", "{unit} is {state}");
    Ok(process)
}

/// Checks that the kubelet is healthy, and uses an endpoint.
fn uses(root: &Root<'_>, endpoint: &str) -> anyhow::Result<()> {
    let kubelet = Kubelet::read(root, &mut Vec::new());
    ensure!(kubelet.pid.is_some(), "no kubelet runs");
    let used = kubelet.endpoint().unwrap_or("unknown");
    ensure!(
        same(used, endpoint),
        "the kubelet's endpoint is {used}, not {endpoint}"
    );
    let port = kubelet
        .set(["healthz-port", "healthzPort"])
        .map_or("10248", |port| &port.value);
    if port == "0" {
        return Ok(());
    }
    let address = kubelet
        .set(["healthz-bind-address", "healthzBindAddress"])
        .map_or("127.0.0.1", |address| &address.value);
    healthy(&address.replace("0.0.0.0", "127.0.0.1"), port)
        .with_context(|| format!("the kubelet is not healthy at port {port}"))
}

fn healthy(address: &str, port: &str) -> anyhow::Result<()> {
    let address = std::net::SocketAddr::new(address.parse()?, port.parse()?);
    let mut stream = TcpStream::connect_timeout(&address, HEALTH_LIMIT)?;
    stream.set_read_timeout(Some(HEALTH_LIMIT))?;
    stream.write_all(REQUEST)?;
    let mut reply = String::new();
    stream.take(1 << 12).read_to_string(&mut reply)?;
    let line = reply.lines().next().unwrap_or_default();
    ensure!(line.contains(" 200 "), "it returned {line:?}");
    Ok(())
}

/// Removes the state of criswitch, except the journal.
fn forget(root: &Root<'_>) -> std::io::Result<()> {
    for directory in STATE.map(Path::new) {
        for name in root.names_in(directory)?.iter().filter(|name| *name != OWN) {
            let path = root.place(&directory.join(name));
            if path.is_dir() {
                fs::remove_dir_all(&path)?
            } else {
                remove(&path)?
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// The health of a kubelet that answers with this line.
    fn health(line: &'static str) -> anyhow::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let kubelet = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; REQUEST.len()]).unwrap();
            stream.write_all(line.as_bytes()).unwrap();
        });
        let found = healthy("127.0.0.1", &port.to_string());
        kubelet.join().unwrap();
        found
    }

    #[test]
    fn a_kubelet_is_healthy_with_status_200_only() {
        health("HTTP/1.0 200 OK\r\n\r\nok").unwrap();
        let error = health("HTTP/1.0 500 Internal Server Error\r\n\r\n").unwrap_err();
        assert!(error.to_string().contains("500 Internal"), "{error}");
        assert!(health("").is_err());
    }
}
