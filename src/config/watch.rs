//! Tells when the files of the configuration have changed and are written to their end, through inotify.
//!
//! Reads the files only to know them again; what they mean, and whether they are right, it never judges.

mod events;
mod files;
mod places;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use events::FileEvents;

/// How long nothing may happen before the files are read, and between two reads: an editor or installer that replaces
/// a file takes a few milliseconds from its first step to its last.
pub const QUIET: Duration = Duration::from_millis(200);
/// The longest time that a file not closed yet, or changes that do not end, hold a change up.
pub const LONGEST_HOLD: Duration = Duration::from_secs(10);

/// Why the configuration cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// Its path is empty, or relative to a directory that is gone.
    #[error("cannot watch {path:?}; try an absolute path")]
    Path {
        /// As it was given.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// One of the limits on inotify instances or open files is reached.
    #[error(
        "no inotify instance is left; try a larger fs.inotify.max_user_instances, or LimitNOFILE"
    )]
    Instances {
        /// What the system said.
        source: io::Error,
    },
    /// The limit on watches is reached.
    #[error("no inotify watch is left; try a larger fs.inotify.max_user_watches")]
    Watches {
        /// What the system said.
        source: io::Error,
    },
    /// The system refuses for another reason.
    #[error("cannot use inotify; try without `watch`")]
    Refused {
        /// What the system said.
        source: io::Error,
    },
}

/// Tells when the configuration at a path, or `conf.d` beside it, has changed.
///
/// A change is one of names or bytes that would be read, by any means and through any symlink on the way. Only what
/// the kernel does not report stays unseen: the far side of a network file system, a write through mapped memory, a
/// mount over a directory.
#[derive(Debug)]
pub struct Watch {
    main: PathBuf,
    events: FileEvents,
    quiet: Duration,
    longest_hold: Duration,
    /// The fingerprint of the files when a change was last told, or when they were marked.
    told: u64,
    pending: Option<Pending>,
}

/// Something has happened that may be a change.
#[derive(Debug)]
struct Pending {
    first: Instant,
    last: Instant,
    /// The fingerprint that was read last, if it was another than what was told.
    read: Option<u64>,
}

impl Watch {
    /// Watches from now on: a load of the files after this misses nothing. Looks at the disk; needs a tokio runtime.
    ///
    /// # Errors
    /// [`WatchError`]; files and directories that are not there are none.
    pub fn new(path: &Path) -> Result<Watch, WatchError> {
        Watch::with_times(path, QUIET, LONGEST_HOLD)
    }

    /// As [`Watch::new`], with other times than [`QUIET`] and [`LONGEST_HOLD`].
    ///
    /// # Errors
    /// As [`Watch::new`].
    pub fn with_times(
        path: &Path,
        quiet: Duration,
        longest_hold: Duration,
    ) -> Result<Watch, WatchError> {
        let main = std::path::absolute(path).map_err(|source| WatchError::Path {
            path: path.to_owned(),
            source,
        })?;
        let events = FileEvents::new(&main)?;
        Ok(Watch {
            told: files::fingerprint(&main),
            main,
            events,
            quiet,
            longest_hold,
            pending: None,
        })
    }

    /// The files are about to be read for another reason: from now on a change is one from what they are now.
    pub async fn mark(&mut self) {
        self.told = self.fingerprint().await;
    }

    /// Returns when the files are others than when it last returned (or began), and two reads of them, [`QUIET`] apart
    /// and with nobody writing, were the same; or after [`LONGEST_HOLD`], whatever they are then.
    ///
    /// So who loads them now may report their problems at once: a file that is half-written has been waited for, and
    /// what changes from now on is told next. Nothing is lost if this is dropped.
    pub async fn changed(&mut self) {
        while !self.settled().await {}
    }

    /// Returns when something has happened and is over: whether it is a change to be told.
    async fn settled(&mut self) -> bool {
        loop {
            match self.due() {
                Some(due) if due <= Instant::now() => {
                    let changed = self.look().await;
                    if changed || self.pending.is_none() {
                        return changed;
                    }
                }
                Some(due) => {
                    if timeout_at(due, self.events.next()).await.is_ok() {
                        self.stir();
                    }
                }
                None => {
                    self.events.next().await;
                    self.stir();
                }
            }
        }
    }

    /// What `read` makes of the files, once a change was told or they were marked: if anything happens to them
    /// meanwhile, it reads again when they are still; after [`LONGEST_HOLD`] it counts whatever they are.
    pub async fn steady<T>(&mut self, read: impl AsyncFn() -> T) -> T {
        let latest = Instant::now() + self.longest_hold;
        loop {
            let made = read().await;
            let same = self.fingerprint().await == self.told;
            // What is again as it was told may have been another when it was read.
            if self.events.happened().await {
                self.stir();
            }
            if same && self.pending.is_none() || latest <= Instant::now() {
                return made;
            }
            timeout_at(latest, self.settled()).await.ok();
        }
    }

    /// Of the files as they are, read beside what else the thread does: a disk may hang.
    async fn fingerprint(&self) -> u64 {
        let main = self.main.clone();
        let read = tokio::task::spawn_blocking(move || files::fingerprint(&main));
        // Of one that broke off the reader of the files is to tell.
        read.await.unwrap_or_default()
    }

    fn stir(&mut self) {
        let now = Instant::now();
        let pending = self.pending.get_or_insert(Pending {
            first: now,
            last: now,
            read: None,
        });
        pending.last = now;
    }

    /// When to read the files, if anything has happened to them.
    fn due(&self) -> Option<Instant> {
        let pending = self.pending.as_ref()?;
        let latest = pending.first + self.longest_hold;
        if self.events.being_written() {
            return Some(latest);
        }
        Some(latest.min(pending.last + self.quiet))
    }

    /// Reads the files; whether there is something to tell.
    async fn look(&mut self) -> bool {
        // First, so that nothing is lost if it is dropped meanwhile.
        let read = self.fingerprint().await;
        let Some(mut pending) = self.pending.take() else {
            return false;
        };
        let now = Instant::now();
        let late = now >= pending.first + self.longest_hold;
        if late {
            self.events.forget_writers();
        }
        if read == self.told {
            return false;
        }
        if late || pending.read == Some(read) {
            self.told = read;
            return true;
        }
        pending.last = now;
        pending.read = Some(read);
        self.pending = Some(pending);
        false
    }
}
