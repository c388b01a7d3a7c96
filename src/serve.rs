//! The log, the socket, the signals and reloads. The library serves the calls.

pub(super) mod check;
mod log;
mod notify;

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use criswitch::backend::connect::Dialer;
use criswitch::server::{Listener, Passed, PassedSocket};
use criswitch::store::{Boot, InUse, Lock, Store};
use criswitch::switch::{Switch, reload, saved};
use criswitch_config::watch::{Fingerprint, Watch};
use criswitch_config::{Config, Problems};
use criswitch_platform::process::{self, Hangup};
use criswitch_platform::service::{self, NotifyState};
use criswitch_version::BUILD;

use log::Log;
use notify::Notify;

/// Why the daemon did not serve.
#[derive(Debug)]
pub(super) enum NotServed {
    /// The configuration is wrong.
    Configuration(Problems),
    /// The daemon could not start.
    Start(anyhow::Error),
    /// The cause is in the log.
    Logged,
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// Why the daemon did not serve.
pub(super) fn serve(path: &Path) -> Result<(), NotServed> {
    let (loaded, config) = load(path);
    let config = config.map_err(NotServed::Configuration)?;
    let log = log::start(&config.log);
    // `Passed::take` removes environment variables, so no other thread may run yet.
    let passed = Passed::take();
    let _writing = log
        .write()
        .map_err(|error| NotServed::Start(error.into()))?;
    passed
        .map_err(anyhow::Error::from)
        .and_then(|passed| serve_on(passed, config, loaded, &log))
        .map_err(|error| {
            // Queue the error, because a direct write to standard error could block the exit.
            log.queue.add(format!("criswitchd: {error:#}\n").as_bytes());
            NotServed::Logged
        })
}

fn serve_on(passed: Passed, config: Config, loaded: Fingerprint, log: &Log) -> anyhow::Result<()> {
    let notify = Notify::start()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // File work is rare, and an idle thread uses memory, so an idle thread ends after 1 s.
        .thread_keep_alive(Duration::from_secs(1))
        .build()?;
    let served = runtime.block_on(async {
        // Handle signals before the socket exists: once clients can connect, a signal must let calls finish.
        let mut shutdown = std::pin::pin!(process::shutdown()?);
        let hangup = Hangup::handle()?;
        let socket_activated = passed.cri.is_some();
        let listener = tokio::select! {
            listener = listen(passed.cri, &config) => listener?,
            () = &mut shutdown => return Ok(()),
        };
        let own = config.clone();
        let starting = tokio::task::spawn_blocking(|| with_state(own));
        let (mut switch, _lock) = tokio::select! {
            started = starting => started??,
            () = &mut shutdown => return Ok(()),
        };
        log_start(&config, socket_activated);
        for note in &config.notes {
            tracing::warn!("{note}");
        }
        switch.log = log.queue.clone();
        let switch = Arc::new(switch);
        let shutdown = async {
            shutdown.await;
            notify.stopping(switch.live().config.shutdown_timeout);
        };
        tokio::select! {
            () = criswitch::serve(Arc::clone(&switch), listener, passed.metrics, shutdown) => Ok(()),
            never = notify.keep(&switch) => match never {},
            never = reloads(&switch, log, &notify, hangup, loaded) => match never {},
        }
    });
    // A thread that waits for a hanging disk must not delay the exit.
    runtime.shutdown_background();
    served
}

/// Logs the version and the configuration. `commit` is omitted if it was unknown at build time.
fn log_start(config: &Config, socket_activated: bool) {
    tracing::info!(
        listen = %config.listen,
        socket_activated,
        config = config.hash,
        handlers = config.table.handlers.len(),
        backends = config.table.backends.len(),
        commit = BUILD.commit,
        "criswitch {} started",
        BUILD.version
    );
}

/// Listens on the socket that systemd passed, else at the configured path. The file work runs on another thread, so
/// that a hanging disk does not delay a shutdown.
async fn listen(passed: Option<PassedSocket>, config: &Config) -> anyhow::Result<Listener> {
    let (listen, uids) = (config.listen.clone(), config.allow_uids.clone());
    let listening = tokio::task::spawn_blocking(move || {
        Ok(match passed {
            Some(socket) => Listener::on(socket, &listen, &uids)?,
            None => Listener::bind(&listen, &uids)?,
        })
    });
    listening.await?
}

/// The [`Switch`] with the saved state, and the lock on the directories of the state. If the kernel's boot id cannot be
/// read, criswitch starts without saved state.
fn with_state(config: Config) -> Result<(Switch, Lock), InUse> {
    let directories = config.directories(service::directories());
    let lock = Lock::of(&directories)?;
    let boot = match Boot::current() {
        Ok(boot) => boot,
        Err(error) => {
            tracing::error!(%error, "the kernel's boot id cannot be read, so the state is not saved; if criswitch restarts while a backend is away, lists fail");
            return Ok((Switch::new(config, &Dialer::Socket), lock));
        }
    };
    let (store, found) = Store::open(directories, boot);
    for problem in &found.problems {
        tracing::error!("{problem}");
    }
    Ok((saved::resume(config, &Dialer::Socket, store, found), lock))
}

/// Runs reloads, one at a time. The causes of a reload are SIGHUP, a request to the admin service, and, with `watch`,
/// files that differ from those that were `loaded`. Without `watch`, changed files are only read, so that the operator
/// sees whether criswitch would start with them.
async fn reloads(
    switch: &Switch,
    log: &Log,
    notify: &Notify,
    mut hangup: Hangup,
    mut loaded: Fingerprint,
) -> Infallible {
    let watch = Watch::default();
    loop {
        let config = switch.live().config.clone();
        tokio::select! {
            () = hangup.received() => {}
            () = switch.reload_queue.wanted.notified() => {}
            () = watch.changed(&config.path, loaded) => {
                if !config.watch {
                    let read = load_beside(&config.path, &mut loaded).await;
                    reload::note_files(&mut switch.reloads(), &read);
                    continue;
                }
            }
        }
        switch.reloads().begin();
        notify.notify(&[NotifyState::Reloading]);
        let result = load_beside(&config.path, &mut loaded).await;
        reload::reload_beside(switch, result).await;
        log.set(&switch.live().config.log.levels);
        notify.notify(&[NotifyState::Ready]);
    }
}

/// Reads the files on another thread, because a slow disk must not delay calls.
async fn load_beside(path: &Path, loaded: &mut Fingerprint) -> Result<Config, Problems> {
    let main = path.to_owned();
    let (fingerprint, config) = tokio::task::spawn_blocking(move || load(&main))
        .await
        .unwrap_or_else(|error| (*loaded, Err(Problems::of_reading(path, error))));
    *loaded = fingerprint;
    config
}

/// Computes the fingerprint of the files, then reads the files. If a file changes during the read, the fingerprint no
/// longer matches the files, so the change is noticed.
fn load(path: &Path) -> (Fingerprint, Result<Config, Problems>) {
    (Fingerprint::of(path), Config::load(path))
}

/// Serves until the service manager stops the service. The error says why the daemon failed, and is empty if the cause
/// is already in the log.
pub(super) fn serve_as_service(path: &Path) -> Result<(), String> {
    serve(path).map_err(|failure| match failure {
        NotServed::Configuration(problems) => format!("{problems}\n"),
        NotServed::Start(error) => format!("criswitchd: {error:#}\n"),
        NotServed::Logged => String::new(),
    })
}
