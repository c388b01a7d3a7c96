//! One backend: its connection, which a session task keeps open, and the calls that go to it.
//!
//! This module sends each call once and never retries it.

mod absence;
pub mod answer;
mod calls;
pub mod connect;
pub(crate) mod disks;
pub(crate) mod failed;
pub mod known;
pub mod lists;
mod peer;
mod repeat;
pub mod state;
pub(crate) mod stream;
mod unsaved;
pub mod wire;

pub(crate) use absence::Contribution;
pub use calls::own_headers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::backend::connect::{Dialer, FileId, Opened};
use crate::backend::known::{Known, Report};
use crate::backend::lists::Lists;
use crate::backend::state::{Failing, Link, State};
use crate::backend::wire::{Driver, Wire};
use crate::codec::protobuf::Malformed;
use crate::config::BackendConfig;
use crate::config::address::Address;
use crate::errors;
use crate::limits::budget::Budget;
use crate::ownership::BackendId;
use crate::platform::users::UserId;
use crate::rpc::{List, Row};
use crate::store::file_work::FileWork;
use crate::telemetry::counters::Ended;
use crate::telemetry::log_limit::RepeatedFailures;

/// The most calls without an answer that criswitch sends to an unresponsive backend. Each cancelled call takes 4 kB
/// until the backend reads again, because HTTP/2 must still send the call and then its cancellation.
const MOST_UNANSWERED: usize = 256;

/// How long criswitch waits for the first report of handlers by a backend with `auto_register`. Meanwhile no backend
/// gets a new automatically registered handler.
const REPORT_WAIT: Duration = Duration::from_secs(30);

/// The cause of failed calls to a removed backend.
pub(crate) const CLOSED: &str = "it was removed from the routing table";

/// A CRI socket that criswitch calls.
#[derive(Debug)]
pub struct Backend {
    /// Unique for the life of the process; never reused.
    pub id: BackendId,
    /// The address of the socket.
    pub socket: Address,
    /// The largest reply that criswitch reads, in bytes.
    pub max_message: usize,
    /// Memory for replies to clients.
    pub memory: Budget,
    /// Memory for replies to the calls that criswitch makes itself. Replies to clients use none of it.
    pub own: Budget,
    /// Memory for events that a subscriber has not read yet.
    pub events: Budget,
    /// Counters of clients' calls that went only to this backend and have ended.
    pub calls: Ended,
    dialer: Dialer,
    files: FileWork,
    /// Measures the file systems of the backend's images. It is separate from `files`, so that a hung file system of
    /// images does not delay connections.
    disk_work: FileWork,
    link: watch::Sender<Link>,
    pub(crate) nudges: Nudges,
    /// How many calls were sent since the backend became unresponsive, or since the backend last answered a call.
    unanswered: AtomicUsize,
    /// Whether merged calls include the backend.
    joined: AtomicBool,
    /// The first lists after a start wait for the backend until this time. `None` if lists do not wait for it.
    awaited: Mutex<Option<Instant>>,
    /// Cancelled when the backend is removed from the routing table.
    removal: CancellationToken,
    /// The time until which criswitch waits for the backend's first `Status` reply.
    report_by: Instant,
    saving: unsaved::Saving,
    settings: Mutex<Settings>,
    known: Mutex<Known>,
    /// Limits the log lines about answers that cannot be used, by the name of the RPC.
    failing: Mutex<BTreeMap<&'static str, RepeatedFailures>>,
}

/// Notifications that wake the tasks of a backend. A notification waits until its task is free, except for `answered`,
/// which reaches only a task that is waiting for it.
#[derive(Debug, Default)]
pub(crate) struct Nudges {
    /// A call needs a connection, and none is open.
    pub(crate) wanted: Notify,
    /// A call takes so long that the backend may hang. The session probes the backend.
    pub(crate) suspected: Notify,
    /// The backend has answered a call that its session did not send.
    pub(crate) answered: Notify,
    /// The backend did not answer a merged call in time. The session repeats the call in the background.
    pub(crate) missed: Notify,
    /// The backend has not applied the kubelet's runtime configuration. The session sends the configuration again.
    pub(crate) owed: Notify,
    /// criswitch has listed the backend's pods.
    pub(crate) listed: Notify,
    /// The backend has reported the file systems of its images.
    pub(crate) disks: Notify,
}

/// Settings that a reload may change.
#[derive(Debug)]
struct Settings {
    name: Arc<str>,
    config: BackendConfig,
}

impl Settings {
    fn of(config: &BackendConfig) -> Settings {
        Settings {
            name: config.name.as_str().into(),
            config: config.clone(),
        }
    }
}

impl Backend {
    /// A backend that is not connected yet.
    pub fn new(config: &BackendConfig, max_message: usize, dialer: Dialer) -> Backend {
        let link = Link {
            ready_until: None,
            state: State::Connecting,
            since: SystemTime::now(),
            transitions: 0,
            failures: 0,
        };
        Backend {
            id: config.id,
            socket: config.socket.clone(),
            max_message,
            memory: Budget::for_messages(max_message),
            own: Budget::for_messages(max_message),
            events: Budget::for_events(max_message),
            calls: Ended::default(),
            dialer,
            files: FileWork::default(),
            disk_work: FileWork::default(),
            link: watch::Sender::new(link),
            nudges: Nudges::default(),
            unanswered: AtomicUsize::new(0),
            joined: AtomicBool::new(false),
            awaited: Mutex::default(),
            removal: CancellationToken::new(),
            report_by: Instant::now() + REPORT_WAIT,
            saving: unsaved::Saving::default(),
            settings: Mutex::new(Settings::of(config)),
            known: Mutex::default(),
            failing: Mutex::default(),
        }
    }

    /// Applies a changed configuration of the backend.
    pub(crate) fn configure(&self, config: &BackendConfig) {
        let last = std::mem::replace(&mut *self.settings.lock(), Settings::of(config));
        if last.config.user != config.user {
            self.warn_of_unexpected_user();
        }
    }

    /// Sets a new name for a backend that left the configuration, because another backend now has its old name.
    pub(crate) fn rename(&self, name: &str) {
        self.settings.lock().name = name.into();
    }

    /// The backend's name in the configuration, unless another backend has that name now.
    pub fn name(&self) -> Arc<str> {
        Arc::clone(&self.settings.lock().name)
    }

    /// How long a merged call waits for the backend if cached items can be served.
    pub fn list_timeout(&self) -> Duration {
        self.settings.lock().config.list_timeout
    }

    /// How long a merged call for stats waits for the backend.
    pub fn stats_timeout(&self) -> Duration {
        self.settings.lock().config.stats_timeout
    }

    /// The user that may serve the socket, by the configuration.
    pub(crate) fn user(&self) -> Option<UserId> {
        self.settings.lock().config.user
    }

    /// The largest age of cached lists that are served while the backend does not answer.
    pub(crate) fn stale_lists(&self) -> Duration {
        self.settings.lock().config.stale_lists
    }

    /// How long a merged call of `row` waits for the backend.
    pub(crate) fn timeout(&self, row: &Row) -> Duration {
        match row.is_stats() {
            true => self.stats_timeout(),
            false => self.list_timeout(),
        }
    }

    /// Includes the backend in merged calls from now on.
    pub fn join(&self) {
        if !self.joined.swap(true, Ordering::Relaxed) {
            self.has_changed();
        }
    }

    /// Omits the backend from merged calls until criswitch lists its pods again, and drops its cached lists.
    pub(crate) fn leave(&self) {
        self.joined.store(false, Ordering::Relaxed);
        let mut known = self.known.lock();
        known.lists = Lists::default();
        known.absent.clear();
        known.failures.clear();
    }

    /// Whether merged calls include the backend. A backend that was added by a reload is omitted until criswitch has
    /// listed its pods.
    pub fn has_joined(&self) -> bool {
        self.joined.load(Ordering::Relaxed)
    }

    /// Makes the first lists after a start wait for the backend, at most until `by`.
    pub(crate) fn await_until(&self, by: Instant) {
        *self.awaited.lock() = Some(by);
    }

    /// Records that criswitch has listed the backend's pods, so that lists no longer wait for the backend.
    pub(crate) fn was_listed(&self) {
        *self.awaited.lock() = None;
    }

    /// Waits until the backend is ready, if the first lists after a start wait for the backend. The wait ends at
    /// `latest` or at the time given to [`Backend::await_until`], whichever is earlier.
    pub(crate) async fn started(&self, latest: Instant) {
        let by = *self.awaited.lock();
        if let Some(by) = by {
            tokio::time::timeout_at(by.min(latest), self.ready())
                .await
                .ok();
        }
    }

    /// Whether the first lists after a start still wait for the backend.
    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited.lock().is_some_and(|by| Instant::now() < by)
    }

    /// Marks the backend as removed. Its session ends once the calls in flight have ended.
    pub(crate) fn close(&self) {
        self.removal.cancel();
    }

    /// Waits until the backend is removed from the routing table.
    pub(crate) async fn closed(&self) {
        self.removal.cancelled().await;
    }

    /// The current state of the connection.
    pub fn link(&self) -> Link {
        self.link.borrow().clone()
    }

    /// Whether the backend fails, and since when. A change from down to unresponsive or back does not restart the time.
    pub(crate) fn failing(&self) -> Failing {
        let Link {
            state, ready_until, ..
        } = self.link();
        match (state, ready_until.or_else(|| self.answered())) {
            (State::Ready(_), _) => Failing::No,
            (_, Some(since)) => Failing::Since(since),
            (_, None) => Failing::NeverAnswered,
        }
    }

    /// Waits for a change of the connection's state or of the saved facts that happens after this call.
    pub(crate) fn next_change(&self) -> impl Future<Output = ()> + use<> {
        let (mut link, mut made) = (self.link.subscribe(), self.changes());
        async move {
            tokio::select! {
                _ = link.changed() => {}
                _ = made.changed() => {}
            }
        }
    }

    /// The facts that the backend last reported.
    pub fn known(&self) -> Known {
        self.known.lock().clone()
    }

    /// The handlers that the backend last reported, or whether its first report is still awaited.
    pub(crate) fn report(&self) -> Report {
        let known = self.known();
        match self.awaited_until() {
            _ if known.has_said_status() => Report::Status(known.status),
            Some(_) => Report::Awaited,
            None => Report::Absent,
        }
    }

    /// The time until which criswitch waits for the backend's first `Status` reply. `None` if the reply has come or the
    /// wait is over.
    pub(crate) fn awaited_until(&self) -> Option<Instant> {
        let is_awaited = !self.known.lock().has_said_status() && Instant::now() < self.report_by;
        is_awaited.then_some(self.report_by)
    }

    /// Changes the known facts of the backend.
    pub fn learn<T>(&self, change: impl FnOnce(&mut Known) -> T) -> T {
        change(&mut self.known.lock())
    }

    /// Like [`Backend::learn`], for facts that are saved on disk. `change` returns whether it changed such a fact.
    pub(crate) fn learn_saved(&self, change: impl FnOnce(&mut Known) -> bool) {
        if self.learn(change) {
            self.has_changed();
        }
    }

    /// Counts items that were dropped because they are about another backend's pods or containers.
    pub(crate) fn drops(&self, items: usize) {
        if items > 0 {
            self.known.lock().dropped += items as u64;
        }
    }

    /// Counts an event that was dropped because it is about another backend's pod or container. Logs the first one.
    pub(crate) fn drops_event(&self) {
        self.drops(1);
        let is_first = !std::mem::replace(&mut self.known.lock().drops_events, true);
        if is_first {
            tracing::warn!(
                backend = %self.name(),
                "backend sends events about a pod or container of another backend; criswitch drops these events. If \
                 both sockets belong to one runtime, configure one backend for both"
            );
        }
    }

    /// Opens a connection. The returned [`Driver`] ends when the connection takes no further calls.
    ///
    /// # Errors
    /// If no connection opens: the cause.
    pub async fn connect(&self) -> Result<(Wire, Driver), String> {
        let opened = self.open(None).await?;
        Ok((opened.wire, opened.connection))
    }

    /// Like [`Backend::connect`], but fails if the backend's socket is `own`, the socket that criswitch listens on.
    pub(crate) async fn open(&self, own: Option<&Address>) -> Result<Opened, String> {
        let opened = self.dialer.open(&self.socket, own, &self.files).await?;
        self.meet(opened.server);
        Ok(opened)
    }

    /// The file at the socket's path now. `None` if there is no file, or if the file system does not answer.
    pub(crate) async fn socket_file(&self) -> Option<FileId> {
        self.dialer.file_at(&self.socket, &self.files).await
    }

    /// The cause in a status of this backend: the status message without the backend's name at the start.
    pub fn cause(&self, status: &Status) -> String {
        let named = self.unavailable("");
        let message = status.message();
        let cause = message.strip_prefix(named.message()).unwrap_or(message);
        cause.to_owned()
    }

    /// Changes the state. Logs each new state, but not a new cause of the same state.
    pub(crate) fn set(&self, state: State) {
        let changed = self.link().state.as_ref() != state.as_ref();
        if changed {
            // The removal of the backend is already logged, so log no further state.
            if !self.removal.is_cancelled() {
                log_change(self, &state);
            }
            self.unanswered.store(0, Ordering::Relaxed);
        }
        let since = self.begins(&state);
        self.link.send_modify(|link| {
            if changed {
                link.since = since;
                link.transitions += 1;
            }
            if matches!(link.state, State::Ready(_)) && changed {
                link.ready_until = Some(Instant::now());
            }
            link.failures += u64::from(matches!(state, State::Down(_)));
            link.state = state;
        });
    }

    /// When `state` began. If the backend was already away when criswitch started, this is the time of the backend's
    /// last reply to an earlier run of criswitch.
    fn begins(&self, state: &State) -> SystemTime {
        match (self.link().state, state) {
            (State::Connecting, State::Down(_) | State::Unresponsive(..)) => self.answered_at(),
            _ => SystemTime::now(),
        }
    }

    /// The open connection. If none is open, waits for the next attempt to connect and returns its result.
    pub(crate) async fn wire(&self) -> Result<Wire, Status> {
        let Link {
            state, failures, ..
        } = self.link();
        match state {
            State::Ready(wire) => return Ok(wire),
            // No client's call goes to a backend whose pods criswitch has not listed.
            State::Unresponsive(_, cause) if !self.has_joined() => {
                return Err(self.unavailable(&cause));
            }
            State::Unresponsive(wire, cause) => return self.one_more(wire, &cause),
            State::Connecting | State::Down(_) => {}
        }
        self.nudges.wanted.notify_one();
        let mut link = self.link.subscribe();
        let changed = link.wait_for(|now| match now.state {
            State::Ready(_) | State::Unresponsive(..) => true,
            State::Connecting | State::Down(_) => now.failures > failures,
        });
        // A removed backend gets no new connection, so its removal ends the wait.
        let changed = self.removal.run_until_cancelled(changed).await;
        let Some(Ok(link)) = changed else {
            return Err(self.unavailable(CLOSED));
        };
        match link.state.clone() {
            State::Unresponsive(_, cause) if !self.has_joined() => Err(self.unavailable(&cause)),
            State::Ready(wire) | State::Unresponsive(wire, _) => Ok(wire),
            State::Down(cause) => Err(self.unavailable(&cause)),
            State::Connecting => Err(self.unavailable(CLOSED)),
        }
    }

    /// `Unavailable` if a probe has proven that the backend hangs.
    pub(crate) fn hangs(&self) -> Option<Status> {
        match self.link().state {
            State::Unresponsive(_, cause) => Some(self.unavailable(&cause)),
            State::Connecting | State::Ready(_) | State::Down(_) => None,
        }
    }

    /// Returns `wire`, the connection to a backend that hangs. Fails after [`MOST_UNANSWERED`] calls without an answer.
    fn one_more(&self, wire: Wire, cause: &str) -> Result<Wire, Status> {
        if self.unanswered.fetch_add(1, Ordering::Relaxed) < MOST_UNANSWERED {
            return Ok(wire);
        }
        Err(self.unavailable(cause))
    }

    /// Waits until the backend is ready or removed.
    pub(crate) async fn ready(&self) {
        let mut link = self.link.subscribe();
        let ready = link.wait_for(|now| matches!(now.state, State::Ready(_)));
        self.removal.run_until_cancelled(ready).await;
    }

    /// Waits until more than `failures` connections have failed or ended.
    pub(crate) async fn lost(&self, failures: u64) {
        let mut link = self.link.subscribe();
        link.wait_for(|now| now.failures > failures).await.ok();
    }

    /// Drops the cached `list`, because this list may lack new items.
    pub(crate) fn outdate(&self, list: List) {
        self.learn_saved(|known| known.lists.outdate(list));
    }

    /// The wall-clock time of the backend's last complete unary reply. The current time if the backend has never sent
    /// one.
    pub(crate) fn answered_at(&self) -> SystemTime {
        let age = self.answered().map_or(Duration::ZERO, |at| at.elapsed());
        let now = SystemTime::now();
        now.checked_sub(age).unwrap_or(now)
    }

    /// The time of the backend's last complete unary reply. `None` if the backend has never sent one.
    pub(crate) fn answered(&self) -> Option<Instant> {
        self.known.lock().answered
    }

    /// Runs `asked` to its end, or until a probe has proven that the backend hangs. If `asked` takes longer than
    /// `list_timeout`, the session probes the backend.
    ///
    /// # Errors
    /// `Unavailable` if the backend hangs, else the error of `asked`.
    pub(crate) async fn patiently<T, E: From<Status>>(
        &self,
        asked: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let mut link = self.link.subscribe();
        let hangs = link.wait_for(|now| matches!(now.state, State::Unresponsive(..)));
        let (mut asked, mut hangs) = (std::pin::pin!(asked), std::pin::pin!(hangs));
        loop {
            tokio::select! {
                biased;
                result = &mut asked => return result,
                link = &mut hangs => {
                    let cause = link.ok().and_then(|link| link.state.cause().cloned());
                    return Err(self.unavailable(&cause.unwrap_or_default()).into());
                }
                () = tokio::time::sleep(self.list_timeout()) => self.nudges.suspected.notify_one(),
            }
        }
    }

    /// An `Unavailable` status that names this backend and its socket.
    pub fn unavailable(&self, cause: &str) -> Status {
        errors::unavailable(&self.name(), &self.socket, cause)
    }

    /// The status for a call that the backend broke off. `status` is the status of [`errors::of_http2`].
    pub(crate) fn broken_off(&self, status: &Status) -> Status {
        errors::broken_off(&self.name(), &self.socket, status)
    }

    /// An `Internal` status for a reply in which criswitch cannot decode a field that it reads.
    pub fn malformed(&self, fault: &Malformed) -> Status {
        self.bad_reply(&format!("its reply is malformed: {fault}"))
    }

    /// An `Internal` status that names this backend and its socket.
    pub fn bad_reply(&self, cause: &str) -> Status {
        errors::bad_reply(&self.name(), &self.socket, cause)
    }
}

fn log_change(backend: &Backend, state: &State) {
    let (name, socket) = (backend.name(), &backend.socket);
    match state {
        State::Connecting => {
            tracing::warn!(backend = %name, %socket, "backend is connecting");
        }
        State::Ready(_) => tracing::info!(backend = %name, %socket, "backend is ready"),
        State::Unresponsive(_, cause) => {
            tracing::warn!(backend = %name, %socket, cause = &**cause, "backend is unresponsive");
        }
        State::Down(cause) => {
            tracing::warn!(backend = %name, %socket, cause = &**cause, "backend is down");
        }
    }
}
