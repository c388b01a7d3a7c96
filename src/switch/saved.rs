//! What survives a restart: each backend's cached lists, saved before a client sees what is in them.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::time::Instant;

use crate::backend::Backend;
use crate::backend::connect::Dialer;
use crate::backend::lists::Snapshot;
use crate::backend::state::State;
use crate::config::address::Address;
use crate::config::{BackendConfig, Config};
use crate::rpc::List;
use crate::store::{Found, LastKnown, Saved, Store};
use crate::switch::learn::{self, Asked};
use crate::switch::{Switch, cached, labels, reload};
use crate::topology::auto_register::AutoRegisteredHandler;

/// How often the time of a backend's last answer is saved.
const TOUCH_EVERY: Duration = Duration::from_secs(10);
/// What is reported when the state's file system takes longer than [`crate::store::file_work::FILE_LIMIT`].
const NO_ANSWER: &str = "the file system of the state does not answer";
/// How long after a failure the state is saved again.
const RETRY: Duration = Duration::from_secs(1);
/// The name of a backend that no file names and whose own name is lost.
const UNNAMED: &str = "unnamed";
/// How long the first lists wait for a backend whose lists are known.
pub(crate) const BRIEF_WAIT: Duration = Duration::from_secs(1);

/// Saves what changes of `backend`, as long as there is a backend and a store.
pub(crate) async fn keep(switch: Arc<Switch>, backend: Arc<Backend>) {
    let Some(store) = switch.store.clone() else {
        return;
    };
    tokio::select! {
        biased;
        () = backend.closed() => {}
        never = save_changes(&switch, &backend, &store) => match never {},
    }
    // The reply to the removal of its last pod waits for this: the file may show the pod until then.
    let socket = backend.socket.to_string();
    let forgotten = work(&store, move |store| store.forget(&socket)).await;
    backend.was_saved(u64::MAX, outcome(forgotten));
}

/// What came of work that saves: why something is lost, or why neither the old state could be replaced nor removed.
fn outcome(saved: Option<io::Result<Option<io::Error>>>) -> Result<Option<String>, String> {
    match saved {
        Some(Ok(lost)) => Ok(lost.map(|error| error.to_string())),
        Some(Err(error)) => Err(error.to_string()),
        None => Err(NO_ANSWER.to_owned()),
    }
}

/// Works on the files of `store` beside the calls; one thread is enough for all backends.
async fn work<T: Send + 'static>(
    store: &Arc<Store>,
    work: impl FnOnce(&Store) -> T + Send + 'static,
) -> Option<T> {
    let files = Arc::clone(store);
    store.work.run(move || work(&files)).await
}

async fn save_changes(switch: &Switch, backend: &Backend, store: &Arc<Store>) -> Infallible {
    let mut last = 0;
    loop {
        tokio::select! {
            biased;
            change = backend.changed_after(last) => {
                let saved = save(switch, backend, store).await;
                last = if saved == Ok(None) { change } else { last };
                let is_whole = saved == Ok(None);
                backend.was_saved(change, saved);
                if !is_whole {
                    // The reply to the next call that changes something does not wait for that long.
                    let next = backend.changed_after(change);
                    tokio::time::timeout(RETRY, next).await.ok();
                }
            }
            () = tokio::time::sleep(TOUCH_EVERY) => touch(backend, store).await,
        }
    }
}

async fn save(
    switch: &Switch,
    backend: &Backend,
    store: &Arc<Store>,
) -> Result<Option<String>, String> {
    let (saved, answered) = (saved(switch, backend), backend.answered_at());
    backend.saves_part(saved.is_partial());
    outcome(work(store, move |store| store.save(saved, answered)).await)
}

async fn touch(backend: &Backend, store: &Arc<Store>) {
    let (socket, answered) = (backend.socket.to_string(), backend.answered_at());
    work(store, move |store| store.touch(&socket, answered)).await;
}

/// A switch that goes on where the last run of criswitch ended, as `found` says, and saves its state in `store`. A
/// backend that no file names any more is kept for the pods that it has.
pub fn resume(config: Config, dialer: &Dialer, store: Store, mut found: Found) -> Switch {
    let (kept, known) = known_and_kept(&config, &mut found);
    let mut switch = Switch::not_started(config, kept, dialer);
    restore_all(&switch, known);
    let live = switch.live();
    live.backends.iter().for_each(|it| it.begin_saving());
    let state = |backend: &Arc<Backend>| (saved(&switch, backend), backend.answered_at());
    store.begin(live.backends.iter().map(state));
    switch.store = Some(Arc::new(store));
    switch
}

/// Takes over what the last run of criswitch knew of each backend, and the handlers that were registered automatically.
fn restore_all(switch: &Switch, known: Vec<LastKnown>) {
    let live = switch.live();
    let mut held = Vec::new();
    for (backend, known) in live.backends.iter().zip(known) {
        let handlers = known.auto_registered();
        restore(switch, backend, known);
        held.extend(handlers.into_iter().map(|name| AutoRegisteredHandler {
            name,
            backend: backend.id,
            runs_pods: reload::runs_pods(switch, backend.id),
        }));
    }
    // A kill between two saves may leave one handler with two backends.
    held.sort_by_key(|it| !it.runs_pods);
    switch.set_live(live.restored(&held));
}

/// A whole list of `backend` was cached. The list may complete the saved state although its items are the same as before,
/// for example a list of containers after a new pod: the state is saved again then.
pub(crate) fn complete(switch: &Switch, backend: &Backend) {
    if backend.is_saved_in_part() && !saved(switch, backend).is_partial() {
        backend.has_changed();
    }
}

/// What would be served for `backend` if it were away now.
pub(crate) fn saved(switch: &Switch, backend: &Backend) -> Saved {
    let list = |list| {
        let message = backend.known().lists.message(list)?;
        cached::own_items(switch, list, backend, &message, &[])
    };
    let handlers = switch.owners().rows(backend.id);
    let disputed = switch.owners().disputed(backend.id);
    let known = backend.known();
    let live = switch.live();
    let auto_registered = live
        .auto_registered_by(backend.id)
        .map(str::to_owned)
        .collect();
    Saved {
        // The store knows both.
        boot: String::new(),
        run: 0,
        socket: backend.socket.to_string(),
        name: backend.name().to_string(),
        joined: backend.has_joined(),
        pods: list(List::Pods),
        containers: list(List::Containers),
        images: list(List::Images),
        handlers,
        disputed,
        descriptors: labels::descriptors(backend).filter(labels::is_kept),
        version: known.version,
        status: known.status,
        auto_registered,
    }
}

/// Why lists would fail after a restart as long as `backend` is away, as a sentence; `None` if they would not.
pub(crate) fn restart_problem(switch: &Switch, backend: &Backend) -> Option<String> {
    if !backend.has_joined() || matches!(backend.link().state, State::Ready(_)) {
        return None;
    }
    let why = match &switch.store {
        _ if !switch.question.has_listed(backend.id) => "it has never answered".to_owned(),
        Some(_) => backend.unsaved()?,
        None => "its state is not saved".to_owned(),
    };
    let (name, socket) = (backend.name(), &backend.socket);
    Some(format!(
        "a restart now would make lists fail: backend {name} ({socket}) is away, and {why}"
    ))
}

/// Takes over what the last run of criswitch knew of `backend`. The first lists wait for the backend until `start_by`
/// unless its lists are known.
pub(crate) fn restore(switch: &Switch, backend: &Backend, known: LastKnown) {
    match known {
        LastKnown::Saved(saved, answered) => restore_saved(switch, backend, *saved, answered),
        LastKnown::Empty => {
            let nothing = || Some(Bytes::new());
            let saved = Saved {
                joined: true,
                pods: nothing(),
                containers: nothing(),
                images: nothing(),
                ..Saved::default()
            };
            restore_saved(switch, backend, saved, SystemTime::now());
            backend.await_until(switch.start_by);
        }
        LastKnown::New => {}
        LastKnown::First | LastKnown::Unknown => {
            backend.join();
            backend.await_until(switch.start_by);
        }
    }
}

fn restore_saved(switch: &Switch, backend: &Backend, saved: Saved, answered: SystemTime) {
    if !saved.joined {
        return;
    }
    backend.join();
    let at = instant_of(answered);
    let is_known = saved.pods.is_some() && saved.containers.is_some();
    let lists = [
        (List::Pods, saved.pods),
        (List::Containers, saved.containers),
        (List::Images, saved.images),
        (List::MetricDescriptors, saved.descriptors),
    ];
    for (list, message) in lists {
        if let Some(message) = message {
            restore_list(switch, backend, list, message, at);
        }
    }
    let mut owners = switch.owners();
    owners.restore_rows(backend.id, saved.handlers);
    owners.restore(backend.id, &saved.disputed);
    drop(owners);
    // The time in the file may be behind by as much.
    let at_most = (at + TOUCH_EVERY).min(Instant::now());
    backend.learn(|known| {
        known.answered = Some(at);
        known.restore(saved.version, saved.status, at_most);
    });
    match is_known {
        true => {
            switch.question.listed(backend.id);
            backend.await_until(switch.start_by.min(Instant::now() + BRIEF_WAIT));
        }
        false => backend.await_until(switch.start_by),
    }
}

fn restore_list(switch: &Switch, backend: &Backend, list: List, message: Bytes, at: Instant) {
    let Asked { mark, .. } = learn::asked(switch);
    if let Err(fault) = learn::learn_list(switch, list, backend, &message, Asked { mark, at }) {
        let fault = fault.message();
        tracing::error!(backend = %backend.name(), fault, "a saved list cannot be used");
        return;
    }
    let snapshot = Snapshot {
        message,
        taken: at,
        mark,
    };
    backend.keep_list(list, snapshot);
}

/// What a restart would cost with this configuration after the state that was `found`, a sentence each.
pub fn restart_problems(config: &Config, mut found: Found) -> Vec<String> {
    let (kept, known) = known_and_kept(config, &mut found);
    let rows = config.table.backends.iter().chain(&kept);
    let unknown = rows.zip(known).filter(|(_, known)| known.is_partial());
    let sentences = unknown.map(|(row, _)| {
        let BackendConfig { name, socket, .. } = row;
        format!(
            "a restart would make lists fail as long as backend {name} ({socket}) is away: its lists are not saved, because it \
             has never answered or they cannot be written"
        )
    });
    sentences.collect()
}

/// The backends that are kept, and what is known of each backend: first of those of `config`, then of the kept ones.
fn known_and_kept(config: &Config, found: &mut Found) -> (Vec<BackendConfig>, Vec<LastKnown>) {
    let rows = config.table.backends.iter();
    let mut known: Vec<_> = rows.map(|row| take_known(found, row)).collect();
    let (kept, of_kept) = kept(config, found);
    known.extend(of_kept);
    (kept, known)
}

/// What is known of the backend of `row`, which may have been saved under another path of its socket.
fn take_known(found: &mut Found, row: &BackendConfig) -> LastKnown {
    let socket = &row.socket;
    let identity = socket.identity();
    let is_it = |other: &Address| other != socket && other.identity().is(&identity);
    let saved = found.sockets().into_iter();
    let alias = saved
        .filter_map(|other| Address::parse(&other).ok())
        .find(is_it);
    match found.take(&alias.unwrap_or_else(|| socket.clone()).to_string()) {
        LastKnown::First if !row.required => LastKnown::New,
        known => known,
    }
}

/// The backends that no file names any more, and that may have pods or containers.
fn kept(config: &Config, found: &mut Found) -> (Vec<BackendConfig>, Vec<LastKnown>) {
    let mut kept = (Vec::new(), Vec::new());
    for socket in found.sockets() {
        let known = found.take(&socket);
        if let Some(name) = kept_name(&known)
            && let Ok(socket) = Address::parse(&socket)
        {
            let id = config.table.backends.len() + kept.0.len();
            kept.0.push(BackendConfig {
                list_timeout: config.list_timeout,
                stats_timeout: config.stats_timeout,
                stale_lists: config.stale_lists,
                ..BackendConfig::without_row(id, name, &socket)
            });
            kept.1.push(known);
        }
    }
    kept
}

/// The name of a backend that is kept for what it may have; none if it has nothing that clients may know.
fn kept_name(known: &LastKnown) -> Option<&str> {
    let has_items = |list: &Option<Bytes>| list.as_ref().is_none_or(|list| !list.is_empty());
    match known {
        LastKnown::Saved(saved, _) => {
            let may_have = has_items(&saved.pods) || has_items(&saved.containers);
            (saved.joined && may_have).then_some(saved.name.as_str())
        }
        LastKnown::Unknown => Some(UNNAMED),
        LastKnown::Empty | LastKnown::New | LastKnown::First => None,
    }
}

/// The moment on the clock of this process; the earliest one that it has for an earlier time.
fn instant_of(time: SystemTime) -> Instant {
    let age = SystemTime::now().duration_since(time).unwrap_or_default();
    let now = Instant::now();
    now.checked_sub(age).unwrap_or(now)
}
