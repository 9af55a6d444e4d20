-- What the monitor knows about replicas.

CREATE VIEW parallel_replicas.replicas AS
    SELECT cluster, name, host, port, priority, weight, is_local, reachable,
           CASE WHEN in_recovery THEN 'standby' WHEN NOT in_recovery THEN 'primary' END AS role,
           timeline, replay_lsn, lag_bytes, lag_ms, cpu_permille, memory_used, memory_limit,
           running_fragments, server_version_num, probed_at, answered_at,
           errors_count, slowdowns_count, estimated_recovery_time, last_error, last_error_at,
           usable, reason
      FROM parallel_replicas.get_replicas();

COMMENT ON VIEW parallel_replicas.replicas IS
    'the replicas that this database defines, as this server sees them';

GRANT SELECT ON parallel_replicas.replicas TO PUBLIC;

COMMENT ON FUNCTION parallel_replicas.server_state() IS
    'state of this server, for the monitors of others';

-- How busy a server is concerns those who look after it, and the accounts of monitors.
REVOKE ALL ON FUNCTION parallel_replicas.server_state() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION parallel_replicas.server_state() TO parallel_replicas_link, pg_monitor;

COMMENT ON FUNCTION parallel_replicas.replica_for_tag(text, text) IS
    'name of the replica that queries with this tag go to';

COMMENT ON FUNCTION parallel_replicas.preferred_replicas(text) IS
    'names of the replicas that can be used, in the order in which a query would prefer them';
