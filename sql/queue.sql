-- The query queue: views, and functions for resource groups.

CREATE VIEW parallel_replicas.running_queries AS
    SELECT q.query_id, q.pid, pg_get_userbyid(q.user_oid) AS usename, d.datname,
           q.resource_group, q.start_time, q.pending_timeout, q.query_timeout,
           q.state, q.slots, q.processes, q.position, q.wait_ms,
           q.admitted_by, q.blocked_reason, q.estimated_cost, q.cpu_ms
      FROM parallel_replicas.get_running_queries() q
      LEFT JOIN pg_database d ON d.oid = q.database_oid;

COMMENT ON VIEW parallel_replicas.running_queries IS
    'statements that hold slots of the query queue or wait for them';

CREATE VIEW parallel_replicas.query_queue AS
    SELECT metric, value, description FROM parallel_replicas.get_query_queue();

COMMENT ON VIEW parallel_replicas.query_queue IS
    'state of the query queue, and its counters since the server started';

CREATE VIEW parallel_replicas.query_queue_classes AS
    SELECT class, weight, state, pending, running, admitted
      FROM parallel_replicas.get_query_queue_classes();

COMMENT ON VIEW parallel_replicas.query_queue_classes IS
    'the query queue by size of statements, 0 the smallest';

GRANT SELECT ON
    parallel_replicas.running_queries,
    parallel_replicas.query_queue,
    parallel_replicas.query_queue_classes
TO PUBLIC;

-- Resource groups. Sessions belong to the one that parallel_replicas.resource_group names.

CREATE TABLE parallel_replicas.resource_group (
    name name PRIMARY KEY,
    concurrency_limit integer NOT NULL CHECK (concurrency_limit >= 0),
    max_cpu_cores double precision NOT NULL CHECK (max_cpu_cores >= 0 AND max_cpu_cores < 'Infinity'),
    mem_used_pct_limit double precision NOT NULL
        CHECK (mem_used_pct_limit >= 0 AND mem_used_pct_limit <= 1)
);

COMMENT ON TABLE parallel_replicas.resource_group IS
    'definitions of resource groups; write them with the functions only';

SELECT pg_catalog.pg_extension_config_dump('parallel_replicas.resource_group', '');

CREATE FUNCTION parallel_replicas.create_resource_group(
    name text,
    concurrency_limit integer DEFAULT 0,
    max_cpu_cores double precision DEFAULT 0,
    mem_used_pct_limit double precision DEFAULT 0)
RETURNS void
LANGUAGE plpgsql
VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict error
BEGIN
    IF EXISTS (SELECT FROM parallel_replicas.resource_group g WHERE g.name = create_resource_group.name)
    THEN
        RAISE EXCEPTION 'resource group "%" already exists', create_resource_group.name
            USING ERRCODE = 'duplicate_object',
                  HINT = 'Change it with alter_resource_group.';
    END IF;
    -- First, because it also checks name and limits.
    PERFORM parallel_replicas.resource_group_changed(
        create_resource_group.name, create_resource_group.concurrency_limit,
        create_resource_group.max_cpu_cores, create_resource_group.mem_used_pct_limit, false);
    INSERT INTO parallel_replicas.resource_group
    VALUES (create_resource_group.name, create_resource_group.concurrency_limit,
            create_resource_group.max_cpu_cores, create_resource_group.mem_used_pct_limit);
END
$function$;

COMMENT ON FUNCTION parallel_replicas.create_resource_group(
    text, integer, double precision, double precision) IS
    'defines a resource group; a limit of 0 is none';

CREATE FUNCTION parallel_replicas.alter_resource_group(
    name text,
    concurrency_limit integer DEFAULT NULL,
    max_cpu_cores double precision DEFAULT NULL,
    mem_used_pct_limit double precision DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql
VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict error
DECLARE
    changed parallel_replicas.resource_group;
BEGIN
    SELECT g.name,
           coalesce(alter_resource_group.concurrency_limit, g.concurrency_limit),
           coalesce(alter_resource_group.max_cpu_cores, g.max_cpu_cores),
           coalesce(alter_resource_group.mem_used_pct_limit, g.mem_used_pct_limit)
      INTO changed
      FROM parallel_replicas.resource_group g
     WHERE g.name = alter_resource_group.name
       FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'resource group "%" does not exist', alter_resource_group.name
            USING ERRCODE = 'undefined_object',
                  HINT = 'parallel_replicas.resource_groups lists them.';
    END IF;
    -- First, because it also checks the limits.
    PERFORM parallel_replicas.resource_group_changed(
        changed.name::text, changed.concurrency_limit, changed.max_cpu_cores,
        changed.mem_used_pct_limit, false);
    UPDATE parallel_replicas.resource_group g
       SET concurrency_limit = changed.concurrency_limit,
           max_cpu_cores = changed.max_cpu_cores,
           mem_used_pct_limit = changed.mem_used_pct_limit
     WHERE g.name = changed.name;
END
$function$;

COMMENT ON FUNCTION parallel_replicas.alter_resource_group(
    text, integer, double precision, double precision) IS
    'changes the limits that are not null, also for statements that wait';

CREATE FUNCTION parallel_replicas.drop_resource_group(name text)
RETURNS void
LANGUAGE plpgsql
VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict error
BEGIN
    DELETE FROM parallel_replicas.resource_group g WHERE g.name = drop_resource_group.name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'resource group "%" does not exist', drop_resource_group.name
            USING ERRCODE = 'undefined_object',
                  HINT = 'parallel_replicas.resource_groups lists them.';
    END IF;
    PERFORM parallel_replicas.resource_group_changed(drop_resource_group.name, 0, 0, 0, true);
END
$function$;

COMMENT ON FUNCTION parallel_replicas.drop_resource_group(text) IS
    'removes a resource group; statements in it are not limited by it any more';

REVOKE ALL ON FUNCTION
    parallel_replicas.resource_group_changed(
        text, integer, double precision, double precision, boolean),
    parallel_replicas.create_resource_group(text, integer, double precision, double precision),
    parallel_replicas.alter_resource_group(text, integer, double precision, double precision),
    parallel_replicas.drop_resource_group(text)
FROM PUBLIC;

CREATE VIEW parallel_replicas.resource_groups AS
    SELECT g.name, g.concurrency_limit, g.max_cpu_cores, g.mem_used_pct_limit,
           coalesce(u.running, 0) AS running, coalesce(u.pending, 0) AS pending,
           coalesce(u.total, 0) AS total, coalesce(u.timeouts, 0) AS timeouts,
           coalesce(u.cpu_cores, 0) AS cpu_cores, coalesce(u.mem_bytes, 0) AS mem_bytes,
           coalesce(u.cpu_ms, 0) AS cpu_ms,
           coalesce(u.overloaded, false) AS overloaded
      FROM parallel_replicas.resource_group g
      LEFT JOIN parallel_replicas.get_resource_groups() u ON u.name = g.name::text;

COMMENT ON VIEW parallel_replicas.resource_groups IS
    'resource groups of this database, their limits, and what they use';

GRANT SELECT ON parallel_replicas.resource_groups TO PUBLIC;
