--
-- EXTENSION: its objects and who may use them
--
SELECT extname, extversion, nspname, extrelocatable, extconfig::regclass[]
  FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
 WHERE extname = 'parallel_replicas';

-- As \dx+ lists them.
SELECT pg_describe_object(classid, objid, 0) AS "Object description"
  FROM pg_depend
 WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
   AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'parallel_replicas')
 ORDER BY pg_describe_object(classid, objid, 0) COLLATE "C";

-- Every function: its properties, and whether everybody may execute it.
SELECT p.oid::regprocedure AS function, prokind, provolatile AS volatile, proparallel AS parallel,
       proisstrict AS strict, prosecdef AS definer, proretset AS set, proconfig AS settings,
       has_function_privilege('public', p.oid, 'EXECUTE') AS public
  FROM pg_proc p
 WHERE pronamespace = 'parallel_replicas'::regnamespace
 ORDER BY p.oid::regprocedure::text COLLATE "C";

-- Every relation, and whether everybody may read or write it.
SELECT relname, relkind,
       has_table_privilege('public', oid, 'SELECT') AS "select",
       has_table_privilege('public', oid, 'INSERT, UPDATE, DELETE, TRUNCATE') AS write
  FROM pg_class
 WHERE relnamespace = 'parallel_replicas'::regnamespace AND relkind IN ('r', 'v')
 ORDER BY relname COLLATE "C";
SELECT has_schema_privilege('public', 'parallel_replicas', 'USAGE') AS usage,
       has_schema_privilege('public', 'parallel_replicas', 'CREATE') AS "create";
SELECT fdwname, fdwhandler = 0 AS "no handler", fdwvalidator::regproc, fdwacl
  FROM pg_foreign_data_wrapper WHERE fdwname = 'parallel_replicas';
SELECT rolname, rolcanlogin, rolsuper, rolinherit
  FROM pg_roles WHERE rolname LIKE 'parallel_replicas%';
SELECT pg_get_userbyid(grantee) AS grantee, privilege_type
  FROM pg_proc, aclexplode(proacl)
 WHERE oid = 'parallel_replicas.serve'::regproc AND grantee <> proowner
 ORDER BY 1;

-- The secret: one row, long enough, and not for dumps.
SELECT count(*) AS rows, min(length(secret)) >= 32 AS "long enough" FROM parallel_replicas.secret;
INSERT INTO parallel_replicas.secret (secret) VALUES (repeat('x', 32)::bytea);
INSERT INTO parallel_replicas.secret (secret, only_row) VALUES (repeat('x', 32)::bytea, false);
UPDATE parallel_replicas.secret SET secret = 'short';

-- An ordinary user.
CREATE ROLE regress_user;
SET ROLE regress_user;
\set code '\\echo SQLSTATE :LAST_ERROR_SQLSTATE'
CALL parallel_replicas.serve('\x00');
:code
SELECT * FROM parallel_replicas.secret;
:code
SELECT parallel_replicas.add_replica('mine', 'localhost', 5432);
SELECT parallel_replicas.remove_replica('standby1');
CREATE SERVER mine FOREIGN DATA WRAPPER parallel_replicas OPTIONS (host 'localhost');
SELECT parallel_replicas.fdw_validator('{}', 'pg_foreign_server'::regclass);
CREATE TABLE parallel_replicas.mine (i integer);
SELECT count(*) > 0 AS "may read" FROM parallel_replicas.events;
SELECT parallel_replicas.hostname() <> '' AS "may call";
RESET ROLE;
DROP ROLE regress_user;

-- serve(bytea) cannot be called where a transaction block is open.
BEGIN;
CALL parallel_replicas.serve('\x00');
:code
ROLLBACK;

-- The counters: names, and that they do not move backwards.
SELECT event, description, value >= 0 AS valid FROM parallel_replicas.events;
SELECT parallel_replicas.hostname() = rtrim(pg_read_file('/proc/sys/kernel/hostname', 0, 1000), E'\n') AS hostname;

-- This server says who it is.
SELECT system_identifier = (SELECT s.system_identifier::text FROM pg_control_system() s) AS system,
       timeline = (SELECT timeline_id FROM pg_control_checkpoint()) AS timeline,
       in_recovery,
       server_version_num = current_setting('server_version_num')::integer AS version,
       extension_version = (SELECT extversion FROM pg_extension WHERE extname = 'parallel_replicas') AS extension,
       length(build_id) > 0 AS build, preloaded, replay_lsn,
       instance_id ~ '^[0-9a-f]{32}$' AS instance
  FROM parallel_replicas.server_identity();

-- It cannot go elsewhere, and be made but once.
CREATE EXTENSION parallel_replicas;
ALTER EXTENSION parallel_replicas SET SCHEMA public;
