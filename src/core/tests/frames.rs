//! Whatever bytes the other end sends: an error at the worst, and no more memory than was sent.

use parallel_replicas_core::frame::{
    self, FragmentReport, Refusal, TaskReport, ToCoordinator, ToReplica, decode, encode, next_row,
};
use parallel_replicas_core::plan_text;
use proptest::prelude::*;

/// Frames of each kind, with something in every field that has a length.
fn frames() -> Vec<Vec<u8>> {
    let to_replica = [
        ToReplica::Begin {
            mac: [7; 32],
            body: vec![1; 300],
        },
        ToReplica::Task {
            scan: 1,
            id: 2,
            start_block: 3,
            blocks: 4,
            cached_blocks: 5,
        },
        ToReplica::Shrink {
            scan: 1,
            id: 2,
            keep_until_block: 3,
        },
        ToReplica::Finish { scan: 9 },
        ToReplica::Stop,
    ];
    let to_coordinator = [
        ToCoordinator::Refused(Refusal {
            reason: "reason".to_owned(),
            detail: "detail ".repeat(20),
        }),
        ToCoordinator::TaskDone(TaskReport {
            scan: 1,
            id: 2,
            blocks: 3,
        }),
        ToCoordinator::Used { cpu_us: 1 << 40 },
        ToCoordinator::FragmentDone(Box::new(FragmentReport {
            unneeded: vec![1, 2, 3],
            instrumentation: vec![(4, vec![5; 60])],
            buffer_usage: vec![6; 80],
            ..FragmentReport::default()
        })),
    ];
    let first = to_replica.iter().map(encode);
    first
        .chain(to_coordinator.iter().map(encode))
        .map(|frame| frame.expect("it can be encoded"))
        .collect()
}

/// Decoding as either side does it.
fn decode_both(bytes: &[u8]) {
    let _ = decode::<ToReplica>(bytes);
    let _ = decode::<ToCoordinator>(bytes);
    let _ = frame::decode_body::<frame::Begin>(bytes);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn noise_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        decode_both(&bytes);
        let mut framed = vec![frame::CONTROL_TAG, 0, 0, 0, 0, 0, 0, 0];
        framed.extend_from_slice(&bytes);
        decode_both(&framed);
    }

    #[test]
    fn damaged_frames_are_refused(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let frames = frames();
        let mut bytes = which.get(&frames).clone();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        decode_both(&bytes);
        bytes.truncate(cut.index(bytes.len() + 1));
        decode_both(&bytes);
    }

    #[test]
    fn rows_of_noise_end(mut bytes in prop::collection::vec(any::<u8>(), 8..400)) {
        bytes[0] = frame::ROWS_TAG;
        let mut offset = frame::FRAME_HEADER_BYTES;
        while let Ok(Some((length, next))) = next_row(&bytes, offset, 16) {
            prop_assert!(offset + length <= bytes.len() && next > offset);
            offset = next;
        }
    }

    #[test]
    fn plans_of_noise_are_refused(text in "[{}() :A-Za-z0-9\\\\<>\\[\\]]{0,200}") {
        prop_assert!(plan_text::check(text.as_bytes()).is_err());
    }
}

/// A length prefix is a claim: room is made for what is there.
#[test]
fn a_huge_length_takes_no_memory() {
    let mut bytes = vec![frame::CONTROL_TAG, 0, 0, 0, 0, 0, 0, 0];
    // Variant 0, Begin: a code, and a body of 2^60 bytes.
    bytes.push(0);
    bytes.extend_from_slice(&[7; 32]);
    bytes.extend_from_slice(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10]);
    assert!(decode::<ToReplica>(&bytes).is_err());
}
