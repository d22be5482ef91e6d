-- name: release_slots
-- Takes slots from their pods. The next pod of a slot is as large as the first one was, before it
-- was resized.
UPDATE allocation_slots s SET pod_uid = NULL,
    resources = coalesce(s.granted, s.resources), granted = NULL,
    state = CASE WHEN g.is_back THEN 'returned' ELSE 'free' END,
    returned_at = CASE WHEN g.is_back THEN now() END
FROM unnest(CAST(:ids AS bigint[]), CAST(:numbers AS int[]), CAST(:back AS bool[]))
     AS g (id, number, is_back)
JOIN allocation_slots o ON o.allocation_id = g.id AND o.number = g.number
WHERE s.allocation_id = g.id AND s.number = g.number
RETURNING s.allocation_id, o.granted IS NOT NULL AS was_resized

-- name: give_slots
-- Gives slots to pods.
UPDATE allocation_slots s SET state = 'held', pod_uid = g.pod, returned_at = NULL,
    resources = coalesce(s.granted, s.resources), granted = NULL
FROM unnest(CAST(:ids AS bigint[]), CAST(:numbers AS int[]), CAST(:pods AS text[]))
     AS g (id, number, pod)
JOIN allocation_slots o ON o.allocation_id = g.id AND o.number = g.number
WHERE s.allocation_id = g.id AND s.number = g.number
RETURNING s.allocation_id, o.granted IS NOT NULL AS was_resized

-- name: index_slots
-- Writes the completion indexes of slots that pods hold. An index has one slot, the last it was
-- given.
WITH given AS (
    SELECT s.allocation_id AS id, s.number, p.completion_index AS index
    FROM unnest(CAST(:ids AS bigint[]), CAST(:numbers AS int[])) AS g (id, number)
    JOIN allocation_slots s ON s.allocation_id = g.id AND s.number = g.number
    JOIN pods p ON p.uid = s.pod_uid)
UPDATE allocation_slots s
SET completion_index = (SELECT g.index FROM given g
                        WHERE g.id = s.allocation_id AND g.number = s.number)
WHERE EXISTS (SELECT FROM given g WHERE g.id = s.allocation_id
              AND (g.number = s.number OR g.index = s.completion_index))
  AND s.allocation_id = ANY(CAST(:ids AS bigint[]))

-- name: mark_refused
-- Records that the nodes of these pods' slots did not take them.
UPDATE allocation_slots SET refused_at = now()
WHERE pod_uid = ANY(CAST(:pods AS text[])) AND refused_at IS NULL
