//! The state of each backend that survives a restart: its cached lists, and facts such as its handlers, version and
//! status. Lists are saved before a client sees their content.

use std::collections::HashSet;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use criswitch_config::address::Address;
use criswitch_config::{BackendConfig, BackendIds, Config};
use criswitch_cri::codec::protobuf;
use criswitch_cri::rpc::fields::{ITEMS, LISTED_ID};
use criswitch_cri::rpc::{self, Kind, List, Row};
use criswitch_platform::process;
use tokio::time::Instant;

use crate::backend::Backend;
use crate::backend::connect::Dialer;
use crate::backend::known::UnreadySince;
use crate::backend::unsaved::{SaveResult, Unsaved};
use crate::gate::Readable;
use crate::ownership::Owners;
use crate::ownership::lookup::OwnerLookup;
use crate::store::{Found, LastKnown, Saved, SavedStatus, Store};
use crate::switch::learn::{CallMoment, Learner};
use crate::switch::{Switch, cached, labels};
use crate::topology::auto_register::AutoRegisteredHandler;

/// How often the time of a backend's last answer is saved.
const TOUCH_EVERY: Duration = Duration::from_secs(10);
/// The error if the state's file system takes longer than [`criswitch_platform::file_work::FILE_LIMIT`].
const NO_ANSWER: &str = "the file system of the state does not answer";
/// The largest runtime configuration that is saved, in bytes. A runtime configuration has only the network of the
/// node's pods.
const LONGEST_RUNTIME_CONFIG: usize = 64 << 10;
/// The wait before a failed save is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// The name for a backend that the configuration does not name and whose saved name is lost.
const UNNAMED: &str = "unnamed";
/// How long the first lists after a start wait for a backend whose lists were restored.
pub(crate) const BRIEF_WAIT: Duration = Duration::from_secs(1);

/// Saves the changes of `backend` until the backend is removed, if there is a store.
pub(crate) async fn keep(switch: Arc<Switch>, backend: Arc<Backend>) {
    let Some(store) = switch.store.clone() else {
        return;
    };
    tokio::select! {
        biased;
        () = backend.connection.closed() => {}
        never = save_changes(&switch, &backend, &store) => match never {},
    }
    // If a reload has just added all other backends, only this backend's file may have the kubelet's runtime
    // configuration. So wait until the other backends are saved.
    let live = switch.live();
    Unsaved::from_iter(&live.backends).saved().await.ok();
    // The file may show the backend's last pod, so the reply to the removal of that pod waits until the file is
    // removed. A file that is left would restore the backend and its pods at the next start.
    loop {
        let removed = remove(&switch, &backend, &store).await;
        let is_done = matches!(removed, SaveResult::OnDisk);
        backend.was_saved(u64::MAX, removed);
        if is_done {
            return;
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Removes the file of a backend that has ended. If a reload has added the backend again, the new backend replaces the
/// file.
async fn remove(switch: &Switch, backend: &Backend, store: &Arc<Store>) -> SaveResult {
    let live = switch.live();
    let mut others = live.backends.iter().filter(|it| it.id != backend.id);
    match others.find(|it| it.socket == backend.socket) {
        Some(again) => match again.saving.saved().await {
            Ok(()) => SaveResult::OnDisk,
            Err(cause) => SaveResult::Outdated(cause),
        },
        None => {
            let socket = backend.socket.to_string();
            result(work(store, move |store| store.forget(&socket)).await)
        }
    }
}

/// Converts the result of a write to the store; `saved` is `None` if the file system does not answer.
fn result(saved: Option<io::Result<Option<io::Error>>>) -> SaveResult {
    match saved {
        Some(Ok(None)) => SaveResult::OnDisk,
        Some(Ok(Some(error))) => SaveResult::Removed(error.to_string()),
        Some(Err(error)) => SaveResult::Outdated(error.to_string()),
        None => SaveResult::Outdated(NO_ANSWER.to_owned()),
    }
}

/// Does `work` on the files of `store` outside the thread that serves calls. One thread is enough for all backends.
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
            change = backend.saving.changed_after(last) => {
                let saved = save(switch, backend, store).await;
                let is_on_disk = matches!(saved, SaveResult::OnDisk);
                last = if is_on_disk { change } else { last };
                backend.was_saved(change, saved);
                if !is_on_disk {
                    // A new change ends the wait: the call that made the change gets its reply only after the next
                    // attempt to save.
                    tokio::time::timeout(RETRY, backend.saving.changed_after(change)).await.ok();
                }
            }
            () = tokio::time::sleep(TOUCH_EVERY) => touch(backend, store).await,
        }
    }
}

async fn save(switch: &Switch, backend: &Backend, store: &Arc<Store>) -> SaveResult {
    let (saved, answered) = (saved(switch, backend), backend.record.answered_at());
    backend.saving.saves_part(saved.is_partial());
    result(work(store, move |store| store.save(saved, answered)).await)
}

async fn touch(backend: &Backend, store: &Arc<Store>) {
    let (socket, answered) = (backend.socket.to_string(), backend.record.answered_at());
    work(store, move |store| store.touch(&socket, answered)).await;
}

/// Makes a `Switch` that continues with the state of the last run, `found`, and saves its state in `store`. A backend
/// that the configuration no longer names is kept for its pods.
pub fn resume(config: Config, dialer: &Dialer, store: Store, mut found: Found) -> Switch {
    let runtime_config = found.of_node(|saved| copied(&saved.runtime_config));
    let given = found.of_node(|saved| copied(&saved.given_descriptors));
    let (kept, known) = known_and_kept(&config, &mut found);
    let mut switch = Switch::not_started(config, kept, dialer);
    *switch.runtime_config.lock() = runtime_config;
    *switch.given.lock() = given.as_ref().and_then(labels::given_descriptors);
    restore_all(&switch, known);
    let live = switch.live();
    live.backends.iter().for_each(|it| it.saving.begin());
    let backends = live.backends.iter();
    store.begin(backends.map(|it| (saved(&switch, it), it.record.answered_at())));
    switch.store = Some(Arc::new(store));
    switch
}

/// A copy of `fact`, because a part of a state file would keep the whole file in memory.
fn copied(fact: &Option<Bytes>) -> Option<Bytes> {
    fact.as_deref().map(Bytes::copy_from_slice)
}

/// Makes `switch` assume that each of its backends may have pods that clients know.
pub(super) fn assume_pods(switch: &Switch) {
    for backend in &switch.live().backends {
        Restored { switch, backend }.restore(LastKnown::Unknown);
    }
}

/// Restores what the last run knew about each backend, and the automatically registered handlers.
fn restore_all(switch: &Switch, known: Vec<LastKnown>) {
    let live = switch.live();
    let mut held = Vec::new();
    // A kill between two saves may leave an id in two files. The file that says that criswitch created the pod counts,
    // whatever the order of the files. The pods of all files are restored before any container, because a container
    // belongs to the owner of its pod.
    let both = live.backends.iter().zip(&known);
    both.clone()
        .for_each(|(backend, known)| restore_created(&mut switch.owners(), backend, known));
    both.for_each(|(backend, known)| Restored { switch, backend }.restore_pods(known));
    for (backend, known) in live.backends.iter().zip(known) {
        let handlers = known.auto_registered();
        Restored { switch, backend }.restore(known);
        held.extend(handlers.into_iter().map(|name| AutoRegisteredHandler {
            name,
            backend: backend.id,
            runs_pods: switch.owners().count(backend.id).0 > 0,
        }));
    }
    // After a kill between two saves, two backends may have the same handler. The backend that runs pods comes first
    // and keeps the handler.
    held.sort_by_key(|it| !it.runs_pods);
    switch.set_live(live.restored(&held));
}

/// Saves the state of `backend` again if the saved state lacks a list that criswitch can save now. A new list may
/// complete the state even if the content of the list has not changed: for example a list of containers that was
/// requested after a new pod.
pub(crate) fn complete(switch: &Switch, backend: &Backend) {
    if backend.saving.is_saved_in_part() && !saved(switch, backend).is_partial() {
        backend.saving.note_change();
    }
}

/// Returns the state that criswitch would serve if `backend` were away now.
pub(crate) fn saved(switch: &Switch, backend: &Backend) -> Saved {
    let handlers = switch.owners().pods.rows(backend.id);
    let mut with_default_row = switch.owners().pods.with_default_row(backend.id);
    // Equal states have equal files.
    with_default_row.sort_unstable();
    let created = switch.owners().pods.created_at(backend.id);
    let creating = switch.owners().creations.may_be_at(backend.id);
    let known = backend.record.known();
    let live = switch.live();
    let runtime_config = switch.runtime_config.lock().clone();
    Saved {
        // The store sets `boot` and `run`.
        boot: String::new(),
        run: 0,
        socket: backend.socket.to_string(),
        name: backend.name().to_string(),
        joined: backend.has_joined(),
        pods: saved_list(switch, backend, List::Pods),
        containers: saved_list(switch, backend, List::Containers),
        images: saved_list(switch, backend, List::Images),
        handlers,
        with_default_row,
        descriptors: labels::descriptors(backend)
            .map(Bytes::from)
            .filter(labels::is_kept),
        version: known.version.into(),
        status: known.status.into(),
        auto_registered: live
            .auto_registered_by(backend.id)
            .map(str::to_owned)
            .collect(),
        runtime_config: runtime_config.filter(|it| it.len() <= LONGEST_RUNTIME_CONFIG),
        created,
        given_descriptors: switch.given.lock().as_deref().cloned(),
        pod_statuses: saved_statuses(backend, Kind::Pod),
        container_statuses: saved_statuses(backend, Kind::Container),
        images_outdated: known.lists.is_outdated(List::Images),
        creating,
        never_answered: known.answered.is_none(),
        unready_since: known.unready_since.and_then(|since| {
            let age = since.time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
            Some(age.as_secs())
        }),
    }
}

fn saved_list(switch: &Switch, backend: &Backend, list: List) -> Option<Bytes> {
    let lists = backend.record.known().lists;
    let message = lists.message(list)?;
    let own = cached::own_items(&switch.owners(), list, backend, &message, &[])?;
    Some(own.into())
}

fn saved_statuses(backend: &Backend, kind: Kind) -> Vec<SavedStatus> {
    if !backend.needs_statuses() {
        return Vec::new();
    }
    let kept = backend.statuses.lock();
    kept.all(kind)
        .map(|(id, status)| SavedStatus {
            id: id.to_owned(),
            message: status.message.clone(),
        })
        .collect()
}

/// Returns why lists would fail after a restart while `backend` is away, as a sentence. Returns `None` if they would
/// not.
pub(crate) fn restart_problem(
    has_store: bool,
    question: &OwnerLookup,
    backend: &Backend,
) -> Option<String> {
    if !backend.has_joined() || backend.connection.is_ready() {
        return None;
    }
    let why = if !question.has_listed(backend.id) {
        "it has not been listed yet".to_owned()
    } else if has_store {
        backend.saving.unsaved()?
    } else {
        "its state is not saved".to_owned()
    };
    let (name, socket) = (backend.name(), &backend.socket);
    Some(format!(
        "a restart now would make lists fail: backend {name} ({socket}) is away, and {why}"
    ))
}

/// Restores what the last run knew about a backend.
#[derive(Clone, Copy)]
struct Restored<'a> {
    switch: &'a Switch,
    backend: &'a Backend,
}

impl Restored<'_> {
    /// Restores what the last run knew about the backend besides its pods. The first lists wait for the backend until
    /// `start_by`, or only [`BRIEF_WAIT`] if its lists were restored.
    fn restore(self, known: LastKnown) {
        let Restored { switch, backend } = self;
        let ran_before = matches!(known, LastKnown::Saved(..) | LastKnown::Unknown);
        let was_creating = matches!(&known, LastKnown::Saved(saved, _) if saved.creating);
        match known {
            LastKnown::Saved(saved, answered) => self.restore_saved(*saved, answered),
            LastKnown::Empty => {
                let saved = Saved {
                    joined: true,
                    pods: Some(Bytes::new()),
                    containers: Some(Bytes::new()),
                    images: Some(Bytes::new()),
                    never_answered: true,
                    ..Saved::default()
                };
                self.restore_saved(saved, SystemTime::now());
                backend.await_until(switch.start_by);
            }
            LastKnown::New => {}
            LastKnown::First | LastKnown::Unknown => {
                backend.join();
                backend.await_until(switch.start_by);
            }
        }
        if ran_before && backend.has_joined() {
            switch
                .owners()
                .creations
                .begin_run(backend.id, was_creating, Instant::now());
        }
    }

    fn restore_pods(self, known: &LastKnown) {
        let (pods, at) = match known {
            LastKnown::Saved(saved, answered) if saved.joined => {
                (saved.pods.clone(), instant_of(*answered))
            }
            LastKnown::Empty => (Some(Bytes::new()), Instant::now()),
            _ => return,
        };
        self.backend.join();
        if let Some(pods) = pods {
            self.restore_list(List::Pods, pods, at);
        }
    }

    fn restore_saved(self, saved: Saved, answered: SystemTime) {
        let Restored { switch, backend } = self;
        if !saved.joined {
            return;
        }
        backend.join();
        let at = instant_of(answered);
        let is_known = saved.pods.is_some() && saved.containers.is_some();
        for (list, message) in [
            (List::Containers, saved.containers),
            (List::Images, saved.images),
            (List::MetricDescriptors, saved.descriptors),
        ] {
            if let Some(message) = message {
                self.restore_list(list, message, at);
            }
        }
        if saved.images_outdated {
            backend.outdate(List::Images);
        }
        self.restore_statuses(&rpc::POD_STATUS, saved.pod_statuses);
        self.restore_statuses(&rpc::CONTAINER_STATUS, saved.container_statuses);
        let mut owners = switch.owners();
        owners
            .pods
            .restore_rows(backend.id, saved.handlers, &saved.with_default_row);
        owners.restore(backend.id);
        drop(owners);
        // The file's time is updated only every `TOUCH_EVERY`, so the last answer may be later by that much.
        let at_most = (at + TOUCH_EVERY).min(Instant::now());
        backend.record.learn(|known| {
            known.answered = (!saved.never_answered).then_some(at);
            known.unready_since = saved.unready_since.and_then(|seconds| {
                let since = Duration::from_secs(seconds);
                let time = SystemTime::UNIX_EPOCH.checked_add(since)?;
                let at = instant_of(time);
                Some(UnreadySince { at, time })
            });
            let version = Readable::version(&saved.version).unwrap_or_default();
            let status = Readable::status(&saved.status).unwrap_or_default();
            known.restore(version, status, at_most);
        });
        if is_known {
            switch.question.listed(backend.id);
            backend.await_until(switch.start_by.min(Instant::now() + BRIEF_WAIT));
        } else {
            backend.await_until(switch.start_by)
        }
    }

    /// Restores the kept statuses that the replies of `row` show.
    fn restore_statuses(self, row: &Row, saved: Vec<SavedStatus>) {
        let changes = self.backend.status_changes();
        let owners = self.switch.owners();
        for SavedStatus { id, message } in saved {
            let pod = owners.containers.pod_of(&id).unwrap_or_default();
            self.backend.keep_status(row, &id, pod, &message, changes);
        }
    }

    fn restore_list(self, list: List, message: Bytes, at: Instant) {
        let Restored { switch, backend } = self;
        let asked = CallMoment {
            at,
            ..CallMoment::now(&switch.owners(), backend)
        };
        let restored = Readable::list(list, &message).and_then(|message| {
            let learned = Learner::new(switch, backend, asked).learn_list(list, &message);
            learned.log(&switch.live(), backend);
            match learned.message {
                Ok(_) => Ok(message),
                Err(fault) => Err(fault.message().to_owned()),
            }
        });
        match restored {
            Ok(message) => backend.keep_list(list, asked.snapshot(message)),
            Err(fault) => {
                tracing::error!(backend = %backend.name(), fault, "a saved list cannot be used");
            }
        }
    }
}

/// Restores the pods of `backend` that were created through criswitch.
fn restore_created(owners: &mut Owners, backend: &Backend, known: &LastKnown) {
    let LastKnown::Saved(saved, _) = known else {
        return;
    };
    let created: HashSet<_> = saved.created.iter().map(String::as_str).collect();
    let Some(pods) = saved.pods.as_ref().filter(|_| saved.joined) else {
        return;
    };
    // A list that cannot be decoded is reported by `restore_pods`.
    let Ok(items) = protobuf::retain(pods, ITEMS, |pod| {
        Ok(created.contains(protobuf::string(pod, LISTED_ID)?))
    }) else {
        return;
    };
    let asked = owners.mark();
    let items = items.as_ref().unwrap_or(pods);
    if owners.learn(Kind::Pod, backend.id, items, asked).is_ok() {
        owners.pods.restore_created(backend.id, &saved.created);
    }
}

/// Returns the problems that a restart with this configuration and the state `found` would have, one sentence each.
pub fn restart_problems(config: &Config, mut found: Found) -> Vec<String> {
    let (kept, known) = known_and_kept(config, &mut found);
    let rows = config.table.backends.iter().chain(&kept);
    let unknown = rows.zip(known).filter(|(_, known)| known.is_partial());
    let sentences = unknown.map(|(row, _)| {
        let BackendConfig { name, socket, .. } = row;
        format!(
            "a restart would make lists fail as long as backend {name} ({socket}) is away: its lists are not saved, because it \
             has not been listed yet or they cannot be written"
        )
    });
    sentences.collect()
}

/// Returns the kept backends, and what the last run knew about each backend: first the backends in `config`, then the
/// kept ones.
fn known_and_kept(config: &Config, found: &mut Found) -> (Vec<BackendConfig>, Vec<LastKnown>) {
    let rows = config.table.backends.iter();
    let mut known: Vec<_> = rows.map(|row| take_known(found, row)).collect();
    let (kept, of_kept): (_, Vec<_>) = kept(config, found).into_iter().unzip();
    known.extend(of_kept);
    (kept, known)
}

/// Returns what the last run knew about the backend of `row`. If that run did not know the path in `row`, looks for a
/// different path to the same socket.
fn take_known(found: &mut Found, row: &BackendConfig) -> LastKnown {
    let socket = &row.socket;
    let identity = socket.identity();
    let sockets = found.sockets();
    let is_known = sockets.contains(&socket.to_string());
    let alias = sockets
        .into_iter()
        .filter(|_| !is_known)
        .filter_map(|other| Address::parse(&other).ok())
        .find(|other| other != socket && other.identity().is(&identity));
    match found.take(&alias.unwrap_or_else(|| socket.clone()).to_string()) {
        LastKnown::First if !row.required => LastKnown::New,
        known => known,
    }
}

/// Returns the backends that the configuration no longer names and that may have or get pods or containers.
fn kept(config: &Config, found: &mut Found) -> Vec<(BackendConfig, LastKnown)> {
    let mut kept = Vec::new();
    let mut ids = BackendIds::except(config.table.backends.iter().map(|row| row.id));
    for socket in found.sockets() {
        let known = found.take(&socket);
        if let Some(name) = kept_name(&known)
            && let Ok(socket) = Address::parse(&socket)
        {
            let row = BackendConfig {
                list_timeout: config.list_timeout,
                stats_timeout: config.stats_timeout,
                stale_lists: config.stale_lists,
                ..BackendConfig::without_row(ids.issue(), name, &socket)
            };
            kept.push((row, known));
        }
    }
    kept
}

/// Returns the name of a backend that is kept for its items, or `None` if it has no items that clients may know and
/// creates none.
fn kept_name(known: &LastKnown) -> Option<&str> {
    match known {
        LastKnown::Saved(saved, _) => {
            let mut lists = [&saved.pods, &saved.containers].into_iter();
            let may_have = lists.any(|list| list.as_ref().is_none_or(|list| !list.is_empty()));
            (saved.joined && (may_have || saved.creating)).then_some(saved.name.as_str())
        }
        LastKnown::Unknown => Some(UNNAMED),
        LastKnown::Empty | LastKnown::New | LastKnown::First => None,
    }
}

/// Converts a wall-clock time of this boot to an `Instant`. Returns the current `Instant` if an `Instant` cannot be
/// that early.
fn instant_of(time: SystemTime) -> Instant {
    let age = SystemTime::now().duration_since(time).unwrap_or_default();
    // The wall clock may have jumped since `time`, but nothing of this boot is older than the boot.
    let (now, age) = (Instant::now(), age.min(process::uptime()));
    now.checked_sub(age).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file was saved before the clock was set, so its time is 1970.
    #[test]
    fn nothing_of_this_boot_is_older_than_the_boot() {
        let age = instant_of(SystemTime::UNIX_EPOCH).elapsed();
        assert!(age <= process::uptime() + Duration::from_secs(1), "{age:?}");
        let second = SystemTime::now() - Duration::from_secs(1);
        assert!(instant_of(second).elapsed() >= Duration::from_secs(1));
    }
}
