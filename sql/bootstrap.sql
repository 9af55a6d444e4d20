-- Functions and operators that somebody has put into the schema would be found by our views.
DO $block$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_roles r ON r.oid = n.nspowner
                WHERE n.nspname = 'parallel_replicas'
                  AND (NOT r.rolsuper AND r.rolname <> current_user
                       OR EXISTS (SELECT FROM pg_catalog.pg_proc WHERE pronamespace = n.oid)
                       OR EXISTS (SELECT FROM pg_catalog.pg_operator WHERE oprnamespace = n.oid))) THEN
        RAISE EXCEPTION 'schema "parallel_replicas" belongs to somebody else, or is not empty'
            USING ERRCODE = 'insufficient_privilege',
                  DETAIL = 'The extension is installed in a schema of its owner.',
                  HINT = 'Look into the schema, and drop or rename it.';
    END IF;
END
$block$;

-- The secret by which a coordinator proves itself to a replica (see ARCHITECTURE.md, "Security").
-- Replication carries it to every standby. Only superusers can read it.

CREATE TABLE parallel_replicas.secret (
    secret bytea NOT NULL CHECK (length(secret) >= 32),
    only_row boolean NOT NULL DEFAULT true PRIMARY KEY CHECK (only_row)
);

REVOKE ALL ON parallel_replicas.secret FROM PUBLIC;

COMMENT ON TABLE parallel_replicas.secret IS
    'shared secret of coordinator and replicas; never dumped';

-- Two random UUIDs are 244 random bits.
INSERT INTO parallel_replicas.secret (secret)
VALUES (sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8')));
