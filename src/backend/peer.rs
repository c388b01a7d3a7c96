//! The user whose process serves a backend's socket, as the kernel reports it (`SO_PEERCRED`).

use super::Backend;
use crate::config::wording;
use crate::platform::{Peer, users};

impl Backend {
    /// The user whose process listened at the socket when criswitch last connected. `None` if that user is root,
    /// criswitch's own user or the configured user, or if the user is unknown.
    pub fn unexpected_user(&self) -> Option<u32> {
        let uid = self.known.lock().peer?.uid?;
        (!users::is_own(uid) && self.user() != Some(uid)).then_some(uid)
    }

    /// Logs the process that serves the socket, once for each process.
    pub(super) fn meet(&self, peer: Option<Peer>) {
        let last = std::mem::replace(&mut self.known.lock().peer, peer);
        if let Some(peer) = peer
            && last != Some(peer)
        {
            let (backend, socket) = (self.name(), &self.socket);
            let Peer { uid, pid } = peer;
            tracing::info!(%backend, %socket, uid, pid, "a process serves the backend's socket");
            self.warn_of_unexpected_user();
        }
    }

    /// Logs a warning if an unexpected user serves the socket.
    pub(super) fn warn_of_unexpected_user(&self) {
        if let Some(uid) = self.unexpected_user() {
            let (backend, socket) = (self.name(), &self.socket);
            let what = wording::unexpected_user(uid);
            tracing::warn!(%backend, %socket, uid, "{what}");
        }
    }
}
