-- The same relation on every server of a cluster.

CREATE FUNCTION parallel_replicas.cluster_all_replicas(
    cluster text,
    relation anyelement,
    OUT replica text,
    OUT hostname text,
    OUT "row" anyelement)
RETURNS SETOF record
LANGUAGE plpgsql
VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict error
DECLARE
    name text := (SELECT format('%I.%I', n.nspname, c.relname)
                    FROM pg_type t JOIN pg_class c ON c.oid = t.typrelid
                    JOIN pg_namespace n ON n.oid = c.relnamespace
                   WHERE t.oid = pg_typeof(cluster_all_replicas.relation)
                     AND c.relkind <> 'c');
BEGIN
    IF name IS NULL THEN
        RAISE EXCEPTION 'type % is not the row type of a table or view',
            pg_typeof(cluster_all_replicas.relation)
            USING ERRCODE = 'wrong_object_type',
                  HINT = 'Name the relation as a null value of its row type, such as '
                         'NULL::parallel_replicas.events.';
    END IF;
    -- A column may have the name of the alias, and would be meant by it alone.
    RETURN QUERY EXECUTE format(
        'SELECT %L::text, parallel_replicas.hostname(), (r.*)::%s FROM %s r', 'local', name, name);
    RETURN QUERY
        SELECT r.replica, r.hostname, r."row"
          FROM parallel_replicas.rows_of_replicas(
                   cluster_all_replicas.cluster, cluster_all_replicas.relation) r;
END
$function$;

COMMENT ON FUNCTION parallel_replicas.cluster_all_replicas(text, anyelement) IS
    'rows of a table or view on this server ("local") and on every replica of a cluster';

-- Everybody may execute rows_of_replicas, because cluster_all_replicas does it as the user. It checks
-- who may read what, and connecting who may use which server.

CREATE VIEW parallel_replicas.cluster_events AS
    SELECT a.replica, a.hostname, (a."row").*
      FROM parallel_replicas.cluster_all_replicas(
               current_setting('cluster_for_parallel_replicas', true),
               NULL::parallel_replicas.events) a;

COMMENT ON VIEW parallel_replicas.cluster_events IS
    'events of this server and of every replica of cluster_for_parallel_replicas';

CREATE VIEW parallel_replicas.cluster_running_fragments AS
    SELECT a.replica, a.hostname, (a."row").*
      FROM parallel_replicas.cluster_all_replicas(
               current_setting('cluster_for_parallel_replicas', true),
               NULL::parallel_replicas.running_fragments) a;

COMMENT ON VIEW parallel_replicas.cluster_running_fragments IS
    'running_fragments of this server and of every replica of cluster_for_parallel_replicas';

CREATE VIEW parallel_replicas.cluster_query_log AS
    SELECT a.replica, a.hostname, (a."row").*
      FROM parallel_replicas.cluster_all_replicas(
               current_setting('cluster_for_parallel_replicas', true),
               NULL::parallel_replicas.query_log) a;

COMMENT ON VIEW parallel_replicas.cluster_query_log IS
    'query_log of this server and of every replica of cluster_for_parallel_replicas';

GRANT SELECT ON
    parallel_replicas.cluster_events, parallel_replicas.cluster_running_fragments,
    parallel_replicas.cluster_query_log
TO PUBLIC;
