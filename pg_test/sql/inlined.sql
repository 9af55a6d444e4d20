--
-- INLINED: an SQL function that becomes part of the query can use replicas
--
SET enable_parallel_replicas = 2;
CREATE FUNCTION inlined(integer) RETURNS TABLE (id integer, txt text) LANGUAGE sql STABLE PARALLEL SAFE
    AS 'SELECT id, txt FROM fact WHERE grp = $1';
EXPLAIN (COSTS OFF) SELECT count(*) FROM inlined(7);
SELECT count(*), min(id), max(txt) FROM inlined(7);
DROP FUNCTION inlined;
