-- name: lock_with_targets
-- Locks dependents and targets all at once and in order. A transaction that changes a target at
-- this moment is waited for, or waits for this one.
SELECT uid FROM fluxjobs WHERE uid IN (
    SELECT unnest(CAST(:uids AS text[]))
    UNION
    SELECT target_uid FROM dependencies
    WHERE uid = ANY(CAST(:uids AS text[])) AND NOT is_satisfied AND target_uid IS NOT NULL)
ORDER BY uid FOR UPDATE

-- name: follow_singletons
-- Has the singletons of some jobs wait for the newest one that is ahead of them now, if there is one.
-- Returns the jobs whose target has changed.
WITH found AS MATERIALIZED (
    SELECT d.uid, d.number, fluxjob_singleton_ahead(f, d.job) AS ahead
    FROM dependencies d JOIN fluxjobs f USING (uid)
    WHERE d.uid = ANY(CAST(:uids AS text[])) AND d.kind = 'singleton' AND NOT d.is_satisfied)
UPDATE dependencies d SET target_uid = found.ahead FROM found
WHERE d.uid = found.uid AND d.number = found.number AND d.target_uid IS DISTINCT FROM found.ahead
  AND (found.ahead IS NOT NULL
       OR EXISTS (SELECT FROM fluxjobs t WHERE t.uid = d.target_uid AND t.ended_at IS NULL))
RETURNING d.uid

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
