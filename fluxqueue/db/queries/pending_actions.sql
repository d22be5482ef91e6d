-- fragment: due
greatest(o.since, (SELECT since FROM leadership WHERE role = 'controller'))

-- name: count_pending_actions
-- Pending actions by task, and for how long the oldest could have been done: not while the rows
-- were in doubt.
SELECT task, count(*) AS number,
    CAST(greatest(extract(epoch FROM now() - min(-- include: due
    )), 0) AS float8) AS overdue_s
FROM pending_actions o GROUP BY task

-- name: late_effects
-- Effects that could have been done for long, or with a task that has failed often.
SELECT o.task, o.uid, coalesce(t.attempts, 0) AS attempts,
       extract(epoch FROM greatest(now() - -- include: due
       , interval '0'))::bigint AS overdue_s, o.last_error
FROM pending_actions o LEFT JOIN (
    SELECT j.task_name, u.uid, max(j.attempts) AS attempts
    FROM procrastinate.procrastinate_jobs j, jsonb_array_elements_text(j.args -> 'uids') AS u (uid)
    WHERE j.status IN ('todo', 'doing') GROUP BY 1, 2) t ON t.task_name = o.task AND t.uid = o.uid
WHERE -- include: due
    < now() - make_interval(secs => :overdue_s) OR t.attempts >= :attempts

-- name: note_failures
-- Writes down why effects of a task have failed. Returns which failures are lasting, and new.
UPDATE fluxjobs f SET troubles = f.troubles || jsonb_build_object('last_error', e.error)
    -- The first word of it stays: another one each time would be news each time.
    || CASE WHEN e.is_lasting
            THEN jsonb_build_object('stalled', jsonb_build_object(CAST(:task AS text), e.error)
                                               || coalesce(f.troubles -> 'stalled', '{}'))
            ELSE '{}' END
FROM unnest(CAST(:uids AS text[]), CAST(:errors AS text[]),
            CAST(:lasting AS bool[])) AS e (uid, error, is_lasting)
     JOIN (SELECT uid, troubles FROM fluxjobs WHERE uid = ANY(CAST(:uids AS text[]))
           ORDER BY uid FOR NO KEY UPDATE) old USING (uid)
WHERE f.uid = e.uid
RETURNING f.uid, f.troubles -> 'stalled' ->> :task AS told,
          coalesce(f.troubles -> 'stalled' ? :task, false)
              AND NOT coalesce(old.troubles -> 'stalled' ? :task, false) AS is_news

-- name: forgive_except
-- Removes the notes of a task from all rows but some. Locks in the order of the UIDs, as
-- everywhere. Another order could deadlock.
WITH noted AS (
    SELECT uid FROM fluxjobs
    WHERE troubles -> 'stalled' ? :task
      AND NOT uid = ANY(CAST(:still AS text[]))
    ORDER BY uid FOR NO KEY UPDATE)
UPDATE fluxjobs f SET troubles = fluxqueue_with(
    f.troubles, 'stalled', nullif((f.troubles -> 'stalled') - CAST(:task AS text), '{}'))
FROM noted WHERE f.uid = noted.uid

-- name: sweep
-- Defers what is pending for a time and in no task, and returns how many, by task.
SELECT task, number FROM fluxqueue_sweep(make_interval(secs => :grace_s))
