//! What the next switch knows of what this one knew.

use std::time::Duration;

use criswitch::rpc::{Kind, List};
use tokio::time::Instant;

use super::{Listing, Moment, START_WAIT, Truth, Updates};
use crate::simulation::files::RUNTIMES;

/// How long the first lists wait for backends whose lists are known.
const BRIEF_WAIT: Duration = Duration::from_secs(1);

/// What the next switch can know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    WithAll,
    /// All, but not whether a backend is new.
    WithoutRegister,
    /// All but this backend's lists.
    Without(usize),
    WithNothing,
    /// That nothing is left.
    AfterReboot,
}

/// What a backend was to the switch before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Before {
    /// It was no backend.
    Absent,
    /// It took no part.
    Out,
    /// It took part, or it must from now on.
    Joined,
    /// The next switch cannot know.
    #[default]
    Unsure,
}

impl Truth {
    /// Another switch starts, and knows no more than `next`, and nothing of what these backends have.
    pub fn switch_restarted(&mut self, next: Next, unsaved: [bool; RUNTIMES]) {
        let mut known = [false; RUNTIMES];
        for (backend, known) in known.iter_mut().enumerate() {
            let next = match next {
                Next::WithAll | Next::Without(_) if unsaved[backend] => Next::Without(backend),
                Next::WithoutRegister if unsaved[backend] => Next::WithNothing,
                next => next,
            };
            self.before[backend] = self.before(backend, next);
            *known = self.is_saved(backend, next);
        }
        self.saved = known;
        let all_known = (0..RUNTIMES).all(|at| known[at] || self.before[at] == Before::Absent);
        self.start_wait = if all_known { BRIEF_WAIT } else { START_WAIT };
        self.life += 1;
        self.first_call = self.calls;
        self.life_began = self.tick();
        self.started = false;
        self.updates = Updates::default();
        self.creating.clear();
        self.listings.retain(|listing| {
            known[listing.backend] && listing.delivered.is_some() && listing.list.kind().is_some()
        });
        for thing in self.things.iter_mut().filter(|it| !known[it.backend]) {
            thing.learned = None;
        }
        for thing in &mut self.things {
            thing.unheard |= thing.told.is_none() && thing.learned.is_none();
        }
        if next == Next::AfterReboot {
            (0..RUNTIMES).for_each(|backend| self.is_empty_now(backend));
            // Images outlive a reboot, but a backend that is away counts as empty.
            self.images.iter_mut().for_each(|image| image.told = None);
        }
    }

    fn before(&self, backend: usize, next: Next) -> Before {
        let arrived = self.arrivals.last().copied().unwrap_or(0);
        let listed = self
            .listings
            .iter()
            .any(|it| it.backend == backend && it.delivered.is_some());
        // What the switch has let go of may still be on disk, also if it has come back since.
        let may_be_left = self.tables.has_left(backend, arrived);
        match (next, self.tables.places[backend]) {
            (Next::AfterReboot | Next::WithNothing, Some(_)) => Before::Joined,
            (_, None) if may_be_left => Before::Unsure,
            (_, None) => Before::Absent,
            (_, Some(place)) if place.joined && listed => Before::Joined,
            (Next::WithAll, Some(place)) if !place.joined && !may_be_left => Before::Out,
            _ => Before::Unsure,
        }
    }

    /// Whether all that the switch knows of `backend` is on the disk.
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

    /// Nothing of a backend is left, and the switch knows.
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

    /// Whether the switch has had a list of `backend` before then with everything that clients may know of: what came
    /// since, a call made, and its client heard of it.
    pub fn has_last_list(&self, backend: usize, kind: Kind, before: Moment) -> bool {
        let mut lists = self.listings.iter().filter(|it| it.backend == backend);
        lists.any(|listing| {
            listing.list.kind() == Some(kind)
                && listing.delivered.is_some_and(|at| at < before)
                && self.none_streamed_since(listing)
                && self.all_answered_since(listing, kind)
        })
    }

    /// Whether no list was streamed later, which may have passed unread: the client knows more then than the switch.
    fn none_streamed_since(&self, listing: &Listing) -> bool {
        let mut streamed = self.streamed.iter();
        streamed.all(|it| {
            it.ended
                .is_some_and(|(ended, at)| ended < listing.at && at < listing.taken)
        })
    }

    /// Whether all that came since was made by calls that were answered. No list of containers is older than a pod that
    /// came otherwise.
    fn all_answered_since(&self, listing: &Listing, kind: Kind) -> bool {
        let mut since = self.things.iter().filter(|thing| {
            thing.backend == listing.backend
                && (thing.kind == kind || kind == Kind::Container)
                && thing.born > listing.at
        });
        since.all(|thing| thing.answered.is_some() && self.is_created(thing.maker))
    }

    /// Whether the call makes one thing, which its request describes.
    fn is_created(&self, maker: u64) -> bool {
        let mut seen = self.seen.iter().filter(|seen| seen.call == maker);
        seen.any(|it| matches!(it.row.name, "RunPodSandbox" | "CreateContainer"))
    }
}
