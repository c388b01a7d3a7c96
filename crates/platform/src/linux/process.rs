//! This process and its machine: signals, standard error, the figures of the process, the boot.

use std::fs::{self, File};
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::time::Duration;

use procfs::process::{LimitValue, Process as Proc};
use procfs::{Current, Uptime};
use rustix::termios::tcgetwinsize;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::ProcessStats;

/// The environment variable that systemd sets if output goes to the journal. It has the device and inode of that
/// output.
const JOURNAL: &str = "JOURNAL_STREAM";

/// Ends this process without any further work.
pub fn kill() -> ! {
    let own = rustix::process::getpid();
    rustix::process::kill_process(own, rustix::process::Signal::KILL).ok();
    std::process::abort()
}

/// Stops this process until it gets SIGCONT.
pub fn stop() {
    let own = rustix::process::getpid();
    rustix::process::kill_process(own, rustix::process::Signal::STOP).ok();
}

/// Handles the signals that end criswitch. The future completes at the first one. Needs a tokio runtime.
///
/// # Errors
/// If the signals cannot be handled.
pub fn shutdown() -> io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Handles the signals that end a command: the signals of [`shutdown`], and SIGHUP, which a closed terminal sends. The
/// future completes at the first one. Needs a tokio runtime.
///
/// # Errors
/// If the signals cannot be handled.
pub fn interrupt() -> io::Result<impl Future<Output = ()>> {
    let (ends, mut hangup) = (shutdown()?, Hangup::handle()?);
    Ok(async move {
        tokio::select! {
            () = ends => {}
            () = hangup.received() => {}
        }
    })
}

/// Handles the signal that makes criswitch reload its configuration.
#[derive(Debug)]
pub struct Hangup(Signal);

impl Hangup {
    /// Handles the signal from now on. Needs a tokio runtime.
    ///
    /// # Errors
    /// If the signal cannot be handled.
    pub fn handle() -> io::Result<Hangup> {
        signal(SignalKind::hangup()).map(Hangup)
    }

    /// Waits for the next signal.
    pub async fn received(&mut self) {
        self.0.recv().await;
    }
}

/// The destination of log lines: a copy of the descriptor of standard error, because a write that blocks must not hold
/// the lock of `io::stderr`.
///
/// # Errors
/// If the descriptor cannot be copied.
pub fn log_output() -> io::Result<File> {
    Ok(File::from(io::stderr().as_fd().try_clone_to_owned()?))
}

/// Whether standard error goes to systemd's journal.
pub fn stderr_is_journal() -> bool {
    let Some(journal) = std::env::var_os(JOURNAL) else {
        return false;
    };
    let stat = rustix::fs::fstat(io::stderr());
    stat.is_ok_and(|stat| *journal == *format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// The columns and the rows of a terminal, zero if the terminal reports none. `None` if the stream is not a terminal.
pub fn size_of(stream: &(impl IsTerminal + AsFd)) -> Option<(usize, usize)> {
    stream.is_terminal().then(|| {
        tcgetwinsize(stream).map_or((0, 0), |size| (size.ws_col.into(), size.ws_row.into()))
    })
}

/// The kernel's random id of this boot, and the id of this machine (machine-id(5)), which is empty if there is none.
///
/// # Errors
/// The kernel's boot id cannot be read.
pub fn boot() -> io::Result<(String, String)> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let machine = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    Ok((id.trim().to_owned(), machine.trim().to_owned()))
}

/// The time since the boot. Unlike the wall clock, it does not jump.
pub fn uptime() -> Duration {
    Uptime::current().map_or(Duration::MAX, |up| up.uptime_duration())
}

impl ProcessStats {
    /// The figures of this process now.
    pub fn own() -> ProcessStats {
        let Ok(process) = Proc::myself() else {
            return ProcessStats::default();
        };
        let stat = process.stat().ok();
        let stat = stat.as_ref();
        let ticks = procfs::ticks_per_second() as f64;
        let boot = procfs::boot_time_secs().ok();
        let limits = process.limits().ok();
        let max_fds = limits.and_then(|limits| match limits.max_open_files.soft_limit {
            LimitValue::Value(most) => Some(most as f64),
            LimitValue::Unlimited => None,
        });
        ProcessStats {
            cpu_seconds: stat.map(|stat| (stat.utime + stat.stime) as f64 / ticks),
            resident_bytes: stat.map(|stat| (stat.rss * procfs::page_size()) as f64),
            virtual_bytes: stat.map(|stat| stat.vsize as f64),
            start_seconds: stat
                .zip(boot)
                .map(|(stat, boot)| boot as f64 + stat.starttime as f64 / ticks),
            open_fds: process.fd_count().ok().map(|count| count as f64),
            max_fds,
        }
    }
}
