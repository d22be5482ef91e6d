-- name: past_readings
-- What workloads said and asked for when they could be read last.
SELECT uid, coalesce(observed -> 'said', '{}') AS said,
       coalesce(observed -> 'asked' -> 'request', request) AS request,
       greatest(0, coalesce((observed -> 'asked' ->> 'size')::int, size)
                   - coalesce((observed ->> 'missing')::int, 0)) AS size,
       CASE WHEN observed ? 'asked' THEN (observed -> 'asked' ->> 'duration_s')::int
            ELSE duration_s END AS duration_s,
       observed -> 'further' AS further
FROM fluxjobs WHERE uid = ANY(CAST(:uids AS text[]))
