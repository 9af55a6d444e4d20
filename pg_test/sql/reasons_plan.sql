--
-- REASONS_PLAN: why a plan does without replicas
--
-- With enable_parallel_replicas = 1 nobody notices; with 2 it is an error that names the reason's
-- code and says what to do.  Each reason that planning gives is provoked once; those of execution
-- are in reasons_execution.
\set SHOW_CONTEXT never
\set code '\\echo SQLSTATE :LAST_ERROR_SQLSTATE'
CREATE TABLE one_table (i integer, t text) WITH (autovacuum_enabled = off);
INSERT INTO one_table SELECT i, 'x' || i FROM generate_series(1, 1000) i;
CREATE UNLOGGED TABLE unlogged_one AS SELECT 1 AS i;
CREATE TEMP TABLE temporary_one AS SELECT 1 AS i;
CREATE FUNCTION own_function(integer) RETURNS integer LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    AS $$BEGIN RETURN $1 + 1; END$$;
ANALYZE one_table, unlogged_one, temporary_one;

-- no_replica
SET cluster_for_parallel_replicas = 'nosuch';
SET enable_parallel_replicas = 1;
SELECT count(*) FROM one_table;
SET enable_parallel_replicas = 2;
SELECT count(*) FROM one_table;
:code
RESET cluster_for_parallel_replicas;

-- no_replica_allowed
SET max_parallel_replicas = 0;
SET enable_parallel_replicas = 1;
SELECT count(*) FROM one_table;
SET enable_parallel_replicas = 2;
SELECT count(*) FROM one_table;
:code
RESET max_parallel_replicas;
SET parallel_replicas_min_number_of_rows_per_replica = 1000000;
SET enable_parallel_replicas = 1;
SELECT count(*) FROM one_table;
SET enable_parallel_replicas = 2;
SELECT count(*) FROM one_table;
RESET parallel_replicas_min_number_of_rows_per_replica;

-- not_parallel_safe
SET enable_parallel_replicas = 1;
SELECT count(*) FROM one_table WHERE random() >= 0;
SET enable_parallel_replicas = 2;
SELECT count(*) FROM one_table WHERE random() >= 0;
:code

-- tablesample
SET enable_parallel_replicas = 1;
SELECT count(*) FROM one_table TABLESAMPLE system (100);
SET enable_parallel_replicas = 2;
SELECT count(*) FROM one_table TABLESAMPLE system (100);
:code

-- temporary_table
SET enable_parallel_replicas = 1;
SELECT count(*) FROM temporary_one;
SET enable_parallel_replicas = 2;
SELECT count(*) FROM temporary_one;
:code

-- unlogged_table
SET enable_parallel_replicas = 1;
SELECT count(*) FROM unlogged_one;
SET enable_parallel_replicas = 2;
SELECT count(*) FROM unlogged_one;
:code

-- foreign_table
CREATE EXTENSION file_fdw;
CREATE SERVER files FOREIGN DATA WRAPPER file_fdw;
CREATE TABLE parent (i integer) PARTITION BY LIST (i);
CREATE FOREIGN TABLE foreign_one PARTITION OF parent DEFAULT SERVER files OPTIONS (filename '/dev/null');
SET enable_parallel_replicas = 1;
SELECT count(*) FROM parent;
SET enable_parallel_replicas = 2;
SELECT count(*) FROM foreign_one;
SELECT count(*) FROM parent;
:code
SET client_min_messages = warning;
DROP EXTENSION file_fdw CASCADE;
RESET client_min_messages;
DROP TABLE parent;

-- access_method
CREATE ACCESS METHOD heap2 TYPE TABLE HANDLER heap_tableam_handler;
CREATE TABLE heap2_one USING heap2 AS SELECT 1 AS i;
SET enable_parallel_replicas = 1;
SELECT count(*) FROM heap2_one;
SET enable_parallel_replicas = 2;
SELECT count(*) FROM heap2_one;
:code
DROP TABLE heap2_one;
DROP ACCESS METHOD heap2;

-- catalog_table
SET enable_parallel_replicas = 1;
SELECT count(*) FROM one_table JOIN pg_am ON pg_am.oid = one_table.i::oid;
SET enable_parallel_replicas = 2;
SELECT count(*) FROM one_table JOIN pg_am ON pg_am.oid = one_table.i::oid;
:code

-- correlated_parameter
SET enable_parallel_replicas = 1;
SELECT (SELECT count(*) FROM one_table WHERE one_table.i < length(a.amname)) > 0 AS some FROM pg_am a LIMIT 1;
SET enable_parallel_replicas = 2;
SELECT (SELECT count(*) FROM one_table WHERE one_table.i < length(a.amname)) > 0 AS some FROM pg_am a LIMIT 1;
:code

-- too_small: only with 1, where EXPLAIN says it
SET enable_parallel_replicas = 1;
SET min_parallel_table_scan_size = '256kB';
EXPLAIN (COSTS OFF) SELECT count(*) FROM dim, fact WHERE fact.id = 5 AND fact.grp = dim.grp;
RESET min_parallel_table_scan_size;

-- planner_choice: only with 1 as well
SET min_parallel_table_scan_size = 0;
EXPLAIN (COSTS OFF) SELECT count(*) FROM one_table;
RESET min_parallel_table_scan_size;

-- plan_node
CREATE INDEX part_region ON part (region);
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SET enable_parallel_replicas = 1;
SELECT count(*) FROM one_table JOIN part ON region = t;
SET enable_parallel_replicas = 2;
SELECT count(*) FROM one_table JOIN part ON region = t;
:code
RESET enable_hashjoin;
RESET enable_mergejoin;
DROP INDEX part_region;

-- expression
SET enable_parallel_replicas = 1;
SELECT count(*) FROM one_table WHERE xmlelement(name e, t) IS NULL;
SET enable_parallel_replicas = 2;
SELECT count(*) FROM one_table WHERE xmlelement(name e, t) IS NULL;
:code

-- subplan
SET enable_parallel_replicas = 1;
SELECT count(*) FROM one_table WHERE i NOT IN (SELECT relnatts FROM pg_class WHERE relname = 'pg_am');
SET enable_parallel_replicas = 2;
SELECT count(*) FROM one_table WHERE i NOT IN (SELECT relnatts FROM pg_class WHERE relname = 'pg_am');
:code

-- function: one's own, one of the server's libraries, one of the session
SET enable_parallel_replicas = 1;
SELECT count(*) FROM one_table WHERE own_function(i) > 500;
SELECT count(*) FROM one_table WHERE to_tsvector('simple', t) @@ 'x7'::tsquery;
SET enable_parallel_replicas = 2;
SELECT count(*) FROM one_table WHERE own_function(i) > 500;
:code
SELECT count(*) FROM one_table WHERE to_tsvector('simple', t) @@ 'x7'::tsquery;
SELECT count(*) FROM one_table WHERE pg_relation_size('one_table'::regclass, CASE WHEN i > 0 THEN 'main' END) > 0;

-- function: those that others call, of a cast to JSON, of a domain's constraint and of a range's order
CREATE TYPE own_enum AS ENUM ('a');
CREATE FUNCTION own_json(own_enum) RETURNS json LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    AS $$BEGIN RETURN '1'; END$$;
CREATE CAST (own_enum AS json) WITH FUNCTION own_json(own_enum);
CREATE DOMAIN own_domain AS integer CHECK (own_function(value) > 0);
CREATE FUNCTION own_order(integer, integer) RETURNS integer LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    AS $$BEGIN RETURN btint4cmp($1, $2); END$$;
CREATE OPERATOR CLASS own_class FOR TYPE integer USING btree AS OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =,
    OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 own_order(integer, integer);
CREATE TYPE own_range AS RANGE (subtype = integer, subtype_opclass = own_class);
CREATE TABLE typed AS SELECT 'a'::own_enum AS e, '{1}'::text AS t, '[1,2]'::own_range AS r
  FROM generate_series(1, 1000);
ANALYZE typed;
SET enable_parallel_replicas = 1;
SELECT count(*) FROM typed WHERE to_json(e)::text > '';
SELECT count(*) FROM typed WHERE cardinality(t::own_domain[]) > 0;
SELECT count(*) FROM typed WHERE r && r;
SET enable_parallel_replicas = 2;
SELECT count(*) FROM typed WHERE to_json(e)::text > '';
SELECT count(*) FROM typed WHERE cardinality(t::own_domain[]) > 0;
SELECT count(*) FROM typed WHERE r && r;
SET client_min_messages = warning;
DROP TABLE typed;
DROP TYPE own_enum CASCADE;
DROP DOMAIN own_domain;
DROP OPERATOR FAMILY own_class USING btree CASCADE;
RESET client_min_messages;

-- record_output
SET enable_parallel_replicas = 1;
SELECT (ROW(i, t)).* FROM one_table WHERE i = 5;
SELECT ROW(i, t) FROM one_table WHERE i = 5;
SET enable_parallel_replicas = 2;
SELECT ROW(i, t) FROM one_table WHERE i = 5;
:code

-- A query over no table of one's own is nobody's business.
SELECT 1 AS one;
SELECT count(*) > 0 AS some FROM pg_class;
SELECT count(*) FROM generate_series(1, 10);
-- The text of the reason is in EXPLAIN with 1, and nothing with 0.
SET enable_parallel_replicas = 1;
SET min_parallel_table_scan_size = 0;
EXPLAIN (COSTS OFF) SELECT count(*) FROM one_table WHERE own_function(i) > 500;
EXPLAIN (COSTS OFF, FORMAT JSON) SELECT count(*) FROM one_table WHERE own_function(i) > 500;
SET enable_parallel_replicas = 0;
EXPLAIN (COSTS OFF) SELECT count(*) FROM one_table WHERE own_function(i) > 500;
RESET min_parallel_table_scan_size;
DROP TABLE one_table, unlogged_one;
DROP FUNCTION own_function;
