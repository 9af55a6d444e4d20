--
-- HARMLESS_CATALOG: with 2, catalog queries and psql's commands work as ever
--
SET enable_parallel_replicas = 2;
CREATE SCHEMA harmless;
SET search_path = harmless, public;
CREATE TABLE described (id integer PRIMARY KEY, grp integer REFERENCES dim, t text DEFAULT 'x' CHECK (t <> ''));
COMMENT ON TABLE described IS 'for psql';
CREATE INDEX ON described (t);
CREATE VIEW seen AS SELECT id, t FROM described WHERE t > 'a';
CREATE MATERIALIZED VIEW kept AS SELECT grp, count(*) AS n FROM described GROUP BY grp;
CREATE FUNCTION pieces(described) RETURNS text LANGUAGE sql AS 'SELECT $1.t';
CREATE TYPE colour AS ENUM ('red', 'green');
CREATE DOMAIN short AS text CHECK (length(VALUE) < 4);
CREATE SEQUENCE numbers;

-- What has the same answer everywhere is shown.
\d described
\d+ seen
\d kept
\d part
\d+ part_north
\dv
\dm
\ds
\df pieces
\sf pieces
\sv seen
\dT
\dD
\dn harm*
\des
\dP public.*
-- What has not is only executed.
\o /dev/null
\l
\l+
\dt+ *.*
\di+
\d+ *
\du+
\dp *.*
\dd
\db+
\dF+
\dFp
\dO
\dL+
\dx+
\dew+
\deu
\det
\dE
\dy
\dRp
\dRs
\dA+
\dAc
\dC
\dc
\do
\da
\dconfig *
\drds
\ddp
\dX
\dfS+ *
\o
-- Nor do any of these fail.
SELECT table_name, table_type FROM information_schema.tables
 WHERE table_schema = 'harmless' ORDER BY table_name;
SELECT column_name, data_type, column_default, is_nullable FROM information_schema.columns
 WHERE table_schema = 'harmless' AND table_name = 'described' ORDER BY ordinal_position;
SELECT constraint_name, constraint_type FROM information_schema.table_constraints
 WHERE table_schema = 'harmless' AND constraint_type <> 'CHECK' ORDER BY constraint_name;
SELECT count(*) > 0 AS some FROM information_schema.routines;
SELECT count(*) > 0 AS some FROM information_schema.role_table_grants;
SELECT count(*) > 0 AS some FROM information_schema.views;
SELECT count(*) > 0 AS some FROM information_schema.referential_constraints;
SELECT count(*) > 0 AS some FROM information_schema.foreign_servers;
SELECT count(*) > 0 AS some FROM pg_stat_activity;
SELECT count(*) > 0 AS some FROM pg_stat_user_tables;
SELECT count(*) > 0 AS some FROM pg_stat_replication;
SELECT count(*) > 0 AS some FROM pg_locks;
SELECT count(*) > 0 AS some FROM pg_settings;
SELECT count(*) > 0 AS some FROM pg_stats;
SELECT count(*) > 0 AS some FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum);
SELECT pg_total_relation_size('described') > 0 AS sized, pg_size_pretty(pg_relation_size('fact')) <> '' AS pretty;
SELECT pg_get_viewdef('seen'), pg_get_indexdef('described_pkey'::regclass);
SELECT bool_and(ok) AS fine FROM parallel_replicas.check_cluster();
SELECT count(*) > 0 AS some FROM parallel_replicas.events;
-- A user's own table beside a catalog is shipped, or not, but the answer is right.
SELECT c.relname, count(*) FROM pg_class c JOIN dim ON c.relname = 'dim' GROUP BY 1;
RESET enable_parallel_replicas;
SET client_min_messages = warning;
DROP SCHEMA harmless CASCADE;
