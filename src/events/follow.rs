//! Following one backend's events: its stream opened again and again, and what was missed between told from its state.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tonic::{Code, Status};

use super::made::{DELETED, NOT_READY, STARTED, STOPPED, event, gone_pod, removed_pod};
use crate::backend::{Backend, own_headers};
use crate::call::{Call, Failed};
use crate::link::State;
use crate::owners::Mark;
use crate::rpc::{self, EVENT_HANDLER, Kind, List};
use crate::streams::Messages;
use crate::switch::Switch;
use crate::wire::{self, Malformed};

/// The wait before a stream that has ended is opened again.
const PAUSE: Duration = Duration::from_millis(100);
/// The wait before a list that was refused is asked for again.
const RETRY: Duration = Duration::from_secs(1);
/// How long a backend that is gone is still listened to: its last pod's deletion may follow the answer that ended it.
const LAST_EVENTS: Duration = Duration::from_secs(1);

/// Follows a backend's events until it is gone, while anybody listens.
pub(crate) async fn follow(switch: Arc<Switch>, backend: Arc<Backend>) {
    loop {
        tokio::select! {
            biased;
            () = backend.closed() => return,
            () = switch.events.listened(true) => {}
        }
        tokio::select! {
            biased;
            () = switch.events.listened(false) => {}
            () = follow_streams(&switch, &backend) => return,
        }
    }
}

/// What was known of a backend's pods when its events were last heard.
struct Before {
    /// As `PodSandboxStatus`es that are not ready, by id.
    pods: HashMap<String, Bytes>,
    at: Mark,
}

impl Before {
    fn now(switch: &Switch, backend: &Backend) -> Before {
        let at = switch.owners().mark();
        let pods = known_pods(switch, backend);
        Before { pods, at }
    }

    /// This, and what came to be known since without anybody being told.
    fn and(mut self, later: Before) -> Before {
        self.pods.extend(later.pods);
        self
    }

    /// The pods that have gone since: those that are not among `now`, also such as came and went.
    fn gone(
        &self,
        switch: &Switch,
        backend: &Backend,
        now: &BTreeSet<String>,
    ) -> Vec<(String, Bytes)> {
        let removed = switch
            .owners()
            .pods_removed(backend.id, self.at)
            .into_iter();
        let removed = removed.map(|(id, uid)| (id.clone(), removed_pod(&id, &uid)));
        // What was listed says more.
        let all: BTreeMap<_, _> = removed.chain(self.pods.clone()).collect();
        all.into_iter()
            .filter(|(id, _)| !now.contains(id))
            .collect()
    }
}

/// Opens the backend's stream again and again; its pods' states are told first if that is later than somebody listens,
/// and the end of its last ones when it is gone.
async fn follow_streams(switch: &Arc<Switch>, backend: &Arc<Backend>) {
    let away = !matches!(backend.link().state, State::Ready(_));
    let mut before = away.then(|| Before::now(switch, backend));
    loop {
        tokio::select! {
            biased;
            () = backend.closed() => break,
            () = backend.ready() => {}
        }
        let failures = backend.link().failures;
        let failed = tokio::select! {
            biased;
            () = closed_for_a_while(backend) => break,
            ended = follow_stream(switch, backend, &mut before) => ended.err(),
        };
        let now = Before::now(switch, backend);
        before = Some(match before.take() {
            Some(untold) => untold.and(now),
            None => now,
        });
        if let Some(failed) = failed.filter(|failed| failed.code() == Code::Unimplemented) {
            let end = failed.named(backend).into_trailers();
            let _lacks = switch.events.lacks(backend.id, end);
            // The process that says so will not have them; the next one may.
            tokio::select! {
                () = backend.closed() => {}
                () = backend.lost(failures) => {}
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    if let Some(before) = before {
        tell_gone(switch, backend, &before, &BTreeSet::new()).await;
    }
}

/// Waits until it is gone, and what it had to say of its last pod has come.
async fn closed_for_a_while(backend: &Backend) {
    backend.closed().await;
    tokio::time::sleep(LAST_EVENTS).await;
}

/// Tells one stream's events to its end, and at its beginning what has become of the pods of `before`, which is `None`
/// when that is done.
async fn follow_stream(
    switch: &Arc<Switch>,
    backend: &Arc<Backend>,
    before: &mut Option<Before>,
) -> Result<(), Failed> {
    let asked = Asked::default();
    let told = async {
        if let Some(before) = before {
            tell_state(switch, backend, before, &asked).await;
        }
        *before = None;
    };
    let mut streamed = std::pin::pin!(tell_events(switch, backend, &asked));
    tokio::select! {
        biased;
        result = &mut streamed => result,
        // The stream has been asked for by now, so what changes from here on comes in it.
        () = told => streamed.await,
    }
}

/// The pod whose state is asked for just now, and whether an event of its own came meanwhile, which is newer.
#[derive(Default)]
struct Asked(Mutex<Option<(String, bool)>>);

impl Asked {
    fn begin(&self, pod: &str) {
        *self.locked() = Some((pod.to_owned(), false));
    }

    fn heard(&self, event: &[u8]) {
        // `pod_sandbox_status.id`; what cannot be read is of no pod.
        let pod = wire::string(event, &[4, 1]).unwrap_or_default();
        if let Some((_, heard)) = self.locked().as_mut().filter(|(asked, _)| asked == pod) {
            *heard = true;
        }
    }

    fn is_overtaken(&self) -> bool {
        self.locked().take().is_some_and(|(_, heard)| heard)
    }

    fn locked(&self) -> MutexGuard<'_, Option<(String, bool)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells the backend's events as they come.
async fn tell_events(
    switch: &Arc<Switch>,
    backend: &Arc<Backend>,
    asked: &Asked,
) -> Result<(), Failed> {
    let (headers, body) = (own_headers(), wire::frame(&[]));
    let call = Call {
        row: &rpc::EVENTS,
        headers,
        body,
        live: switch.live(),
    };
    let mut messages = Messages::open(backend, &call).await?;
    // It would keep its table, and all that was in that, for as long as the stream lasts.
    drop(call);
    while let Some(message) = messages.next(backend).await? {
        let renamed = switch.renamed(backend, &message, EVENT_HANDLER)?;
        let event = renamed.unwrap_or(message);
        asked.heard(&event);
        // As long as a listener has not read it, it counts as the backend's.
        let mut held = backend.memory.held();
        let grown = held.grow(event.len());
        grown.map_err(|unread| backend.unread(&unread))?;
        tell(switch, held.with(event)).await;
    }
    Ok(())
}

/// Tells an event, and lets those who listen take it: many that come at once must not fill their queue.
async fn tell(switch: &Switch, event: Bytes) {
    switch.events.tell(Ok(event));
    tokio::task::yield_now().await;
}

/// Tells the deletion of those of `before` that are not among `now`.
async fn tell_gone(switch: &Switch, backend: &Backend, before: &Before, now: &BTreeSet<String>) {
    for (id, status) in before.gone(switch, backend, now) {
        let event = event(&id, DELETED, &status, &[]);
        let renamed = switch
            .renamed(backend, &event, EVENT_HANDLER)
            .ok()
            .flatten();
        tell(switch, renamed.unwrap_or(event)).await;
    }
}

/// Tells the state of each of the backend's pods, and the deletion of those that it no longer has.
async fn tell_state(switch: &Arc<Switch>, backend: &Arc<Backend>, before: &Before, asked: &Asked) {
    // A pod that came just before the stream was asked for is in no event, and perhaps not known yet.
    while steadily(backend, || switch.list(backend, None))
        .await
        .is_none()
    {
        tokio::time::sleep(RETRY).await;
    }
    let now: BTreeSet<String> = known_pods(switch, backend).into_keys().collect();
    tell_gone(switch, backend, before, &now).await;
    for id in now {
        asked.begin(&id);
        let event = steadily(backend, || state_of(switch, backend, &id)).await;
        if let Some(event) = event.filter(|_| !asked.is_overtaken()) {
            tell(switch, event).await;
        }
    }
}

/// Asks until the backend has answered: a stream that is open lasts while its backend hangs for a while, and nobody
/// else tells what has been missed. `None` if it answers with an error.
async fn steadily<T, E, A>(backend: &Backend, ask: impl Fn() -> A) -> Option<T>
where
    E: Into<Failed> + From<Status>,
    A: Future<Output = Result<T, E>>,
{
    loop {
        backend.ready().await;
        let before = backend.link().transitions;
        match backend.patiently(ask()).await {
            Ok(answer) => return Some(answer),
            Err(_) if backend.link().transitions != before => {}
            Err(error) => {
                let (backend, code) = (backend.name(), error.into().code());
                tracing::debug!(%backend, ?code, "cannot tell the state of its pods");
                return None;
            }
        }
    }
}

/// The event that tells a pod's state, made from its `PodSandboxStatus`.
async fn state_of(switch: &Switch, backend: &Backend, id: &str) -> Result<Bytes, Failed> {
    let reply = ask_id(backend, &rpc::POD_STATUS, id).await?;
    let read = |fault: Malformed| backend.malformed(&fault);
    let status = wire::bytes(&reply, &[1]).map_err(read)?;
    let state = wire::varint(status, &[3]).map_err(read)?;
    let mut containers: Vec<Bytes> = Vec::new();
    for container in wire::all_bytes(&reply, &[3]).map_err(read)? {
        containers.push(Bytes::copy_from_slice(container));
    }
    if containers.is_empty() {
        let ids = switch.owners().containers_of(id);
        for id in ids {
            let reply = ask_id(backend, &rpc::CONTAINER_STATUS, &id).await?;
            containers.push(Bytes::copy_from_slice(
                wire::bytes(&reply, &[1]).map_err(read)?,
            ));
        }
    }
    let kind = if state == NOT_READY { STOPPED } else { STARTED };
    let event = event(id, kind, status, &containers);
    Ok(switch
        .renamed(backend, &event, EVENT_HANDLER)?
        .unwrap_or(event))
}

async fn ask_id(backend: &Backend, row: &'static rpc::Row, id: &str) -> Result<Bytes, Status> {
    let body = wire::frame(&wire::with_string(&[], &[1], id));
    let answer = backend.ask(row, &own_headers(), body).await?;
    backend.message(&answer)
}

/// The backend's pods, and what was last listed of them as a `PodSandboxStatus` that is not ready.
fn known_pods(switch: &Switch, backend: &Backend) -> HashMap<String, Bytes> {
    let lists = backend.known().lists;
    let listed = lists
        .get(List::Pods)
        .map(|list| list.message.clone())
        .unwrap_or_default();
    let mut listed: HashMap<&str, &[u8]> = wire::fields(&listed)
        .filter_map(|field| field.ok()?.bytes().ok())
        .filter_map(|pod| Some((wire::string(pod, &[1]).ok()?, pod)))
        .collect();
    let owners = switch.owners();
    let owned = owners.of(Kind::Pod, backend.id).into_iter();
    owned
        .map(|id| {
            (
                id.to_owned(),
                gone_pod(id, listed.remove(id).unwrap_or_default()),
            )
        })
        .collect()
}
