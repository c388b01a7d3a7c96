//! criswitch: one CRI socket in front of several container runtimes.
//!
//! # How a call flows
//!
//! ```text
//!   kubelet, crictl
//!         | Unix socket
//!     server        who may connect, HTTP/2, shutdown
//!         | a request, nothing of it decoded
//!     server::layers             a row of the table, a place, a log line, unread replies, the deadline
//!         |
//!     dispatch      the path of a call: read it, find its target, plan it, run the plan
//!         |-- dispatch::resolve    call::route: row, key, table and owners to a target, of image calls too
//!         |                        nobody is known to own the id: all backends are asked once
//!         |-- call::plan           row and target to a plan; nothing after that looks at the row
//!         |-- forward              one backend: its reply passes, and switch::learn learns from it
//!         `-- fanout               several: ask them all, merge; fanout::fallback for one that is silent
//!         |
//!     backend       one connection each; session keeps it, backend::connect makes it
//!         |
//!     call::reply   as it came, or what fanout::merge made of several
//! ```
//!
//! All of it runs on one thread, a call within the task of its connection, and no lock is held over an await. Beside
//! that three tasks run for each backend: its session (connect, greet, probe, connect again), its events and its saved
//! state; and one for metrics, which are read off the switch when somebody asks. Work that may block, such as a look at
//! a file, runs on other threads: docs/architecture.md lists it.
//!
//! # Code map
//!
//! Each module uses those above it alone; `tests/layers.rs` keeps it that way.
//!
//! | Module | What |
//! |---|---|
//! | [`codec`] | bytes alone: protobuf fields, gRPC's frames and headers; generated types for the probe and tests |
//! | [`rpc`] | `table`: a row for each RPC; `describe`: the same in words, for `criswitch routes` and docs/rpcs.md; the CRI's field numbers by name |
//! | [`telemetry`] | log lines on their way out, lines that others can cause, counters, trace ids |
//! | [`store`] | the files that a restart goes on with; work on files beside the thread that serves calls |
//! | [`ownership`] | which backend owns a pod or container; the pod that a request means by uid or names (`pod_names`); the question to all that misses share |
//! | [`config`] | `keys::table` has every key, `text` reads files, `check` makes the fields of [`config::Config`] and lists every problem; `watch` looks whether files have changed |
//! | [`errors`] | every status that criswitch makes itself |
//! | [`limits`] | what clients and backends may take: the numbers; `budget` counts bytes, `places` connections and calls, `flood` frames |
//! | [`backend`] | a backend: dialled, called, its states; what is known of it; its cached lists (`lists`), what it is late with (`absence`), which changes are not on disk (`unsaved`) |
//! | [`topology`] | the handler table of now and its backends; another one in its place; handlers that backends report |
//! | [`call`] | a call that was read: its target, its plan, what it teaches, its log line, its reply |
//! | [`switch`] | the state that all calls share; what is learned, saved (`saved` makes and reads what `store::saved` has), reloaded and forgotten of it |
//! | `forward` | a call to one backend; criswitch's own questions to one |
//! | [`fanout`] | a call to several backends: merged lists, streams, images, status; what is served for a silent backend, and why a list fails (`fallback`) |
//! | `session` | the tasks of a backend: connect, ask what it is and list it (`sync`), probe, connect again after a pause; its events |
//! | [`dispatch`] | the path of a call |
//! | `admin` | `criswitch.admin.v1`: the state of the daemon as commands show it, reload, forget |
//! | [`server`] | the socket, who may connect to it (`admission`, by the numbers of `limits`), the layers around each call, shutdown |
//! | [`metrics`] | the page that Prometheus reads: `families` has every metric, `seen` what they are read from |
//!
//! docs/architecture.md has the steps to add an RPC, a configuration key, a metric, a fact in `criswitch status` or a
//! fact that survives a restart.
//!
//! # What always holds
//!
//! Behind each sentence are tests that fail without it; `tests/layers.rs` checks that they exist.
//!
//! 1. The reply of one backend passes byte for byte, but for the names of handlers, the label keys of metrics, and items
//!    that the backend repeats or another backend owns.
//!    Tests: `a_reply_comes_back_byte_for_byte_whatever_is_in_it`, `an_id_is_in_every_list_and_stream_once_and_as_its_owner_lists_it`
//! 2. A list of pods, containers or images has the items of every backend that takes part, cached ones for a backend that
//!    is silent. Otherwise it is an error.
//!    Tests: `a_list_is_an_error_while_a_backend_is_down_and_whole_when_it_is_back`, `a_list_that_is_missed_is_the_last_known_one_and_then_at_once`
//! 3. A call that creates is sent once, to one backend. A call for an id goes to the owner of the id or to nobody.
//!    Tests: `a_pod_is_never_asked_for_twice_when_its_backend_dies_meanwhile`, `a_pod_and_its_containers_go_to_the_backend_of_its_handler`
//! 4. An unknown handler is rejected. `NotFound` needs the denial of every backend.
//!    Tests: `an_unknown_handler_is_refused_by_name_and_creates_nothing`, `nothing_is_said_to_be_gone_while_a_backend_is_down`
//! 5. A call for an id with a known owner waits for no other backend. A call waits for no other client.
//!    Tests: `calls_of_other_backends_do_not_wait_for_one_that_hangs`, `many_unread_streams_hold_up_no_other_call_to_their_backend`
//! 6. Every buffer, queue, wait and fan-out has a limit with a name, and the limits of memory add up to those of the unit.
//!    Tests: `the_units_limits_of_memory_are_what_all_limits_add_up_to_and_a_quarter_more`
//! 7. criswitch spawns no task for a call. When its client goes, the call ends at the backend too.
//!    Tests: `the_path_of_a_call_spawns_no_task`, `a_client_that_gives_up_takes_the_call_at_the_backend_with_it`
//! 8. Only `backend::connect` connects, and only `errors` words a status. Only `rpc`, `call::route`, `call::lesson` and
//!    `call::plan` match on the columns of a row. `codec`, `rpc`, `ownership`, these three and `fanout::merge` do no I/O.
//!    Tests: `one_module_connects_and_one_words_statuses`, `nothing_below_the_plan_of_a_call_looks_at_a_row`, `what_decides_does_no_io`
//! 9. There is no unsafe code. A log line has the names and ids of what a call carries, and texts of errors without
//!    credentials.
//!    Tests: `unsafe_code_is_forbidden`, `secrets_of_calls_are_in_no_log_and_in_no_status`

use std::collections::HashSet;
use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::JoinSet;

mod admin;
pub mod backend;
pub mod call;
pub mod codec;
pub mod config;
pub mod dispatch;
pub mod errors;
pub mod fanout;
mod forward;
pub mod limits;
pub mod metrics;
pub mod ownership;
pub mod rpc;
pub mod server;
mod session;
pub mod store;
pub mod switch;
pub mod telemetry;
pub mod topology;

use backend::Backend;
use switch::Switch;

/// The wait after a panic.
const PANIC_PAUSE: Duration = Duration::from_secs(1);

/// Serves `switch` on `listener` until `shutdown`, and for at most `shutdown_timeout` longer what is in flight then; meanwhile its
/// metrics, on what was `passed` for them or where its configuration says.
pub async fn serve(
    switch: Arc<Switch>,
    listener: server::Listener,
    passed: Option<server::PassedSocket>,
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
                sessions.spawn(again(&switch, backend, session::events::follow));
                sessions.spawn(again(&switch, backend, switch::saved::keep));
            }
        }
        // Those of a backend that is gone end by themselves.
        connected.retain(|id| live.backend(*id).is_ok());
        drop(live);
        tokio::select! {
            changed = tables.changed() => if changed.is_err() { std::future::pending().await },
            Some(_) = sessions.join_next() => {}
            () = switch::reload::auto_register_without_absent(&switch) => {}
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
