//! Gives the library its build id: a hash over every source file and the locked dependencies. A
//! replica takes work only from a coordinator of the same build, because plans and rows travel in
//! forms that are not meant to be read by another one.

use std::fs;
use std::hash::Hasher;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.push(path);
        }
    }
}

fn main() {
    let mut files = vec![PathBuf::from("Cargo.toml"), PathBuf::from("Cargo.lock")];
    for folder in ["src", "sql"] {
        println!("cargo:rerun-if-changed={folder}");
        collect(Path::new(folder), &mut files);
    }
    println!("cargo:rerun-if-changed=Cargo.lock");
    files.sort();
    let mut hash = Xxh3::new();
    for file in files {
        if let Ok(bytes) = fs::read(&file) {
            hash.write(file.to_string_lossy().as_bytes());
            hash.write(&bytes);
        }
    }
    // A build for tests is another build.
    hash.write(&[u8::from(
        std::env::var_os("CARGO_FEATURE_TEST_POINTS").is_some(),
    )]);
    println!(
        "cargo:rustc-env=PARALLEL_REPLICAS_BUILD_ID={:016x}",
        hash.finish()
    );
}
