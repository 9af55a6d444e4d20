//! What sorts, groups, joins and looks rows up by an operator class calls the class's functions for each of
//! them, also where the operators themselves are built in.

use parallel_replicas_tests::{
    Cluster, Differential, PRIMARY, SOON, damage_check, text, wait_until,
};
use postgres::Client;

/// Everything is shipped, and only replicas read.
const FORCED: &str =
    "SET parallel_replicas.debug_force = on; SET parallel_replicas_local_plan = off;
     SET parallel_replicas.granule_blocks = 4";

const OFF: &str = "SET LOCAL parallel_replicas.debug_force = off";

fn cluster(script: &str) -> (Cluster, Client) {
    let cluster = Cluster::with_two_replicas();
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute(script)
        .unwrap_or_else(|error| panic!("{error:?}\n{script}"));
    cluster.wait_all_caught_up();
    (cluster, client)
}

/// Nothing that a user wrote was called there.
#[track_caller]
fn assert_not_called(cluster: &Cluster, query: &str) {
    for standby in cluster.standbys() {
        assert!(!cluster.log(standby).contains("on a replica"), "{query}");
    }
}

/// A type of PostgreSQL's own gets an order.
const ORDER_OF_JSON: &str = "
    CREATE FUNCTION compare(json, json) RETURNS int LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
        BEGIN
            IF pg_is_in_recovery() THEN
                RAISE LOG 'compared on a replica';
            END IF;
            RETURN bttextcmp($1::text COLLATE \"C\", $2::text COLLATE \"C\");
        END $$;
    CREATE FUNCTION less(json, json) RETURNS bool IMMUTABLE PARALLEL SAFE AS
        'SELECT compare($1, $2) < 0' LANGUAGE sql;
    CREATE OPERATOR < (FUNCTION = less, LEFTARG = json, RIGHTARG = json);
    CREATE OPERATOR CLASS by_text DEFAULT FOR TYPE json USING btree AS OPERATOR 1 <,
        FUNCTION 1 compare(json, json);";

/// Operators of functions that are built in, in classes whose support functions are not.
const CLASSES: &str = "
    CREATE FUNCTION compare(int, int) RETURNS int LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
        BEGIN
            IF pg_is_in_recovery() THEN
                RAISE LOG 'compared on a replica';
                RETURN btint4cmp($2, $1);
            END IF;
            RETURN btint4cmp($1, $2);
        END $$;
    CREATE FUNCTION hash(int) RETURNS int LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
        BEGIN
            IF pg_is_in_recovery() THEN
                RAISE LOG 'hashed on a replica';
            END IF;
            RETURN hashint4($1);
        END $$;
    CREATE OPERATOR <<< (FUNCTION = int4lt, LEFTARG = int, RIGHTARG = int, COMMUTATOR = >>>);
    CREATE OPERATOR >>> (FUNCTION = int4gt, LEFTARG = int, RIGHTARG = int, COMMUTATOR = <<<);
    CREATE OPERATOR <<== (FUNCTION = int4le, LEFTARG = int, RIGHTARG = int, COMMUTATOR = >>==);
    CREATE OPERATOR >>== (FUNCTION = int4ge, LEFTARG = int, RIGHTARG = int, COMMUTATOR = <<==);
    CREATE OPERATOR === (FUNCTION = int4eq, LEFTARG = int, RIGHTARG = int, COMMUTATOR = ===, HASHES,
        MERGES);
    CREATE OPERATOR <!> (FUNCTION = int4ne, LEFTARG = int, RIGHTARG = int, COMMUTATOR = <!>,
        NEGATOR = ===);
    CREATE OPERATOR CLASS by_order FOR TYPE int USING btree FAMILY AS OPERATOR 1 <<<, OPERATOR 2 <<==,
        OPERATOR 3 ===, OPERATOR 4 >>==, OPERATOR 5 >>>, FUNCTION 1 compare(int, int);
    CREATE OPERATOR CLASS by_hash FOR TYPE int USING hash FAMILY AS OPERATOR 1 ===, FUNCTION 1 hash(int);
    CREATE FUNCTION compare(int[], int[]) RETURNS int LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
        BEGIN
            IF pg_is_in_recovery() THEN
                RAISE LOG 'compared on a replica';
            END IF;
            RETURN btarraycmp($1, $2);
        END $$;
    CREATE OPERATOR CLASS by_all DEFAULT FOR TYPE int[] USING btree AS OPERATOR 1 < (anyarray, anyarray),
        FUNCTION 1 compare(int[], int[]);
    CREATE TABLE numbers AS SELECT i, i % 100 AS v, '{}'::json AS j, ARRAY[i] AS a
        FROM generate_series(1, 20000) i;
    CREATE TABLE few AS SELECT i FROM generate_series(1, 100) i;
    ANALYZE numbers; ANALYZE few";

#[test]
fn what_is_compared_or_hashed_by_functions_of_users_stays() {
    // A family of PostgreSQL's own may have a class in it that is not.
    for family in ["", "FAMILY text_ops"] {
        let classes = CLASSES.replace("FAMILY", family);
        let (cluster, mut client) = cluster(&format!("{ORDER_OF_JSON}{classes}"));
        let joined = "SELECT count(*), sum(few.i) FROM numbers JOIN few ON numbers.i === few.i";
        for (settings, query) in [
            ("", "SELECT v FROM numbers ORDER BY v USING <<< LIMIT 5"),
            ("", "SELECT count(*) FROM numbers WHERE (i, v) <<< (500, 7)"),
            (
                "",
                "SELECT count(*) FROM numbers WHERE i === ANY('{1,2,3,4,5,6,7,8,9,10}'::int[])",
            ),
            (
                "",
                "SELECT count(*) FROM numbers WHERE i <!> ALL('{1,2,3,4,5,6,7,8,9,10}'::int[])",
            ),
            (
                "",
                "SELECT max(length(greatest(j, '[]')::text)) FROM numbers",
            ),
            (
                "",
                "SELECT max(array_length(greatest(a, '{5}'), 1)) FROM numbers",
            ),
            ("SET LOCAL enable_mergejoin = off", joined),
            (
                "SET LOCAL enable_hashjoin = off; SET LOCAL enable_nestloop = off",
                joined,
            ),
        ] {
            Differential::new(&mut client)
                .between(
                    &format!("{OFF}; {settings}"),
                    &format!("{FORCED}; {settings}"),
                )
                .check(query);
            assert_not_called(&cluster, query);
        }
        damage_check(&cluster);
    }
}

/// Executed as a whole, whatever it costs.
const TAGGED: &str = "SET enable_parallel_replicas = 1; SET parallel_replicas.replica_tag = 'test'";

/// Families of which one member is a user's: the equality of a sort's type, that of the type in a hash table,
/// the order of an index's type and another one.
const FAMILIES: &str = "
    CREATE FUNCTION same(int, int) RETURNS bool LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
        BEGIN
            IF pg_is_in_recovery() THEN
                RAISE LOG 'compared on a replica';
            END IF;
            RETURN int4eq($1, $2);
        END $$;
    CREATE FUNCTION same(bigint, bigint) RETURNS bool LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
        BEGIN
            IF pg_is_in_recovery() THEN
                RAISE LOG 'compared on a replica';
            END IF;
            RETURN int8eq($1, $2);
        END $$;
    CREATE FUNCTION compare(int, bigint) RETURNS int LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
        BEGIN
            IF pg_is_in_recovery() THEN
                RAISE LOG 'compared on a replica';
            END IF;
            RETURN btint48cmp($1, $2);
        END $$;

    CREATE OPERATOR <<< (FUNCTION = int4lt, LEFTARG = int, RIGHTARG = int);
    CREATE OPERATOR ~~~ (FUNCTION = same, LEFTARG = int, RIGHTARG = int);
    CREATE OPERATOR CLASS sorted FOR TYPE int USING btree AS OPERATOR 1 <<<, OPERATOR 3 ~~~,
        FUNCTION 1 btint4cmp(int, int);

    CREATE OPERATOR === (FUNCTION = int48eq, LEFTARG = int, RIGHTARG = bigint, HASHES);
    CREATE OPERATOR === (FUNCTION = same, LEFTARG = bigint, RIGHTARG = bigint, HASHES, COMMUTATOR = ===);
    CREATE OPERATOR === (FUNCTION = int4eq, LEFTARG = int, RIGHTARG = int, HASHES, COMMUTATOR = ===);
    CREATE OPERATOR FAMILY hashed USING hash;
    CREATE OPERATOR CLASS hashed_short FOR TYPE int USING hash FAMILY hashed AS OPERATOR 1 ===,
        FUNCTION 1 hashint4(int);
    CREATE OPERATOR CLASS hashed_long FOR TYPE bigint USING hash FAMILY hashed AS OPERATOR 1 ===,
        FUNCTION 1 hashint8(bigint);
    ALTER OPERATOR FAMILY hashed USING hash ADD OPERATOR 1 === (int, bigint);

    CREATE OPERATOR @@= (FUNCTION = int48eq, LEFTARG = int, RIGHTARG = bigint);
    CREATE OPERATOR CLASS indexed FOR TYPE int USING btree FAMILY text_ops AS OPERATOR 1 <, OPERATOR 2 <=,
        OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 btint4cmp(int, int);
    ALTER OPERATOR FAMILY text_ops USING btree ADD OPERATOR 3 @@= (int, bigint),
        FUNCTION 1 (int, bigint) compare(int, bigint);


    CREATE TABLE arrays AS SELECT i % 10 = 0 AS flag, ARRAY[i % 50, i % 7] AS a,
            ARRAY[i % 50, i % 7]::text[]::json[] AS j FROM generate_series(1, 5000) i;
    CREATE INDEX arrays_own ON arrays USING gin (a) WHERE flag;
    CREATE INDEX arrays_users ON arrays USING gin (j) WHERE NOT flag;
    CREATE TABLE numbers AS SELECT i, i % 100 AS v, i::bigint AS long FROM generate_series(1, 5000) i;
    CREATE INDEX by_own ON numbers(i int4_ops);
    CREATE TABLE looked_up AS SELECT i FROM generate_series(1, 5000) i;
    CREATE INDEX by_users ON looked_up(i indexed);
    ANALYZE numbers; ANALYZE looked_up; ANALYZE arrays";

#[test]
fn a_whole_query_that_calls_another_member_of_a_family_stays() {
    let (cluster, mut client) = cluster(&format!("{ORDER_OF_JSON}{FAMILIES}"));
    client.batch_execute(TAGGED).unwrap();
    // Each with the same query by operators of PostgreSQL's own, which is sent.
    for (settings, own, users) in [
        (
            "",
            "SELECT i, v FROM (SELECT i, v FROM numbers ORDER BY v LIMIT 4000) s ORDER BY v, i LIMIT 300",
            "SELECT i, v FROM (SELECT i, v FROM numbers ORDER BY v USING <<< LIMIT 4000) s
              ORDER BY v USING <<<, i LIMIT 300",
        ),
        (
            "",
            "SELECT count(*) FROM numbers WHERE NOT i = ANY (SELECT long / 2 FROM numbers WHERE v < 7)",
            "SELECT count(*) FROM numbers WHERE NOT i === ANY (SELECT long / 2 FROM numbers WHERE v < 7)",
        ),
        (
            "SET LOCAL enable_seqscan = off",
            "SELECT i FROM numbers WHERE i = 77::bigint",
            "SELECT i FROM looked_up WHERE i @@= 77::bigint",
        ),
        // An index of GIN that has no comparison of its own, all of which is read.
        (
            "SET LOCAL enable_seqscan = off",
            "SELECT count(*) FROM arrays WHERE flag",
            "SELECT count(*) FROM arrays WHERE NOT flag",
        ),
    ] {
        for (query, sent) in [(own, 1), (users, 0)] {
            let before = cluster.event(PRIMARY, "WholeQueryCount");
            Differential::new(&mut client)
                .between(
                    &format!("SET LOCAL enable_parallel_replicas = 0; {settings}"),
                    &format!("SET LOCAL enable_parallel_replicas = 1; {settings}"),
                )
                .check(query);
            assert_not_called(&cluster, query);
            assert_eq!(
                cluster.event(PRIMARY, "WholeQueryCount") - before,
                sent,
                "{query}"
            );
        }
    }
    damage_check(&cluster);
}

/// Not all operators of its class are immutable, but those need not be what the query uses.
#[test]
fn an_index_of_a_listed_extension_is_searched() {
    let (cluster, mut client) = cluster(
        "CREATE EXTENSION pg_trgm;
         CREATE TABLE words AS SELECT i, md5(i::text) AS t FROM generate_series(1, 20000) i;
         CREATE INDEX ON words USING gin (t gin_trgm_ops); ANALYZE words",
    );
    client.batch_execute(TAGGED).unwrap();
    let query = "SELECT i, t FROM words WHERE t LIKE '%abcd%'";
    for (extensions, sent) in [("", 0), ("pg_trgm", 1)] {
        client
            .batch_execute(&format!(
                "SET parallel_replicas.shippable_extensions = '{extensions}'"
            ))
            .unwrap();
        let plan = client.query(&format!("EXPLAIN {query}"), &[]).unwrap();
        let is_search = |line: &postgres::Row| line.get::<_, &str>(0).contains("Bitmap Index Scan");
        assert!(plan.iter().any(is_search), "the index is not used");
        let before = cluster.event(PRIMARY, "WholeQueryCount");
        Differential::new(&mut client)
            .between(
                "SET LOCAL enable_parallel_replicas = 0",
                "SET LOCAL enable_parallel_replicas = 1",
            )
            .check(query);
        assert_eq!(cluster.event(PRIMARY, "WholeQueryCount") - before, sent);
    }
    damage_check(&cluster);
}

/// A replica may be set to have an index leave out rows at random.
#[test]
fn an_index_gives_all_of_its_rows() {
    let (cluster, mut client) = cluster(
        "CREATE TABLE arrays AS SELECT i, ARRAY[i % 3, i % 7] AS a FROM generate_series(1, 20000) i;
         CREATE INDEX ON arrays USING gin (a); ANALYZE arrays",
    );
    for standby in cluster.standbys() {
        cluster.configure(standby, "gin_fuzzy_search_limit", "5");
        cluster.reload(standby);
        wait_until(SOON, "the setting is in force", || {
            text(&mut cluster.connect(standby), "SHOW gin_fuzzy_search_limit") == "5"
        });
    }
    client.batch_execute(TAGGED).unwrap();
    Differential::new(&mut client)
        .before("SET LOCAL enable_seqscan = off")
        .between(
            "SET LOCAL enable_parallel_replicas = 0",
            "SET LOCAL enable_parallel_replicas = 1",
        )
        .check("SELECT count(*) FROM arrays WHERE a @> '{2, 4}'");
    assert_eq!(cluster.event(PRIMARY, "WholeQueryCount"), 1);
}
