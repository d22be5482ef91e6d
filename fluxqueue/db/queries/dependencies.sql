-- name: lock_with_targets
-- Locks dependents and targets all at once and in order. A transaction that changes a target at
-- this moment is waited for, or waits for this one.
SELECT uid FROM fluxjobs WHERE uid IN (
    SELECT unnest(CAST(:uids AS text[]))
    UNION
    SELECT target_uid FROM dependencies
    WHERE uid = ANY(CAST(:uids AS text[])) AND NOT is_satisfied AND target_uid IS NOT NULL)
ORDER BY uid FOR UPDATE

-- name: edges_of
-- The dependencies of some jobs, and the present states of their targets.
SELECT d.uid, d.number, d.kind, d.job, d.is_satisfied,
       t.jobid, t.state, t.started_at IS NOT NULL AS has_started
FROM dependencies d LEFT JOIN fluxjobs t ON t.uid = d.target_uid
WHERE d.uid = ANY(CAST(:uids AS text[])) ORDER BY d.uid, d.number

-- fragment: is_waiting
NOT d.is_satisfied AND fluxjob_dependency_outcome(d.kind, t.state, t.started_at) = 'waiting'

-- name: dependencies_behind
-- The nearest dependencies on some jobs, followed backwards. The limit ends the recursion, too.
WITH RECURSIVE walk (uid, target) AS (
    SELECT d.uid, d.target_uid FROM dependencies d JOIN fluxjobs t ON t.uid = d.target_uid
    WHERE d.target_uid = ANY(CAST(:uids AS text[])) AND -- include: is_waiting
    UNION
    SELECT d.uid, d.target_uid FROM walk w JOIN dependencies d ON d.target_uid = w.uid
    JOIN fluxjobs t ON t.uid = d.target_uid WHERE -- include: is_waiting
)
SELECT uid, target FROM walk LIMIT :limit

-- name: dependencies_ahead
-- The nearest dependencies of some jobs, followed forwards.
WITH RECURSIVE walk (uid, target) AS (
    SELECT d.uid, d.target_uid FROM dependencies d JOIN fluxjobs t ON t.uid = d.target_uid
    WHERE d.uid = ANY(CAST(:uids AS text[])) AND -- include: is_waiting
    UNION
    SELECT d.uid, d.target_uid FROM walk w JOIN dependencies d ON d.uid = w.target
    JOIN fluxjobs t ON t.uid = d.target_uid WHERE -- include: is_waiting
)
SELECT uid, target FROM walk LIMIT :limit

-- name: remember_satisfied
-- Stores satisfied dependencies.
UPDATE dependencies d SET is_satisfied = true
FROM unnest(CAST(:uids AS text[]), CAST(:numbers AS int[])) AS n (uid, number)
WHERE d.uid = n.uid AND d.number = n.number

-- name: waited_for
-- Those of some jobs that another one waits for.
SELECT DISTINCT target_uid AS uid FROM dependencies
WHERE target_uid = ANY(CAST(:uids AS text[])) AND NOT is_satisfied
