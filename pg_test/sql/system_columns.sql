--
-- SYSTEM_COLUMNS: command ids are not in the WAL, so a standby does not know them
--
CREATE TABLE commands (i integer, t text);
BEGIN;
INSERT INTO commands SELECT i, 'a' FROM generate_series(1, 100) i;
INSERT INTO commands SELECT i, 'b' FROM generate_series(1, 100) i;
COMMIT;
SELECT cmin, cmax, count(*) FROM commands GROUP BY cmin, cmax ORDER BY cmin;
SET enable_parallel_replicas = 2;
SET parallel_replicas_local_plan = off;
SELECT cmin, cmax, count(*) FROM commands GROUP BY cmin, cmax ORDER BY cmin;
DROP TABLE commands;
