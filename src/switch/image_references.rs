//! Compares the names of an image in different image stores: ids with and without `sha256:`, and references without a
//! tag or registry. Does no I/O.

use criswitch_cri::codec::protobuf::{self, Malformed};
use criswitch_cri::rpc::fields::{LISTED_ID, image};

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

/// Whether an `Image` has this id, in either form, or this tag or digest.
///
/// # Errors
/// If the `Image` is not valid protobuf.
pub(crate) fn is_called(image: &[u8], reference: &str) -> Result<bool, Malformed> {
    let is_id = bare_id(protobuf::string(image, LISTED_ID)?) == bare_id(reference);
    Ok(is_id || has_name(image, reference)?)
}

/// Whether an `Image` has this tag or digest.
///
/// # Errors
/// If the `Image` is not valid protobuf.
pub(crate) fn has_name(image: &[u8], reference: &str) -> Result<bool, Malformed> {
    let reference = with_tag(reference);
    let full = REGISTRIES.map(|registry| format!("{registry}{reference}"));
    let names = [
        protobuf::strings(image, &[image::REPO_TAGS])?,
        protobuf::strings(image, &[image::REPO_DIGESTS])?,
    ]
    .concat();
    Ok(names
        .iter()
        .any(|name| full.iter().any(|full| full == name)))
}
