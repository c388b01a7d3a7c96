//! Opens further connections to a backend that allows few HTTP/2 streams, and closes unused ones.

use std::convert::Infallible;
use std::time::Duration;

use criswitch_config::address::Address;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};

use super::pause;
use crate::backend::Backend;
use crate::backend::connect::{FileId, OpenConnection};
use crate::backend::wire::Wire;
use crate::limits::flood::Flooded;
use crate::limits::streams::MAX_FURTHER_CONNECTIONS;
use crate::switch::Switch;
use crate::telemetry::counters::Reason;

/// A further connection without a call for this long is closed, at the latest after twice this long.
const UNUSED: Duration = Duration::from_secs(30);

/// Opens a further connection while calls wait for a free stream of `wire`, at most [`MAX_FURTHER_CONNECTIONS`]. `file`
/// is the file that was at the socket's path before `wire` opened.
pub(super) async fn keep_enough(
    switch: &Switch,
    backend: &Backend,
    wire: &Wire,
    file: Option<FileId>,
) -> Infallible {
    let own = switch.live().config.listen.clone();
    let mut open = FuturesUnordered::<BoxFuture<'static, Flooded>>::new();
    loop {
        let is_any_open = !open.is_empty();
        tokio::select! {
            biased;
            Some(flooded) = open.next() => {
                wire.remove_ended();
                if flooded.is_true() {
                    switch.counts.reject(Reason::Flood);
                }
            }
            further = next(backend, wire, file, &own), if open.len() < MAX_FURTHER_CONNECTIONS => {
                let OpenConnection { wire: opened, connection, flooded, .. } = further;
                wire.add(&opened);
                open.push(connection.map(|_| flooded).boxed());
            }
            () = tokio::time::sleep(UNUSED), if is_any_open => wire.close_unused(),
        }
    }
}

/// Waits until a call waits for a free stream and the backend is ready. Then opens a connection. Retries after a pause
/// if no connection opens: meanwhile the calls wait for the streams of the open connections.
async fn next(
    backend: &Backend,
    wire: &Wire,
    file: Option<FileId>,
    own: &Address,
) -> OpenConnection {
    let mut failures = 0;
    loop {
        // Let waiting calls take the streams of the connection that has just opened.
        tokio::task::yield_now().await;
        wire.crowded().await;
        // A backend that hangs gets no further connection.
        backend.connection.ready().await;
        let opened = backend.open(Some(own)).await;
        let cause = match opened {
            // A new process would not know the state of the calls on the other connections.
            Ok(opened) if opened.file == file => return opened,
            Ok(_) => "its socket was replaced by a new file".to_owned(),
            Err(cause) => cause,
        };
        if failures == 0 {
            let (name, socket) = (backend.name(), &backend.socket);
            tracing::warn!(backend = %name, %socket, cause, "backend allows few streams, and criswitch cannot open a further connection; calls wait for a free stream");
        }
        failures += 1;
        tokio::time::sleep(pause(&backend.name(), failures)).await;
    }
}
