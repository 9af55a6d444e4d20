--
-- PLANS: where ParallelReplicas stands, under enable_parallel_replicas = 2
--
SET enable_parallel_replicas = 2;
SET max_parallel_workers_per_gather = 2;
-- Scans.
EXPLAIN (COSTS OFF, VERBOSE) SELECT * FROM fact;
EXPLAIN (COSTS OFF, VERBOSE) SELECT id, lower(txt) FROM fact WHERE grp = 5 AND txt LIKE 'text 1%';
EXPLAIN (COSTS OFF) SELECT * FROM fact WHERE id = 17;
-- Aggregates.
EXPLAIN (COSTS OFF, VERBOSE) SELECT count(*) FROM fact;
EXPLAIN (COSTS OFF, VERBOSE) SELECT grp, count(*), sum(val), avg(id), min(txt), max(day) FROM fact GROUP BY grp;
EXPLAIN (COSTS OFF) SELECT grp, count(*) FROM fact GROUP BY grp HAVING count(*) > 10 ORDER BY grp;
EXPLAIN (COSTS OFF) SELECT DISTINCT grp FROM fact;
EXPLAIN (COSTS OFF) SELECT count(DISTINCT grp) FROM fact;
EXPLAIN (COSTS OFF) SELECT grp, day, count(*) FROM fact GROUP BY GROUPING SETS ((grp), (day), ());
EXPLAIN (COSTS OFF) SELECT string_agg(txt, ',' ORDER BY id) FROM fact;
EXPLAIN (COSTS OFF) SELECT sum(val) FILTER (WHERE grp > 50) FROM fact;
SET enable_hashagg = off;
EXPLAIN (COSTS OFF) SELECT grp, count(*) FROM fact GROUP BY grp;
RESET enable_hashagg;
-- Ordered output is merged.
EXPLAIN (COSTS OFF, VERBOSE) SELECT id, txt FROM fact ORDER BY txt DESC NULLS LAST, id;
EXPLAIN (COSTS OFF) SELECT id FROM fact ORDER BY val LIMIT 3;
EXPLAIN (COSTS OFF) SELECT id FROM fact LIMIT 3;
EXPLAIN (COSTS OFF) SELECT id FROM fact ORDER BY id FETCH FIRST 2 ROWS WITH TIES;
-- Window functions.
EXPLAIN (COSTS OFF) SELECT id, rank() OVER (PARTITION BY grp ORDER BY val) FROM fact;
-- Set operations.
EXPLAIN (COSTS OFF) SELECT id FROM fact UNION ALL SELECT grp FROM dim;
EXPLAIN (COSTS OFF) SELECT id FROM fact EXCEPT SELECT grp FROM dim;
-- Partitions.
EXPLAIN (COSTS OFF, VERBOSE) SELECT count(*), sum(amount) FROM part;
EXPLAIN (COSTS OFF) SELECT count(*) FROM part WHERE region = 'north';
EXPLAIN (COSTS OFF) SELECT region, count(*) FROM part WHERE region IN ('north', 'south') GROUP BY region ORDER BY region;
SET enable_partitionwise_aggregate = on;
EXPLAIN (COSTS OFF) SELECT region, count(*) FROM part GROUP BY region;
RESET enable_partitionwise_aggregate;
-- Without a share for this server, and with fewer replicas.
SET parallel_replicas_local_plan = off;
EXPLAIN (COSTS OFF) SELECT count(*) FROM fact;
RESET parallel_replicas_local_plan;
SET max_parallel_replicas = 1;
EXPLAIN (COSTS OFF) SELECT count(*) FROM fact;
RESET max_parallel_replicas;
SET max_parallel_workers_per_gather = 0;
EXPLAIN (COSTS OFF) SELECT count(*) FROM fact;
SET max_parallel_workers_per_gather = 2;
SET min_parallel_table_scan_size = 0;
EXPLAIN (COSTS OFF) SELECT count(*) FROM fact;
