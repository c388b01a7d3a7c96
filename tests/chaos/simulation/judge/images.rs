//! Images: an image that one store lacks may be in another. A call that names a handler or a pod is for the store of
//! that handler or pod only.

use criswitch_cri::rpc::{Goes, ImageRule, Kind};

use super::Case;
use super::lists::LIST_TIMEOUT;
use crate::simulation::client::{CONTAINER_IMAGE, Call};
use crate::simulation::files::RUNTIMES;
use crate::simulation::truth::{Stored, Thing};

impl Case<'_> {
    pub(super) fn image(&self, rule: &ImageRule) -> Result<(), String> {
        if !self.asked.call.uid.is_empty() {
            return self.image_of_pod(rule);
        }
        let image = &self.asked.call.names;
        let stood = |image: &str| {
            (0..RUNTIMES).any(|at| self.concerns_store(at) && self.stood_in(at, image))
        };
        match rule {
            ImageRule::Find(_) => {
                let found = self.reply.string(&[1, 1]);
                self.unless(
                    !self.is_readable() && !self.may_pass_unread(),
                    "a merged reply cannot be decoded",
                )?;
                self.unless(
                    found.is_empty() && stood(image),
                    "the reply has no image, but a backend has it",
                )?;
                self.unless(
                    !found.is_empty() && found != *image,
                    "the reply is about a different image",
                )
            }
            // criswitch sends the removal only to stores that have the image, so the judge checks the stores and not
            // the calls.
            ImageRule::Remove => {
                let left = |at| self.stood_in(at, image) && !self.may_be_used(at, image);
                let mut stores = (0..RUNTIMES).filter(|at| self.concerns_store(*at));
                self.unless(stores.any(left), "a backend still has the image")
            }
            ImageRule::Pull(_) => {
                let everywhere = self.handler().is_none();
                let mut must = (0..RUNTIMES)
                    .filter(|at| self.concerns_store(*at) && !(everywhere && self.may_drain(*at)));
                let done = |at| self.got().any(|seen| seen.executed && seen.backend == at);
                self.unless(
                    !must.all(done),
                    "a backend that must pull the image did not pull it",
                )
            }
            ImageRule::List(_) if self.may_pass_unread() => Ok(()),
            ImageRule::List(_) => {
                let listed = self.reply.strings(&[1, 1]);
                let mut all = self.truth.images.iter();
                let missing = all.find(|it| {
                    let must_be_listed = self.concerns_store(it.backend)
                        && self.stood(it)
                        && !self.may_be_outdated(it);
                    must_be_listed && !listed.contains(&it.image)
                });
                missing.map_or(Ok(()), |it| Err(format!("{} is missing", it.image)))?;
                let elsewhere = listed.iter().any(|image| !self.was_stored(image));
                self.unless(elsewhere, "the reply lists an image that no store had")
            }
        }
    }

    /// Whether the reply may be undecodable: criswitch forwards the reply of a single store without reading it.
    fn may_pass_unread(&self) -> bool {
        (self.handler().is_some() || self.asked.call.id <= self.truth.alone)
            && self.got().any(|seen| seen.spoilt)
    }

    /// Judges an image call that names a pod, by the stores that the pod may use.
    fn image_of_pod(&self, rule: &ImageRule) -> Result<(), String> {
        let (image, stores) = (&self.asked.call.names, self.stores_of_pod());
        match rule {
            ImageRule::Pull(_) => {
                let done = self.got().any(|seen| seen.executed);
                self.unless(!done, "no store has pulled it")
            }
            _ => {
                let found = self.reply.string(&[1, 1]);
                let stores = stores.unwrap_or_default();
                let mut having = stores.iter().map(|at| self.stood_in(*at, image));
                let stood = !stores.is_empty() && having.all(|stood| stood);
                self.unless(
                    found.is_empty() && stood,
                    "the reply has no image, but the pod's store has it",
                )?;
                self.unless(
                    !found.is_empty() && found != *image,
                    "the reply is about a different image",
                )
            }
        }
    }

    /// The stores that the pod of the call may use: the stores of all backends that created a pod with this uid. `None`
    /// if no existing pod with this uid was created through this instance, because criswitch need not trust a pod that
    /// it knows only from lists.
    pub(super) fn stores_of_pod(&self) -> Option<Vec<usize>> {
        let (uid, begun) = (&self.asked.call.uid, self.asked.begun);
        let pods = self
            .truth
            .things
            .iter()
            .filter(|it| it.kind == Kind::Pod && it.uid == *uid && !it.poses);
        let mut created = pods.clone().filter(|pod| {
            let is_reported = pod.answered.is_some_and(|at| at < begun);
            is_reported && self.truth.is_made_by_this_switch(pod) && self.is_known(pod)
        });
        created.next()?;
        Some(pods.flat_map(Thing::sources).collect())
    }

    /// Whether several backends may list a pod with the call's uid, and `stores_of_pod` is `None`.
    pub(super) fn may_be_doubled(&self) -> bool {
        let pods = self
            .truth
            .things
            .iter()
            .filter(|it| it.kind == Kind::Pod && it.uid == self.asked.call.uid);
        let mut backends = pods.flat_map(Thing::sources);
        let first = backends.next();
        self.stores_of_pod().is_none() && backends.any(|backend| Some(backend) != first)
    }

    /// Whether a client knew before the call that the store has the image, and the store still has the image.
    fn stood_in(&self, backend: usize, image: &str) -> bool {
        let mut stored = self.truth.images.iter();
        stored.any(|it| it.backend == backend && it.image == image && self.stood(it))
    }

    fn stood(&self, stored: &Stored) -> bool {
        let is_known = stored.shown.is_some_and(|shown| shown < self.asked.begun);
        stored.gone.is_none() && is_known
    }

    /// Whether the reply may have an older list of the store, which lacks an image that was pulled since. A call for
    /// all images gets the last list of a store that does not answer in time.
    fn may_be_outdated(&self, stored: &Stored) -> bool {
        let Call { timeout, .. } = self.asked.call;
        let is_in_time = self.reply.at - self.asked.at < LIST_TIMEOUT
            && timeout.is_none_or(|timeout| timeout > LIST_TIMEOUT);
        let has_answered = self
            .got()
            .any(|seen| seen.backend == stored.backend && seen.executed && !seen.spoilt);
        stored.pulled && self.handler().is_none() && !(has_answered && is_in_time)
    }

    /// Whether the call removes an image that a container may use, and no store has executed the removal.
    pub(super) fn may_be_in_use(&self) -> bool {
        let Call { row, names, .. } = &self.asked.call;
        let removes = matches!(row.goes, Goes::Image(_, ImageRule::Remove));
        let is_used = |at| self.may_concern_store(at) && self.may_be_used(at, names);
        removes && (0..RUNTIMES).any(is_used) && !self.got().any(|seen| seen.executed)
    }

    /// Whether a container may have used the image during the call, or a pod may have been about to use it, so that its
    /// store keeps the image.
    fn may_be_used(&self, backend: usize, image: &str) -> bool {
        let begun = self.asked.begun;
        let things = self.truth.things.iter();
        let mut there = things.filter(|thing| thing.sources().any(|at| at == backend));
        there.any(|thing| match thing.kind {
            // The kubelet's calls for any image may name the pod. criswitch remembers the pod after its end.
            Kind::Pod => true,
            Kind::Container => {
                image == CONTAINER_IMAGE && thing.gone.is_none_or(|gone| gone > begun)
            }
        })
    }

    /// Whether a store that the call may concern has ever had the image.
    fn was_stored(&self, image: &str) -> bool {
        let mut stored = self.truth.images.iter();
        stored.any(|it| it.image == image && self.may_concern_store(it.backend))
    }
}
