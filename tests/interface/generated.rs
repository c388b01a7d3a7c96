//! The code in `proto/generated` is the code for the .proto files. `UPDATE_EXPECT=1` generates it again.

use std::fs;
use std::path::Path;

use prost_types::FileDescriptorSet;
use tonic_prost_build::Builder;

use crate::proto::{CRI, compile};

/// The code for a package. The generator names the file of the code after the package.
fn generate(builder: Builder, set: FileDescriptorSet, package: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let builder = builder.build_transport(false).out_dir(folder.path());
    builder.compile_fds(set).unwrap();
    fs::read_to_string(folder.path().join(format!("{package}.rs"))).unwrap()
}

/// Checks that the committed code is `code`. `UPDATE_EXPECT=1` writes `code` there.
#[track_caller]
fn assert_committed(package: &str, code: &str) {
    let name = format!("proto/generated/{package}.rs");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(&name);
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(path, code).unwrap();
        return;
    }
    // The code is long, so the message does not contain it.
    assert!(
        fs::read_to_string(path).unwrap() == code,
        "{name} is not the code for the .proto file; run: UPDATE_EXPECT=1 cargo test --test interface"
    );
}

#[test]
fn the_committed_code_of_the_cri_is_the_code_for_its_proto_file() {
    let builder = tonic_prost_build::configure()
        .bytes(".runtime.v1.KeyValue.value")
        .generate_default_stubs(true);
    let package = "runtime.v1";
    assert_committed(package, &generate(builder, CRI.clone(), package));
}

#[test]
fn the_committed_code_of_the_admin_service_is_the_code_for_its_proto_file() {
    // The commands print the messages as JSON, so the messages implement `Serialize`.
    let serialize = "#[derive(serde::Serialize)] #[serde(rename_all = \"camelCase\")]";
    let builder = tonic_prost_build::configure()
        .message_attribute(".", serialize)
        .enum_attribute(".", serialize)
        .field_attribute("Reload.result", "#[serde(flatten)]")
        .message_attribute(".criswitch.admin.v1.Problems", "#[serde(transparent)]")
        // The commands print labels in the order of their keys.
        .btree_map(".criswitch.admin.v1");
    let (set, package) = (
        compile("criswitch/admin/v1/admin.proto"),
        "criswitch.admin.v1",
    );
    assert_committed(package, &generate(builder, set, package));
}
