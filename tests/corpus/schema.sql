-- Data of the differential-test corpus.
--
-- Plain SQL: no psql meta-commands, nothing that is refused inside a
-- transaction block, no random(), no clock.  Load it into an empty database of
-- a cluster that was built with ICU, then run ANALYZE.

SET client_min_messages = warning;
SET timezone = 'UTC';
SET datestyle = 'ISO, MDY';
SET intervalstyle = 'postgres';

-- ---------------------------------------------------------------------------
-- Role used by the row-security tests (roles are cluster-wide: keep it if there)
-- ---------------------------------------------------------------------------
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'corpus_reader') THEN
        CREATE ROLE corpus_reader;
    END IF;
END
$$;

-- ---------------------------------------------------------------------------
-- Functions, types, collations
-- ---------------------------------------------------------------------------

-- Non-negative pseudo-random number of i, one stream per seed.
CREATE FUNCTION corpus_h(i bigint, seed bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS 'SELECT pg_catalog.hashint8extended(i, seed) & 9223372036854775807';

CREATE COLLATION corpus_ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE COLLATION corpus_natural (provider = icu, locale = 'en-u-kn-true');

CREATE TYPE mood AS ENUM ('zen', 'awful', 'bad', 'meh', 'good', 'amazing');
CREATE TYPE address AS (street text, no int, zip char(5));
CREATE TYPE person AS (name text, home address, born date);
CREATE TYPE floatrange AS RANGE (subtype = float8, subtype_diff = float8mi);
CREATE DOMAIN posint AS int CHECK (VALUE > 0);
CREATE DOMAIN shortcode AS varchar(8) CHECK (VALUE ~ '^[A-Z]{2}-[0-9]+$');
CREATE DOMAIN intlist AS int[] CHECK (cardinality(VALUE) <= 8);

CREATE FUNCTION f_sql_inline(a int, b int) RETURNS int
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT a * 2 + b';
CREATE FUNCTION f_plpgsql_safe(a int) RETURNS int
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    AS 'BEGIN IF a % 2 = 0 THEN RETURN a / 2; END IF; RETURN 3 * a + 1; END';
CREATE FUNCTION f_plpgsql_restricted(a int) RETURNS int
    LANGUAGE plpgsql STABLE STRICT PARALLEL RESTRICTED
    AS 'BEGIN RETURN a % 17; END';
CREATE FUNCTION f_plpgsql_unsafe(a int) RETURNS int
    LANGUAGE plpgsql STABLE STRICT PARALLEL UNSAFE
    AS 'BEGIN RETURN a % 13; END';
CREATE FUNCTION f_with_set(t timestamptz) RETURNS text
    LANGUAGE sql STABLE STRICT PARALLEL SAFE
    SET timezone = 'Asia/Kolkata' SET datestyle = 'ISO, MDY'
    AS 'SELECT t::text';
CREATE FUNCTION f_srf(n int) RETURNS SETOF int
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE ROWS 3
    AS 'SELECT g * n FROM generate_series(1, 3) g';

-- Aggregates: one that can be combined, one that cannot, one over a composite state.
CREATE FUNCTION agg_xor_step(s bigint, v bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT coalesce(s, 0) # coalesce(v, 0)';
CREATE AGGREGATE my_xor (bigint) (
    sfunc = agg_xor_step, stype = bigint, combinefunc = agg_xor_step, parallel = safe);
CREATE AGGREGATE my_sum_nocombine (int4) (
    sfunc = int4_sum, stype = int8, parallel = safe);
CREATE FUNCTION agg_span_step(s int[], v int) RETURNS int[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS 'SELECT CASE WHEN v IS NULL THEN s WHEN s IS NULL THEN ARRAY[v, v] ELSE ARRAY[least(s[1], v), greatest(s[2], v)] END';
CREATE FUNCTION agg_span_combine(a int[], b int[]) RETURNS int[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS 'SELECT CASE WHEN a IS NULL THEN b WHEN b IS NULL THEN a ELSE ARRAY[least(a[1], b[1]), greatest(a[2], b[2])] END';
CREATE FUNCTION agg_span_final(s int[]) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$SELECT s[1] || '..' || s[2]$$;
CREATE AGGREGATE my_span (int4) (
    sfunc = agg_span_step, stype = int[], combinefunc = agg_span_combine,
    finalfunc = agg_span_final, parallel = safe);

-- ---------------------------------------------------------------------------
-- Dimensions
-- ---------------------------------------------------------------------------
CREATE TABLE region (
    region_id  int PRIMARY KEY,
    name       text NOT NULL,
    tz         text NOT NULL
);
INSERT INTO region VALUES
    (1, 'North',  'Europe/Stockholm'),
    (2, 'South',  'Africa/Johannesburg'),
    (3, 'East',   'Asia/Tokyo'),
    (4, 'West',   'America/Los_Angeles'),
    (5, 'Centre', 'Asia/Kathmandu'),
    (6, 'Nowhere', 'UTC');

CREATE TABLE store (
    store_id   smallint PRIMARY KEY,
    region_id  int REFERENCES region,
    name       text NOT NULL,
    opened     date,
    area       real
);
INSERT INTO store
SELECT i, nullif(corpus_h(i, 11) % 6, 0), 'Store ' || i, date '2010-01-01' + (corpus_h(i, 12) % 3000)::int,
       (corpus_h(i, 13) % 4000) * 0.25
FROM generate_series(1, 60) i;

CREATE TABLE customer (
    cust_id    int PRIMARY KEY,
    name       text NOT NULL,
    segment    text,
    region_id  int,
    birth      date,
    credit     numeric(10,2),
    ref_by     int,
    email      varchar(60)
);
INSERT INTO customer
SELECT i,
       'Customer#' || lpad(i::text, 6, '0'),
       (ARRAY['retail', 'wholesale', 'online', NULL, 'gov'])[1 + corpus_h(i, 21) % 5],
       1 + corpus_h(i, 22) % 5,
       CASE WHEN corpus_h(i, 23) % 10 > 0 THEN date '1940-01-01' + (corpus_h(i, 24) % 25000)::int END,
       (corpus_h(i, 25) % 2000000 - 200000)::numeric / 100,
       CASE WHEN i > 1 AND corpus_h(i, 26) % 4 > 0 THEN 1 + corpus_h(i, 27) % (i - 1) END,
       CASE WHEN corpus_h(i, 28) % 7 > 0
            THEN 'c' || i || '@' || (ARRAY['example.com', 'example.org', 'mail.test'])[1 + corpus_h(i, 29) % 3] END
FROM generate_series(1, 6000) i;

CREATE TABLE product (
    prod_id    int PRIMARY KEY,
    name       text NOT NULL,
    category   text NOT NULL,
    list_price numeric(10,2),
    weight     float8,
    tags       text[],
    attrs      jsonb
);
INSERT INTO product
SELECT i,
       (ARRAY['red', 'green', 'blue', 'white', 'black', 'Grey'])[1 + corpus_h(i, 31) % 6] || ' ' ||
       (ARRAY['bolt', 'nut', 'washer', 'gear', 'spring', 'Pulley', 'belt'])[1 + corpus_h(i, 32) % 7] || ' ' || i,
       'cat' || corpus_h(i, 33) % 12,
       CASE WHEN corpus_h(i, 34) % 20 > 0 THEN (100 + corpus_h(i, 35) % 99900)::numeric / 100 END,
       (1 + corpus_h(i, 36) % 10000) / 16.0,
       (ARRAY['new', 'sale', 'eco', 'bulk', 'old', 'rare'])[1:(corpus_h(i, 37) % 6)],
       jsonb_build_object('size', corpus_h(i, 38) % 50, 'col', (ARRAY['r', 'g', 'b'])[1 + corpus_h(i, 39) % 3],
                          'dim', jsonb_build_array(i % 7, i % 11, i % 13), 'opt', i % 3 = 0)
FROM generate_series(1, 1200) i;

CREATE TABLE calendar (
    d          date PRIMARY KEY,
    y          smallint,
    m          smallint,
    dow        smallint,
    holiday    bool NOT NULL
);
INSERT INTO calendar
SELECT x, extract(year FROM x), extract(month FROM x), extract(isodow FROM x), corpus_h(i, 41) % 30 = 0
FROM (SELECT i, date '2020-01-01' + i AS x FROM generate_series(0, 1826) i) s;

-- ---------------------------------------------------------------------------
-- The fact table: 300 000 rows, skew and NULLs
-- ---------------------------------------------------------------------------
CREATE TABLE fact (
    id         int NOT NULL,
    big        bigint,
    cust_id    int,
    prod_id    int NOT NULL,
    store_id   smallint,
    qty        smallint,
    amount     numeric(12,2),
    price      float8,
    rate       real,
    d          date,
    ts         timestamptz,
    tl         timestamp NOT NULL,
    ok         bool,
    u          uuid,
    code       char(3),
    status     text,
    note       text,
    flags      int NOT NULL
);
INSERT INTO fact
SELECT i,
       corpus_h(i, 1) * CASE WHEN i % 3 = 0 THEN -1 ELSE 1 END,
       CASE WHEN a % 200 = 0 THEN NULL WHEN a % 5 = 0 THEN 1 WHEN a % 5 = 1 THEN 2 + b % 10 ELSE 1 + b % 6500 END,
       1 + (b / 7) % CASE WHEN a % 3 = 0 THEN 20 ELSE 1250 END,
       CASE WHEN b % 50 = 0 THEN NULL ELSE 1 + (b / 11) % 58 END,
       CASE WHEN a % 33 = 0 THEN NULL ELSE (a / 64) % 100 - 5 END,
       CASE WHEN b % 25 = 0 THEN NULL ELSE ((b / 13) % 1000000 - 50000)::numeric / 100 END,
       CASE WHEN a % 40 = 3 THEN NULL ELSE (1 + (a / 128) % 100000) / 37.0 END,
       ((b / 17) % 400) * 0.25,
       CASE WHEN a % 90 = 5 THEN NULL ELSE date '2020-01-01' + ((b / 19) % 1826)::int END,
       CASE WHEN b % 80 = 7 THEN NULL ELSE timestamptz '2020-01-01 00:00:00+00' + (i::bigint * 500 + a % 3000) * interval '1 second' END,
       timestamp '2020-01-01 00:00:00' + ((a / 256) % 157766400) * interval '1 second',
       CASE (a / 512) % 10 WHEN 0 THEN NULL WHEN 1 THEN false WHEN 2 THEN false ELSE true END,
       CASE WHEN i % 10 = 0 THEN NULL ELSE md5(((i / 2) * 2)::text)::uuid END,
       chr((65 + a % 26)::int) || chr((65 + b % 3)::int) || CASE WHEN i % 2 = 0 THEN 'x' ELSE '' END,
       (ARRAY['paid', 'paid', 'paid', 'paid', 'shipped', 'shipped', 'new', 'void', NULL, 'refunded'])[1 + (a / 1024) % 10],
       CASE (b / 23) % 12
            WHEN 0 THEN NULL WHEN 1 THEN '' WHEN 2 THEN 'naïve façade ' || i % 10
            WHEN 3 THEN '100%_sure' WHEN 4 THEN E'tab\there' WHEN 5 THEN repeat('ab', (i % 15)::int)
            ELSE 'n' || (b / 29) % 5000 END,
       ((a / 2048) % 65536)::int
FROM (SELECT i, corpus_h(i, 2) AS a, corpus_h(i, 3) AS b FROM generate_series(1, 300000) i) s;
ALTER TABLE fact ADD PRIMARY KEY (id);
CREATE INDEX fact_cust ON fact (cust_id);
CREATE INDEX fact_d_status ON fact (d, status);
CREATE INDEX fact_ts_brin ON fact USING brin (ts);
CREATE INDEX fact_void ON fact (store_id) WHERE status = 'void';

-- A smaller one with unique, clustered keys, for merge joins and self joins.
CREATE TABLE detail (
    fact_id    int NOT NULL,
    line       smallint NOT NULL,
    val        int,
    txt        text,
    PRIMARY KEY (fact_id, line)
);
INSERT INTO detail
SELECT 3 * i, l, CASE WHEN corpus_h(i, 51 + l) % 15 = 0 THEN NULL ELSE corpus_h(i, 51 + l) % 1000 END,
       'd' || corpus_h(i, 61 + l) % 300
FROM generate_series(1, 20000) i, generate_series(1, 3) l
WHERE l <= 1 + i % 3;

-- A tree for recursive queries.
CREATE TABLE tree (
    id         int PRIMARY KEY,
    parent     int,
    label      text
);
INSERT INTO tree SELECT i, CASE WHEN i > 1 THEN i / 3 + CASE WHEN i < 3 THEN 1 ELSE 0 END END, 'node' || i FROM generate_series(1, 3000) i;

-- ---------------------------------------------------------------------------
-- Partitioned tables and inheritance
-- ---------------------------------------------------------------------------
CREATE TABLE ev (
    id         int NOT NULL,
    d          date NOT NULL,
    kind       text,
    val        int,
    amt        numeric(10,2)
) PARTITION BY RANGE (d);
CREATE TABLE ev_2020 PARTITION OF ev FOR VALUES FROM ('2020-01-01') TO ('2021-01-01');
CREATE TABLE ev_2021 PARTITION OF ev FOR VALUES FROM ('2021-01-01') TO ('2022-01-01');
CREATE TABLE ev_2022 PARTITION OF ev FOR VALUES FROM ('2022-01-01') TO ('2023-01-01');
-- A leaf whose columns are in another order and which had a column dropped.
CREATE TABLE ev_2023 (amt numeric(10,2), gone text, val int, kind text, d date NOT NULL, id int NOT NULL);
ALTER TABLE ev_2023 DROP COLUMN gone;
ALTER TABLE ev ATTACH PARTITION ev_2023 FOR VALUES FROM ('2023-01-01') TO ('2024-01-01');
CREATE TABLE ev_2024 PARTITION OF ev FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
CREATE TABLE ev_2025 PARTITION OF ev FOR VALUES FROM ('2025-01-01') TO ('2026-01-01');   -- stays empty
INSERT INTO ev
SELECT i, date '2020-01-01' + (corpus_h(i, 71) % 1827)::int,
       (ARRAY['click', 'view', 'buy', NULL])[1 + corpus_h(i, 72) % 4],
       corpus_h(i, 73) % 1000, (corpus_h(i, 74) % 100000)::numeric / 100
FROM generate_series(1, 50000) i;
CREATE INDEX ev_id ON ev (id);

CREATE TABLE ev2 (
    id         int NOT NULL,
    d          date NOT NULL,
    area       text,
    val        bigint,
    note       text
) PARTITION BY RANGE (d);
CREATE TABLE ev2_a PARTITION OF ev2 FOR VALUES FROM ('2020-01-01') TO ('2022-01-01') PARTITION BY LIST (area);
CREATE TABLE ev2_a_n PARTITION OF ev2_a FOR VALUES IN ('n', 'ne', 'nw');
CREATE TABLE ev2_a_s PARTITION OF ev2_a FOR VALUES IN ('s', 'se', 'sw');
CREATE TABLE ev2_a_null PARTITION OF ev2_a FOR VALUES IN (NULL);
CREATE TABLE ev2_b PARTITION OF ev2 FOR VALUES FROM ('2022-01-01') TO ('2024-01-01') PARTITION BY HASH (id);
CREATE TABLE ev2_b_0 PARTITION OF ev2_b FOR VALUES WITH (MODULUS 3, REMAINDER 0);
CREATE TABLE ev2_b_1 PARTITION OF ev2_b FOR VALUES WITH (MODULUS 3, REMAINDER 1);
CREATE TABLE ev2_b_2 PARTITION OF ev2_b FOR VALUES WITH (MODULUS 3, REMAINDER 2);
CREATE TABLE ev2_rest PARTITION OF ev2 DEFAULT;
INSERT INTO ev2
SELECT i, date '2020-01-01' + (corpus_h(i, 81) % 1700)::int,
       (ARRAY['n', 'ne', 'nw', 's', 'se', 'sw', NULL])[1 + corpus_h(i, 82) % 7],
       corpus_h(i, 83) % 100000, CASE WHEN i % 3 > 0 THEN 'e' || i % 100 END
FROM generate_series(1, 30000) i;

-- Same keys as ev2's: a pair for partition-wise joins.
CREATE TABLE hp1 (k int NOT NULL, v int, t text) PARTITION BY HASH (k);
CREATE TABLE hp1_0 PARTITION OF hp1 FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE hp1_1 PARTITION OF hp1 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE TABLE hp2 (k int NOT NULL, w int, t text) PARTITION BY HASH (k);
CREATE TABLE hp2_0 PARTITION OF hp2 FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE hp2_1 PARTITION OF hp2 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
INSERT INTO hp1 SELECT i, corpus_h(i, 91) % 500, 'p' || i % 37 FROM generate_series(1, 12000) i;
INSERT INTO hp2 SELECT 1 + corpus_h(i, 92) % 15000, corpus_h(i, 93) % 500, 'q' || i % 41 FROM generate_series(1, 12000) i;

CREATE TABLE inh (id int NOT NULL, v int, t text);
CREATE TABLE inh_a (extra_a numeric(8,3)) INHERITS (inh);
CREATE TABLE inh_b (extra_b timestamptz, CHECK (id > 8000)) INHERITS (inh);
INSERT INTO inh SELECT i, i % 91, 'base' || i % 5 FROM generate_series(1, 3000) i;
INSERT INTO inh_a SELECT i, i % 83, 'a' || i % 7, i / 8.0 FROM generate_series(3001, 8000) i;
INSERT INTO inh_b SELECT i, i % 79, NULL, timestamptz '2021-06-01 00:00:00+00' + i * interval '1 minute' FROM generate_series(8001, 12000) i;

-- ---------------------------------------------------------------------------
-- Tables of odd shapes
-- ---------------------------------------------------------------------------

-- No column at all, yet rows.
CREATE TABLE t0 ();
INSERT INTO t0 SELECT FROM generate_series(1, 5000);
-- All columns dropped.
CREATE TABLE t0_dropped (a int, b text);
INSERT INTO t0_dropped SELECT i, 'x' FROM generate_series(1, 1500) i;
ALTER TABLE t0_dropped DROP COLUMN a, DROP COLUMN b;

CREATE TABLE t_empty (a int, b text, c numeric, d date);
CREATE TABLE t_one (a int, b text, c numeric, d date);
INSERT INTO t_one VALUES (42, 'only', 4.2, '2022-02-22');
CREATE TABLE t_block (a int, b text);
INSERT INTO t_block SELECT i, 'b' || i % 4 FROM generate_series(1, 100) i;
CREATE TABLE t_null (a int, b text, c numeric, d date, e float8, f bool);
INSERT INTO t_null SELECT NULL, NULL, NULL, NULL, NULL, NULL FROM generate_series(1, 8000);

-- Many pages with few rows each.
CREATE TABLE t_sparse (id int PRIMARY KEY, pad text, v int) WITH (fillfactor = 10);
INSERT INTO t_sparse SELECT i, repeat('p', 90), corpus_h(i, 101) % 50 FROM generate_series(1, 2500) i;

-- Deleted and updated rows, emptied blocks in the middle and at the end.
CREATE TABLE t_dead (id int, v int, t text) WITH (autovacuum_enabled = false);
INSERT INTO t_dead SELECT i, i % 100, 'orig' || i % 10 FROM generate_series(1, 12000) i;
UPDATE t_dead SET v = v + 1000, t = 'upd' WHERE id % 5 = 0;
UPDATE t_dead SET v = v + 5000 WHERE id % 25 = 0;
DELETE FROM t_dead WHERE id % 7 = 0 OR id BETWEEN 4000 AND 6000 OR id > 11500;

-- Dropped columns, and columns added with a default that is not in the old rows.
CREATE TABLE t_alter (id int, gone1 text, v int, gone2 numeric);
INSERT INTO t_alter SELECT i, 'gone' || i, i % 50, i / 3.0 FROM generate_series(1, 8000) i;
ALTER TABLE t_alter DROP COLUMN gone1;
ALTER TABLE t_alter ADD COLUMN added_int int DEFAULT 77;
ALTER TABLE t_alter ADD COLUMN added_text text NOT NULL DEFAULT 'fast default';
ALTER TABLE t_alter DROP COLUMN gone2;
ALTER TABLE t_alter ADD COLUMN added_ts timestamptz DEFAULT '2020-02-29 12:00:00+00';
ALTER TABLE t_alter ADD COLUMN added_null numeric;
INSERT INTO t_alter (id, v, added_int, added_text, added_ts, added_null)
SELECT i, i % 50, nullif(i % 4, 0), 'row ' || i % 3, timestamptz '2021-01-01 00:00:00+00' + i * interval '1 hour', i / 8.0
FROM generate_series(8001, 10000) i;
ALTER TABLE t_alter ADD COLUMN added_arr int[] DEFAULT '{1,2,3}';

-- Out-of-line values: uncompressed, compressed with each method, inline-compressed.
CREATE TABLE t_toast (id int PRIMARY KEY, ext text, cmp text, cmp2 text, js jsonb, bin bytea, small text);
ALTER TABLE t_toast ALTER COLUMN ext SET STORAGE EXTERNAL;
ALTER TABLE t_toast ALTER COLUMN small SET STORAGE MAIN;
DO $$
BEGIN
    ALTER TABLE t_toast ALTER COLUMN cmp2 SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported OR invalid_parameter_value THEN
    NULL;   -- built without lz4
END
$$;
INSERT INTO t_toast
SELECT i,
       CASE WHEN i % 11 > 0 THEN (SELECT string_agg(md5((i * 1000 + g)::text), '') FROM generate_series(1, 70 + i % 90) g) END,
       CASE WHEN i % 7 > 0 THEN repeat('compress me ' || i || ' ', 300 + (i % 5) * 400) END,
       (SELECT string_agg(md5((i * 77 + g / 3)::text), '-') FROM generate_series(1, 20 + i % 200) g),
       jsonb_build_object('id', i, 'k', (SELECT jsonb_object_agg('key' || g, md5((i + g)::text)) FROM generate_series(1, 10 + i % 120) g)),
       decode(repeat(md5(i::text), 40 + i % 100), 'hex'),
       repeat('s' || i % 3, 100)
FROM generate_series(1, 400) i;

CREATE TABLE t_gen (
    id         int,
    a          int,
    b          numeric(8,2),
    s          text,
    a2         int GENERATED ALWAYS AS (a * 2) STORED,
    ab         numeric GENERATED ALWAYS AS (a * b) STORED,
    up         text GENERATED ALWAYS AS (upper(s)) STORED
);
INSERT INTO t_gen (id, a, b, s)
SELECT i, nullif(corpus_h(i, 111) % 300, 0), (corpus_h(i, 112) % 10000)::numeric / 100,
       CASE WHEN i % 9 > 0 THEN 'word' || i % 60 END
FROM generate_series(1, 8000) i;

-- 200 columns in six types, NULLs all over.
DO $$
DECLARE
    cols text; vals text;
BEGIN
    SELECT string_agg(format('c%s %s', n, (ARRAY['int', 'text', 'numeric(10,2)', 'float8', 'date', 'bool'])[1 + n % 6]), ', ' ORDER BY n),
           string_agg(format(
               (ARRAY['CASE WHEN corpus_h(i, %1$s) %% 6 > 0 THEN (i * %1$s) %% 1009 END',
                      'CASE WHEN corpus_h(i, %1$s) %% 4 > 0 THEN ''t'' || (i + %1$s) %% 50 END',
                      'CASE WHEN corpus_h(i, %1$s) %% 5 > 0 THEN (i * %1$s %% 10007)::numeric / 100 END',
                      'CASE WHEN corpus_h(i, %1$s) %% 7 > 0 THEN (i * %1$s %% 10007) / 64.0 END',
                      'CASE WHEN corpus_h(i, %1$s) %% 3 > 0 THEN date ''2000-01-01'' + ((i * %1$s) %% 9000) END',
                      'CASE WHEN corpus_h(i, %1$s) %% 8 > 0 THEN (i + %1$s) %% 3 = 0 END'])[1 + n % 6], n), ', ' ORDER BY n)
    INTO cols, vals FROM generate_series(1, 200) n;
    EXECUTE 'CREATE TABLE t_wide (id int PRIMARY KEY, ' || cols || ')';
    EXECUTE 'INSERT INTO t_wide SELECT i, ' || vals || ' FROM generate_series(1, 1500) i';
END
$$;

-- ---------------------------------------------------------------------------
-- Data types
-- ---------------------------------------------------------------------------
CREATE TABLE t_arr (id int, ia int[], ta text[], m int[][], na numeric[], l intlist);
INSERT INTO t_arr
SELECT i,
       CASE WHEN i % 10 > 0 THEN ARRAY[i % 5, i % 7, NULL, i % 100] END,
       CASE i % 4 WHEN 0 THEN '{}' WHEN 1 THEN ARRAY['a' || i % 20] WHEN 2 THEN ARRAY['x', NULL, 'y z', '"q",{}'] ELSE ARRAY['a' || i % 20, 'b' || i % 30] END,
       ARRAY[[i % 3, i % 4], [i % 5, i % 6]],
       CASE WHEN i % 6 > 0 THEN ARRAY[(i % 50)::numeric(6,1), 1.5] END,
       CASE WHEN i % 5 > 0 THEN ARRAY[i % 9, i % 8]::intlist END
FROM generate_series(1, 6000) i;

CREATE TABLE t_rng (id int, ir int4range, nr numrange, dr daterange, tr tstzrange, fr floatrange, im int4multirange, dm datemultirange);
INSERT INTO t_rng
SELECT i,
       CASE i % 9 WHEN 0 THEN 'empty'::int4range WHEN 1 THEN int4range(i % 500, NULL) WHEN 2 THEN NULL
            ELSE int4range(i % 500, i % 500 + 1 + i % 37) END,
       numrange((i % 200)::numeric(8,2), (i % 200 + i % 13)::numeric(8,2), '[]'),
       CASE WHEN i % 11 > 0 THEN daterange(date '2020-01-01' + i % 700, date '2020-01-01' + i % 700 + i % 30, '[)') END,
       tstzrange(timestamptz '2021-03-28 00:00:00+00' + (i % 1000) * interval '1 hour', timestamptz '2021-03-28 00:00:00+00' + (i % 1000 + i % 5) * interval '1 hour'),
       floatrange((i % 40) / 4.0, (i % 40) / 4.0 + 2),
       CASE WHEN i % 8 > 0 THEN int4multirange(int4range(i % 50, i % 50 + 3), int4range(i % 50 + 10, i % 50 + 12)) END,
       datemultirange(daterange(date '2022-01-01' + i % 100, date '2022-01-05' + i % 100), daterange(date '2023-01-01', date '2023-01-02' + i % 10))
FROM generate_series(1, 5000) i;
CREATE INDEX t_rng_ir ON t_rng USING gist (ir);

CREATE TABLE t_json (id int, j jsonb, js json);
INSERT INTO t_json
SELECT i,
       CASE i % 10
            WHEN 0 THEN NULL
            WHEN 1 THEN 'null'::jsonb
            WHEN 2 THEN to_jsonb(i % 100)
            WHEN 3 THEN to_jsonb('str' || i % 30)
            WHEN 4 THEN jsonb_build_array(i % 10, 'x', NULL, true)
            ELSE jsonb_build_object('a', i % 40, 'b', jsonb_build_object('c', 'v' || i % 25, 'd', i % 2 = 0),
                                    'tags', jsonb_build_array('t' || i % 6, 't' || i % 9), 'n', CASE WHEN i % 3 > 0 THEN i % 17 END) END,
       json_build_object('z', i % 12, 'y', 'w' || i % 8)
FROM generate_series(1, 8000) i;
CREATE INDEX t_json_j ON t_json USING gin (j jsonb_path_ops);

CREATE TABLE t_misc (
    id         int,
    m          mood,
    p          person,
    dom        posint,
    sc         shortcode,
    ip         inet,
    net        cidr,
    mac        macaddr,
    b8         bit(8),
    vb         varbit,
    iv         interval,
    tm         time,
    tmz        timetz,
    cash       money,
    pt         point,
    bx         box,
    tsv        tsvector,
    lsn        pg_lsn,
    o          oid,
    ch         "char",
    nm         name,
    by         bytea
);
INSERT INTO t_misc
SELECT i,
       (enum_range(NULL::mood))[nullif(corpus_h(i, 121) % 7, 0)],
       CASE WHEN i % 12 > 0 THEN ROW('P' || i % 40, CASE WHEN i % 5 > 0 THEN ROW('St ' || i % 9, i % 77, lpad((i % 1000)::text, 5, '0'))::address END,
                                     date '1970-01-01' + i % 9000)::person END,
       1 + i % 333,
       CASE WHEN i % 4 > 0 THEN chr(65 + i % 26) || 'Q-' || i % 1000 END,
       CASE WHEN i % 3 = 0 THEN ('2001:db8::' || to_hex(i % 4000))::inet ELSE ('10.' || i % 4 || '.' || i % 250 || '.' || i % 251)::inet END,
       ('192.168.' || i % 200 || '.0/24')::cidr,
       ('08:00:2b:01:' || lpad(to_hex(i % 200), 2, '0') || ':' || lpad(to_hex(i % 255), 2, '0'))::macaddr,
       (i % 256)::bit(8),
       CASE WHEN i % 6 > 0 THEN substring((i % 1024)::bit(10) FOR 1 + i % 9) END,
       make_interval(months => i % 3, days => i % 5, secs => i % 4000),
       time '00:00' + (i % 86400) * interval '1 second',
       ('12:' || lpad((i % 60)::text, 2, '0') || ':00' || (ARRAY['+00', '-05', '+05:30'])[1 + i % 3])::timetz,
       (i % 5000)::money,
       point(i % 100, i % 37),
       box(point(i % 20, i % 30), point(i % 20 + 5, i % 30 + 2)),
       to_tsvector('simple', 'doc number ' || i % 50 || ' about ' || (ARRAY['cats', 'dogs', 'fish'])[1 + i % 3]),
       ('0/' || upper(to_hex(i * 16)))::pg_lsn,
       (i % 10000 + 1)::oid,
       chr(97 + i % 26)::"char",
       ('name_' || i % 70)::name,
       decode(md5((i % 90)::text), 'hex')
FROM generate_series(1, 9000) i;

CREATE TABLE t_num (id int, n numeric, n2 numeric(20,5), f8 float8, f4 real, i2 smallint, i8 bigint);
INSERT INTO t_num
SELECT i,
       CASE i % 40 WHEN 0 THEN NULL WHEN 1 THEN 'NaN' WHEN 2 THEN 'Infinity' WHEN 3 THEN '-Infinity'
            WHEN 4 THEN ('1e' || i % 300)::numeric WHEN 5 THEN ('-1e-' || i % 200)::numeric
            WHEN 6 THEN 0 ELSE (corpus_h(i, 131) % 1000000)::numeric / 1000 END,
       (corpus_h(i, 132) % 100000000000 - 50000000000)::numeric / 100000,
       CASE i % 30 WHEN 0 THEN NULL WHEN 1 THEN 'NaN' WHEN 2 THEN 'Infinity' WHEN 3 THEN '-Infinity'
            WHEN 4 THEN '-0'::float8 WHEN 5 THEN 0 WHEN 6 THEN '5e-324'::float8 WHEN 7 THEN '1.7e308'::float8
            ELSE (corpus_h(i, 133) % 100000) / 7.0 END,
       CASE i % 25 WHEN 0 THEN NULL WHEN 1 THEN 'NaN' WHEN 2 THEN 'Infinity' WHEN 3 THEN '-Infinity' WHEN 4 THEN '-0'::real
            ELSE (corpus_h(i, 134) % 1000) * 0.5 END,
       CASE WHEN i % 50 = 0 THEN -32768 WHEN i % 50 = 1 THEN 32767 ELSE i % 1000 END,
       CASE WHEN i % 50 = 0 THEN -9223372036854775808 WHEN i % 50 = 1 THEN 9223372036854775807 ELSE corpus_h(i, 135) END
FROM generate_series(1, 9000) i;

CREATE TABLE t_dates (id int, d date, ts timestamp, tz timestamptz);
INSERT INTO t_dates
SELECT i,
       CASE i % 50 WHEN 0 THEN 'infinity'::date WHEN 1 THEN '-infinity'::date WHEN 2 THEN '0044-03-15 BC'::date WHEN 3 THEN NULL
            ELSE date '1999-12-01' + i % 15000 END,
       CASE i % 60 WHEN 0 THEN 'infinity'::timestamp WHEN 1 THEN '-infinity'::timestamp WHEN 2 THEN NULL
            ELSE timestamp '2000-02-28 23:59:59.999999' + (corpus_h(i, 141) % 700000000) * interval '1 second' END,
       CASE i % 70 WHEN 0 THEN 'infinity'::timestamptz WHEN 1 THEN '-infinity'::timestamptz WHEN 2 THEN NULL
            -- an hour step over the DST changes of 2021
            ELSE timestamptz '2021-01-01 00:30:00+00' + (i % 8760) * interval '1 hour' END
FROM generate_series(1, 9000) i;

CREATE TABLE t_text (
    id         int,
    c          text COLLATE "C",
    def        text,
    u          text COLLATE "und-x-icu",
    de         text COLLATE "de-x-icu",
    ci         text COLLATE corpus_ci,
    nat        text COLLATE corpus_natural,
    v          varchar(20),
    bp         char(10)
);
INSERT INTO t_text
SELECT i, w, w, w, w, w, w, left(w, 20), left(w, 10)
FROM (SELECT i, CASE WHEN corpus_h(i, 151) % 30 = 0 THEN NULL
                     ELSE (ARRAY['apple', 'Apple', 'APPLE', 'äpfel', 'Äpfel', 'apfel', 'zebra', 'Zebra', 'straße', 'strasse', 'STRASSE',
                                 'ñandú', 'nandu', 'éclair', 'eclair', 'Éclair', 'item', 'Item', '日本語', 'Ωmega', 'a-b', 'a b', 'ab', '_x', ''])[1 + corpus_h(i, 152) % 25]
                          || CASE WHEN corpus_h(i, 153) % 3 = 0 THEN (corpus_h(i, 154) % 30)::text ELSE '' END END AS w
      FROM generate_series(1, 10000) i) s;
CREATE INDEX t_text_u ON t_text (u);

-- Row security: the owner of v_rls is an ordinary role, so that the policy
-- applies through the view whoever asks; read directly, it applies to that role.
CREATE TABLE t_rls (id int, owner_name text, secret int, visible bool);
INSERT INTO t_rls SELECT i, (ARRAY['corpus_reader', 'someone', 'public'])[1 + i % 3], i % 400, i % 4 > 0 FROM generate_series(1, 9000) i;
ALTER TABLE t_rls ENABLE ROW LEVEL SECURITY;
CREATE POLICY see_own ON t_rls FOR SELECT USING (owner_name = current_user OR owner_name = 'public');
CREATE POLICY see_visible ON t_rls AS RESTRICTIVE FOR SELECT USING (visible AND secret < (SELECT max(a) + 290 FROM t_block));

-- ---------------------------------------------------------------------------
-- Functions that read tables (declared safe: a worker may run them)
-- ---------------------------------------------------------------------------
CREATE FUNCTION f_lookup(r int) RETURNS text
    LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE
    AS 'DECLARE n text; BEGIN SELECT name INTO n FROM region WHERE region_id = r; RETURN n; END';

-- ---------------------------------------------------------------------------
-- Views
-- ---------------------------------------------------------------------------
CREATE VIEW v_paid AS
    SELECT id, cust_id, prod_id, amount, d FROM fact WHERE status = 'paid' AND amount > 0;
CREATE VIEW v_cat_totals AS
    SELECT p.category, count(*) AS n, sum(f.amount) AS total
    FROM fact f JOIN product p USING (prod_id) GROUP BY p.category;
CREATE VIEW v_union AS
    SELECT id, val, 'ev' AS src FROM ev UNION ALL SELECT id, val, 'ev2' FROM ev2;
CREATE VIEW v_barrier WITH (security_barrier) AS
    SELECT cust_id, name, credit, region_id FROM customer WHERE segment IS DISTINCT FROM 'gov';
CREATE VIEW v_rls AS SELECT id, owner_name, secret FROM t_rls;
ALTER VIEW v_rls OWNER TO corpus_reader;
CREATE VIEW v_invoker WITH (security_invoker) AS SELECT id, secret FROM t_rls WHERE id % 2 = 0;

CREATE MATERIALIZED VIEW mv_daily AS
    SELECT d, status, count(*) AS n, sum(amount) AS total, max(price) AS top FROM fact GROUP BY d, status;

GRANT SELECT ON ALL TABLES IN SCHEMA public TO corpus_reader;

RESET timezone;
RESET datestyle;
RESET intervalstyle;
RESET client_min_messages;
