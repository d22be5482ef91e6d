-- name: read_reservations
-- The plan of the last cycle. Epoch seconds.
SELECT uid, starts_at, nodes, true AS is_firm, kept_from FROM reservations
UNION ALL SELECT uid, latest_start, nodes, false, kept_from FROM expected_starts

-- name: read_told
-- The last reports to FluxJobs without a reservation, where a start was estimated.
SELECT uid, extract(epoch FROM expected_start)::bigint AS starts_at, reason, wait_reason, position
FROM fluxjobs WHERE state = 'Pending' AND expected_start IS NOT NULL

-- name: read_behind
-- The next :slice FluxJobs of a queue behind a turn, in their order, with what they are shown.
-- Those of full users wait for something else.
SELECT uid, size, duration_s, priority, place, reason, position,
       extract(epoch FROM expected_start)::bigint AS expected_start
FROM fluxjobs
WHERE queue = :queue AND state IN ('Pending', 'Reserved') AND is_examined AND blocked_by IS NULL
  AND NOT is_deleting AND result IS NULL AND wait_reason IS DISTINCT FROM 'OverLimit'
  AND priority <= :priority AND (priority < :priority OR place > :place)
ORDER BY priority DESC, place LIMIT :slice

-- name: jobids_of_running
-- The jobid of everything that holds resources.
SELECT f.uid, f.jobid FROM allocations a JOIN fluxjobs f USING (uid) WHERE a.is_live

-- name: lock_waiting
-- Locks all at once and in the common order of the UIDs. Another order could deadlock.
SELECT uid FROM fluxjobs
WHERE uid = ANY(CAST(:uids AS text[])) AND state IN ('Pending', 'Reserved')
ORDER BY uid FOR UPDATE

-- name: drop_expected_starts
-- Removes estimated starts. Only a cycle removes the start of a reservation.
UPDATE fluxjobs SET expected_start = NULL
WHERE uid = ANY(CAST(:uids AS text[])) AND state = 'Pending' AND expected_start IS NOT NULL

-- name: store_outlooks
-- Writes the outlook of FluxJobs that still wait.
UPDATE fluxjobs f SET reason = r.reason, wait_reason = r.wait_reason, position = r.position,
    expected_start = to_timestamp(r.starts_at)
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    uid text, starts_at bigint, reason text, wait_reason text, position int)
WHERE f.uid = r.uid AND f.state IN ('Pending', 'Reserved') AND f.blocked_by IS NULL
  AND f.is_examined AND NOT f.is_deleting

-- name: store_told_starts
-- Writes what waiting FluxJobs are shown of their starts. What they were shown first stays. A FluxJob
-- that waits once more is shown anew.
INSERT INTO told_starts AS t (uid, told_at, planned, expected, expected_by, shown_by)
SELECT r.uid, r.told_at, r.planned, r.expected, r.expected_by, r.expected_by
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    uid text, told_at bigint, planned bigint, expected bigint, expected_by bigint)
JOIN fluxjobs f ON f.uid = r.uid AND f.state IN ('Pending', 'Reserved')
ON CONFLICT (uid) DO UPDATE SET shown_by = excluded.shown_by, started_at = NULL,
    told_at = CASE WHEN t.started_at IS NULL THEN t.told_at ELSE excluded.told_at END,
    planned = CASE WHEN t.started_at IS NULL THEN t.planned ELSE excluded.planned END,
    expected = CASE WHEN t.started_at IS NULL THEN t.expected ELSE excluded.expected END,
    expected_by = CASE WHEN t.started_at IS NULL THEN t.expected_by ELSE excluded.expected_by END

-- name: store_true_starts
-- Writes when FluxJobs have started that were shown when they would.
UPDATE told_starts SET started_at = :now WHERE uid = ANY(CAST(:uids AS text[]))

-- name: read_told_starts
-- What waiting FluxJobs were shown first, and the true starts since :since in their order, at most
-- :of_user of one user, the newest of them.
SELECT uid, f.user_name, CAST(NULL AS bigint) AS started_at, told_at, planned, expected, expected_by
FROM told_starts t JOIN fluxjobs f USING (uid)
WHERE t.started_at IS NULL AND f.state IN ('Pending', 'Reserved')
UNION ALL
(SELECT uid, user_name, started_at, told_at, planned, expected, expected_by FROM (
    SELECT t.*, f.user_name,
           row_number() OVER (PARTITION BY f.user_name ORDER BY t.started_at DESC) AS place
    FROM told_starts t JOIN fluxjobs f USING (uid) WHERE t.started_at > :since) placed
 WHERE place <= :of_user ORDER BY started_at)

-- name: read_promises
-- Promises that still stand: given since the FluxJob last began to wait.
SELECT f.uid, (p.detail ->> 'starts_at')::bigint AS starts_at,
       (SELECT x.detail ->> 'excuse' FROM history x
        WHERE x.uid = f.uid AND x.id > p.id AND x.event = :excused
        ORDER BY x.id LIMIT 1) AS excuse
FROM fluxjobs f CROSS JOIN LATERAL (
    SELECT h.id, h.detail FROM history h WHERE h.uid = f.uid AND h.event = :promised
    ORDER BY h.id DESC LIMIT 1) p
WHERE f.state IN ('Pending', 'Reserved') AND NOT EXISTS (
    SELECT FROM history n WHERE n.uid = f.uid AND n.id > p.id
    AND n.event != ALL (CAST(:still_waiting AS text[])))

-- name: note_events
-- Adds lines to the audit trail.
INSERT INTO history (uid, jobid, actor, event, detail)
SELECT r.uid, f.jobid,
       coalesce(nullif(current_setting('fluxqueue.actor', true), ''), session_user),
       r.event, r.detail
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    uid text, event text, detail jsonb)
JOIN fluxjobs f ON f.uid = r.uid

-- name: explain_waits
-- Writes for waiting FluxJobs the reservation, the expected start and the reason to wait, where
-- it changes.
UPDATE fluxjobs f SET state = r.state, reason = r.reason, wait_reason = r.wait_reason,
                      position = r.position,
                      expected_start = to_timestamp(r.starts_at)
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    uid text, starts_at bigint, state text, reason text, wait_reason text, position int)
WHERE f.uid = r.uid AND f.state IN ('Pending', 'Reserved')
  AND (f.state, f.reason, f.wait_reason, f.position, f.expected_start)
      IS DISTINCT FROM (
      r.state, r.reason, r.wait_reason, r.position, to_timestamp(r.starts_at))
