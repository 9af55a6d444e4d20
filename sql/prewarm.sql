-- Loading tables into caches.

COMMENT ON FUNCTION parallel_replicas.prewarm(regclass, text) IS
    'loads each server''s own segments of a table into its cache';

COMMENT ON FUNCTION parallel_replicas.prewarm_blocks(oid, bigint, bigint) IS
    'loads blocks of a table into this server''s cache';

-- What links may ask of a replica; it looks at no row.
REVOKE ALL ON FUNCTION parallel_replicas.prewarm_blocks(oid, bigint, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION parallel_replicas.prewarm_blocks(oid, bigint, bigint)
    TO parallel_replicas_link;
