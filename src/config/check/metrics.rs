//! Whether metrics have a socket of their own: serving there replaces what has that path.

use super::{Checker, KnownBackend, with_socket};
use crate::config::address::Address;
use crate::config::metrics::MetricsListen;

impl Checker<'_> {
    pub(super) fn metrics_apart(
        &mut self,
        metrics: Option<&MetricsListen>,
        listen: Option<&Address>,
        known: &[KnownBackend],
    ) {
        let text = self.written.text("metrics.listen");
        let (Some(MetricsListen::Socket(socket)), Some(text)) = (metrics, text) else {
            return;
        };
        let what = if listen.is_some_and(|listen| listen.identity().is(&socket.identity())) {
            format!("{socket} is the socket for the CRI (\"listen\")")
        } else if let Some(backend) = with_socket(known, Some(socket)) {
            let (name, place) = (&backend.name.value, &backend.name.place);
            format!("{socket} is the socket of the backend {name:?} at {place}")
        } else {
            return;
        };
        self.problems
            .tell(&text.place, what, "\"/run/criswitch/metrics.sock\"");
    }
}
