//! The files in `proto/generated` are those for the .proto files. `UPDATE_EXPECT=1` writes them.
#![allow(
    clippy::unwrap_used,
    reason = "clippy allows this in test functions only, not in their helpers"
)]

use std::fs;

/// Checks that the committed file is `content`. `UPDATE_EXPECT=1` writes `content` there.
#[track_caller]
fn assert_committed(name: &str, content: &[u8]) {
    let path = criswitch_proto::folder().join("generated").join(name);
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(path, content).unwrap();
        return;
    }
    // The file is long, so the message does not contain it.
    assert!(
        fs::read(path).unwrap() == content,
        "proto/generated/{name} is not up to date; run: UPDATE_EXPECT=1 cargo test -p criswitch-proto"
    );
}

#[test]
fn the_committed_files_of_the_cri_are_those_for_its_proto_file() {
    let (code, descriptors) = criswitch_proto::cri().unwrap();
    assert_committed("runtime.v1.rs", code.as_bytes());
    assert_committed("runtime.v1.binpb", &descriptors);
}

#[test]
fn the_committed_code_of_the_admin_service_is_the_code_for_its_proto_file() {
    let code = criswitch_proto::admin().unwrap();
    assert_committed("criswitch.admin.v1.rs", code.as_bytes());
}
