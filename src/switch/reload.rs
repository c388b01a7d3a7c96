//! Replaces the routing table with a new one. A reload applies all changes or none.
//!
//! Reads no configuration file: the caller passes a checked configuration, or the problems that prevent its use.

use std::collections::{HashSet, VecDeque};
use std::time::SystemTime;

use criswitch_config::address::{Address, Identities};
use criswitch_config::{Applies, BackendId, BackendIds, Config, KEYS, Problems, Table, problem};
use criswitch_cri::codec::admin::{self, Changes};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::backend::Backend;
use crate::ownership::Owners;
use crate::ownership::lookup::OwnerLookup;
use crate::switch::Switch;
use crate::topology::auto_register::Disputed;
use crate::topology::diff;
use crate::topology::{Live, Next};

/// The most outcomes that are remembered.
const RECENT: usize = 8;

/// The reloads that clients request.
#[derive(Debug)]
pub struct ReloadQueue {
    pub(super) outcomes: Mutex<Reloads>,
    /// Wakes the task that reloads the configuration.
    pub wanted: Notify,
    ended: Notify,
}

/// The outcomes of reloads.
#[derive(Debug)]
pub struct Reloads {
    pub(super) ids: BackendIds,
    /// How many reloads have begun.
    pub begun: u64,
    /// How many reloads have ended.
    pub count: u64,
    /// How many reloads changed nothing because of a problem.
    pub rejected: u64,
    /// The last outcomes, the newest at the end. A client finds the outcome of its own reload here.
    pub recent: VecDeque<Outcome>,
    /// The outcome that `criswitch status` shows. A reload without changes does not replace the outcome of a reload
    /// with changes.
    pub last: Option<Outcome>,
    /// The hash or the problems of the files, as criswitch last read them; `None` if it has not read them since the
    /// start.
    files: Option<Result<String, Vec<admin::Problem>>>,
}

/// The outcome of a reload.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The number of the reload, counted from one.
    pub number: u64,
    /// When the reload ended.
    pub at: SystemTime,
    /// The changes, or the problems for which nothing changed.
    pub result: Result<Changes, Vec<admin::Problem>>,
}

impl Outcome {
    /// Whether the reload changed something. `None` if the reload was rejected.
    fn has_changes(&self) -> Option<bool> {
        Some(!diff::is_empty(self.result.as_ref().ok()?))
    }
}

impl ReloadQueue {
    /// A queue for which no reload has begun. New backends will get their ids from `ids`.
    pub(super) fn new(ids: BackendIds) -> ReloadQueue {
        let outcomes = Reloads {
            ids,
            begun: 0,
            count: 0,
            rejected: 0,
            recent: VecDeque::new(),
            last: None,
            files: None,
        };
        ReloadQueue {
            outcomes: Mutex::new(outcomes),
            wanted: Notify::new(),
            ended: Notify::new(),
        }
    }

    /// Requests a reload that begins after this call, and waits for its outcome. Returns `None` if so many reloads have
    /// ended since that the outcome was dropped.
    pub(crate) async fn requested(&self) -> Option<Outcome> {
        let wanted = self.outcomes.lock().begun + 1;
        self.wanted.notify_one();
        loop {
            let ended = self.ended.notified();
            {
                let reloads = self.outcomes.lock();
                if reloads.count >= wanted {
                    return reloads
                        .recent
                        .iter()
                        .find(|outcome| outcome.number == wanted)
                        .cloned();
                }
            }
            ended.await;
        }
    }
}

impl Reloads {
    /// The problems of the files for which a restart of criswitch would fail.
    pub fn restart_problems(&self) -> &[admin::Problem] {
        match &self.files {
            Some(Err(problems)) => problems,
            _ => &[],
        }
    }

    /// Whether the files, as criswitch last read them, differ from a configuration with this hash.
    pub(crate) fn files_differ_from(&self, hash: &str) -> bool {
        self.files
            .as_ref()
            .is_some_and(|files| files.as_deref() != Ok(hash))
    }

    /// Records that a reload begins. The caller reads the configuration files after this call.
    pub fn begin(&mut self) {
        self.begun += 1;
    }

    /// Records the content of the files, which criswitch has just read.
    fn note_files(&mut self, loaded: &Result<Config, Problems>) {
        self.files = Some(match loaded {
            Ok(config) => Ok(config.hash.clone()),
            Err(problems) => Err(problems.messages()),
        });
    }

    fn remember(&mut self, outcome: &Outcome) {
        let has_changed = self.last.as_ref().and_then(Outcome::has_changes) == Some(true);
        if !has_changed || outcome.has_changes() != Some(false) {
            self.last = Some(outcome.clone());
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(outcome.clone());
    }
}

/// Applies `loaded`, unless it has problems. Calls in flight keep the routing table that they began with. Backends that
/// own pods stay until these pods end. Blocks on the disk, because it reads the backends' socket files.
pub fn reload(switch: &Switch, loaded: Result<Config, Problems>) -> Outcome {
    let identities = Identities::of(sockets(known_sockets(&switch.live()), &loaded));
    reload_with(switch, loaded, &identities)
}

/// Like [`reload`], but reads the disk on another thread.
pub async fn reload_beside(switch: &Switch, loaded: Result<Config, Problems>) -> Outcome {
    let sockets = sockets(known_sockets(&switch.live()), &loaded);
    let identities = tokio::task::spawn_blocking(|| Identities::of(sockets)).await;
    reload_with(switch, loaded, &identities.unwrap_or_default())
}

/// The sockets of the current backends.
pub(super) fn known_sockets(live: &Live) -> Vec<Address> {
    live.backends
        .iter()
        .map(|backend| backend.socket.clone())
        .collect()
}

/// Returns the sockets that may be one under different paths: of the rows in `loaded` that name no `known` socket, and
/// the known sockets that no row names. A row that names a known socket has the backend of that socket, even if another
/// path has become a link to it. Empty if there are no such rows: a hung file system of a socket must not prevent the
/// reload that removes its row.
pub(super) fn sockets(mut known: Vec<Address>, loaded: &Result<Config, Problems>) -> Vec<Address> {
    let rows = loaded.iter().flat_map(|config| &config.table.backends);
    let mut rows: Vec<_> = rows.map(|row| row.socket.clone()).collect();
    let both: Vec<_> = known.extract_if(.., |it| rows.contains(it)).collect();
    rows.retain(|row| !both.contains(row));
    if !rows.is_empty() {
        rows.append(&mut known);
    }
    rows
}

fn reload_with(
    switch: &Switch,
    loaded: Result<Config, Problems>,
    identities: &Identities,
) -> Outcome {
    switch.reloads().note_files(&loaded);
    let result = loaded
        .map_err(|problems| problems.messages())
        .and_then(|config| replace(switch, config, identities));
    let mut reloads = switch.reloads();
    reloads.count += 1;
    match &result {
        Ok(changes) if changes.warnings.is_empty() => tracing::info!(%changes, "reloaded"),
        Ok(changes) => tracing::error!(%changes, "reloaded, with problems"),
        Err(problems) => {
            reloads.rejected += 1;
            let problems = problem::lines(problems);
            tracing::error!(problems, "not reloaded: nothing has changed");
        }
    }
    let outcome = Outcome {
        number: reloads.count,
        at: SystemTime::now(),
        result,
    };
    reloads.remember(&outcome);
    drop(reloads);
    switch.reload_queue.ended.notify_waiters();
    outcome
}

/// Records changed files, which criswitch has read and does not load because `watch` is off.
pub fn note_files(reloads: &mut Reloads, loaded: &Result<Config, Problems>) {
    if let Err(problems) = loaded {
        tracing::warn!(%problems, "the configuration files have changed; criswitch would not start with them");
    }
    reloads.note_files(loaded);
}

fn replace(
    switch: &Switch,
    config: Config,
    identities: &Identities,
) -> Result<Changes, Vec<admin::Problem>> {
    let before = switch.live();
    let fixed = fixed_keys(&before.config, &config);
    if !fixed.is_empty() {
        return Err(fixed);
    }
    let mut reloads = switch.reloads();
    let next = next(switch, &before, config, identities, &mut reloads.ids);
    drop(reloads);
    let changes = changes(&switch.question, &switch.owners(), &before, &next);
    apply(switch, &before, next.applied());
    Ok(changes)
}

/// Computes the table after a reload, and changes nothing. New backends get their ids from `ids`.
pub(super) fn next(
    switch: &Switch,
    before: &Live,
    config: Config,
    identities: &Identities,
    ids: &mut BackendIds,
) -> Next {
    before.next(
        config,
        identities,
        ids,
        |row| Backend::new(row, switch.max_message, switch.dialer.clone()),
        |backend| is_needed(&switch.question, &switch.owners(), backend),
        |id| switch.owners().count(id).0 > 0,
    )
}

/// The changes from `before` to `next`.
pub(super) fn changes(
    question: &OwnerLookup,
    owners: &Owners,
    before: &Live,
    next: &Next,
) -> Changes {
    let (owns, name_of) = (
        |id| owned_by(question, owners, id),
        |backend: &Backend| next.name_of(backend),
    );
    diff::between(before, &next.live, owns, name_of)
}

/// Replaces the table `before` by `after`.
fn apply(switch: &Switch, before: &Live, after: Live) {
    warn_of_disputes(before, &after);
    keep_rows(&mut switch.owners(), &before.table, &after.table);
    if switch.store.is_some() {
        for backend in &after.backends {
            if before.backend(backend.id).is_err() {
                backend.saving.begin();
            }
        }
    }
    for gone in before
        .backends
        .iter()
        .filter(|old| after.backend(old.id).is_err())
    {
        forget_backend(switch, gone);
    }
    // Save the state of all backends, because it has the handlers that pods were created with.
    after.backends.iter().for_each(|it| it.saving.note_change());
    switch.set_live(after);
}

/// Lets each pod keep the handler name that clients know, even if the new routing table has a different name for the
/// handler or none.
fn keep_rows(owners: &mut Owners, before: &Table, after: &Table) {
    owners.pods.keep_rows(|backend, handler| {
        let row = before.name_for(backend, handler)?;
        (after.name_for(backend, handler) != Some(row)).then(|| row.to_owned())
    });
}

/// Changes the routing table to the handlers that backends with `auto_register` report now.
pub(crate) fn auto_register(switch: &Switch) {
    let before = switch.live();
    if before.auto_registering().next().is_none() {
        return;
    }
    let after = before.registered_again(|id| switch.owners().count(id).0 > 0);
    warn_of_disputes(&before, &after);
    if after.table == before.table && after.disputed == before.disputed {
        return;
    }
    let (owns, name_of) = (
        |id| owned_by(&switch.question, &switch.owners(), id),
        |backend: &Backend| backend.name().to_string(),
    );
    let changes = diff::between(&before, &after, owns, name_of);
    tracing::info!(%changes, "the handlers that backends report have changed");
    switch.set_live(after);
}

/// Waits until the time for the first report of a backend with `auto_register` is over. Then registers the handlers of
/// the other backends. Waits for ever if criswitch expects no such report.
pub(crate) async fn auto_register_without_absent(switch: &Switch) {
    let Some(at) = switch.live().next_absence() else {
        return std::future::pending().await;
    };
    tokio::time::sleep_until(at).await;
    if let Some(absent) = switch.live().unreported() {
        tracing::warn!(
            backend = %absent.name(),
            "a backend with auto_register has not reported its handlers; criswitch now registers the handlers of the other backends"
        );
    }
    auto_register(switch);
}

/// Removes each backend that the configuration does not name and that no pod or container needs.
pub(crate) fn remove_unneeded(switch: &Switch) {
    let live = switch.live();
    let gone: Vec<_> = live
        .unnamed()
        .filter(|it| !is_needed(&switch.question, &switch.owners(), it))
        .collect();
    if gone.is_empty() {
        return;
    }
    let left: HashSet<_> = live
        .backends
        .iter()
        .map(|backend| backend.id)
        .filter(|id| gone.iter().all(|gone| gone.id != *id))
        .collect();
    for backend in gone {
        tracing::info!(backend = %backend.name(), socket = %backend.socket, "backend is removed: it has no pods and containers any more");
        forget_backend(switch, backend);
    }
    switch.set_live(live.with_only(&left, |id| switch.owners().count(id).0 > 0));
}

/// Whether `backend` owns a pod or container, or may own one. Other backends that list the same items do not count:
/// they may list copies to get the items. A joined backend that was never listed counts as needed. A backend that never
/// joined does not, because no client knows its pods.
fn is_needed(question: &OwnerLookup, owners: &Owners, backend: &Backend) -> bool {
    let is_unlisted = backend.has_joined() && !question.has_listed(backend.id);
    is_unlisted || owners.count(backend.id) != (0, 0) || owners.creations.is_at(backend.id)
}

/// Counts the pods and containers that a backend owns. Returns `None` before the backend has been listed.
pub(crate) fn owned_by(
    question: &OwnerLookup,
    owners: &Owners,
    backend: BackendId,
) -> Option<(u64, u64)> {
    let listed = question.has_listed(backend);
    let (pods, containers) = owners.count(backend);
    listed.then_some((pods as u64, containers as u64))
}

fn forget_backend(switch: &Switch, backend: &Backend) {
    // The backend owns nothing, so the items of no other backend change.
    switch.owners().forget_backend(backend.id);
    switch.question.forget(backend.id);
    backend.connection.close();
}

/// Logs each handler that several backends report. A dispute that is also in `before` was already logged.
fn warn_of_disputes(before: &Live, after: &Live) {
    let new = after
        .disputed
        .iter()
        .filter(|dispute| !before.disputed.contains(dispute));
    let name = |id: BackendId| Some(after.backend(id).ok()?.name().to_string());
    for Disputed {
        handler,
        backends,
        kept_by,
    } in new
    {
        let names = backends.iter().filter_map(|id| name(*id));
        let backends = names.collect::<Vec<_>>().join(", ");
        match kept_by.and_then(name) {
            Some(keeper) => tracing::warn!(
                handler,
                backends,
                %keeper,
                "several backends with auto_register report this handler; the backend in `keeper` has the handler already, and keeps it as long as this backend has pods. Add a row under [handlers]"
            ),
            None => tracing::warn!(
                handler,
                backends,
                "several backends with auto_register report this handler, so none of them gets it. Add a row under [handlers]"
            ),
        }
    }
}

/// Returns the changed keys that need a restart, as one problem for each key.
pub(super) fn fixed_keys(before: &Config, after: &Config) -> Vec<admin::Problem> {
    KEYS.iter()
        .filter(|key| key.applies == Applies::Restart)
        .filter_map(|key| Some((key, key.value(before)?, key.value(after)?)))
        .filter(|(_, from, to)| from != to)
        .map(|(key, from, to)| {
            let [from, to] = [from, to].map(|value| key.quoted(&value.to_string()));
            let place = after.places.get(key.name);
            let also = match key.name {
                "listen" => ", after you have changed ListenStream= of criswitch.socket if systemd holds the socket",
                _ => "",
            };
            admin::Problem {
                path: place.map(|place| place.path.display().to_string()),
                line: place.map(|place| place.line as u64),
                column: place.map(|place| place.column as u64),
                what: format!("\"{}\" cannot change from {from} to {to} without a restart", key.name),
                r#try: Some(format!("the old value, or restart criswitch{also}")),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)] // A pipe has another path.
    #[test]
    fn only_sockets_that_may_have_two_paths_are_looked_at() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("criswitch.toml");
        let rows = |names: &[&str]| {
            let rows = names.iter().map(|it| format!("{it} = '/run/{it}.sock'\n"));
            let rows: String = rows.collect();
            std::fs::write(&path, format!("default_handler = 'a'\n[handlers]\n{rows}")).unwrap();
            Config::load(&path)
        };
        let known = ["a", "b"].map(|it| Address::parse(&format!("/run/{it}.sock")).unwrap());
        let looked_at = |loaded: Result<Config, Problems>| {
            let sockets = sockets(known.to_vec(), &loaded);
            sockets.iter().map(Address::to_string).collect::<Vec<_>>()
        };
        assert!(looked_at(rows(&["a"])).is_empty(), "the row b is removed");
        let moved = looked_at(rows(&["a", "c"]));
        assert_eq!(moved, ["/run/c.sock", "/run/b.sock"]);
    }
}
