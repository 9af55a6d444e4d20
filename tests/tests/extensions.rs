//! Extensions beside ours: their functions are executed on replicas where the administrator says so and
//! the libraries are the same, and they may be loaded in any order.

use std::fs;
use std::path::Path;
use std::time::Duration;

use parallel_replicas_tests::cluster::Options;
use parallel_replicas_tests::scene::Scene;
use parallel_replicas_tests::system::{installation, pg_config};
use parallel_replicas_tests::{
    Cluster, Differential, PRIMARY, Rows, SOON, damage_check, text, wait_until,
};
use postgres::Client;

const LISTED: &str = "SET parallel_replicas.shippable_extensions = pg_trgm, citext, hstore";

/// Everything is shipped, and only replicas read.
const FORCED: &str =
    "SET parallel_replicas.debug_force = on; SET parallel_replicas_local_plan = off;
     SET parallel_replicas.granule_blocks = 4";

const OFF: &str = "SET LOCAL parallel_replicas.debug_force = off";

fn options() -> Options {
    Cluster::builder()
        .standbys(2)
        // So that a slow machine does not turn a replica into one that is left out.
        .setting("parallel_replicas.connect_timeout", "5s")
        .setting("parallel_replicas.replay_wait_timeout", "30s")
}

#[track_caller]
fn run(client: &mut Client, script: &str) {
    client
        .batch_execute(script)
        .unwrap_or_else(|error| panic!("{error:?}\n{script}"));
}

fn event(client: &mut Client, name: &str) -> u64 {
    let query = format!(
        "SELECT value::text FROM parallel_replicas.events WHERE event = 'ParallelReplicas{name}'"
    );
    text(client, &query).parse().expect("a number")
}

/// Runs a query; answers whether replicas contributed to it.
#[track_caller]
fn uses_replicas(client: &mut Client, query: &str) -> bool {
    let before = event(client, "UsedCount");
    run(client, query);
    event(client, "UsedCount") > before
}

/// Why a query cannot use replicas, by the error of force.
#[track_caller]
fn reason(client: &mut Client, query: &str) -> String {
    run(client, "SET enable_parallel_replicas = force");
    let error = client.batch_execute(query).expect_err(query);
    run(client, "RESET enable_parallel_replicas");
    let error = error.as_db_error().expect("the server's own error");
    String::from(error.detail().expect("it has a detail"))
}

const WORDS: &str = "CREATE EXTENSION pg_trgm; CREATE EXTENSION citext; CREATE EXTENSION hstore;
     CREATE TABLE words AS SELECT i, md5(i::text) AS t, md5((i % 50)::text)::citext AS c,
         hstore('k', (i % 9)::text) AS h FROM generate_series(1, 20000) i;
     CREATE TABLE names AS SELECT i, upper(md5(i::text))::citext AS c FROM generate_series(1, 100) i;
     CREATE INDEX ON names (c); ANALYZE words; ANALYZE names";

/// With a function, an operator, an aggregate and a type of an extension; and the function for which force
/// refuses them where the extension is not listed. Without one, it is executed above the fragment then.
const QUERIES: [(&str, &str); 10] = [
    (
        "SELECT count(*), sum(length(t)) FROM words WHERE similarity(t, 'abcdef') > 0.1",
        "similarity",
    ),
    ("SELECT c, count(*) FROM words GROUP BY c", ""),
    (
        "SELECT count(*) FROM words WHERE c = upper(md5('7'))::citext",
        "citext_eq",
    ),
    ("SELECT min(c)::text, max(c)::text FROM words", ""),
    ("SELECT h -> 'k', count(*) FROM words GROUP BY 1", ""),
    (
        "SELECT count(*) FROM words WHERE h['k'] = '3'",
        "hstore_subscript_handler",
    ),
    ("SELECT DISTINCT h::text FROM words WHERE h ? 'k'", "exist"),
    (
        "SELECT count(*) FROM words WHERE ARRAY[c, c] = ARRAY['x'::citext]",
        "",
    ),
    (
        "SELECT i, h FROM words WHERE h @> 'k=>4' ORDER BY i LIMIT 20",
        "hs_contains",
    ),
    (
        "SELECT n.i, count(*) FROM words w JOIN names n ON n.c = w.c GROUP BY n.i",
        "",
    ),
];

#[test]
fn functions_of_listed_extensions_are_shipped() {
    let cluster = options().start();
    cluster.register_replicas();
    let mut client = cluster.connect(PRIMARY);
    run(&mut client, WORDS);
    cluster.wait_all_caught_up();
    for (query, refused) in QUERIES.iter().filter(|(_, refused)| !refused.is_empty()) {
        let reason = reason(&mut client, query);
        assert!(
            reason.starts_with("Reason function:") && reason.contains(refused),
            "{reason}\n{query}"
        );
    }
    run(&mut client, FORCED);
    run(&mut client, LISTED);
    for (query, _) in QUERIES {
        Differential::new(&mut client)
            .between(OFF, FORCED)
            .check(query);
        assert!(uses_replicas(&mut client, query), "{query}");
    }
    // An inner side read by an extension's operator class.
    let indexed = "SELECT w.i, n.i FROM words w JOIN names n ON n.c = w.c WHERE w.i < 300";
    run(
        &mut client,
        "SET enable_hashjoin = off; SET enable_mergejoin = off",
    );
    Differential::new(&mut client)
        .between(OFF, FORCED)
        .check(indexed);
    assert!(uses_replicas(&mut client, indexed));

    // Whole, under a tag.
    let mut tagged = cluster.connect(PRIMARY);
    run(&mut tagged, LISTED);
    run(
        &mut tagged,
        "SET enable_parallel_replicas = 1; SET parallel_replicas.replica_tag = 'amy';
         SET parallel_replicas.setup_cost = 1e9",
    );
    assert!(uses_replicas(
        &mut tagged,
        "SELECT c, row_number() OVER (ORDER BY c, i) FROM words WHERE h ? 'k' LIMIT 10"
    ));

    // What depends on more than its arguments is not shipped, nor is what is not a library's.
    run(
        &mut client,
        "CREATE FUNCTION listed_sql(text) RETURNS bool IMMUTABLE PARALLEL SAFE LANGUAGE plpgsql
             AS 'BEGIN RETURN length($1) > 3; END';
         CREATE FUNCTION listed_set(text, text) RETURNS real IMMUTABLE PARALLEL SAFE STRICT LANGUAGE c
             SET work_mem = '1MB' AS '$libdir/pg_trgm', 'similarity';
         ALTER EXTENSION pg_trgm ADD FUNCTION listed_sql(text);
         ALTER EXTENSION pg_trgm ADD FUNCTION listed_set(text, text);
         RESET parallel_replicas.debug_force",
    );
    for (condition, refused) in [
        ("t % 'abcdef'", "similarity_op"),
        ("listed_sql(t)", "listed_sql"),
        ("listed_set(t, 'abcdef') > 0.1", "listed_set"),
    ] {
        let query = format!("SELECT count(*) FROM words WHERE {condition}");
        let reason = reason(&mut client, &query);
        assert!(reason.contains(refused), "{reason}");
    }
    // Whole queries may have more in them, by the same rules.
    run(
        &mut client,
        "CREATE FUNCTION restricted(text, text) RETURNS real IMMUTABLE PARALLEL RESTRICTED STRICT LANGUAGE c
             AS '$libdir/pg_trgm', 'similarity';
         CREATE FUNCTION moved(int, int) RETURNS int IMMUTABLE PARALLEL SAFE STRICT LANGUAGE plpgsql
             AS 'BEGIN RETURN $1 + $2; END';
         CREATE FUNCTION moved_back(int, int) RETURNS int IMMUTABLE PARALLEL SAFE STRICT LANGUAGE plpgsql
             AS 'BEGIN RETURN $1 - $2; END';
         CREATE AGGREGATE moving(int) (sfunc = int4pl, stype = int, msfunc = moved, minvfunc = moved_back,
             mstype = int, initcond = 0, minitcond = 0, parallel = safe);
         CREATE AGGREGATE standing(int) (sfunc = int4pl, stype = int, initcond = 0, parallel = safe);
         ALTER EXTENSION pg_trgm ADD FUNCTION restricted(text, text);
         ALTER EXTENSION pg_trgm ADD AGGREGATE moving(int);
         ALTER EXTENSION pg_trgm ADD AGGREGATE standing(int)",
    );
    cluster.wait_all_caught_up();
    for (expression, shipped) in [
        ("standing(i) OVER pairs", true),
        ("moving(i) OVER pairs", false),
        ("restricted(t, 'a')", false),
    ] {
        let query = format!(
            "SELECT {expression} FROM words
             WINDOW pairs AS (ORDER BY i ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) LIMIT 10"
        );
        assert_eq!(uses_replicas(&mut tagged, &query), shipped, "{expression}");
    }
    damage_check(&cluster);
}

/// The tables, and what an extension is made to contain besides; everything is shipped.
fn scene_with(script: &str) -> (Cluster, Client) {
    let cluster = options().start();
    cluster.register_replicas();
    let mut client = cluster.connect(PRIMARY);
    run(&mut client, WORDS);
    run(&mut client, script);
    cluster.wait_all_caught_up();
    run(&mut client, FORCED);
    run(&mut client, LISTED);
    (cluster, client)
}

/// A function of the server's, that an extension has given a name: no library is compared.
#[test]
fn what_is_of_the_server_alone_needs_no_library() {
    let (cluster, mut client) = scene_with(
        "CREATE FUNCTION negated(int) RETURNS int IMMUTABLE PARALLEL SAFE STRICT LANGUAGE internal
             AS 'int4um';
         ALTER EXTENSION citext ADD FUNCTION negated(int)",
    );
    let query = "SELECT count(*) FROM words WHERE negated(i) < -5";
    assert!(uses_replicas(&mut client, query));
    Differential::new(&mut client)
        .between(OFF, FORCED)
        .check(query);
    damage_check(&cluster);
}

/// Nothing in a fragment gets out of the user's rights, even if the allow-list let it through.
#[test]
fn a_fragment_cannot_change_roles() {
    let (cluster, mut client) = scene_with(
        "CREATE FUNCTION harmless(text, text, bool) RETURNS text IMMUTABLE PARALLEL SAFE STRICT
             LANGUAGE internal AS 'set_config_by_name';
         ALTER EXTENSION citext ADD FUNCTION harmless(text, text, bool)",
    );
    // The error is the replica's; what the query meets here afterwards is another matter.
    let _ = client.batch_execute(
        "SELECT count(*) FROM words WHERE harmless('role', substr('none', 1, i + 4), true) = 'none'",
    );
    wait_until(SOON, "a replica refuses to change roles", || {
        [1, 2].iter().any(|standby| {
            cluster
                .log(*standby)
                .contains("cannot set parameter \"role\" within security-definer function")
        })
    });
    damage_check(&cluster);
}

/// A plan that was made while the extension was listed does not outlive that.
#[test]
fn the_list_is_asked_again_when_a_plan_is_executed() {
    let cluster = options().start();
    cluster.register_replicas();
    let mut client = cluster.connect(PRIMARY);
    run(&mut client, WORDS);
    cluster.wait_all_caught_up();
    run(&mut client, FORCED);
    run(&mut client, LISTED);
    run(
        &mut client,
        "SET plan_cache_mode = force_generic_plan;
         PREPARE q AS SELECT count(*) FROM words WHERE similarity(t, 'abcdef') > 0.1",
    );
    assert!(uses_replicas(&mut client, "EXECUTE q"));
    run(&mut client, "RESET parallel_replicas.shippable_extensions");
    assert!(!uses_replicas(&mut client, "EXECUTE q"));
    run(&mut client, LISTED);
    assert!(uses_replicas(&mut client, "EXECUTE q"));
    damage_check(&cluster);
}

#[test]
fn only_superusers_list_extensions() {
    let cluster = Cluster::builder().start();
    cluster.psql(PRIMARY, "CREATE ROLE somebody LOGIN");
    let mut client = cluster.connect_as(PRIMARY, "somebody");
    let error = client.batch_execute(LISTED).expect_err("it is not allowed");
    assert_eq!(
        error.code().map(postgres::error::SqlState::code),
        Some("42501")
    );
}

/// A replica whose library is another build, though its name and the catalog are the same, takes no part.
#[test]
fn another_build_of_the_library_is_refused() {
    let cluster = options().standbys(1).start();
    cluster.register_replicas();
    let folders = ["same", "changed"].map(|name| cluster.base().join(name));
    let library = fs::read(Path::new(&pg_config("--pkglibdir")).join("fuzzystrmatch.so"))
        .expect("it is installed");
    put_library(&folders[0], &library);
    put_library(&folders[1], &with_another_text(library));
    let set_folder = |node: usize, folder: &Path| {
        let folder = format!("{}:$libdir", folder.display());
        cluster.configure(node, "dynamic_library_path", &folder);
        cluster.reload(node);
        wait_until(SOON, "the folder is known", || {
            text(&mut cluster.connect(node), "SHOW dynamic_library_path") == folder
        });
    };
    set_folder(PRIMARY, &folders[0]);
    set_folder(1, &folders[0]);
    let query = "SELECT count(*) FROM words WHERE other_distance(t, 'abc') > 30";
    run(
        &mut cluster.connect(PRIMARY),
        "CREATE EXTENSION fuzzystrmatch;
         CREATE FUNCTION other_distance(text, text) RETURNS int AS 'other', 'levenshtein'
             LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE;
         ALTER EXTENSION fuzzystrmatch ADD FUNCTION other_distance(text, text);
         CREATE TABLE words AS SELECT i, md5(i::text) AS t FROM generate_series(1, 20000) i",
    );
    cluster.wait_all_caught_up();
    let connect = || {
        let mut client = cluster.connect(PRIMARY);
        run(&mut client, FORCED);
        run(
            &mut client,
            "SET parallel_replicas.shippable_extensions = fuzzystrmatch",
        );
        client
    };
    assert!(uses_replicas(&mut connect(), query));

    // A new session has new links, whose processes load the library anew.
    set_folder(1, &folders[1]);
    let mut client = connect();
    let refused = event(&mut client, "RefusedCount");
    assert!(!uses_replicas(&mut client, query));
    assert!(event(&mut client, "RefusedCount") > refused);
    let why = "extension (the library of extension fuzzystrmatch differs)";
    assert!(cluster.log(1).contains(why));
    Differential::new(&mut client)
        .between(OFF, FORCED)
        .check(query);

    set_folder(1, &folders[0]);
    assert!(uses_replicas(&mut connect(), query));
    damage_check(&cluster);
}

/// The replica checks for itself what the coordinator says of extensions.
#[test]
fn a_replica_does_not_take_an_unlisted_extension() {
    let mut scene = Scene::start();
    scene.cluster.psql(
        PRIMARY,
        "CREATE EXTENSION fuzzystrmatch; ALTER SYSTEM SET
             parallel_replicas.shippable_extensions = fuzzystrmatch; SELECT pg_reload_conf()",
    );
    let mut client = scene.cluster.connect(PRIMARY);
    let setting = "SHOW parallel_replicas.shippable_extensions";
    wait_until(SOON, "the setting is read", || {
        text(&mut client, setting) == "fuzzystrmatch"
    });
    scene.cluster.wait_all_caught_up();
    let begin = scene.proven(
        "SELECT id FROM t WHERE levenshtein(name, 'x') >= 0",
        parallel_replicas_tests::scene::ROWS,
    );
    assert_eq!(begin.extensions.len(), 1);
    scene.refused("plan", &begin, |begin| begin.extensions.clear());
    scene.refused("plan", &begin, |begin| begin.extensions[0].oid += 1);
    scene.refused("extension", &begin, |begin| {
        begin.extensions[0].libraries ^= 1
    });
    scene.end();
}

fn put_library(folder: &Path, library: &[u8]) {
    fs::create_dir(folder).expect("a folder can be made");
    fs::write(folder.join("other.so"), library).expect("a file can be written");
    installation().give_to_server_user(folder);
    installation().give_to_server_user(&folder.join("other.so"));
}

/// The same library, but for a letter of a message.
fn with_another_text(mut library: Vec<u8>) -> Vec<u8> {
    let message = b"argument exceeds the maximum length";
    let position = library
        .windows(message.len())
        .position(|window| window == message)
        .expect("the library has this message");
    library[position] = b'A';
    library
}

/// PostGIS: a type with operators, functions in C that call a library of theirs, aggregates with a state.
#[test]
fn postgis_is_shipped_where_it_is_listed() {
    let cluster = options().start();
    cluster.register_replicas();
    let mut client = cluster.connect(PRIMARY);
    run(
        &mut client,
        "CREATE EXTENSION postgis;
         CREATE TABLE place AS SELECT i, ST_SetSRID(ST_MakePoint(i % 200, i / 200), 4326) AS g
             FROM generate_series(1, 20000) i;
         CREATE TABLE area AS SELECT i, ST_MakeEnvelope(i * 20, 0, i * 20 + 15, 90, 4326) AS g
             FROM generate_series(0, 9) i;
         CREATE INDEX ON area USING gist (g); ANALYZE place; ANALYZE area",
    );
    cluster.wait_all_caught_up();
    let queries = [
        "SELECT count(*) FROM place WHERE g && ST_MakeEnvelope(10, 10, 50, 50, 4326)",
        "SELECT count(*), sum(ST_X(g)) FROM place
         WHERE ST_DWithin(g, ST_SetSRID(ST_MakePoint(100, 50), 4326), 20)",
        "SELECT ST_Extent(g)::text FROM place WHERE i % 3 = 0",
        "SELECT i, ST_AsText(g) FROM place WHERE ST_Area(ST_Buffer(g, 1)) > 3 ORDER BY i LIMIT 10",
        "SELECT a.i, count(*) FROM place p JOIN area a ON ST_Contains(a.g, p.g) GROUP BY a.i",
        "SELECT i % 4, ST_AsText(ST_Centroid(ST_Collect(g ORDER BY i))) FROM place GROUP BY 1",
    ];
    let unlisted = reason(&mut client, queries[0]);
    assert!(unlisted.contains("geometry_overlaps"), "{unlisted}");
    run(&mut client, FORCED);
    run(
        &mut client,
        "SET parallel_replicas.shippable_extensions = postgis",
    );
    for query in queries {
        Differential::new(&mut client)
            .between(OFF, FORCED)
            .check(query);
        assert!(uses_replicas(&mut client, query), "{query}");
    }
    damage_check(&cluster);
}

/// Debian's packages of extensions that watch statements, run jobs, make partitions or count.
#[test]
fn extensions_of_packages_do_not_mind() {
    let libraries = [
        "pgaudit",
        "pg_cron",
        "pg_partman_bgw",
        "pg_stat_statements",
        "parallel_replicas",
    ];
    let mut reversed = libraries;
    reversed.reverse();
    for libraries in [libraries, reversed] {
        let cluster = options()
            .preload(false)
            .setting("shared_preload_libraries", &libraries.join(","))
            .setting("pgaudit.log", "all")
            .setting("pgaudit.log_relation", "on")
            .setting("cron.database_name", "postgres")
            .setting("pg_partman_bgw.dbname", "postgres")
            .start();
        cluster.register_replicas();
        let mut client = cluster.connect(PRIMARY);
        for name in ["pgaudit", "pg_cron", "pg_partman", "hll"] {
            let known =
                format!("SELECT count(*)::text FROM pg_available_extensions WHERE name = '{name}'");
            assert_eq!(
                text(&mut client, &known),
                "1",
                "extension {name} is not installed; scripts/setup.sh tests does that"
            );
        }
        run(
            &mut client,
            "CREATE EXTENSION pgaudit; CREATE EXTENSION pg_cron; CREATE EXTENSION hll;
             CREATE EXTENSION pg_stat_statements;
             CREATE SCHEMA partman; CREATE EXTENSION pg_partman SCHEMA partman;
             CREATE TABLE public.event (id int NOT NULL, v int) PARTITION BY RANGE (id);
             SELECT partman.create_parent('public.event', 'id', 'native', '10000');
             INSERT INTO event SELECT i, i % 7 FROM generate_series(1, 40000) i;
             SELECT cron.schedule('count', '* * * * *', 'SELECT count(*) FROM event')",
        );
        for procedure in [
            "partition_data_proc('public.event')",
            "run_maintenance_proc()",
        ] {
            run(&mut client, &format!("CALL partman.{procedure}"));
        }
        run(&mut client, "ANALYZE event");
        cluster.wait_all_caught_up();
        run(&mut client, FORCED);
        for (query, shipped) in [
            ("SELECT v, count(*), sum(id) FROM event GROUP BY v", true),
            (
                "SELECT id FROM event WHERE v = 3 ORDER BY id LIMIT 10",
                true,
            ),
            // hll is not listed.
            (
                "SELECT v, #hll_add_agg(hll_hash_integer(id)) FROM event GROUP BY v",
                false,
            ),
        ] {
            Differential::new(&mut client)
                .between(OFF, FORCED)
                .check(query);
            assert_eq!(uses_replicas(&mut client, query), shipped, "{query}");
        }
        // The statement is audited here, as it was typed.
        assert!(cluster.log(PRIMARY).contains("AUDIT: SESSION"));
        assert!(
            cluster
                .log(PRIMARY)
                .contains("#hll_add_agg(hll_hash_integer(id))")
        );
        damage_check(&cluster);
        for node in cluster.standbys().chain([PRIMARY]) {
            let log = cluster.log(node);
            assert!(
                !log.contains("was terminated by signal") && !log.contains("PANIC"),
                "{log}"
            );
        }
    }
}

/// hll's aggregates are made of functions that are not declared to be immutable: they stay, and all else is
/// shipped.
#[test]
fn hll_is_shipped_where_it_is_listed_but_for_its_aggregates() {
    let cluster = options().start();
    cluster.register_replicas();
    let mut client = cluster.connect(PRIMARY);
    run(
        &mut client,
        "CREATE EXTENSION hll;
         CREATE TABLE visit AS SELECT i, i % 50 AS v, hll_empty() || hll_hash_integer(i) AS h
             FROM generate_series(1, 20000) i;
         ANALYZE visit",
    );
    cluster.wait_all_caught_up();
    let plain = [
        (
            "SELECT i, hll_hash_integer(i) FROM visit WHERE v = 3",
            "hll_hash_integer",
        ),
        (
            "SELECT v, sum(#h), count(*) FROM visit GROUP BY v",
            "hll_cardinality",
        ),
        (
            "SELECT count(*) FROM visit WHERE h = hll_empty() || hll_hash_integer(7)",
            "hll_eq",
        ),
    ];
    let aggregates = [
        (
            "SELECT v, #hll_add_agg(hll_hash_integer(i)) FROM visit GROUP BY v",
            "hll_add_agg",
        ),
        ("SELECT #hll_union_agg(h) FROM visit", "hll_union_agg"),
    ];
    let refused = |client: &mut Client, queries: &[(&str, &str)]| {
        for (query, function) in queries {
            let reason = reason(client, query);
            assert!(
                reason.starts_with("Reason function:") && reason.contains(function),
                "{reason}\n{query}"
            );
        }
    };
    let shipped = |client: &mut Client, queries: &[(&str, &str)]| {
        for (query, _) in queries {
            Differential::new(client).between(OFF, FORCED).check(query);
            assert!(uses_replicas(client, query), "{query}");
        }
    };
    refused(&mut client, &plain);
    run(
        &mut client,
        "SET parallel_replicas.shippable_extensions = hll",
    );
    refused(&mut client, &aggregates);
    run(&mut client, FORCED);
    for (query, _) in aggregates {
        assert!(!uses_replicas(&mut client, query), "{query}");
    }
    shipped(&mut client, &plain);

    // It is nothing else.
    run(
        &mut client,
        "ALTER FUNCTION hll_add_trans0(internal, hll_hashval) IMMUTABLE;
         ALTER FUNCTION hll_union_trans(internal, hll) IMMUTABLE;
         ALTER FUNCTION hll_union_internal(internal, internal) IMMUTABLE;
         ALTER FUNCTION hll_pack(internal) IMMUTABLE",
    );
    cluster.wait_all_caught_up();
    shipped(&mut client, &aggregates);
    damage_check(&cluster);
}

/// Operators and a type of an extension, by the server's own functions; and operator classes whose support
/// functions are in a language. An index calls these, and so do comparisons by a type's default class.
fn classes(language: &str) -> String {
    let (compare, hash) = match language {
        "internal" => ("btint4cmp", "hashint4"),
        _ => (
            "BEGIN RETURN btint4cmp($1::int, $2::int); END",
            "BEGIN RETURN hashint4($1::int); END",
        ),
    };
    let mut script = String::from(
        "CREATE TYPE odd;
         CREATE FUNCTION odd_in(cstring) RETURNS odd IMMUTABLE PARALLEL SAFE STRICT LANGUAGE internal
             AS 'int4in';
         CREATE FUNCTION odd_out(odd) RETURNS cstring IMMUTABLE PARALLEL SAFE STRICT LANGUAGE internal
             AS 'int4out';
         CREATE TYPE odd (INPUT = odd_in, OUTPUT = odd_out, LIKE = integer);
         CREATE CAST (odd AS integer) WITHOUT FUNCTION; CREATE CAST (integer AS odd) WITHOUT FUNCTION;
         ALTER EXTENSION citext ADD TYPE odd;
         ALTER EXTENSION citext ADD FUNCTION odd_in(cstring);
         ALTER EXTENSION citext ADD FUNCTION odd_out(odd);",
    );
    for (of_type, letter, default) in [("odd", "", "DEFAULT"), ("integer", "~", "")] {
        for (operator, function) in [
            ("<", "lt"),
            ("<=", "le"),
            ("=", "eq"),
            (">=", "ge"),
            (">", "gt"),
        ] {
            let joins = match operator {
                "=" => format!(", COMMUTATOR = {letter}=, HASHES, MERGES"),
                _ => String::new(),
            };
            script += &format!(
                "CREATE FUNCTION {of_type}_{function}({of_type}, {of_type}) RETURNS bool IMMUTABLE
                     PARALLEL SAFE STRICT LANGUAGE internal AS 'int4{function}';
                 CREATE OPERATOR {letter}{operator} (FUNCTION = {of_type}_{function},
                     LEFTARG = {of_type}, RIGHTARG = {of_type}{joins});
                 ALTER EXTENSION citext ADD FUNCTION {of_type}_{function}({of_type}, {of_type});
                 ALTER EXTENSION citext ADD OPERATOR {letter}{operator} ({of_type}, {of_type});"
            );
        }
        script += &format!(
            "CREATE FUNCTION {of_type}_cmp({of_type}, {of_type}) RETURNS integer IMMUTABLE
                 PARALLEL SAFE STRICT LANGUAGE {language} AS '{compare}';
             CREATE FUNCTION {of_type}_hash({of_type}) RETURNS integer IMMUTABLE PARALLEL SAFE STRICT
                 LANGUAGE {language} AS '{hash}';
             CREATE OPERATOR CLASS {of_type}_order {default} FOR TYPE {of_type} USING btree AS
                 OPERATOR 1 {letter}<, OPERATOR 2 {letter}<=, OPERATOR 3 {letter}=,
                 OPERATOR 4 {letter}>=, OPERATOR 5 {letter}>,
                 FUNCTION 1 {of_type}_cmp({of_type}, {of_type});
             CREATE OPERATOR CLASS {of_type}_hashed {default} FOR TYPE {of_type} USING hash AS
                 OPERATOR 1 {letter}=, FUNCTION 1 {of_type}_hash({of_type});
             ALTER EXTENSION citext ADD FUNCTION {of_type}_cmp({of_type}, {of_type});
             ALTER EXTENSION citext ADD FUNCTION {of_type}_hash({of_type});"
        );
        for (class, method) in [("order", "btree"), ("hashed", "hash")] {
            script += &format!(
                "ALTER EXTENSION citext ADD OPERATOR FAMILY {of_type}_{class} USING {method};
                 ALTER EXTENSION citext ADD OPERATOR CLASS {of_type}_{class} USING {method};"
            );
        }
    }
    script
        + "CREATE TABLE many AS SELECT i, (i % 500)::odd AS o FROM generate_series(1, 20000) i;
           CREATE TABLE few AS SELECT i, i::odd AS o FROM generate_series(1, 100) i;
           CREATE INDEX few_order ON few (i integer_order);
           CREATE INDEX few_hashed ON few USING hash (i integer_hashed);
           ANALYZE many; ANALYZE few"
}

/// Sorted, grouped, joined by the type's default classes, and an inner side read by indexes of other
/// classes: with the reason where they are refused.
const BY_CLASSES: [(&str, &str, &str); 9] = [
    (
        "SELECT i FROM many ORDER BY i USING ~< LIMIT 10",
        "",
        "integer_cmp",
    ),
    (
        "SELECT count(*), sum(f.i) FROM many m JOIN few f ON m.i ~= f.i",
        "SET enable_nestloop = off; SET enable_mergejoin = off",
        "integer_hash",
    ),
    (
        "SELECT count(*), sum(f.i) FROM many m JOIN few f ON m.i ~= f.i",
        "RESET enable_mergejoin; SET enable_hashjoin = off",
        "integer_",
    ),
    (
        "SELECT i, o FROM many ORDER BY o, i LIMIT 100",
        "RESET enable_hashjoin; RESET enable_nestloop",
        "odd_cmp",
    ),
    ("SELECT o, count(*) FROM many GROUP BY o", "", "odd_cmp"),
    (
        "SELECT count(*), sum(f.i) FROM many m JOIN few f ON m.o = f.o",
        "",
        "odd_cmp",
    ),
    (
        "SELECT count(*) FROM many WHERE ARRAY[o, o] = ARRAY[7::odd, 7::odd]",
        "",
        "odd_cmp",
    ),
    (
        "SELECT count(*), sum(f.i) FROM many m JOIN few f ON m.i ~= f.i",
        "SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_seqscan = off;
         SET enable_material = off; DROP INDEX few_hashed",
        "few_order",
    ),
    (
        "SELECT count(*), sum(f.i) FROM many m JOIN few f ON m.i ~= f.i",
        "CREATE INDEX few_hashed ON few USING hash (i integer_hashed); DROP INDEX few_order",
        "few_hashed",
    ),
];

#[test]
fn an_operator_class_of_a_listed_extension_whose_support_function_is_in_plpgsql_stays() {
    for (language, shipped) in [("internal", true), ("plpgsql", false)] {
        let (cluster, mut client) = scene_with(&classes(language));
        for (query, settings, refused) in BY_CLASSES {
            run(&mut client, settings);
            cluster.wait_all_caught_up();
            Differential::new(&mut client)
                .between(OFF, FORCED)
                .check(query);
            assert_eq!(
                uses_replicas(&mut client, query),
                shipped,
                "{language}: {query}"
            );
            if !shipped {
                let plan = Rows::fetch(&mut client, &format!("EXPLAIN {query}")).unwrap();
                let last = plan.rows.last().and_then(|row| row[0].as_deref());
                assert!(
                    last.is_some_and(|line| line.contains("not used: ") && line.contains(refused)),
                    "{last:?}\n{query}"
                );
            }
        }
        damage_check(&cluster);
    }
}

/// pg_cron's jobs, be they sessions or background workers, use replicas as their role's settings say.
#[test]
fn a_job_of_pg_cron_uses_replicas() {
    // It has no shorter time than a minute.
    const NEXT_MINUTE: Duration = Duration::from_secs(130);
    let scenes = ["off", "on"].map(|workers| {
        let cluster = options()
            .preload(false)
            .setting("shared_preload_libraries", "parallel_replicas,pg_cron")
            .setting("cron.database_name", "postgres")
            .setting("cron.host", "127.0.0.1")
            .setting("cron.use_background_workers", workers)
            .start();
        cluster.register_replicas();
        cluster.psql(
            PRIMARY,
            "CREATE EXTENSION pg_cron;
             CREATE TABLE event AS SELECT i AS id, i % 7 AS v FROM generate_series(1, 40000) i;
             ANALYZE event;
             CREATE ROLE clerk LOGIN SUPERUSER;
             ALTER ROLE clerk SET enable_parallel_replicas = force;
             ALTER ROLE clerk SET parallel_replicas_local_plan = off",
        );
        cluster.wait_all_caught_up();
        cluster
    });
    for cluster in &scenes {
        run(
            &mut cluster.connect_as(PRIMARY, "clerk"),
            "SELECT cron.schedule('sums', '* * * * *', 'CREATE TABLE sums AS
                 SELECT v, count(*) AS n, sum(id) AS s, min(current_user::text) AS who
                 FROM event GROUP BY v')",
        );
    }
    for cluster in &scenes {
        let mut client = cluster.connect(PRIMARY);
        let ended = "SELECT coalesce((SELECT concat_ws(' ', status, return_message)
             FROM cron.job_run_details WHERE end_time IS NOT NULL ORDER BY runid LIMIT 1), '')";
        wait_until(NEXT_MINUTE, "the job has ended", || {
            !text(&mut client, ended).is_empty()
        });
        assert_eq!(text(&mut client, ended), "succeeded SELECT 7");
        assert!(event(&mut client, "UsedCount") > 0);
        let wrong = "SELECT count(*)::text FROM
             (SELECT v, count(*) AS n, sum(id) AS s, 'clerk' AS who FROM event GROUP BY v) e
             NATURAL FULL JOIN sums WHERE e IS NULL OR sums IS NULL";
        assert_eq!(text(&mut client, wrong), "0");
        assert_eq!(text(&mut client, "SELECT count(*)::text FROM sums"), "7");
        damage_check(cluster);
    }
}
