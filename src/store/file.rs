//! The format of a state file, and how it is replaced.
//!
//! A file begins with a line that names the format and its version. Then come 8 bytes with the hash of the content
//! (XXH3, little endian), and the content.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::SystemTime;

use bytes::{Buf, Bytes};
use criswitch_platform::{create_new, files, is_absence};
use twox_hash::XxHash3_64;

use criswitch_platform::replace::replace_with;

const FORMAT: &[u8] = b"criswitch state 2\n";
/// The most bytes that criswitch reads from a file, and writes to a file. A longer file counts as damaged.
const LARGEST: u64 = 256 << 20;

/// The length of the hash, in bytes.
const HASH: usize = size_of::<u64>();
/// Why criswitch does not write a file.
const TOO_LARGE: &str = "it would have more than 256 MiB, and the next start would not read it";

/// Why criswitch does not use a file.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    #[error("its format is not that of this version of criswitch")]
    OtherFormat,
    #[error("its content is damaged")]
    Damaged,
    #[error("users other than root and criswitch's own user may write it")]
    OtherUser,
    #[error("it was written by an earlier run of criswitch")]
    Old,
    #[error("it was written on a different machine")]
    OtherMachine,
}

impl Fault {
    pub(super) fn is_absence(&self) -> bool {
        matches!(self, Fault::Unreadable(error) if is_absence(error))
    }
}

/// Reads a file. Returns its content, and when the content was last known to be current.
pub(super) fn read(path: &Path) -> Result<(Bytes, SystemTime), Fault> {
    let file = files::open_own(path)?.ok_or(Fault::OtherUser)?;
    let about = file.metadata()?;
    let mut bytes = Vec::new();
    file.take(LARGEST).read_to_end(&mut bytes)?;
    Ok((content(bytes.into())?, about.modified()?))
}

fn content(mut bytes: Bytes) -> Result<Bytes, Fault> {
    if !bytes.starts_with(FORMAT) {
        return Err(Fault::OtherFormat);
    }
    bytes.advance(FORMAT.len());
    let written = bytes.try_get_u64_le().map_err(|_| Fault::Damaged)?;
    if written == hash(&bytes) {
        Ok(bytes)
    } else {
        Err(Fault::Damaged)
    }
}

/// How long the content of a file must survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lasts {
    ThisBoot,
    /// The file survives a loss of power.
    Always,
}

/// Creates or replaces the file at `path`.
pub(super) fn replace(
    path: &Path,
    content: &[u8],
    modified: SystemTime,
    lasts: Lasts,
) -> io::Result<()> {
    if (FORMAT.len() + HASH + content.len()) as u64 > LARGEST {
        return Err(io::Error::other(TOO_LARGE));
    }
    let written = replace_with(path, |new| write(new, content, modified, lasts));
    if let (Lasts::Always, Some(directory)) = (lasts, path.parent()) {
        // Errors are ignored, because not every file system can sync a directory.
        drop(File::open(directory).and_then(|directory| directory.sync_all()));
    }
    written
}

/// Writes a new file. Follows no link.
fn write(path: &Path, content: &[u8], modified: SystemTime, lasts: Lasts) -> io::Result<()> {
    let mut file = create_new(path, 0o600)?;
    file.write_all(FORMAT)?;
    file.write_all(&hash(content).to_le_bytes())?;
    file.write_all(content)?;
    file.set_modified(modified)?;
    match lasts {
        Lasts::Always => file.sync_all(),
        Lasts::ThisBoot => Ok(()),
    }
}

pub(super) fn hash(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

#[cfg(test)]
mod tests {
    use criswitch_platform::replace::hidden;

    use super::*;

    #[test]
    fn an_existing_file_of_another_user_receives_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.backend");
        let made_before = File::create(hidden(&path).unwrap()).unwrap();
        replace(&path, b"pods", SystemTime::now(), Lasts::ThisBoot).unwrap();
        assert_eq!(made_before.metadata().unwrap().len(), 0);
        assert_eq!(read(&path).unwrap().0, b"pods"[..]);
    }

    #[test]
    fn a_file_that_the_next_start_would_not_read_is_not_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.backend");
        let content = vec![0; usize::try_from(LARGEST).unwrap() - FORMAT.len() - HASH + 1];
        let written = replace(&path, &content, SystemTime::now(), Lasts::ThisBoot);
        assert_eq!(written.unwrap_err().to_string(), TOO_LARGE);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
