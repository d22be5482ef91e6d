-- Views for people in psql. `select * from queue` is the first thing to type. What waits for others or
-- for its time has no position: no cycle looks at it.
CREATE VIEW queue AS
SELECT CASE WHEN is_in_turn THEN row_number() OVER (PARTITION BY is_in_turn
                                                    ORDER BY priority DESC, jobid) END AS position,
       jobid, namespace, workload_name AS name, queue, state, size, priority,
       expected_start, date_trunc('second', now() - submitted_at) AS waiting, reason
FROM fluxjobs,
     LATERAL (SELECT state IN ('Pending', 'Reserved') AND blocked_by IS NULL AS is_in_turn) AS turn
WHERE state IN ('Pending', 'Reserved', 'Held', 'Unsatisfiable')
ORDER BY NOT is_in_turn, state NOT IN ('Pending', 'Reserved'), priority DESC, jobid;

CREATE VIEW pending_queue AS
SELECT * FROM queue WHERE state IN ('Pending', 'Reserved');

CREATE VIEW node_usage AS
WITH capacity AS (
    SELECT name AS node, key AS resource, value::numeric AS capacity
    FROM nodes, jsonb_each_text(fact -> 'capacity')
), allocated AS (
    SELECT s.node, r.key AS resource, sum(r.value::numeric) AS amount
    FROM allocation_slots s, jsonb_each_text(s.resources) r
    WHERE s.state <> 'returned' GROUP BY 1, 2
), others AS (
    SELECT f.node, r.key AS resource, sum(r.value::numeric) AS amount
    FROM foreign_usage f, jsonb_each_text(f.resources) r GROUP BY 1, 2
)
SELECT c.node, c.resource, c.capacity,
       coalesce(a.amount, 0) AS allocated, coalesce(o.amount, 0) AS foreign_used,
       c.capacity - coalesce(a.amount, 0) - coalesce(o.amount, 0) AS free
FROM capacity c
LEFT JOIN allocated a USING (node, resource)
LEFT JOIN others o USING (node, resource)
ORDER BY c.node, c.resource;

-- Must be empty: each row is a broken invariant (docs/architecture.md lists them).
CREATE VIEW drift AS
SELECT 'node over capacity' AS invariant, node AS subject,
       format('%s: allocated %s of %s', resource, allocated, capacity) AS detail
FROM node_usage WHERE allocated > capacity
UNION ALL
SELECT 'ended workload holds an allocation', f.namespace || '/' || f.workload_name,
       format('%s with live allocation %s', f.state, a.id)
FROM fluxjobs f JOIN allocations a USING (uid)
WHERE a.is_live AND f.state NOT IN ('Allocated', 'Running')
UNION ALL
SELECT 'running workload without an allocation', f.namespace || '/' || f.workload_name, f.state
FROM fluxjobs f
WHERE f.state IN ('Allocated', 'Running')
  AND NOT EXISTS (SELECT FROM allocations a WHERE a.uid = f.uid AND a.is_live)
UNION ALL
SELECT 'slot of an ended allocation not returned', s.node,
       format('allocation %s slot %s', s.allocation_id, s.number)
FROM allocation_slots s JOIN allocations a ON a.id = s.allocation_id
WHERE NOT a.is_live AND s.state <> 'returned'
UNION ALL
SELECT 'ungated pod without a slot', p.namespace || '/' || p.name, p.phase
FROM pods p
WHERE NOT p.is_gated AND p.phase NOT IN ('Succeeded', 'Failed') AND NOT p.is_terminating
  AND NOT EXISTS (SELECT FROM allocation_slots s WHERE s.pod_uid = p.uid);
