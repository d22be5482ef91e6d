-- fragment: booked
-- A victim's planned end is the time at which it has to leave, and its pods have ended. Each pod of
-- a sweep has its own time.
SELECT f.uid, a.starts_at,
       CASE WHEN p.victim IS NULL THEN a.until
            ELSE least(a.until, p.vacate_at + f.grace_s) END AS until,
       a.is_exclusive, a.held, s.node, s.resources,
       CASE WHEN a.is_independent AND p.victim IS NULL
            THEN extract(epoch FROM s.given_at)::bigint END
           AS own_start, f.duration_s, f.grace_s,
       f.observed ? 'is_limited' AS is_limited, f.queue,
       CASE WHEN p.victim IS NULL THEN a.plan_s END AS plan_s

-- name: booked_slots
-- The slots of all live allocations.
-- include: booked
FROM allocations a JOIN fluxjobs f USING (uid)
JOIN allocation_slots s ON s.allocation_id = a.id
LEFT JOIN preemptions p ON p.allocation_id = a.id AND NOT p.is_off
WHERE a.is_live AND s.state <> 'returned'
ORDER BY a.id, s.number

-- name: booked_slots_of
-- The slots of the workloads of some allocations. Where nothing is held, it is one row without a
-- node.
-- include: booked
FROM (SELECT DISTINCT uid FROM allocations WHERE id = ANY(CAST(:ids AS bigint[]))) w
-- OFFSET 0: looked up for each. What lives is mostly younger than all that the planner knows of; it
-- expects one row, and would rather read all that live for each.
LEFT JOIN LATERAL (SELECT * FROM allocations WHERE uid = w.uid AND is_live OFFSET 0) a ON true
LEFT JOIN LATERAL (SELECT * FROM allocation_slots WHERE allocation_id = a.id
                   AND state <> 'returned' OFFSET 0) s ON true
LEFT JOIN fluxjobs f ON f.uid = w.uid
LEFT JOIN preemptions p ON p.allocation_id = a.id AND NOT p.is_off
ORDER BY a.id, s.number

-- name: give_more
-- A sweep returns a slot with each pod that ends. Its rows are used again, so that their number
-- depends on how many pods run at once, and not on how many there are. ``past_s`` keeps the time.
WITH given AS (
    SELECT r.*, a.id, a.is_independent, row_number() OVER (PARTITION BY a.id, r.node, r.r ORDER BY r.n) AS place
    FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
        uid text, n int, node text, r jsonb, kind text, others text[])
    JOIN allocations a ON a.uid = r.uid AND a.is_live
), old AS (
    SELECT s.allocation_id, s.number, s.node, s.resources, row_number() OVER (
               PARTITION BY s.allocation_id, s.node, s.resources ORDER BY s.number) AS place
    FROM allocation_slots s
    WHERE s.allocation_id IN (SELECT g.id FROM given g WHERE g.is_independent)
      AND s.state = 'returned' AND s.refused_at IS NULL
      AND s.returned_at < now() - make_interval(secs => CAST(:reuse_s AS float8))
), again AS (
    UPDATE allocation_slots s SET
        state = 'free', completion_index = NULL, returned_at = NULL, given_at = now(),
        others = g.others,
        past_s = s.past_s + extract(epoch FROM s.returned_at - s.given_at)
    FROM given g JOIN old o ON o.allocation_id = g.id AND o.node = g.node
                           AND o.resources = g.r AND o.place = g.place
    WHERE s.allocation_id = o.allocation_id AND s.number = o.number AND g.is_independent
    RETURNING g.id, g.n
)
INSERT INTO allocation_slots (allocation_id, number, node, resources, kind, others)
SELECT g.id, g.n + 1 + coalesce((SELECT max(number) FROM allocation_slots o
                                 WHERE o.allocation_id = g.id), -1), g.node, g.r, g.kind, g.others
FROM given g LEFT JOIN again ON again.id = g.id AND again.n = g.n WHERE again.id IS NULL

-- name: put_end_off
-- Moves the planned ends of sweeps: their new slots have their whole time.
UPDATE allocations a SET until = extract(epoch FROM now())::bigint + f.duration_s + f.grace_s
FROM fluxjobs f
WHERE a.uid = f.uid AND a.is_live AND a.is_independent AND f.duration_s IS NOT NULL
  AND a.uid = ANY(CAST(:uids AS text[]))

-- fragment: foreign_amounts
), amounts AS (
    -- A damaged row must not fail the statement, and so every cycle. Its node is left out.
    SELECT u.node, r.key AS resource, u.is_permanent,
           CASE WHEN jsonb_typeof(r.value) = 'number' AND (r.value #>> '{}')::numeric >= 0
                THEN (r.value #>> '{}')::numeric END AS amount
    FROM others u CROSS JOIN LATERAL jsonb_each(
        CASE WHEN jsonb_typeof(u.resources) = 'object' THEN u.resources
             ELSE '{"": null}' END) r
), spaces AS (
    -- Grouped once: looked up for each node, it would read all pods as often as there are nodes.
    SELECT node, array_agg(DISTINCT namespace) AS namespaces FROM others GROUP BY node
)
SELECT s.node, jsonb_object_agg(resource, amount) AS used, min(spaces.namespaces) AS namespaces,
       coalesce(jsonb_object_agg(resource, permanent) FILTER (WHERE permanent > 0), '{}')
           AS permanent,
       bool_and(is_read) AS is_read
FROM (
    -- Any user may bind pods that ask for as much as a number can be.
    SELECT node, resource, bool_and(amount IS NOT NULL) AS is_read,
           least(coalesce(sum(amount), 0), 1::bigint << 62)::bigint AS amount,
           least(coalesce(sum(amount) FILTER (WHERE is_permanent), 0),
                 1::bigint << 62)::bigint AS permanent
    FROM amounts GROUP BY 1, 2) s JOIN spaces USING (node)
GROUP BY s.node

-- name: foreign_use
-- What unmanaged pods use of each node, and what managed pods use beyond their slots.
WITH others AS (
    SELECT namespace, node, resources, is_permanent FROM foreign_usage
    UNION ALL
    SELECT namespace, node, unmanaged, false FROM pods WHERE unmanaged IS NOT NULL
-- include: foreign_amounts

-- name: foreign_use_of
-- The same of some nodes. One statement for both would have a plan that reads all pods for the
-- change of one node.
WITH others AS (
    SELECT namespace, node, resources, is_permanent FROM foreign_usage
    WHERE node = ANY(CAST(:names AS text[]))
    UNION ALL
    SELECT namespace, node, unmanaged, false FROM pods
    WHERE unmanaged IS NOT NULL AND node = ANY(CAST(:names AS text[]))
-- include: foreign_amounts

-- name: graph_nodes
-- All nodes, in an order that people expect of numbered names.
SELECT name, fact FROM nodes ORDER BY length(name), name

-- name: graph_nodes_of
-- Some nodes.
SELECT name, fact FROM nodes WHERE name = ANY(CAST(:names AS text[]))

-- name: autoscaler
-- The name of the autoscaler of the cluster.
SELECT autoscaler FROM cluster

-- name: lacking
-- Running FluxJobs with pods that wait for further slots, first in queue order.
SELECT f.uid, f.lacking, coalesce(f.observed -> 'further', f.request) AS request,
       (SELECT coalesce(array_agg(s.node ORDER BY s.number), '{}')
        FROM allocation_slots s
        WHERE s.allocation_id = a.id AND s.state <> 'returned') AS nodes,
       a.starts_at, a.until, f.grace_s,
       (SELECT coalesce(array_agg(DISTINCT n.node), '{}') FROM allocation_slots s
        CROSS JOIN LATERAL unnest(array_append(s.others, s.node)) AS n (node)
        WHERE s.allocation_id = a.id AND s.refused_at IS NOT NULL) AS refused,
       -- Of unequal pods each needs a slot of its own kind: those that wait say which.
       (SELECT coalesce(array_agg(p.slot_kind ORDER BY p.name), '{}') FROM pods p
        WHERE p.workload_uid = f.uid AND p.slot_kind <> '' AND p.is_gated
          AND NOT p.is_terminating AND NOT EXISTS (
            SELECT FROM allocation_slots s WHERE s.pod_uid = p.uid)) AS kinds,
       f.queue, f.user_name,
       (SELECT least(coalesce(sum(CASE WHEN jsonb_typeof(s.resources -> 'cpu') = 'number'
                                       THEN (s.resources ->> 'cpu')::numeric END), 0),
                     1::bigint << 62)::bigint
        FROM allocation_slots s
        WHERE s.allocation_id = a.id AND s.state <> 'returned') AS cpu_m,
       a.is_independent, f.priority, f.jobid, f.duration_s,
       f.observed -> 'ignored' AS ignored, f.observed ? 'is_limited' AS is_limited,
       f.observed ? 'is_whole' AS is_whole, f.place
FROM fluxjobs f JOIN allocations a ON a.uid = f.uid AND a.is_live
WHERE f.lacking > 0 AND f.state IN ('Allocated', 'Running')
  AND NOT f.is_deleting AND f.result IS NULL
  AND NOT EXISTS (SELECT FROM preemptions p WHERE p.victim = f.uid AND NOT p.is_off)
ORDER BY f.priority DESC, f.place

-- name: add_allocations
-- Adds allocations, and returns their numbers.
INSERT INTO allocations (uid, term, starts_at, until, plan_s, is_exclusive, held)
SELECT uid, CAST(:term AS bigint), starts_at, until, plan_s, is_exclusive, held
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    uid text, starts_at bigint, until bigint, plan_s bigint, is_exclusive bool, held text[])
RETURNING id, uid

-- name: add_slots
-- Adds slots of new allocations.
INSERT INTO allocation_slots (allocation_id, number, node, resources, kind, others)
SELECT a, n, node, r, kind, others FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS s (
    a bigint, n int, node text, r jsonb, kind text, others text[])

-- name: reserved_uids
-- FluxJobs with a reservation.
SELECT uid FROM reservations

-- name: add_reservations
-- Adds reservations of FluxJobs that still wait.
INSERT INTO reservations (uid, starts_at, until, kept_from, nodes)
SELECT r.uid, r.starts_at, r.until, r.kept_from, r.nodes
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    uid text, starts_at bigint, until bigint, kept_from bigint, nodes jsonb)
JOIN fluxjobs f ON f.uid = r.uid AND f.state IN ('Pending', 'Reserved')

-- name: add_expected_starts
-- Adds latest starts that are kept without a promise.
INSERT INTO expected_starts (uid, latest_start, kept_from, nodes)
SELECT uid, latest_start, kept_from, nodes
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    uid text, latest_start bigint, kept_from bigint, nodes jsonb)
JOIN fluxjobs f USING (uid)

-- name: delete_reservations
-- Removes the reservations of the cycle before.
DELETE FROM reservations

-- name: delete_expected_starts
-- Removes the latest starts of the cycle before.
DELETE FROM expected_starts
