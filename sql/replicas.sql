-- The foreign-data wrapper that holds the definitions of replicas, and functions to manage them.

-- Everything here checks rights by itself, and the roles that replicas log in with look things up.
GRANT USAGE ON SCHEMA parallel_replicas TO PUBLIC;

REVOKE ALL ON FUNCTION parallel_replicas.fdw_validator(text[], oid) FROM PUBLIC;

CREATE FOREIGN DATA WRAPPER parallel_replicas
    NO HANDLER
    VALIDATOR parallel_replicas.fdw_validator;

COMMENT ON FOREIGN DATA WRAPPER parallel_replicas IS
    'servers of a cluster that executes queries together';

CREATE FUNCTION parallel_replicas.add_replica(
    name text,
    host text,
    port integer,
    cluster text DEFAULT 'default',
    username text DEFAULT NULL,
    password text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql
VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict error
DECLARE
    missing text := CASE
        WHEN add_replica.name IS NULL THEN 'name'
        WHEN add_replica.host IS NULL THEN 'host'
        WHEN add_replica.port IS NULL THEN 'port'
        WHEN add_replica.cluster IS NULL THEN 'cluster'
    END;
    mapping text := '';
    code text;
    primary_text text;
    detail_text text;
    hint_text text;
BEGIN
    IF missing IS NOT NULL THEN
        RAISE EXCEPTION '% of a replica must not be null', missing
            USING ERRCODE = 'null_value_not_allowed';
    END IF;
    EXECUTE format(
        'CREATE SERVER %I FOREIGN DATA WRAPPER parallel_replicas '
        'OPTIONS (host %L, port %L, cluster %L)',
        add_replica.name, add_replica.host, add_replica.port, add_replica.cluster);
    IF add_replica.username IS NOT NULL THEN
        mapping := format('user %L', add_replica.username);
    END IF;
    IF add_replica.password IS NOT NULL THEN
        mapping := concat_ws(', ', nullif(mapping, ''), format('password %L', add_replica.password));
    END IF;
    BEGIN
        EXECUTE format('CREATE USER MAPPING FOR CURRENT_USER SERVER %I', add_replica.name)
            || CASE WHEN mapping <> '' THEN format(' OPTIONS (%s)', mapping) ELSE '' END;
    EXCEPTION WHEN OTHERS THEN
        -- Raised anew, because the context of the original holds the statement and so the password.
        GET STACKED DIAGNOSTICS
            code = RETURNED_SQLSTATE, primary_text = MESSAGE_TEXT,
            detail_text = PG_EXCEPTION_DETAIL, hint_text = PG_EXCEPTION_HINT;
        RAISE EXCEPTION USING ERRCODE = code, MESSAGE = primary_text,
            DETAIL = detail_text, HINT = hint_text;
    END;
END
$function$;

COMMENT ON FUNCTION parallel_replicas.add_replica(text, text, integer, text, text, text) IS
    'defines a replica as a foreign server, with a user mapping for the current user';

CREATE FUNCTION parallel_replicas.remove_replica(name text)
RETURNS void
LANGUAGE plpgsql
VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET client_min_messages = warning
AS $function$
#variable_conflict error
BEGIN
    IF NOT EXISTS (
        SELECT FROM pg_foreign_server s
          JOIN pg_foreign_data_wrapper w ON w.oid = s.srvfdw
         WHERE s.srvname = remove_replica.name AND w.fdwname = 'parallel_replicas')
    THEN
        RAISE EXCEPTION 'replica "%" does not exist', remove_replica.name
            USING ERRCODE = 'undefined_object',
                  DETAIL = 'No foreign server of parallel_replicas has this name.',
                  HINT = 'Replicas are the servers of pg_foreign_server that use the '
                         'foreign-data wrapper parallel_replicas.';
    END IF;
    -- The user mappings go with it.
    EXECUTE format('DROP SERVER %I CASCADE', remove_replica.name);
END
$function$;

COMMENT ON FUNCTION parallel_replicas.remove_replica(text) IS
    'removes the definition of a replica with its user mappings';

-- Both act with the caller's rights, which have to include USAGE on the foreign-data wrapper. A
-- superuser who grants that to a role grants these too.
REVOKE ALL ON FUNCTION
    parallel_replicas.add_replica(text, text, integer, text, text, text),
    parallel_replicas.remove_replica(text)
FROM PUBLIC;
