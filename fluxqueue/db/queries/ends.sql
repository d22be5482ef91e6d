-- name: follow_ends
-- Moves planned ends, and returns those that changed. The pods of a sweep have ends of their own,
-- which count from the time of their slots.
WITH old AS (
    SELECT a.id, a.until AS before, CASE
        WHEN a.is_independent THEN extract(epoch FROM now())::bigint + r.held_s
        WHEN r.ends_at > a.starts_at + r.held_s + CAST(:slack_s AS int) THEN r.ends_at
        ELSE a.starts_at + r.held_s END AS until
    FROM allocations a JOIN jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
        uid text, held_s bigint, ends_at bigint) USING (uid)
    WHERE a.is_live
), told AS (
    INSERT INTO graph_changes (kind, key)
    SELECT 'allocation', id::text FROM old WHERE until IS DISTINCT FROM before
)
UPDATE allocations a SET until = old.until FROM old
WHERE a.id = old.id AND old.until IS DISTINCT FROM old.before
RETURNING a.uid, old.before, a.until

-- name: overruns
-- Jobs that hold their nodes past what their queue accepted. Locks them in the order of the UIDs.
SELECT f.uid, f.jobid, f.queue, f.duration_s, f.grace_s, f.observed ? 'is_suspendable' AS is_suspendable,
       f.observed ->> 'made_by' AS made_by, a.starts_at,
       f.is_deleting OR f.result IS NOT NULL OR f.vacate_by IS NOT NULL AS is_ending,
       EXISTS (SELECT FROM history h WHERE h.uid = f.uid AND h.event = :overrun
               AND h.at >= f.allocated_at) AS is_told
FROM allocations a JOIN fluxjobs f USING (uid) LEFT JOIN fluxqueues q ON q.name = f.queue
WHERE a.is_live AND fluxjob_granted_until(f, a, q.spec) < :now
ORDER BY f.uid FOR UPDATE OF f
