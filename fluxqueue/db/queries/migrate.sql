-- name: note_digest
-- Stores which text made the schema, in the transaction of each revision (``env.py``).
UPDATE schema_floor SET digest = :digest

-- name: stored_digest
-- Which text made the schema. The column is missing in old ones.
SELECT to_jsonb(f) ->> 'digest' FROM schema_floor f

-- name: oldest_head
-- The oldest revision that code must know.
SELECT oldest_head FROM schema_floor

-- name: connected_processes
-- Which processes of fluxqueue are connected, by their names.
SELECT DISTINCT application_name FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE :ours
