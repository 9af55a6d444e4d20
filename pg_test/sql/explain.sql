--
-- EXPLAIN: the four formats
--
SET enable_parallel_replicas = 2;
SET max_parallel_workers_per_gather = 2;
SET min_parallel_table_scan_size = 0;
EXPLAIN (COSTS OFF, FORMAT TEXT) SELECT grp, count(*) FROM fact GROUP BY grp;
EXPLAIN (COSTS OFF, FORMAT JSON) SELECT grp, count(*) FROM fact GROUP BY grp;
EXPLAIN (COSTS OFF, FORMAT YAML) SELECT grp, count(*) FROM fact GROUP BY grp;
EXPLAIN (COSTS OFF, FORMAT XML) SELECT grp, count(*) FROM fact GROUP BY grp;
EXPLAIN (COSTS OFF, VERBOSE, FORMAT JSON) SELECT id FROM fact ORDER BY val, id;
-- As regress has it, the plan is shown without replicas, and executed with them.
RESET enable_parallel_replicas;
SET parallel_replicas.debug_force = regress;
EXPLAIN (COSTS OFF) SELECT name, count(*) FROM fact JOIN dim USING (grp) GROUP BY name;
SET parallel_replicas.debug_force = off;
EXPLAIN (COSTS OFF) SELECT name, count(*) FROM fact JOIN dim USING (grp) GROUP BY name;
