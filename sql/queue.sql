-- The query queue: views, and functions for resource groups.

CREATE VIEW parallel_replicas.running_queries AS
    SELECT q.query_id, q.pid, pg_get_userbyid(q.user_oid) AS usename, d.datname,
           q.resource_group, q.start_time, q.pending_timeout, q.query_timeout,
           q.state, q.slots, q.processes, q.position, q.wait_ms,
           q.admitted_by, q.blocked_reason, q.estimated_cost
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
