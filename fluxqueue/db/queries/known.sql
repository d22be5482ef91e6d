-- name: known_workloads
-- Workloads that were not seen gone with all their pods, and their FluxJobs.
SELECT uid, flux_uid, namespace FROM fluxjobs WHERE NOT is_gone OR fluxjob_lives(state)

-- name: known_groups
-- Those without an object of their own, the oldest first, and their pods.
SELECT uid, namespace, workload_name AS name, name AS fluxjob, user_name AS user,
       to_char(submitted_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS created,
       (SELECT coalesce(array_agg(p.uid), '{}') FROM pods p
        WHERE p.workload_uid = f.uid) AS pods,
       CASE WHEN NOT observed ? 'missing' THEN size END AS size, flux_uid
FROM fluxjobs f
WHERE observed ? 'is_gathered' AND (NOT is_gone OR fluxjob_lives(state))
ORDER BY jobid

-- name: known_foreign
-- Unmanaged pods that use a node.
SELECT pod_uid FROM foreign_usage

-- name: known_nodes
-- All nodes.
SELECT name FROM nodes

-- name: known_suspended
-- API groups and kinds of workloads that are held by suspension.
SELECT DISTINCT split_part(owner ->> 'api_version', '/', 1) AS api_group, owner ->> 'kind' AS kind
FROM (SELECT observed -> 'owner' AS owner, is_gone, state FROM fluxjobs) f
WHERE owner ->> 'suspend' <> '' AND (NOT is_gone OR fluxjob_lives(state))
