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
