-- Who may use what.

-- Whoever may execute serve can log in and try; the secret decides. A role of its own keeps
-- even that to the accounts that links use.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'parallel_replicas_link') THEN
        CREATE ROLE parallel_replicas_link NOLOGIN;
    END IF;
END
$$;

REVOKE ALL ON PROCEDURE parallel_replicas.serve(bytea) FROM PUBLIC;
GRANT EXECUTE ON PROCEDURE parallel_replicas.serve(bytea) TO parallel_replicas_link;
REVOKE ALL ON FUNCTION parallel_replicas.cpu_time(integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION parallel_replicas.cpu_time(integer) TO parallel_replicas_link;

-- Raises the error with the hint if the library is not preloaded: better now than at the first use.
DO $$
BEGIN
    PERFORM FROM parallel_replicas.get_events();
END
$$;
