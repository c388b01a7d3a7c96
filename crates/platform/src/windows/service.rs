//! The Windows service: its commands, the events that the service control manager sends, and the reports to it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command as Program;
use std::sync::OnceLock;
use std::time::Duration;
use std::{env, fmt};

use tokio::sync::Notify;
use windows_service::service::{
    Service, ServiceAccess, ServiceAction, ServiceActionType, ServiceControl, ServiceControlAccept,
    ServiceErrorControl, ServiceExitCode, ServiceFailureActions, ServiceFailureResetPeriod,
    ServiceInfo, ServiceStartType, ServiceState, ServiceStatus, ServiceType,
};
use windows_service::service_control_handler::{
    self, ServiceControlHandlerResult, ServiceStatusHandle,
};
use windows_service::service_dispatcher;
use windows_service::service_manager::{ServiceManager, ServiceManagerAccess};

use super::paths::{CONFIG, LOG};

/// The command that shows whether the service runs.
pub const QUERY: &str = "sc query criswitch";
/// The name of the service.
const NAME: &str = "criswitch";
const DESCRIPTION: &str =
    "One CRI endpoint for the kubelet in front of several container runtimes.";
/// The pause before Windows restarts the service after a failure.
const RESTART_AFTER: Duration = Duration::from_secs(1);
/// How long the service must run without a failure until Windows counts failures from zero again.
const RESET_AFTER: Duration = Duration::from_secs(60);
/// How long a start may take.
const START_LIMIT: Duration = Duration::from_secs(30);
/// The largest size of the log file. A full log file replaces the previous one.
const LARGEST_LOG: u64 = 16 << 20;
/// The error of a system that lacks a setting of services (`ERROR_INVALID_LEVEL`).
const NO_LEVEL: i32 = 124;
/// The security identifiers of the system and of the administrators' group, which own the files.
const SYSTEM: &str = "*S-1-5-18";
const ADMINISTRATORS: &str = "*S-1-5-32-544";

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

/// The commands for the service manager.
#[derive(clap::Subcommand)]
pub enum Commands {
    /// Install, remove or run the Windows service.
    #[command(subcommand)]
    Service(ServiceCommand),
}

/// A command for the service manager.
#[derive(clap::Subcommand)]
pub enum ServiceCommand {
    /// Install the service. It starts with Windows, and restarts 1 s after a failure.
    Install(ConfigPath),
    /// Stop and remove the service. The configuration and the state stay.
    Uninstall,
    /// Serve as the service. Only Windows runs this command.
    Run(ConfigPath),
}

/// The configuration file of the service.
#[derive(clap::Args)]
pub struct ConfigPath {
    /// The configuration file; criswitch also reads conf.d/*.toml beside it.
    #[arg(long = "config", value_name = "FILE", default_value = CONFIG)]
    path: PathBuf,
}

impl Commands {
    /// Runs the command. Blocks.
    ///
    /// # Errors
    /// If Windows rejects the command, or if criswitch was not started as a service.
    pub fn run(self, serve: Serve) -> io::Result<()> {
        let Commands::Service(command) = self;
        let done = match command {
            ServiceCommand::Install(ConfigPath { path }) => install(&std::path::absolute(path)?),
            ServiceCommand::Uninstall => uninstall(),
            ServiceCommand::Run(ConfigPath { path }) => {
                SERVED.set((path, serve)).ok();
                service_dispatcher::start(NAME, entry)
            }
        };
        done.map_err(cause)
    }
}

/// The error of Windows, without the crate's words around it.
fn cause(error: windows_service::Error) -> io::Error {
    match error {
        windows_service::Error::Winapi(error) => error,
        error => io::Error::other(error),
    }
}

fn install(configuration: &Path) -> windows_service::Result<()> {
    protect().map_err(windows_service::Error::Winapi)?;
    let access = ServiceManagerAccess::CONNECT | ServiceManagerAccess::CREATE_SERVICE;
    let manager = ServiceManager::local_computer(None::<&str>, access)?;
    let program = env::current_exe().map_err(windows_service::Error::Winapi)?;
    let arguments = ["service".into(), "run".into(), "--config".into()];
    let info = ServiceInfo {
        name: NAME.into(),
        display_name: NAME.into(),
        service_type: ServiceType::OWN_PROCESS,
        start_type: ServiceStartType::AutoStart,
        error_control: ServiceErrorControl::Normal,
        executable_path: program,
        launch_arguments: [&arguments[..], &[configuration.into()]].concat(),
        dependencies: Vec::new(),
        account_name: None,
        account_password: None,
    };
    // To set a restart, criswitch needs the right to start the service.
    let access = ServiceAccess::CHANGE_CONFIG | ServiceAccess::START | ServiceAccess::DELETE;
    let service = manager.create_service(&info, access)?;
    let set = set_up(&service);
    if set.is_err() {
        // The first error is the one to report.
        service.delete().ok();
    }
    set
}

/// Sets the description and the restart of the service.
fn set_up(service: &Service) -> windows_service::Result<()> {
    service.set_description(DESCRIPTION)?;
    service.update_failure_actions(ServiceFailureActions {
        reset_period: ServiceFailureResetPeriod::After(RESET_AFTER),
        reboot_msg: None,
        command: None,
        actions: Some(vec![ServiceAction {
            action_type: ServiceActionType::Restart,
            delay: RESTART_AFTER,
        }]),
    })?;
    match service.set_failure_actions_on_non_crash_failures(true) {
        // Wine restarts no services.
        Err(windows_service::Error::Winapi(error)) if error.raw_os_error() == Some(NO_LEVEL) => {
            Ok(())
        }
        set => set,
    }
}

/// Creates criswitch's directory, which has the configuration, the state and the log, and lets only the system and
/// administrators use it. By default, every user may create files in directories below `C:\ProgramData`, so the
/// directory may have files of other users.
fn protect() -> io::Result<()> {
    let directory = Path::new(CONFIG).parent().unwrap_or(Path::new(CONFIG));
    fs::create_dir_all(directory)?;
    let with_files = ["/T", "/L"];
    let owner = ["/setowner", ADMINISTRATORS];
    icacls(directory, &[owner, with_files].concat())?;
    icacls(directory, &["/reset", "/T", "/L"])?;
    let [system, administrators] =
        [SYSTEM, ADMINISTRATORS].map(|group| format!("{group}:(OI)(CI)F"));
    icacls(
        directory,
        &["/inheritance:r", "/grant:r", &system, &administrators],
    )
}

/// Changes the access to a directory. Names icacls by its full path, because Windows first searches a bare name in the
/// directory of criswitch.
fn icacls(directory: &Path, arguments: &[&str]) -> io::Result<()> {
    let system = env::var_os("SystemRoot").unwrap_or_else(|| r"C:\Windows".into());
    let program = Path::new(&system).join(r"System32\icacls.exe");
    let output = Program::new(program)
        .arg(directory)
        .args(arguments)
        .output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "icacls cannot set the access to {}; run the command as an administrator",
            directory.display()
        ))),
    }
}

fn uninstall() -> windows_service::Result<()> {
    let manager = ServiceManager::local_computer(None::<&str>, ServiceManagerAccess::CONNECT)?;
    let service = manager.open_service(NAME, ServiceAccess::STOP | ServiceAccess::DELETE)?;
    // A service that does not run cannot be stopped. Windows removes a running service when it has stopped.
    service.stop().ok();
    service.delete()
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
        let log = LogFile::open().and_then(|mut log| log.write_all(error.as_bytes()));
        log.ok();
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
        // The service manager may be gone while Windows shuts down.
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

/// The log file of the service, which has no standard error. Has at most [`LARGEST_LOG`] bytes, and so has the previous
/// log file beside it.
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
    let limit = message.lines().find_map(|line| line.strip_prefix(LIMIT));
    let limit = limit.and_then(|limit| limit.parse().ok()).unwrap_or(0);
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
