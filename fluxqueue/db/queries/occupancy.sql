-- name: map_nodes
-- All nodes in the order of their names, with their capacity and unmanaged use.
WITH usage AS (
    SELECT node, jsonb_object_agg(resource, jsonb_build_array(capacity, foreign_used)) AS resources
    FROM node_usage GROUP BY node
)
SELECT n.name, n.fact -> 'labels' AS labels, (n.fact ->> 'up')::boolean AS is_up,
       (n.fact ->> 'schedulable')::boolean AS is_open,
       jsonb_array_length(coalesce(n.fact -> 'taints', '[]')) AS taints,
       coalesce(u.resources, '{}') AS resources
FROM nodes n LEFT JOIN usage u ON u.node = n.name ORDER BY n.name LIMIT :limit

-- name: places
-- Allocations and reservations in the order of their numbers: those of reservations begin at 2^60.
-- What a caller may not see has no name.
WITH found AS (
    SELECT a.id, a.uid, CASE WHEN a.is_live THEN 'running' ELSE 'ended' END AS kind,
           to_timestamp(a.starts_at) AS starts_at, to_timestamp(a.until) AS until, a.ended_at,
           a.is_exclusive, a.held,
           (SELECT jsonb_object_agg(node, amounts) FROM (
    SELECT node, jsonb_object_agg(resource, amount) AS amounts FROM (
        SELECT s.node, r.key AS resource, sum(CAST(r.value AS numeric)) AS amount
        FROM allocation_slots s, LATERAL jsonb_each_text(s.resources) AS r
        WHERE s.allocation_id = a.id AND (s.state <> 'returned' OR NOT a.is_live)
        GROUP BY s.node, r.key
    ) AS each GROUP BY node
) AS of_node) AS nodes
    FROM allocations a
    WHERE (a.is_live OR a.ended_at >= :since) AND a.id > :after
    UNION ALL
    SELECT f.jobid + (1::bigint << 60), r.uid, 'promised', to_timestamp(r.starts_at),
           to_timestamp(r.until), NULL, false, '{}',
           (SELECT jsonb_object_agg(n.node, '{}'::jsonb)
            FROM jsonb_array_elements_text(r.nodes) AS n (node))
    FROM reservations r JOIN fluxjobs f USING (uid)
    WHERE f.jobid + (1::bigint << 60) > :after
)
SELECT p.id, p.kind, p.starts_at, p.until, p.ended_at, p.is_exclusive, p.held,
       coalesce(p.nodes, '{}') AS nodes,
       f.jobid, f.namespace, f.workload_name AS name, f.user_name AS user, f.queue, f.state
FROM (SELECT * FROM found ORDER BY id LIMIT :limit) AS p LEFT JOIN fluxjobs f ON f.uid = p.uid
    AND (CAST(:namespaces AS text[]) IS NULL OR f.namespace = ANY(CAST(:namespaces AS text[])))
ORDER BY p.id

-- name: coming_nodes
-- Nodes that were asked for and have yet to come, the earliest first.
SELECT r.pool || '/asked-' || r.number || '-' || i AS name, r.pool, p.spec,
       to_timestamp(r.asked_at) AS asked_at, to_timestamp(r.ready_at) AS expected_at
FROM node_requests r JOIN rules p ON p.kind = 'pool' AND p.name = r.pool,
     generate_series(1, r.count - (SELECT count(*) FROM pool_nodes n
                                   WHERE n.request = r.number)) AS i
WHERE r.ended IS NULL AND p.spec IS NOT NULL ORDER BY r.ready_at, r.number, i LIMIT :limit
