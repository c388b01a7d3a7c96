//! The keys of the node's labels, and the file of `labels_file`, from which node-feature-discovery labels the node.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use criswitch_platform::replace::{self, Access};

use crate::kubernetes::is_name;

/// The domain of the labels' keys.
pub const DOMAIN: &str = "criswitch.io";
/// The first line of the file. node-feature-discovery ignores lines that begin with `#`.
pub const HEAD: &str = "# Written by criswitch, which replaces this file when its labels change.\n";

/// node-feature-discovery runs as a different user, and must be able to read the file.
const MODE: u32 = 0o644;

/// The key of the label for a handler; `None` if the handler's name is too long for a label.
pub fn handler_key(handler: &str) -> Option<String> {
    key(&format!("handler.{handler}"))
}

/// The key of a label of this name; `None` if the name is too long for a label.
pub fn key(name: &str) -> Option<String> {
    is_name(name).then(|| format!("{DOMAIN}/{name}"))
}

/// The content of a feature file of node-feature-discovery.
pub fn feature_file(labels: &BTreeMap<String, String>) -> String {
    let lines = labels.iter().map(|(key, value)| format!("{key}={value}\n"));
    HEAD.to_owned() + &lines.collect::<String>()
}

/// Creates or replaces the file at `path`, unless the file already has this content. The complete new file is renamed
/// into place, so node-feature-discovery never reads a part of the content. Until then the new file is hidden, and
/// node-feature-discovery ignores it.
///
/// # Errors
/// If the file cannot be written, or if the path exists and is not a regular file.
pub fn replace(path: &Path, content: &str) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|now| !now.is_file()) {
        let what = "it exists, and is not a regular file";
        return Err(io::Error::new(ErrorKind::InvalidInput, what));
    }
    if fs::read(path).is_ok_and(|now| now == content.as_bytes()) {
        return Ok(());
    }
    replace::replace(path, content, &Access::Mode(MODE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_regular_file_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("labels");
        fs::create_dir(&path).unwrap();
        let error = replace(&path, "a=b\n").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        fs::remove_dir(&path).unwrap();
        for content in ["a=b\n", "c=d\n"] {
            replace(&path, content).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
    }
}
