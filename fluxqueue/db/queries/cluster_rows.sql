-- name: save_nodes
-- Writes nodes, and returns those that have changed. Others are not locked.
INSERT INTO nodes AS n (name, fact)
SELECT r ->> 'name', r FROM jsonb_array_elements(CAST(:rows AS jsonb)) r
LEFT JOIN nodes old ON old.name = r ->> 'name' WHERE old.fact IS DISTINCT FROM r
ORDER BY 1
ON CONFLICT (name) DO UPDATE SET fact = excluded.fact, seen_at = now()
RETURNING name

-- name: delete_nodes
-- Deletes nodes that are gone.
DELETE FROM nodes WHERE name = ANY(CAST(:gone AS text[])) RETURNING name

-- name: workloads_losing_nodes
-- Workloads with slots on nodes that no longer take pods, or with pods on nodes that are down or
-- gone.
SELECT DISTINCT a.uid FROM allocation_slots s JOIN allocations a ON a.id = s.allocation_id
LEFT JOIN nodes n ON n.name = s.node
LEFT JOIN fluxjobs f ON f.uid = a.uid
WHERE a.is_live AND s.node = ANY(CAST(:names AS text[])) AND s.state <> 'returned'
  AND (NOT coalesce((n.fact ->> 'up')::boolean, false)
       OR starts_with(f.reason, CAST(:lost AS text))
       OR (NOT (n.fact ->> 'schedulable')::boolean
           AND (s.state = 'free' OR EXISTS (
                SELECT FROM pods p WHERE p.uid = s.pod_uid
                AND (p.node IS NULL OR p.is_terminating)))))

-- name: save_foreign
-- Writes unmanaged pods that use a node, and returns those that have changed. Others are not
-- locked.
INSERT INTO foreign_usage AS u (pod_uid, namespace, name, node, resources, is_permanent)
SELECT r.* FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    uid text, namespace text, name text, node text, resources jsonb, is_permanent bool)
LEFT JOIN foreign_usage old ON old.pod_uid = r.uid
WHERE (old.node, old.resources) IS DISTINCT FROM (r.node, r.resources)
ORDER BY r.uid
ON CONFLICT (pod_uid) DO UPDATE SET node = excluded.node, resources = excluded.resources
RETURNING node, is_permanent

-- name: delete_foreign
-- Deletes unmanaged pods that no longer use a node.
DELETE FROM foreign_usage WHERE pod_uid = ANY(CAST(:gone AS text[])) RETURNING node, is_permanent

-- name: save_autoscaler
-- Writes what adds nodes to the cluster, if that has changed.
UPDATE cluster SET autoscaler = :names WHERE autoscaler <> :names RETURNING uid

-- name: tell_matcher
-- Records what the matcher must read again. The rows wake it.
INSERT INTO graph_changes (kind, key)
SELECT DISTINCT CAST(:kind AS text), unnest(CAST(:keys AS text[]))
