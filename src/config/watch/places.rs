//! The places where a change of the configuration shows, watched through inotify.
//!
//! A place is a directory that a path leads through, or the file at its end. What has changed is never concluded from
//! an event: it only says that it is worth to look, and whether a file is still being written.
//!
//! All of it looks at the file system, so none of it runs on the thread that serves calls.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use super::WatchError;
use crate::config::disk;

/// What is told of each directory on the way: an entry comes, goes or is replaced.
const ENTRIES: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVE);
/// What is told besides where the files themselves are.
const CONTENT: WatchFlags = WatchFlags::MODIFY
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::ATTRIB);
/// Several paths may lead through one place, and a file that was removed is nobody's any more.
const ALWAYS: WatchFlags = WatchFlags::MASK_ADD.union(WatchFlags::EXCL_UNLINK);

/// The events after which nobody writes to a file any more, at least not under its name.
const WRITTEN: ReadFlags = ReadFlags::CLOSE_WRITE
    .union(ReadFlags::MOVED_FROM)
    .union(ReadFlags::MOVED_TO)
    .union(ReadFlags::DELETE)
    .union(ReadFlags::DELETE_SELF)
    .union(ReadFlags::IGNORED);
/// The events after which every path still leads to the same file.
const SAME_PATHS: ReadFlags = ReadFlags::MODIFY.union(ReadFlags::CLOSE_WRITE);

/// Bytes of events that are read at once: about a hundred.
const EVENT_BYTES: usize = 4096;
/// How many symlinks one path may lead through; also the kernel's limit.
const MAX_LINKS: usize = 40;

/// All of them.
#[derive(Debug)]
pub(super) struct Places {
    inotify: Arc<OwnedFd>,
    main: PathBuf,
    /// By watch descriptor.
    watched: HashMap<i32, WatchedPlace>,
    /// Files that were written to and not closed since, as events name them.
    writing: HashSet<(i32, OsString)>,
}

#[derive(Debug)]
struct WatchedPlace {
    path: PathBuf,
    /// The entries that a path leads through.
    names: HashSet<OsString>,
    has_drop_ins: bool,
}

/// What inotify reports.
pub(super) struct FileEvent {
    watch: i32,
    what: ReadFlags,
    /// The entry of the directory that is watched; empty for what is watched itself.
    name: OsString,
}

impl Places {
    /// The places of the configuration at `main`, an absolute path; `inotify` reports their changes.
    pub(super) fn new(inotify: &Arc<OwnedFd>, main: &Path) -> Result<Places, WatchError> {
        let mut places = Places {
            inotify: Arc::clone(inotify),
            main: main.to_owned(),
            watched: HashMap::new(),
            writing: HashSet::new(),
        };
        places.watch_all()?;
        Ok(places)
    }

    /// Whether somebody writes to one of the files.
    pub(super) fn being_written(&self) -> bool {
        !self.writing.is_empty()
    }

    /// Waits no longer for those who write now.
    pub(super) fn forget_writers(&mut self) {
        self.writing.clear();
    }

    /// Whether any of the events concerns the configuration.
    pub(super) fn note(&mut self, events: Vec<FileEvent>) -> bool {
        let mut concerned = false;
        let mut same_paths = true;
        for event in events {
            if self.concerns(&event) {
                concerned = true;
                same_paths &= SAME_PATHS.contains(event.what);
                self.note_writer(event);
            }
        }
        if !same_paths && let Err(error) = self.watch_again() {
            let cause = error.to_string();
            tracing::warn!(cause, "a change of the configuration may stay unseen");
        }
        concerned
    }

    fn concerns(&self, event: &FileEvent) -> bool {
        let place = self.watched.get(&event.watch);
        event.what.contains(ReadFlags::QUEUE_OVERFLOW)
            || place.is_some_and(|place| place.concerns(&event.name))
    }

    fn note_writer(&mut self, event: FileEvent) {
        if event.what.contains(ReadFlags::QUEUE_OVERFLOW) {
            // Who has closed what is among the events that were lost.
            self.forget_writers();
        } else if event.what.contains(ReadFlags::MODIFY) || self.is_new_file(&event) {
            self.writing.insert((event.watch, event.name));
        } else if event.what.intersects(WRITTEN) {
            self.writing.remove(&(event.watch, event.name));
        }
    }

    /// Whether a file was made that its maker has yet to fill and to close; a link that was made is whole already.
    fn is_new_file(&self, event: &FileEvent) -> bool {
        let place = self.watched.get(&event.watch);
        let path = place.map(|place| place.path.join(&event.name));
        let made = path.filter(|_| event.what.contains(ReadFlags::CREATE));
        let made = made.and_then(|path| fs::symlink_metadata(path).ok());
        made.is_some_and(|made| made.is_file() && made.nlink() == 1)
    }

    /// Watches what the paths lead through now, and that only.
    fn watch_again(&mut self) -> Result<(), WatchError> {
        let before = std::mem::take(&mut self.watched);
        let outcome = self.watch_all();
        for watch in before.into_keys() {
            if !self.watched.contains_key(&watch) {
                // It fails if the place is gone, and the watch with it.
                let _ = inotify::remove_watch(&*self.inotify, watch);
            }
        }
        let watched = &self.watched;
        self.writing
            .retain(|(watch, _)| watched.contains_key(watch));
        outcome
    }

    /// Each place is watched before it is looked at, so that what changes meanwhile is either seen or told.
    fn watch_all(&mut self) -> Result<(), WatchError> {
        let main = self.main.clone();
        self.follow(PathBuf::new(), &main)?;
        let folder = self.follow(PathBuf::new(), &main.with_file_name("conf.d"))?;
        if let Some(place) = self.watch(&folder, CONTENT | ENTRIES)? {
            place.has_drop_ins = true;
        }
        for drop_in in disk::drop_ins(&folder).unwrap_or_default() {
            let name = Path::new(drop_in.file_name().unwrap_or_default());
            self.follow(folder.clone(), name)?;
        }
        Ok(())
    }

    /// Watches every directory that `path`, seen from the directory `at`, leads through, and what it leads to, which
    /// is returned: a path without symlinks.
    fn follow(&mut self, mut at: PathBuf, path: &Path) -> Result<PathBuf, WatchError> {
        let mut left = parts(path);
        let mut links = 0;
        while let Some(part) = left.pop() {
            if part == ".." {
                at.pop();
                continue;
            }
            let is_last = left.is_empty();
            let events = if is_last { CONTENT | ENTRIES } else { ENTRIES };
            if let Some(place) = self.watch(&at, events)? {
                place.names.insert(part.clone());
            }
            at.push(part);
            if links < MAX_LINKS
                && let Ok(target) = fs::read_link(&at)
            {
                links += 1;
                at.pop();
                left.extend(parts(&target));
            }
        }
        self.watch(&at, CONTENT)?;
        Ok(at)
    }

    /// Watches `path`, unless it is not there or may not be watched: then its parent tells when that has changed.
    fn watch(
        &mut self,
        path: &Path,
        events: WatchFlags,
    ) -> Result<Option<&mut WatchedPlace>, WatchError> {
        match inotify::add_watch(&*self.inotify, path, events | ALWAYS) {
            Ok(watch) => {
                let place = self.watched.entry(watch).or_insert_with(|| WatchedPlace {
                    path: path.to_owned(),
                    names: HashSet::new(),
                    has_drop_ins: false,
                });
                Ok(Some(place))
            }
            Err(errno @ (Errno::NOSPC | Errno::NOMEM)) => Err(refused(errno.into())),
            Err(_) => Ok(None),
        }
    }
}

impl WatchedPlace {
    fn concerns(&self, name: &OsStr) -> bool {
        name.is_empty() || self.names.contains(name) || self.has_drop_ins && disk::is_drop_in(name)
    }
}

/// The parts of a path, the last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let parts = path.components().rev();
    parts.map(|part| part.as_os_str().to_owned()).collect()
}

/// A new inotify instance, whose reads do not block.
pub(super) fn inotify() -> Result<OwnedFd, WatchError> {
    let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC);
    inotify.map_err(|errno| refused(errno.into()))
}

/// The events that are there; fails if there are none.
pub(super) fn read(inotify: &OwnedFd) -> io::Result<Vec<FileEvent>> {
    let mut buffer = [MaybeUninit::uninit(); EVENT_BYTES];
    let mut reader = Reader::new(inotify, &mut buffer);
    let mut events = Vec::new();
    loop {
        let event = reader.next()?;
        let name = event.file_name().map(|name| name.to_bytes());
        events.push(FileEvent {
            watch: event.wd(),
            what: event.events(),
            name: OsStr::from_bytes(name.unwrap_or_default()).to_owned(),
        });
        if reader.is_buffer_empty() {
            return Ok(events);
        }
    }
}

pub(super) fn refused(source: io::Error) -> WatchError {
    match Errno::from_io_error(&source) {
        Some(Errno::MFILE) => WatchError::Instances { source },
        Some(Errno::NOSPC) => WatchError::Watches { source },
        _ => WatchError::Refused { source },
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_limits_of_inotify_are_told_apart_with_what_to_try() {
        let told = |errno: Errno| refused(errno.into()).to_string();
        assert!(told(Errno::MFILE).contains("fs.inotify.max_user_instances"));
        assert!(told(Errno::NOSPC).contains("fs.inotify.max_user_watches"));
        assert!(told(Errno::NOMEM).contains("cannot use inotify"));
    }

    /// How many watches the kernel keeps for it.
    fn watches(inotify: &OwnedFd) -> usize {
        let info = format!("/proc/self/fdinfo/{}", inotify.as_raw_fd());
        let info = fs::read_to_string(info).unwrap();
        info.lines()
            .filter(|line| line.starts_with("inotify"))
            .count()
    }

    #[test]
    fn what_no_path_leads_to_any_more_is_watched_no_longer() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("conf.d");
        for name in ["one", "two"] {
            fs::create_dir(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name).join("a.toml"), name).unwrap();
        }
        symlink("one", &link).unwrap();
        let inotify = Arc::new(inotify().unwrap());
        let mut places = Places::new(&inotify, &folder.path().join("criswitch.toml")).unwrap();
        let before = watches(&inotify);
        fs::remove_file(&link).unwrap();
        symlink("two", &link).unwrap();
        assert!(places.note(read(&inotify).unwrap()));
        assert_eq!(watches(&inotify), before);
    }
}
