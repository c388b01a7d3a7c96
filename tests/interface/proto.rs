//! The CRI as data.

use std::sync::LazyLock;

use prost::Message;
use prost_types::FileDescriptorSet;

/// The descriptor set of the CRI, which `crates/proto` generates.
pub(crate) static CRI: LazyLock<FileDescriptorSet> = LazyLock::new(|| {
    let descriptors = include_bytes!("../../proto/generated/runtime.v1.binpb");
    FileDescriptorSet::decode(&descriptors[..]).unwrap()
});
