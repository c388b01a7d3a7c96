//! Compiles the CRI's proto file to descriptors. The oracles make messages from these descriptors.

use std::path::PathBuf;

use prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (folder, file) = ("../../proto", "runtime/v1/api.proto");
    println!("cargo:rerun-if-changed={folder}/{file}");
    let set = protox::compile([file], [folder])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?).join("cri.bin");
    std::fs::write(out, set.encode_to_vec())?;
    Ok(())
}
