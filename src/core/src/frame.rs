//! The frames that coordinator and replica exchange over a link.
//!
//! Each CopyData message is one frame. A control frame is [`CONTROL_TAG`] and a postcard body; a
//! rows frame is a [`RowsHeader`] and raw minimal tuples, each padded to eight bytes, so that the
//! coordinator can hand them to its executor in place. The two sides are always of the same build
//! (checked in [`Hello`]), so the encoding needs no compatibility beyond [`PROTOCOL_VERSION`],
//! which is checked first. Nothing here panics on input.

use crate::snapshot::WireSnapshot;
use serde::{Deserialize, Serialize};

/// Raised whenever a frame changes.
pub const PROTOCOL_VERSION: u32 = 6;

/// First byte of a control frame; seven zero bytes follow.
pub const CONTROL_TAG: u8 = 1;
/// First byte of a rows frame.
pub const ROWS_TAG: u8 = 2;
/// Bytes before the body of either kind; keeps tuples eight-byte aligned.
pub const FRAME_HEADER_BYTES: usize = 8;
/// Largest control frame, bytes. A plan with thousands of constants stays well below.
pub const MAX_CONTROL_BYTES: usize = 64 << 20;
/// Largest rows frame, bytes. PostgreSQL's send buffer, as whatever is allocated there, stays below
/// (MaxAllocSize in memutils.h), so no replica has a larger one to send.
pub const MAX_ROWS_BYTES: usize = 1 << 30;
/// A replica sends its rows when it has collected this many bytes.
pub const ROWS_TARGET_BYTES: usize = 64 << 10;

/// What went wrong with a frame; it ends the link, never the server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("frame of {0} bytes is shorter than its header")]
    Short(usize),
    #[error("frame of {bytes} bytes is over the limit of {limit}")]
    Oversized { bytes: usize, limit: usize },
    #[error("frame has an unexpected tag {0}")]
    Tag(u8),
    #[error("frame could not be decoded")]
    Encoding,
    #[error("rows frame ends inside a row")]
    TruncatedRow,
}

/// Random bytes that the replica chooses; the coordinator's message authentication covers them, so
/// a recorded [`Begin`] cannot be used again.
pub type Nonce = [u8; 32];
/// HMAC-SHA-256 over nonce and body.
pub type Mac = [u8; 32];

/// Who a server is. Compared field by field before anything is shipped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub protocol_version: u32,
    /// Hash of the extension's sources and dependencies.
    pub build_id: String,
    /// `server_version_num`, minor version included.
    pub server_version: u32,
    /// From pg_control: equal only within one physical cluster.
    pub system_identifier: u64,
    pub database: u32,
    pub block_bytes: u32,
}

/// First frame of the replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub nonce: Nonce,
    /// Proof that the replica knows the secret: over the coordinator's challenge, the nonce and the
    /// instance id.
    pub mac: Mac,
    pub identity: Identity,
    /// Random id of the server's shared memory: a coordinator that meets its own leaves the link.
    pub instance_id: [u8; 16],
}

/// A relation, as the coordinator's catalog describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelationIdentity {
    pub oid: u32,
    pub tablespace: u32,
    pub relfilenode: u32,
    pub relkind: u8,
    pub persistence: u8,
    pub access_method: u32,
    pub attributes: u16,
}

/// One relation of the fragment, and how much of it there is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relation {
    pub identity: RelationIdentity,
    /// Blocks that a server which has replayed up to [`Begin::lsn`] has, if its file is whole; 0 where a scan
    /// would notice that it is not.
    pub filled_blocks: u32,
}

/// A collation whose rules the fragment depends on, with the library's version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollationIdentity {
    pub oid: u32,
    /// Empty where the provider has no version.
    pub version: String,
}

/// An extension of which the fragment executes functions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtensionIdentity {
    pub oid: u32,
    /// Fingerprint of the libraries that they are in.
    pub libraries: u64,
}

/// An evaluated InitPlan output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecParameter {
    pub id: u32,
    /// In PostgreSQL's datum serialisation.
    pub datum: Vec<u8>,
}

/// What the coordinator wants to have executed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    pub query_id: [u8; 16],
    pub timeline: u32,
    /// The replica must have replayed up to here before it looks at a row.
    pub lsn: u64,
    /// How long the replica may wait for that, in milliseconds.
    pub replay_wait_ms: u32,
    pub snapshot: WireSnapshot,
    /// Start of the coordinator's transaction and statement: PostgreSQL's microseconds since 2000.
    pub transaction_start: i64,
    pub statement_start: i64,
    /// Role as which the query runs.
    pub user: u32,
    /// Inside a security-restricted operation, or with row security forced off, as flags of
    /// PostgreSQL's security context.
    pub security_context: i32,
    /// Settings that the fragment's expressions read: name and value.
    pub settings: Vec<(String, String)>,
    /// Fingerprint of the session time zone's rules, if the fragment depends on them.
    pub time_zone_fingerprint: Option<u64>,
    pub collations: Vec<CollationIdentity>,
    /// Extensions that the fragment may use.
    pub extensions: Vec<ExtensionIdentity>,
    pub relations: Vec<Relation>,
    /// The plan is that of a whole query, with its subplans, for this one replica: no tasks are given.
    pub whole: bool,
    /// `nodeToString` of the fragment's PlannedStmt.
    pub plan: Vec<u8>,
    /// External parameters in PostgreSQL's own serialisation.
    pub parameters: Vec<u8>,
    pub exec_parameters: Vec<ExecParameter>,
    /// `InstrumentOption` bits, 0 for none.
    pub instrument: i32,
    /// For a streaming fragment, whose rows are complete when their task is: a task ends early, at
    /// the next granule, when its rows take so many bytes. 0: not streaming.
    pub task_bytes: u64,
}

/// Frames from coordinator to replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToReplica {
    /// A [`Begin`] in its encoded form, because its bytes are authenticated before they are read.
    Begin { mac: Mac, body: Vec<u8> },
    /// Blocks `start_block .. start_block + blocks` of scan `scan`. `cached_blocks`: so many blocks, of
    /// all scans, this replica reads in every such query, these among them, so that they are worth
    /// keeping in its buffers if all of them fit; 0: another query may read these elsewhere.
    Task {
        scan: u32,
        id: u32,
        start_block: u32,
        blocks: u32,
        cached_blocks: u64,
    },
    /// End task `id` at the first granule that does not begin before `keep_until_block`.
    Shrink {
        scan: u32,
        id: u32,
        keep_until_block: u32,
    },
    /// Nothing is left for that scan.
    Finish { scan: u32 },
    /// The rest of the answer is not wanted.
    Stop,
}

/// Why a replica does not take part; no error of the query, and not counted as one of the replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Short stable word, shown in EXPLAIN and logs.
    pub reason: String,
    pub detail: String,
}

/// What a replica tells before it gets work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announcement {
    pub replay_wait_us: u64,
}

/// Work done under one task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskReport {
    pub scan: u32,
    pub id: u32,
    /// Fewer than were given if the task ended early; then whole granules.
    pub blocks: u32,
    /// Microseconds that it took, and those from its end to this frame, which may wait for others of its kind.
    pub took_us: u64,
    pub ago_us: u64,
}

/// Last frame of a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FragmentReport {
    /// Rows sent over the whole fragment.
    pub rows: u64,
    /// The fragment was stopped early.
    pub stopped: bool,
    /// Scans that the fragment ended without reading to their end, because it needed no more rows of
    /// them (an empty inner side, a condition that is false for every row).
    pub unneeded: Vec<u32>,
    /// `Instrumentation` structs by plan node id, raw bytes; empty without EXPLAIN ANALYZE.
    pub instrumentation: Vec<(i32, Vec<u8>)>,
    pub buffer_usage: Vec<u8>,
    pub wal_usage: Vec<u8>,
    /// Of JIT compilation; empty where there was none.
    pub jit_usage: Vec<u8>,
    /// Microseconds from the start of the fragment to its end, and how many of them were spent on
    /// waiting for tasks.
    pub run_us: u64,
    pub request_wait_us: u64,
}

/// Frames from replica to coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToCoordinator {
    Hello(Hello),
    Refused(Refusal),
    Announcement(Announcement),
    /// Asks for one more task of a scan.
    Request {
        scan: u32,
    },
    TaskDone(TaskReport),
    /// Task `id`, which others want, will not be begun.
    GaveBack {
        scan: u32,
        id: u32,
    },
    /// Still alive; sent when nothing else was for a second.
    Progress,
    /// CPU time that the process has used for the fragment since it told last; also a sign of life.
    Used {
        cpu_us: u64,
    },
    FragmentDone(Box<FragmentReport>),
}

/// Encodes a control frame.
pub fn encode<T: Serialize>(frame: &T) -> Result<Vec<u8>, FrameError> {
    let mut header = vec![0_u8; FRAME_HEADER_BYTES];
    header[0] = CONTROL_TAG;
    let bytes = postcard::to_extend(frame, header).map_err(|_| FrameError::Encoding)?;
    check_size(&bytes, MAX_CONTROL_BYTES)?;
    Ok(bytes)
}

/// Decodes a control frame, which must be used up entirely.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, FrameError> {
    check_size(bytes, MAX_CONTROL_BYTES)?;
    let body = bytes
        .get(FRAME_HEADER_BYTES..)
        .ok_or(FrameError::Short(bytes.len()))?;
    if bytes[0] != CONTROL_TAG {
        return Err(FrameError::Tag(bytes[0]));
    }
    decode_body(body)
}

fn check_size(bytes: &[u8], limit: usize) -> Result<(), FrameError> {
    match bytes.len() {
        bytes if bytes > limit => Err(FrameError::Oversized { bytes, limit }),
        _ => Ok(()),
    }
}

/// Encodes a value without frame header, for [`ToReplica::Begin`].
pub fn encode_body<T: Serialize>(value: &T) -> Result<Vec<u8>, FrameError> {
    postcard::to_stdvec(value).map_err(|_| FrameError::Encoding)
}

/// Decodes what [`encode_body`] made.
pub fn decode_body<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, FrameError> {
    match postcard::take_from_bytes(body) {
        Ok((value, [])) => Ok(value),
        _ => Err(FrameError::Encoding),
    }
}

/// Starts a rows frame in `buffer`, which it clears.
pub fn start_rows(buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.resize(FRAME_HEADER_BYTES, 0);
    buffer[0] = ROWS_TAG;
}

/// Is this a rows frame?
pub fn is_rows(bytes: &[u8]) -> bool {
    bytes.len() >= FRAME_HEADER_BYTES && bytes[0] == ROWS_TAG
}

/// Appends one tuple, whose first four bytes become its length in native byte order (as a minimal
/// tuple's are), and pads it.
pub fn push_row(buffer: &mut Vec<u8>, tuple: &[u8]) {
    let start = buffer.len();
    buffer.extend_from_slice(tuple);
    buffer[start..start + 4].copy_from_slice(&(tuple.len() as u32).to_ne_bytes());
    let padded = buffer.len().next_multiple_of(8);
    buffer.resize(padded, 0);
}

/// Finds the end of the row at `offset`: `Ok(None)` at the end of the frame.
///
/// The length that the row claims is checked against the frame, and against `least`, the size of a
/// tuple header.
pub fn next_row(
    bytes: &[u8],
    offset: usize,
    least: usize,
) -> Result<Option<(usize, usize)>, FrameError> {
    if offset >= bytes.len() {
        return Ok(None);
    }
    let length = bytes
        .get(offset..offset + 4)
        .ok_or(FrameError::TruncatedRow)?;
    let length = u32::from_ne_bytes([length[0], length[1], length[2], length[3]]) as usize;
    let end = offset.checked_add(length).ok_or(FrameError::TruncatedRow)?;
    let next = end
        .checked_next_multiple_of(8)
        .ok_or(FrameError::TruncatedRow)?;
    if length < least || next > bytes.len() {
        return Err(FrameError::TruncatedRow);
    }
    Ok(Some((length, next)))
}

/// Are the rows of a rows frame whole, as far as their lengths tell, and is it none that no replica
/// sends? `least` as for [`next_row`].
pub fn check_rows(bytes: &[u8], least: usize) -> Result<(), FrameError> {
    check_size(bytes, MAX_ROWS_BYTES)?;
    let mut offset = FRAME_HEADER_BYTES;
    while let Some((_, next)) = next_row(bytes, offset, least)? {
        offset = next;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_frames_round_trip_and_are_used_up() {
        let frame = ToReplica::Task {
            scan: 1,
            id: 7,
            start_block: 128,
            blocks: 256,
            cached_blocks: 1 << 20,
        };
        let mut bytes = encode(&frame).unwrap();
        assert_eq!(decode::<ToReplica>(&bytes), Ok(frame));
        bytes.push(0);
        assert_eq!(decode::<ToReplica>(&bytes), Err(FrameError::Encoding));
        assert_eq!(decode::<ToReplica>(&bytes[..4]), Err(FrameError::Short(4)));
        bytes[0] = 9;
        assert_eq!(decode::<ToReplica>(&bytes), Err(FrameError::Tag(9)));
    }

    #[test]
    fn a_length_that_leaves_the_frame_is_an_error() {
        let mut frame = Vec::new();
        start_rows(&mut frame);
        push_row(&mut frame, &[12, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(next_row(&frame, 8, 8), Ok(Some((12, 24))));
        assert_eq!(next_row(&frame, 24, 8), Ok(None));
        assert_eq!(check_rows(&frame, 8), Ok(()));
        frame[8] = 200;
        assert_eq!(next_row(&frame, 8, 8), Err(FrameError::TruncatedRow));
        assert_eq!(check_rows(&frame, 8), Err(FrameError::TruncatedRow));
        frame[8] = 3;
        assert_eq!(next_row(&frame, 8, 8), Err(FrameError::TruncatedRow));
    }

    #[test]
    fn a_frame_over_its_limit_is_not_looked_into() {
        // Zeros that nobody touches take no memory.
        let mut rows = vec![0; MAX_ROWS_BYTES + 1];
        let oversized = |limit: usize| FrameError::Oversized {
            bytes: limit + 1,
            limit,
        };
        rows[0] = ROWS_TAG;
        assert_eq!(check_rows(&rows, 8), Err(oversized(MAX_ROWS_BYTES)));
        assert_eq!(
            check_rows(&rows[..MAX_ROWS_BYTES], 8),
            Err(FrameError::TruncatedRow)
        );
        rows[0] = CONTROL_TAG;
        let control = &rows[..=MAX_CONTROL_BYTES];
        assert_eq!(
            decode::<ToReplica>(control),
            Err(oversized(MAX_CONTROL_BYTES))
        );
    }
}
