//! Pods that a backend may have and nobody knows of: calls that make one, until it was told.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::Backend;

/// How long after the unheard end of a call that makes a pod a list of pods tells what came of it.
const SETTLED: Duration = Duration::from_secs(10);

/// A call that makes a pod at a backend.
#[derive(Debug)]
pub(crate) struct Creating<'a> {
    backend: &'a Backend,
    sent: bool,
    told: bool,
}

impl Creating<'_> {
    /// It may make a pod from now on.
    pub(crate) fn sent(&mut self) {
        self.sent = true;
    }

    /// The pod has been told and learned. A failure tells nothing: something may be left behind of it.
    pub(crate) fn told(mut self) {
        self.told = true;
    }
}

impl Drop for Creating<'_> {
    fn drop(&mut self) {
        self.backend.creating.fetch_sub(1, Ordering::Relaxed);
        if self.sent && !self.told {
            self.backend.locked().unsettled = Some(Instant::now());
        }
    }
}

impl Backend {
    /// A call that makes a pod is under way, until this is dropped.
    pub(crate) fn creating(&self) -> Creating<'_> {
        self.creating.fetch_add(1, Ordering::Relaxed);
        Creating {
            backend: self,
            sent: false,
            told: false,
        }
    }

    /// Whether it may have a pod that nobody knows of: one is being made, or was and nobody heard the end.
    pub(crate) fn may_have_unknown(&self) -> bool {
        self.creating.load(Ordering::Relaxed) > 0 || self.locked().unsettled.is_some()
    }

    /// A whole list of its pods has been learned, which was asked for then.
    pub(crate) fn listed_pods(&self, asked: Instant) {
        let mut known = self.locked();
        known.unsettled = known.unsettled.filter(|at| asked < *at + SETTLED);
    }
}
