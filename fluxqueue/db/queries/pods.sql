-- fragment: gave_back
RETURNING CASE WHEN unmanaged IS NOT NULL THEN node END AS node

-- name: delete_other_pods
-- Deletes pods of whole workloads that exist no more. Returns the nodes that get something back.
DELETE FROM pods WHERE workload_uid = ANY(CAST(:workloads AS text[]))
AND NOT uid = ANY(CAST(:pods AS text[]))
-- include: gave_back

-- name: delete_pods
-- The same for pods that were seen ending.
DELETE FROM pods WHERE uid = ANY(CAST(:pods AS text[]))
-- include: gave_back

-- name: save_pods
-- Writes pods as they are, and says of those that have changed whether they are bound, while their
-- slots had several nodes. A gate never comes back: a writer that saw the pod before its gate went
-- must not restore it.
INSERT INTO pods AS p (uid, workload_uid, namespace, name, phase, is_gated, is_terminating, node,
                       completion_index, slot_kind, uses, used_first, unschedulable,
                       unschedulable_at)
SELECT uid, workload_uid, namespace, name, phase, is_gated, is_terminating, node, completion_index,
       slot_kind, nullif(uses, '{}'), nullif(uses, '{}'), nullif(unschedulable, ''),
       CASE WHEN unschedulable <> '' THEN now() END
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    uid text, workload_uid text, namespace text, name text, phase text, is_gated bool,
    is_terminating bool, node text, completion_index int, slot_kind text, uses jsonb,
    unschedulable text)
ON CONFLICT (uid) DO UPDATE SET
    phase = excluded.phase, is_gated = p.is_gated AND excluded.is_gated, node = excluded.node,
    is_terminating = excluded.is_terminating, uses = coalesce(excluded.uses, p.uses),
    used_first = coalesce(p.used_first, excluded.uses), unschedulable = excluded.unschedulable,
    -- Other words are no other beginning.
    unschedulable_at = CASE WHEN excluded.unschedulable IS NOT NULL
                            THEN coalesce(p.unschedulable_at, excluded.unschedulable_at) END
WHERE (p.phase, p.is_gated, p.node, p.is_terminating, p.uses, p.unschedulable) IS DISTINCT FROM
      (excluded.phase, p.is_gated AND excluded.is_gated, excluded.node, excluded.is_terminating,
       coalesce(excluded.uses, p.uses), excluded.unschedulable)
-- One look for each pod. For EXISTS, the planner may read all slots, of ended jobs too.
RETURNING p.node IS NOT NULL AND (
    SELECT s.others IS NOT NULL FROM allocation_slots s WHERE s.pod_uid = p.uid) AS has_landed

-- name: resize_slots
-- Fits slots to pods that were resized in place. A slot keeps its granted size, and grows when its
-- pod is resized in place. It does not shrink with its pod: the pod, or the one that replaces it,
-- may want the resources again.
WITH resized AS (
    SELECT s.allocation_id, s.number, coalesce(s.granted, s.resources) AS granted,
           (SELECT coalesce(jsonb_object_agg(g.key, CASE WHEN p.uses ? g.key THEN
                least(1::bigint << 52, g.value::numeric + greatest(0, (p.uses ->> g.key)::bigint
                    - coalesce((p.used_first ->> g.key)::bigint, 0)))
                ELSE g.value::numeric END), '{}')
            FROM jsonb_each_text(coalesce(s.granted, s.resources)) g) AS resources
    FROM pods p JOIN allocation_slots s ON s.pod_uid = p.uid AND s.state = 'held'
    WHERE p.uid = ANY(CAST(:pods AS text[])) AND (s.granted IS NOT NULL OR p.uses <> p.used_first)
)
UPDATE allocation_slots s SET resources = r.resources, granted = r.granted
FROM resized r WHERE s.allocation_id = r.allocation_id AND s.number = r.number
  AND s.resources <> r.resources
RETURNING s.allocation_id::text

-- name: count_unmanaged
-- Counts what these workloads' pods use beyond their slots, and returns the pods that use another
-- amount than before. They count with their own requests, whatever slot they were given. Without a
-- slot, all of it counts as unmanaged.
WITH its AS (
    SELECT p.uid, CASE
        WHEN p.node IS NULL OR p.uses IS NULL THEN NULL
        WHEN s.pod_uid IS NOT NULL THEN (
            SELECT jsonb_object_agg(u.key, u.value::bigint
                                    - coalesce((s.resources ->> u.key)::bigint, 0))
            FROM jsonb_each_text(p.uses) u
            WHERE u.value::bigint > coalesce((s.resources ->> u.key)::bigint, 0))
        -- It is about to be given one of these.
        WHEN EXISTS (SELECT FROM allocations a JOIN allocation_slots o ON o.allocation_id = a.id
                     WHERE a.uid = p.workload_uid AND a.is_live AND o.state = 'free'
                       AND o.node = p.node) THEN NULL
        ELSE p.uses END AS unmanaged
    FROM pods p LEFT JOIN allocation_slots s
         ON s.pod_uid = p.uid AND s.state = 'held'
            -- Its slot is about to follow it to one of these.
            AND (s.node = p.node OR p.node = ANY(s.others))
    WHERE p.workload_uid = ANY(CAST(:uids AS text[]))
)
UPDATE pods p SET unmanaged = its.unmanaged FROM its
WHERE p.uid = its.uid AND p.unmanaged IS DISTINCT FROM its.unmanaged
RETURNING p.uid, p.workload_uid, p.namespace, p.name, p.node, p.unmanaged
