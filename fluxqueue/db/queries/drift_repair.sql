-- name: return_slots
-- Frees the slots that no allocation holds.
UPDATE allocation_slots s SET state = 'returned', pod_uid = NULL, returned_at = now()
FROM allocations a WHERE a.id = s.allocation_id AND NOT a.is_live AND s.state <> 'returned'
RETURNING a.id

-- name: allocations_not_due
-- Allocations of workloads that do not run. Locks both in the order of the UIDs.
SELECT f.uid, a.id, f.ended_at IS NOT NULL AS is_over,
       EXISTS (SELECT FROM allocation_slots s JOIN pods p ON p.uid = s.pod_uid
               WHERE s.allocation_id = a.id) AS is_used
FROM fluxjobs f JOIN allocations a ON a.uid = f.uid AND a.is_live
WHERE f.state NOT IN ('Allocated', 'Running') ORDER BY f.uid FOR UPDATE OF f, a

-- name: end_allocations
-- Ends allocations.
UPDATE allocations SET is_live = false, ended_at = now() WHERE id = ANY(CAST(:ids AS bigint[]))

-- name: running_without_allocation
-- Locks workloads that run without an allocation.
SELECT uid FROM fluxjobs f WHERE state IN ('Allocated', 'Running')
AND NOT EXISTS (SELECT FROM allocations a WHERE a.uid = f.uid AND a.is_live)
ORDER BY uid FOR UPDATE

-- name: pods_without_slots
-- Locks workloads with a running pod that has no slot.
SELECT uid, state FROM fluxjobs f WHERE fluxjob_lives(state) AND EXISTS (
    SELECT FROM pods p WHERE p.workload_uid = f.uid AND NOT p.is_gated
    AND NOT p.is_terminating AND p.node IS NOT NULL
    AND NOT EXISTS (SELECT FROM allocation_slots s WHERE s.pod_uid = p.uid))
ORDER BY uid FOR UPDATE

-- name: requests_of
-- What workloads ask for.
SELECT uid, request FROM fluxjobs WHERE uid = ANY(CAST(:uids AS text[]))

-- name: adopt_allocations
-- Makes allocations for workloads with running pods that have none.
INSERT INTO allocations (uid, term, starts_at, until, is_exclusive)
SELECT f.uid, coalesce((SELECT term FROM leadership WHERE role = 'matcher'), 0),
       extract(epoch FROM now())::bigint,
       extract(epoch FROM now())::bigint + f.duration_s + f.grace_s,
       r.is_exclusive
FROM fluxjobs f
JOIN jsonb_to_recordset(CAST(:requests AS jsonb)) AS r (uid text, is_exclusive bool)
  ON r.uid = f.uid
WHERE f.uid = ANY(CAST(:uids AS text[]))
  AND NOT EXISTS (SELECT FROM allocations a WHERE a.uid = f.uid AND a.is_live)
  AND EXISTS (SELECT FROM pods p WHERE p.workload_uid = f.uid AND NOT p.is_gated
              AND p.node IS NOT NULL)
RETURNING id

-- name: adopt_slots
-- Makes a slot for each running pod that has none, where it runs.
INSERT INTO allocation_slots (allocation_id, number, node, resources, state, pod_uid,
                              completion_index)
SELECT a.id, (SELECT coalesce(max(o.number), -1) FROM allocation_slots o
              WHERE o.allocation_id = a.id)
             + row_number() OVER (PARTITION BY a.id ORDER BY p.name),
       p.node, r.needs, 'held', p.uid,
       CASE WHEN NOT EXISTS (
           SELECT FROM allocation_slots o WHERE o.allocation_id = a.id
           AND o.completion_index = p.completion_index) THEN p.completion_index END
FROM fluxjobs f JOIN allocations a ON a.uid = f.uid AND a.is_live
JOIN jsonb_to_recordset(CAST(:requests AS jsonb)) AS r (uid text, needs jsonb)
  ON r.uid = f.uid
JOIN pods p ON p.workload_uid = f.uid AND NOT p.is_gated AND p.node IS NOT NULL
WHERE f.uid = ANY(CAST(:uids AS text[]))
  AND NOT EXISTS (SELECT FROM allocation_slots s WHERE s.pod_uid = p.uid)
RETURNING allocation_id, (SELECT uid FROM allocations WHERE id = allocation_id) AS uid
