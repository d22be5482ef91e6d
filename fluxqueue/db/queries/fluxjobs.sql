-- fragment: narrow
(CAST(:namespaces AS text[]) IS NULL OR namespace = ANY(CAST(:namespaces AS text[])))
AND (CAST(:queue AS text) IS NULL OR queue = :queue)
AND (CAST(:user AS text) IS NULL OR user_name = :user)
AND (CAST(:states AS text[]) IS NULL OR fluxjob_shown_state(state, wait_reason, blocked_by)
        = ANY(CAST(:states AS text[])))

-- fragment: columns
f.jobid, f.place, f.namespace, f.workload_name AS name, f.workload_kind AS kind,
f.name AS fluxjob,
f.user_name AS user, f.queue,
fluxjob_shown_state(f.state, f.wait_reason, f.blocked_by) AS state, f.reason, f.size, f.priority,
f.priority_parts, f.request AS shape, f.expected_start, f.held_by, f.blocked_by, f.requeues,
f.submitted_at, f.allocated_at, f.started_at, f.ended_at,
(SELECT array_agg(s.node ORDER BY s.number) FROM allocation_slots s
 WHERE s.allocation_id = (SELECT a.id FROM allocations a
                          WHERE a.uid = f.uid AND (a.is_live OR f.ended_at IS NOT NULL)
                          ORDER BY a.id DESC LIMIT 1)) AS nodes,
fluxjob_rank(f.state, f.blocked_by) AS rank

-- fragment: is_behind
(fluxjob_rank(state, blocked_by), - priority::bigint, place)
    > (:rank, -CAST(:priority AS bigint), :place)

-- fragment: last_shown
(SELECT rank, falling, place FROM page ORDER BY rank DESC, falling DESC, place DESC LIMIT 1)

-- fragment: shown
SELECT -- include: columns
, CAST(nth + :before AS bigint) AS position
FROM page JOIN fluxjobs f USING (uid) LEFT JOIN turn USING (uid)
ORDER BY page.rank, falling, f.place

-- name: living_first
-- What has not ended: what runs, then what waits in the order of its turn, from the first one on.
WITH page AS MATERIALIZED (
    SELECT uid, fluxjob_rank(state, blocked_by) AS rank, - priority::bigint AS falling, place
    FROM fluxjobs WHERE fluxjob_lives(state) AND -- include: narrow
    ORDER BY fluxjob_rank(state, blocked_by), - priority::bigint, place LIMIT :limit
), turn AS (
    -- From the first one to the last one shown, also what is left out.
    SELECT uid, row_number() OVER (ORDER BY - priority::bigint, place) AS nth
    FROM fluxjobs WHERE fluxjob_lives(state) AND fluxjob_rank(state, blocked_by) = 1
      AND (fluxjob_rank(state, blocked_by), - priority::bigint, place) <= -- include: last_shown
)
-- include: shown

-- name: living_behind
-- The same behind one that was seen. A separate statement, since no index serves a condition that
-- may be absent.
WITH page AS MATERIALIZED (
    SELECT uid, fluxjob_rank(state, blocked_by) AS rank, - priority::bigint AS falling, place
    FROM fluxjobs WHERE fluxjob_lives(state) AND -- include: is_behind
      AND -- include: narrow
    ORDER BY fluxjob_rank(state, blocked_by), - priority::bigint, place LIMIT :limit
), turn AS (
    -- From the last one seen to the last one shown, also what is left out.
    SELECT uid, row_number() OVER (ORDER BY - priority::bigint, place) AS nth
    FROM fluxjobs WHERE fluxjob_lives(state) AND -- include: is_behind
      AND fluxjob_rank(state, blocked_by) = 1
      AND (fluxjob_rank(state, blocked_by), - priority::bigint, place) <= -- include: last_shown
)
-- include: shown

-- name: newest
-- FluxJobs, the newest first, also those that have ended and are kept.
SELECT -- include: columns
FROM fluxjobs f
WHERE -- include: narrow
  AND (CAST(:before AS bigint) IS NULL OR jobid < :before)
  AND (CAST(:name AS text) IS NULL OR workload_name = :name OR name = :name)
ORDER BY jobid DESC LIMIT :limit

-- name: by_jobid
-- One FluxJob.
SELECT -- include: columns
FROM fluxjobs f WHERE jobid = :jobid

-- name: starts
-- What waits and is expected to start, in that order.
SELECT f.jobid, f.namespace, f.workload_name AS name, f.user_name AS user, f.queue,
       fluxjob_shown_state(f.state, f.wait_reason, f.blocked_by) AS state, f.size, f.priority,
       f.expected_start, f.reason,
       to_timestamp(r.starts_at) AS promised_start, to_timestamp(t.shown_by) AS expected_by,
       (SELECT array_agg(node) FROM jsonb_array_elements_text(r.nodes) AS n (node))
           AS nodes
FROM fluxjobs f LEFT JOIN reservations r USING (uid) LEFT JOIN told_starts t USING (uid)
WHERE fluxjob_lives(state) AND state IN ('Pending', 'Reserved') AND expected_start IS NOT NULL
  AND -- include: narrow
  AND (CAST(:at AS timestamptz) IS NULL OR (expected_start, jobid) > (:at, :jobid))
ORDER BY expected_start, jobid LIMIT :limit

-- name: namespaces
-- All namespaces of known FluxJobs, in order. The index looks each of them up.
WITH RECURSIVE found (namespace) AS (
    (SELECT namespace FROM fluxjobs ORDER BY namespace LIMIT 1)
    UNION ALL
    SELECT (SELECT f.namespace FROM fluxjobs f WHERE f.namespace > found.namespace
            ORDER BY f.namespace LIMIT 1)
    FROM found WHERE found.namespace IS NOT NULL
) SELECT namespace FROM found WHERE namespace IS NOT NULL LIMIT :most
