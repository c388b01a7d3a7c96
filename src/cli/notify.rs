//! What the service manager is told (`sd_notify(3)`): ready, stopping, how things are, and that calls are served.
//!
//! Never waits for it: one that hangs, or that is gone, must not hold up a call.

use std::cell::Cell;
use std::convert::Infallible;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use std::{env, io, thread};

use criswitch::backend::state::State;
use criswitch::config::wording::counted;
use criswitch::switch::Switch;
use sd_notify::NotifyState;

/// Messages that wait for a manager that does not read them; later ones are left out.
const UNREAD: usize = 16;
/// How often it is looked whether the line of status has changed.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Answers within one period of the watchdog: one may be late.
const ANSWERS: u32 = 3;
/// What the end may take beside `shutdown_timeout`.
const END_MARGIN: Duration = Duration::from_secs(5);

/// How long the end waits for the last message to be sent.
const LAST_WORD: Duration = Duration::from_millis(100);

/// The way to the service manager, if there is one.
pub(super) struct Notify {
    messages: Option<SyncSender<String>>,
    /// Closed when all messages have been sent, after there can be no more.
    sent: Receiver<Infallible>,
    ending: Cell<bool>,
}

impl Notify {
    /// Finds the manager in the environment.
    pub(super) fn start() -> io::Result<Notify> {
        let (sending, sent) = sync_channel(0);
        let messages = if env::var_os("NOTIFY_SOCKET").is_some() {
            let (messages, unread) = sync_channel(UNREAD);
            // Sending blocks when the manager does not read.
            let thread = thread::Builder::new().name("notify".to_owned());
            thread.spawn(move || {
                deliver(&unread);
                drop(sending);
            })?;
            Some(messages)
        } else {
            None
        };
        Ok(Notify {
            messages,
            sent,
            ending: Cell::new(false),
        })
    }

    /// Tells all of these in one message; none once the end has begun, since one that stops is never ready again.
    pub(super) fn tell(&self, states: &[NotifyState<'_>]) {
        if !self.ending.get() {
            self.send(states);
        }
    }

    fn send(&self, states: &[NotifyState<'_>]) {
        if let Some(messages) = &self.messages {
            let lines: Vec<_> = states.iter().map(ToString::to_string).collect();
            messages.try_send(lines.join("\n")).ok();
        }
    }

    /// Tells that `switch` is served, then how it is and that the thread that serves it does not hang.
    pub(super) async fn keep(&self, switch: &Switch) -> Infallible {
        if self.messages.is_none() {
            return std::future::pending().await;
        }
        let watchdog = sd_notify::watchdog_enabled().filter(|period| !period.is_zero());
        let every = watchdog.map_or(LOOK_EVERY, |period| LOOK_EVERY.min(period / ANSWERS));
        let mut told = status(switch);
        self.tell(&[NotifyState::Ready, NotifyState::Status(&told)]);
        loop {
            tokio::time::sleep(every).await;
            if watchdog.is_some() {
                self.send(&[NotifyState::Watchdog]);
            }
            let status = status(switch);
            if status != told {
                self.tell(&[NotifyState::Status(&status)]);
                told = status;
            }
        }
    }

    /// Tells that calls only finish from now on, and how long that may take.
    pub(super) fn stopping(&self, timeout: Duration) {
        self.ending.set(true);
        let most = (timeout + END_MARGIN).as_micros();
        self.send(&[
            NotifyState::Stopping,
            NotifyState::Status("waiting for calls in flight"),
            NotifyState::ExtendTimeoutUsec(most.try_into().unwrap_or(u32::MAX)),
        ]);
    }
}

impl Drop for Notify {
    fn drop(&mut self) {
        self.messages = None;
        self.sent.recv_timeout(LAST_WORD).ok();
    }
}

/// Sends what is told; says once that it cannot.
fn deliver(messages: &Receiver<String>) {
    let mut failed = false;
    for message in messages {
        match sd_notify::notify(&[NotifyState::Custom(&message)]) {
            Ok(()) => failed = false,
            Err(error) if !failed => {
                tracing::warn!(cause = %error, "cannot notify the service manager (NOTIFY_SOCKET); calls are not affected");
                failed = true;
            }
            Err(_) => {}
        }
    }
}

/// How things are, in a line for `systemctl status`.
fn status(switch: &Switch) -> String {
    let live = switch.live();
    let ready = live.backends.iter();
    let ready = ready.filter(|backend| matches!(backend.link().state, State::Ready(_)));
    let (ready, all) = (ready.count(), live.backends.len());
    let owners = switch.owners();
    let pods = live.backends.iter();
    let pods: usize = pods.map(|backend| owners.count(backend.id).0).sum();
    let (backends, pods) = (counted(all, "backend"), counted(pods, "pod"));
    format!("{ready}/{backends} ready, {pods}")
}
