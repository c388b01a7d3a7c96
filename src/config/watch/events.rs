//! The changes that inotify reports, noted beside the thread that serves calls: what a path leads to is looked up on the
//! disk, which may hang.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;

use super::WatchError;
use super::places::{self, FileEvent, Places};

/// The wait after events could not be read.
const READ_PAUSE: Duration = Duration::from_secs(1);

/// The places of a configuration, and what happens there.
#[derive(Debug)]
pub(super) struct FileEvents {
    inotify: AsyncFd<Arc<OwnedFd>>,
    /// None while events are noted.
    places: Option<Places>,
    /// The places again, and whether the events that were read last concern the configuration. Kept here, so that
    /// nothing is lost if the future that waits for it is dropped.
    noting: Option<JoinHandle<(Places, bool)>>,
}

impl FileEvents {
    /// Those of the configuration at `main`, an absolute path. Looks at the disk; needs a tokio runtime.
    pub(super) fn new(main: &Path) -> Result<FileEvents, WatchError> {
        let inotify = Arc::new(places::inotify()?);
        let places = Places::new(&inotify, main)?;
        #[expect(
            deprecated,
            reason = "what replaces it is unsafe, for types that may not own their descriptor; an OwnedFd does"
        )]
        let inotify = AsyncFd::with_interest(inotify, Interest::READABLE);
        Ok(FileEvents {
            inotify: inotify.map_err(places::refused)?,
            places: Some(places),
            noting: None,
        })
    }

    /// Returns when something has happened that may be a change. Nothing is lost if it is dropped.
    pub(super) async fn next(&mut self) {
        while !self.noted().await {
            let read = |inotify: &Arc<OwnedFd>| places::read(inotify);
            match self.inotify.async_io(Interest::READABLE, read).await {
                Ok(events) => self.note(events),
                Err(error) => {
                    tracing::warn!(%error, "cannot read what changes of the configuration");
                    tokio::time::sleep(READ_PAUSE).await;
                }
            }
        }
    }

    /// Whether something has happened up to now that may be a change.
    pub(super) async fn happened(&mut self) -> bool {
        loop {
            if self.next().now_or_never().is_some() {
                return true;
            }
            if self.noting.is_none() {
                return false;
            }
            if self.noted().await {
                return true;
            }
        }
    }

    /// Whether somebody writes to one of the files, as far as is known now.
    pub(super) fn being_written(&self) -> bool {
        self.places.as_ref().is_some_and(Places::being_written)
    }

    /// Waits no longer for those who write now.
    pub(super) fn forget_writers(&mut self) {
        if let Some(places) = &mut self.places {
            places.forget_writers();
        }
    }

    fn note(&mut self, events: Vec<FileEvent>) {
        let places = self.places.take();
        self.noting = places.map(|mut places| {
            tokio::task::spawn_blocking(move || {
                let concerned = places.note(events);
                (places, concerned)
            })
        });
    }

    /// Waits for the events that are being noted: whether one concerns the configuration.
    async fn noted(&mut self) -> bool {
        let Some(noting) = &mut self.noting else {
            return false;
        };
        let noted = noting.await;
        self.noting = None;
        let Ok((places, concerned)) = noted else {
            // It panicked: the places are lost, and no later change is reported.
            return false;
        };
        self.places = Some(places);
        concerned
    }
}
