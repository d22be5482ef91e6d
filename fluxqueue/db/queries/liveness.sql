-- name: write_loops
-- When each loop of a process began, succeeded and failed. Ages come in, times are stored.
INSERT INTO loops AS l (loop, holder, began_at, succeeded_at, failed_at, error, patience_s)
SELECT r.loop, :holder, now() - make_interval(secs => r.began_s),
       now() - make_interval(secs => r.succeeded_s), now() - make_interval(secs => r.failed_s),
       r.error, r.patience_s
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    loop text, began_s float8, succeeded_s float8, failed_s float8, error text, patience_s int)
ORDER BY r.loop
ON CONFLICT (loop) DO UPDATE SET
    holder = excluded.holder, patience_s = excluded.patience_s,
    -- After a pause, in which no process ran it, lateness counts from the new beginning. A process
    -- that dies again and again makes no pause.
    began_at = CASE WHEN l.written_at < now() - interval '2 min'
                    THEN excluded.began_at ELSE l.began_at END,
    written_at = now(),
    succeeded_at = greatest(l.succeeded_at, excluded.succeeded_at),
    failed_at = greatest(l.failed_at, excluded.failed_at),
    error = CASE WHEN excluded.error IS NOT NULL THEN excluded.error
                 WHEN excluded.succeeded_at >= l.failed_at THEN NULL ELSE l.error END
