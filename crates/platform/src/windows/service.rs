//! The Windows service: the events that the service control manager sends, and the reports to it.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use tokio::sync::Notify;
use windows_service::service::{
    ServiceControl, ServiceControlAccept, ServiceExitCode, ServiceState, ServiceStatus, ServiceType,
};
use windows_service::service_control_handler::{
    self, ServiceControlHandlerResult, ServiceStatusHandle,
};
use windows_service::service_dispatcher;

use super::paths::LOG;

/// The command that shows whether the service runs.
pub const QUERY: &str = "sc query criswitch";
/// The name of the service.
const NAME: &str = "criswitch";
/// How long a start may take.
const START_LIMIT: Duration = Duration::from_secs(30);
/// The largest size of the log file. A full log file replaces the previous one.
const LARGEST_LOG: u64 = 16 << 20;

/// Completes when the service must stop.
static STOP: Notify = Notify::const_new();
/// Completes when the service must reload its configuration.
static RELOAD: Notify = Notify::const_new();
/// Where the state of the service is reported; empty if criswitch does not run as a service.
static MANAGER: OnceLock<ServiceStatusHandle> = OnceLock::new();
/// The configuration file of the service, and the function that serves.
static SERVED: OnceLock<(PathBuf, Serve)> = OnceLock::new();

/// Serves with this configuration file until the service must stop. Returns why it failed.
pub type Serve = fn(&Path) -> Result<(), String>;

/// The help on the option with which Windows starts the daemon.
pub const HELP: Option<&str> = Some("Serve as the service; only Windows starts it so");

/// Serves as the service. Blocks until the service has stopped.
///
/// # Errors
/// If Windows has not started criswitch as a service.
pub fn run(path: PathBuf, serve: Serve) -> io::Result<()> {
    SERVED.set((path, serve)).ok();
    service_dispatcher::start(NAME, entry).map_err(|error| match error {
        windows_service::Error::Winapi(error) => error,
        error => io::Error::other(error),
    })
}

windows_service::define_windows_service!(entry, serve);

/// Serves as the service. The service manager calls this function on a thread of its own.
fn serve(_: Vec<OsString>) {
    let Ok(manager) = service_control_handler::register(NAME, control) else {
        return;
    };
    MANAGER.set(manager).ok();
    report(ServiceState::StartPending, START_LIMIT, 0);
    let served = match SERVED.get() {
        Some((path, serve)) => serve(path),
        None => Ok(()),
    };
    if let Err(error) = &served {
        // A failed write cannot be reported anywhere.
        LogFile::open()
            .and_then(|mut log| log.write_all(error.as_bytes()))
            .ok();
    }
    report(
        ServiceState::Stopped,
        Duration::ZERO,
        u32::from(served.is_err()),
    );
}

/// Handles an event of the service manager.
fn control(event: ServiceControl) -> ServiceControlHandlerResult {
    match event {
        ServiceControl::Stop | ServiceControl::Shutdown => STOP.notify_one(),
        ServiceControl::ParamChange => RELOAD.notify_one(),
        ServiceControl::Interrogate => {}
        _ => return ServiceControlHandlerResult::NotImplemented,
    }
    ServiceControlHandlerResult::NoError
}

/// Reports a state that may take `limit`. An exit code other than zero is a failure.
fn report(state: ServiceState, limit: Duration, code: u32) {
    let controls_accepted = match state {
        ServiceState::Running => {
            ServiceControlAccept::STOP
                | ServiceControlAccept::SHUTDOWN
                | ServiceControlAccept::PARAM_CHANGE
        }
        _ => ServiceControlAccept::empty(),
    };
    let status = ServiceStatus {
        service_type: ServiceType::OWN_PROCESS,
        current_state: state,
        controls_accepted,
        exit_code: match code {
            0 => ServiceExitCode::NO_ERROR,
            code => ServiceExitCode::ServiceSpecific(code),
        },
        checkpoint: 0,
        wait_hint: limit,
        process_id: None,
    };
    if let Some(manager) = MANAGER.get() {
        // The service manager may have ended already while Windows shuts down.
        manager.set_service_status(status).ok();
    }
}

/// Completes when the service must stop. Never completes if criswitch does not run as a service.
pub(super) async fn stopped() {
    STOP.notified().await;
}

/// Completes when the service must reload its configuration.
pub(super) async fn changed() {
    RELOAD.notified().await;
}

/// The log file of the service, because a service has no standard error. The log file has at most [`LARGEST_LOG`]
/// bytes, and so has the previous log file beside it.
#[derive(Debug)]
pub(super) struct LogFile {
    file: File,
    bytes: u64,
}

impl LogFile {
    pub(super) fn open() -> io::Result<LogFile> {
        if let Some(directory) = Path::new(LOG).parent() {
            fs::create_dir_all(directory)?;
        }
        let file = File::options().append(true).create(true).open(LOG)?;
        let bytes = file.metadata()?.len();
        Ok(LogFile { file, bytes })
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes + bytes.len() as u64 > LARGEST_LOG {
            // A log file that another program keeps open may not be renamed. It is emptied, so that the log goes on.
            if fs::rename(LOG, Path::new(LOG).with_extension("old.log")).is_err() {
                File::create(LOG)?;
            }
            *self = LogFile::open()?;
        }
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A state that criswitch reports.
#[derive(Clone, Copy, Debug)]
pub enum NotifyState<'a> {
    /// criswitch serves.
    Ready,
    /// criswitch reloads its configuration.
    Reloading,
    /// criswitch finishes calls in flight.
    Stopping,
    /// One line for people.
    Status(&'a str),
    /// The thread that serves calls runs.
    Watchdog,
    /// The shutdown may take this time, in microseconds.
    ExtendTimeoutUsec(u32),
}

impl fmt::Display for NotifyState<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotifyState::ExtendTimeoutUsec(limit) => write!(f, "{LIMIT}{limit}"),
            state => write!(f, "{state:?}"),
        }
    }
}

/// The beginning of the line with the time that a shutdown may take, in microseconds.
const LIMIT: &str = "limit ";

/// Whether criswitch runs as a service.
pub fn is_managed() -> bool {
    MANAGER.get().is_some()
}

/// The time within which the service manager expects a watchdog message: it expects none.
pub fn watchdog() -> Option<Duration> {
    None
}

/// Reports that the service runs or stops. The service manager knows no other states and no status line.
///
/// # Errors
/// None.
pub fn send(message: &str) -> io::Result<()> {
    let has = |state: NotifyState<'_>| message.lines().any(|line| line == state.to_string());
    let limit = message
        .lines()
        .find_map(|line| line.strip_prefix(LIMIT))
        .map_or(0, |limit| limit.parse().unwrap_or(0));
    if has(NotifyState::Stopping) {
        report(ServiceState::StopPending, Duration::from_micros(limit), 0);
    } else if has(NotifyState::Ready) {
        report(ServiceState::Running, Duration::ZERO, 0);
    }
    Ok(())
}

/// The directories of systemd's unit: none.
pub fn directories() -> [Option<PathBuf>; 2] {
    [None, None]
}
