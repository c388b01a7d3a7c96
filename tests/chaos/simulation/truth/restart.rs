//! The facts that one run of criswitch leaves to the next.

use std::time::Duration;

use criswitch_cri::rpc::{Kind, List};
use tokio::time::Instant;

use super::{Listing, Moment, START_WAIT, Thing, Truth, Updates};
use crate::simulation::files::RUNTIMES;

/// How long an instance keeps a backend for a pod that the previous instance was creating.
const CREATION: Duration = Duration::from_secs(310);
/// How long the first lists wait for backends with known lists.
const BRIEF_WAIT: Duration = Duration::from_secs(1);

/// The knowledge that the next instance can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    WithAll,
    /// Everything except whether a backend is new.
    WithoutRegister,
    /// Everything except this backend's lists.
    Without(usize),
    WithNothing,
    /// Only the fact that no pod or container is left.
    AfterReboot,
}

/// The role of a backend in the previous instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Before {
    /// The runtime was not a backend.
    Absent,
    /// The backend was not joined.
    Out,
    /// The backend was joined, or must be joined from now on.
    Joined,
    /// The next instance cannot know the role.
    #[default]
    Unsure,
}

impl Truth {
    /// Starts a new instance. The instance knows at most the facts that `next` describes, and has no list of a backend
    /// that is `true` in `unsaved`.
    pub fn switch_restarted(&mut self, next: Next, unsaved: [bool; RUNTIMES]) {
        let mut known = [false; RUNTIMES];
        for (backend, known) in known.iter_mut().enumerate() {
            let next = match next {
                Next::WithAll | Next::Without(_) if unsaved[backend] => Next::Without(backend),
                // This backend's file is missing. A known backend had joined and is joined again, whether or not the
                // register is readable. The role of any other backend depends on the register, so it stays unsure.
                Next::WithoutRegister if unsaved[backend] && self.is_known(backend) => {
                    Next::WithNothing
                }
                next => next,
            };
            self.before[backend] = match self.before(backend, next) {
                // The files that show that a register is an earlier one may be missing.
                Before::Absent if next == Next::WithoutRegister && unsaved.contains(&true) => {
                    Before::Unsure
                }
                before => before,
            };
            *known = self.is_saved(backend, next);
        }
        self.saved = known;
        let all_known = (0..RUNTIMES).all(|at| known[at] || self.before[at] == Before::Absent);
        self.start_wait = if all_known { BRIEF_WAIT } else { START_WAIT };
        for (backend, kept_until) in self.kept_until.iter_mut().enumerate() {
            let mut seen = self.seen.iter();
            let made = seen.any(|it| {
                it.backend == backend && it.call > self.first_call && it.row.name == "RunPodSandbox"
            });
            if made || kept_until.is_some_and(|at| at > Instant::now()) {
                *kept_until = Some(Instant::now() + CREATION);
            }
        }
        self.life += 1;
        self.first_call = self.calls;
        self.life_began = self.tick();
        self.started = false;
        let all_saved = next == Next::WithAll && !unsaved.contains(&true);
        self.updates = Updates {
            last: self.updates.last.take().filter(|_| all_saved),
            ..Updates::default()
        };
        self.creating.clear();
        self.listings.retain(|listing| {
            known[listing.backend] && listing.delivered.is_some() && listing.list.kind().is_some()
        });
        let is_known = |at: usize| known[at] || self.before[at] == Before::Absent;
        for thing in &mut self.things {
            thing.be_restored(known[thing.backend], is_known);
        }
        for thing in &mut self.things {
            thing.unanswered |= thing.shown.is_none() && thing.learned.is_none();
        }
        if next == Next::AfterReboot {
            (0..RUNTIMES).for_each(|backend| self.is_empty_now(backend));
            // Images outlive a reboot, but criswitch treats a backend that is down as empty. So answers from before the
            // reboot do not require criswitch to find an image.
            self.images.iter_mut().for_each(|image| image.shown = None);
        }
    }

    fn before(&self, backend: usize, next: Next) -> Before {
        let arrived = self.arrivals.last().copied().unwrap_or(0);
        // A removed backend may still be on disk, even if it was added again since.
        let may_be_left = self.tables.has_left(backend, arrived);
        match (next, self.tables.places[backend]) {
            (Next::AfterReboot | Next::WithNothing, Some(_)) => Before::Joined,
            (_, None) if may_be_left => Before::Unsure,
            (_, None) => Before::Absent,
            (_, Some(_)) if self.is_known(backend) => Before::Joined,
            (Next::WithAll, Some(place)) if !place.joined && !may_be_left => Before::Out,
            _ => Before::Unsure,
        }
    }

    /// Whether `backend` has joined, and criswitch has received a list of it.
    fn is_known(&self, backend: usize) -> bool {
        let mut listings = self.listings.iter();
        let listed = listings.any(|it| it.backend == backend && it.delivered.is_some());
        listed && self.tables.places[backend].is_some_and(|place| place.joined)
    }

    /// Whether everything that criswitch knows of `backend` is on disk.
    fn is_saved(&self, backend: usize, next: Next) -> bool {
        let now = Moment::MAX;
        let has = |kind| self.has_last_list(backend, kind, now);
        let joined = self.tables.places[backend].is_some_and(|place| place.joined);
        let kept = match next {
            Next::WithAll | Next::WithoutRegister => true,
            Next::Without(other) => other != backend,
            Next::WithNothing | Next::AfterReboot => false,
        };
        kept && joined && has(Kind::Pod) && has(Kind::Container)
    }

    /// Notes that a backend is empty and that criswitch knows this.
    fn is_empty_now(&mut self, backend: usize) {
        for list in [List::Pods, List::Containers] {
            let now = self.tick();
            self.listings.push(Listing {
                call: 0,
                backend,
                list,
                at: now,
                taken: Instant::now(),
                delivered: Some(now),
                used: true,
            });
        }
    }

    /// Whether criswitch has received, before the moment `before`, a list of `backend` with everything that clients may
    /// know. An item that is newer than the list counts as received if the call that created it has succeeded at its
    /// client.
    pub fn has_last_list(&self, backend: usize, kind: Kind, before: Moment) -> bool {
        let mut lists = self.listings.iter().filter(|it| it.backend == backend);
        lists.any(|listing| {
            listing.list.kind() == Some(kind)
                && listing.delivered.is_some_and(|at| at < before)
                && self.none_streamed_since(listing)
                && self.all_answered_since(listing, kind)
        })
    }

    /// Whether every client's streamed list had ended before `listing`. criswitch may forward a streamed list without
    /// reading it, so the client may know items that criswitch does not know.
    fn none_streamed_since(&self, listing: &Listing) -> bool {
        let mut streamed = self.streamed.iter();
        streamed.all(|it| {
            it.ended
                .is_some_and(|(ended, at)| ended < listing.at && at < listing.taken)
        })
    }

    /// Whether all items newer than the list come from calls that succeeded. For a list of containers, newer pods count
    /// too, and so does every pod that no earlier list has: criswitch cannot know that this pod is older than the list
    /// of containers.
    fn all_answered_since(&self, listing: &Listing, kind: Kind) -> bool {
        let mut since = self.things.iter().filter(|thing| {
            let counts = thing.is_listed_by(listing.backend)
                && (thing.kind == kind || kind == Kind::Container);
            let is_listed = thing.kind == kind || self.is_pod_listed_before(thing, listing);
            let copy = thing.copies.iter().find(|copy| copy.at == listing.backend);
            let since = copy.map_or(thing.born, |copy| copy.since);
            counts && (since > listing.at || !is_listed)
        });
        since.all(|thing| {
            let is_own = thing.backend == listing.backend;
            is_own && thing.answered.is_some() && self.is_created(thing.maker)
        })
    }

    /// Whether criswitch had received a full list of pods with this pod in it when criswitch asked for `listing`.
    /// criswitch itself asks for pods first, then for containers.
    fn is_pod_listed_before(&self, pod: &Thing, listing: &Listing) -> bool {
        self.listings.iter().any(|earlier| {
            let is_own = earlier.call == 0 && listing.call == 0;
            earlier.list == List::Pods
                && earlier.backend == pod.backend
                && (pod.born..listing.at).contains(&earlier.at)
                && (is_own || earlier.delivered.is_some_and(|at| at < listing.at))
        })
    }

    /// Whether the call creates one pod or container that its request describes. False for `RestorePod`.
    fn is_created(&self, maker: u64) -> bool {
        let mut seen = self.seen.iter().filter(|seen| seen.call == maker);
        seen.any(|it| matches!(it.row.name, "RunPodSandbox" | "CreateContainer"))
    }
}
