--
-- SYSTEM_COLUMNS: command ids are not in the WAL, so a standby does not know them
--
CREATE TABLE commands (i integer, t text);
BEGIN;
INSERT INTO commands SELECT i, 'a' FROM generate_series(1, 100) i;
INSERT INTO commands SELECT i, 'b' FROM generate_series(1, 100) i;
COMMIT;
SELECT cmin::text, cmax::text, count(*) FROM commands GROUP BY 1, 2 ORDER BY 1;
SET enable_parallel_replicas = 2;
SET parallel_replicas_local_plan = off;
SELECT cmin::text, cmax::text, count(*) FROM commands GROUP BY 1, 2 ORDER BY 1;
DROP TABLE commands;
