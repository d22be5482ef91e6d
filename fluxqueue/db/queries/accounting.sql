-- fragment: narrow
(CAST(:since AS timestamptz) IS NULL OR ended_at >= :since)
AND (CAST(:until AS timestamptz) IS NULL OR ended_at < :until)
AND (CAST(:namespaces AS text[]) IS NULL OR namespace = ANY(CAST(:namespaces AS text[])))
AND (CAST(:user AS text) IS NULL OR user_name = :user)
AND (CAST(:queue AS text) IS NULL OR queue = :queue)

-- fragment: runs
SELECT id, jobid, run, namespace, name, user_name AS user, queue, result, size, nodes, slots,
       queued_at, allocated_at, started_at, ended_at, cpu_s, gpu_s, reason
FROM accounting

-- name: use
-- Sums runs: how many, core-hours, GPU-hours, mean wait (s). What it is not summed by is NULL. Days
-- and months are those of UTC.
SELECT CASE WHEN 'user' = ANY(CAST(:by AS text[])) THEN user_name END AS user,
       CASE WHEN 'queue' = ANY(CAST(:by AS text[])) THEN queue END AS queue,
       CASE WHEN 'namespace' = ANY(CAST(:by AS text[])) THEN namespace END AS namespace,
       CASE WHEN 'result' = ANY(CAST(:by AS text[])) THEN result END AS result,
       CASE WHEN 'day' = ANY(CAST(:by AS text[]))
            THEN to_char(ended_at AT TIME ZONE 'UTC', 'YYYY-MM-DD') END AS day,
       CASE WHEN 'month' = ANY(CAST(:by AS text[]))
            THEN to_char(ended_at AT TIME ZONE 'UTC', 'YYYY-MM') END AS month,
       count(*) AS runs, coalesce(sum(cpu_s), 0) / 3600 AS cpu_h,
       coalesce(sum(gpu_s), 0) / 3600 AS gpu_h,
       CAST(avg(extract(epoch FROM allocated_at - queued_at)) AS float8) AS wait_s
FROM accounting WHERE -- include: narrow
GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6 LIMIT :limit OFFSET :offset

-- name: latest_runs
-- Runs, those that ended last first.
-- include: runs
WHERE -- include: narrow
  AND (CAST(:result AS text) IS NULL OR result = :result)
  AND (CAST(:at AS timestamptz) IS NULL OR (ended_at, id) < (:at, :number))
ORDER BY ended_at DESC, id DESC LIMIT :limit

-- name: runs_of
-- The runs of the workloads that a name or jobid stands for, oldest first.
-- include: runs
WHERE namespace = :namespace AND (name = :reference OR jobid = :jobid) AND id > :after
ORDER BY id LIMIT :limit

-- name: history_of
-- The audit trail of the workloads that a name or jobid stands for, oldest first.
SELECT h.id, h.at, h.jobid, f.workload_name AS name, h.actor, h.event, h.detail FROM history h
JOIN fluxjobs f USING (uid)
WHERE f.namespace = :namespace AND (f.workload_name = :reference OR f.name = :reference
                                   OR f.jobid = :jobid) AND h.id > :after
ORDER BY h.id LIMIT :limit
