--
-- HARMLESS_PLPGSQL: with 2, what PL/pgSQL and triggers ask by the way does not fail
--
SET enable_parallel_replicas = 2;
CREATE FUNCTION asks() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    n bigint;
    m bigint;
BEGIN
    SELECT count(*) INTO n FROM fact;
    m := (SELECT max(id) FROM part);
    IF EXISTS (SELECT FROM fact WHERE id = 17) THEN
        RETURN format('%s %s', n, m);
    END IF;
END$$;
SELECT asks();
CREATE TABLE watched (i integer);
CREATE TABLE log (what text);
CREATE FUNCTION logged() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    groups bigint;
BEGIN
    EXECUTE 'SELECT count(*) FROM dim' INTO groups;
    INSERT INTO log VALUES (TG_OP || ' ' || groups);
    RETURN NULL;
END$$;
CREATE TRIGGER logged AFTER INSERT OR UPDATE OR DELETE ON watched EXECUTE FUNCTION logged();
INSERT INTO watched VALUES (1), (2);
UPDATE watched SET i = i + 1;
DELETE FROM watched;
SELECT * FROM log ORDER BY what;
DROP TABLE watched, log;
DROP FUNCTION asks, logged;
