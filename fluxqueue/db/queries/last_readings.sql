-- name: past_readings
-- What workloads said and asked for when they could be read last.
SELECT uid, said, coalesce(asked -> 'request', request) AS request,
       greatest(0, coalesce((asked ->> 'size')::int, size) - missing) AS size,
       CASE WHEN asked IS NULL THEN duration_s ELSE (asked ->> 'duration_s')::int END AS duration_s,
       further
FROM fluxjobs WHERE uid = ANY(CAST(:uids AS text[]))
