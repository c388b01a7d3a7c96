//! Records which changes of a backend's state are on disk. A reply that shows a change waits until the change is saved.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use criswitch_config::BackendId;
use criswitch_cri::rpc::List;
use futures_util::future::join_all;
use tokio::sync::watch;
use tonic::Status;

use super::Backend;
use crate::backend::lists::Snapshot;
use crate::gate::Readable;

/// Numbers the changes of a backend's state, and records the number of the last saved change.
#[derive(Debug)]
pub(crate) struct Saving {
    made: watch::Sender<u64>,
    done: watch::Sender<Done>,
    /// Whether the state that was saved last, or that is being saved, lacks the list of pods or of containers.
    is_partial: AtomicBool,
}

#[derive(Debug)]
struct Done {
    /// The number of the last saved change. [`u64::MAX`] if changes need not be saved.
    saved: u64,
    /// The number of the last change that criswitch tried to save.
    tried: u64,
    /// Why criswitch could neither save a change nor remove the outdated file.
    cause: Arc<str>,
    /// Why the current state is not on disk. `None` if it is on disk.
    lost: Option<Arc<str>>,
}

/// The result of saving changes. A failure has its cause.
#[derive(Clone, Debug)]
pub(crate) enum SaveResult {
    OnDisk,
    /// The file could not be written, and is removed.
    Removed(String),
    /// The old file may remain: it could be neither replaced nor removed, or the file system does not answer.
    Outdated(String),
}

impl Default for Saving {
    /// The initial state: no change has to be saved before [`Saving::begin`].
    fn default() -> Saving {
        Saving {
            made: watch::Sender::new(0),
            done: watch::Sender::new(Done {
                saved: u64::MAX,
                tried: 0,
                cause: "".into(),
                lost: None,
            }),
            is_partial: AtomicBool::new(false),
        }
    }
}

impl Saving {
    /// From now on every change must be saved. The current state counts as the first change.
    pub(crate) fn begin(&self) {
        self.done.send_modify(|done| done.saved = 0);
        self.note_change();
    }

    /// Records that the state that criswitch saves for the next start has changed.
    pub(crate) fn note_change(&self) {
        self.made.send_modify(|made| *made += 1);
    }

    /// Records whether the state that is being saved lacks the list of pods or of containers.
    pub(crate) fn saves_part(&self, is_partial: bool) {
        self.is_partial.store(is_partial, Ordering::Relaxed);
    }

    /// Whether the state that was saved last lacks the list of pods or of containers.
    pub(crate) fn is_saved_in_part(&self) -> bool {
        self.is_partial.load(Ordering::Relaxed)
    }

    /// The numbers of the changes. A change before this call does not count as new.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.made.subscribe()
    }

    /// Waits for a change with a number above `number`. Returns the number of the last change.
    pub(crate) async fn changed_after(&self, number: u64) -> u64 {
        let mut made = self.made.subscribe();
        made.wait_for(|made| *made > number)
            .await
            .map_or(number, |made| *made)
    }

    /// Records the result of saving all changes up to `change`. Returns the cause if this is the first failure.
    pub(crate) fn was_saved(&self, change: u64, result: SaveResult) -> Option<String> {
        let lost: Option<Arc<str>> = match &result {
            SaveResult::OnDisk => None,
            SaveResult::Removed(cause) | SaveResult::Outdated(cause) => Some(cause.as_str().into()),
        };
        let mut is_new = false;
        self.done.send_modify(|done| {
            done.tried = change;
            is_new = lost.is_some() && done.lost.is_none();
            done.lost.clone_from(&lost);
            match &result {
                SaveResult::Outdated(cause) => done.cause = cause.as_str().into(),
                _ => done.saved = change,
            }
        });
        self.unsaved().filter(|_| is_new)
    }

    /// Why the current state is not on disk, as text for messages. `None` if it is on disk.
    pub(crate) fn unsaved(&self) -> Option<String> {
        let done = self.done.borrow();
        let cause = done.lost.as_ref()?;
        Some(format!("its state cannot be saved: {cause}"))
    }

    /// Waits until all changes so far are saved, or until the outdated file is removed. The error is the cause if the
    /// file can be neither replaced nor removed.
    pub(crate) async fn saved(&self) -> Result<(), String> {
        let made = *self.made.borrow();
        if self.done.borrow().saved >= made {
            return Ok(());
        }
        let mut done = self.done.subscribe();
        let tried = done.wait_for(|done| done.saved >= made || done.tried >= made);
        match tried.await {
            Ok(done) if done.saved < made => Err(done.failure()),
            _ => Ok(()),
        }
    }

    /// Why the backend's lists fail even if the backend answers: criswitch cannot save the changes that these lists
    /// show. `None` if the last changes are saved, or if no attempt to save them has failed.
    pub(crate) fn failure(&self) -> Option<String> {
        let made = *self.made.borrow();
        let done = self.done.borrow();
        let has_failed = done.saved < made && done.tried >= made;
        has_failed.then(|| done.failure())
    }
}

impl Backend {
    /// The last complete list of this kind, without the items created since; empty if there is none.
    pub(crate) fn last_list(&self, list: List) -> Readable {
        self.record.learn(|known| {
            let last = known.lists.get(list);
            last.map(|last| last.message.clone()).unwrap_or_default()
        })
    }

    /// Caches a complete list. Drops the kept statuses that contradict it.
    pub(crate) fn keep_list(&self, list: List, snapshot: Snapshot) {
        let message = snapshot.message.clone();
        self.learn_saved(|known| {
            let is_new = known.lists.keep(list, snapshot);
            if is_new {
                self.statuses.lock().listed(list, &message);
            }
            is_new
        });
    }

    /// Waits until all changes so far are saved, or until the outdated file is removed.
    ///
    /// # Errors
    /// `Unavailable` if the outdated file can be neither replaced nor removed.
    async fn saved(&self) -> Result<(), Status> {
        let saved = self.saving.saved().await;
        saved.map_err(|cause| self.unavailable(&cause))
    }

    /// Records the result of saving all changes up to `change`; see [`Saving::was_saved`]. Logs the first failure.
    pub(crate) fn was_saved(&self, change: u64, result: SaveResult) {
        if let Some(cause) = self.saving.was_saved(change, result) {
            tracing::error!(
                backend = %self.name(),
                cause,
                "the state of a backend cannot be saved; if criswitch restarts while the backend is away, lists fail"
            );
        }
    }
}

/// The backends whose state a reply shows, each once.
#[derive(Debug, Default)]
pub(crate) struct Unsaved(BTreeMap<BackendId, Arc<Backend>>);

impl Unsaved {
    /// Waits until all changes so far of these backends are saved, or until their outdated files are removed.
    ///
    /// # Errors
    /// `Unavailable` if the outdated file of a backend can be neither replaced nor removed.
    pub(crate) async fn saved(&self) -> Result<(), Status> {
        let saved = join_all(self.0.values().map(|backend| backend.saved())).await;
        saved.into_iter().collect()
    }

    /// Adds the backends of `more`.
    pub(crate) fn append(&mut self, mut more: Unsaved) {
        self.0.append(&mut more.0);
    }
}

impl<'a> FromIterator<&'a Arc<Backend>> for Unsaved {
    fn from_iter<T: IntoIterator<Item = &'a Arc<Backend>>>(backends: T) -> Unsaved {
        let backends = backends.into_iter();
        Unsaved(backends.map(|it| (it.id, Arc::clone(it))).collect())
    }
}

impl Done {
    fn failure(&self) -> String {
        format!("criswitch cannot save its state: {}", self.cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_change_waits_for_its_file_and_fails_only_while_an_outdated_file_remains() {
        let saving = Saving::default();
        saving.note_change();
        assert_eq!(saving.saved().await, Ok(()), "nothing is saved yet");
        saving.begin();
        let change = saving.changed_after(0).await;
        let stale = SaveResult::Outdated("read-only".to_owned());
        assert!(saving.was_saved(change, stale.clone()).is_some());
        assert!(saving.was_saved(change, stale).is_none(), "logged once");
        assert_eq!(saving.saved().await.ok(), None);
        assert!(saving.failure().is_some());
        saving.was_saved(change, SaveResult::Removed("disk full".to_owned()));
        assert_eq!(saving.saved().await, Ok(()));
        assert!(saving.unsaved().is_some() && saving.failure().is_none());
        saving.was_saved(change, SaveResult::OnDisk);
        assert_eq!(saving.unsaved(), None);
    }
}
