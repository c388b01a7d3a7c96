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
    pods: Kept,
    containers: Kept,
    images: Kept,
}

#[derive(Clone, Debug, Default)]
struct Kept {
    last: Option<Snapshot>,
    /// What was asked for before is no longer whole.
    outdated: Option<Instant>,
}

impl Lists {
    /// The last whole list of this kind.
    pub fn get(&self, list: List) -> Option<&Snapshot> {
        let kept = match list {
            List::Pods => &self.pods,
            List::Containers => &self.containers,
            List::Images => &self.images,
        };
        kept.last.as_ref()
    }

    /// Keeps a whole list, unless a later one is there or it was outdated since it was asked for; of the same instant
    /// nobody knows which was first.
    pub fn keep(&mut self, list: List, snapshot: Snapshot) {
        let kept = self.kept(list);
        let later = kept.last.as_ref().map(|kept| kept.taken);
        if later <= Some(snapshot.taken) && kept.outdated < Some(snapshot.taken) {
            kept.last = Some(snapshot);
        }
    }

    /// There may be more by now than was listed: an image came or went, or a client has seen a list that nobody here
    /// has.
    pub fn outdate(&mut self, list: List) {
        *self.kept(list) = Kept {
            last: None,
            outdated: Some(Instant::now()),
        };
    }

    fn kept(&mut self, list: List) -> &mut Kept {
        match list {
            List::Pods => &mut self.pods,
            List::Containers => &mut self.containers,
            List::Images => &mut self.images,
        }
    }
}
