-- name: open_choices
-- Workloads with slots that have a choice of nodes, and whether a pod of theirs is bound.
SELECT a.uid, bool_or(p.node IS NOT NULL) AS is_bound
FROM allocation_slots s JOIN allocations a ON a.id = s.allocation_id
LEFT JOIN pods p ON p.uid = s.pod_uid
WHERE s.others IS NOT NULL AND a.is_live AND s.state <> 'returned' AND s.refused_at IS NULL
GROUP BY a.uid

-- name: lock_quietly
-- Locks rows in the order of their UIDs, without keeping others from referring to them.
SELECT uid FROM fluxjobs WHERE uid = ANY(CAST(:uids AS text[])) ORDER BY uid FOR NO KEY UPDATE

-- name: landed_slots
-- Slots with a choice, and the nodes that their pods were bound to.
SELECT a.uid, s.allocation_id, s.number, s.node, p.node AS landed, s.resources
FROM allocation_slots s JOIN allocations a ON a.id = s.allocation_id
JOIN pods p ON p.uid = s.pod_uid
WHERE s.others IS NOT NULL AND a.is_live AND s.state = 'held' AND p.node IS NOT NULL
  AND a.uid = ANY(CAST(:uids AS text[]))
ORDER BY a.uid, s.number

-- name: move_slots
-- Books slots where their pods landed. NULL leaves a slot where it is.
UPDATE allocation_slots s SET node = coalesce(r.node, s.node), others = NULL
FROM unnest(CAST(:ids AS bigint[]), CAST(:numbers AS int[]), CAST(:nodes AS text[]))
     AS r (id, number, node)
WHERE s.allocation_id = r.id AND s.number = r.number
