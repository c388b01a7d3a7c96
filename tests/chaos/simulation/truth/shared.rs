//! Pods and containers that several backends list.
//!
//! The truth follows the lists of the backends: a pod exists as long as at least one backend lists it.

use std::collections::HashSet;

use criswitch_cri::rpc::Kind;

use super::{Moment, Thing, Truth};

impl Truth {
    /// The pods or containers that `backend` lists, except those that it only claims.
    pub fn listed_by(&self, backend: usize, kind: Kind) -> impl Iterator<Item = &Thing> {
        let existing = self.existing(kind);
        existing.filter(move |thing| thing.is_listed_by(backend))
    }

    /// Makes `backend` list a pod of another backend too, with the pod's containers. criswitch knows the pod.
    pub fn copy_one(&mut self, backend: usize, which: usize, odd: bool) {
        let pods: Vec<_> = self
            .existing(Kind::Pod)
            .filter(|pod| {
                let is_known = pod.learned.is_some() && pod.is_settled(Moment::MAX);
                pod.backend != backend && pod.copies.is_empty() && !pod.poses && is_known
            })
            .map(|pod| pod.id.clone())
            .collect();
        if let Some(at) = which.checked_rem(pods.len()) {
            self.copy(backend, odd, |thing| thing.pod == pods[at]);
        }
    }

    /// Makes `backend` list all pods and containers of `other` that no third backend lists.
    pub fn copy_all(&mut self, backend: usize, other: usize) {
        let its = |thing: &Thing| thing.backend == other && thing.copies.is_empty() && !thing.poses;
        let pods: Vec<_> = self
            .existing(Kind::Pod)
            .filter(|pod| its(pod))
            .map(|pod| pod.id.clone())
            .collect();
        self.copy(backend, false, |thing| {
            pods.contains(&thing.pod) && its(thing)
        });
    }

    fn copy(&mut self, backend: usize, odd: bool, which: impl Fn(&Thing) -> bool) {
        let now = self.tick();
        let things = self.things.iter_mut();
        let copied = things.filter(|it| it.gone.is_none() && it.backend != backend && which(it));
        copied.for_each(|thing| thing.copy(backend, now, odd));
    }

    /// Makes `backend` stop listing the pods of other backends and the containers of these pods. `backend` still lists
    /// all containers of its own pods, including containers that were created through another backend.
    pub fn drop_copies(&mut self, backend: usize) {
        let now = self.tick();
        let pods = self
            .existing(Kind::Pod)
            .filter(|pod| pod.backend != backend);
        let others: HashSet<_> = pods.map(|pod| pod.id.clone()).collect();
        let things = self.things.iter_mut().filter(|it| it.gone.is_none());
        for thing in things.filter(|it| others.contains(&it.pod)) {
            thing.drop_copy(backend, now);
            if thing.backend == backend {
                thing.pass(now, false);
            }
        }
    }

    /// Removes all items of `backend`, because another runtime serves its socket or the runtime has lost everything. An
    /// item that another backend lists too now belongs to that backend.
    pub fn lose_all(&mut self, backend: usize) {
        let now = self.tick();
        let hostile = self.hostile();
        for thing in self.things.iter_mut().filter(|it| it.gone.is_none()) {
            thing.drop_copy(backend, now);
            if thing.backend == backend && !thing.pass(now, false) {
                thing.gone = Some(now);
                thing.leave_to(&hostile, now);
            }
        }
    }

    /// The backends that have ever claimed items of other backends, or imitated their ids.
    pub fn hostile(&self) -> Vec<usize> {
        let all = 0..self.health.len();
        all.filter(|at| self.health[*at].was_hostile).collect()
    }

    /// Notes that criswitch has removed `backend`, or has forgotten it because an operator asked for that. An item that
    /// another backend lists too now belongs to that backend.
    pub fn forget_things(&mut self, backend: usize) {
        let now = self.tick();
        self.tables.calls_before[backend] = self.calls;
        let hostile = self.hostile();
        let its = self.things.iter_mut();
        for thing in its.filter(|it| it.backend == backend && it.gone.is_none()) {
            if !thing.pass(now, true) {
                thing.leave_to(&hostile, now);
                thing.shared = true;
                (thing.learned, thing.shown) = (None, None);
                (thing.forgotten, thing.unanswered) = (true, true);
            }
        }
        for thing in self.things.iter_mut().filter(|it| it.backend != backend) {
            thing.forget_copy(backend);
        }
    }

    /// Notes that criswitch has forgotten `backend` because an operator asked for that. The backend takes part in
    /// merged calls again once criswitch has listed it.
    pub fn forgotten(&mut self, backend: usize) {
        self.forget_things(backend);
        self.tables.forgotten[backend] = true;
        self.offers[backend].forget();
        let now = self.tick();
        self.tables.left.push((now, backend));
        self.unlearn_lost(backend);
        self.listings.retain(|listing| listing.backend != backend);
        let images = self.images.iter_mut().filter(|it| it.backend == backend);
        images.for_each(|image| image.shown = None);
        if let Some(place) = &mut self.tables.places[backend] {
            (place.joined, place.made_ready) = (false, false);
        }
        // A call that waited for the backend may go to a single backend now.
        let joined = self.tables.places.iter().flatten();
        if joined.filter(|place| place.joined).count() < 2 {
            self.alone = self.calls;
        }
    }

    /// Notes that criswitch forgets the items that `backend` has lost since its last list, before criswitch can notice
    /// the loss.
    fn unlearn_lost(&mut self, backend: usize) {
        let its = self.things.iter_mut().filter(|it| it.backend == backend);
        for thing in its.filter(|it| it.removal_reported.is_none()) {
            let mut lists = self.listings.iter().filter(|listing| {
                listing.backend == backend && listing.list.kind() == Some(thing.kind)
            });
            let mut is_shown = |gone| lists.any(|it| it.at > gone && it.delivered.is_some());
            if thing.gone.is_some_and(|gone| !is_shown(gone)) {
                thing.learned = None;
            }
        }
    }

    /// Notes that criswitch has removed `backend`, so that it sends no call there any more.
    pub fn settle_left(&mut self, backend: usize) {
        let now = self.tick();
        let left = self.things.iter_mut().flat_map(|thing| &mut thing.left);
        for left in left.filter(|left| left.backend == backend) {
            left.settled = left.settled.or(Some(now));
        }
    }

    /// The backend that lists each new pod of `backend`, if any.
    pub fn mirror_of(&self, backend: usize) -> Option<usize> {
        let mut all = self.health.iter();
        all.position(|it| it.mirrors)
            .filter(|mirror| *mirror != backend)
    }
}

impl Thing {
    /// Notes that criswitch has received, at `now`, the list that `backend` sent at `at`.
    pub fn be_listed(&mut self, backend: usize, at: Moment, now: Moment) {
        let left = self.left.iter_mut().filter(|it| it.backend == backend);
        for left in left.filter(|left| left.at < at) {
            left.settled = left.settled.or(Some(now));
        }
        let copies = self.copies.iter_mut().filter(|it| it.at == backend);
        for copy in copies.filter(|copy| copy.since < at) {
            copy.learned = copy.learned.or(Some(now));
        }
        if self.backend == backend && self.born < at && self.is_settled(Moment::MAX) {
            self.learned = self.learned.or(Some(now));
        }
    }

    /// Notes that a new instance of criswitch has started. `is_known` says whether its state has everything of the
    /// thing's own backend, and `are_known` whether it has everything of another backend.
    pub fn be_restored(&mut self, is_known: bool, are_known: impl Fn(usize) -> bool) {
        let mut copies = self.copies.iter();
        let is_placed = self.owned || copies.all(|copy| are_known(copy.at));
        // The state has the thing as an item of one backend. That may be a backend that lists a copy.
        let is_of_own = self.owned || self.copies.is_empty();
        if !is_known || !is_placed || !is_of_own || !self.is_settled(Moment::MAX) {
            self.learned = None;
        }
        if !is_placed || !self.is_settled(Moment::MAX) {
            self.shown = None;
        }
        self.lost |= !is_known;
        self.owned &= is_known && self.learned.is_some();
        self.copies.iter_mut().for_each(|copy| copy.learned = None);
    }
}
