-- fragment: lines
SELECT h.id, h.at, h.jobid, h.event, h.actor, h.detail ->> 'reason' AS reason,
       f.namespace, f.workload_name AS name, f.user_name AS user, f.queue,
       fluxjob_shown_state(state, wait_reason, blocked_by) AS state
FROM history h JOIN fluxjobs f USING (uid)

-- name: last_line
-- The highest number there is, 0 where there is none.
SELECT coalesce(max(id), 0) AS id FROM history

-- name: lines_after
-- Lines behind a number, in their order.
-- include: lines
WHERE h.id > :after ORDER BY h.id LIMIT :limit

-- name: missed_lines
-- Lines that were not visible yet when later ones were read.
-- include: lines
WHERE h.id = ANY(CAST(:missed AS bigint[])) ORDER BY h.id
