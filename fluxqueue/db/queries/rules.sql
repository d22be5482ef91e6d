-- name: save_rules
-- Writes objects of a kind, and returns the names of those that changed. One that cannot be used
-- keeps the spec that it has. One that was made anew under its name is another one, and a new spec
-- ends the pause of a pool that has failed.
INSERT INTO rules AS p (kind, name, uid, generation, spec, fault)
SELECT :kind, name, uid, generation, CASE WHEN fault IS NULL THEN spec END, fault
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    name text, uid text, generation bigint, spec jsonb, fault text)
ORDER BY name
ON CONFLICT (kind, name) DO UPDATE SET
    uid = excluded.uid, generation = excluded.generation, fault = excluded.fault,
    spec = coalesce(excluded.spec, CASE WHEN p.uid = excluded.uid THEN p.spec END),
    record = CASE WHEN p.uid <> excluded.uid THEN '{}'
                  WHEN p.generation <> excluded.generation THEN p.record - 'failures' - 'retry_at'
                  ELSE p.record END
WHERE (p.uid, p.generation, p.spec, p.fault)
    IS DISTINCT FROM (excluded.uid, excluded.generation, excluded.spec, excluded.fault)
RETURNING name

-- name: delete_rules
-- Deletes objects of a kind, and returns the names of those that had a row.
DELETE FROM rules WHERE kind = :kind AND name = ANY(CAST(:gone AS text[])) RETURNING name

-- name: stored_rules
-- All objects of a kind, for their status.
SELECT name, uid, generation, fault FROM rules WHERE kind = :kind ORDER BY name

-- name: rules_in_force
-- The specs in force of a kind, and what was recorded of their objects.
SELECT name, spec, record FROM rules WHERE kind = :kind AND spec IS NOT NULL ORDER BY name

-- name: record_rule
-- Replaces what is recorded of an object besides its spec.
UPDATE rules SET record = CAST(:record AS jsonb) WHERE kind = :kind AND name = :name
