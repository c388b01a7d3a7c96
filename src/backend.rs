//! One backend: its connection, which a session task keeps open, and the calls that go to it.
//!
//! This module sends a call once, and once more only if the backend has certainly not processed the call.

mod absence;
pub mod answer;
mod calls;
pub mod connect;
pub mod connection;
pub(crate) mod disks;
pub(crate) mod failed;
pub mod known;
pub(crate) mod late_reads;
pub mod lists;
mod peer;
mod repeat;
pub mod settings;
pub mod state;
pub(crate) mod statuses;
pub(crate) mod stream;
pub(crate) mod unsaved;
pub mod wire;

pub use absence::Record;
pub(crate) use absence::{Contribution, Replaced};
pub use calls::own_headers;

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use criswitch_config::BackendConfig;
use criswitch_config::address::Address;
use criswitch_config::wording::span;
use criswitch_cri::rpc::{List, Patience, Row};
use criswitch_platform::file_work::FileWork;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tonic::Status;

use crate::backend::connect::{Dialer, FileId, OpenConnection};
use crate::backend::connection::Connection;
use crate::backend::known::{Known, Report};
use crate::backend::settings::Settings;
use crate::backend::state::{Failing, Link, State};
use crate::backend::statuses::{ItemStatus, Statuses};
use crate::backend::unsaved::Saving;
use crate::backend::wire::{Driver, Wire};
use crate::errors;
use crate::limits::budget::{Budget, Replies};
use crate::limits::places::User;
use crate::telemetry::counters::Ended;

/// How long criswitch waits for the first report of handlers by a backend with `auto_register`. Meanwhile no backend
/// gets a new automatically registered handler.
const REPORT_WAIT: Duration = Duration::from_secs(30);

/// How long a backend may be unresponsive before calls that change something end without an answer. A shorter stall, of
/// a busy or paused machine, ends none of them.
pub const CHANGE_LIMIT: Duration = Duration::from_secs(60);

/// How long a call waits for an attempt to connect if the backend closed the last connection before it became ready.
/// Otherwise each call would wait for a backend that accepts connections, answers nothing and closes them.
pub const EARLY_END_LIMIT: Duration = Duration::from_millis(50);

/// How long a call runs before criswitch watches the backend's state for it. Most calls end sooner, and so cost less.
const UNWATCHED: Duration = Duration::from_secs(1);

/// The cause of calls that do not wait for a connection.
pub(crate) const CONNECTING: &str = "criswitch is connecting to it";

/// The cause of failed calls to a removed backend.
pub(crate) const CLOSED: &str = "it was removed from the routing table";

/// A CRI socket that criswitch calls.
#[derive(Debug)]
pub struct Backend {
    settings: Arc<Settings>,
    /// The facts that the backend last reported, and how its answers have failed.
    pub record: Record,
    /// The connection, which a session keeps open.
    pub connection: Connection,
    /// The changes that are not on disk yet.
    pub(crate) saving: Saving,
    /// The last status of each pod and container.
    pub(crate) statuses: Mutex<Statuses>,
    /// Held by the removal of an image that lists the backend's containers.
    pub(crate) listing: tokio::sync::Mutex<()>,
    /// Memory for replies to clients.
    pub memory: Replies,
    /// Memory for replies to the calls that criswitch makes itself. Replies to clients use none of it.
    pub own: Replies,
    /// Memory for events that a subscriber has not read yet.
    pub events: Budget,
    /// Counters of clients' calls that went only to this backend and have ended.
    pub calls: Ended,
    /// Counters of this backend's parts of clients' calls that went to several backends.
    pub parts: Ended,
    dialer: Dialer,
    files: FileWork,
    /// Measures the file systems of the backend's images. It is separate from `files`, so that a hung file system of
    /// images does not delay connections.
    disk_work: FileWork,
    pub(crate) wakeups: Arc<Wakeups>,
    /// Whether merged calls include the backend.
    joined: AtomicBool,
    /// The number of times that criswitch has forgotten the backend on request.
    forgets: watch::Sender<u64>,
    /// The first lists after a start wait for the backend until this time. `None` if lists do not wait for it.
    awaited: Mutex<Option<Instant>>,
    /// The time until which criswitch waits for the backend's first `Status` reply.
    report_by: Instant,
}

/// Notifications that wake the tasks of a backend. A notification waits until its task is free, except for
/// `answered`, which reaches only tasks that are waiting for it.
#[derive(Debug, Default)]
pub(crate) struct Wakeups {
    /// A call needs a connection, and none is open.
    pub(crate) wanted: Notify,
    /// A call takes so long that the backend may hang. The session probes the backend.
    pub(crate) suspected: Notify,
    /// The backend has answered a call that its session did not send.
    pub(crate) answered: Notify,
    /// The backend did not answer a merged call in time. The session repeats the call in the background.
    pub(crate) missed: Notify,
    /// The backend did not answer a short read in time. The session repeats the read in the background.
    pub(crate) late_reads: Notify,
    /// The backend has not applied the kubelet's runtime configuration. The session sends the configuration again.
    pub(crate) owed: Notify,
    /// criswitch has listed the backend's pods.
    pub(crate) listed: Notify,
    /// The backend has reported the file systems of its images.
    pub(crate) disks: Notify,
}

/// Gives access to the settings of the backend's row in the configuration, such as `backend.socket`.
impl Deref for Backend {
    type Target = Settings;

    fn deref(&self) -> &Settings {
        &self.settings
    }
}

impl Backend {
    /// A backend that is not connected yet.
    pub fn new(config: &BackendConfig, max_message: usize, dialer: Dialer) -> Backend {
        let settings = Arc::new(Settings::of(config, max_message));
        let wakeups = Arc::<Wakeups>::default();
        Backend {
            record: Record::new(Arc::clone(&settings), Arc::clone(&wakeups)),
            connection: Connection::new(Arc::clone(&settings)),
            settings,
            wakeups,
            statuses: Mutex::new(Statuses::new(max_message)),
            listing: tokio::sync::Mutex::default(),
            memory: Replies::new(max_message),
            own: Replies::new(max_message),
            events: Budget::for_events(max_message),
            calls: Ended::default(),
            parts: Ended::default(),
            dialer,
            files: FileWork::default(),
            disk_work: FileWork::default(),
            joined: AtomicBool::new(false),
            forgets: watch::Sender::default(),
            awaited: Mutex::default(),
            report_by: Instant::now() + REPORT_WAIT,
            saving: Saving::default(),
        }
    }

    /// The number of times that statuses of items may have changed; see [`Statuses::changes`].
    pub(crate) fn status_changes(&self) -> u64 {
        self.statuses.lock().changes()
    }

    /// Applies a changed configuration of the backend.
    pub(crate) fn configure(&self, config: &BackendConfig) {
        if self.settings.change(config) {
            self.warn_of_unexpected_user();
        }
    }

    /// Includes the backend in merged calls from now on.
    pub fn join(&self) {
        if !self.joined.swap(true, Ordering::Relaxed) {
            self.saving.note_change();
        }
    }

    /// Omits the backend from merged calls until criswitch lists its pods again, and drops its cached lists.
    pub(crate) fn leave(&self) {
        self.joined.store(false, Ordering::Relaxed);
        self.record.learn(Known::forget);
        self.statuses.lock().clear();
        *self.awaited.lock() = None;
        self.forgets.send_modify(|forgets| *forgets += 1);
    }

    /// Whether merged calls include the backend. A backend that was added by a reload is omitted until criswitch has
    /// listed its pods.
    pub fn has_joined(&self) -> bool {
        self.joined.load(Ordering::Relaxed)
    }

    /// The number of times that criswitch has forgotten the backend on request.
    pub(crate) fn forgets(&self) -> u64 {
        *self.forgets.borrow()
    }

    /// Whether criswitch may learn owners from the reply to a call, and may cache the reply. `forgets` is the value of
    /// [`Backend::forgets`] when the call was sent. A backend that merged calls omit must own nothing: if another
    /// backend listed the same item, the list of that backend would lack the item.
    pub(crate) fn may_learn_from(&self, forgets: u64) -> bool {
        self.has_joined() && self.forgets() == forgets
    }

    /// Waits until criswitch forgets the backend.
    async fn is_forgotten(&self) {
        self.forgets.subscribe().changed().await.ok();
    }

    /// Makes the first lists after a start wait for the backend, at most until `by`.
    pub(crate) fn await_until(&self, by: Instant) {
        *self.awaited.lock() = Some(by);
    }

    /// Records that criswitch has listed the backend's pods, so that lists no longer wait for the backend.
    pub(crate) fn was_listed(&self) {
        *self.awaited.lock() = None;
    }

    /// Waits until the backend is ready, if the first lists after a start wait for the backend. The wait also ends when
    /// criswitch forgets the backend, at `latest`, or at the time given to [`Backend::await_until`], whichever is
    /// first.
    pub(crate) async fn started(&self, latest: Instant) {
        let by = *self.awaited.lock();
        if let Some(by) = by {
            tokio::select! {
                () = self.connection.ready() => {}
                () = self.is_forgotten() => {}
                () = tokio::time::sleep_until(by.min(latest)) => {}
            }
        }
    }

    /// Whether the first lists after a start still wait for the backend.
    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited.lock().is_some_and(|by| Instant::now() < by)
    }

    /// Whether the backend fails, and since when. A change from down to unresponsive or back does not restart the time.
    pub(crate) fn failing(&self) -> Failing {
        let Link {
            state, ready_until, ..
        } = self.connection.link();
        match (state, ready_until.or_else(|| self.record.answered())) {
            (State::Ready(_), _) => Failing::No,
            (_, Some(since)) => Failing::Since(since),
            (_, None) => Failing::NeverAnswered,
        }
    }

    /// Waits for a change of the connection's state or of the saved facts that happens after this call.
    pub(crate) fn next_change(&self) -> impl Future<Output = ()> + use<> {
        let (mut link, mut made) = (self.connection.changes(), self.saving.changes());
        async move {
            tokio::select! {
                _ = link.changed() => {}
                _ = made.changed() => {}
            }
        }
    }

    /// The handlers that the backend last reported, or whether its first report is still awaited.
    pub(crate) fn report(&self) -> Report {
        let known = self.record.known();
        match self.awaited_until() {
            _ if known.has_current_status() => Report::Status(known.status),
            Some(_) => Report::Awaited,
            None => Report::Absent,
        }
    }

    /// The time until which criswitch waits for the backend's first `Status` reply. `None` if the reply has come or the
    /// wait is over.
    pub(crate) fn awaited_until(&self) -> Option<Instant> {
        let is_awaited = !self.record.learn(|known| known.has_current_status())
            && Instant::now() < self.report_by;
        is_awaited.then_some(self.report_by)
    }

    /// Like [`Record::learn`], for facts that are saved on disk. `change` returns whether it changed such a fact.
    pub(crate) fn learn_saved(&self, change: impl FnOnce(&mut Known) -> bool) {
        if self.record.learn(change) {
            self.saving.note_change();
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
    pub(crate) async fn open(&self, own: Option<&Address>) -> Result<OpenConnection, String> {
        let opened = self.dialer.open(&self.socket, own, &self.files).await?;
        self.meet(opened.server);
        Ok(opened)
    }

    /// The file at the socket's path now. `None` if there is no file, or if the file system does not answer.
    pub(crate) async fn socket_file(&self) -> Option<FileId> {
        self.dialer.file_at(&self.socket, &self.files).await
    }

    /// Whether a kept status may have to answer now: the backend is away, or late with a short read. The kept statuses
    /// are saved only then.
    pub(crate) fn needs_statuses(&self) -> bool {
        let has_late_reads = |known: &mut Known| !known.late_reads.rpcs().is_empty();
        !self.connection.is_ready() || self.record.learn(has_late_reads)
    }

    /// Changes the state of the connection. Saves the backend if [`Backend::needs_statuses`] may change with it.
    pub(crate) fn set(&self, state: State) {
        let since = self.begins(&state);
        let was_ready = self.connection.is_ready();
        let paused = match &state {
            State::Ready(wire) => Some((wire.clone(), false)),
            State::Unresponsive(wire, _) => Some((wire.clone(), true)),
            State::Connecting | State::Down(_) => None,
        };
        self.connection.set(state, since);
        if let Some((wire, is_paused)) = paused {
            wire.pause(is_paused);
        }
        if was_ready != self.connection.is_ready() {
            self.saving.note_change();
        }
    }

    /// When `state` began. If the backend was already away when criswitch started, this is the time of the backend's
    /// last reply to an earlier run of criswitch.
    fn begins(&self, state: &State) -> SystemTime {
        match (self.connection.link().state, state) {
            (State::Connecting, State::Down(_) | State::Unresponsive(..)) => {
                self.record.answered_at()
            }
            _ => SystemTime::now(),
        }
    }

    /// The open connection. If none is open, waits for the next attempt to connect and returns its result.
    ///
    /// # Errors
    /// `Unavailable` if no connection opens, or if the backend is unresponsive: then only the session's probe tries.
    pub(crate) async fn wire(&self) -> Result<Wire, Status> {
        let Link {
            state,
            failures,
            closes_early,
            ..
        } = self.connection.link();
        match state {
            State::Ready(wire) => return Ok(wire.for_calls()),
            State::Unresponsive(_, cause) => return Err(self.unresponsive(&cause)),
            State::Connecting | State::Down(_) => {}
        }
        self.wakeups.wanted.notify_one();
        let attempted = self.connection.attempted(failures);
        let attempted = if closes_early {
            let attempted = tokio::time::timeout(EARLY_END_LIMIT, attempted).await;
            attempted.unwrap_or(Some(state))
        } else {
            attempted.await
        };
        match attempted {
            Some(State::Ready(wire)) => Ok(wire.for_calls()),
            Some(State::Unresponsive(_, cause)) => Err(self.unresponsive(&cause)),
            Some(State::Down(cause)) => Err(self.unavailable(&cause)),
            Some(State::Connecting) | None => Err(self.unavailable(CLOSED)),
        }
    }

    /// Returns the connection for the second attempt of a call that failed over `last` with the status `failed`:
    /// `last`, or the next connection if `last` takes no further calls. Waits for the next attempt to connect.
    ///
    /// # Errors
    /// The cause if that attempt fails, or if the backend is unresponsive; `failed` if no session connects again.
    async fn wire_after(&self, last: Wire, failed: Status) -> Result<Wire, Status> {
        if !last.is_over() {
            if last.is_paused() {
                return Ok(self.wire().await?.for_user(last.user()));
            }
            return Ok(last);
        }
        if !self.connection.is_kept() {
            return Err(failed);
        }
        self.connection.wait_until_replaced().await;
        Ok(self.wire().await?.for_user(last.user()))
    }

    /// The status of a call to a backend that is unresponsive because of `cause`.
    fn unresponsive(&self, cause: &str) -> Status {
        match self.record.answered() {
            Some(at) => self.unavailable(&format!("{cause}; no answer for {}", span(at.elapsed()))),
            None => self.unavailable(cause),
        }
    }

    /// Why `request`, a short read, is not sent now: an earlier read has waited too long for a connection, or the
    /// backend has not answered an earlier read of the same RPC in time. `None` if an answer is expected.
    pub(crate) fn late_read(&self, row: &Row, request: &Bytes) -> Option<Status> {
        match self.connection.slow_cause() {
            Some(cause) => {
                self.wakeups.wanted.notify_one();
                Some(self.unavailable(&cause))
            }
            None => self.record.late_read(row, request),
        }
    }

    /// Records that the backend did not answer `request`, a short read, within `limit`. Only time in which the request
    /// was sent says something about the RPC. A read that waited `list_timeout` for a connection says that the
    /// connection is slow: no further short read waits for it.
    pub(crate) fn note_late_read(&self, row: &'static Row, request: &Bytes, limit: Duration) {
        if self.connection.was_open_for(limit) {
            self.record.note_late_read(row, request);
        } else if limit >= self.list_timeout() {
            self.connection.note_slow();
        }
    }

    /// Keeps the status in `reply`, the reply to a call of `row` for the item `id`. `pod` is the pod of a container;
    /// empty if it is unknown. Does not keep the status if an item may have changed since [`Backend::status_changes`]
    /// returned `changes`, or if there is no memory for the status.
    pub(crate) fn keep_status(&self, row: &Row, id: &str, pod: &str, reply: &Bytes, changes: u64) {
        if let Some((kind, state)) = row.status()
            && let Ok(status) = ItemStatus::of(reply, state)
            && let mut held = self.memory.of(User::Own, row).held()
            && held.grow(status.message.len()).is_ok()
        {
            let message = held.with(status.message);
            let status = ItemStatus { message, ..status };
            self.statuses.lock().keep(kind, id, pod, status, changes);
        }
    }

    /// Drops the cached `list`, because this list may lack new items.
    pub(crate) fn outdate(&self, list: List) {
        self.learn_saved(|known| known.lists.outdate(list));
    }

    /// Runs `asked`, a call of `row`, to its end, or until the row's [`Patience`] ends it. If `asked` takes longer than
    /// `list_timeout`, the session probes the backend. A call that creates ends as soon as the backend is forgotten.
    ///
    /// # Errors
    /// `Unavailable` if the call ends without an answer, else the error of `asked`.
    pub(crate) async fn patiently<T, E: From<Status>>(
        &self,
        row: &Row,
        mut asked: impl Future<Output = Result<T, E>> + Unpin,
    ) -> Result<T, E> {
        let limit = match row.patience {
            Patience::Short | Patience::Read => Duration::ZERO,
            Patience::Change => CHANGE_LIMIT,
            Patience::Create => {
                return tokio::select! {
                    biased;
                    status = self.forgotten() => Err(status.into()),
                    ended = asked => ended,
                };
            }
        };
        let unwatched = UNWATCHED.min(self.list_timeout());
        if let Ok(ended) = tokio::time::timeout(unwatched, &mut asked).await {
            return ended;
        }
        tokio::select! {
            biased;
            ended = asked => ended,
            status = self.given_up(limit, unwatched) => Err(status.into()),
        }
    }

    /// Waits until the backend has been unresponsive for `limit`, and returns the status with which the call ends then.
    /// `taken` is how long the call has run already. Meanwhile makes the session probe the backend each `list_timeout`.
    async fn given_up(&self, limit: Duration, taken: Duration) -> Status {
        let mut link = self.connection.changes();
        let mut wait = self.list_timeout().saturating_sub(taken);
        loop {
            let unresponsive = link.wait_for(|now| matches!(now.state, State::Unresponsive(..)));
            if tokio::time::timeout(wait, unresponsive).await.is_err() {
                self.wakeups.suspected.notify_one();
                wait = self.list_timeout();
                continue;
            }
            let answers = link.wait_for(|now| matches!(now.state, State::Ready(_)));
            if tokio::time::timeout(limit, answers).await.is_err() {
                let cause = self.connection.link().state.cause().cloned();
                return self.unresponsive(&cause.unwrap_or_default());
            }
        }
    }

    /// Waits until the backend is forgotten, and returns the status with which a call that creates ends then: no later
    /// list or call would find the created item. Meanwhile makes the session probe the backend.
    async fn forgotten(&self) -> Status {
        let mut forgotten = std::pin::pin!(self.is_forgotten());
        loop {
            tokio::select! {
                () = &mut forgotten => return errors::gone_backend(),
                () = tokio::time::sleep(self.list_timeout()) => self.wakeups.suspected.notify_one(),
            }
        }
    }

    /// Why the backend is not expected to answer this call now: it is down or unresponsive, or it is late with this
    /// RPC. `None` if an answer is expected.
    pub(crate) fn silence(&self, contribution: Contribution) -> Option<Status> {
        match self.connection.link().state {
            State::Connecting | State::Ready(_) => {}
            State::Unresponsive(_, cause) => return Some(self.unresponsive(&cause)),
            State::Down(cause) => return Some(self.unavailable(&cause)),
        }
        let is_late = contribution.is_of_all
            && self
                .record
                .learn(|known| known.is_late_with(contribution.row));
        is_late.then(|| self.unavailable("it has not answered an earlier call of this kind yet"))
    }
}
