--
-- EXPLAIN_ANALYZE: what EXPLAIN ANALYZE tells
--
SET enable_parallel_replicas = 2;
SET max_parallel_workers_per_gather = 2;
SET min_parallel_table_scan_size = 0;
SELECT parallel_replicas.reset_events();
-- The stable facts of an execution.  How many granules a participant reads is chance.
CREATE FUNCTION analyze_json(query text) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    plan json;
BEGIN
    EXECUTE 'EXPLAIN (ANALYZE, VERBOSE, BUFFERS, WAL, FORMAT JSON) ' || query INTO plan;
    RETURN plan::jsonb -> 0;
END$$;
CREATE FUNCTION nodes(plan jsonb) RETURNS SETOF jsonb LANGUAGE sql AS $$
    WITH RECURSIVE n AS (
        SELECT plan AS node
        UNION ALL
        SELECT child FROM n, jsonb_array_elements(n.node -> 'Plans') child)
    SELECT node FROM n
$$;
CREATE FUNCTION facts(query text) RETURNS TABLE (fact text, value text) LANGUAGE plpgsql AS $$
DECLARE
    plan jsonb := analyze_json(query) -> 'Plan';
    node jsonb;
    counted bigint;
BEGIN
    FOR node IN SELECT nodes(plan) LOOP
        RETURN QUERY VALUES ('node', concat_ws(' ', node ->> 'Partial Mode', node ->> 'Node Type', node ->> 'Custom Plan Provider'));
        IF node ->> 'Custom Plan Provider' = 'ParallelReplicas' THEN
            SELECT sum((p ->> 'Granules Own')::int + (p ->> 'Granules Stolen By Hash')::int + (p ->> 'Granules Stolen Rest')::int)
              INTO counted FROM jsonb_array_elements(node -> 'Participants') p;
            RETURN QUERY VALUES
                ('replicas planned', node ->> 'Replicas Planned'),
                ('replicas used', CASE WHEN (node ->> 'Replicas Used')::int BETWEEN 1 AND (node ->> 'Replicas Planned')::int THEN 'some' ELSE node ->> 'Replicas Used' END),
                ('every granule once', (counted = (node ->> 'Granules')::int)::text),
                ('participants', (SELECT string_agg(p ->> 'Name', ', ' ORDER BY p ->> 'Name') FROM jsonb_array_elements(node -> 'Participants') p)),
                ('trouble', (SELECT string_agg(DISTINCT p ->> 'Trouble', ', ') FROM jsonb_array_elements(node -> 'Participants') p)),
                ('lost', (SELECT sum((p ->> 'Granules Lost')::int)::text FROM jsonb_array_elements(node -> 'Participants') p)),
                ('received', ((SELECT sum((p ->> 'Rows')::bigint) > 0 AND sum((p ->> 'Bytes')::bigint) > 0 FROM jsonb_array_elements(node -> 'Participants') p)::text));
        END IF;
    END LOOP;
END$$;
-- Without a share for this server, replicas cannot come too late.
SET parallel_replicas_local_plan = off;
SELECT * FROM facts('SELECT count(*) FROM fact');
SELECT * FROM facts('SELECT grp, sum(val) FROM fact GROUP BY grp');
SELECT * FROM facts('SELECT * FROM fact');
SELECT * FROM facts('SELECT * FROM fact ORDER BY val, id');
SELECT * FROM facts('SELECT name, count(*) FROM fact JOIN dim USING (grp) GROUP BY name');
SELECT * FROM facts('SELECT count(*) FROM part');
-- Keys of a participant.
SELECT jsonb_object_keys(p) AS key
  FROM nodes(analyze_json('SELECT count(*) FROM fact') -> 'Plan') n, jsonb_array_elements(n -> 'Participants') p
 WHERE p ->> 'Name' = 'standby1' ORDER BY 1;
SELECT key FROM nodes(analyze_json('SELECT count(*) FROM fact') -> 'Plan') n, jsonb_object_keys(n) key
 WHERE n ->> 'Custom Plan Provider' = 'ParallelReplicas' ORDER BY 1;
-- Rows and buffers of what replicas did are part of the sums.
SELECT n ->> 'Actual Loops' <> '0' AS "loops > 0",
       round((n ->> 'Actual Rows')::numeric * (n ->> 'Actual Loops')::numeric, -3) AS "rows, rounded",
       (n ->> 'Shared Hit Blocks')::int + (n ->> 'Shared Read Blocks')::int
           >= pg_relation_size('fact') / current_setting('block_size')::int AS "all blocks"
  FROM nodes(analyze_json('SELECT * FROM fact') -> 'Plan') n
 WHERE n ->> 'Custom Plan Provider' = 'GranuleScan';
-- With it, all of them together still read each granule once.
RESET parallel_replicas_local_plan;
SELECT fact, value FROM facts('SELECT count(*) FROM fact') WHERE fact IN ('node', 'every granule once', 'participants', 'trouble');
-- The counters have moved.
SELECT event, value > 0 AS counted FROM parallel_replicas.events
 WHERE event ~ 'QueryCount|AvailableCount|UsedCount|NumRequests|RowsReceived|BytesReceived|ReadAssignedMarks|LostCount$';
-- The other formats can be made, too.
DO $$
DECLARE
    x text;
BEGIN
    EXECUTE 'EXPLAIN (ANALYZE, FORMAT XML) SELECT count(*) FROM fact' INTO x;
    RAISE NOTICE 'XML: %', (xpath('count(//*[local-name() = ''Participant''])', x::xml))[1];
END$$;
DROP FUNCTION facts;
DROP FUNCTION nodes;
DROP FUNCTION analyze_json;
