//! The state of a backend's connection. The session changes it, and calls wait for it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backend::CONNECTING;
use crate::backend::settings::Settings;
use crate::backend::state::{Link, State};

/// The connection to a backend.
#[derive(Debug)]
pub struct Connection {
    settings: Arc<Settings>,
    link: watch::Sender<Link>,
    /// Cancelled when the backend is removed from the routing table.
    removal: CancellationToken,
}

impl Connection {
    /// A connection that is not open yet.
    pub(super) fn new(settings: Arc<Settings>) -> Connection {
        let link = Link {
            ready_until: None,
            ready_since: None,
            losses: 0,
            open_since: None,
            is_slow: false,
            state: State::Connecting,
            since: SystemTime::now(),
            transitions: 0,
            failures: 0,
            closes_early: false,
        };
        Connection {
            settings,
            link: watch::Sender::new(link),
            removal: CancellationToken::new(),
        }
    }

    /// Marks the backend as removed. Its session ends once the calls in flight have ended.
    pub(crate) fn close(&self) {
        self.removal.cancel();
    }

    /// Whether the backend is removed from the routing table.
    pub(crate) fn is_closed(&self) -> bool {
        self.removal.is_cancelled()
    }

    /// Waits until the backend is removed from the routing table.
    pub(crate) async fn closed(&self) {
        self.removal.cancelled().await;
    }

    /// The current state of the connection.
    pub fn link(&self) -> Link {
        self.link.borrow().clone()
    }

    /// Whether calls can go to the backend: its pods are listed, and it answers.
    pub fn is_ready(&self) -> bool {
        matches!(self.link().state, State::Ready(_))
    }

    /// Whether a connection is open, so that a call does not wait for the next attempt to connect.
    pub(crate) fn is_open(&self) -> bool {
        self.link.borrow().open_since.is_some()
    }

    /// Whether a connection has been open for `time`, so that a call which has waited for this long has been sent.
    pub(crate) fn was_open_for(&self, time: Duration) -> bool {
        let since = self.link.borrow().open_since;
        since.is_some_and(|since| since.elapsed() >= time)
    }

    /// Records that a short read has waited too long for a connection.
    pub(super) fn note_slow(&self) {
        self.link.send_if_modified(|link| {
            link.is_slow = link.open_since.is_none();
            false
        });
    }

    /// Why a short read does not wait for a connection: an earlier one has waited too long. `None` if it may wait.
    pub(super) fn slow_cause(&self) -> Option<Arc<str>> {
        let link = self.link.borrow();
        let is_slow = link.is_slow && link.open_since.is_none();
        let cause = || link.state.cause().cloned();
        is_slow.then(|| cause().unwrap_or_else(|| CONNECTING.into()))
    }

    /// Returns a receiver that is notified of each change.
    pub(super) fn changes(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    /// Changes the state, which began at `since`. Logs each new state, but not a new cause of the same state.
    pub(super) fn set(&self, state: State, since: SystemTime) {
        let changed = self.link().state.as_ref() != state.as_ref();
        if changed {
            // The removal of the backend is already logged, so log no further state.
            if !self.is_closed() {
                log_change(&self.settings, &state);
            }
        }
        self.link.send_modify(|link| {
            if changed {
                link.since = since;
                link.transitions += 1;
            }
            let is_ready = matches!(state, State::Ready(_));
            if changed && (is_ready || matches!(link.state, State::Ready(_))) {
                link.note_ready(is_ready);
            }
            link.failures += u64::from(matches!(state, State::Down(_)));
            link.open_since = match &state {
                State::Ready(_) | State::Unresponsive(..) => {
                    link.open_since.or_else(|| Some(Instant::now()))
                }
                State::Connecting | State::Down(_) => None,
            };
            link.is_slow &= !is_ready;
            link.state = state;
        });
    }

    /// Records whether the backend closed a connection before it became ready.
    pub(crate) fn note_early_end(&self, was_early: bool) {
        self.link.send_modify(|link| link.closes_early = was_early);
    }

    /// Waits until the backend is ready or unresponsive, or until a further attempt to connect has failed. Returns
    /// `None` if the backend is removed.
    pub(super) async fn attempted(&self, failures: u64) -> Option<State> {
        let mut link = self.link.subscribe();
        let changed = link.wait_for(|now| match now.state {
            State::Ready(_) | State::Unresponsive(..) => true,
            State::Connecting | State::Down(_) => now.failures > failures,
        });
        // A removed backend gets no new connection, so its removal ends the wait.
        let changed = self.removal.run_until_cancelled(changed).await;
        Some(changed?.ok()?.state.clone())
    }

    /// Whether a session has connected at least once, so that the session replaces a connection that ends.
    pub(super) fn is_kept(&self) -> bool {
        !matches!(self.link().state, State::Connecting)
    }

    /// Waits until the session has noticed that its connection takes no further calls.
    pub(super) async fn wait_until_replaced(&self) {
        self.link
            .subscribe()
            .wait_for(|now| match &now.state {
                State::Ready(wire) | State::Unresponsive(wire, _) => !wire.is_over(),
                State::Connecting | State::Down(_) => true,
            })
            .await
            .ok();
    }

    /// Waits until the backend is ready or removed.
    pub(crate) async fn ready(&self) {
        let mut link = self.link.subscribe();
        let ready = link.wait_for(|now| matches!(now.state, State::Ready(_)));
        self.removal.run_until_cancelled(ready).await;
    }

    /// Waits until more than `failures` connections have failed or ended.
    pub(crate) async fn lost(&self, failures: u64) {
        self.link
            .subscribe()
            .wait_for(|now| now.failures > failures)
            .await
            .ok();
    }
}

fn log_change(backend: &Settings, state: &State) {
    let (name, socket) = (backend.name(), &backend.socket);
    match state {
        State::Connecting => {
            tracing::warn!(backend = %name, %socket, "backend is connecting");
        }
        State::Ready(_) => tracing::info!(backend = %name, %socket, "backend is ready"),
        State::Unresponsive(_, cause) => {
            tracing::warn!(backend = %name, %socket, cause = &**cause, "backend is unresponsive");
        }
        State::Down(cause) => {
            tracing::warn!(backend = %name, %socket, cause = &**cause, "backend is down");
        }
    }
}

#[cfg(test)]
mod tests {
    use criswitch_config::BackendConfig;
    use criswitch_config::address::Address;

    use super::*;
    use crate::ownership::ids;

    #[tokio::test]
    async fn an_attempt_to_connect_ends_with_its_failure_or_with_the_removal_of_the_backend() {
        let socket = Address::default_listen();
        let settings = Settings::of(&BackendConfig::without_row(ids::A, "a", &socket), 1);
        let connection = Connection::new(settings.into());
        connection.set(State::Down("no socket".into()), SystemTime::now());
        let failures = connection.link().failures;
        let tried = connection.attempted(failures - 1).await;
        assert!(matches!(tried, Some(State::Down(_))));
        connection.close();
        assert!(connection.attempted(failures).await.is_none());
        connection.closed().await;
        connection.ready().await;
    }
}
