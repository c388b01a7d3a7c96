//! Lists: a kubelet takes what is missing for dead, and what is listed for alive.

use std::collections::HashSet;
use std::time::Duration;

use criswitch::codec::protobuf;
use criswitch::rpc::{self, Kind, Merge};

use super::Case;
use crate::simulation::files::RUNTIMES;
use crate::simulation::truth::{Moment, Thing};

/// How long the switch waits for a list for which the last one can stand in, by default.
const LIST_TIMEOUT: Duration = Duration::from_secs(2);
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
        let ids = self.reply.strings(path);
        let listed: HashSet<&str> = ids.iter().map(String::as_str).collect();
        self.unless(listed.len() < ids.len(), "something is listed twice")?;
        for id in &listed {
            let thing = self
                .truth
                .thing(kind, id)
                .ok_or_else(|| format!("{id} never was"))?;
            self.may_be_listed(thing)?;
            let wanted = self
                .asked
                .call
                .filter
                .may_want(thing, self.as_of(thing.backend, kind));
            self.unless(!wanted, "the filter does not match")?;
        }
        if matches!(name, "ListPodSandbox" | "StreamPodSandboxes") {
            self.named_by_the_table()?;
        }
        let may_lack = name.contains("Stats") || name.contains("Metrics");
        let all = self.truth.existing(kind);
        for thing in all.filter(|thing| !listed.contains(thing.id.as_str())) {
            let as_of = self.as_of(thing.backend, kind);
            if self.asked.call.filter.must_want(thing, as_of) {
                self.may_be_missing(thing, may_lack)?;
            }
        }
        Ok(())
    }

    /// The moment from which on a backend's part of the list may be.
    fn as_of(&self, backend: usize, kind: Kind) -> Moment {
        let begun = self.asked.begun;
        if self.truth.relied_upon(backend, self.asked.at) {
            return begun;
        }
        // Nothing older stands in for it.
        let listings = self.truth.listings.iter().filter(|listing| {
            listing.backend == backend
                && listing.list.kind() == Some(kind)
                && listing.delivered.is_some_and(|at| at < begun)
        });
        listings.map(|listing| listing.at).max().unwrap_or(0)
    }

    /// Every pod comes under the name that the table has for its handler.
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

    /// Whether it is a list of everything, and each backend is in order or its last list can stand in for it.
    pub(super) fn stood_in_for(&self) -> bool {
        let kind = match self.asked.call.row.name {
            "ListPodSandbox" => Kind::Pod,
            "ListContainers" => Kind::Container,
            _ => return false,
        };
        // One backend alone answers for itself.
        if (0..RUNTIMES).filter(|at| self.sure(*at)).count() < 2 {
            return false;
        }
        let spoilt = self.got().any(|seen| seen.spoilt);
        let mut backends = (0..RUNTIMES).filter(|at| self.may(*at));
        let covered =
            |at| self.truth.relied_upon(at, self.asked.at) || self.has_last_list(at, kind);
        !spoilt && self.asked.call.names.is_empty() && backends.all(covered)
    }

    /// Whether the switch has had a list of `backend` with everything that clients may know of.
    fn has_last_list(&self, backend: usize, kind: Kind) -> bool {
        let begun = self.asked.begun;
        self.truth.has_last_list(backend, kind, begun)
    }

    /// What was removed through the switch must not come back, nor anything that the backend has since said is gone.
    fn may_be_listed(&self, thing: &Thing) -> Result<(), String> {
        let begun = self.asked.begun;
        let Some(gone) = thing.gone else {
            return Ok(());
        };
        let removed = thing.removal_told.is_some_and(|told| told < begun);
        let mut listings = self.truth.listings.iter();
        let told_so = listings.any(|listing| {
            listing.backend == thing.backend
                && listing.list.kind() == Some(thing.kind)
                && listing.at > gone
                && listing.delivered.is_some_and(|at| at < begun)
        });
        if removed || told_so {
            return Err(format!("{} is gone, and is listed", thing.id));
        }
        Ok(())
    }

    /// Whether the switch has had stats of `thing` lately, which are served whatever has become of its backend.
    fn is_cached(&self, thing: &Thing) -> bool {
        let (row, begun) = (self.asked.call.row, self.asked.begun);
        let Some(list) = row.list().filter(|list| list.is_stats()) else {
            return false;
        };
        // What one backend alone says passes as it comes.
        let alone = (0..RUNTIMES).filter(|at| self.sure(*at)).count() < 2;
        let unary = match row.merge() {
            Some(Merge::Interleave(unary)) => unary,
            _ => row,
        };
        let lacks = [row, unary]
            .iter()
            .any(|row| self.may_lack(thing.backend, row));
        if alone || lacks || !self.asked.call.filter.is_empty() || !self.sure(thing.backend) {
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

    /// Whether a list by uid may miss `thing`: a hostile runtime made the pod under the uid of another runtime's pod, which
    /// was created through the switch, and the switch has not listed it.
    fn is_posed_unknown(&self, thing: &Thing) -> bool {
        let by_uid = self.asked.call.filter.uid().is_some();
        let begun = self.asked.begun;
        by_uid && thing.poses && thing.learned.is_none_or(|at| at >= begun)
    }

    /// Only what nobody can know of may be missing.
    fn may_be_missing(&self, thing: &Thing, may_lack: bool) -> Result<(), String> {
        let begun = self.asked.begun;
        let relied = self.truth.relied_upon(thing.backend, self.asked.at);
        let known = [thing.told, thing.learned]
            .into_iter()
            .flatten()
            .any(|at| at < begun);
        let its_own = self.truth.listings.iter().any(|listing| {
            listing.call == self.asked.call.id
                && listing.backend == thing.backend
                && listing.at > thing.born
                && listing.taken < self.asked.at + LIST_TIMEOUT
        });
        let sure = self.sure(thing.backend);
        let lacks = |row| self.may_lack(thing.backend, row);
        let name = self.asked.call.row.name;
        let left_out = name.contains("Metrics") && lacks(&rpc::LIST_POD_METRICS)
            // One that nobody knows to have pods may do without these.
            || name.contains("PodSandboxStats") && !known && lacks(&rpc::LIST_POD_STATS);
        let unknown = !its_own && self.is_posed_unknown(thing);
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
