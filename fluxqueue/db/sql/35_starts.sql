-- Nodes that refused a pod of a workload, or that no pod of it could be bound to, since it last started.
-- A cycle places it elsewhere if it can. It asks only for workloads with a failed start.
CREATE FUNCTION fluxjob_refused_nodes(of_uid text) RETURNS text[]
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT coalesce(array_agg(DISTINCT n.node), '{}')
            FROM allocations a JOIN allocation_slots s ON s.allocation_id = a.id
            CROSS JOIN LATERAL unnest(array_append(s.others, s.node)) AS n (node)
            WHERE a.uid = of_uid AND s.refused_at IS NOT NULL);
END
$$;
