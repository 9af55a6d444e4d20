--
-- HARMLESS_SESSION: with 2, everything around queries works as ever
--
SET enable_parallel_replicas = 2;
-- LISTEN and NOTIFY: the message names a process id, so psql must not show it.
\o /dev/null
LISTEN regress_channel;
NOTIFY regress_channel, 'hello';
SELECT pg_notify('regress_channel', count(*)::text) FROM dim;
UNLISTEN *;
\o

-- Cursors.
BEGIN;
DECLARE c CURSOR FOR SELECT id FROM fact ORDER BY id;
FETCH 2 FROM c;
MOVE FORWARD 100 IN c;
FETCH 1 FROM c;
CLOSE c;
DECLARE s SCROLL CURSOR FOR SELECT grp, count(*) FROM fact GROUP BY grp ORDER BY grp;
FETCH 2 FROM s;
FETCH BACKWARD 1 FROM s;
FETCH LAST FROM s;
COMMIT;
BEGIN;
DECLARE h CURSOR WITH HOLD FOR SELECT id FROM fact ORDER BY id DESC;
COMMIT;
FETCH 1 FROM h;
CLOSE h;
\set FETCH_COUNT 7
SELECT grp FROM dim WHERE grp < 10 ORDER BY grp;
\unset FETCH_COUNT

-- PL/pgSQL.
DO $$
DECLARE
    r record;
    c refcursor;
    n bigint := 0;
BEGIN
    FOR r IN SELECT grp FROM fact LOOP
        n := n + 1;
        EXIT WHEN n = 1000;
    END LOOP;
    FOR r IN SELECT grp, count(*) AS many FROM fact GROUP BY grp ORDER BY grp LIMIT 2 LOOP
        RAISE NOTICE 'group % has %', r.grp, r.many;
    END LOOP;
    OPEN c FOR SELECT id FROM fact ORDER BY id;
    FETCH c INTO n;
    RAISE NOTICE 'first %', n;
    CLOSE c;
    EXECUTE 'SELECT count(*) FROM fact WHERE id < $1' INTO n USING 100;
    RAISE NOTICE 'below 100: %', n;
    PERFORM count(*) FROM part;
    BEGIN
        PERFORM sum(1 / (grp - 5)) FROM fact;
    EXCEPTION WHEN division_by_zero THEN
        RAISE NOTICE 'caught: %', SQLERRM;
    END;
    EXECUTE 'SELECT count(*) FROM fact' INTO n;
    RAISE NOTICE 'still %', n;
END$$;
CREATE PROCEDURE steps() LANGUAGE plpgsql AS $$
DECLARE
    n bigint;
BEGIN
    EXECUTE 'SELECT count(*) FROM fact' INTO n;
    RAISE NOTICE 'before %', n;
    COMMIT;
    EXECUTE 'SELECT count(*) FROM fact' INTO n;
    RAISE NOTICE 'after %', n;
    ROLLBACK;
    FOR n IN SELECT grp FROM dim WHERE grp < 3 ORDER BY grp LOOP
        COMMIT;
    END LOOP;
    RAISE NOTICE 'last %', n;
END$$;
CALL steps();
DROP PROCEDURE steps;

-- Prepared statements.
PREPARE counted(integer) AS SELECT count(*) FROM fact WHERE grp = $1;
EXECUTE counted(5);
EXECUTE counted(NULL);
DEALLOCATE counted;
PREPARE write AS INSERT INTO dim VALUES (-1, 'minus one');
EXECUTE write;
DELETE FROM dim WHERE grp = -1;
DEALLOCATE ALL;

-- Large objects.
BEGIN;
SELECT lo_from_bytea(987654, '\x01020304') AS made;
SELECT lo_get(987654);
SELECT count(*) FROM pg_largeobject WHERE loid = 987654;
SELECT lo_unlink(987654);
COMMIT;

-- Sequences, advisory locks, settings, two-phase transactions, and the rest.
CREATE SEQUENCE regress_sequence;
SELECT nextval('regress_sequence'), currval('regress_sequence');
DROP SEQUENCE regress_sequence;
SELECT pg_advisory_lock(7), pg_advisory_unlock(7);
SHOW work_mem;
VALUES (1), (2);
TABLE dim ORDER BY grp LIMIT 1;
SELECT txid_current() > 0 AS written;
BEGIN;
SAVEPOINT a;
SELECT count(*) FROM fact;
SELECT 1 / 0;
ROLLBACK TO a;
SELECT count(*) FROM fact;
RELEASE a;
END;
SELECT pg_sleep(0);
SELECT count(*) FROM fact \gdesc
SELECT 'SELECT count(*) FROM dim' \gexec
SELECT grp, id % 3 AS x, id FROM fact WHERE grp < 2 AND id < 300 ORDER BY 1, 2, 3 \crosstabview grp x id
DISCARD PLANS;
DISCARD ALL;
SHOW enable_parallel_replicas;
