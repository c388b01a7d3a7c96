//! Images: what is absent by one store's word may be in another, and a call that names a handler is for its store only.

use criswitch::rpc::ImageRule;

use super::Case;
use crate::simulation::files::RUNTIMES;

impl Case<'_> {
    pub(super) fn image(&self, rule: &ImageRule) -> Result<(), String> {
        let image = &self.asked.call.names;
        let stood = |image: &str| {
            let mut stored = self.truth.images.iter();
            stored.any(|it| {
                self.concerns_store(it.backend)
                    && it.image == image
                    && it.gone.is_none()
                    && it.told.is_some_and(|told| told < self.asked.begun)
            })
        };
        match rule {
            ImageRule::Find(_) => {
                let found = self.reply.string(&[1, 1]);
                self.unless(found.is_empty() && stood(image), "a backend has the image")?;
                self.unless(
                    !found.is_empty() && found != *image,
                    "it tells of another image",
                )
            }
            // Only stores that have the image get its removal.
            ImageRule::Remove => self.unless(stood(image), "a backend still has the image"),
            ImageRule::Pull(_) => {
                let everywhere = self.handler().is_none();
                let mut must = (0..RUNTIMES)
                    .filter(|at| self.concerns_store(*at) && !(everywhere && self.may_drain(*at)));
                let done = |at| self.got().any(|seen| seen.executed && seen.backend == at);
                self.unless(!must.all(done), "not every backend has done it")
            }
            ImageRule::List(_) => {
                let listed = self.reply.strings(&[1, 1]);
                let mut all = self.truth.images.iter().map(|it| &it.image);
                let missing = all.find(|image| stood(image) && !listed.contains(image));
                missing.map_or(Ok(()), |image| Err(format!("{image} is missing")))?;
                let elsewhere = listed.iter().any(|image| !self.was_stored(image));
                self.unless(elsewhere, "it lists what is not there")
            }
        }
    }

    /// Whether a store that it may concern has ever had the image.
    fn was_stored(&self, image: &str) -> bool {
        let mut stored = self.truth.images.iter();
        stored.any(|it| it.image == image && self.may_concern_store(it.backend))
    }
}
