//! The state that all calls share, and its accessors. What changes this state is in the modules inside.

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

/// The table, its backends, and what is known of them.
#[derive(Debug)]
pub struct Switch {
    /// The table of now.
    pub(crate) live: watch::Sender<Arc<Live>>,
    /// How backends are connected to.
    pub(crate) dialer: Dialer,
    /// The largest message, in bytes, that is read or made.
    pub max_message: usize,
    /// Until when the first calls to all backends wait for these to be there.
    pub start_by: Instant,
    /// The end, once it has begun.
    pub(crate) ending: Ending,
    /// The subscribers to the events of pods and containers.
    pub(crate) subscribers: Subscribers,
    /// What pods have asked of the image stores.
    pub(crate) pod_requests: Mutex<PodRequests>,
    /// The last `UpdateRuntimeConfig`, framed, for backends that come back.
    pub runtime_config: Mutex<Option<Bytes>>,
    /// The metric descriptors that a client was last given.
    pub(crate) given: Mutex<Option<Bytes>>,
    /// What is counted.
    pub counts: Arc<Counts>,
    /// The log lines that wait to be written, where the process has such a queue.
    pub log: LogQueue,
    /// The question to all backends that misses share.
    pub(crate) question: Question,
    /// What reloads have come to.
    pub(crate) reloads: Mutex<Reloads>,
    /// Wakes the task that reloads the configuration, once for each request for a reload.
    pub(crate) reload_wanted: Notify,
    /// Wakes clients when a reload has ended.
    pub(crate) reload_ended: Notify,
    /// Where the state is saved, if it is.
    pub(crate) store: Option<Arc<Store>>,
    owners: Mutex<Owners>,
    /// The places of calls in flight.
    pub(crate) calls: CallLimits,
    /// The places of calls of the admin service in flight.
    pub(crate) admin_calls: AdminLimits,
    /// What the requests in flight take.
    pub memory: Budget,
    /// What the replies take that clients have not read yet.
    pub unread: Shares,
}

impl Switch {
    /// A switch without a state on disk: each of its backends may have pods that clients know.
    pub fn new(config: Config, dialer: &Dialer) -> Switch {
        let switch = Switch::not_started(config, Vec::new(), dialer);
        for backend in &switch.live().backends {
            saved::restore(&switch, backend, LastKnown::Unknown);
        }
        switch
    }

    /// A switch with backends that are `kept` for their pods; none of its backends is part of lists yet.
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

    /// The table of now.
    pub fn live(&self) -> Arc<Live> {
        Arc::clone(&self.live.borrow())
    }

    /// Replaces the table of now. Automatically registered handlers are saved.
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

    /// Tells when there is another one.
    pub(crate) fn tables(&self) -> watch::Receiver<Arc<Live>> {
        self.live.subscribe()
    }

    /// What reloads have come to, locked.
    pub fn reloads(&self) -> MutexGuard<'_, Reloads> {
        self.reloads.lock()
    }

    /// The owners, locked.
    pub fn owners(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock()
    }
}
