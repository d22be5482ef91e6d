-- name: count_paths
-- Of several labels of a level the first that a node has counts, as in ``Level.place``.
SELECT p.path, count(*) AS nodes
FROM nodes n, LATERAL (
    SELECT coalesce(array_agg(
        (SELECT n.fact -> 'labels' ->> k.label
         FROM jsonb_array_elements_text(l.labels) WITH ORDINALITY AS k (label, i)
         WHERE n.fact -> 'labels' ->> k.label <> '' ORDER BY k.i LIMIT 1)
        ORDER BY l.depth), '{}') AS path
    FROM jsonb_array_elements(CAST(:levels AS jsonb)) WITH ORDINALITY AS l (labels, depth)) p
GROUP BY p.path
