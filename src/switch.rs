//! The state that all calls share, and its accessors. The modules inside change this state.

pub(crate) mod cached;
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

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::backend::Backend;
use crate::backend::connect::Dialer;
use crate::call::ending::Ending;
use crate::config::{BackendConfig, Config};
use crate::limits::budget::{Budget, Shares};
use crate::limits::places::{AdminLimits, CallLimits};
use crate::ownership::Owners;
use crate::ownership::lookup::Question;
use crate::store::{LastKnown, Store};
use crate::switch::pod_requests::PodRequests;
use crate::switch::reload::Reloads;
use crate::switch::subscribers::Subscribers;
use crate::telemetry::counters::Counts;
use crate::telemetry::log_queue::LogQueue;
use crate::topology::Live;

/// The routing table, its backends, and the facts that are known of them.
#[derive(Debug)]
pub struct Switch {
    /// The current table.
    pub(crate) live: watch::Sender<Arc<Live>>,
    /// How criswitch connects to backends.
    pub(crate) dialer: Dialer,
    /// The largest message that criswitch reads or makes, in bytes.
    pub max_message: usize,
    /// After a start, the first calls to all backends wait until this time for backends that are not listed yet.
    pub start_by: Instant,
    /// The shutdown.
    pub(crate) ending: Ending,
    /// The subscribers to the events of pods and containers.
    pub(crate) subscribers: Subscribers,
    /// The remembered image calls for pods.
    pub(crate) pod_requests: Mutex<PodRequests>,
    /// The last `UpdateRuntimeConfig`, framed, for backends that come back.
    pub runtime_config: Mutex<Option<Bytes>>,
    /// The metric descriptors that a client last received.
    pub(crate) given: Mutex<Option<Bytes>>,
    /// Counters for metrics.
    pub counts: Arc<Counts>,
    /// The queue of log lines, if the process has one.
    pub log: LogQueue,
    /// The question to all backends that calls for unknown ids share.
    pub(crate) question: Question,
    /// The outcomes of reloads.
    pub(crate) reloads: Mutex<Reloads>,
    /// Wakes the task that reloads the configuration, once for each request for a reload.
    pub(crate) reload_wanted: Notify,
    /// Wakes clients when a reload has ended.
    pub(crate) reload_ended: Notify,
    /// The store of saved state, if there is one.
    pub(crate) store: Option<Arc<Store>>,
    owners: Mutex<Owners>,
    /// The places of calls in flight.
    pub(crate) calls: CallLimits,
    /// The places of calls of the admin service in flight.
    pub(crate) admin_calls: AdminLimits,
    /// Memory for requests in flight.
    pub memory: Budget,
    /// Memory for replies that clients have not read yet.
    pub unread: Shares,
}

impl Switch {
    /// A `Switch` without a state on disk: each of its backends may have pods that clients know.
    pub fn new(config: Config, dialer: &Dialer) -> Switch {
        let switch = Switch::not_started(config, Vec::new(), dialer);
        for backend in &switch.live().backends {
            saved::restore(&switch, backend, LastKnown::Unknown);
        }
        switch
    }

    /// A `Switch` with backends that are `kept` for their pods; none of its backends is part of lists yet.
    pub(crate) fn not_started(config: Config, kept: Vec<BackendConfig>, dialer: &Dialer) -> Switch {
        let max_message = config.max_message;
        Switch {
            max_message,
            start_by: Instant::now() + config.start_wait,
            ending: Ending::default(),
            subscribers: Subscribers::default(),
            pod_requests: Mutex::default(),
            runtime_config: Mutex::default(),
            given: Mutex::default(),
            counts: Arc::default(),
            log: LogQueue::default(),
            question: Question::default(),
            store: None,
            owners: Mutex::default(),
            calls: CallLimits::default(),
            admin_calls: AdminLimits::default(),
            memory: Budget::for_messages(max_message),
            unread: Shares::for_unread(max_message),
            reloads: Mutex::new(Reloads::new(config.table.backends.len() + kept.len())),
            live: watch::Sender::new(Arc::new(Live::first(config, &kept, |row| {
                Backend::new(row, max_message, dialer.clone())
            }))),
            dialer: dialer.clone(),
            reload_wanted: Notify::new(),
            reload_ended: Notify::new(),
        }
    }

    /// The current table.
    pub fn live(&self) -> Arc<Live> {
        Arc::clone(&self.live.borrow())
    }

    /// Replaces the current table, and saves automatically registered handlers.
    pub(crate) fn set_live(&self, live: Live) {
        let before = self.live.send_replace(live.into());
        let live = self.live();
        let differs = |id| {
            !before
                .auto_registered_by(id)
                .eq(live.auto_registered_by(id))
        };
        let changed = live.backends.iter().filter(|it| differs(it.id));
        changed.for_each(|backend| backend.has_changed());
    }

    /// Receives each new table.
    pub(crate) fn tables(&self) -> watch::Receiver<Arc<Live>> {
        self.live.subscribe()
    }

    /// The outcomes of reloads, locked.
    pub fn reloads(&self) -> MutexGuard<'_, Reloads> {
        self.reloads.lock()
    }

    /// The owners, locked.
    pub fn owners(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock()
    }
}
