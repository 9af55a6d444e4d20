//! A frame takes memory for what is there, not for what it claims: lengths in it are the sender's word.

mod samples;

use parallel_replicas_core::frame::{self, ToCoordinator, ToReplica, decode};
use peak_alloc::PeakAlloc;
use samples::{begin, frames};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// What a list may take before its first element has come: serde's limit, for a list in a list in a
/// frame.
const AHEAD: usize = 3 << 20;
/// Bytes in memory per byte of a frame: an empty string is one byte there and a `String` here, while
/// a list grows both its old and its new place.
const PER_BYTE: usize = 24 * 3;

/// The highest use of memory by the decoders, and that it is within the bound.
fn measure(bytes: &[u8]) {
    let before = ALLOCATOR.current_usage();
    ALLOCATOR.reset_peak_usage();
    let _ = decode::<ToReplica>(bytes);
    let _ = decode::<ToCoordinator>(bytes);
    let _ = frame::decode_body::<frame::Begin>(bytes);
    let used = ALLOCATOR.peak_usage().saturating_sub(before);
    let bound = AHEAD + PER_BYTE * bytes.len();
    assert!(used <= bound, "{used} bytes for {} bytes", bytes.len());
}

/// The largest number that fits, in the encoding of lengths.
const HUGE: [u8; 10] = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];

// One test, since the allocator counts for all threads.
#[test]
fn a_length_is_a_claim() {
    let body = frame::encode_body(&begin()).expect("it can be encoded");
    for sample in frames().iter().chain([&body]) {
        measure(sample);
        // Each byte in turn becomes a huge length.
        for at in 0..sample.len() {
            let mut damaged = sample.clone();
            damaged.splice(at..=at, HUGE);
            measure(&damaged);
            damaged.truncate(at + HUGE.len());
            measure(&damaged);
        }
    }
    // Lists that are as long as they say, of the smallest elements: settings, in a Begin.
    for length in [1_000, 100_000, 4_000_000] {
        let mut large = begin();
        large.settings = vec![(String::new(), String::new()); length];
        measure(&frame::encode_body(&large).expect("it can be encoded"));
    }
}
