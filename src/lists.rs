//! The last whole lists of a backend, which stand in for it while it does not answer.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::rpc::List;

/// A whole list as the backend gave it; at most `max_message` bytes.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The encoded reply.
    pub message: Bytes,
    /// When it was asked for.
    pub taken: Instant,
}

impl Snapshot {
    /// How old it is.
    pub fn age(&self) -> Duration {
        self.taken.elapsed()
    }
}

/// One backend's last whole lists: at most three times `max_message` bytes.
#[derive(Clone, Debug, Default)]
pub struct Lists {
    pods: Option<Snapshot>,
    containers: Option<Snapshot>,
    images: Option<Snapshot>,
    images_changed: Option<Instant>,
}

impl Lists {
    /// The last whole list of this kind.
    pub fn get(&self, list: List) -> Option<&Snapshot> {
        match list {
            List::Pods => self.pods.as_ref(),
            List::Containers => self.containers.as_ref(),
            List::Images => self.images.as_ref(),
        }
    }

    /// Keeps a whole list, unless a later one is there or its images have changed since it was asked for.
    pub fn keep(&mut self, list: List, snapshot: Snapshot) {
        let outdated = list == List::Images && self.images_changed > Some(snapshot.taken);
        let place = match list {
            List::Pods => &mut self.pods,
            List::Containers => &mut self.containers,
            List::Images => &mut self.images,
        };
        let older = place
            .as_ref()
            .is_some_and(|kept| kept.taken > snapshot.taken);
        if !older && !outdated {
            *place = Some(snapshot);
        }
    }

    /// An image came or went: what was listed before is no longer whole.
    pub fn images_changed(&mut self) {
        self.images = None;
        self.images_changed = Some(Instant::now());
    }
}
