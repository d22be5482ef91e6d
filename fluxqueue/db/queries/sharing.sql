-- name: unmanaged_pods
-- The unmanaged pods on some nodes, and what managed pods use beyond their slots.
SELECT pod_uid AS uid, namespace, name, node, resources, is_permanent FROM foreign_usage
WHERE node = ANY(CAST(:nodes AS text[]))
UNION ALL
SELECT uid, namespace, name, node, unmanaged, false FROM pods
WHERE unmanaged IS NOT NULL AND node = ANY(CAST(:nodes AS text[]))
ORDER BY namespace, name, uid
