-- name: replay_horizon
-- Jobs that came after the end compete with the last ones of the time. Twice the time is enough.
SELECT greatest(CAST(:until AS bigint), least(
    coalesce(ceil(extract(epoch FROM max(allocated_at)))::bigint, 0),
    2 * CAST(:until AS bigint) - CAST(:since AS bigint))) AS horizon,
    floor(extract(epoch FROM now()))::bigint AS now_s
FROM accounting
WHERE ended_at > to_timestamp(:since) AND queued_at >= to_timestamp(:since)
  AND queued_at < to_timestamp(:until)

-- name: replay_jobs
-- What ran in a time, and what waited or runs now. Times are epoch seconds.
WITH ran AS (
    SELECT uid, jobid, allocation_id, namespace, name, user_name, queue, nodes, slots, cpu_s,
           queued_at, allocated_at, ended_at
    FROM accounting
    WHERE allocated_at IS NOT NULL AND ended_at > to_timestamp(:since)
      AND queued_at < to_timestamp(:horizon)
    UNION ALL
    SELECT f.uid, f.jobid, a.id, f.namespace, f.workload_name, f.user_name, f.queue, 0, 0, 0,
           coalesce(last.ended_at, f.submitted_at), f.allocated_at, NULL
    FROM fluxjobs f
    LEFT JOIN allocations a ON a.uid = f.uid AND a.is_live
    LEFT JOIN LATERAL (SELECT ended_at FROM accounting WHERE uid = f.uid
                       ORDER BY run DESC LIMIT 1) last ON true
    WHERE fluxjob_lives(f.state) AND f.submitted_at < to_timestamp(:horizon)
      AND f.state IN ('Pending', 'Reserved', 'Allocated', 'Running')
      AND (f.allocated_at IS NULL) = (a.id IS NULL)
      AND f.blocked_by IS NULL
), listed AS (
SELECT r1.jobid, r1.namespace, r1.name, r1.user_name AS user, r1.queue,
       coalesce((f.priority_parts ->> 'bounded')::int, 0) AS priority,
       floor(extract(epoch FROM
-- When it could start: after holds and gathering (the last return to Pending before its start),
-- after its begin time, and after the jobs that it depends on.
greatest(r1.queued_at,
    f.begin_at,
    (SELECT max(h.at) FROM history h
     WHERE h.uid = r1.uid AND h.event = 'Pending' AND h.at > r1.queued_at
       AND h.detail ->> 'from' IN ('Held', 'Gathering', 'Unsatisfiable')
       AND h.at <= coalesce(r1.allocated_at, now())),
    (SELECT max(t.ended_at) FROM dependencies d JOIN fluxjobs t ON t.uid = d.target_uid
     WHERE d.uid = r1.uid AND t.ended_at <= coalesce(r1.allocated_at, now())))
))::bigint AS submitted,
       floor(extract(epoch FROM r1.allocated_at))::bigint AS started,
       -- The length is rounded, not its ends: short runs would all become a second longer.
       CASE WHEN r1.ended_at IS NOT NULL THEN floor(extract(epoch FROM r1.allocated_at))::bigint
           + greatest(1, round(extract(epoch FROM r1.ended_at - r1.allocated_at)))::bigint
       END AS ended,
       a.until, coalesce(a.is_exclusive, false) AS exclusive, a.held, f.request,
       r1.nodes AS "nodeCount", r1.slots, r1.cpu_s AS "cpuSeconds",
       coalesce((SELECT jsonb_object_agg(node, amounts) FROM (
    SELECT node, jsonb_object_agg(resource, amount) AS amounts FROM (
        SELECT s.node, r.key AS resource,
               least(sum(CASE WHEN jsonb_typeof(r.value) = 'number'
                              THEN CAST(r.value AS numeric) ELSE 0 END), 1::bigint << 52)::bigint
                   AS amount
        FROM allocation_slots s, LATERAL jsonb_each(s.resources) AS r
        WHERE s.allocation_id = r1.allocation_id
        GROUP BY s.node, r.key
    ) AS each GROUP BY node
) AS of_node), '{}') AS nodes
FROM (SELECT * FROM ran ORDER BY queued_at, uid LIMIT :limit) r1
LEFT JOIN fluxjobs f ON f.uid = r1.uid LEFT JOIN allocations a ON a.id = r1.allocation_id
)
SELECT to_jsonb(listed) FROM listed

-- name: replay_unmanaged
-- What unmanaged pods use of each node, as far as they stay. Damaged amounts count as nothing.
SELECT node, jsonb_object_agg(resource, amount) AS amounts FROM (
    SELECT u.node, r.key AS resource,
           least(sum(CASE WHEN jsonb_typeof(r.value) = 'number'
                          THEN greatest(CAST(r.value AS numeric), 0) ELSE 0 END),
                 1::bigint << 52)::bigint AS amount
    FROM foreign_usage u CROSS JOIN LATERAL jsonb_each(
        CASE WHEN jsonb_typeof(u.resources) = 'object' THEN u.resources ELSE '{}' END) AS r
    WHERE u.is_permanent GROUP BY 1, 2
) AS each GROUP BY node

-- name: replay_used
-- Fair share halves its memory at each half-life, so what is older counts for little.
SELECT jsonb_build_object('queue', a.queue, 'user', a.user_name, 'at',
    floor(extract(epoch FROM date_bin('1 hour', a.ended_at, TIMESTAMPTZ '2000-01-01')))::bigint,
    'cpuSeconds', sum(a.cpu_s))
FROM accounting a JOIN fluxqueues q ON q.name = a.queue AND q.newcomer_points <> 0
WHERE a.ended_at <= to_timestamp(:since)
  AND a.ended_at > to_timestamp(:since) - interval '60 days'
GROUP BY a.queue, a.user_name,
    date_bin('1 hour', a.ended_at, TIMESTAMPTZ '2000-01-01')

-- name: queue_specs
-- All queues with the spec that is in force.
SELECT jsonb_build_object('name', name, 'spec', spec) FROM fluxqueues ORDER BY name
