-- PORTIONS: a query that is executed in portions goes on where it stopped. PostgreSQL executes such
-- queries without parallelism, here a function whose rows are fetched one by one.
SET parallel_setup_cost = 0;
SET parallel_replicas.setup_cost = 0;
SET parallel_tuple_cost = 0;
SET parallel_replicas.tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
CREATE FUNCTION ordered() RETURNS SETOF integer LANGUAGE sql AS
    'SELECT id FROM fact WHERE grp < 5 ORDER BY grp, id';
CREATE FUNCTION unordered() RETURNS SETOF integer LANGUAGE sql AS
    'SELECT id FROM fact WHERE grp < 5';
CREATE FUNCTION grouped() RETURNS SETOF bigint LANGUAGE sql AS
    'SELECT count(*) FROM fact GROUP BY grp ORDER BY grp';
SET enable_parallel_replicas = 0;
SELECT count(*), sum(v) FROM (SELECT ordered() AS v OFFSET 0) AS s;
SELECT count(*), sum(v) FROM (SELECT unordered() AS v OFFSET 0) AS s;
SELECT count(*), sum(v) FROM (SELECT grouped() AS v OFFSET 0) AS s;
SET enable_parallel_replicas = 1;
SELECT count(*), sum(v) FROM (SELECT ordered() AS v OFFSET 0) AS s;
SELECT count(*), sum(v) FROM (SELECT unordered() AS v OFFSET 0) AS s;
SELECT count(*), sum(v) FROM (SELECT grouped() AS v OFFSET 0) AS s;
DROP FUNCTION ordered, unordered, grouped;
