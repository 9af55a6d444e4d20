//! Whatever bytes the other end sends: an error at the worst.

mod samples;

use parallel_replicas_core::frame::{self, ToCoordinator, ToReplica, decode, next_row};
use parallel_replicas_core::plan_text;
use proptest::prelude::*;
use samples::{begin, frames};

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
    fn a_damaged_begin_is_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut body = frame::encode_body(&begin()).expect("it can be encoded");
        for (at, value) in changes {
            let at = at.index(body.len());
            body[at] = value;
        }
        let _ = frame::decode_body::<frame::Begin>(&body);
        body.truncate(cut.index(body.len() + 1));
        let _ = frame::decode_body::<frame::Begin>(&body);
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

/// What is damaged above is whole before.
#[test]
fn samples_are_whole() {
    for frame in frames() {
        let whole = decode::<ToReplica>(&frame).is_ok() || decode::<ToCoordinator>(&frame).is_ok();
        assert!(whole, "{frame:?}");
    }
    let body = frame::encode_body(&begin()).expect("it can be encoded");
    assert_eq!(frame::decode_body(&body), Ok(begin()));
}
