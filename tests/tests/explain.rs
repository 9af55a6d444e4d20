//! EXPLAIN shows what docs/monitoring.md says that it shows, in each format.

use std::collections::BTreeSet;
use std::path::Path;

use parallel_replicas_tests::{Cluster, PRIMARY, damage_check, text};
use postgres::{Client, SimpleQueryMessage};
use serde_json::Value;
use yaml_rust2::YamlLoader;

const COUNT: &str = "SELECT count(*) FROM t";

/// What PostgreSQL itself says of any node, without the options that are switched off here.
const OF_ANY_NODE: [&str; 6] = [
    "Node Type",
    "Parent Relationship",
    "Custom Plan Provider",
    "Parallel Aware",
    "Async Capable",
    "Plans",
];
const OF_ANY_NODE_EXECUTED: [&str; 2] = ["Actual Rows", "Actual Loops"];

fn cluster() -> Cluster {
    let cluster = Cluster::builder()
        .standbys(2)
        .autovacuum(false)
        .setting("jit", "off")
        .setting("parallel_replicas.connect_timeout", "30s")
        .setting("parallel_replicas.replay_wait_timeout", "60s")
        .setting("parallel_replicas.granule_blocks", "4")
        .start();
    cluster.register_replicas();
    cluster.psql(
        PRIMARY,
        "CREATE TABLE t(i int, v int) WITH (fillfactor = 60);
         INSERT INTO t SELECT i, 0 FROM generate_series(1, 30000) i;
         CREATE TABLE small AS SELECT generate_series(1, 10) AS i;
         ANALYZE t; ANALYZE small",
    );
    cluster.wait_all_caught_up();
    cluster
}

/// A session in which only replicas read.
fn session(cluster: &Cluster) -> Client {
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute(
            "SET enable_parallel_replicas = 2; SET parallel_replicas_local_plan = off;
             SET max_parallel_workers_per_gather = 1",
        )
        .expect("settings");
    client
}

/// What EXPLAIN says, with such options.
#[track_caller]
fn explain(client: &mut Client, options: &str, query: &str) -> String {
    let explain = format!("EXPLAIN (COSTS OFF, {options}) {query}");
    let messages = client.simple_query(&explain).expect("a plan");
    let lines = messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn node<'a>(plan: &'a Value, provider: &str) -> Option<&'a Value> {
    if plan["Custom Plan Provider"] == provider {
        return Some(plan);
    }
    let below = plan["Plans"].as_array()?;
    below.iter().find_map(|plan| node(plan, provider))
}

/// The node of that kind in EXPLAIN's JSON.
#[track_caller]
fn json(client: &mut Client, options: &str, query: &str, provider: &str) -> Value {
    let plan = explain(client, &format!("{options}, FORMAT JSON"), query);
    let plan: Value = serde_json::from_str(&plan).expect("valid JSON");
    node(&plan[0]["Plan"], provider)
        .unwrap_or_else(|| panic!("no {provider} in {plan}"))
        .clone()
}

/// Names in a text of the documentation, which stand between backticks and begin with a capital.
fn names(text: &str) -> BTreeSet<String> {
    let quoted = text.split('`').skip(1).step_by(2);
    let names = quoted.filter(|name| name.starts_with(|first: char| first.is_ascii_uppercase()));
    names.map(str::to_owned).collect()
}

/// The fields that docs/monitoring.md has.
struct Documented {
    always: BTreeSet<String>,
    executed: BTreeSet<String>,
    not_used: BTreeSet<String>,
    whole: BTreeSet<String>,
    whole_executed: BTreeSet<String>,
    participant: BTreeSet<String>,
    replica: BTreeSet<String>,
}

impl Documented {
    fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/monitoring.md");
        let text = std::fs::read_to_string(path).expect("the documentation can be read");
        let (_, rest) = text.split_once("\n## EXPLAIN\n").expect("a chapter");
        let (chapter, _) = rest.split_once("\n## ").expect("another chapter");
        // Names may be broken at the end of a line.
        let paragraph = |start: &str| -> String {
            let paragraph = chapter.split("\n\n").find(|text| text.starts_with(start));
            paragraph.expect("a paragraph").replace('\n', " ")
        };
        let cells = |when: &str, cell: usize| -> BTreeSet<String> {
            let rows = chapter
                .lines()
                .map(|line| line.split(" | ").collect::<Vec<_>>());
            let rows = rows.filter(|cells| cells.get(1) == Some(&when));
            let found: BTreeSet<String> = rows.flat_map(|cells| names(cells[cell])).collect();
            assert!(!found.is_empty(), "no field is documented for: {when}");
            found
        };
        let participant = paragraph("A participant has ");
        let (all, replicas) = participant
            .split_once(" and a replica also ")
            .expect("two parts");
        Documented {
            always: cells("always", 0),
            executed: cells("ANALYZE", 0),
            not_used: cells("ANALYZE, if not used", 0),
            whole: cells("a whole query under a tag", 0),
            whole_executed: cells("a whole query under a tag", 2),
            participant: names(all),
            replica: names(replicas),
        }
    }
}

fn union(sets: &[&BTreeSet<String>]) -> BTreeSet<String> {
    sets.iter().flat_map(|set| set.iter().cloned()).collect()
}

fn fields(node: &Value) -> BTreeSet<String> {
    node.as_object().expect("fields").keys().cloned().collect()
}

/// The node's fields are PostgreSQL's and these, no more and no fewer.
#[track_caller]
fn assert_fields(node: &Value, executed: bool, expected: &BTreeSet<String>) {
    let mut own = fields(node);
    let of_any = OF_ANY_NODE
        .iter()
        .chain(OF_ANY_NODE_EXECUTED.iter().filter(|_| executed));
    for field in of_any {
        // The topmost node has no parent.
        assert!(
            own.remove(*field) || *field == "Parent Relationship",
            "no {field}"
        );
    }
    assert_eq!(&own, expected);
}

#[track_caller]
fn assert_participants(node: &Value, documented: &Documented, replicas: &[&str]) {
    let of_replicas = union(&[&documented.participant, &documented.replica]);
    let participants = node["Participants"].as_array().expect("a list");
    let found: Vec<&str> = participants
        .iter()
        .map(|participant| participant["Name"].as_str().expect("a name"))
        .collect();
    assert_eq!(found, [&["local"], replicas].concat());
    for participant in participants {
        let expected = match participant["Name"].as_str() {
            Some("local") => &documented.participant,
            _ => &of_replicas,
        };
        assert_eq!(&fields(participant), expected, "{participant}");
    }
}

const ANALYZE: &str = "ANALYZE, TIMING OFF";

#[test]
fn the_fields_of_a_node_are_those_that_are_documented() {
    let cluster = cluster();
    let documented = Documented::read();
    let mut client = session(&cluster);
    let both = ["standby1", "standby2"];
    let provider = "ParallelReplicas";

    let plan = json(&mut client, "VERBOSE OFF", COUNT, provider);
    assert_fields(&plan, false, &documented.always);
    let plan = json(&mut client, ANALYZE, COUNT, provider);
    let used = union(&[&documented.always, &documented.executed]);
    assert_fields(&plan, true, &used);
    assert_participants(&plan, &documented, &both);

    client
        .batch_execute("SET enable_parallel_replicas = 1; SET parallel_replicas.debug_force = on")
        .expect("settings");
    client
        .batch_execute("BEGIN; SELECT pg_current_xact_id()")
        .expect("a transaction that has written");
    let plan = json(&mut client, ANALYZE, COUNT, provider);
    assert_fields(&plan, true, &union(&[&used, &documented.not_used]));
    assert_eq!(plan["Parallel Replicas Reason"], "own_xid");
    assert_participants(&plan, &documented, &[]);

    client
        .batch_execute(
            "ROLLBACK; RESET parallel_replicas.debug_force;
             SET parallel_replicas.replica_tag = 'somebody'",
        )
        .expect("a tag");
    let query = "SELECT i FROM small WHERE i = 7";
    let plan = json(&mut client, "VERBOSE OFF", query, provider);
    assert_fields(
        &plan,
        false,
        &union(&[&documented.always, &documented.whole]),
    );
    let plan = json(&mut client, ANALYZE, query, provider);
    let whole = union(&[&used, &documented.whole, &documented.whole_executed]);
    assert_fields(&plan, true, &whole);
    let by = text(
        &mut client,
        "SELECT parallel_replicas.replica_for_tag('somebody')",
    );
    assert_eq!(plan["Executed By"], by.as_str());
    assert_participants(&plan, &documented, &[&by]);
    damage_check(&cluster);
}

/// The numbers of one execution, as a machine reads them.
#[test]
fn all_formats_tell_of_each_participant() {
    let cluster = cluster();
    let mut client = session(&cluster);
    let documented = Documented::read();
    let fields: Vec<String> = union(&[&documented.participant, &documented.replica])
        .into_iter()
        .collect();
    let stages = [
        "Granules Own",
        "Granules Stolen By Hash",
        "Granules Stolen Rest",
    ];

    let plan = json(&mut client, ANALYZE, COUNT, "ParallelReplicas");
    let participants = plan["Participants"].as_array().expect("a list");
    let granules: u64 = participants
        .iter()
        .flat_map(|participant| stages.map(|stage| participant[stage].as_u64().expect("a number")))
        .sum();
    let selected = plan["Granules"].as_u64().expect("a number");
    assert_eq!(granules, selected);
    let logged = |client: &mut Client, id: &str| {
        text(
            client,
            &format!(
                "SELECT granules::text FROM parallel_replicas.query_log WHERE query_id = '{id}'"
            ),
        )
    };
    let id = plan["Query Id"].as_str().expect("a text");
    assert_eq!(logged(&mut client, id), selected.to_string());

    let yaml = explain(&mut client, "ANALYZE, TIMING OFF, FORMAT YAML", COUNT);
    let yaml = YamlLoader::load_from_str(&yaml)
        .expect("valid YAML")
        .swap_remove(0);
    let plan = &yaml[0]["Plan"]["Plans"][0];
    let mut granules = 0;
    for (number, name) in ["local", "standby1", "standby2"].into_iter().enumerate() {
        let participant = &plan["Participants"][number];
        assert_eq!(participant["Name"].as_str(), Some(name));
        let replicas = fields
            .iter()
            .filter(|field| name != "local" || documented.participant.contains(*field));
        for field in replicas {
            assert!(
                !participant[field.as_str()].is_badvalue(),
                "{name} has no {field}"
            );
        }
        granules += stages
            .map(|stage| participant[stage].as_i64().expect("a number"))
            .iter()
            .sum::<i64>();
    }
    assert_eq!(plan["Granules"].as_i64(), Some(granules));
    let id = plan["Query Id"].as_str().expect("a text");
    assert_eq!(logged(&mut client, id), granules.to_string());

    let xml = explain(&mut client, "ANALYZE, TIMING OFF, FORMAT XML", COUNT);
    let found = client
        .query_one(
            "SELECT xpath('//e:Participant/e:Name/text()', x, n)::text[],
                    xpath('sum(//e:Granules-Own | //e:Granules-Stolen-By-Hash | //e:Granules-Stolen-Rest)',
                          x, n)::text[],
                    xpath('//e:Granules/text()', x, n)::text[],
                    (SELECT array_agg(DISTINCT name::text ORDER BY name::text)
                       FROM unnest(xpath('//e:Participant/*', x, n)) one,
                            substring(one::text FROM '^<([A-Za-z-]+)') name)
               FROM (SELECT $1::text::xml AS x,
                            '{{e,http://www.postgresql.org/2009/explain}}'::text[] AS n) plan",
            &[&xml],
        )
        .expect("a document");
    let [participants, sum, granules, names]: [Vec<String>; 4] =
        [found.get(0), found.get(1), found.get(2), found.get(3)];
    assert_eq!(participants, ["local", "standby1", "standby2"]);
    assert_eq!(sum, granules);
    let names: BTreeSet<String> = names.iter().map(|name| name.replace('-', " ")).collect();
    assert_eq!(
        names,
        union(&[&documented.participant, &documented.replica])
    );
    damage_check(&cluster);
}

/// Whoever reads a page on the primary may write WAL, by cleaning it. On a standby nobody does.
#[test]
fn explain_shows_the_wal_of_local_processes_and_none_of_replicas() {
    let cluster = cluster();
    let mut client = session(&cluster);
    // Two tables alike: old versions of rows fill up all pages.
    client
        .batch_execute(
            "CREATE TABLE alone (LIKE t) WITH (fillfactor = 60);
             INSERT INTO alone SELECT i, 0 FROM generate_series(1, 30000) i;
             ANALYZE alone",
        )
        .expect("a table");
    for table in ["t", "alone"] {
        client
            .batch_execute(&format!("UPDATE {table} SET v = 1"))
            .expect("an update");
    }
    cluster.wait_all_caught_up();
    let records = |client: &mut Client| -> u64 {
        let scan = json(client, "ANALYZE, WAL", COUNT, "GranuleScan");
        scan["WAL Records"].as_u64().expect("a number")
    };
    assert_eq!(records(&mut client), 0, "replicas read");

    // Nobody but the processes of this server.
    for node in cluster.standbys() {
        cluster.pause_replay(node);
    }
    client
        .batch_execute(
            "INSERT INTO small VALUES (1); SET parallel_replicas_local_plan = on;
             SET parallel_replicas.replay_wait_timeout = '1ms'",
        )
        .expect("settings");
    let expected = {
        client
            .batch_execute(
                "SET enable_parallel_replicas = 0; SET max_parallel_workers_per_gather = 0",
            )
            .expect("settings");
        let plan = explain(
            &mut client,
            "ANALYZE, WAL, FORMAT JSON",
            "SELECT count(*) FROM alone",
        );
        let plan: Value = serde_json::from_str(&plan).expect("valid JSON");
        client
            .batch_execute(
                "SET enable_parallel_replicas = 2; SET max_parallel_workers_per_gather = 1",
            )
            .expect("settings");
        plan[0]["Plan"]["WAL Records"].as_u64().expect("a number")
    };
    assert!(expected > 100, "{expected} pages were cleaned");
    let found = records(&mut client);
    // A page that somebody else has in hand stays as it is.
    assert!(
        found <= expected && found >= expected * 9 / 10,
        "{found} records, {expected} without replicas"
    );
    let again = records(&mut client);
    assert!(again <= expected - found, "{again} records of clean pages");
    for node in cluster.standbys() {
        cluster.resume_replay(node);
    }
    damage_check(&cluster);
}

/// What a query calls may be executed without replicas for a reason of its own.
#[test]
fn explain_tells_no_reason_of_a_query_that_is_called() {
    let cluster = cluster();
    cluster.psql(
        PRIMARY,
        "CREATE FUNCTION called(bigint) RETURNS bigint LANGUAGE plpgsql AS
             $$BEGIN PERFORM count(*) FROM t WHERE random() < 2; RETURN $1; END$$",
    );
    let mut client = session(&cluster);
    client
        .batch_execute("SET parallel_replicas.debug_force = on")
        .expect("setting");
    let reason = "not used";
    let called = explain(
        &mut client,
        "ANALYZE",
        "SELECT count(*) FROM t WHERE random() < 2",
    );
    assert!(called.contains(reason), "it has a reason:\n{called}");
    let calling = explain(&mut client, "ANALYZE", "SELECT called(1)");
    assert!(!calling.contains(reason), "{calling}");
}
