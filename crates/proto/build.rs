//! Compiles the .proto files with a parser written in Rust: no protoc is needed to build.

use std::path::PathBuf;
use std::{env, error, fs};

use prost::Message;

fn main() -> Result<(), Box<dyn error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = [
        "throttlekit/v1/throttlekit.proto",
        "admittance/v1/budgets.proto",
        "admittance/v1/load.proto",
        "admittance/v1/admissions.proto",
    ];
    let files = protox::compile(files, ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    // Served by reflection, and pinned by `tests/contract.rs`.
    fs::write(out.join("descriptors.bin"), files.encode_to_vec())?;
    tonic_prost_build::configure().codec_path("crate::BoundedCodec").compile_fds(files)?;
    Ok(())
}
