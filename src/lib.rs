//! criswitch: one CRI socket in front of several container runtimes.
//!
//! # How a call flows
//!
//! ```text
//!   kubelet, crictl
//!         | Unix socket, or named pipe on Windows
//!     server        which clients may connect, HTTP/2, shutdown
//!         | a request that is not decoded yet
//!     server::layers             RPC table row, limit on calls, log line, unread replies, deadline
//!         |
//!     dispatch      the path of a call: decode the request, find the target, make the plan, run the plan; wait until
//!         |         all that the reply shows is saved
//!         |-- dispatch::resolve    call::route: makes a target from row, key, routing table and owners
//!         |                        asks all backends once for an id without a known owner
//!         |-- call::plan           makes a plan from row and target; later steps do not match on `goes` and `then`
//!         |-- dispatch::forward    one backend: forwards the reply unchanged
//!         `-- dispatch::fanout     several backends: calls all, merges; fallback for a part that cannot be used
//!         |       switch::learn changes the owners by a reply; switch::act then saves, retires, publishes and logs
//!         |
//!     backend       one connection to each backend, and more if it allows few streams; backend::connect opens them,
//!         |         session keeps them open
//!         |
//!     call::reply   the backend's reply unchanged, or the merged reply of dispatch::fanout::merge
//! ```
//!
//! All of this runs on one thread. Each call runs in a task of its own, which ends when the client cancels the call or
//! disconnects. No lock is held over an await. Three more tasks run for each backend: its session (connect, identify,
//! probe, reconnect), its events and its saved state. Each open connection to a backend has a task that drives HTTP/2,
//! and so has each connection of a client. One task starts the tasks of new backends, and one reports a silent default
//! backend. One task serves metrics, and reads them from the shared state at each scrape. One task writes the labels of
//! the node, and one makes the states of the daemon for all clients that watch it. Work that may block runs on other
//! threads, apart from the reading of the configuration at the start: docs/architecture.md lists it.
//!
//! # Code map
//!
//! Each module uses only the modules that this list names before it, and the crates `criswitch-config`,
//! `criswitch-cri`, `criswitch-platform` and `criswitch-version`; `tests/layers.rs` checks this.
//!
//! - [`telemetry`]: the log's queue, limits on repeated log lines, counters, trace ids
//! - [`store`]: the state files for the next start; file work off the thread that serves calls
//! - [`ownership`]: which backend owns a pod or container; pods, `removals` and `creations`; the pod of a request by
//!   uid or names (`pod_names`); one query to all backends for several unknown ids (`lookup`)
//! - [`errors`]: every status that criswitch makes itself
//! - [`limits`]: the limits on clients and backends: the numbers; `budget` counts bytes, `places` connections and
//!   calls, `streams` calls on the connections to a backend, `flood` frames; `incoming` is the body of a request or
//!   response as it arrives over HTTP/2
//! - [`gate`]: reads the bytes of a backend that go to every client, and makes them `Readable`
//! - [`backend`]: a backend: its `settings`, its `connection`, what it reported (`known`, with cached `lists`) and when
//!   it was late (`absence`), its unsaved changes (`unsaved`); calls to it
//! - [`topology`]: the current routing table and its backends; the next table after a reload; automatically registered
//!   handlers
//! - [`call`]: a decoded call: its target, its plan, the facts to learn from it, its log line, its reply, and whether
//!   its client may be the cause of a failure (`fault`)
//! - [`switch`]: the state that all calls share, and how it is learned (`learn` reads a reply, `usable` decides which
//!   replies may be cached and merged, `act` acts on what was learned), saved (`saved` makes and reads the contents of
//!   `store::saved`), reloaded and forgotten
//! - [`dispatch`]: the path of a call; `forward` sends it to one backend, and a kept status may answer a short read;
//!   `fanout` sends it to several and merges lists, images and status, with cached lists for a backend whose answer
//!   cannot be used; `own` has the calls that criswitch makes itself
//! - `session`: the tasks of a backend: connect, identify and list it (`sync`), probe, reconnect after a pause, open
//!   `further` connections; its events
//! - [`operator`]: for the people who run the node: `admin` is `criswitch.admin.v1` (the state of the daemon for
//!   commands; reload, forget), `health` the verdict on the node and gRPC's health service, `metrics` the page for
//!   Prometheus, `node_labels` the labels for the scheduler and the file from which node-feature-discovery reads them
//! - [`server`]: the socket, the clients that may connect (`admission`, within `limits`), their HTTP/2 connections
//!   (`connection`), the layers around each call, shutdown
//!
//! The program criswitchd starts the daemon in `serve`. The commands are in a different program, `criswitch` of the
//! crate `criswitch-ctl`, which does not use this library. docs/architecture.md says where to begin to add an RPC, a
//! configuration key, a metric, a limit, a command, an operating system, and more.
//!
//! # What always holds
//!
//! Each rule has tests that fail if the rule is broken; `tests/layers.rs` checks that these tests exist.
//!
//! 1. criswitch forwards the reply of one backend byte for byte, except for handler names, label values of metrics
//!    and streaming URLs without a scheme. It drops items that the backend repeats, that another backend
//!    owns, or that are labelled as containers of another backend's pod.
//!    Tests: `a_reply_passes_byte_for_byte_whatever_it_contains`,
//!    `an_id_is_in_every_list_and_stream_once_and_as_its_owner_lists_it`
//! 2. A list of pods, containers or images has the items of every backend that takes part in merged calls. For a
//!    backend whose answer cannot be used (it is silent, returns an error, or its reply cannot be read or is too large)
//!    the list has its cached items; without them the list fails. A cached list of images may lack an image that was
//!    pulled since. An error passes only if no backend has an answer that can be used.
//!    Tests: `a_list_is_an_error_while_a_backend_is_down_and_whole_when_it_is_back`,
//!    `a_late_list_is_served_from_cache_and_the_next_one_at_once`,
//!    `an_error_of_one_backend_is_replaced_by_its_cached_part_and_named_until_it_answers`,
//!    `the_largest_part_of_a_list_that_is_too_large_is_served_from_cache_and_named`
//! 3. A call that creates goes to one backend. It is sent once, and once more only if the backend has certainly not
//!    processed it. A call for an id goes only to the owner of the id.
//!    Tests: `a_creation_is_not_sent_again_when_its_backend_dies_during_the_call`,
//!    `pods_that_a_goaway_excludes_are_created_once_over_the_next_connection`,
//!    `a_pod_and_its_containers_go_to_the_backend_of_its_handler`
//! 4. An unknown handler is rejected. `NotFound` is returned only if the id was denied by every backend, by its owner,
//!    or by the backend from which a client removed the item through criswitch.
//!    Tests: `an_unknown_handler_is_rejected_by_name_and_creates_nothing`,
//!    `no_id_is_reported_absent_while_a_backend_is_down`
//! 5. A call for an id with a known owner waits for no other backend. A call waits for no other client. No call but the
//!    probe is sent to a backend that is unresponsive.
//!    Tests: `calls_of_other_backends_do_not_wait_for_one_that_hangs`,
//!    `a_new_call_for_an_item_of_an_unresponsive_backend_fails_at_once_and_is_not_sent`,
//!    `many_unread_streams_delay_no_other_call_to_their_backend`
//! 6. Buffers, queues, waits and fan-outs have named limits; docs/limits.md lists the limits that users can meet. The
//!    memory limits of the systemd unit follow from the sum of the limits on memory.
//!    Tests: `the_documented_limits_are_those_of_the_constants`,
//!    `memory_high_of_the_unit_is_the_sum_of_all_limits_and_memory_max_is_a_quarter_more`
//! 7. `server` runs each call in one task, and the path of the call spawns no further task. When the client cancels the
//!    call or disconnects, the task ends, and the backend's call is cancelled too.
//!    Tests: `the_path_of_a_call_spawns_no_task`, `a_call_cancelled_by_its_client_ends_at_the_backend_too`
//! 8. In the library, only `backend::connect` connects, and only `errors` creates a status with a text of criswitch.
//!    Only `rpc`, `call::route`, `call::lesson` and `call::plan` match on the columns `goes` and `then` of a row.
//!    `codec`, `rpc`, `ownership`, `call::route`, `call::lesson`, `call::plan` and `dispatch::fanout::merge` do no I/O.
//!    Tests: `one_module_connects_and_one_module_creates_statuses`,
//!    `only_the_route_lesson_and_plan_of_a_call_match_on_goes_and_then`, `modules_that_decide_do_no_io`
//! 9. There is no unsafe code. Log lines contain only names and ids from calls, and error texts without credentials.
//!    Tests: `unsafe_code_is_forbidden`, `secrets_of_calls_are_in_no_log_and_in_no_status`

use std::collections::HashSet;
use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::JoinSet;

pub mod backend;
pub mod call;
pub mod dispatch;
pub mod errors;
pub mod gate;
pub mod limits;
pub mod operator;
pub mod ownership;
pub mod server;
mod session;
pub mod store;
pub mod switch;
pub mod telemetry;
pub mod topology;

use backend::Backend;
use dispatch::fanout;
use operator::{admin, metrics, node_labels};
use switch::Switch;

/// How long a shutdown waits for the write of the state in progress.
const LAST_WRITE_LIMIT: Duration = Duration::from_secs(1);
/// The wait before a task is restarted after a panic.
const PANIC_PAUSE: Duration = Duration::from_secs(1);

/// Serves `switch` on `listener` until `shutdown`, then lets calls in flight end within `shutdown_timeout`, and the
/// write of the state in progress within a second (`LAST_WRITE_LIMIT`). Meanwhile serves metrics, on the `passed`
/// socket or at the configured address.
pub async fn serve(
    switch: Arc<Switch>,
    listener: server::Listener,
    passed: Option<Result<server::PassedSocket, server::PassedError>>,
    shutdown: impl Future<Output = ()>,
) {
    // Dropping these values at the end of the function stops metrics, the states for watchers, the file of the labels,
    // and the connections to backends.
    let connected = keep_connected(&switch);
    let _labels = node_labels::keep(&switch);
    let _states = admin::keep_states(&switch);
    let _metrics = metrics::keep_serving(&switch, passed);
    listener.serve(Arc::clone(&switch), shutdown).await;
    drop(connected);
    if let Some(store) = &switch.store {
        store.work.end(LAST_WRITE_LIMIT).await;
    }
    tracing::info!("stopped");
}

/// Keeps `switch` connected to its backends, including those that reloads add, and reports a silent default backend, as
/// long as the returned tasks live.
pub fn keep_connected(switch: &Arc<Switch>) -> JoinSet<Infallible> {
    let mut task = JoinSet::new();
    task.spawn(connect_all(Arc::clone(switch)));
    let switch = Arc::clone(switch);
    task.spawn(async move { fanout::status::report_silent_default(&switch).await });
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
        // Forget removed backends. Their tasks end on their own.
        connected.retain(|id| live.backend(*id).is_ok());
        drop(live);
        tokio::select! {
            changed = tables.changed() => if changed.is_err() { std::future::pending().await },
            Some(_) = sessions.join_next() => {}
            () = switch::reload::auto_register_without_absent(&switch) => {}
        }
    }
}

/// Runs a task of a backend to its end, and restarts the task after a panic. Otherwise data from a backend that causes
/// a panic would disable this backend until the next start.
fn again<F: Future<Output = ()> + Send + 'static>(
    switch: &Arc<Switch>,
    backend: &Arc<Backend>,
    task: fn(Arc<Switch>, Arc<Backend>) -> F,
) -> impl Future<Output = ()> + Send + 'static {
    let (switch, backend) = (Arc::clone(switch), Arc::clone(backend));
    async move {
        while AssertUnwindSafe(task(Arc::clone(&switch), Arc::clone(&backend)))
            .catch_unwind()
            .await
            .is_err()
        {
            tracing::error!(backend = %backend.name(), "the task that serves a backend panicked, and criswitch restarts it; this is a bug, please report it");
            tokio::time::sleep(PANIC_PAUSE).await;
        }
    }
}
