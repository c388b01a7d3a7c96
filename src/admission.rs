//! Which clients may connect, and how many: told by the kernel, before a byte that they sent is read.

use std::io;
use std::sync::Arc;

use tokio::net::UnixStream;
use tokio::net::unix::UCred;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::counts::Reason;
use crate::log_limit::LogLimit;

/// Connections at once; the kubelet has two, crictl two for each command.
pub const MAX_CONNECTIONS: usize = 256;
const ROOT: u32 = 0;

/// The rule.
#[derive(Debug)]
pub(crate) struct Admission {
    uids: Vec<u32>,
    connections: Arc<Semaphore>,
    log: LogLimit,
}

impl Admission {
    /// Root, the user that the switch itself runs as, and these.
    pub(crate) fn new(allowed: &[u32]) -> Admission {
        let own = rustix::process::geteuid().as_raw();
        Admission {
            uids: [&[ROOT, own], allowed].concat(),
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            log: LogLimit::default(),
        }
    }

    /// A place among the connections.
    ///
    /// # Errors
    /// Why a client gets none; there is a log line too.
    pub(crate) fn admit(&self, client: &UnixStream) -> Result<OwnedSemaphorePermit, Reason> {
        let cred = client.peer_cred();
        if !self.may(&cred) {
            self.turn_away(&cred, "its user may not connect; see `allow_uids`");
            return Err(Reason::User);
        }
        let place = Arc::clone(&self.connections).try_acquire_owned();
        place.map_err(|_| {
            self.turn_away(&cred, "there are too many connections");
            Reason::Connections
        })
    }

    fn may(&self, cred: &io::Result<UCred>) -> bool {
        cred.as_ref()
            .is_ok_and(|cred| self.uids.contains(&cred.uid()))
    }

    fn turn_away(&self, cred: &io::Result<UCred>, cause: &str) {
        // Clients must not be able to fill the log.
        let Some(omitted) = self.log.line() else {
            return;
        };
        let cred = cred.as_ref().ok();
        let (uid, pid) = (cred.map(UCred::uid), cred.and_then(UCred::pid));
        let limit = MAX_CONNECTIONS;
        tracing::warn!(uid, pid, limit, omitted, "a client is turned away: {cause}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_the_switchs_own_user_are_always_allowed() {
        let admission = Admission::new(&[1000]);
        let own = rustix::process::geteuid().as_raw();
        for uid in [0, own, 1000] {
            assert!(admission.uids.contains(&uid), "{uid}");
        }
        assert!(!admission.uids.contains(&1001));
    }

    #[tokio::test]
    async fn no_more_clients_than_the_limit_get_a_place_until_one_leaves() {
        let admission = Admission::new(&[]);
        let (client, _other) = UnixStream::pair().unwrap();
        let mut places: Vec<_> = (0..MAX_CONNECTIONS)
            .map(|_| admission.admit(&client).unwrap())
            .collect();
        assert_eq!(admission.admit(&client).unwrap_err(), Reason::Connections);
        places.pop();
        assert!(admission.admit(&client).is_ok());
    }
}
