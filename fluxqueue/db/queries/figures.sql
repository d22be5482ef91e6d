-- name: fluxjob_lines
-- All FluxJobs of a namespace in order of submission.
SELECT f.uid, f.jobid, f.workload_name AS name,
       fluxjob_shown_state(f.state, f.wait_reason, f.blocked_by) AS state, f.reason, f.size,
       coalesce(s.nodes, '[]'::jsonb) AS nodes,
       extract(epoch FROM coalesce(f.allocated_at, f.ended_at, now())
                          - f.submitted_at)::float8 AS waited_s,
       extract(epoch FROM coalesce(f.ended_at, now())
                          - f.allocated_at)::float8 AS ran_s
FROM fluxjobs f LEFT JOIN LATERAL (
    SELECT jsonb_agg(DISTINCT s.node) AS nodes
    FROM allocation_slots s WHERE s.allocation_id = (
        SELECT max(a.id) FROM allocations a WHERE a.uid = f.uid)) s ON true
WHERE f.namespace = :namespace ORDER BY f.jobid

-- name: node_lines
-- Cpu of every node, from the view ``node_usage``.
SELECT node, capacity::bigint AS capacity_m, allocated::bigint AS allocated_m,
       least(foreign_used, 1::bigint << 62)::bigint AS foreign_m
FROM node_usage WHERE resource = 'cpu' ORDER BY length(node), node

-- name: count_by_state
-- FluxJobs of a namespace, ended ones as well.
SELECT state, count(*) AS count FROM fluxjobs WHERE namespace = :namespace GROUP BY state

-- name: run_times
-- From the first submission to the last end, and the mean wait, of those that ran (seconds).
SELECT coalesce(extract(epoch FROM max(ended_at) - min(submitted_at)), 0)::float8
           AS makespan_s,
       coalesce(extract(epoch FROM avg(allocated_at - submitted_at)), 0)::float8
           AS mean_wait_s
FROM fluxjobs WHERE namespace = :namespace AND allocated_at IS NOT NULL

-- name: count_leaked_slots
-- Slots that are still counted although their FluxJob has ended.
SELECT count(*) AS slots FROM allocation_slots s
JOIN allocations a ON a.id = s.allocation_id JOIN fluxjobs f USING (uid)
WHERE f.namespace = :namespace AND f.ended_at IS NOT NULL AND s.state <> 'returned'
