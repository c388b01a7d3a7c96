//! criswitch: one CRI socket in front of several container runtimes.
//!
//! # How a call flows
//!
//! ```text
//!   kubelet, crictl
//!         | Unix socket
//!     listener      who may connect (admission), HTTP/2, drain
//!         | a request, nothing of it decoded
//!     switch        reads one message (memory counts it), then the path of the call
//!         |-- rpc       the table: a row for each RPC
//!         |-- route     row, key, table and owners to a target
//!         |-- question  nobody is known to own the id: all backends are asked once (listing)
//!         |
//!         |-- one backend: its reply passes, learned from on the way where the row says so (learn)
//!         `-- several: fanout, streams, images or node asks them all; a silent one has a stand_in
//!         |
//!     backend       one connection each, made by dialer and kept by a session
//!         |
//!     reply         as it came, or what merge made of several
//! ```
//!
//! All of it runs on one thread, a call within the task of its connection, and no lock is held over an await. Beside
//! that two tasks run for each backend: its session (connect, greet, probe, connect again) and its events.
//!
//! # Code map
//!
//! | Modules | What |
//! |---|---|
//! | [`config`], [`address`] | text to a checked table, every problem at once |
//! | [`watch`] | tells when the configuration's files have changed |
//! | [`listener`], [`admission`], [`memory`] | the socket, who may connect to it, how many bytes are held |
//! | [`switch`], `call`, [`rpc`], [`route`] | the path of a call, the call itself, the table, where it goes |
//! | [`owners`], `learn`, `question`, `listing` | which backend owns what: learned on the way, or asked for |
//! | [`dialer`], [`backend`], [`link`], `session` | a backend: dialled, called; its connection's states and life |
//! | [`known`], [`lists`] | what a backend said last |
//! | `fanout`, `streams`, `events`, `images`, `node`, [`merge`] | several backends at once, and several replies as one |
//! | `stand_in`, [`filter`] | what a merged reply has of a backend that does not answer |
//! | [`answer`], [`reply`], [`status`] | a backend's reply that was read, replies to clients, every status of our own |
//! | [`wire`], [`cri`] | single fields of raw protobuf and gRPC's frames; generated types, for the probe and tests |
//! | [`telemetry`] | one log line a call |
//!
//! # What always holds
//!
//! 1. One backend's reply passes as it came; the only edit is a handler's name, back to the table's.
//! 2. A list of pods, containers or images is whole, last-known whole, or an error.
//! 3. A call that creates is sent once, to one backend; a call for an id goes to its owner or to nobody.
//! 4. What is not found was denied by every backend.
//! 5. A slow, dead or hostile backend costs the calls to others nothing, nor does a slow client other clients.
//! 6. Every buffer, queue, wait and fan-out has a limit with a name.
//! 7. Nothing is spawned for a call, so it ends at the backend when its client goes.
//! 8. Only `dialer` connects, only `status` words statuses, only `rpc` names RPCs; `wire`, `route`, `owners`, `merge`
//!    and `filter` do no I/O.
//! 9. No unsafe code, and no log has what calls carry.

use std::sync::Arc;

use tokio::task::JoinSet;

pub mod address;
pub mod admission;
pub mod answer;
pub mod backend;
mod call;
pub mod config;
pub mod cri;
pub mod dialer;
mod events;
mod fanout;
pub mod filter;
mod images;
pub mod known;
mod learn;
pub mod link;
pub mod listener;
mod listing;
pub mod lists;
pub mod memory;
pub mod merge;
pub mod node;
pub mod owners;
mod question;
pub mod reply;
pub mod route;
pub mod rpc;
mod session;
mod stand_in;
pub mod status;
mod streams;
pub mod switch;
pub mod telemetry;
pub mod watch;
pub mod wire;

/// Serves `config`'s table on `listener` until `shutdown`, and for at most `drain` longer what is in flight then.
pub async fn serve(
    config: config::Config,
    listener: listener::Listener,
    shutdown: impl Future<Output = ()>,
) {
    let drain = config.drain;
    let switch = Arc::new(switch::Switch::new(config, &dialer::Dialer::Socket));
    // Ends with this function, and the connections with it.
    let _connected = keep_connected(&switch);
    listener.serve(switch, shutdown, drain).await;
}

/// Keeps `switch` connected to its backends as long as the tasks live.
pub fn keep_connected(switch: &Arc<switch::Switch>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for backend in &switch.backends {
        tasks.spawn(session::keep(Arc::clone(switch), Arc::clone(backend)));
        tasks.spawn(events::follow(Arc::clone(switch), Arc::clone(backend)));
    }
    tasks
}
