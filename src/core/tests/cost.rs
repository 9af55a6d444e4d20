//! What the task state takes on a table of 1 TiB (1M granules) with 64 replicas; its times are measured
//! in `benches/request.rs`.

use parallel_replicas_core::task_state::{ScanSpec, size_words};

#[test]
fn memory_of_one_tebibyte() {
    let scan = ScanSpec {
        database: 5,
        relfilenode: 16_400,
        blocks: 128 << 20,
        granule_blocks: 128,
        segment_granules: 0,
    };
    let bytes = size_words(&scan, 64, 256).unwrap() * 8;
    println!("| memory of the task state, 1M granules, 64 replicas | <= 16 MiB | {bytes} bytes |");
    assert!(bytes <= 16 << 20);
}
