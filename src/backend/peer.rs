//! The user whose process serves a backend's socket, as the kernel reports it.

use criswitch_config::wording;
use criswitch_platform::Server;
use criswitch_platform::users::{self, UserId};

use super::Backend;

impl Backend {
    /// The user whose process listened at the socket when criswitch last connected. `None` if that user is root,
    /// criswitch's own user or the configured user, or if the user is unknown.
    pub fn unexpected_user(&self) -> Option<UserId> {
        self.record
            .learn(|known| known.server)?
            .unexpected_user(self.user())
    }

    /// Logs the process that serves the socket, once for each process.
    pub(super) fn meet(&self, server: Option<Server>) {
        let last = self
            .record
            .learn(|known| std::mem::replace(&mut known.server, server));
        if let Some(server) = server
            && last != Some(server)
        {
            let (backend, socket) = (self.name(), &self.socket);
            let (uid, pid) = (server.user.map(users::logged), server.pid);
            tracing::info!(%backend, %socket, uid, pid, "connected to the backend's process");
            self.warn_of_unexpected_user();
        }
    }

    /// Logs a warning if an unexpected user serves the socket.
    pub(super) fn warn_of_unexpected_user(&self) {
        if let Some(user) = self.unexpected_user() {
            let (backend, socket) = (self.name(), &self.socket);
            let (what, uid) = (wording::unexpected_user(user), users::logged(user));
            tracing::warn!(%backend, %socket, uid, "{what}");
        }
    }
}
