//! Makes the files in `proto/generated` from the .proto files. A test compares them with those in the repository, and
//! `UPDATE_EXPECT=1 cargo test -p criswitch-proto` writes them. No protoc is needed.

use std::fs;
use std::path::{Path, PathBuf};

use prost::Message;
use prost_types::FileDescriptorSet;
use tonic_prost_build::Builder;

/// The folder with the .proto files.
#[must_use]
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto")
}

/// The code and the descriptors of the CRI.
///
/// # Errors
/// If the .proto file is invalid, or if no temporary folder can be made.
pub fn cri() -> Result<(String, Vec<u8>), Box<dyn std::error::Error>> {
    let mut set = compile("runtime/v1/api.proto")?;
    let builder = tonic_prost_build::configure()
        .bytes(".runtime.v1.KeyValue.value")
        .generate_default_stubs(true);
    let code = generate(builder, set.clone(), "runtime.v1")?;
    // The comments, and where each declaration is in the file.
    set.file
        .iter_mut()
        .for_each(|it| it.source_code_info = None);
    Ok((code, set.encode_to_vec()))
}

/// The code of the admin service.
///
/// # Errors
/// As for [`cri`].
pub fn admin() -> Result<String, Box<dyn std::error::Error>> {
    // The commands print the messages as JSON, so the messages implement `Serialize`.
    let serialize = "#[derive(serde::Serialize)] #[serde(rename_all = \"camelCase\")]";
    let builder = tonic_prost_build::configure()
        .message_attribute(".", serialize)
        .enum_attribute(".", serialize)
        .field_attribute("Reload.result", "#[serde(flatten)]")
        .message_attribute(".criswitch.admin.v1.Problems", "#[serde(transparent)]")
        // The commands print labels in the order of their keys.
        .btree_map(".criswitch.admin.v1");
    let set = compile("criswitch/admin/v1/admin.proto")?;
    generate(builder, set, "criswitch.admin.v1")
}

fn compile(file: &str) -> Result<FileDescriptorSet, protox::Error> {
    protox::compile([file], [folder()])
}

/// The code for a package. The generator names the file of the code after the package.
fn generate(
    builder: Builder,
    set: FileDescriptorSet,
    package: &str,
) -> Result<String, Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    builder
        .build_transport(false)
        .out_dir(folder.path())
        .compile_fds(set)?;
    Ok(fs::read_to_string(
        folder.path().join(format!("{package}.rs")),
    )?)
}
