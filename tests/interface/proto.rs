//! Compiles the .proto files with protox, so that no test needs protoc.

use std::path::Path;
use std::sync::LazyLock;

use prost_types::FileDescriptorSet;

/// The descriptor set of the CRI.
pub(crate) static CRI: LazyLock<FileDescriptorSet> =
    LazyLock::new(|| compile("runtime/v1/api.proto"));

/// The descriptor set of a file in `proto`.
pub(crate) fn compile(file: &str) -> FileDescriptorSet {
    // The fuzz targets are a package in a folder of this one.
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let proto = folders.find_map(|folder| Some(folder.join("proto")).filter(|it| it.is_dir()));
    protox::compile([file], [proto.unwrap()]).unwrap()
}
