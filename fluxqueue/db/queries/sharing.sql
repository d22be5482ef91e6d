-- name: unmanaged_pods
-- The unmanaged pods on some nodes, and what managed pods use beyond their slots.
SELECT pod_uid AS uid, namespace, name, node, resources, is_permanent FROM foreign_usage
WHERE node = ANY(CAST(:nodes AS text[]))
UNION ALL
SELECT uid, namespace, name, node, unmanaged, false FROM pods
WHERE unmanaged IS NOT NULL AND node = ANY(CAST(:nodes AS text[]))
ORDER BY namespace, name, uid

-- name: save_policies
-- Writes policies, and returns the names of those that changed. A policy that cannot be used
-- keeps the spec that it has.
INSERT INTO sharing_policies AS p (name, uid, generation, spec, fault)
SELECT name, uid, generation, CASE WHEN fault IS NULL THEN spec END, fault
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    name text, uid text, generation bigint, spec jsonb, fault text)
ORDER BY name
ON CONFLICT (name) DO UPDATE SET
    uid = excluded.uid, generation = excluded.generation, fault = excluded.fault,
    spec = coalesce(excluded.spec, CASE WHEN p.uid = excluded.uid THEN p.spec END)
WHERE (p.uid, p.generation, p.spec, p.fault)
    IS DISTINCT FROM (excluded.uid, excluded.generation, excluded.spec, excluded.fault)
RETURNING name

-- name: delete_policies
-- Deletes policies, and returns the names of those that had a row.
DELETE FROM sharing_policies WHERE name = ANY(CAST(:gone AS text[])) RETURNING name

-- name: stored_policies
-- All policies, for their status.
SELECT name, uid, generation, fault FROM sharing_policies ORDER BY name

-- name: sharing_rules
-- The specs in force.
SELECT name, spec FROM sharing_policies WHERE spec IS NOT NULL
