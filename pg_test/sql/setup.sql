--
-- SETUP: tables and helpers of the other tests
--
-- The cluster "default" has two replicas: standbys of this server.  The tables are small, so
-- granules are, too, and nobody is left out because a busy machine makes it late.
SELECT current_database() AS database \gset
ALTER DATABASE :"database" SET parallel_replicas.granule_blocks = 8;
ALTER DATABASE :"database" SET parallel_replicas.connect_timeout = '5s';
ALTER DATABASE :"database" SET parallel_replicas.replay_wait_timeout = '10min';
ALTER DATABASE :"database" SET parallel_replicas.stall_timeout = '10min';
SELECT srvname FROM pg_foreign_server ORDER BY srvname;

CREATE TABLE fact (
    id integer NOT NULL,
    grp integer,
    val numeric,
    txt text,
    day date
) WITH (autovacuum_enabled = off);
INSERT INTO fact
SELECT i, i % 100, i / 7.0, 'text ' || i % 1000, DATE '2024-01-01' + i % 365
  FROM generate_series(1, 20000) i;
INSERT INTO fact SELECT -i, NULL, NULL, NULL, NULL FROM generate_series(1, 10) i;
CREATE INDEX fact_id ON fact (id);

CREATE TABLE dim (
    grp integer PRIMARY KEY,
    name text NOT NULL
) WITH (autovacuum_enabled = off);
INSERT INTO dim SELECT i, 'group ' || i FROM generate_series(0, 149) i;

CREATE TABLE part (
    id integer,
    region text,
    amount integer
) PARTITION BY LIST (region);
CREATE TABLE part_north PARTITION OF part FOR VALUES IN ('north') WITH (autovacuum_enabled = off);
CREATE TABLE part_south PARTITION OF part FOR VALUES IN ('south') WITH (autovacuum_enabled = off);
CREATE TABLE part_rest PARTITION OF part DEFAULT WITH (autovacuum_enabled = off);
INSERT INTO part
SELECT i, (ARRAY['north', 'south', 'east', 'west'])[1 + i % 4], i % 17
  FROM generate_series(1, 8000) i;
VACUUM ANALYZE fact, dim, part;

-- An answer as a sorted array of rows, or the error instead of it, under the settings as they are.
CREATE FUNCTION answer(query text) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    rows text[];
    code text;
    message text;
BEGIN
    SELECT array_agg(btrim(line, E' \n') ORDER BY btrim(line, E' \n') COLLATE "C") INTO rows
      FROM regexp_split_to_table(query_to_xml(query, true, true, '')::text, '\s*<row xmlns:xsi[^>]*>\s*') line
     WHERE line <> '';
    RETURN coalesce(rows, '{}');
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT;
    RETURN ARRAY[format('%s: %s', code, message)];
END
$$;

-- Does the plan have a ParallelReplicas, under the settings as they are?
CREATE FUNCTION uses_replicas(query text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    plan json;
BEGIN
    EXECUTE 'EXPLAIN (FORMAT JSON) ' || query INTO plan;
    RETURN plan::text LIKE '%"Custom Plan Provider": "ParallelReplicas"%';
END
$$;

-- Compares the answer of this server alone with those of the cluster: with and without a share for
-- the local server, and with another granule size.
CREATE FUNCTION compare(query text, OUT replicas boolean, OUT rows bigint, OUT verdict text)
LANGUAGE plpgsql AS $$
DECLARE
    expected text[];
    got text[];
    way text;
BEGIN
    PERFORM set_config('enable_parallel_replicas', 'off', true);
    expected := answer(query);
    rows := cardinality(expected);
    PERFORM set_config('enable_parallel_replicas', 'force', true);
    replicas := uses_replicas(query);
    verdict := 'equal';
    FOREACH way IN ARRAY ARRAY['local plan', 'no local plan', 'one block'] LOOP
        PERFORM set_config('parallel_replicas_local_plan', (way <> 'no local plan')::text, true);
        PERFORM set_config('parallel_replicas.granule_blocks',
            CASE way WHEN 'one block' THEN '1' ELSE '8' END, true);
        got := answer(query);
        IF got IS DISTINCT FROM expected THEN
            verdict := format('%s: expected %s, got %s', way, left(expected::text, 200), left(got::text, 200));
        END IF;
    END LOOP;
END
$$;
