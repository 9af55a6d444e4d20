--
-- SETTINGS: defaults, ranges, units, spellings, and where each may be set
--
-- The definition of every setting.  Those with a bare name are for sessions, roles and databases,
-- the others may also stand in postgresql.conf.
SELECT name, vartype, context, unit, boot_val, min_val, max_val
  FROM pg_settings
 WHERE name LIKE '%parallel_replicas%'
 ORDER BY name COLLATE "C";
SELECT name, enumvals
  FROM pg_settings
 WHERE name LIKE '%parallel_replicas%' AND vartype = 'enum';
SELECT name, short_desc, extra_desc
  FROM pg_settings
 WHERE name LIKE '%parallel_replicas%'
 ORDER BY name COLLATE "C" \gx

-- Spellings of the switch.
SHOW enable_parallel_replicas;
SET enable_parallel_replicas = 0;
SHOW enable_parallel_replicas;
SET enable_parallel_replicas = 1;
SHOW enable_parallel_replicas;
SET enable_parallel_replicas = 2;
SHOW enable_parallel_replicas;
SET enable_parallel_replicas = off;
SHOW enable_parallel_replicas;
SET enable_parallel_replicas = on;
SHOW enable_parallel_replicas;
SET enable_parallel_replicas = force;
SHOW enable_parallel_replicas;
SET enable_parallel_replicas = 'FORCE';
SHOW enable_parallel_replicas;
SET enable_parallel_replicas TO '2';
SHOW enable_parallel_replicas;
SET enable_parallel_replicas = true;
SHOW enable_parallel_replicas;
SET enable_parallel_replicas = false;
SHOW enable_parallel_replicas;
SELECT set_config('enable_parallel_replicas', '1', false);
SELECT current_setting('enable_parallel_replicas');
RESET enable_parallel_replicas;
SHOW enable_parallel_replicas;
SET enable_parallel_replicas = 1;
SET enable_parallel_replicas TO DEFAULT;
SHOW enable_parallel_replicas;

-- SET LOCAL, and what a rollback does.
BEGIN;
SET LOCAL enable_parallel_replicas = 2;
SHOW enable_parallel_replicas;
COMMIT;
SHOW enable_parallel_replicas;
BEGIN;
SET enable_parallel_replicas = 2;
SAVEPOINT a;
SET enable_parallel_replicas = 1;
ROLLBACK TO a;
SHOW enable_parallel_replicas;
ROLLBACK;
SHOW enable_parallel_replicas;

-- Values that are not accepted.
\set code '\\echo SQLSTATE :LAST_ERROR_SQLSTATE'
SET enable_parallel_replicas = 3;
:code
SET enable_parallel_replicas = -1;
SET enable_parallel_replicas = maybe;
SET enable_parallel_replicas = '';
SET max_parallel_replicas = -1;
SET max_parallel_replicas = 1001;
:code
SET max_parallel_replicas = many;
SET parallel_replicas_local_plan = 2;
:code
SET parallel_replicas_min_number_of_rows_per_replica = -1;
SET parallel_replicas.granule_blocks = 0;
SET parallel_replicas.granule_blocks = 131073;
SET parallel_replicas.links_per_replica = 0;
SET parallel_replicas.links_per_replica = 65;
SET parallel_replicas.connect_timeout = 0;
SET parallel_replicas.connect_timeout = '11min';
SET parallel_replicas.connect_timeout = '1 parsec';
SET parallel_replicas.replay_wait_timeout = '2h';
SET parallel_replicas.stall_timeout = '61min';
SET parallel_replicas.idle_link_timeout = '2d';
SET parallel_replicas.tuple_cost = -0.1;
SET parallel_replicas.setup_cost = -1;
-- The prefix is reserved.
SET parallel_replicas.no_such_setting = 1;
:code

-- Units.
SET parallel_replicas.granule_blocks = '2MB';
SHOW parallel_replicas.granule_blocks;
SET parallel_replicas.granule_blocks = 256;
SHOW parallel_replicas.granule_blocks;
SET parallel_replicas.connect_timeout = 1500;
SHOW parallel_replicas.connect_timeout;
SET parallel_replicas.connect_timeout = '2s';
SHOW parallel_replicas.connect_timeout;
SET parallel_replicas.replay_wait_timeout = '1min';
SHOW parallel_replicas.replay_wait_timeout;
SET parallel_replicas.stall_timeout = '1h';
SHOW parallel_replicas.stall_timeout;
SET parallel_replicas.idle_link_timeout = '1d';
SHOW parallel_replicas.idle_link_timeout;
SET parallel_replicas.idle_link_timeout = 0;
SHOW parallel_replicas.idle_link_timeout;
RESET ALL;

-- The limits themselves.
SET max_parallel_replicas = 0;
SET max_parallel_replicas = 1000;
SET parallel_replicas_min_number_of_rows_per_replica = 2147483647;
SET parallel_replicas.granule_blocks = 1;
SET parallel_replicas.granule_blocks = 131072;
SET parallel_replicas.links_per_replica = 1;
SET parallel_replicas.links_per_replica = 64;
SET parallel_replicas.connect_timeout = 1;
SET parallel_replicas.connect_timeout = '10min';
SET parallel_replicas.tuple_cost = 0;
SET cluster_for_parallel_replicas = '';
SET cluster_for_parallel_replicas = 'no such cluster';
SHOW cluster_for_parallel_replicas;
RESET ALL;
SHOW cluster_for_parallel_replicas;

-- A bare name in postgresql.conf would stop the server at its next start, because the file is read
-- before the library is loaded.  Therefore ALTER SYSTEM refuses it.
ALTER SYSTEM SET enable_parallel_replicas = 1;
:code
ALTER SYSTEM SET cluster_for_parallel_replicas = 'default';
ALTER SYSTEM SET max_parallel_replicas = 2;
ALTER SYSTEM SET parallel_replicas_local_plan = off;
ALTER SYSTEM SET parallel_replicas_min_number_of_rows_per_replica = 1000;
-- The other family may stand there.
ALTER SYSTEM SET parallel_replicas.tuple_cost = 0.25;
ALTER SYSTEM RESET parallel_replicas.tuple_cost;

-- Roles, databases and the connection string.
SELECT current_user AS superuser \gset
CREATE ROLE regress_settings LOGIN SUPERUSER;
ALTER ROLE regress_settings SET enable_parallel_replicas = 2;
ALTER ROLE regress_settings SET cluster_for_parallel_replicas = 'of the role';
ALTER ROLE regress_settings SET parallel_replicas.granule_blocks = '1MB';
ALTER ROLE regress_settings SET enable_parallel_replicas = 3;
SELECT unnest(setconfig) AS setting
  FROM pg_db_role_setting
 WHERE setrole = 'regress_settings'::regrole
 ORDER BY 1;
\c - regress_settings
SHOW enable_parallel_replicas;
SHOW cluster_for_parallel_replicas;
SHOW parallel_replicas.granule_blocks;
SELECT name, setting, source FROM pg_settings
 WHERE name IN ('enable_parallel_replicas', 'parallel_replicas.granule_blocks')
 ORDER BY name COLLATE "C";
\c - :superuser
SELECT current_database() AS database \gset
ALTER DATABASE :"database" SET max_parallel_replicas = 7;
ALTER DATABASE :"database" SET parallel_replicas_local_plan = off;
\c
SHOW max_parallel_replicas;
SHOW parallel_replicas_local_plan;
RESET max_parallel_replicas;
SHOW max_parallel_replicas;
ALTER DATABASE :"database" RESET max_parallel_replicas;
ALTER DATABASE :"database" RESET parallel_replicas_local_plan;
-- Stored for the role in this database only.
ALTER ROLE regress_settings IN DATABASE :"database" SET enable_parallel_replicas = 1;
\c - regress_settings
SHOW enable_parallel_replicas;
\c - :superuser
DROP ROLE regress_settings;
\c -reuse-previous=on "options='-c enable_parallel_replicas=2 -c max_parallel_replicas=1 -c parallel_replicas.connect_timeout=1s'"
SHOW enable_parallel_replicas;
SHOW max_parallel_replicas;
SHOW parallel_replicas.connect_timeout;
SELECT DISTINCT source FROM pg_settings
 WHERE name IN ('enable_parallel_replicas', 'max_parallel_replicas', 'parallel_replicas.connect_timeout');
\c -reuse-previous=on "options=''"
SHOW enable_parallel_replicas;

-- A function's own setting.
CREATE FUNCTION pg_temp.mode() RETURNS text LANGUAGE sql
    SET enable_parallel_replicas = 2 AS $$SELECT current_setting('enable_parallel_replicas')$$;
SELECT pg_temp.mode(), current_setting('enable_parallel_replicas');

-- EXPLAIN (SETTINGS) shows what differs from the default.
SET enable_parallel_replicas = 1;
SET max_parallel_replicas = 3;
SET parallel_replicas.setup_cost = 10;
EXPLAIN (COSTS OFF, SETTINGS) SELECT 1;
RESET ALL;
