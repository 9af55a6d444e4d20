--
-- PLANS_OFF: with 0, and without a replica, plans are PostgreSQL's own
--
CREATE FUNCTION plan_of(query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    line text;
    plan text := '';
BEGIN
    FOR line IN EXECUTE 'EXPLAIN (VERBOSE) ' || query LOOP
        plan := plan || line || E'\n';
    END LOOP;
    RETURN plan;
END$$;
CREATE FUNCTION same_plan(query text, OUT same boolean, OUT parallel boolean) LANGUAGE plpgsql AS $$
DECLARE
    core text;
BEGIN
    PERFORM set_config('enable_parallel_replicas', '0', true);
    core := plan_of(query);
    parallel := core LIKE '%Gather%';
    PERFORM set_config('enable_parallel_replicas', '1', true);
    PERFORM set_config('cluster_for_parallel_replicas', 'nosuch', true);
    same := core = plan_of(query);
    PERFORM set_config('cluster_for_parallel_replicas', 'default', true);
    -- A query that replicas would only make slower.
    PERFORM set_config('parallel_replicas.setup_cost', '1e12', true);
    same := same AND core = regexp_replace(plan_of(query), '\nParallel Replicas: .*\n$', E'\n');
END$$;
CREATE TABLE queries (query text);
INSERT INTO queries VALUES
    ('SELECT * FROM fact'),
    ('SELECT count(*) FROM fact'),
    ('SELECT grp, sum(val) FROM fact GROUP BY grp ORDER BY grp'),
    ('SELECT id FROM fact ORDER BY val LIMIT 3'),
    ('SELECT DISTINCT day FROM fact'),
    ('SELECT name, sum(val) FROM fact JOIN dim USING (grp) GROUP BY name'),
    ('SELECT count(*) FROM fact a JOIN fact b USING (id)'),
    ('SELECT region, count(*) FROM part GROUP BY region'),
    ('SELECT count(*) FROM fact WHERE val > (SELECT avg(val) FROM fact)'),
    ('WITH s AS MATERIALIZED (SELECT grp, count(*) AS n FROM fact GROUP BY grp) SELECT a.n FROM s a JOIN s b USING (grp)'),
    ('SELECT id FROM fact UNION SELECT grp FROM dim'),
    ('SELECT grp, (SELECT count(*) FROM fact WHERE fact.grp = dim.grp) FROM dim'),
    ('SELECT count(*) FROM fact WHERE random() < 2'),
    ('SELECT count(*) FROM pg_class');
SELECT query, (same_plan(query)).* FROM queries;
-- The same where PostgreSQL plans parallel, too.
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET min_parallel_index_scan_size = 0;
SELECT query, (same_plan(query)).* FROM queries;
SET parallel_leader_participation = off;
SELECT bool_and(s.same) FROM queries, same_plan(query) s;
SET enable_partitionwise_aggregate = on;
SET enable_partitionwise_join = on;
SELECT bool_and(s.same) FROM queries, same_plan(query) s;
DROP TABLE queries;
DROP FUNCTION plan_of, same_plan;
