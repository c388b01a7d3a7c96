//! The identity and the settings of a backend: its id, socket and name, the settings that a reload may change, and the
//! statuses that name the backend.

use std::sync::Arc;
use std::time::Duration;

use criswitch_config::address::Address;
use criswitch_config::{BackendConfig, BackendId};
use criswitch_cri::codec::protobuf::Malformed;
use criswitch_cri::rpc::Row;
use criswitch_platform::users::UserId;
use parking_lot::Mutex;
use tonic::Status;

use crate::errors;
use crate::limits::budget::{Reservation, Unread};

/// The row of a backend in the configuration.
#[derive(Debug)]
pub struct Settings {
    /// Unique for the life of the process; never reused.
    pub id: BackendId,
    /// The address of the socket.
    pub socket: Address,
    /// The largest reply that criswitch reads, in bytes.
    pub max_message: usize,
    current: Mutex<Current>,
}

/// The settings that a reload may change.
#[derive(Debug)]
struct Current {
    name: Arc<str>,
    config: BackendConfig,
}

impl Current {
    fn of(config: &BackendConfig) -> Current {
        Current {
            name: config.name.as_str().into(),
            config: config.clone(),
        }
    }
}

impl Settings {
    pub(super) fn of(config: &BackendConfig, max_message: usize) -> Settings {
        Settings {
            id: config.id,
            socket: config.socket.clone(),
            max_message,
            current: Mutex::new(Current::of(config)),
        }
    }

    /// Applies a changed configuration. Returns whether another user may serve the socket now.
    pub(super) fn change(&self, config: &BackendConfig) -> bool {
        let last = std::mem::replace(&mut *self.current.lock(), Current::of(config));
        last.config.user != config.user
    }

    /// Sets a new name for a backend that left the configuration, because another backend now has its old name.
    pub(crate) fn rename(&self, name: &str) {
        self.current.lock().name = name.into();
    }

    /// The backend's name in the configuration, unless another backend has that name now.
    pub fn name(&self) -> Arc<str> {
        Arc::clone(&self.current.lock().name)
    }

    /// How long a merged call waits for the backend if cached items can be served.
    pub fn list_timeout(&self) -> Duration {
        self.current.lock().config.list_timeout
    }

    /// How long a merged call for stats waits for the backend.
    pub fn stats_timeout(&self) -> Duration {
        self.current.lock().config.stats_timeout
    }

    /// The user that may serve the socket, by the configuration.
    pub(crate) fn user(&self) -> Option<UserId> {
        self.current.lock().config.user
    }

    /// The largest age of cached lists that are served while the backend does not answer.
    pub(crate) fn stale_lists(&self) -> Duration {
        self.current.lock().config.stale_lists
    }

    /// How long a merged call of `row` waits for the backend.
    pub(crate) fn timeout(&self, row: &Row) -> Duration {
        if row.is_stats() {
            self.stats_timeout()
        } else {
            self.list_timeout()
        }
    }

    /// An `Unavailable` status that names this backend and its socket.
    pub fn unavailable(&self, cause: &str) -> Status {
        errors::unavailable(&self.name(), &self.socket, cause)
    }

    /// The status for a call that the backend broke off. `status` is the status of [`errors::of_http2`].
    pub(crate) fn broken_off(&self, status: &Status) -> Status {
        errors::broken_off(&self.name(), &self.socket, status)
    }

    /// An `Internal` status for a reply in which criswitch cannot decode a field that it reads.
    pub fn malformed(&self, fault: &Malformed) -> Status {
        self.bad_reply(&format!("its reply is malformed: {fault}"))
    }

    /// An `Internal` status that names this backend and its socket.
    pub fn bad_reply(&self, cause: &str) -> Status {
        errors::bad_reply(&self.name(), &self.socket, cause)
    }

    /// The status of a call of `row` that the backend did not answer in time.
    pub(crate) fn timed_out(&self, row: &Row) -> Status {
        let limit = self.timeout(row);
        self.unavailable(&format!("it did not answer within {limit:?}"))
    }

    /// The status for a reply that could not be read.
    pub(crate) fn unread(&self, unread: &Unread) -> Status {
        match unread {
            Unread::TooLarge => {
                errors::backend_reply_too_large(&self.name(), &self.socket, self.max_message)
            }
            Unread::NoMemory(limit) => {
                errors::no_memory_for_reply(&self.name(), &self.socket, *limit)
            }
            Unread::Broken(status) => self.broken_off(status),
        }
    }

    /// `held`, which now has `bytes`.
    ///
    /// # Errors
    /// `ResourceExhausted` if the memory of `held` is full.
    pub(crate) fn resized(
        &self,
        mut held: Reservation,
        bytes: usize,
    ) -> Result<Reservation, Status> {
        held.keep(bytes);
        let more = bytes - held.bytes();
        held.grow(more).map_err(|unread| self.unread(&unread))?;
        Ok(held)
    }

    /// The cause in a status of this backend: the status message without the backend's name at the start.
    pub fn cause(&self, status: &Status) -> String {
        let named = self.unavailable("");
        let message = status.message();
        message
            .strip_prefix(named.message())
            .unwrap_or(message)
            .to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ownership::ids;

    #[test]
    fn a_status_has_the_current_name_of_the_backend_and_cause_removes_it() {
        let socket = Address::default_listen();
        let row = |name| BackendConfig::without_row(ids::A, name, &socket);
        let settings = Settings::of(&row("a"), 1);
        assert!(!settings.change(&row("b")), "the user is the same");
        let status = settings.unavailable("it hangs");
        let place = format!("backend \"b\" ({}): it hangs", settings.socket);
        assert_eq!(status.message(), place);
        settings.rename("b-old");
        assert_eq!(&*settings.name(), "b-old");
        assert_eq!(
            settings.cause(&settings.bad_reply("it is empty")),
            "it is empty"
        );
        assert_eq!(
            settings.timeout(&criswitch_cri::rpc::LIST_PODS),
            settings.list_timeout()
        );
    }
}
