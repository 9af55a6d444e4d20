--
-- HARMLESS_DDL: with 2, DDL and maintenance work as ever
--
SET enable_parallel_replicas = 2;
SET client_min_messages = warning;
CREATE SCHEMA ddl;
SET search_path = ddl, public;

-- Tables from queries.
CREATE TABLE copy_of_fact WITH (autovacuum_enabled = off) AS SELECT * FROM fact;
CREATE TABLE with_no_data AS SELECT * FROM fact WITH NO DATA;
SELECT id, grp INTO selected_into FROM fact WHERE id > 0;
CREATE TEMP TABLE temporary AS SELECT grp, count(*) AS n FROM fact GROUP BY grp;
CREATE TABLE IF NOT EXISTS copy_of_fact AS SELECT 1 AS i;
PREPARE ten AS SELECT id FROM fact WHERE id <= $1;
CREATE TABLE from_execute AS EXECUTE ten(10);
EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) CREATE TABLE explained AS SELECT 1 AS i;
SET enable_parallel_replicas = 0;
SELECT (SELECT count(*) FROM copy_of_fact) AS copied, (SELECT count(*) FROM with_no_data) AS none,
       (SELECT count(*) FROM selected_into) AS "into", (SELECT sum(n) FROM temporary) AS temporary,
       (SELECT count(*) FROM from_execute) AS executed;
SET enable_parallel_replicas = 2;

-- Indexes, also over expressions and partial, and in parallel.
SET min_parallel_table_scan_size = 0;
CREATE INDEX ON copy_of_fact (id);
CREATE INDEX ON copy_of_fact (lower(txt)) WHERE grp > 50;
CREATE INDEX CONCURRENTLY concurrent ON copy_of_fact (grp);
CREATE INDEX ON copy_of_fact USING brin (day);
CREATE STATISTICS stats ON grp, day FROM copy_of_fact;
REINDEX TABLE copy_of_fact;
REINDEX INDEX CONCURRENTLY concurrent;
ANALYZE copy_of_fact;
ANALYZE part;
VACUUM copy_of_fact;
VACUUM (FULL, ANALYZE) copy_of_fact;
CLUSTER copy_of_fact USING concurrent;
CHECKPOINT;
RESET min_parallel_table_scan_size;

-- Changes that read the whole table.
ALTER TABLE copy_of_fact ADD CONSTRAINT known FOREIGN KEY (grp) REFERENCES dim;
ALTER TABLE copy_of_fact DROP CONSTRAINT known;
ALTER TABLE copy_of_fact ADD CONSTRAINT known FOREIGN KEY (grp) REFERENCES dim NOT VALID;
ALTER TABLE copy_of_fact VALIDATE CONSTRAINT known;
ALTER TABLE copy_of_fact ADD CONSTRAINT sensible CHECK (id > -100);
ALTER TABLE copy_of_fact ADD CONSTRAINT wrong CHECK (id > 0);
ALTER TABLE copy_of_fact ALTER COLUMN id SET NOT NULL;
ALTER TABLE copy_of_fact ADD COLUMN extra integer DEFAULT 7;
ALTER TABLE copy_of_fact ADD COLUMN twice integer GENERATED ALWAYS AS (id * 2) STORED;
ALTER TABLE copy_of_fact ALTER COLUMN grp TYPE bigint;
ALTER TABLE copy_of_fact ALTER COLUMN txt TYPE varchar(100) USING upper(txt);
ALTER TABLE copy_of_fact DROP COLUMN day;
ALTER TABLE copy_of_fact SET UNLOGGED;
ALTER TABLE copy_of_fact SET LOGGED;
CREATE TABLE part_of (LIKE part INCLUDING ALL);
INSERT INTO part_of VALUES (1, 'abroad', 1);
CREATE TABLE parted (LIKE part) PARTITION BY LIST (region);
ALTER TABLE parted ATTACH PARTITION part_of FOR VALUES IN ('abroad');
ALTER TABLE parted DETACH PARTITION part_of;
ALTER TABLE parted ATTACH PARTITION part_of DEFAULT;
CREATE TABLE part_new PARTITION OF parted FOR VALUES IN ('new');

-- Views.
CREATE VIEW grouped AS SELECT grp, count(*) AS n, sum(val) AS total FROM fact GROUP BY grp;
CREATE OR REPLACE VIEW grouped AS SELECT grp, count(*) AS n, sum(val) AS total, max(day) AS last FROM fact GROUP BY grp;
CREATE MATERIALIZED VIEW kept AS SELECT * FROM grouped WHERE grp IS NOT NULL;
CREATE UNIQUE INDEX ON kept (grp);
REFRESH MATERIALIZED VIEW kept;
REFRESH MATERIALIZED VIEW CONCURRENTLY kept;
REFRESH MATERIALIZED VIEW kept WITH NO DATA;
REFRESH MATERIALIZED VIEW kept;
SELECT count(*), sum(n) FROM kept;

-- A function that runs queries inside of DDL.
CREATE FUNCTION highest() RETURNS integer LANGUAGE plpgsql IMMUTABLE AS $$BEGIN RETURN (SELECT max(id) FROM fact); END$$;
CREATE TABLE defaulted (id integer DEFAULT highest(), CHECK (id <= highest()));
INSERT INTO defaulted DEFAULT VALUES;
ALTER TABLE defaulted ADD COLUMN two integer DEFAULT highest() + 1;
CREATE TABLE called AS SELECT highest() AS id;
SET enable_parallel_replicas = 0;
SELECT * FROM defaulted, called;
SET enable_parallel_replicas = 2;
-- An event trigger.
CREATE FUNCTION on_ddl() RETURNS event_trigger LANGUAGE plpgsql AS $$
DECLARE
    n bigint;
BEGIN
    SELECT count(*) INTO n FROM pg_event_trigger_ddl_commands();
END$$;
CREATE EVENT TRIGGER harmless ON ddl_command_end EXECUTE FUNCTION on_ddl();
CREATE TABLE triggered AS SELECT count(*) FROM fact;
DROP EVENT TRIGGER harmless;

-- The rest.
TRUNCATE copy_of_fact, selected_into;
BEGIN;
LOCK TABLE dim IN SHARE MODE;
COMMIT;
CREATE POLICY odd ON fact USING (id % 2 = 1);
DROP POLICY odd ON fact;
CREATE RULE nothing AS ON INSERT TO selected_into DO INSTEAD SELECT count(*) FROM fact;
DROP RULE nothing ON selected_into;
CREATE ROLE regress_harmless;
GRANT SELECT ON ALL TABLES IN SCHEMA ddl TO regress_harmless;
REASSIGN OWNED BY regress_harmless TO CURRENT_USER;
DROP OWNED BY regress_harmless;
DROP ROLE regress_harmless;
COMMENT ON TABLE fact IS 'facts';
COMMENT ON TABLE fact IS NULL;
DISCARD TEMP;
RESET enable_parallel_replicas;
DROP SCHEMA ddl CASCADE;
