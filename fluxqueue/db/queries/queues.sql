-- name: save_queues
-- Writes queues that can be used, and returns the names of those that changed.
INSERT INTO fluxqueues AS q (name, uid, generation, spec, namespaces, queue_depth, priority,
                             min_priority, max_priority, newcomer_points, fault)
SELECT name, uid, generation, spec, namespaces, queue_depth, coalesce(priority, 0), min_priority,
       max_priority, newcomer_points, fault
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    name text, uid text, generation bigint, spec jsonb, namespaces jsonb, queue_depth int,
    priority int, min_priority int, max_priority int, newcomer_points int, fault text)
WHERE fault IS NULL
ON CONFLICT (name) DO UPDATE SET
    uid = excluded.uid, generation = excluded.generation, spec = excluded.spec,
    namespaces = excluded.namespaces, queue_depth = excluded.queue_depth,
    priority = excluded.priority, min_priority = excluded.min_priority,
    max_priority = excluded.max_priority, newcomer_points = excluded.newcomer_points,
    fault = excluded.fault
WHERE (q.uid, q.generation, q.spec, q.namespaces, q.fault)
    IS DISTINCT FROM (excluded.uid, excluded.generation, excluded.spec, excluded.namespaces, NULL)
RETURNING name

-- name: save_queue_faults
-- Keeps the spec in force of a queue with a spec that cannot be used, and says why.
UPDATE fluxqueues q SET fault = r.fault, generation = r.generation
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (name text, generation bigint, fault text)
WHERE q.name = r.name AND r.fault IS NOT NULL AND q.fault IS DISTINCT FROM r.fault

-- name: delete_queues
-- Deletes queues that are gone, and returns the names of those that had a row.
DELETE FROM fluxqueues WHERE name = ANY(CAST(:gone AS text[])) RETURNING name

-- name: queue_names
-- All queues that have a row.
SELECT name FROM fluxqueues

-- name: queue_rules
-- The specs in force, and the namespaces that may use each queue.
SELECT name, spec, namespaces FROM fluxqueues

-- name: queue_use
-- What holds resources, by queue and user. Each pod of a sweep counts as a job.
SELECT f.queue, f.user_name,
       sum(CASE WHEN a.is_independent THEN s.number ELSE 1 END)::bigint AS jobs,
       sum(s.nodes)::bigint AS nodes,
       least(sum(s.cpu_m), 1::bigint << 62)::bigint AS cpu_m
FROM allocations a JOIN fluxjobs f USING (uid) CROSS JOIN LATERAL (
    SELECT count(DISTINCT s.node) AS nodes, count(*) AS number,
           coalesce(sum(CASE WHEN jsonb_typeof(s.resources -> 'cpu') = 'number'
                             THEN (s.resources ->> 'cpu')::numeric END), 0) AS cpu_m
    FROM allocation_slots s WHERE s.allocation_id = a.id AND s.state <> 'returned') s
WHERE a.is_live AND f.queue = ANY(CAST(:queues AS text[]))
GROUP BY 1, 2

-- name: queue_figures
-- Queues that have an object, and the counts of their FluxJobs.
SELECT q.name, q.uid, q.generation, q.fault, q.spec,
       coalesce(c.pending, 0) AS pending, coalesce(c.running, 0) AS running,
       coalesce(c.held, 0) AS held, coalesce(c.unsatisfiable, 0) AS unsatisfiable
FROM fluxqueues q LEFT JOIN (
    SELECT queue,
           count(*) FILTER (WHERE state IN ('Gathering', 'Pending', 'Reserved'))
               AS pending,
           count(*) FILTER (WHERE state IN ('Allocated', 'Running')) AS running,
           count(*) FILTER (WHERE state = 'Held') AS held,
           count(*) FILTER (WHERE state = 'Unsatisfiable') AS unsatisfiable
    FROM fluxjobs WHERE fluxjob_lives(state)
      AND CAST(:with_counts AS bool)
    GROUP BY queue) c ON c.queue = q.name
WHERE q.uid IS NOT NULL ORDER BY q.name
