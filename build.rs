//! Compiles the CRI's .proto with protox, so that no protoc is needed.

use std::path::PathBuf;

use prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let proto = "proto/runtime/v1/api.proto";
    println!("cargo:rerun-if-changed={proto}");
    let set = protox::compile([proto], ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    // The tests compare this set with the facts of the interface.
    std::fs::write(out.join("cri.bin"), set.encode_to_vec())?;
    tonic_prost_build::configure()
        .bytes(".runtime.v1.KeyValue.value")
        .build_transport(false)
        .generate_default_stubs(true)
        .compile_fds(set)?;
    Ok(())
}
