-- name: compared_uids
-- UIDs of all rows that a resync compares with the cluster.
SELECT uid FROM fluxjobs WHERE NOT is_gone OR fluxjob_lives(state)

-- name: rows_seen
-- What a resync compares with the cluster of some workloads.
SELECT uid, jobid, state, version, flux_uid, observed, result, is_deleting, is_gone,
       cancel_by IS NOT NULL AS is_cancelled
FROM fluxjobs WHERE uid = ANY(CAST(:uids AS text[]))

-- name: pods_seen
-- The pods of some workloads, as they were last seen.
SELECT workload_uid, uid, phase, is_gated, is_terminating, node FROM pods
WHERE workload_uid = ANY(CAST(:uids AS text[]))

-- name: slot_holders
-- The pods that hold slots of some workloads.
SELECT s.pod_uid FROM allocation_slots s JOIN allocations a ON a.id = s.allocation_id
WHERE a.uid = ANY(CAST(:uids AS text[])) AND s.pod_uid IS NOT NULL
