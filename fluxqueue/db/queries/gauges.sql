-- name: count_fluxjobs
-- FluxJobs that have not ended, by queue and state. Queues that do not exist are one without a name.
SELECT coalesce(q.name, '') AS queue, state, count(*) AS number,
    CAST(extract(epoch FROM now() - min(submitted_at)) AS float8) AS oldest_s
FROM fluxjobs f LEFT JOIN fluxqueues q ON q.name = f.queue WHERE fluxjob_lives(state)
GROUP BY q.name, state

-- name: count_lost_slots
-- Held slots on nodes that are down or gone.
SELECT count(*) AS number FROM allocation_slots s
JOIN allocations a ON a.id = s.allocation_id AND a.is_live LEFT JOIN nodes n ON n.name = s.node
WHERE s.state = 'held' AND NOT coalesce((n.fact ->> 'up')::boolean, false)

-- name: count_drift
-- Broken invariants, 0 in health.
SELECT count(*) AS number FROM drift
