-- fragment: waits
-- What waits in its turn.
state IN ('Pending', 'Reserved') AND is_examined AND blocked_by IS NULL
AND NOT is_deleting AND result IS NULL

-- fragment: unexamined
NOT is_examined AND (state IN ('Pending', 'Reserved') OR held_by = 'queue')

-- fragment: in_turn
row_number() OVER (PARTITION BY user_name ORDER BY jobid), jobid

-- fragment: in_queues
queue = ANY(CAST(:queues AS text[]))
AND state IN ('Gathering', 'Pending', 'Reserved', 'Unsatisfiable', 'Held')

-- fragment: pending
uid, jobid, place, observed ? 'is_limited' AS is_limited, priority, queue, user_name, request::text AS request, observed ->> 'provision' AS provision,
CASE WHEN start ? 'tries' THEN fluxjob_refused_nodes(uid) END AS refused,
observed -> 'ignored' AS ignored,
namespace, state, reason, accepted_by, observed ? 'waits_gated' AS waits_gated,
fluxjob_owner(f) AS owner, observed ->> 'template' AS template

-- fragment: head
-- The head of each queue: an index scan that stops at its depth in any queue. Users that are full
-- must not fill it. Then the jobs that nodes were asked for, wherever they are in the queue.
SELECT h.* FROM fluxqueues q CROSS JOIN LATERAL (
    SELECT -- include: pending
    FROM fluxjobs f WHERE f.queue = q.name AND -- include: waits
      AND NOT (f.queue, f.user_name) IN (
          SELECT * FROM unnest(CAST(:full_queues AS text[]), CAST(:full_users AS text[])))
    ORDER BY priority DESC, place LIMIT coalesce(q.queue_depth, :depth)) h
UNION ALL
SELECT -- include: pending
FROM fluxjobs f WHERE uid = ANY(CAST(:owners AS text[])) AND -- include: waits

-- name: lock_queue
-- Locks all rows that a cycle may change, at once and in the order of their UIDs, as everywhere.
-- ``more``: those that other statements have found for it.
SELECT uid, -- include: unexamined
       AS is_new, lacking > 0 AS lacks,
       state = 'Reserved' OR uid IN (SELECT uid FROM expected_starts) AS is_planned
FROM fluxjobs WHERE uid IN (
    (SELECT uid FROM fluxjobs WHERE -- include: unexamined
     ORDER BY -- include: in_turn
     LIMIT :examined_max)
    UNION ALL
    SELECT uid FROM (
        -- include: head
    ) heads
    UNION ALL
    SELECT uid FROM reservations
    UNION ALL
    SELECT uid FROM fluxjobs WHERE lacking > 0
    UNION ALL
    SELECT unnest(CAST(:more AS text[]))
    UNION ALL
    SELECT uid FROM fluxjobs
    WHERE CAST(:have_nodes_changed AS bool) AND state = 'Unsatisfiable')
ORDER BY uid FOR UPDATE

-- name: lock_free
-- Locks the rows that no other transaction has locked. Waiting would break the order of UIDs.
SELECT uid FROM fluxjobs WHERE uid = ANY(CAST(:uids AS text[])) ORDER BY uid FOR UPDATE SKIP LOCKED

-- name: queue_head
-- The first FluxJobs of each queue, as far as a cycle looks.
-- include: head

-- name: first_of_each
-- The first few of each user in crowded queues: a scan of these whole queues.
SELECT h.* FROM (
    SELECT uid FROM (
        SELECT uid, row_number() OVER (
            PARTITION BY queue, user_name ORDER BY priority DESC, place) AS nth
        FROM fluxjobs WHERE queue = ANY(CAST(:crowded AS text[])) AND -- include: waits
    ) ranked WHERE nth <= :of_each ORDER BY nth LIMIT :of_all) few
JOIN LATERAL (
    SELECT -- include: pending
    FROM fluxjobs f WHERE f.uid = few.uid) h ON true

-- name: pending_rows
-- Some FluxJobs by their UIDs, whether they wait or not.
SELECT -- include: pending
FROM fluxjobs f WHERE uid = ANY(CAST(:uids AS text[]))

-- name: unexamined
-- FluxJobs not examined since they came, changed or were moved. Users take turns.
SELECT -- include: pending
FROM fluxjobs f WHERE -- include: unexamined
ORDER BY -- include: in_turn
LIMIT :limit

-- name: uids_in_queues
-- What waits in queues with changed rules, or is held by them.
SELECT uid FROM fluxjobs WHERE -- include: in_queues

-- name: examined_in_queues
-- The same, without what is new and what waits for others.
SELECT -- include: pending
FROM fluxjobs f WHERE -- include: in_queues
  AND is_examined AND (state IN ('Pending', 'Reserved') OR held_by = 'queue') ORDER BY jobid

-- name: quarantined_by_others
-- Locks what other software has set aside, in the order of the UIDs, as in ``lock_queue``.
SELECT uid FROM fluxjobs
WHERE state = 'Held' AND held_by = ANY(CAST(:holders AS text[]))
  AND quarantined_by IS DISTINCT FROM :software
ORDER BY uid FOR UPDATE

-- name: unsatisfiable
-- FluxJobs that were found impossible.
SELECT -- include: pending
FROM fluxjobs f WHERE state = 'Unsatisfiable'
