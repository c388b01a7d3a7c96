//! This process and its machine: the events that end criswitch, standard error, the boot.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, IsTerminal, Write};
use std::os::windows::io::AsHandle;
use std::time::Duration;

use tokio::signal::windows;
use windows_registry::LOCAL_MACHINE;
use winsafe::{FILETIME, GetTickCount64, HPROCESS};

use super::service::{self, LogFile};
use crate::ProcessStats;

/// Ends this process without any further work.
pub fn kill() -> ! {
    std::process::abort()
}

/// Does nothing: no test stops this process on Windows.
pub fn stop() {}

/// The registry key of this boot. It is volatile: Windows drops it when the machine restarts.
const BOOT_KEY: &str = r"SOFTWARE\criswitch\boot";
/// The value with a random id of this boot.
const BOOT_ID: &str = "id";
/// The key and the value with the id of this machine.
const MACHINE_KEY: &str = r"SOFTWARE\Microsoft\Cryptography";
const MACHINE_ID: &str = "MachineGuid";
/// The limit of Windows on the handles of a process.
const MAX_HANDLES: f64 = 16_777_216.0;
/// The Unix epoch in seconds since the epoch of Windows, which is the year 1601.
const UNIX_EPOCH_SECONDS: f64 = 11_644_473_600.0;

/// Handles the events that end a command. They are the same events as in [`shutdown`].
///
/// # Errors
/// If the events cannot be handled.
pub fn interrupt() -> io::Result<impl Future<Output = ()>> {
    shutdown()
}

/// Handles the events that end criswitch: Ctrl-C, Ctrl-Break, a closed console, a shutdown, and the stop of the
/// service. The future completes at the first one. Needs a tokio runtime.
///
/// # Errors
/// If the events cannot be handled.
pub fn shutdown() -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = windows::ctrl_c()?;
    let mut break_ = windows::ctrl_break()?;
    let mut close = windows::ctrl_close()?;
    let mut shutdown = windows::ctrl_shutdown()?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = break_.recv() => {}
            _ = close.recv() => {}
            _ = shutdown.recv() => {}
            () = service::stopped() => {}
        }
    })
}

/// The event that makes criswitch reload its configuration: the service manager's `paramchange`.
#[derive(Debug)]
pub struct Hangup;

impl Hangup {
    /// Handles the event.
    ///
    /// # Errors
    /// None.
    pub fn handle() -> io::Result<Hangup> {
        Ok(Hangup)
    }

    /// Waits for the next event.
    pub async fn received(&mut self) {
        service::changed().await;
    }
}

/// The destination of log lines: the log file of the service, else a copy of the handle of standard error, because a
/// write that blocks must not hold the lock of `io::stderr`.
///
/// # Errors
/// If the file cannot be opened, or the handle cannot be copied.
pub fn log_output() -> io::Result<Box<dyn Write + Send>> {
    if service::is_managed() {
        return Ok(Box::new(LogFile::open()?));
    }
    let stderr = io::stderr().as_handle().try_clone_to_owned()?;
    Ok(Box::new(File::from(stderr)))
}

/// Whether standard error goes to systemd's journal: never.
pub fn stderr_is_journal() -> bool {
    false
}

/// The columns and the rows of a terminal, zero if the terminal reports none. `None` if the stream is not a terminal.
pub fn size_of(stream: &(impl IsTerminal + AsHandle)) -> Option<(usize, usize)> {
    stream.is_terminal().then(|| {
        terminal_size::terminal_size_of(stream)
            .map_or((0, 0), |(columns, rows)| (columns.0.into(), rows.0.into()))
    })
}

/// The id of this boot, and the id of this machine, which is empty if there is none.
///
/// # Errors
/// The id of the boot can be neither read nor saved in the registry.
pub fn boot() -> io::Result<(String, String)> {
    let machine = LOCAL_MACHINE
        .open(MACHINE_KEY)
        .and_then(|key| key.get_string(MACHINE_ID));
    Ok((boot_id()?, machine.unwrap_or_default()))
}

/// The time since the boot. Unlike the wall clock, it does not jump.
pub fn uptime() -> Duration {
    Duration::from_millis(GetTickCount64())
}

fn boot_id() -> io::Result<String> {
    let mut options = LOCAL_MACHINE.options();
    let key = options.read().write().create().volatile().open(BOOT_KEY)?;
    if let Ok(id) = key.get_string(BOOT_ID) {
        return Ok(id);
    }
    let id = format!("{:016x}{:016x}", random(), random());
    key.set_string(BOOT_ID, &id)?;
    Ok(id)
}

fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// The seconds in a time of Windows, which counts units of 100 ns.
fn seconds(time: &FILETIME) -> f64 {
    let units = u64::from(time.dwHighDateTime) << 32 | u64::from(time.dwLowDateTime);
    units as f64 / 1e7
}

/// The figures have the same meaning as in Prometheus' own client: a descriptor is a handle, and the virtual memory is
/// the private memory.
impl ProcessStats {
    /// The figures of this process now.
    pub fn own() -> ProcessStats {
        let process = HPROCESS::GetCurrentProcess();
        let times = process.GetProcessTimes().ok();
        let reported = process.GetProcessMemoryInfo().ok();
        let memory = reported.as_ref();
        let started = times.as_ref().map(|(start, ..)| seconds(start));
        ProcessStats {
            cpu_seconds: times
                .as_ref()
                .map(|(.., kernel, user)| seconds(kernel) + seconds(user)),
            resident_bytes: memory.map(|memory| memory.WorkingSetSize as f64),
            virtual_bytes: memory.map(|memory| memory.PrivateUsage as f64),
            start_seconds: started.map(|started| started - UNIX_EPOCH_SECONDS),
            open_fds: process.GetProcessHandleCount().ok().map(f64::from),
            max_fds: Some(MAX_HANDLES),
        }
    }
}
