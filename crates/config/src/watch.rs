//! Reports that the configuration's files have changed and are no longer being written.
//!
//! Compares the metadata of the files every [`PERIOD`]. This detects a change on every file system: a network file
//! system, a bind mount, the symbolic links of a ConfigMap. No file is opened.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::iter;
use std::path::Path;
use std::time::Duration;

use criswitch_platform::file_work::FileWork;
use criswitch_platform::files;
use tokio::time::sleep;

use crate::disk;

/// The time between two looks at the files.
pub const PERIOD: Duration = Duration::from_secs(2);

/// The state of a configuration's files. It stays equal until a file is written, replaced, added or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// The fingerprint of the main file and its drop-ins now. Reads the files' metadata from the disk.
    pub fn of(main: &Path) -> Fingerprint {
        let drop_ins = disk::drop_ins(&main.with_file_name("conf.d")).map_err(|error| error.kind());
        let mut hasher = DefaultHasher::new();
        drop_ins.hash(&mut hasher);
        let drop_ins = drop_ins.iter().flatten().map(AsRef::as_ref);
        for path in iter::once(main).chain(drop_ins) {
            fs::metadata(path)
                .map_err(|error| error.kind())
                .as_ref()
                .map(files::version)
                .hash(&mut hasher);
        }
        Fingerprint(hasher.finish())
    }
}

/// Looks at the files of a configuration, one look at a time, so that a file system that hangs blocks only one thread.
#[derive(Debug, Default)]
pub struct Watch(FileWork);

impl Watch {
    /// Waits until the files differ from `loaded` and two looks in a row found the same files. The future can be
    /// dropped at any time: a later call finds the change too. Needs a tokio runtime.
    pub async fn changed(&self, main: &Path, loaded: Fingerprint) {
        let mut last = Some(loaded);
        loop {
            sleep(PERIOD).await;
            let now = self.look(main).await;
            if now.is_none() && last.is_some() {
                tracing::warn!(
                    path = %main.display(),
                    "the file system of the configuration does not respond; changes are not seen until it responds"
                );
            }
            if now.is_some() && now == last && now != Some(loaded) {
                return;
            }
            last = now;
        }
    }

    async fn look(&self, main: &Path) -> Option<Fingerprint> {
        let main = main.to_owned();
        self.0.run(move || Fingerprint::of(&main)).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use criswitch_platform::file_work::FILE_LIMIT;
    use tokio::time::{advance, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn no_second_check_starts_while_one_hangs_and_a_change_is_reported_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let main = folder.path().join("criswitch.toml");
        let watch = Watch::default();
        let loaded = Fingerprint::of(&main);
        let (release, hang) = channel::<()>();
        let hung = watch.0.run(move || hang.recv());
        assert_eq!(tokio::join!(hung, advance(FILE_LIMIT)).0, None);
        fs::write(&main, "").unwrap();
        let changed = timeout(PERIOD * 20, watch.changed(&main, loaded));
        let steps = async {
            for _ in 0..40 {
                advance(PERIOD / 2).await;
            }
        };
        tokio::join!(changed, steps).0.unwrap_err();
        release.send(()).unwrap();
        watch.changed(&main, loaded).await;
    }
}
