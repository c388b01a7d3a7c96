//! The state that all calls share, and its accessors. The submodules change this state.

pub(crate) mod act;
pub(crate) mod cached;
pub(crate) mod dry_run;
pub mod forget;
pub(crate) mod handlers;
pub(crate) mod image_references;
pub mod labels;
pub(crate) mod learn;
pub(crate) mod listed;
pub(crate) mod pod_requests;
pub mod reload;
pub mod saved;
pub(crate) mod subscribers;
mod urls;
pub(crate) mod usable;
pub(crate) mod view;
pub(crate) mod watchers;

use std::sync::Arc;

use bytes::Bytes;
use criswitch_config::{BackendConfig, BackendIds, Config};
use criswitch_platform::file_work::FileWork;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::backend::Backend;
use crate::backend::connect::Dialer;
use crate::call::ending::Ending;
use crate::gate::Readable;
use crate::limits::budget::{Requests, Shares};
use crate::limits::places::{AdminLimits, CallLimits};
use crate::ownership::Owners;
use crate::ownership::lookup::OwnerLookup;
use crate::store::Store;
use crate::switch::labels::KnownFits;
use crate::switch::pod_requests::PodRequests;
use crate::switch::reload::{ReloadQueue, Reloads};
use crate::switch::subscribers::Subscribers;
use crate::switch::watchers::Watchers;
use crate::telemetry::counters::Counts;
use crate::telemetry::log_queue::LogQueue;
use crate::topology::Live;

/// The routing table, its backends, and the facts that are known of them.
#[derive(Debug)]
pub struct Switch {
    /// The current routing table, with its backends.
    pub(crate) live: watch::Sender<Arc<Live>>,
    /// How criswitch connects to backends.
    pub(crate) dialer: Dialer,
    /// The largest message that criswitch reads or makes, in bytes.
    pub max_message: usize,
    /// After a start, the first calls to all backends wait for backends that are not listed yet, but not beyond this
    /// time.
    pub start_by: Instant,
    /// When this run of criswitch began.
    pub(crate) created: Instant,
    /// The progress of the shutdown.
    pub(crate) ending: Ending,
    /// The subscribers to the events of pods and containers.
    pub(crate) subscribers: Subscribers,
    /// The clients that watch the state of the daemon.
    pub(crate) watchers: Watchers,
    /// The `ImageStatus` calls for pods, as far as criswitch remembers them.
    pub(crate) pod_requests: Mutex<PodRequests>,
    /// The last `UpdateRuntimeConfigRequest` of a client, as a gRPC frame. A backend that missed this configuration
    /// gets it when the backend answers again.
    pub runtime_config: Mutex<Option<Bytes>>,
    /// The metric descriptors that a client last received.
    pub(crate) given: Mutex<Option<Readable>>,
    /// How the metrics of each backend are rewritten to `given`.
    pub(crate) fits: KnownFits,
    /// Counters for metrics.
    pub counts: Arc<Counts>,
    /// The queue of log lines that wait to be written.
    pub log: LogQueue,
    /// The query to all backends that calls for unknown ids share.
    pub(crate) question: OwnerLookup,
    /// The requests for reloads, and the outcomes of reloads.
    pub reload_queue: ReloadQueue,
    /// Why the file of `labels_file` cannot be written; `None` if it can.
    pub(crate) labels_problem: Mutex<Option<String>>,
    /// Reads the configuration for dry runs, one at a time.
    pub(crate) dry_runs: FileWork,
    /// The store for the state on disk; `None` if the state is not saved.
    pub(crate) store: Option<Arc<Store>>,
    pub(crate) owners: Mutex<Owners>,
    /// The limits on calls in flight.
    pub(crate) calls: CallLimits,
    /// The limits on calls of the admin service in flight.
    pub(crate) admin_calls: AdminLimits,
    /// Memory for requests in flight.
    pub requests: Requests,
    /// Memory for replies that clients have not read yet.
    pub unread: Shares,
}

impl Switch {
    /// Makes a `Switch` without a state on disk. It assumes that each of its backends may have pods that clients know.
    pub fn new(config: Config, dialer: &Dialer) -> Switch {
        let switch = Switch::not_started(config, Vec::new(), dialer);
        saved::assume_pods(&switch);
        switch
    }

    /// Makes a `Switch` whose merged calls include no backend yet. `kept` are the backends that the configuration no
    /// longer names and that may still have pods.
    pub(crate) fn not_started(config: Config, kept: Vec<BackendConfig>, dialer: &Dialer) -> Switch {
        let max_message = config.max_message;
        let ids = BackendIds::except(config.table.backends.iter().chain(&kept).map(|row| row.id));
        Switch {
            max_message,
            start_by: Instant::now() + config.start_wait,
            created: Instant::now(),
            ending: Ending::default(),
            subscribers: Subscribers::default(),
            watchers: Watchers::default(),
            pod_requests: Mutex::default(),
            runtime_config: Mutex::default(),
            given: Mutex::default(),
            fits: KnownFits::default(),
            counts: Arc::default(),
            log: LogQueue::default(),
            question: OwnerLookup::default(),
            store: None,
            owners: Mutex::default(),
            calls: CallLimits::default(),
            admin_calls: AdminLimits::default(),
            requests: Requests::new(max_message),
            unread: Shares::for_unread(max_message),
            reload_queue: ReloadQueue::new(ids),
            live: watch::Sender::new(Arc::new(Live::first(config, &kept, |row| {
                Backend::new(row, max_message, dialer.clone())
            }))),
            dialer: dialer.clone(),
            labels_problem: Mutex::default(),
            dry_runs: FileWork::default(),
        }
    }

    /// Returns the current routing table, with its backends.
    pub fn live(&self) -> Arc<Live> {
        Arc::clone(&self.live.borrow())
    }

    /// Whether a call is in flight, or a reply is not sent to its end.
    pub(crate) fn has_calls(&self) -> bool {
        !self.calls.is_unused() || !self.admin_calls.is_unused() || self.unread.used() > 0
    }

    /// Replaces the current routing table. A backend whose automatically registered handlers differ is saved again.
    pub(crate) fn set_live(&self, live: Live) {
        let before = self.live.send_replace(live.into());
        let live = self.live();
        for backend in &live.backends {
            let registered = live.auto_registered_by(backend.id);
            if before.auto_registered_by(backend.id).ne(registered) {
                backend.saving.note_change();
            }
        }
    }

    /// Returns a receiver that is notified of each new routing table.
    pub(crate) fn tables(&self) -> watch::Receiver<Arc<Live>> {
        self.live.subscribe()
    }

    /// Locks and returns the outcomes of reloads.
    pub fn reloads(&self) -> MutexGuard<'_, Reloads> {
        self.reload_queue.outcomes.lock()
    }

    /// Locks and returns the owners of pods and containers.
    pub fn owners(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock()
    }
}
