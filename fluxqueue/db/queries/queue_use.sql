-- name: use_by_user
-- What waits and runs of each user of each queue, and the fair share. Users without work are shown to
-- callers that see all namespaces only.
WITH living AS (
    SELECT queue, user_name,
           count(*) FILTER (WHERE state IN ('Allocated', 'Running')) AS running,
           count(*) FILTER (WHERE state IN ('Pending', 'Reserved')) AS waiting,
           count(*) FILTER (WHERE state NOT IN ('Allocated', 'Running', 'Pending', 'Reserved'))
               AS held
    FROM fluxjobs
    WHERE fluxjob_lives(state)
      AND (CAST(:namespaces AS text[]) IS NULL OR namespace = ANY(CAST(:namespaces AS text[])))
    GROUP BY queue, user_name
), used AS (
    SELECT f.queue, f.user_name,
           coalesce(sum(CAST(s.resources ->> 'cpu' AS numeric)), 0) AS cpu_m,
           count(DISTINCT s.node) AS nodes
    FROM allocations a JOIN fluxjobs f USING (uid)
    JOIN allocation_slots s ON s.allocation_id = a.id AND s.state <> 'returned'
    WHERE a.is_live
      AND (CAST(:namespaces AS text[]) IS NULL OR f.namespace = ANY(CAST(:namespaces AS text[])))
    GROUP BY f.queue, f.user_name
), whole AS (
    SELECT queue, user_name FROM living UNION SELECT queue, user_name FROM fair_shares
    WHERE CAST(:namespaces AS text[]) IS NULL
)
SELECT w.queue, w.user_name AS user, coalesce(l.running, 0) AS running,
       coalesce(l.waiting, 0) AS waiting, coalesce(l.held, 0) AS held,
       coalesce(u.cpu_m, 0) AS cpu_m, coalesce(u.nodes, 0) AS nodes,
       s.factor, s.points, s.used / 3600 AS used_h
FROM whole w
LEFT JOIN living l USING (queue, user_name) LEFT JOIN used u USING (queue, user_name)
LEFT JOIN fair_shares s USING (queue, user_name)
ORDER BY w.queue, w.user_name LIMIT :limit OFFSET :offset

-- name: waits
-- Ended runs by step of time and by size.
SELECT date_bin(CAST(CAST(:step AS text) AS interval), ended_at, TIMESTAMPTZ '2000-01-01') AS at,
       CASE WHEN nodes > 16 THEN 'over 16 nodes' WHEN nodes > 4 THEN '5 to 16 nodes'
            WHEN nodes > 1 THEN '2 to 4 nodes' ELSE '1 node' END AS size_class,
       count(*) AS runs, coalesce(sum(cpu_s), 0) / 3600 AS cpu_h,
       coalesce(sum(gpu_s), 0) / 3600 AS gpu_h,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY waited_s) AS wait_s,
       percentile_cont(0.95) WITHIN GROUP (ORDER BY waited_s) AS wait_p95_s
FROM (
    SELECT *, CAST(extract(epoch FROM allocated_at - queued_at) AS float8) AS waited_s
    FROM accounting
    WHERE allocated_at IS NOT NULL
      AND (CAST(:since AS timestamptz) IS NULL OR ended_at >= :since)
      AND (CAST(:until AS timestamptz) IS NULL OR ended_at < :until)
      AND (CAST(:namespaces AS text[]) IS NULL OR namespace = ANY(CAST(:namespaces AS text[])))
      AND (CAST(:user AS text) IS NULL OR user_name = :user)
      AND (CAST(:queue AS text) IS NULL OR queue = :queue)
) AS runs GROUP BY 1, 2 ORDER BY 1, 2 LIMIT :limit OFFSET :offset

-- name: promises
-- The promise of a run is the first that it got while it waited, and a later start may be
-- excused.
SELECT date_bin(CAST(CAST(:step AS text) AS interval), r.ended_at, TIMESTAMPTZ '2000-01-01') AS at,
       count(*) AS promised,
       count(*) FILTER (WHERE late_s <= :tolerance_s) AS kept,
       count(*) FILTER (WHERE late_s > :tolerance_s AND is_excused) AS excused
FROM (
    SELECT a.ended_at, extract(epoch FROM a.allocated_at) - p.starts_at AS late_s,
           EXISTS (SELECT FROM history x WHERE x.uid = a.uid AND x.event = 'PromiseExcused'
                   AND x.at BETWEEN a.queued_at AND a.allocated_at) AS is_excused
    FROM accounting a CROSS JOIN LATERAL (
        SELECT CASE WHEN jsonb_typeof(h.detail -> 'starts_at') = 'number'
                    THEN CAST(h.detail ->> 'starts_at' AS numeric) END AS starts_at
        FROM history h WHERE h.uid = a.uid AND h.event = 'Promised'
          AND h.at BETWEEN a.queued_at AND a.allocated_at
        ORDER BY h.id LIMIT 1) AS p
    WHERE a.allocated_at IS NOT NULL AND p.starts_at IS NOT NULL
      AND (CAST(:since AS timestamptz) IS NULL OR a.ended_at >= :since)
      AND (CAST(:until AS timestamptz) IS NULL OR a.ended_at < :until)
      AND (CAST(:namespaces AS text[]) IS NULL OR a.namespace = ANY(CAST(:namespaces AS text[])))
      AND (CAST(:user AS text) IS NULL OR a.user_name = :user)
      AND (CAST(:queue AS text) IS NULL OR a.queue = :queue)
) AS r GROUP BY 1 ORDER BY 1 LIMIT :limit OFFSET :offset

-- name: utilisation
-- A run counts in each step for the time that it has in it, and not as a whole in that of its
-- end.
WITH bounds AS (
    SELECT coalesce(CAST(:since AS timestamptz), now() - interval '31 days') AS since,
           least(coalesce(CAST(:until AS timestamptz), now()), now()) AS until,
           CAST(CAST(:step AS text) AS interval) AS step
), runs AS (
    SELECT namespace, user_name, queue, allocated_at AS began, ended_at AS ended,
           cpu_s / extract(epoch FROM ended_at - allocated_at) AS cpus,
           gpu_s / extract(epoch FROM ended_at - allocated_at) AS gpus
    FROM accounting, bounds
    WHERE ended_at > allocated_at AND ended_at > since AND allocated_at < until
    UNION ALL
    SELECT f.namespace, f.user_name, f.queue, f.allocated_at, now(), booked.cpu_m / 1000,
           booked.gpus
    FROM allocations a JOIN fluxjobs f USING (uid), LATERAL (
        SELECT sum(CAST(r.value AS numeric)) FILTER (WHERE r.key = 'cpu') AS cpu_m,
               sum(CAST(r.value AS numeric)) FILTER (WHERE fluxqueue_is_gpu(r.key)) AS gpus
        FROM allocation_slots s, LATERAL jsonb_each_text(s.resources) AS r
        WHERE s.allocation_id = a.id AND s.state <> 'returned') AS booked
    WHERE a.is_live AND fluxjob_lives(f.state) AND f.allocated_at < now()
), parts AS (
    SELECT part.at, r.cpus, r.gpus, greatest(0, extract(epoch FROM least(r.ended, until,
               part.at + step) - greatest(r.began, part.at, since))) AS length_s
    FROM bounds, runs r, LATERAL generate_series(
        date_bin(step, greatest(r.began, since), TIMESTAMPTZ '2000-01-01'),
        least(r.ended, until), step) AS part (at)
    WHERE (CAST(:namespaces AS text[]) IS NULL OR r.namespace = ANY(CAST(:namespaces AS text[])))
      AND (CAST(:user AS text) IS NULL OR r.user_name = :user)
      AND (CAST(:queue AS text) IS NULL OR r.queue = :queue)
)
SELECT at, coalesce(sum(cpus * length_s), 0) / 3600 AS cpu_h,
       coalesce(sum(gpus * length_s), 0) / 3600 AS gpu_h
FROM parts WHERE length_s > 0 GROUP BY at ORDER BY at LIMIT :limit OFFSET :offset

-- name: rules
-- Queues with the spec that is in force, and why a newer one is not.
SELECT name, spec, priority, fault FROM fluxqueues ORDER BY name
