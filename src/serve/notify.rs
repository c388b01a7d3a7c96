//! Messages to the service manager (`sd_notify(3)`): ready, stopping, the status line, and the watchdog.
//!
//! criswitch never waits for the service manager: a manager that hangs or has ended must not delay a call.

use std::cell::Cell;
use std::convert::Infallible;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use std::{io, thread};

use criswitch::ownership::Owners;
use criswitch::switch::Switch;
use criswitch::topology::Live;
use criswitch_config::wording::counted;
use criswitch_platform::service::{self, NotifyState};

/// The limit on messages that the service manager has not read yet. Further messages are dropped.
const UNREAD: usize = 16;
/// How often criswitch checks whether the status line has changed.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// The number of watchdog messages in each period of the watchdog. With several messages, one of them may be late.
const ANSWERS: u32 = 3;
/// The time that a shutdown may take beyond `shutdown_timeout`.
const END_MARGIN: Duration = Duration::from_secs(5);

/// The longest time that the exit of criswitch waits until the last message is sent.
const LAST_MESSAGE_LIMIT: Duration = Duration::from_millis(100);

/// Sends messages to the service manager, if criswitch has one.
pub(super) struct Notify {
    messages: Option<SyncSender<String>>,
    /// Carries no message. The thread drops the sender after the last message, so a receive then ends.
    sent: Receiver<Infallible>,
    ending: Cell<bool>,
}

impl Notify {
    /// Finds the service manager in the environment, and starts the thread that sends to it.
    pub(super) fn start() -> io::Result<Notify> {
        let (sending, sent) = sync_channel(0);
        let messages = if service::is_managed() {
            let (messages, unread) = sync_channel(UNREAD);
            // A separate thread sends, because sending blocks while the service manager does not read.
            thread::Builder::new()
                .name("notify".to_owned())
                .spawn(move || {
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

    /// Sends all states in one message. Sends nothing once the shutdown has begun, because a stopping daemon must not
    /// report that it is ready.
    pub(super) fn notify(&self, states: &[NotifyState<'_>]) {
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

    /// Reports that criswitch is ready, and then each change of the status line. Also sends the watchdog messages,
    /// which show that the thread that serves calls still runs.
    pub(super) async fn keep(&self, switch: &Switch) -> Infallible {
        if self.messages.is_none() {
            return std::future::pending().await;
        }
        let watchdog = service::watchdog();
        let every = watchdog.map_or(CHECK_INTERVAL, |period| {
            CHECK_INTERVAL.min(period / ANSWERS)
        });
        let mut sent = status(&switch.live(), &switch.owners());
        self.notify(&[NotifyState::Ready, NotifyState::Status(&sent)]);
        loop {
            tokio::time::sleep(every).await;
            if watchdog.is_some() {
                self.send(&[NotifyState::Watchdog]);
            }
            let status = status(&switch.live(), &switch.owners());
            if status != sent {
                self.notify(&[NotifyState::Status(&status)]);
                sent = status;
            }
        }
    }

    /// Reports that the shutdown has begun, and how long calls in flight may take.
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
        self.sent.recv_timeout(LAST_MESSAGE_LIMIT).ok();
    }
}

/// Sends messages to the service manager. Logs only the first of several failures in a row.
fn deliver(messages: &Receiver<String>) {
    let mut failed = false;
    for message in messages {
        match service::send(&message) {
            Ok(()) => failed = false,
            Err(error) if !failed => {
                tracing::warn!(cause = %error, "cannot notify the service manager (NOTIFY_SOCKET); calls are not affected");
                failed = true;
            }
            Err(_) => {}
        }
    }
}

/// The line for `systemctl status`: the backends that are ready, and the number of pods.
fn status(live: &Live, owners: &Owners) -> String {
    let ready = live
        .backends
        .iter()
        .filter(|backend| backend.connection.is_ready());
    let (ready, all) = (ready.count(), live.backends.len());
    let pods: usize = live
        .backends
        .iter()
        .map(|backend| owners.count(backend.id).0)
        .sum();
    let (backends, pods) = (counted(all, "backend"), counted(pods, "pod"));
    format!("{ready}/{backends} ready, {pods}")
}
