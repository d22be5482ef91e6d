-- name: lock_fluxjobs
-- Locks rows all at once and in the order of their UIDs. Another order could deadlock.
SELECT uid FROM fluxjobs WHERE uid = ANY(CAST(:uids AS text[])) ORDER BY uid FOR UPDATE

-- name: names_of
-- The names of FluxJobs, by the UID of their workload.
SELECT uid, jobid, namespace, workload_name FROM fluxjobs WHERE uid = ANY(CAST(:uids AS text[]))
ORDER BY jobid

-- name: node_facts
-- All nodes as they were last seen.
SELECT fact FROM nodes ORDER BY name
