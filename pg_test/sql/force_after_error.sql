--
-- FORCE_AFTER_ERROR: 2 still means what it says after an error in DDL
--
SET enable_parallel_replicas = 2;
CREATE TABLE never AS SELECT 1 / 0 AS i;
EXPLAIN (COSTS OFF) SELECT count(*) FROM dim;
SET max_parallel_replicas = 0;
SELECT count(*) FROM dim;
DO $$BEGIN
    CREATE TABLE never AS SELECT 1 / 0 AS i;
EXCEPTION WHEN division_by_zero THEN
    PERFORM count(*) FROM dim;
END$$;
