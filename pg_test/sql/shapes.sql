--
-- SHAPES: tables of odd shapes give the same answer from one server and from all
--
SET max_parallel_workers_per_gather = 2;
SET min_parallel_table_scan_size = 0;
CREATE SCHEMA shapes;
SET search_path = shapes, public;
CREATE TABLE queries (n serial, query text);

-- Sizes.
CREATE TABLE empty (i integer, t text);
CREATE TABLE one_row AS SELECT 1 AS i, 'one' AS t;
CREATE TABLE one_block AS SELECT i, 't' || i AS t FROM generate_series(1, 50) i;
CREATE TABLE all_deleted AS SELECT i FROM generate_series(1, 5000) i;
DELETE FROM all_deleted;
CREATE TABLE truncated AS SELECT i FROM generate_series(1, 5000) i;
TRUNCATE truncated;
INSERT INTO truncated VALUES (1), (2);
CREATE TABLE shrunk AS SELECT i FROM generate_series(1, 5000) i;
DELETE FROM shrunk WHERE i > 300;
VACUUM shrunk;
CREATE TABLE holes AS SELECT i FROM generate_series(1, 5000) i;
DELETE FROM holes WHERE i BETWEEN 1000 AND 4000;
VACUUM (TRUNCATE off) holes;
CREATE TABLE updated AS SELECT i, 0 AS version FROM generate_series(1, 2000) i;
UPDATE updated SET version = version + 1;
UPDATE updated SET version = version + 1 WHERE i % 3 = 0;
INSERT INTO queries (query) SELECT format(q, t)
  FROM unnest('{empty,one_row,one_block,all_deleted,truncated,shrunk,holes,updated}'::text[]) WITH ORDINALITY t(t, n),
       unnest(ARRAY['SELECT * FROM %s', 'SELECT count(*), sum(i) FROM %s', 'SELECT i, count(*) FROM %s GROUP BY i ORDER BY i LIMIT 5']) WITH ORDINALITY q(q, m)
 ORDER BY n, m;
SELECT query, c.* FROM queries, compare(query) c ORDER BY n;
TRUNCATE queries;

-- Columns.
CREATE TABLE dropped (a integer, b text, c numeric, d date);
INSERT INTO dropped SELECT i, 'b' || i, i / 3.0, DATE '2024-01-01' + i FROM generate_series(1, 500) i;
ALTER TABLE dropped DROP COLUMN b;
INSERT INTO dropped SELECT i, i / 3.0, NULL FROM generate_series(501, 1000) i;
ALTER TABLE dropped ADD COLUMN e integer DEFAULT 42;
ALTER TABLE dropped ADD COLUMN f text;
ALTER TABLE dropped DROP COLUMN a;
INSERT INTO dropped SELECT i, NULL, i, 'f' || i FROM generate_series(1, 500) i;
CREATE TABLE generated (a integer, b integer GENERATED ALWAYS AS (a * 2) STORED, c integer GENERATED ALWAYS AS IDENTITY);
INSERT INTO generated (a) SELECT * FROM generate_series(1, 1000);
CREATE TABLE no_columns ();
INSERT INTO no_columns SELECT FROM generate_series(1, 1000);
CREATE TABLE all_dropped (a integer);
INSERT INTO all_dropped SELECT * FROM generate_series(1, 1000);
ALTER TABLE all_dropped DROP COLUMN a;
CREATE TABLE nulls (a integer, b text, c numeric);
INSERT INTO nulls SELECT NULLIF(i % 3, 0), NULLIF('b' || i % 5, 'b0'), NULL FROM generate_series(1, 1000) i;
DO $$BEGIN
    EXECUTE 'CREATE TABLE wide (' || (SELECT string_agg(format('c%s integer', i), ', ') FROM generate_series(1, 1200) i) || ')';
    EXECUTE 'INSERT INTO wide (c1, c600, c1200) SELECT i, i * 2, i * 3 FROM generate_series(1, 300) i';
    EXECUTE 'CREATE TABLE wide_full (' || (SELECT string_agg(format('c%s integer DEFAULT %s', i, i), ', ') FROM generate_series(1, 800) i) || ')';
    EXECUTE 'INSERT INTO wide_full (c1) SELECT i FROM generate_series(1, 100) i';
END$$;
INSERT INTO queries (query) VALUES
    ('SELECT * FROM dropped'),
    ('SELECT e, f, count(*), sum(c), max(d) FROM dropped GROUP BY e, f'),
    ('SELECT dropped FROM dropped'),
    ('SELECT * FROM generated'),
    ('SELECT sum(a), sum(b), max(c) FROM generated'),
    ('SELECT * FROM no_columns'),
    ('SELECT count(*) FROM no_columns'),
    ('SELECT 1 AS one FROM no_columns'),
    ('SELECT * FROM all_dropped'),
    ('SELECT FROM fact'),
    ('SELECT FROM fact WHERE id < 100'),
    ('SELECT count(*) FROM (SELECT FROM fact) s'),
    ('SELECT * FROM nulls'),
    ('SELECT a, b, c, count(*), count(c), sum(c) FROM nulls GROUP BY a, b, c'),
    ('SELECT a, b FROM nulls ORDER BY a NULLS FIRST, b DESC NULLS LAST'),
    ('SELECT DISTINCT a, c FROM nulls'),
    ('SELECT max(c), min(b), bool_and(a IS NULL) FROM nulls'),
    ('SELECT * FROM wide'),
    ('SELECT sum(c1), sum(c600), sum(c1200), count(c2) FROM wide'),
    ('SELECT * FROM wide_full'),
    ('SELECT c1, c800 FROM wide_full ORDER BY c1');
SELECT query, c.* FROM queries, compare(query) c ORDER BY n;
TRUNCATE queries;
-- System columns.
INSERT INTO queries (query) VALUES
    ('SELECT ctid, i FROM one_block'),
    ('SELECT tableoid::regclass, count(*) FROM part GROUP BY 1'),
    ('SELECT tableoid, id FROM part'),
    ('SELECT xmin, xmax, i FROM one_block'),
    ('SELECT count(*) FROM one_block WHERE ctid > ''(0,10)'''),
    ('SELECT i FROM one_block WHERE ctid = ''(0,10)''');
SELECT query, c.* FROM queries, compare(query) c ORDER BY n;
SET client_min_messages = warning;
DROP SCHEMA shapes CASCADE;
