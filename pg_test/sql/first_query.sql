--
-- FIRST_QUERY: a session's first query reaches the replicas without waiting for a timeout
--
SET enable_parallel_replicas = 2;
SET parallel_replicas_local_plan = off;
SET parallel_replicas.connect_timeout = '10s';
DO $$
DECLARE
    plan json;
BEGIN
    EXECUTE 'EXPLAIN (ANALYZE, FORMAT JSON) SELECT count(*) FROM fact' INTO plan;
    RAISE NOTICE 'replicas used: %, in less than five seconds: %',
        (plan #>> '{0,Plan,Plans,0,Replicas Used}')::int > 0, (plan #>> '{0,Execution Time}')::numeric < 5000;
END$$;
