--
-- CALLERS: functions, cursors and rescans over parallel parts
--
SET enable_parallel_replicas = 2;
SET max_parallel_workers_per_gather = 2;
-- SQL functions.  PostgreSQL never executes their queries in parallel mode (see reasons_execution).
SET enable_parallel_replicas = 1;
CREATE FUNCTION not_inlined(integer) RETURNS bigint LANGUAGE sql VOLATILE
    AS 'SELECT count(*) FROM fact WHERE grp = $1';
SELECT not_inlined(7), not_inlined(8), not_inlined(NULL);
SELECT g, not_inlined(g) FROM generate_series(1, 3) g;
CREATE FUNCTION as_set(integer) RETURNS SETOF fact LANGUAGE sql VOLATILE
    AS 'SELECT * FROM fact WHERE id < $1 ORDER BY id';
SELECT id, txt FROM as_set(2) ORDER BY id DESC LIMIT 3;
SELECT grp, not_inlined(grp) FROM dim WHERE grp BETWEEN 1 AND 3 ORDER BY grp;
SET enable_parallel_replicas = 2;
-- PL/pgSQL functions.
CREATE FUNCTION as_query(integer) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY SELECT count(*) FROM fact WHERE grp < $1;
    RETURN QUERY EXECUTE 'SELECT sum(id) FROM fact WHERE grp < $1' USING $1;
END$$;
SELECT * FROM as_query(5);
CREATE FUNCTION looped(integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    r record;
    n bigint := 0;
BEGIN
    FOR r IN SELECT id FROM fact WHERE grp < $1 LOOP
        n := n + r.id;
    END LOOP;
    RETURN n;
END$$;
SELECT looped(5);
CREATE FUNCTION ref() RETURNS refcursor LANGUAGE plpgsql AS $$
DECLARE
    c refcursor := 'named';
BEGIN
    OPEN c FOR SELECT grp, count(*) FROM fact GROUP BY grp ORDER BY grp;
    RETURN c;
END$$;
BEGIN;
SELECT ref();
FETCH 2 FROM named;
FETCH ABSOLUTE 50 FROM named;
COMMIT;

-- Rescans: the inner side is executed once for each outer row.
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SET enable_material = off;
EXPLAIN (COSTS OFF)
SELECT g, n FROM generate_series(1, 3) g JOIN (SELECT grp, count(*) AS n FROM fact GROUP BY grp) s ON s.grp % 3 = g % 3;
SELECT g, sum(n), count(*) FROM generate_series(1, 3) g JOIN (SELECT grp, count(*) AS n FROM fact GROUP BY grp) s ON s.grp % 3 = g % 3 GROUP BY g ORDER BY g;
EXPLAIN (COSTS OFF)
SELECT g, id FROM generate_series(1, 3) g, LATERAL (SELECT id FROM fact ORDER BY val DESC NULLS LAST, id LIMIT 2) s ORDER BY 1, 2;
SELECT g, id FROM generate_series(1, 3) g, LATERAL (SELECT id FROM fact ORDER BY val DESC NULLS LAST, id LIMIT 2) s ORDER BY 1, 2;
SELECT g, sum(id), count(*) FROM generate_series(1, 3) g JOIN (SELECT id FROM fact WHERE grp = 4 OFFSET 0) s ON s.id % 3 < g GROUP BY g ORDER BY g;
SELECT g, n FROM generate_series(1, 4) g LEFT JOIN (SELECT count(*) AS n FROM part) s ON g > 2 ORDER BY g;
SET parallel_replicas_local_plan = off;
SELECT g, sum(n), count(*) FROM generate_series(1, 3) g JOIN (SELECT grp, count(*) AS n FROM fact GROUP BY grp) s ON s.grp % 3 = g % 3 GROUP BY g ORDER BY g;
SELECT g, id FROM generate_series(1, 3) g, LATERAL (SELECT id FROM fact ORDER BY val DESC NULLS LAST, id LIMIT 2) s ORDER BY 1, 2;
RESET parallel_replicas_local_plan;
RESET enable_hashjoin;
RESET enable_mergejoin;
RESET enable_material;
-- Parts of a query that end early, or never start.
SELECT count(*) FROM (SELECT id FROM fact LIMIT 7) s;
SELECT count(*) FROM (SELECT id FROM fact OFFSET 20000) s;
SELECT EXISTS (SELECT FROM fact WHERE id = 777), EXISTS (SELECT FROM fact WHERE id = 77777);
SELECT count(*) FROM fact WHERE id IN (SELECT id FROM fact WHERE grp = 3 LIMIT 5);
SELECT CASE WHEN count(*) < 0 THEN (SELECT max(id) FROM part) END FROM dim;
SELECT * FROM (SELECT id FROM fact ORDER BY id LIMIT 3) a UNION ALL (SELECT grp FROM dim ORDER BY grp LIMIT 2) ORDER BY 1;
-- A parallel part in a parallel part's InitPlan.
SELECT count(*) FROM fact WHERE id > (SELECT max(grp) FROM dim WHERE grp < (SELECT count(*) FROM part WHERE id < 50));
-- Comparisons over the same ground.
SELECT q AS query, c.* FROM unnest(ARRAY[
    'SELECT a.grp, b.n FROM dim a LEFT JOIN (SELECT grp, count(*) AS n FROM fact GROUP BY grp) b USING (grp)',
    'SELECT d.grp, s.id FROM dim d, LATERAL (SELECT max(id) AS id FROM fact f WHERE f.grp = d.grp) s',
    'SELECT name, sum(val), count(*) FROM fact JOIN dim USING (grp) GROUP BY name',
    'SELECT * FROM fact FULL JOIN dim USING (grp)',
    'SELECT count(*) FROM part p JOIN fact f ON f.id = p.id JOIN dim d ON d.grp = f.grp WHERE p.amount > 3',
    'WITH s AS MATERIALIZED (SELECT grp, sum(id) AS n FROM fact GROUP BY grp) SELECT a.grp, b.n FROM s a JOIN s b ON a.n < b.n',
    'SELECT id, rank() OVER (PARTITION BY grp ORDER BY val) AS r, lag(id) OVER (ORDER BY id) AS l FROM fact',
    'SELECT grp, day, count(*) FROM fact GROUP BY CUBE (grp, day)',
    'SELECT id FROM fact EXCEPT SELECT id FROM part',
    'SELECT id FROM fact INTERSECT SELECT id FROM part',
    'SELECT DISTINCT ON (grp) grp, id FROM fact ORDER BY grp, id DESC',
    'SELECT grp FROM fact GROUP BY grp HAVING sum(val) > (SELECT avg(s) FROM (SELECT sum(val) AS s FROM fact GROUP BY grp) x)',
    'SELECT generate_series(1, grp % 3) AS g, id FROM fact WHERE id < 500',
    'SELECT region, amount, count(*) FROM part GROUP BY ROLLUP (region, amount)']) q, compare(q) c;
DROP FUNCTION not_inlined, as_set, as_query, looped, ref;
