-- name: node_page
-- Nodes in the order of their names, with what is allocated. A node that one FluxJob holds whole is
-- ours but for what others use of it.
WITH page AS (
    SELECT name, fact FROM nodes WHERE CAST(:after AS text) IS NULL OR name > :after
    ORDER BY name LIMIT :limit
), whole AS (
    SELECT s.node FROM allocations a JOIN allocation_slots s ON s.allocation_id = a.id
    WHERE a.is_live AND a.is_exclusive AND s.state <> 'returned'
    UNION SELECT unnest(a.held) FROM allocations a WHERE a.is_live AND a.held <> '{}'
), usage AS (
    SELECT u.node, u.resource, u.capacity, u.foreign_used,
           CASE WHEN w.node IS NULL THEN u.allocated
                ELSE greatest(u.capacity - u.foreign_used, 0) END AS allocated
    FROM node_usage u LEFT JOIN whole w USING (node) WHERE u.node IN (SELECT name FROM page)
), used AS (
    SELECT node, sum(allocated) > 0 AS has_ours,
           bool_or(resource = 'cpu' AND allocated + foreign_used >= capacity) AS is_full,
           jsonb_object_agg(resource, jsonb_build_object(
               'total', capacity, 'ours', allocated, 'others', foreign_used,
               'free', greatest(capacity - allocated - foreign_used, 0))) AS resources
    FROM usage GROUP BY node
)
SELECT p.name,
       CASE WHEN NOT (fact ->> 'up')::boolean THEN 'down'
            WHEN NOT (fact ->> 'schedulable')::boolean
                THEN CASE WHEN coalesce(has_ours, false) THEN 'draining' ELSE 'drained' END
            WHEN is_full THEN 'allocated'
            WHEN has_ours THEN 'mixed' ELSE 'idle' END AS state,
       coalesce(resources, '{}') AS resources, fact -> 'labels' AS labels
FROM page p LEFT JOIN used ON used.node = p.name ORDER BY p.name
