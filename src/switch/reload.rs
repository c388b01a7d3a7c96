//! A new table in the place of the one that is served, at once and whole, or not at all.
//!
//! Reads no file: the configuration comes checked, or with the problems that keep it from being used.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::SystemTime;

use crate::backend::Backend;
use crate::codec::admin::Changes;
use crate::config::address::{Address, Identities};
use crate::config::{Applies, Config, KEYS, Problems, Table};
use crate::ownership::BackendId;
use crate::switch::Switch;
use crate::topology::Live;
use crate::topology::auto_register::Disputed;

/// How many outcomes are remembered.
const RECENT: usize = 8;

/// What reloads have come to.
#[derive(Debug)]
pub struct Reloads {
    next_id: BackendId,
    /// How many have begun.
    pub begun: u64,
    /// How many of them have come to an end.
    pub count: u64,
    /// How many of them changed nothing because something was wrong.
    pub rejected: u64,
    /// What the last ones have come to, the newest at the end: each who asked for one finds its own.
    pub recent: VecDeque<Outcome>,
    /// The last one that people want to see: where one has changed something, not another that found nothing to change.
    pub last: Option<Outcome>,
}

/// What a reload has come to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Which one it is, counted from one.
    pub number: u64,
    /// When it was.
    pub at: SystemTime,
    /// What it has changed, or why it has changed nothing: every problem in a line of its own.
    pub result: Result<Changes, String>,
}

impl Reloads {
    /// None yet; the ids of backends below `next_id` are taken.
    pub(crate) fn new(next_id: BackendId) -> Reloads {
        Reloads {
            next_id,
            begun: 0,
            count: 0,
            rejected: 0,
            recent: VecDeque::new(),
            last: None,
        }
    }

    fn remember(&mut self, outcome: &Outcome) {
        let changes = |outcome: &Outcome| outcome.result.as_ref().ok().map(|it| !it.is_empty());
        let has_changed = self.last.as_ref().and_then(changes) == Some(true);
        if !(has_changed && changes(outcome) == Some(false)) {
            self.last = Some(outcome.clone());
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(outcome.clone());
    }
}

/// Serves by `loaded` from now on, if there is nothing wrong with it. Calls under way end by the table that they
/// began with; backends that own pods stay until these are gone. Looks at the backends' sockets on the disk.
pub fn reload(switch: &Switch, loaded: Result<Config, Problems>) -> Outcome {
    let identities = Identities::of(sockets(switch, &loaded));
    reload_with(switch, loaded, &identities)
}

/// The same; looks at the disk beside the calls.
pub async fn reload_beside(switch: &Switch, loaded: Result<Config, Problems>) -> Outcome {
    let sockets = sockets(switch, &loaded);
    let identities = tokio::task::spawn_blocking(|| Identities::of(sockets)).await;
    reload_with(switch, loaded, &identities.unwrap_or_default())
}

/// Those of the backends of now and of `loaded`.
fn sockets(switch: &Switch, loaded: &Result<Config, Problems>) -> Vec<Address> {
    let live = switch.live();
    let here = live.backends.iter().map(|backend| &backend.socket);
    let rows = loaded.iter().flat_map(|config| &config.table.backends);
    here.chain(rows.map(|row| &row.socket)).cloned().collect()
}

fn reload_with(
    switch: &Switch,
    loaded: Result<Config, Problems>,
    identities: &Identities,
) -> Outcome {
    let loaded = loaded.map_err(|problems| problems.to_string());
    let result = loaded.and_then(|config| replace(switch, config, identities));
    let mut reloads = switch.reloads();
    reloads.count += 1;
    match &result {
        Ok(changes) if changes.warnings.is_empty() => tracing::info!(%changes, "reloaded"),
        Ok(changes) => tracing::error!(%changes, "reloaded, with problems"),
        Err(problems) => {
            reloads.rejected += 1;
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
    switch.reload_ended.notify_waiters();
    outcome
}

/// Asks for a reload that begins after this, and waits for its outcome; `None` if too many have ended since.
pub(crate) async fn requested(switch: &Switch) -> Option<Outcome> {
    let wanted = switch.reloads().begun + 1;
    switch.reload_wanted.notify_one();
    loop {
        let ended = switch.reload_ended.notified();
        {
            let reloads = switch.reloads();
            if reloads.count >= wanted {
                let mut recent = reloads.recent.iter();
                return recent.find(|outcome| outcome.number == wanted).cloned();
            }
        }
        ended.await;
    }
}

/// Waits until a client asks for a reload.
pub async fn wanted(switch: &Switch) {
    switch.reload_wanted.notified().await;
}

/// A reload begins: what it is to find is read after this.
pub fn begin_reload(switch: &Switch) {
    switch.reloads().begun += 1;
}

fn replace(switch: &Switch, config: Config, identities: &Identities) -> Result<Changes, String> {
    let before = switch.live();
    let fixed = fixed_keys(&before.config, &config);
    if !fixed.is_empty() {
        return Err(fixed.join("\n"));
    }
    let connect = |row: &_| {
        let backend = Backend::new(row, switch.max_message, switch.dialer.clone());
        if switch.store.is_some() {
            backend.begin_saving();
        }
        backend
    };
    let mut reloads = switch.reloads();
    let keep = |backend: &Backend, others: &[Arc<Backend>]| is_needed(switch, backend, others);
    let runs_pods = |id| runs_pods(switch, id);
    let after = before.next(
        config,
        identities,
        &mut reloads.next_id,
        connect,
        keep,
        runs_pods,
    );
    drop(reloads);
    warn_of_disputes(&before, &after);
    keep_rows(switch, &before.table, &after.table);
    let changes = Changes::between(&before, &after, |id| owned_by(switch, id));
    for gone in before
        .backends
        .iter()
        .filter(|old| after.backend(old.id).is_err())
    {
        forget_backend(switch, gone);
    }
    // The handlers that pods were created with are remembered now.
    after
        .backends
        .iter()
        .for_each(|backend| backend.has_changed());
    switch.set_live(after);
    Ok(changes)
}

/// A pod keeps the name of the row that it runs by, also if the table no longer has that row.
fn keep_rows(switch: &Switch, before: &Table, after: &Table) {
    switch.owners().keep_rows(|backend, handler| {
        let row = before.name_for(backend, handler)?;
        (after.name_for(backend, handler) != Some(row)).then(|| row.to_owned())
    });
}

/// Applies the handlers that backends with `auto_register` report now.
pub(crate) fn auto_register(switch: &Switch) {
    let before = switch.live();
    if before.auto_registering().next().is_none() {
        return;
    }
    let after = before.told_anew(|id| runs_pods(switch, id));
    warn_of_disputes(&before, &after);
    if after.table == before.table && after.disputed == before.disputed {
        return;
    }
    let changes = Changes::between(&before, &after, |id| owned_by(switch, id));
    tracing::info!(%changes, "backends report different handlers");
    switch.set_live(after);
}

/// Waits until a backend with `auto_register` has not reported its handlers for so long that it counts as absent. Then
/// registers the handlers of the other backends.
pub(crate) async fn auto_register_without_absent(switch: &Switch) {
    let Some(at) = switch.live().next_absence() else {
        return std::future::pending().await;
    };
    tokio::time::sleep_until(at).await;
    if let Some(absent) = switch.live().untold() {
        tracing::warn!(
            backend = %absent.name(),
            "a backend with auto_register has not reported its handlers; handlers of other backends are registered without it"
        );
    }
    auto_register(switch);
}

/// Backends that no file names any more go as soon as they own nothing.
pub(crate) fn let_go(switch: &Switch) {
    let live = switch.live();
    let mut left = live.backends.clone();
    for backend in live.unnamed() {
        // One after the other: two may have the same pods.
        if !is_needed(switch, backend, &left) {
            left.retain(|other| other.id != backend.id);
        }
    }
    if left.len() == live.backends.len() {
        return;
    }
    let left: HashSet<_> = left.iter().map(|backend| backend.id).collect();
    let gone = live.backends.iter();
    for backend in gone.filter(|backend| !left.contains(&backend.id)) {
        let name = backend.name();
        tracing::info!(backend = %name, socket = %backend.socket, "backend is removed: it has no pods and containers any more");
        forget_backend(switch, backend);
    }
    let left = live.with_only(&left, |id| runs_pods(switch, id));
    switch.set_live(left);
}

pub(crate) fn runs_pods(switch: &Switch, backend: BackendId) -> bool {
    switch.owners().count(backend).0 > 0
}

/// Whether a pod or container would be lost without it, if of the others these remain. What one has that takes part
/// is not known before it has been listed; one that never took part was promised to nobody.
fn is_needed(switch: &Switch, backend: &Backend, others: &[Arc<Backend>]) -> bool {
    if backend.has_joined() && !switch.question.has_listed(backend.id) {
        return true;
    }
    let remains = |id| others.iter().any(|other| other.id == id);
    switch.owners().would_lose(backend.id, &remains)
}

/// How many pods and containers a backend owns; nobody knows before it has been listed.
pub(crate) fn owned_by(switch: &Switch, backend: BackendId) -> Option<(u64, u64)> {
    let listed = switch.question.has_listed(backend);
    let (pods, containers) = switch.owners().count(backend);
    listed.then_some((pods as u64, containers as u64))
}

fn forget_backend(switch: &Switch, backend: &Backend) {
    switch.owners().forget_backend(backend.id);
    switch.question.forget(backend.id);
    backend.close();
}

/// Each once, as long as it lasts.
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
                "several backends with auto_register advertise this handler; the first one keeps it while it runs pods. Add a row under [handlers]"
            ),
            None => tracing::warn!(
                handler,
                backends,
                "several backends with auto_register advertise this handler, so none of them gets it. Add a row under [handlers]"
            ),
        }
    }
}

/// What only a restart can change, one line for each.
fn fixed_keys(before: &Config, after: &Config) -> Vec<String> {
    let keys = KEYS.iter().filter(|key| key.applies == Applies::Restart);
    let values = keys.filter_map(|key| Some((key, key.value(before)?, key.value(after)?)));
    let changed = values.filter(|(_, from, to)| from != to);
    changed
        .map(|(key, from, to)| {
            let [from, to] = [from, to].map(|value| key.quoted(&value.to_string()));
            let place = after.places.get(key.name);
            let place = place.map_or_else(String::new, |place| format!("{place}: "));
            let also = match key.name {
                "listen" => ", after you have changed ListenStream= of criswitch.socket if systemd holds the socket",
                _ => "",
            };
            format!(
                "{place}\"{}\" cannot change from {from} to {to} without a restart; set it back, or restart criswitch{also}",
                key.name
            )
        })
        .collect()
}
