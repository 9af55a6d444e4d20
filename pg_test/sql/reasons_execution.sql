--
-- REASONS_EXECUTION: why a plan for replicas is executed without
--
-- Those that need another server or other settings of this one are in tests/tests/reasons.rs. Not
-- provoked: not_mvcc_snapshot, because no statement's snapshot is of another kind.
\set SHOW_CONTEXT never
\set code '\\echo SQLSTATE :LAST_ERROR_SQLSTATE'
CREATE TABLE written (i integer);
SET parallel_setup_cost = 0;
SET parallel_replicas.setup_cost = 0;
SET parallel_replicas.tuple_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;

-- own_xid
BEGIN;
INSERT INTO written VALUES (1);
SET LOCAL enable_parallel_replicas = 1;
SELECT uses_replicas('SELECT count(*) FROM fact');
SELECT count(*) FROM fact;
SELECT count(*) FROM written;
SET LOCAL enable_parallel_replicas = 2;
SELECT count(*) FROM fact;
:code
ROLLBACK;
-- A transaction that has only read may go on.
BEGIN;
SET LOCAL enable_parallel_replicas = 2;
SELECT count(*) FROM fact;
SELECT count(*) FROM dim;
COMMIT;

-- serializable
BEGIN ISOLATION LEVEL SERIALIZABLE;
SET LOCAL enable_parallel_replicas = 1;
SELECT count(*) FROM fact;
SET LOCAL enable_parallel_replicas = 2;
SELECT count(*) FROM fact;
:code
ROLLBACK;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SET LOCAL enable_parallel_replicas = 2;
SELECT count(*) FROM fact;
COMMIT;

-- not_parallel_mode: a function whose rows are fetched one by one; the query in it is not the
-- user's own, so never an error
SET enable_parallel_replicas = 1;
CREATE FUNCTION lazy() RETURNS SETOF bigint LANGUAGE sql AS 'SELECT count(*) FROM fact';
SELECT lazy();
SET enable_parallel_replicas = 2;
SELECT lazy();
DROP FUNCTION lazy;
DROP TABLE written;

-- EXPLAIN ANALYZE tells why with 1.
SET enable_parallel_replicas = 1;
BEGIN ISOLATION LEVEL SERIALIZABLE;
CREATE FUNCTION told(query text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    line text;
BEGIN
    FOR line IN EXECUTE 'EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) ' || query LOOP
        IF line ~ 'Parallel Replicas|Replicas Used|Replicas Planned' THEN
            RETURN NEXT btrim(line);
        END IF;
    END LOOP;
END$$;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT told('SELECT count(*) FROM fact');
COMMIT;

-- switched_off: a plan that was made before, so never an error
SET plan_cache_mode = force_generic_plan;
PREPARE counting AS SELECT count(*) FROM fact;
SET enable_parallel_replicas = 2;
EXECUTE counting;
SET enable_parallel_replicas = 0;
EXECUTE counting;
SELECT told('EXECUTE counting');
DEALLOCATE counting;
RESET plan_cache_mode;
DROP FUNCTION told;
