--
-- HARMLESS_DML: with 2, writing works as ever
--
SET enable_parallel_replicas = 2;
SET client_min_messages = warning;
CREATE SCHEMA dml;
SET search_path = dml, public;
CREATE TABLE parent (id integer PRIMARY KEY, note text);
CREATE TABLE child (id integer PRIMARY KEY, parent integer REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE, n bigint);

INSERT INTO parent VALUES (1, 'one'), (2, 'two');
INSERT INTO parent SELECT grp + 10, name FROM dim WHERE grp < 5;
INSERT INTO parent SELECT 100 + max(grp), 'most' FROM fact RETURNING *;
INSERT INTO parent VALUES (1, 'again') ON CONFLICT (id) DO UPDATE SET note = excluded.note || (SELECT count(*) FROM dim) RETURNING id, note;
INSERT INTO child SELECT p.id, p.id, (SELECT count(*) FROM fact WHERE grp = p.id) FROM parent p RETURNING *;
INSERT INTO child VALUES (1000, 77, 0);
UPDATE parent SET note = (SELECT max(name) FROM dim WHERE dim.grp = parent.id) WHERE id < 10 RETURNING *;
UPDATE child SET n = n + s.many FROM (SELECT grp, count(*) AS many FROM fact GROUP BY grp) s WHERE s.grp = child.id;
UPDATE parent SET id = id + 1000 WHERE id = (SELECT min(id) FROM parent) RETURNING id;
DELETE FROM parent USING dim WHERE dim.grp + 10 = parent.id AND dim.grp IN (SELECT grp FROM fact WHERE id BETWEEN 1 AND 3) RETURNING parent.id, name;
DELETE FROM child WHERE n = (SELECT max(n) FROM child) AND false;
MERGE INTO parent USING (SELECT grp, count(*) AS n FROM fact WHERE grp < 3 GROUP BY grp) s ON s.grp = parent.id
  WHEN MATCHED THEN UPDATE SET note = 'merged ' || s.n
  WHEN NOT MATCHED THEN INSERT VALUES (s.grp, 'new ' || s.n);
WITH moved AS (DELETE FROM parent WHERE note LIKE 'new%' RETURNING *)
SELECT count(*) FROM moved, fact WHERE fact.grp = moved.id;
WITH added AS (INSERT INTO parent SELECT 500, 'w' || count(*) FROM fact RETURNING *)
SELECT * FROM added;
SELECT id FROM parent WHERE id < 100 ORDER BY id FOR UPDATE;
BEGIN;
UPDATE parent SET note = 'x' WHERE id = 2;
SAVEPOINT s;
DELETE FROM parent WHERE id IN (SELECT id FROM fact);
ROLLBACK TO s;
COMMIT;
UPDATE part SET region = 'south' WHERE id = 4;
UPDATE part SET region = 'north' WHERE id = 4;
SET enable_parallel_replicas = 0;
TABLE parent ORDER BY id;
TABLE child ORDER BY id;
SET enable_parallel_replicas = 2;

-- COPY
COPY (SELECT grp, count(*), sum(id) FROM fact WHERE grp < 3 GROUP BY grp ORDER BY grp) TO STDOUT;
COPY parent TO STDOUT (FORMAT csv, HEADER);
COPY fact TO '/dev/null';
COPY (SELECT * FROM fact) TO '/dev/null' (FORMAT binary);
\copy (SELECT count(*) FROM fact) TO STDOUT
COPY child FROM STDIN;
2000	2	1
2001	2	2
\.
COPY child FROM STDIN WHERE id > 3000;
2500	2	1
3001	2	2
\.
SELECT count(*) FROM child WHERE id >= 2000;
RESET enable_parallel_replicas;
DROP SCHEMA dml CASCADE;
