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
//! that two tasks run for each backend: its session (connect, greet, probe, connect again) and its events; and one for
//! metrics, which are read off the switch when somebody asks. Work that may block, such as a look at a file, runs on
//! other threads: docs/architecture.md lists it.
//!
//! # Code map
//!
//! | Modules | What |
//! |---|---|
//! | [`config`], [`address`] | text to a checked table, every problem at once |
//! | [`watch`] | tells when the configuration's files have changed |
//! | [`listener`], [`admission`], [`memory`] | the socket, who may connect to it, how many bytes are held |
//! | `ending` | what ends with the switch, and how |
//! | [`switch`], `call`, [`rpc`], [`route`] | the path of a call, the call itself, the table, where it goes |
//! | [`live`], [`reload`], [`changes`], [`adopt`] | the handler table of now and its backends; another one in its place |
//! | [`forget`] | a backend that is away for good, forgotten on request |
//! | [`state`], [`store`] | what a restart goes on with: when it is saved and restored; its files |
//! | [`owners`], `learn`, `question`, `listing` | which backend owns what: learned on the way, or asked for |
//! | `handlers` | the names that clients see for pods' handlers |
//! | [`dialer`], [`backend`], [`link`], `session` | a backend: dialled, called; its connection's states and life |
//! | `disks` | the file systems of backends' images |
//! | [`flood`] | frames that carry nothing, counted on connections of both sides |
//! | `file_work` | work on files beside the thread that serves calls |
//! | [`known`], [`lists`] | what a backend said last |
//! | `fanout`, `streams`, `events`, `images`, `node`, [`merge`] | several backends at once, and several replies as one |
//! | [`labels`] | metrics under the label keys that clients were given |
//! | `listed` | how a pod or container that was just created would be listed |
//! | `stand_in`, [`filter`] | what a merged reply has of a backend that does not answer |
//! | [`answer`], [`reply`], [`status`] | a backend's reply that was read, replies to clients, every status of our own |
//! | [`wire`], [`cri`] | single fields of raw protobuf and gRPC's frames; generated types, for the probe and tests |
//! | [`log_queue`], `log_limit` | log lines on their way out, written by a thread of its own; lines that others can cause |
//! | [`telemetry`], [`counts`], [`metrics`] | what is reported of a call, and counted; the page that Prometheus reads |
//! | [`wording`] | words that several places say to people |
//!
//! # What always holds
//!
//! 1. One backend's reply passes as it came; the only edit is the name of a pod's handler.
//! 2. A list of pods, containers or images is whole, last-known whole, or an error.
//! 3. A call that creates is sent once, to one backend; a call for an id goes to its owner or to nobody.
//! 4. What is not found was denied by every backend.
//! 5. A slow, dead or hostile backend costs the calls to others nothing, nor does a slow client other clients.
//! 6. Every buffer, queue, wait and fan-out has a limit with a name.
//! 7. Nothing is spawned for a call, so it ends at the backend when its client goes.
//! 8. Only `dialer` connects, only `status` words statuses, only `rpc` names RPCs; `wire`, `route`, `owners`, `merge`
//!    and `filter` do no I/O.
//! 9. No unsafe code, and no log has what calls carry: lines have names and ids alone, and the texts of errors without
//!    credentials.

use std::collections::HashSet;
use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::JoinSet;

pub mod address;
pub mod admission;
pub mod adopt;
pub mod answer;
pub mod backend;
mod call;
pub mod changes;
pub mod config;
pub mod counts;
pub mod cri;
pub mod dialer;
mod disks;
mod ending;
mod events;
mod fanout;
mod file_work;
pub mod filter;
pub mod flood;
pub mod forget;
mod handlers;
mod images;
pub mod known;
pub mod labels;
mod learn;
pub mod link;
mod listed;
pub mod listener;
mod listing;
pub mod lists;
pub mod live;
mod log_limit;
pub mod log_queue;
pub mod memory;
pub mod merge;
pub mod metrics;
pub mod node;
pub mod owners;
mod question;
pub mod reload;
pub mod reply;
pub mod route;
pub mod rpc;
mod session;
mod stand_in;
pub mod state;
pub mod status;
pub mod store;
mod streams;
pub mod switch;
pub mod telemetry;
pub mod watch;
pub mod wire;
pub mod wording;

use backend::Backend;
use switch::Switch;

/// The wait after a panic.
const PANIC_PAUSE: Duration = Duration::from_secs(1);

/// Serves `switch` on `listener` until `shutdown`, and for at most `drain` longer what is in flight then; meanwhile its
/// metrics, on what was `passed` for them or where its configuration says.
pub async fn serve(
    switch: Arc<Switch>,
    listener: listener::Listener,
    passed: Option<metrics::PassedMetrics>,
    shutdown: impl Future<Output = ()>,
) {
    // Both end with this function, and the connections with them.
    let _connected = keep_connected(&switch);
    let _metrics = metrics::keep_serving(&switch, passed);
    listener.serve(switch, shutdown).await;
}

/// Keeps `switch` connected to its backends, those that reloads add too, as long as the task lives.
pub fn keep_connected(switch: &Arc<Switch>) -> JoinSet<Infallible> {
    let mut task = JoinSet::new();
    task.spawn(connect_all(Arc::clone(switch)));
    task
}

async fn connect_all(switch: Arc<Switch>) -> Infallible {
    let mut tables = switch.tables();
    let mut sessions = JoinSet::new();
    let mut connected = HashSet::new();
    loop {
        let live = switch.live();
        for backend in &live.backends {
            if connected.insert(backend.id) {
                sessions.spawn(again(&switch, backend, session::keep));
                sessions.spawn(again(&switch, backend, events::follow));
                sessions.spawn(again(&switch, backend, state::keep));
            }
        }
        // Those of a backend that is gone end by themselves.
        connected.retain(|id| live.backend(*id).is_ok());
        drop(live);
        tokio::select! {
            changed = tables.changed() => if changed.is_err() { std::future::pending().await },
            Some(_) = sessions.join_next() => {}
            () = switch.adopt_without_absent() => {}
        }
    }
}

/// Runs a backend's task to its end, and restarts it after a panic: what a backend sends must not cost its pods for good.
fn again<F: Future<Output = ()> + Send + 'static>(
    switch: &Arc<Switch>,
    backend: &Arc<Backend>,
    task: fn(Arc<Switch>, Arc<Backend>) -> F,
) -> impl Future<Output = ()> + Send + 'static {
    let (switch, backend) = (Arc::clone(switch), Arc::clone(backend));
    async move {
        let run = || AssertUnwindSafe(task(Arc::clone(&switch), Arc::clone(&backend)));
        while run().catch_unwind().await.is_err() {
            tracing::error!(backend = %backend.name(), "the task that serves a backend panicked, and criswitch restarts it; this is a bug, please report it");
            tokio::time::sleep(PANIC_PAUSE).await;
        }
    }
}
