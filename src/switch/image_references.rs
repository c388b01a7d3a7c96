//! Compares the names of an image in different image stores: ids with and without `sha256:`, and references without a
//! tag or registry. Does no I/O.

use std::collections::HashSet;

use criswitch_cri::codec::protobuf::{self, Malformed};
use criswitch_cri::rpc::fields::{LISTED_ID, image};
use foldhash::fast::RandomState;

/// The prefix of image ids in containerd. Image ids in CRI-O have no prefix.
const ALGORITHM: &str = "sha256:";
/// The length of a complete image id without the prefix, in characters.
const WHOLE_ID: usize = 64;
/// The prefixes that a short reference may omit. containerd and CRI-O add them.
const REGISTRIES: [&str; 3] = ["", "docker.io/", "docker.io/library/"];

/// Returns an image id without `sha256:`. This part of the id is the same in all image stores.
pub(crate) fn bare_id(id: &str) -> &str {
    id.strip_prefix(ALGORITHM).unwrap_or(id)
}

/// Returns a complete image id in its other form: without `sha256:` if `id` has it, otherwise with it. Returns `None`
/// if `id` is not a complete image id.
pub(crate) fn other_form(id: &str) -> Option<String> {
    let bare = bare_id(id);
    let is_whole = bare.len() == WHOLE_ID && bare.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_whole.then(|| {
        if bare == id {
            format!("{ALGORITHM}{id}")
        } else {
            bare.to_owned()
        }
    })
}

/// Returns a reference with its tag. The kubelet asks for `app:latest` if the pod says `app`.
pub(crate) fn with_tag(reference: &str) -> String {
    let last = reference.rsplit('/').next().unwrap_or_default();
    if last.contains([':', '@']) {
        reference.to_owned()
    } else {
        format!("{reference}:latest")
    }
}

/// A reference of an image, in all forms that a store may list. A client may send a long reference, so the forms are
/// copied once, and not for each image that they are compared with.
pub(crate) struct ImageReference<'r> {
    id: &'r str,
    names: [String; REGISTRIES.len()],
}

impl<'r> ImageReference<'r> {
    pub(crate) fn of(reference: &'r str) -> ImageReference<'r> {
        let name = with_tag(reference);
        ImageReference {
            id: bare_id(reference),
            names: REGISTRIES.map(|registry| format!("{registry}{name}")),
        }
    }

    /// Whether an `Image` has this id, in either form, or this tag or digest.
    ///
    /// # Errors
    /// If the `Image` is not valid protobuf.
    pub(crate) fn is_of(&self, image: &[u8]) -> Result<bool, Malformed> {
        Ok(bare_id(protobuf::string(image, LISTED_ID)?) == self.id || self.is_name_of(image)?)
    }

    /// Whether an `Image` has this tag or digest.
    ///
    /// # Errors
    /// If the `Image` is not valid protobuf.
    pub(crate) fn is_name_of(&self, image: &[u8]) -> Result<bool, Malformed> {
        Ok(names_of(image)?.any(|name| self.names.iter().any(|own| own == name)))
    }
}

/// The id and the names of an image, for comparisons with many references. A backend may list any number of names for
/// an image.
pub(crate) struct ImageNames<'i> {
    id: &'i str,
    names: HashSet<&'i str, RandomState>,
}

impl<'i> ImageNames<'i> {
    /// # Errors
    /// If the `Image` is not valid protobuf.
    pub(crate) fn of(image: &'i [u8]) -> Result<ImageNames<'i>, Malformed> {
        Ok(ImageNames {
            id: bare_id(protobuf::string(image, LISTED_ID)?),
            names: names_of(image)?.collect(),
        })
    }

    /// Whether the image has this id, in either form, or this tag or digest.
    pub(crate) fn have(&self, reference: &str) -> bool {
        let reference = ImageReference::of(reference);
        let mut names = reference.names.iter();
        reference.id == self.id || names.any(|name| self.names.contains(name.as_str()))
    }
}

/// The tags and digests of an `Image`.
fn names_of(image: &[u8]) -> Result<impl Iterator<Item = &str>, Malformed> {
    let tags = protobuf::strings(image, &[image::REPO_TAGS])?;
    let digests = protobuf::strings(image, &[image::REPO_DIGESTS])?;
    Ok(tags.into_iter().chain(digests))
}
