//! Lists: a kubelet believes that a missing pod is dead, and that a listed pod is alive.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use criswitch_cri::codec::{cri, protobuf};
use criswitch_cri::rpc::{self, Kind, Merge};
use prost::Message;

use super::Case;
use crate::simulation::files::RUNTIMES;
use crate::simulation::truth::{Copied, Moment, Thing};

/// The default of `list_timeout`: how long criswitch waits for a list before it serves the cached one.
pub(super) const LIST_TIMEOUT: Duration = Duration::from_secs(2);
/// How long cached stats are served for a backend.
const STALE_STATS: Duration = Duration::from_secs(120);

impl Case<'_> {
    pub(super) fn list(&self) -> Result<(), String> {
        let name = self.asked.call.row.name;
        let (kind, path): (_, &[u32]) = match name {
            "ListPodSandbox"
            | "StreamPodSandboxes"
            | "ListPodSandboxMetrics"
            | "StreamPodSandboxMetrics" => (Kind::Pod, &[1, 1]),
            "ListPodSandboxStats" | "StreamPodSandboxStats" => (Kind::Pod, &[1, 1, 1]),
            "ListContainers" | "StreamContainers" => (Kind::Container, &[1, 1]),
            "ListContainerStats" | "StreamContainerStats" => (Kind::Container, &[1, 1, 1]),
            _ => return Ok(()),
        };
        if !self.is_readable() {
            // criswitch forwards the reply of a single backend unchanged.
            let is_merged = (0..RUNTIMES).filter(|at| self.sure(*at)).count() > 1;
            return self.unless(is_merged, "no client can decode the reply");
        }
        let ids = self.reply.strings(path);
        let listed: HashSet<&str> = ids.iter().map(String::as_str).collect();
        self.unless(listed.len() < ids.len(), "something is listed twice")?;
        for id in &listed {
            let thing = self
                .truth
                .thing(kind, id)
                .ok_or_else(|| format!("{id} is listed, but was never created"))?;
            self.may_be_listed(thing)?;
            let wanted = self
                .asked
                .call
                .filter
                .may_want(thing, self.as_of_thing(thing));
            // If a pod's own backend has lost the pod, a list may show a hostile backend's claim of this pod, in a
            // wrong state.
            let is_lost = thing.forgotten || thing.gone.is_some();
            let may_be_claimed = is_lost && !self.truth.hostile().is_empty();
            self.unless(!wanted && !may_be_claimed, "the filter does not match")?;
        }
        if matches!(name, "ListPodSandbox" | "StreamPodSandboxes") {
            self.named_by_the_table()?;
        }
        let may_lack = name.contains("Stats") || name.contains("Metrics");
        let all = self.truth.existing(kind);
        for thing in all.filter(|thing| !listed.contains(thing.id.as_str())) {
            let as_of = self.as_of_thing(thing);
            if self.asked.call.filter.must_want(thing, as_of) {
                self.may_be_missing(thing, may_lack)?;
            }
        }
        Ok(())
    }

    /// The earliest moment whose state a backend's part of the list may show.
    fn as_of(&self, backend: usize, kind: Kind) -> Moment {
        let begun = self.asked.begun;
        if self.truth.relied_upon(backend, self.asked.at) {
            return begun;
        }
        // criswitch serves no list that is older than the newest list that it received before the call.
        let listings = self.truth.listings.iter().filter(|listing| {
            listing.backend == backend
                && listing.list.kind() == Some(kind)
                && listing.delivered.is_some_and(|at| at < begun)
        });
        listings.map(|listing| listing.at).max().unwrap_or(0)
    }

    /// The earliest moment whose state of `thing` the list may show.
    pub(super) fn as_of_thing(&self, thing: &Thing) -> Moment {
        let all = thing.sources().map(|at| self.as_of(at, thing.kind));
        all.min().unwrap_or(0)
    }

    /// Checks that every pod is listed under the table's name of the pod's handler.
    fn named_by_the_table(&self) -> Result<(), String> {
        for message in &self.reply.messages {
            for pod in protobuf::all_bytes(message, &[1]).map_err(|fault| fault.to_string())? {
                let text = |path| protobuf::string(pod, path).unwrap_or("?");
                let thing = self.truth.thing(Kind::Pod, text(&[1]));
                let named = thing.is_some_and(|thing| self.is_name(thing, text(&[7])));
                self.unless(!named, "a pod has another handler's name")?;
            }
        }
        Ok(())
    }

    /// Whether the call lists all pods or containers, and each backend is healthy or has a complete cached list.
    pub(super) fn stood_in_for(&self) -> bool {
        let kind = match self.asked.call.row.name {
            "ListPodSandbox" => Kind::Pod,
            "ListContainers" => Kind::Container,
            _ => return false,
        };
        // A single backend's list is never served from cache.
        if (0..RUNTIMES).filter(|at| self.sure(*at)).count() < 2 {
            return false;
        }
        let mut backends = (0..RUNTIMES).filter(|at| self.may(*at));
        let covered =
            |at| self.truth.relied_upon(at, self.asked.at) || self.has_last_list(at, kind);
        self.is_any_usable() && self.asked.call.names.is_empty() && backends.all(covered)
    }

    /// Whether at least one backend has given a usable answer to this call, or no backend has given an error or an
    /// unreadable reply.
    fn is_any_usable(&self) -> bool {
        let mut got = self.got();
        !self.got().any(|seen| seen.spoilt) || got.any(|seen| seen.executed && !seen.spoilt)
    }

    /// Whether the call is for all stats, and a healthy backend can answer it. Stats omit the backends that cannot
    /// answer.
    pub(super) fn has_some_stats(&self) -> bool {
        let row = self.asked.call.row;
        let lacks = (0..RUNTIMES).any(|at| self.may_lack(at, row));
        let has_them = |at| self.sure(at) && self.truth.relied_upon(at, self.asked.at);
        let is_due = row.is_stats() && self.asked.call.filter.is_empty();
        is_due && !lacks && (0..RUNTIMES).any(has_them)
    }

    /// Whether a client can decode the reply.
    pub(super) fn is_readable(&self) -> bool {
        let name = self.asked.call.row.name;
        let is_bad = |message: &Bytes| {
            let bytes = message.as_ref();
            match name {
                "ListPodSandbox" | "StreamPodSandboxes" => {
                    cri::ListPodSandboxResponse::decode(bytes).is_err()
                }
                "ListContainers" | "StreamContainers" => {
                    cri::ListContainersResponse::decode(bytes).is_err()
                }
                "ListPodSandboxStats" | "StreamPodSandboxStats" => {
                    cri::ListPodSandboxStatsResponse::decode(bytes).is_err()
                }
                "ListContainerStats" | "StreamContainerStats" => {
                    cri::ListContainerStatsResponse::decode(bytes).is_err()
                }
                "ListPodSandboxMetrics" | "StreamPodSandboxMetrics" => {
                    cri::ListPodSandboxMetricsResponse::decode(bytes).is_err()
                }
                "PodSandboxStatus" => cri::PodSandboxStatusResponse::decode(bytes).is_err(),
                "ContainerStatus" => cri::ContainerStatusResponse::decode(bytes).is_err(),
                "ImageStatus" => cri::ImageStatusResponse::decode(bytes).is_err(),
                _ => false,
            }
        };
        !self.reply.messages.iter().any(is_bad)
    }

    /// Whether criswitch has had a list of `backend` with every item that clients may know.
    fn has_last_list(&self, backend: usize, kind: Kind) -> bool {
        let begun = self.asked.begun;
        self.truth.has_last_list(backend, kind, begun)
    }

    /// Checks that `thing` is not listed after a client saw its removal, or after criswitch received a list without
    /// `thing`.
    fn may_be_listed(&self, thing: &Thing) -> Result<(), String> {
        let begun = self.asked.begun;
        let Some(gone) = thing.gone else {
            return Ok(());
        };
        let removed = thing.removal_reported.is_some_and(|shown| shown < begun);
        let has_reported = |backend: usize| {
            let mut listings = self.truth.listings.iter();
            listings.any(|listing| {
                listing.backend == backend
                    && listing.list.kind() == Some(thing.kind)
                    && listing.at > gone
                    && listing.delivered.is_some_and(|at| at < begun)
            })
        };
        // A hostile backend that has claimed the item may own it after its removal.
        let mut sources = thing.sources().chain(self.truth.hostile());
        let reported_so = sources.all(has_reported);
        if removed || reported_so {
            return Err(format!("{} is gone, and is listed", thing.id));
        }
        Ok(())
    }

    /// Whether criswitch has recent stats of `thing`, and so serves them even if the backend does not answer.
    fn is_cached(&self, thing: &Thing) -> bool {
        let (row, begun) = (self.asked.call.row, self.asked.begun);
        let Some(list) = row.list().filter(|list| list.is_stats()) else {
            return false;
        };
        // criswitch forwards the stats of a single backend unchanged, and does not cache them.
        let alone = (0..RUNTIMES).filter(|at| self.sure(*at)).count() < 2;
        let unary = match row.merge() {
            Some(Merge::Streamed(unary, _)) => unary,
            _ => row,
        };
        let lacks = [row, unary]
            .iter()
            .any(|row| self.may_lack(thing.backend, row));
        if alone
            || lacks
            || !thing.is_sure(begun)
            || !self.asked.call.filter.is_empty()
            || !self.sure(thing.backend)
        {
            return false;
        }
        let mut given = self.truth.listings.iter();
        thing.learned.is_some_and(|at| at < begun)
            && given.any(|given| {
                given.list == list
                    && given.backend == thing.backend
                    && given.at > thing.born
                    && given.delivered.is_some_and(|at| at < begun)
                    && self.reply.at - given.taken < STALE_STATS
            })
    }

    /// Whether a list by uid may omit `thing` because criswitch has not learned it yet. A hostile runtime's pod with
    /// another pod's uid may be missing until criswitch has learned this pod. The same holds for a pod that has passed
    /// to another backend.
    fn is_posed_unknown(&self, thing: &Thing) -> bool {
        let by_uid = self.asked.call.filter.uid().is_some();
        let begun = self.asked.begun;
        by_uid && (thing.poses || thing.shared) && thing.learned.is_none_or(|at| at >= begun)
    }

    /// Checks that the list may omit `thing`: only an item that criswitch cannot know may be missing.
    fn may_be_missing(&self, thing: &Thing, may_lack: bool) -> Result<(), String> {
        let begun = self.asked.begun;
        let relied = self.truth.relied_upon(thing.backend, self.asked.at);
        let known = [thing.shown, thing.learned]
            .into_iter()
            .flatten()
            .any(|at| at < begun);
        let in_this_call = |backend: usize, since: Moment| {
            self.truth.listings.iter().any(|listing| {
                listing.call == self.asked.call.id
                    && listing.backend == backend
                    && listing.at > since
                    && listing.taken < self.asked.at + LIST_TIMEOUT
            })
        };
        let is_listed = |copy: &Copied| {
            let relied = self.truth.relied_upon(copy.at, self.asked.at);
            // The containers of a pod are those that the owner of the pod lists.
            let counts = thing.kind == Kind::Pod || known;
            counts
                && copy.since < begun
                && (relied && self.sure(copy.at) || in_this_call(copy.at, copy.since))
        };
        let its_own = in_this_call(thing.backend, thing.born) || thing.copies.iter().any(is_listed);
        let sure = self.sure(thing.backend);
        let lacks = |row| self.may_lack(thing.backend, row);
        let name = self.asked.call.row.name;
        let left_out = name.contains("Metrics") && lacks(&rpc::LIST_POD_METRICS)
            // Stats may omit a backend that lacks the RPC and is not known to have pods.
            || name.contains("PodSandboxStats") && !known && lacks(&rpc::LIST_POD_STATS);
        // Until criswitch has received a list without `thing`, it may send the call to the backend that had it.
        let narrowed = may_lack || !self.asked.call.filter.is_empty();
        // A container passes to the backend that has its pod.
        let pod = self.truth.thing(Kind::Pod, &thing.pod);
        let mut follows = [Some(thing), pod].into_iter().flatten();
        let lags = thing.kind == Kind::Container && !follows.all(|it| it.is_settled(begun));
        // A forgotten backend may come back within the call and own the item before it takes part in lists.
        let returns = thing.forgotten && !thing.is_sure(begun);
        let misled = narrowed && !thing.is_sure(begun) || lags || returns;
        let unknown = misled || !its_own && self.is_posed_unknown(thing);
        let must = if unknown {
            false
        } else if may_lack {
            relied && sure && !left_out || self.is_cached(thing)
        } else {
            its_own || (known && self.must_know(thing)) || (relied && sure)
        };
        if must && thing.stood(begun) {
            return Err(format!("{} exists, and is missing", thing.id));
        }
        Ok(())
    }
}
