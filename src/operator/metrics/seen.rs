//! The state behind a page of metrics: criswitch, its backends and its process at one moment.

use std::collections::BTreeMap;
use std::sync::Arc;

use criswitch_config::BackendId;
use criswitch_cri::facts::Level;
use criswitch_cri::rpc::List;
use criswitch_platform::ProcessStats;

use crate::backend::known::Known;
use crate::backend::state::Link;
use crate::dispatch::fanout::fallback;
use crate::operator::health;
use crate::switch::{Switch, handlers};
use crate::telemetry::counters::{Calls, Rpc};
use crate::topology::Live;

/// The state of criswitch at one moment.
pub(super) struct Seen<'a> {
    pub(super) switch: &'a Switch,
    pub(super) live: Arc<Live>,
    /// The backends, sorted by name; names are distinct.
    pub(super) backends: Vec<SeenBackend>,
    pub(super) rpcs: Vec<(&'static str, Arc<Rpc>)>,
    calls: Vec<(&'static str, Calls)>,
    /// Ended calls of `RunPodSandbox`, by handler. Has only handlers of the current table, and the empty name for calls
    /// whose handler had no row.
    pub(super) runs: Vec<(Arc<str>, Calls)>,
    /// The verdict on the node.
    pub(super) level: Level,
    /// The number of pods of each handler.
    pub(super) pods: BTreeMap<String, usize>,
    pub(super) process: ProcessStats,
}

/// The state of a backend at one moment.
pub(super) struct SeenBackend {
    pub(super) id: BackendId,
    pub(super) name: Arc<str>,
    pub(super) socket: String,
    pub(super) link: Link,
    pub(super) known: Known,
    pub(super) pods: usize,
    pub(super) containers: usize,
    /// Whether criswitch knows the backend's pods: from a list, from the saved state, or because a reboot has ended all
    /// pods.
    pub(super) listed: bool,
    /// The name of each list, and whether the list fails now because of the backend.
    pub(super) failing: [(&'static str, bool); List::OF_ITEMS.len()],
    /// The bytes of the backend's replies, lists and events in memory.
    pub(super) held: usize,
    calls: Vec<(&'static str, Calls)>,
    /// The backend's parts of calls that went to several backends, by RPC.
    pub(super) parts: Vec<(&'static str, Calls)>,
}

impl Seen<'_> {
    pub(super) fn now(switch: &Switch) -> Seen<'_> {
        let (live, counts) = (switch.live(), switch.owners().counts());
        let mut backends: Vec<_> = live
            .backends
            .iter()
            .map(|backend| {
                let (pods, containers) = counts.get(&backend.id).copied().unwrap_or_default();
                SeenBackend {
                    id: backend.id,
                    name: backend.name(),
                    socket: backend.socket.to_string(),
                    link: backend.connection.link(),
                    known: backend.record.known(),
                    pods,
                    containers,
                    listed: switch.question.has_listed(backend.id),
                    failing: List::OF_ITEMS.map(|(list, name)| {
                        (
                            name,
                            fallback::list_problem(
                                &live,
                                &switch.owners,
                                &switch.question,
                                list,
                                backend,
                            )
                            .is_some(),
                        )
                    }),
                    held: backend.memory.all().used()
                        + backend.own.all().used()
                        + backend.events.used(),
                    calls: sorted(backend.calls.all()),
                    parts: sorted(backend.parts.all()),
                }
            })
            .collect();
        backends.sort_by(|one, other| one.name.cmp(&other.name));
        let lists_fail = live.backends.iter().any(|it| health::delays_lists(it))
            || backends
                .iter()
                .flat_map(|it| it.failing)
                .any(|(_, fails)| fails);
        let mut runs = sorted(switch.counts.pods.all());
        let rows = &live.table.handlers;
        runs.retain(|(name, _)| name.is_empty() || rows.iter().any(|row| row.name == **name));
        Seen {
            switch,
            backends,
            rpcs: sorted(switch.counts.rpcs()),
            calls: sorted(switch.counts.calls.all()),
            runs,
            level: health::level(switch, &live, lists_fail),
            pods: handlers::pods_by_handler(&switch.live().table, &switch.owners),
            process: ProcessStats::own(),
            live,
        }
    }

    /// The ended calls of each RPC, with the name of the backend that was called. The name is empty if criswitch called
    /// several backends or none.
    pub(super) fn calls(&self) -> impl Iterator<Item = (&str, &'static str, &Calls)> {
        let backends = self
            .backends
            .iter()
            .map(|backend| (&*backend.name, &backend.calls));
        let all = [("", &self.calls)].into_iter().chain(backends);
        all.flat_map(|(name, calls)| calls.iter().map(move |(rpc, calls)| (name, *rpc, calls)))
    }

    /// The handlers of the table, with the names of their backends.
    pub(super) fn handlers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.live.table.handlers.iter().filter_map(|row| {
            let backend = self.backends.iter().find(|known| known.id == row.backend)?;
            Some((row.name.as_str(), &*backend.name))
        })
    }
}

fn sorted<K: Ord, T>(mut by_name: Vec<(K, T)>) -> Vec<(K, T)> {
    by_name.sort_by(|(one, _), (other, _)| one.cmp(other));
    by_name
}
