--
-- TYPES: values of many types travel unharmed
--
SET max_parallel_workers_per_gather = 2;
SET min_parallel_table_scan_size = 0;
CREATE SCHEMA types;
SET search_path = types, public;
CREATE TABLE queries (n serial, query text);
CREATE TYPE pair AS (a integer, b text);
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN positive AS integer CHECK (VALUE > 0);
CREATE COLLATION german (provider = icu, locale = 'de-u-co-phonebk');
CREATE COLLATION insensitive (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TABLE many AS
SELECT i,
       i::smallint AS small, i::bigint * 10000000000 AS big, i / 7.0 AS num, (i / 7.0)::float8 AS dbl, (i / 7.0)::float4 AS flt,
       CASE i % 4 WHEN 0 THEN 'NaN'::numeric WHEN 1 THEN 'Infinity' ELSE i::numeric ^ 30 END AS odd,
       i % 2 = 0 AS bool, chr(65 + i % 26) AS text, i::text::char(10) AS bpchar, i::text::varchar(5) AS varchar, 'n'::"char" AS c, ('n' || i)::name AS name,
       decode(md5(i::text), 'hex') AS bytea, md5(i::text)::uuid AS uuid,
       DATE '2024-02-29' + i AS date, TIME '01:02:03' + i * interval '1 min' AS time, TIMETZ '01:02:03+02' AS timetz,
       TIMESTAMP '2024-02-29 01:02:03.456' + i * interval '1 day' AS ts, TIMESTAMPTZ '2024-03-31 00:30:00+01' + i * interval '1 hour' AS tstz,
       i * interval '1 day 2 hours' AS interval, ('192.168.0.' || i % 256)::inet AS inet, '08:00:2b:01:02:03'::macaddr AS macaddr,
       i::bit(8) AS bit, repeat('10', i % 9)::varbit AS varbit, i::text::money AS money, point(i, i) AS point, box(point(0, 0), point(i, i)) AS box,
       ('(' || i || ',1)')::text::tid AS tid, '0/16B3748'::pg_lsn AS lsn,
       jsonb_build_object('i', i, 'list', jsonb_build_array(i, NULL, 'x')) AS jsonb, json_build_object('i', i) AS json, xmlelement(name e, i) AS xml,
       ARRAY[i, NULL, i + 1] AS ints, ARRAY[['a', 'b'], ['c', i::text]] AS texts, '[5:6]={1,2}'::integer[] AS bounds, '{}'::integer[] AS none,
       int4range(i, i + 10) AS range, int4multirange(int4range(i, i + 1), int4range(i + 5, i + 6)) AS multirange, tsrange(NULL, '2024-01-01') AS tsrange,
       ROW(i, 'b' || i)::pair AS pair, ARRAY[ROW(i, 'x')::pair, NULL] AS pairs, (ARRAY['sad', 'ok', 'happy'])[1 + i % 3]::mood AS mood,
       i::positive AS positive, 'a fat cat'::tsvector AS tsvector, 'fat & cat'::tsquery AS tsquery, '$.a'::jsonpath AS jsonpath,
       'fact'::regclass AS regclass, i::oid AS oid, i::text::xid AS xid
  FROM generate_series(1, 600) i;
CREATE TABLE toasted AS
SELECT i, repeat(md5(i::text), 100) AS compressed,
       (SELECT string_agg(md5(i::text || j), '') FROM generate_series(1, 300) j) AS external
  FROM generate_series(1, 100) i;
ALTER TABLE toasted ALTER COLUMN compressed SET STORAGE EXTERNAL;
INSERT INTO toasted SELECT i + 1000, compressed, external FROM toasted WHERE i < 20;
CREATE TABLE words (german text COLLATE german, insensitive text COLLATE insensitive, plain text COLLATE "C", bytes text COLLATE "POSIX");
INSERT INTO words SELECT w, w, w, w FROM generate_series(1, 100), unnest('{Ärger,Arg,Zebra,über,uebrig,Straße,strasse,a,A,b,B,Ä,ä}'::text[]) w;
-- Every column by itself: as it is, and sorted where it can be.
INSERT INTO queries (query)
SELECT format('SELECT i, %I FROM many', attname) FROM pg_attribute WHERE attrelid = 'many'::regclass AND attnum > 1 ORDER BY attnum;
INSERT INTO queries (query)
SELECT format('SELECT %I FROM many ORDER BY %1$I LIMIT 7', attname) FROM pg_attribute
 WHERE attrelid = 'many'::regclass AND attnum > 1 AND attname NOT IN ('point', 'box', 'json', 'xml', 'jsonpath', 'xid') ORDER BY attnum;
INSERT INTO queries (query)
SELECT format('SELECT %I, count(*), min(i) FROM many GROUP BY %1$I', attname) FROM pg_attribute
 WHERE attrelid = 'many'::regclass AND attnum > 1 AND attname NOT IN ('point', 'box', 'json', 'xml', 'jsonpath') ORDER BY attnum;
SELECT verdict, replicas, count(*),
       CASE WHEN verdict <> 'equal' OR NOT replicas THEN array_agg(query) END AS queries
  FROM queries, compare(query) c GROUP BY 1, 2 ORDER BY 1, 2;
TRUNCATE queries;
INSERT INTO queries (query) VALUES
    ('SELECT * FROM many'),
    ('SELECT many FROM many'),
    ('SELECT (pair).b, (pair).a, pairs[1].a AS x, ints[2:3] AS y, jsonb -> ''list'' AS z FROM many'),
    ('SELECT sum(num), sum(dbl::numeric), avg(num), stddev(num), sum(odd), sum(interval), sum(money), avg(big) FROM many'),
    ('SELECT bit_and(i), bit_or(i), bool_or(bool), every(i > 0), min(inet), max(mood), max(tstz), min(text), max(ints) FROM many'),
    ('SELECT regr_slope(num, i)::numeric(10,6), corr(i, small)::numeric(10,6), variance(i) FROM many'),
    ('SELECT range_agg(range), array_agg(i ORDER BY i), jsonb_agg(jsonb ORDER BY i), string_agg(text, '''' ORDER BY i) FROM many'),
    ('SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY dbl), mode() WITHIN GROUP (ORDER BY text) FROM many'),
    ('SELECT date_trunc(''month'', tstz), count(*) FROM many GROUP BY 1'),
    ('SELECT extract(hour FROM tstz) AS h, tstz::date AS d, count(*) FROM many GROUP BY 1, 2'),
    ('SELECT to_char(tstz, ''YYYY-MM-DD HH24:MI TZ'') AS a, to_char(num, ''FM999.000'') AS b, tstz::text, interval::text, dbl::text, bytea::text FROM many'),
    ('SELECT count(*) FROM many WHERE tstz > now() - interval ''100 years'' AND date < current_date'),
    ('SELECT count(*) FROM many WHERE mood = ''ok'' AND range @> 5 OR ints && ARRAY[7, 8] OR jsonb @> ''{"i": 9}'''),
    ('SELECT i, compressed FROM toasted'),
    ('SELECT i, external FROM toasted'),
    ('SELECT * FROM toasted ORDER BY external LIMIT 5'),
    ('SELECT external, count(*) FROM toasted GROUP BY external'),
    ('SELECT max(external), min(compressed), sum(length(external)) FROM toasted'),
    ('SELECT md5(external), substr(compressed, 100, 5) AS s FROM toasted WHERE external LIKE ''%abc%'''),
    ('SELECT toasted FROM toasted'),
    ('SELECT german FROM words ORDER BY german, bytes'),
    -- Which of several equal texts stands for a group is chance.
    ('SELECT lower(min(insensitive COLLATE "C")) AS word, count(*) FROM words GROUP BY insensitive'),
    ('SELECT count(DISTINCT insensitive) FROM words'),
    ('SELECT german, count(*), max(plain), min(german) FROM words GROUP BY german'),
    ('SELECT count(*) FROM words WHERE insensitive = ''STRASSE'' OR german < ''b'' OR plain < ''b'''),
    ('SELECT upper(german), lower(plain), initcap(bytes) FROM words'),
    ('SELECT plain COLLATE german AS g FROM words ORDER BY plain COLLATE german, plain');
SELECT left(query, 60) AS query, c.* FROM queries, compare(query) c ORDER BY n;
-- Under other settings that output depends on.
SET TimeZone = 'Asia/Kathmandu';
SET DateStyle = 'German';
SET IntervalStyle = 'iso_8601';
SET bytea_output = 'escape';
SET extra_float_digits = 0;
SELECT left(query, 60) AS query, c.* FROM queries, compare(query) c WHERE query LIKE '%tstz%' ORDER BY n;
SET client_min_messages = warning;
DROP SCHEMA types CASCADE;
