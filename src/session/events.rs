//! Events of pods and containers. While there are subscribers, criswitch reads one stream of events from each backend
//! and sends these events to every subscriber.
//!
//! When the stream of a backend has ended and is open again, subscribers get an event with the current state of each of
//! its pods. A client's stream never ends because a backend is away.

mod baseline;
mod ends;
mod synthesized;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use criswitch_config::BackendId;
use criswitch_cri::codec::frames;
use criswitch_cri::codec::protobuf::{self, Malformed, Path};
use criswitch_cri::rpc::fields::{
    EVENT_CONTAINERS, EVENT_HANDLERS, EVENT_ID, EVENT_POD, EVENT_POD_UID, REQUESTED_ID,
    container_status_response, pod_sandbox_status, pod_sandbox_status_response,
};
use criswitch_cri::rpc::{self, Kind};
use parking_lot::Mutex;
use tonic::{Code, Status};

use crate::backend::Backend;
use crate::backend::answer::Answer;
use crate::backend::stream::Messages;
use crate::call::Failed;
use crate::dispatch::forward::short;
use crate::dispatch::own::{self, OwnCalls};
use crate::gate::{self, Readable};
use crate::limits::budget::Unread;
use crate::limits::give_way;
use crate::ownership::Owners;
use crate::session::until_answered;
use crate::switch::Switch;
use crate::switch::subscribers::Subscribers;
use crate::switch::view::View;
use crate::telemetry::counters::code_name;
use baseline::{Baseline, known_pods};
use ends::{AT_ONCE, Ends, StreamStart};
use synthesized::{DELETED, NOT_READY, STARTED, STOPPED, event};

/// The statuses of the containers in a `PodSandboxStatusResponse`.
const CONTAINERS: Path = &[pod_sandbox_status_response::CONTAINERS_STATUSES];
/// Why an event is dropped.
const TOO_LARGE: &str = "it is larger than max_message";
/// The wait before criswitch requests a failed list again.
const RETRY: Duration = Duration::from_secs(1);
/// The limits on the wait for the state of a pod when criswitch asks for the state again. Each wait is twice as long as
/// the one before, but at least as long as the first limit and at most as long as the second.
const STATE_LIMITS: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(120)];
/// How long criswitch still sends the events of a removed backend, and of a connection that takes no further calls. The
/// deletion event of a backend's last pod may come after the reply that led to the removal.
const LAST_EVENTS: Duration = Duration::from_secs(1);

/// Sends a backend's events to subscribers, while there are any, until the backend is removed.
pub(crate) async fn follow(switch: Arc<Switch>, backend: Arc<Backend>) {
    loop {
        tokio::select! {
            biased;
            () = backend.connection.closed() => return,
            () = switch.subscribers.until_some() => {}
        }
        tokio::select! {
            biased;
            () = switch.subscribers.until_none() => backend.record.clear_broken_events(),
            () = follow_streams(OwnCalls::new(&switch, &backend, None)) => return,
        }
    }
}

/// Opens the backend's stream, and opens it again whenever it ends. If subscribers may have missed events before a
/// stream, they first get the state of each pod. If the backend is removed while no stream is open, subscribers get a
/// deletion event for each of its pods.
async fn follow_streams(own: OwnCalls<'_>) {
    let OwnCalls {
        switch, backend, ..
    } = own;
    let away = !backend.connection.is_ready();
    let mut before = away.then(|| Baseline::now(switch, backend));
    let mut ends = Ends::default();
    loop {
        tokio::select! {
            biased;
            () = backend.connection.closed() => break,
            () = backend.connection.ready() => {}
        }
        let (opened, asked) = (StreamStart::now(backend), Inquiry::default());
        let mut at_loss = None;
        let ended = tokio::select! {
            biased;
            () = closed_for_a_while(backend) => break,
            ended = healed(backend, follow_stream(own, &mut before, &asked)) => ended,
            // The connection takes no further calls, and may last: a new process has no stream yet.
            () = lost_for_a_while(own, opened.failures, &mut at_loss) => {
                Err(backend.unavailable("its connection was replaced").into())
            }
        };
        let now = at_loss.unwrap_or_else(|| Baseline::now(switch, backend));
        before = Some(match before.take() {
            Some(unsent) => unsent.and(now, &switch.owners(), backend.id),
            None => now,
        });
        if let Some(end) = ends.note(backend, &opened, ended, asked.has_events()) {
            let cause = Answer::of_end(end.clone()).code_and_text();
            backend.record.note_rpc(&rpc::EVENTS, Some(cause));
            let _lacks = switch.subscribers.lacks_events(backend.id, end);
            // This runtime process has no events; try again after its connection is lost.
            tokio::select! {
                () = backend.connection.closed() => {}
                () = backend.connection.lost(opened.failures) => {}
            }
        }
        tokio::select! {
            () = backend.connection.closed() => {}
            () = tokio::time::sleep(ends.pause()) => {}
        }
    }
    if let Some(before) = before {
        send_deletions(own, &before, &BTreeSet::new()).await;
    }
}

/// Waits until the backend is removed, and then [`LAST_EVENTS`] for the events of its last pod.
async fn closed_for_a_while(backend: &Backend) {
    backend.connection.closed().await;
    tokio::time::sleep(LAST_EVENTS).await;
}

/// Waits until more than `failures` connections have failed or ended, and then [`LAST_EVENTS`] for the last events.
/// Sets `at_loss` to the pods at the loss: the first list of a new process removes the pods that it lacks.
async fn lost_for_a_while(own: OwnCalls<'_>, failures: u64, at_loss: &mut Option<Baseline>) {
    own.backend.connection.lost(failures).await;
    *at_loss = Some(Baseline::now(own.switch, own.backend));
    tokio::time::sleep(LAST_EVENTS).await;
}

/// Awaits the end of `stream`. A stream that stays open for [`AT_ONCE`] shows that the backend sends events again.
async fn healed<T>(backend: &Backend, stream: impl Future<Output = T>) -> T {
    let mut stream = std::pin::pin!(stream);
    if let Ok(ended) = tokio::time::timeout(AT_ONCE, &mut stream).await {
        return ended;
    }
    backend.record.clear_broken_events();
    stream.await
}

/// Sends the events of one stream to subscribers until the stream ends. If `before` is set, subscribers get the changes
/// since `before` when the stream begins: the state of each pod, and a deletion event for each removed pod. After that
/// `before` is `None`.
async fn follow_stream(
    own: OwnCalls<'_>,
    before: &mut Option<Baseline>,
    asked: &Inquiry,
) -> Result<(), Failed> {
    let sent = async {
        if let Some(before) = before {
            send_state(own, before, asked).await;
        }
        *before = None;
    };
    let mut streamed = std::pin::pin!(send_events(own, asked));
    tokio::select! {
        biased;
        result = &mut streamed => result,
        // The stream was requested before, so it has every change from now on.
        () = sent => streamed.await,
    }
}

/// Prefers the events of the open stream to the result of a query for a pod's state: an event that arrives during the
/// query is newer than the result.
#[derive(Default)]
struct Inquiry {
    /// The pod whose state is queried now, and whether an event of this pod has come since the query began.
    pod: Mutex<Option<(String, bool)>>,
    /// Whether the stream has brought any event.
    has_any: AtomicBool,
}

impl Inquiry {
    fn begin(&self, pod: &str) {
        *self.pod.lock() = Some((pod.to_owned(), false));
    }

    fn note_event(&self, event: &[u8]) {
        self.has_any.store(true, Ordering::Relaxed);
        // A malformed event belongs to no pod.
        let pod = protobuf::string(event, EVENT_POD).unwrap_or_default();
        if let Some((_, has_event)) = self.pod.lock().as_mut().filter(|(asked, _)| asked == pod) {
            *has_event = true;
        }
    }

    fn has_events(&self) -> bool {
        self.has_any.load(Ordering::Relaxed)
    }

    fn is_overtaken(&self) -> bool {
        self.pod
            .lock()
            .take()
            .is_some_and(|(_, has_event)| has_event)
    }
}

/// Sends the events of the backend to subscribers as they arrive.
async fn send_events(own: OwnCalls<'_>, asked: &Inquiry) -> Result<(), Failed> {
    let OwnCalls {
        switch, backend, ..
    } = own;
    let mut messages = Messages::open_own(backend, &rpc::EVENTS).await?;
    while let Some(message) = messages.next(backend).await? {
        // A backend may send many short events at once.
        tokio::task::yield_now().await;
        // A message is a part of the buffer of the stream, which may be far larger. The event alone is held and
        // counted.
        let message = Bytes::copy_from_slice(&message);
        let event = match Readable::event(&message) {
            Ok(event) => event,
            Err(fault) => {
                backend.record.drops_unreadable_event(&fault);
                continue;
            }
        };
        if is_about_another(&mut switch.owners(), backend.id, &message) {
            backend.record.drops_event();
            continue;
        }
        for (kind, path) in [(Kind::Container, EVENT_ID), (Kind::Pod, EVENT_POD)] {
            let id = protobuf::string(&message, path).unwrap_or_default();
            short::drop_statuses(switch, backend, kind, id);
        }
        let event = View::of(switch)
            .renamed(backend, &event, &EVENT_HANDLERS)?
            .unwrap_or(event);
        asked.note_event(&event);
        // The name of the row may be longer than the backend's name for the handler, so the event may have grown.
        if event.len() > backend.max_message {
            backend.record.drops_unreadable_event(TOO_LARGE);
            continue;
        }
        send(&switch.subscribers, backend, event).await?;
    }
    Ok(())
}

/// Whether an event of `backend` is about a pod or container that another backend owns, or a pod that another backend
/// is creating, or has the uid of another backend's pod. A malformed event counts as the backend's own.
fn is_about_another(owners: &mut Owners, backend: BackendId, event: &[u8]) -> bool {
    let pod = protobuf::string(event, EVENT_POD).unwrap_or_default();
    let uid = protobuf::string(event, EVENT_POD_UID).unwrap_or_default();
    let mut containers = protobuf::strings(event, EVENT_CONTAINERS)
        .unwrap_or_default()
        .into_iter()
        .chain(protobuf::string(event, EVENT_ID).ok());
    owners.is_of_another(Kind::Pod, pod, backend)
        || owners.is_created_elsewhere(pod, uid, backend)
        || owners.is_uid_of_another(uid, backend)
        || containers.any(|id| owners.is_of_another(Kind::Container, id, backend))
}

/// Sends one event of the backend to subscribers. While a subscriber lags, or the memory for the backend's events is
/// full, waits for a limited time. Meanwhile criswitch reads no further events, so the backend must stop sending them.
async fn send(subscribers: &Subscribers, backend: &Backend, event: Readable) -> Result<(), Status> {
    let event = hold(subscribers, backend, event).await?;
    subscribers.send(backend.id, &event).await;
    Ok(())
}

/// Returns the event, and counts its memory until every subscriber has read it.
async fn hold(
    subscribers: &Subscribers,
    backend: &Backend,
    event: Readable,
) -> Result<Readable, Status> {
    let mut held = backend.events.held();
    let mut fits = || held.grow(event.len());
    if fits().is_err() {
        let room = subscribers.make_room(backend.id, fits).await;
        room.map_err(|unread| backend.unread(&unread))?;
    }
    Ok(event.holding(held))
}

/// Sends an event that criswitch made itself, unless it is about the pod of another backend. Drops the event if clients
/// cannot use it, if it is too large or does not fit into memory. Later events are still sent.
async fn send_made(switch: &Switch, backend: &Backend, event: Bytes) {
    if is_about_another(&mut switch.owners(), backend.id, &event) {
        return;
    }
    let fault = match Readable::event(&event) {
        _ if event.len() > backend.max_message => TOO_LARGE.to_owned(),
        Ok(event) => {
            if let Err(status) = send(&switch.subscribers, backend, event).await {
                log_unsent(backend, status.code());
            }
            return;
        }
        Err(fault) => fault,
    };
    backend.record.drops_unreadable_event(&fault);
}

fn log_unsent(backend: &Backend, code: Code) {
    let (backend, code) = (backend.name(), code_name(code));
    tracing::debug!(%backend, %code, "cannot send events with the states of its pods");
}

/// Sends a deletion event for each pod of `before` that is not in `now` and that no other backend has.
async fn send_deletions(own: OwnCalls<'_>, before: &Baseline, now: &BTreeSet<String>) {
    let OwnCalls {
        switch, backend, ..
    } = own;
    if !before.gone(&switch.owners(), backend.id, now).is_empty() {
        // A pod lives on if its runtime now serves the socket of another backend.
        own::list_every(switch).await.ok();
    }
    let gone = before.gone(&switch.owners(), backend.id, now);
    for (id, status) in gone {
        send_made(switch, backend, event(&id, DELETED, &status, &[])).await;
    }
}

/// Sends an event with the state of each pod of the backend, and a deletion event for each pod that it no longer has.
async fn send_state(own: OwnCalls<'_>, before: &Baseline, asked: &Inquiry) {
    let OwnCalls {
        switch, backend, ..
    } = own;
    // The stream has no event of a pod that was created just before the stream was requested, and criswitch may not
    // know this pod yet. So criswitch lists the pods first.
    let list = || until_answered(|| own.list());
    while steadily(backend, list).await.is_none() {
        tokio::time::sleep(RETRY).await;
    }
    let now: BTreeSet<String> = known_pods(&View::of(switch), backend).into_keys().collect();
    send_deletions(own, before, &now).await;
    let known = KnownContainers::new();
    let (mut pods, mut limit) = (now, backend.list_timeout());
    // A pod without an answer does not delay the others: criswitch asks for it again after them.
    while !pods.is_empty() {
        let mut late = BTreeSet::new();
        for id in pods {
            asked.begin(&id);
            let state = steadily(backend, || state_of(own, &id, &known));
            match tokio::time::timeout(limit, state).await {
                Ok(Some(event)) if !asked.is_overtaken() => {
                    send_made(switch, backend, event).await;
                }
                Ok(_) => {}
                Err(_) => _ = late.insert(id),
            }
        }
        let [least, most] = STATE_LIMITS;
        (pods, limit) = (late, limit.saturating_mul(2).clamp(least, most));
    }
}

/// Makes a query. Repeats a failed query if the state of the backend changed meanwhile: a stream may stay open while
/// the backend hangs, and then only this query shows subscribers the changes that they missed. Returns `None` if the
/// query fails while the backend's state stays the same.
async fn steadily<T, E, A>(backend: &Backend, ask: impl Fn() -> A) -> Option<T>
where
    E: Into<Failed> + From<Status>,
    A: Future<Output = Result<T, E>>,
{
    loop {
        backend.connection.ready().await;
        let before = backend.connection.link().transitions;
        match ask().await {
            Ok(answer) => return Some(answer),
            Err(_) if backend.connection.link().transitions != before => {}
            Err(error) => {
                log_unsent(backend, error.into().code());
                return None;
            }
        }
    }
}

/// The containers of the backend's pods, by the pods' ids. Read once for all pods, and only if it is needed.
type KnownContainers = OnceLock<HashMap<String, Vec<String>>>;

/// Makes an event with a pod's state from the pod's `PodSandboxStatus`. If the reply has no statuses of containers,
/// queries each container that is `known`. A container that is created later has an event of its own.
async fn state_of(own: OwnCalls<'_>, id: &str, known: &KnownContainers) -> Result<Bytes, Failed> {
    let OwnCalls {
        switch, backend, ..
    } = own;
    let reply = ask_id(backend, &rpc::POD_STATUS, id).await?;
    if let Some(fault) = gate::containers_fault(&reply, CONTAINERS) {
        let fault = format!("the status of its pod {fault}");
        backend.record.drops_unreadable_event(&fault);
        return Err(backend.bad_reply(&fault).into());
    }
    give_way(&reply).await;
    let read = |fault: Malformed| backend.malformed(&fault);
    let status =
        &*protobuf::submessage(&reply, &[pod_sandbox_status_response::STATUS]).map_err(read)?;
    let state = protobuf::varint(status, &[pod_sandbox_status::STATE]).map_err(read)?;
    let mut containers: Vec<Bytes> = protobuf::all_bytes(&reply, CONTAINERS)
        .map_err(read)?
        .into_iter()
        .map(|container| reply.slice_ref(container))
        .collect();
    if containers.is_empty() {
        let known = known.get_or_init(|| switch.owners().containers.by_pod(backend.id));
        let mut left = backend.max_message;
        for id in known.get(id).into_iter().flatten() {
            let reply = ask_id(backend, &rpc::CONTAINER_STATUS, id).await?;
            let container =
                protobuf::submessage(&reply, &[container_status_response::STATUS]).map_err(read)?;
            // A larger event would be dropped, so no further container is queried.
            left = left
                .checked_sub(container.len())
                .ok_or_else(|| backend.unread(&Unread::TooLarge))?;
            containers.push(Bytes::copy_from_slice(&container));
        }
    }
    let kind = if state == NOT_READY { STOPPED } else { STARTED };
    let event = event(id, kind, status, &containers);
    Ok(View::of(switch)
        .renamed(backend, &event, &EVENT_HANDLERS)?
        .unwrap_or(event))
}

async fn ask_id(backend: &Backend, row: &'static rpc::Row, id: &str) -> Result<Bytes, Status> {
    let body = frames::frame(&protobuf::with_string(&[], REQUESTED_ID, id));
    let answer = backend.ask_own(None, row, body).await?;
    backend.message(&answer)
}
