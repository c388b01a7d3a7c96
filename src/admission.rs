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
    turned_away: LogLimit,
    closed: LogLimit,
}

/// A client's place among the connections, for as long as this is kept.
#[derive(Debug)]
pub(crate) struct Place {
    peer: Peer,
    _permit: OwnedSemaphorePermit,
}

/// Who is at the other end of a connection, if the kernel knows.
#[derive(Clone, Copy, Debug)]
struct Peer {
    uid: Option<u32>,
    pid: Option<i32>,
}

impl Peer {
    fn of(cred: &io::Result<UCred>) -> Peer {
        let cred = cred.as_ref().ok();
        Peer {
            uid: cred.map(UCred::uid),
            pid: cred.and_then(UCred::pid),
        }
    }
}

impl Admission {
    /// Root, the user that the switch itself runs as, and these.
    pub(crate) fn new(allowed: &[u32]) -> Admission {
        let own = rustix::process::geteuid().as_raw();
        Admission {
            uids: [&[ROOT, own], allowed].concat(),
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            turned_away: LogLimit::default(),
            closed: LogLimit::default(),
        }
    }

    /// A place among the connections.
    ///
    /// # Errors
    /// Why a client gets none; there is a log line too.
    pub(crate) fn admit(&self, client: &UnixStream) -> Result<Place, Reason> {
        let peer = Peer::of(&client.peer_cred());
        if !peer.uid.is_some_and(|uid| self.uids.contains(&uid)) {
            self.turn_away(peer, "its user may not connect; see `allow_uids`");
            return Err(Reason::User);
        }
        let permit = Arc::clone(&self.connections).try_acquire_owned();
        let permit = permit.map_err(|_| {
            self.turn_away(peer, "there are too many connections");
            Reason::Connections
        })?;
        let _permit = permit;
        Ok(Place { peer, _permit })
    }

    fn turn_away(&self, Peer { uid, pid }: Peer, cause: &str) {
        let Some(omitted) = self.turned_away.line() else {
            return;
        };
        let limit = MAX_CONNECTIONS;
        tracing::warn!(uid, pid, limit, omitted, "a client is turned away: {cause}");
    }

    /// Logs that the connection of a client that had been let in is closed.
    pub(crate) fn cut_off(&self, place: &Place, cause: &str) {
        let Some(omitted) = self.closed.line() else {
            return;
        };
        let Peer { uid, pid } = place.peer;
        tracing::warn!(
            uid,
            pid,
            omitted,
            "a client's connection is closed: {cause}"
        );
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
