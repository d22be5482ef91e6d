-- fragment: standing
-- Fair-share points are left out because they come and go: they must not cause a preemption.
((f.priority_parts ->> 'bounded')::bigint + (f.priority_parts ->> 'queue')::bigint)

-- name: lock_preempted
-- Locks victims and preemptors together, in the order of their UIDs as everywhere. Another order
-- could deadlock with reconciling.
SELECT uid FROM fluxjobs WHERE uid IN (
    SELECT unnest(ARRAY[victim, preemptor]) FROM preemptions
    WHERE NOT is_told OR is_off OR (NOT is_vacated AND vacate_at <= :now))
ORDER BY uid FOR UPDATE

-- name: pending_preemptions
-- Preemptions with something to announce or to do.
SELECT p.victim, p.allocation_id, p.preemptor, p.jobid, p.vacate_at, p.is_told, p.is_vacated,
       p.is_off, p.reason_before, v.jobid AS victim_jobid, v.reason, v.namespace,
       h.namespace AS preemptor_namespace, h.workload_name AS preemptor_name,
       -- It may have ended, been cancelled or suspended since: then it gives its room back anyhow.
       a.id IS NOT NULL AND v.state IN ('Allocated', 'Running') AND v.result IS NULL
           AND NOT v.is_deleting AND v.cancel_by IS NULL AND v.vacate_by IS NULL AS is_staying
FROM preemptions p LEFT JOIN fluxjobs v ON v.uid = p.victim
LEFT JOIN fluxjobs h ON h.uid = p.preemptor
LEFT JOIN allocations a ON a.id = p.allocation_id AND a.is_live
WHERE NOT p.is_told OR p.is_off OR (NOT p.is_vacated AND p.vacate_at <= :now)
ORDER BY p.preemptor, p.victim

-- name: standings
-- The part of each priority that counts for preemption.
SELECT uid, -- include: standing
       AS standing
FROM fluxjobs f WHERE uid = ANY(CAST(:uids AS text[]))

-- name: preemption_candidates
-- What runs in some queues, can be requeued, and has a lower standing.
SELECT f.uid, f.jobid, f.queue, -- include: standing
       AS standing, a.starts_at AS started_at, f.grace_s
FROM allocations a JOIN fluxjobs f USING (uid)
WHERE a.is_live AND f.queue = ANY(CAST(:queues AS text[])) AND :below > -- include: standing
  AND f.observed ? 'is_suspendable' AND f.state IN ('Allocated', 'Running') AND f.result IS NULL
  AND NOT f.is_deleting AND f.vacate_by IS NULL AND f.cancel_by IS NULL
  AND f.author_hold IS NULL AND NOT f.is_gone
  AND NOT EXISTS (SELECT FROM preemptions p WHERE p.victim = f.uid)

-- name: preemptions_under_way
-- The victims of each preemptor.
SELECT p.preemptor, p.victim, v.jobid, p.vacate_at, a.id IS NULL AS is_gone, v.grace_s
FROM preemptions p JOIN fluxjobs v ON v.uid = p.victim
LEFT JOIN allocations a ON a.id = p.allocation_id AND a.is_live
WHERE NOT p.is_off ORDER BY p.preemptor, v.jobid

-- name: stop_preemptions
-- Marks preemptions that are no longer wanted, and returns the allocations of their victims.
UPDATE preemptions SET is_off = true WHERE preemptor = ANY(CAST(:over AS text[])) AND NOT is_off
RETURNING allocation_id

-- name: store_preemptions
-- Adds preemptions of live allocations.
INSERT INTO preemptions (victim, allocation_id, preemptor, jobid, vacate_at)
SELECT r.victim, a.id, r.preemptor, r.jobid, r.at
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    victim text, preemptor text, jobid bigint, at bigint)
JOIN allocations a ON a.uid = r.victim AND a.is_live

-- name: mark_preemptions_told
-- Marks preemptions as announced.
UPDATE preemptions SET is_told = true WHERE victim = ANY(CAST(:uids AS text[]))

-- name: next_preemption
-- When the next victim has to leave (epoch seconds), NULL for never.
SELECT min(vacate_at) AS next FROM preemptions WHERE NOT is_off AND NOT is_vacated

-- name: keep_reason
-- Keeps the reason that a victim had before the announcement.
UPDATE preemptions SET reason_before = :before WHERE victim = :uid

-- name: delete_preemptions
-- Removes preemptions.
DELETE FROM preemptions WHERE victim = ANY(CAST(:uids AS text[]))

-- name: mark_vacated
-- Marks victims as requeued.
UPDATE preemptions SET is_vacated = true WHERE victim = ANY(CAST(:uids AS text[]))
