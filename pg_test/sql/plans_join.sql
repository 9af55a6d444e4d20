--
-- PLANS_JOIN: joins, subqueries, common table expressions and InitPlans
--
SET enable_parallel_replicas = 2;
SET max_parallel_workers_per_gather = 2;
EXPLAIN (COSTS OFF, VERBOSE) SELECT name, sum(val) FROM fact JOIN dim USING (grp) GROUP BY name;
EXPLAIN (COSTS OFF) SELECT count(*) FROM fact LEFT JOIN dim USING (grp);
EXPLAIN (COSTS OFF) SELECT count(*) FROM dim FULL JOIN fact USING (grp);
EXPLAIN (COSTS OFF) SELECT count(*) FROM fact WHERE grp IN (SELECT grp FROM dim WHERE name LIKE '%1');
EXPLAIN (COSTS OFF) SELECT count(*) FROM fact WHERE NOT EXISTS (SELECT FROM dim WHERE dim.grp = fact.grp);
SET enable_hashjoin = off;
SET enable_nestloop = off;
EXPLAIN (COSTS OFF) SELECT count(*) FROM fact JOIN dim USING (grp);
RESET enable_nestloop;
SET enable_mergejoin = off;
EXPLAIN (COSTS OFF) SELECT count(*) FROM fact JOIN dim USING (grp);
RESET enable_hashjoin;
RESET enable_mergejoin;
EXPLAIN (COSTS OFF) SELECT count(*) FROM part JOIN dim ON dim.grp = part.amount;
EXPLAIN (COSTS OFF) SELECT count(*) FROM fact a JOIN fact b USING (id);
SET enable_partitionwise_join = on;
EXPLAIN (COSTS OFF) SELECT count(*) FROM part a JOIN part b USING (region, id);
RESET enable_partitionwise_join;
-- Subqueries.
EXPLAIN (COSTS OFF) SELECT max(n) FROM (SELECT grp, count(*) AS n FROM fact GROUP BY grp) s;
EXPLAIN (COSTS OFF) SELECT * FROM dim JOIN (SELECT grp, count(*) AS n FROM fact GROUP BY grp) s USING (grp);
EXPLAIN (COSTS OFF) SELECT * FROM (SELECT id FROM fact ORDER BY id LIMIT 10) s WHERE id % 2 = 0;
EXPLAIN (COSTS OFF) SELECT grp, (SELECT count(*) FROM fact WHERE fact.grp = dim.grp) FROM dim;
-- Common table expressions.
EXPLAIN (COSTS OFF) WITH s AS (SELECT grp, count(*) AS n FROM fact GROUP BY grp) SELECT * FROM s WHERE n > 5;
EXPLAIN (COSTS OFF) WITH s AS MATERIALIZED (SELECT grp, count(*) AS n FROM fact GROUP BY grp) SELECT a.n, b.n FROM s a JOIN s b USING (grp);
EXPLAIN (COSTS OFF) WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r WHERE i < 3) SELECT count(*) FROM r JOIN fact ON fact.id = r.i;
-- InitPlans: their values are shipped.
EXPLAIN (COSTS OFF, VERBOSE) SELECT count(*) FROM fact WHERE val > (SELECT avg(val) FROM fact);
EXPLAIN (COSTS OFF) SELECT count(*) FROM fact WHERE grp = (SELECT min(grp) FROM dim) OR grp = ANY (ARRAY(SELECT amount FROM part));
-- Prepared statements: custom plans, then a generic one.
PREPARE q(integer, text) AS SELECT count(*) FROM fact WHERE grp > $1 AND txt >= $2;
SET plan_cache_mode = force_custom_plan;
EXPLAIN (COSTS OFF, VERBOSE) EXECUTE q(7, 'text 5');
EXECUTE q(7, 'text 5');
SET plan_cache_mode = force_generic_plan;
EXPLAIN (COSTS OFF, VERBOSE) EXECUTE q(7, 'text 5');
EXECUTE q(7, 'text 5');
EXECUTE q(98, 'text');
EXECUTE q(NULL, NULL);
SET enable_parallel_replicas = 0;
EXECUTE q(7, 'text 5');
EXECUTE q(98, 'text');
EXECUTE q(NULL, NULL);
