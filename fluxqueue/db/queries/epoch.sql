-- name: marks
-- The highest term and count of commits of each role, the highest jobid, and whether the timeline
-- is the one that was noted.
SELECT coalesce(jsonb_object_agg(role, jsonb_build_array(term, commits)), '{}') AS roles,
       (SELECT last_value FROM fluxjobs_jobid_seq) AS jobid,
       coalesce(bool_and(timeline = fluxqueue_timeline()), true) AS is_same_timeline
FROM leadership

-- name: lock_leadership
-- Locks all roles in one order, so that one process begins anew and the others find it done.
SELECT FROM leadership ORDER BY role FOR UPDATE

-- name: raise_marks
-- Raises a role to what a process has seen of it.
INSERT INTO leadership (role, term, holder, expires_at, commits)
VALUES (:role, :term, '', now(), :commits) ON CONFLICT (role) DO UPDATE SET
    term = greatest(leadership.term, excluded.term),
    commits = greatest(leadership.commits, excluded.commits)

-- name: end_terms_anew
-- Ends all terms and takes back the confirmation that the rows match the cluster.
UPDATE leadership
SET term = term + 1, commits = commits + 1, expires_at = least(expires_at, now()),
    timeline = fluxqueue_timeline()

-- name: pass_jobids
-- Passes over the jobids that were given: none is given again, also where nothing in the cluster
-- has it now.
SELECT setval('fluxjobs_jobid_seq', greatest(last_value, CAST(:jobid AS bigint)))
FROM fluxjobs_jobid_seq
