--
-- ERRORS: an error in a row is the same one, and the session goes on
--
SET max_parallel_workers_per_gather = 2;
\set SHOW_CONTEXT never
\set code '\\echo SQLSTATE :LAST_ERROR_SQLSTATE'
SELECT sum(1 / (grp - 5)) FROM fact;
:code
SELECT sum((txt || 'x')::integer) FROM fact WHERE id = 7;
:code
SET enable_parallel_replicas = 2;
SELECT sum(1 / (grp - 5)) FROM fact;
:code
SELECT sum((txt || 'x')::integer) FROM fact WHERE id = 7;
:code
SELECT id, 1 / (grp - 5) AS x FROM fact ORDER BY id;
SET parallel_replicas_local_plan = off;
SELECT sum(1 / (grp - 5)) FROM fact;
:code
SELECT sum((txt || 'x')::integer) FROM fact WHERE id = 7;
:code
SELECT count(*) FROM fact;
SELECT max(repeat(txt, 1000000)) FROM fact WHERE id = 7 AND length(repeat(txt, 200000000)) > 0;
:code
SELECT sum(id::smallint * 30000::smallint) FROM fact;
:code
RESET parallel_replicas_local_plan;
SELECT count(*) FROM fact;

-- Savepoints.
BEGIN;
SELECT count(*) FROM fact;
SAVEPOINT a;
SELECT sum(1 / (grp - 5)) FROM fact;
SELECT count(*) FROM fact;
ROLLBACK TO a;
SELECT count(*) FROM fact;
SAVEPOINT b;
SELECT count(*) FROM dim;
RELEASE b;
SELECT sum(id) FROM fact WHERE grp = 5;
COMMIT;
-- A subtransaction per row, half of which fail.
CREATE FUNCTION tried(n integer) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    result bigint;
BEGIN
    EXECUTE format('SELECT sum(10 / (grp - %s)) FROM fact WHERE grp < 10', n) INTO result;
    RETURN result;
EXCEPTION WHEN division_by_zero THEN
    RETURN SQLERRM;
END$$;
SELECT n, tried(n) FROM generate_series(8, 11) n;
SET enable_parallel_replicas = 0;
SELECT n, tried(n) FROM generate_series(8, 11) n;
SET enable_parallel_replicas = 2;
DROP FUNCTION tried;

-- Time-outs.  The query takes minutes; whoever it is that runs it is told to stop.
SET statement_timeout = '300ms';
SELECT count(*) FROM fact a, fact b, fact c WHERE a.id + b.id + c.id = -1;
:code
SELECT count(*) FROM fact;
SET parallel_replicas_local_plan = off;
SELECT count(*) FROM fact a, fact b, fact c WHERE a.id + b.id + c.id = -1;
:code
RESET statement_timeout;
SELECT count(*) FROM fact;
RESET parallel_replicas_local_plan;
SELECT count(*) FROM fact;
BEGIN;
SAVEPOINT a;
SET LOCAL statement_timeout = '300ms';
SELECT count(*) FROM fact a, fact b, fact c WHERE a.id + b.id + c.id = -1;
ROLLBACK TO a;
SELECT count(*) FROM fact;
COMMIT;
-- Nothing of it goes on, here or there: the links' processes are idle.
DO $$
BEGIN
    FOR i IN 1..300 LOOP
        EXIT WHEN NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'parallel worker');
        PERFORM pg_sleep(0.1);
        PERFORM pg_stat_clear_snapshot();
    END LOOP;
END$$;
SELECT count(*) AS workers FROM pg_stat_activity WHERE backend_type = 'parallel worker';
SELECT count(*) FROM fact;
