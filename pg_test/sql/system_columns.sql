--
-- SYSTEM_COLUMNS: command ids are not in the WAL, so a standby does not know them
--
CREATE TABLE commands (i integer, t text);
BEGIN;
INSERT INTO commands SELECT i, 'a' FROM generate_series(1, 20000) i;
INSERT INTO commands SELECT i, 'b' FROM generate_series(1, 20000) i;
COMMIT;
ANALYZE commands;
SELECT cmin::text, cmax::text, count(*) FROM commands GROUP BY 1, 2 ORDER BY 1;
SET enable_parallel_replicas = 1;
SET parallel_replicas_local_plan = off;
SET parallel_replicas.setup_cost = 0;
SET parallel_replicas.tuple_cost = 0;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SELECT count(*) FROM commands;
SELECT cmin::text, cmax::text, count(*) FROM commands GROUP BY 1, 2 ORDER BY 1;
DROP TABLE commands;
