//! Frames of each kind, with something in every field that has a length: what tests damage.

use parallel_replicas_core::frame::{
    Announcement, Begin, CollationIdentity, ExecParameter, ExtensionIdentity, FragmentReport,
    Hello, Identity, Refusal, Relation, RelationIdentity, TaskReport, ToCoordinator, ToReplica,
    encode,
};
use parallel_replicas_core::snapshot::WireSnapshot;

pub fn begin() -> Begin {
    Begin {
        query_id: [1; 16],
        timeline: 1,
        lsn: 1 << 40,
        replay_wait_ms: 1000,
        snapshot: WireSnapshot {
            xmin: 700,
            xmax: 900,
            xmax_epoch: 0,
            in_progress: (701..760).collect(),
            vacuums: vec![765, 770],
            own_xid_assigned: false,
            incomplete: false,
        },
        transaction_start: 1 << 50,
        statement_start: 1 << 50,
        user: 10,
        security_context: 0,
        settings: [
            ("TimeZone", "UTC"),
            ("work_mem", "4096"),
            ("search_path", ""),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec(),
        time_zone_fingerprint: Some(7),
        collations: vec![CollationIdentity {
            oid: 100,
            version: "2.36".to_owned(),
        }],
        extensions: vec![ExtensionIdentity {
            oid: 16_390,
            libraries: 1 << 60,
        }],
        relations: vec![Relation {
            identity: RelationIdentity {
                oid: 16_384,
                tablespace: 1663,
                relfilenode: 16_400,
                relkind: b'r',
                persistence: b'p',
                access_method: 2,
                attributes: 3,
            },
            filled_blocks: 130,
        }],
        whole: false,
        plan: b"{PLANNEDSTMT :commandType 1 :planTree {CUSTOMSCAN :flags 0}}".to_vec(),
        parameters: vec![0; 20],
        exec_parameters: vec![ExecParameter {
            id: 1,
            datum: vec![2; 16],
        }],
        instrument: 0,
        task_bytes: 1 << 20,
    }
}

fn to_replica() -> Vec<ToReplica> {
    let all = vec![
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
    for frame in &all {
        // A new kind belongs into the list.
        match frame {
            ToReplica::Begin { .. }
            | ToReplica::Task { .. }
            | ToReplica::Shrink { .. }
            | ToReplica::Finish { .. }
            | ToReplica::Stop => {}
        }
    }
    all
}

fn to_coordinator() -> Vec<ToCoordinator> {
    let all = vec![
        ToCoordinator::Hello(Hello {
            nonce: [1; 32],
            mac: [2; 32],
            identity: Identity {
                protocol_version: 4,
                build_id: "0123456789abcdef".to_owned(),
                server_version: 150_018,
                system_identifier: 1 << 60,
                database: 5,
                block_bytes: 8192,
            },
            instance_id: [3; 16],
        }),
        ToCoordinator::Refused(Refusal {
            reason: "reason".to_owned(),
            detail: "detail ".repeat(20),
        }),
        ToCoordinator::Announcement(Announcement { replay_wait_us: 9 }),
        ToCoordinator::Request { scan: 1 },
        ToCoordinator::TaskDone(TaskReport {
            scan: 1,
            id: 2,
            blocks: 3,
            took_us: 1 << 40,
            ago_us: 1 << 40,
        }),
        ToCoordinator::GaveBack { scan: 1, id: 2 },
        ToCoordinator::Used { cpu_us: 1 << 40 },
        ToCoordinator::Progress,
        ToCoordinator::FragmentDone(Box::new(FragmentReport {
            unneeded: vec![1, 2, 3],
            instrumentation: vec![(4, vec![5; 60])],
            buffer_usage: vec![6; 80],
            wal_usage: vec![7; 20],
            jit_usage: vec![8; 30],
            ..FragmentReport::default()
        })),
    ];
    for frame in &all {
        match frame {
            ToCoordinator::Hello(_)
            | ToCoordinator::Refused(_)
            | ToCoordinator::Announcement(_)
            | ToCoordinator::Request { .. }
            | ToCoordinator::TaskDone(_)
            | ToCoordinator::GaveBack { .. }
            | ToCoordinator::Used { .. }
            | ToCoordinator::Progress
            | ToCoordinator::FragmentDone(_) => {}
        }
    }
    all
}

/// All kinds, encoded.
pub fn frames() -> Vec<Vec<u8>> {
    let first = to_replica();
    let second = to_coordinator();
    first
        .iter()
        .map(encode)
        .chain(second.iter().map(encode))
        .map(|frame| frame.expect("it can be encoded"))
        .collect()
}
