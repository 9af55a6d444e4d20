-- What queries did and do, on this server.

CREATE VIEW parallel_replicas.events AS
    SELECT event, value, description, parallel_replicas.get_stats_reset() AS stats_reset
      FROM parallel_replicas.get_events();

COMMENT ON VIEW parallel_replicas.events IS
    'counters of this server since it started or reset_events() was called';

REVOKE ALL ON FUNCTION parallel_replicas.reset_events() FROM PUBLIC;

CREATE VIEW parallel_replicas.query_log AS
    SELECT q.query_id, q.status, d.datname AS database, r.rolname AS "user", q.pid, q.started,
           q.ended - q.started AS duration, q.statement_id, q.fragments, q.replicas_planned,
           q.replicas_used, q.workers_launched, q.granules, q.granules_own,
           q.granules_stolen_by_hash, q.granules_stolen_rest, q.granules_lost, q.rows, q.bytes,
           make_interval(secs => q.replay_wait_us / 1e6) AS replay_wait,
           make_interval(secs => q.wait_us / 1e6) AS wait,
           nullif(q.slots, 0) AS slots,
           CASE WHEN q.slots > 0 THEN make_interval(secs => q.pending_ms / 1e3) END AS pending,
           q.reason, q.reason_text, q.settings, q.query
      FROM parallel_replicas.get_query_log() q
      LEFT JOIN pg_catalog.pg_database d ON d.oid = q.database
      LEFT JOIN pg_catalog.pg_roles r ON r.oid = q."user";

COMMENT ON VIEW parallel_replicas.query_log IS
    'the last queries that this server executed over replicas, or could have';

CREATE VIEW parallel_replicas.text_log AS
    SELECT t.event_time, t.query_id, d.datname AS database, r.rolname AS "user", t.pid, t.level,
           t.fragment, t.process, t.replica, t.event, t.stage, t.task, t.first_granule, t.granules,
           t.message
      FROM parallel_replicas.get_text_log(NULL) t
      LEFT JOIN pg_catalog.pg_database d ON d.oid = t.database
      LEFT JOIN pg_catalog.pg_roles r ON r.oid = t."user";

COMMENT ON VIEW parallel_replicas.text_log IS
    'the last steps of queries, as parallel_replicas.log_level wanted them';

CREATE VIEW parallel_replicas.query_progress AS
    SELECT q.query_id, d.datname AS database, r.rolname AS "user", q.pid, q.started,
           q.granules_selected, q.granules_done,
           round(100.0 * q.granules_done / nullif(q.granules_selected, 0), 1) AS percent, q.query
      FROM parallel_replicas.get_query_progress() q
      LEFT JOIN pg_catalog.pg_database d ON d.oid = q.database
      LEFT JOIN pg_catalog.pg_roles r ON r.oid = q."user";

COMMENT ON VIEW parallel_replicas.query_progress IS
    'queries that this server executes over replicas now, with their progress';

CREATE VIEW parallel_replicas.running_fragments AS
    SELECT f.query_id, d.datname AS database, r.rolname AS "user", f.pid, f.started, f.phase,
           f.granules_read
      FROM parallel_replicas.get_running_fragments() f
      LEFT JOIN pg_catalog.pg_database d ON d.oid = f.database
      LEFT JOIN pg_catalog.pg_roles r ON r.oid = f."user";

COMMENT ON VIEW parallel_replicas.running_fragments IS
    'fragments of queries that this server executes for others now';

GRANT SELECT ON
    parallel_replicas.events,
    parallel_replicas.query_log, parallel_replicas.text_log, parallel_replicas.query_progress,
    parallel_replicas.running_fragments
TO PUBLIC;
