-- Code with this newest revision works on the schema. So does all newer code. A revision of
-- kind "post" raises it in its own transaction (migrations/README.md).
INSERT INTO schema_floor (oldest_head) VALUES ('0002');

-- The timeline of the server. Each promotion of a replica and each recovery to a point in time begins
-- another one, which may lack the last commits of the former.
CREATE FUNCTION fluxqueue_timeline() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END
$$;
