//! One backend: its connection, kept alive by a task of its own, and the calls that go to it.
//!
//! A call is sent once; nothing here sends it again.

mod absence;
pub mod answer;
mod calls;
pub mod connect;
pub(crate) mod disks;
pub(crate) mod failed;
pub mod known;
pub mod lists;
mod peer;
pub mod state;
pub(crate) mod stream;
mod unsaved;

pub(crate) use absence::Contribution;
pub use calls::own_headers;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2::SendRequest;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::backend::connect::{Dialer, Driver, FileId, Opened};
use crate::backend::known::{Known, Report};
use crate::backend::lists::Lists;
use crate::backend::state::{Link, State};
use crate::codec::protobuf::{self, Malformed};
use crate::config::BackendConfig;
use crate::config::address::Address;
use crate::errors;
use crate::limits::budget::Budget;
use crate::ownership::BackendId;
use crate::rpc::{List, Row};
use crate::store::file_work::FileWork;
use crate::telemetry::counters::Ended;

/// Calls that are sent to a backend that is proven to hang, without an answer to any. One that its client has given up
/// takes 4 kB until the backend reads again: HTTP/2 has to tell it of the call and of its end.
const MOST_UNANSWERED: usize = 256;

/// How long automatically registered handlers wait for a backend with `auto_register` that has never reported its own.
const REPORT_WAIT: Duration = Duration::from_secs(30);

/// What a backend is down with that is gone.
pub(crate) const CLOSED: &str = "it was removed from the routing table";

/// A CRI socket that is called.
#[derive(Debug)]
pub struct Backend {
    /// Nobody else's, also after it is gone.
    pub id: BackendId,
    /// Where it serves.
    pub socket: Address,
    /// The largest reply, in bytes, that is read.
    pub max_message: usize,
    /// What its replies to clients take.
    pub memory: Budget,
    /// What its answers to criswitch's own questions take: clients have no part in it.
    pub own: Budget,
    /// What its events take that somebody who listens has not read yet.
    pub events: Budget,
    /// Calls of clients that went to it alone and have ended.
    pub calls: Ended,
    dialer: Dialer,
    files: FileWork,
    /// Looks at the file systems of its images, which may be others than that of its socket.
    disk_work: FileWork,
    link: watch::Sender<Link>,
    pub(crate) nudges: Nudges,
    /// Calls sent since it hangs, or since it last answered one.
    unanswered: AtomicUsize,
    /// It takes part in what all backends are asked.
    joined: AtomicBool,
    /// Until when the first lists wait for it; `None` once it was listed.
    awaited: Mutex<Option<Instant>>,
    /// Cancelled when the table has removed the backend.
    removal: CancellationToken,
    /// Until when its first `Status` is waited for.
    report_by: Instant,
    saving: unsaved::Saving,
    settings: Mutex<Settings>,
    known: Mutex<Known>,
}

/// Wakes the tasks of a backend. A nudge that comes while its task does something else is kept, except for `heard`.
#[derive(Debug, Default)]
pub(crate) struct Nudges {
    /// A call wants a connection that there is not.
    pub(crate) wanted: Notify,
    /// A call has taken so long that the backend may hang: a probe will tell.
    pub(crate) suspected: Notify,
    /// The backend answers a client's call.
    pub(crate) heard: Notify,
    /// The backend has missed its part of a merged reply.
    pub(crate) missed: Notify,
    /// The backend has missed the kubelet's runtime configuration. criswitch sends it again when the backend answers.
    pub(crate) owed: Notify,
    /// The pods of the backend have been listed.
    pub(crate) listed: Notify,
    /// The backend has reported the file systems of its images.
    pub(crate) disks: Notify,
}

/// What a reload may change.
#[derive(Debug)]
struct Settings {
    name: Arc<str>,
    config: BackendConfig,
}

/// An open connection.
pub type Wire = SendRequest<Full<Bytes>>;

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
        }
    }

    /// Takes over what the configuration says of it now.
    pub(crate) fn configure(&self, config: &BackendConfig) {
        let last = std::mem::replace(&mut *self.settings.lock(), Settings::of(config));
        if last.config.user != config.user {
            self.warn_of_unexpected_user();
        }
    }

    /// Goes by another name, where a new backend has taken its own.
    pub(crate) fn rename(&self, name: &str) {
        self.settings.lock().name = name.into();
    }

    /// Its name in the configuration.
    pub fn name(&self) -> Arc<str> {
        Arc::clone(&self.settings.lock().name)
    }

    /// How long a merged call waits for it where something can stand in.
    pub fn list_timeout(&self) -> Duration {
        self.settings.lock().config.list_timeout
    }

    /// How long a merged call for stats waits for it.
    pub fn stats_timeout(&self) -> Duration {
        self.settings.lock().config.stats_timeout
    }

    /// The user whom the configuration lets serve its socket.
    pub(crate) fn user(&self) -> Option<u32> {
        self.settings.lock().config.user
    }

    /// How old its cached lists may be that are served while it does not answer.
    pub(crate) fn stale_lists(&self) -> Duration {
        self.settings.lock().config.stale_lists
    }

    /// How long a merged call of `row` waits for it.
    pub(crate) fn timeout(&self, row: &Row) -> Duration {
        match row.is_stats() {
            true => self.stats_timeout(),
            false => self.list_timeout(),
        }
    }

    /// From now on it is part of what all backends are asked.
    pub fn join(&self) {
        if !self.joined.swap(true, Ordering::Relaxed) {
            self.has_changed();
        }
    }

    /// From now on it is not, until it is listed again; and nothing is known of what it has.
    pub(crate) fn leave(&self) {
        self.joined.store(false, Ordering::Relaxed);
        let mut known = self.known.lock();
        known.lists = Lists::default();
        known.absent.clear();
    }

    /// Whether it is. One that a reload adds is not before it has been listed: until then nobody knows of its pods.
    pub fn has_joined(&self) -> bool {
        self.joined.load(Ordering::Relaxed)
    }

    /// After a start the first lists wait for it, no longer than until then.
    pub(crate) fn await_until(&self, by: Instant) {
        *self.awaited.lock() = Some(by);
    }

    /// It was listed: it is not waited for any more.
    pub(crate) fn was_listed(&self) {
        *self.awaited.lock() = None;
    }

    /// Waits until it was listed after the start, as long as lists wait for that, and not longer than until `latest`.
    pub(crate) async fn started(&self, latest: Instant) {
        let by = *self.awaited.lock();
        if let Some(by) = by {
            tokio::time::timeout_at(by.min(latest), self.ready())
                .await
                .ok();
        }
    }

    /// Whether the first lists after a start still wait for it.
    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited.lock().is_some_and(|by| Instant::now() < by)
    }

    /// Ends its session once the calls in flight are done.
    pub(crate) fn close(&self) {
        self.removal.cancel();
    }

    /// Waits until the table has removed the backend.
    pub(crate) async fn closed(&self) {
        self.removal.cancelled().await;
    }

    /// The state of the connection now.
    pub fn link(&self) -> Link {
        self.link.borrow().clone()
    }

    /// What it last said of itself.
    pub fn known(&self) -> Known {
        self.known.lock().clone()
    }

    /// What it reports of its handlers.
    pub(crate) fn report(&self) -> Report {
        let known = self.known();
        match self.awaited_until() {
            _ if known.has_said_status() => Report::Status(known.status),
            Some(_) => Report::Awaited,
            None => Report::Absent,
        }
    }

    /// Until when its first `Status` is waited for; `None` if that has come, or is not waited for any more.
    pub(crate) fn awaited_until(&self) -> Option<Instant> {
        let is_awaited = !self.known.lock().has_said_status() && Instant::now() < self.report_by;
        is_awaited.then_some(self.report_by)
    }

    /// Changes what is known of it.
    pub fn learn<T>(&self, change: impl FnOnce(&mut Known) -> T) -> T {
        change(&mut self.known.lock())
    }

    /// The same for what is saved: `change` returns whether it is different now.
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

    /// Opens a connection; the future is what drives it, and ends with it.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub async fn connect(&self) -> Result<(Wire, Driver), String> {
        let opened = self.open(None).await?;
        Ok((opened.wire, opened.connection))
    }

    /// The same, unless it would be one to `own`, the socket that criswitch itself listens on.
    pub(crate) async fn open(&self, own: Option<&Address>) -> Result<Opened, String> {
        let opened = self.dialer.open(&self.socket, own, &self.files).await?;
        self.meet(opened.peer);
        Ok(opened)
    }

    /// Which file its socket is now; `None` if there is none, or if its file system does not answer.
    pub(crate) async fn socket_file(&self) -> Option<FileId> {
        self.dialer.file_at(&self.socket, &self.files).await
    }

    /// What a status of this backend says without its name, which goes before every cause.
    pub fn cause(&self, status: &Status) -> String {
        let named = self.unavailable("");
        let message = status.message();
        let cause = message.strip_prefix(named.message()).unwrap_or(message);
        cause.to_owned()
    }

    /// Changes the state; one log line for each change, none for another cause of the same state.
    pub(crate) fn set(&self, state: State) {
        let changed = self.link().state.as_ref() != state.as_ref();
        if changed {
            // The removal of a backend was already logged.
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
            link.failures += u64::from(matches!(state, State::Down(_)));
            link.state = state;
        });
    }

    /// When `state` began: a backend that is away at the start has been so since it last answered an earlier run of
    /// criswitch.
    fn begins(&self, state: &State) -> SystemTime {
        match (self.link().state, state) {
            (State::Connecting, State::Down(_) | State::Unresponsive(..)) => self.answered_at(),
            _ => SystemTime::now(),
        }
    }

    /// The open connection; if there is none, what the next attempt to make one comes to.
    pub(crate) async fn wire(&self) -> Result<Wire, Status> {
        let Link {
            state, failures, ..
        } = self.link();
        match state {
            State::Ready(wire) => return Ok(wire),
            // One that was never listed takes no call yet.
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
        // Nobody connects to a removed backend.
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

    /// `Unavailable` if a probe has proven that it hangs.
    pub(crate) fn hangs(&self) -> Option<Status> {
        match self.link().state {
            State::Unresponsive(_, cause) => Some(self.unavailable(&cause)),
            State::Connecting | State::Ready(_) | State::Down(_) => None,
        }
    }

    /// The connection to a backend that hangs, unless enough calls have been sent there already.
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

    /// Waits until more than so many connections have failed or ended.
    pub(crate) async fn lost(&self, failures: u64) {
        let mut link = self.link.subscribe();
        link.wait_for(|now| now.failures > failures).await.ok();
    }

    /// There may be more by now than the cached list has.
    pub(crate) fn outdate(&self, list: List) {
        self.learn_saved(|known| known.lists.outdate(list));
    }

    /// When it last answered anything, by the wall clock; now if it never has.
    pub(crate) fn answered_at(&self) -> SystemTime {
        let age = self.answered().map_or(Duration::ZERO, |at| at.elapsed());
        let now = SystemTime::now();
        now.checked_sub(age).unwrap_or(now)
    }

    /// When it last answered anything.
    pub(crate) fn answered(&self) -> Option<Instant> {
        self.known.lock().answered
    }

    /// Runs what was asked of it to its end, or until a probe has proven that it hangs. Something that takes long is
    /// no proof, but a reason to probe.
    ///
    /// # Errors
    /// `Unavailable` if it hangs, else what `asked` says.
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

    /// `Unavailable`, naming this backend.
    pub fn unavailable(&self, cause: &str) -> Status {
        errors::unavailable(&self.name(), &self.socket, cause)
    }

    /// `Internal`, for a reply that is not protobuf where it is read.
    pub fn malformed(&self, fault: &Malformed) -> Status {
        self.bad_reply(&format!("its reply is malformed: {fault}"))
    }

    /// Rejects a message that nothing else reads before it is merged, if it breaks off: its last field would take the
    /// next backend's for its own.
    ///
    /// # Errors
    /// `Internal` if it breaks off.
    pub(crate) fn is_whole(&self, message: &[u8]) -> Result<(), Status> {
        match protobuf::fields(message).find_map(Result::err) {
            Some(fault) => Err(self.malformed(&fault)),
            None => Ok(()),
        }
    }

    /// `Internal`, naming this backend.
    pub fn bad_reply(&self, cause: &str) -> Status {
        errors::bad_reply(&self.name(), &self.socket, cause)
    }
}

fn log_change(backend: &Backend, state: &State) {
    let (name, socket, state, cause) = (
        &backend.name(),
        &backend.socket,
        state.as_ref(),
        state.cause().map(AsRef::as_ref),
    );
    match state {
        "ready" => tracing::info!(backend = %name, %socket, "backend is ready"),
        _ => tracing::warn!(backend = %name, %socket, cause, "backend is {state}"),
    }
}
