-- fragment: moved
UPDATE fluxjobs f SET state = :target, held_by = r.held_by, reason = r.reason,
    expected_start = NULL, is_examined = coalesce(CAST(:is_examined AS bool), f.is_examined)

-- fragment: from_rows
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (uid text, reason text, held_by text)
WHERE f.uid = r.uid
  AND NOT (CAST(:is_ending_excluded AS bool) AND (f.is_deleting OR f.result IS NOT NULL))
  AND (f.state = ANY(CAST(:sources AS text[]))
       OR (f.state = 'Held' AND f.held_by = ANY(CAST(:holders AS text[]))))
RETURNING f.uid

-- name: move_rows
-- Carries out a move on the rows that it still applies to. The transaction has locked them, or
-- locks no others after them.
-- include: moved
-- include: from_rows

-- name: move_quarantined
-- The same, and notes the software that could not read or decide the rows.
-- include: moved
, quarantined_by = :software
-- include: from_rows

-- name: move_out_of_quarantine
-- The same, for what other software had set aside.
-- include: moved
, quarantined_by = NULL
-- include: from_rows

-- name: move_released
-- The same, for a release by a user, which begins a new series of tries.
-- include: moved
, start = f.start - '{tries,retry_at}'::text[]
-- include: from_rows

-- name: move_without_allocation
-- The same, for work that was found without its allocation.
-- include: moved
, allocated_at = NULL, lacking = 0, release_at = now(), reconcile_at = now()
-- include: from_rows

-- name: move_started
-- The same, for starts. The time is that of the clock, not now(): a FluxJob that was submitted after
-- the transaction began would otherwise start before its submission.
-- include: moved
, allocated_at = clock_timestamp(), release_at = now(),
reconcile_at = CASE WHEN EXISTS (SELECT FROM pods p WHERE p.workload_uid = f.uid)
                    THEN now() ELSE f.reconcile_at END
-- include: from_rows

-- name: requeue_reconciled
-- Puts a workload that has no pods any more back to its old place. A request that changed meanwhile
-- is decided from now on.
UPDATE fluxjobs SET state = :state, held_by = :held_by, reason = :reason,
    allocated_at = NULL, started_at = NULL, lacking = 0, is_examined = false,
    vacate_by = NULL, released_generation = NULL, release_at = now(),
    is_started = false, start = jsonb_strip_nulls(jsonb_build_object(
        'error', start ->> 'error', 'tries', nullif(CAST(:tries AS int), 0),
        'retry_at', now() + make_interval(secs => CAST(:delay_s AS float8)))),
    request = coalesce(observed -> 'asked' -> 'request', request),
    size = coalesce((observed -> 'asked' ->> 'size')::int, size),
    duration_s = CASE WHEN observed ? 'asked'
                      THEN (observed -> 'asked' ->> 'duration_s')::int ELSE duration_s END,
    observed = observed - 'asked',
    requeues = requeues + CAST(:is_asked AS int)
WHERE uid = :uid

-- name: store_verdict
-- Writes what follows from the dependencies and the begin time of a job.
UPDATE fluxjobs SET state = :state, held_by = :held_by, blocked_by = :blocked_by,
    blocked_reason = CASE WHEN CAST(:blocked_by AS text) IN ('begin-time', 'start-retry')
                          THEN blocked_reason ELSE :reason END,
    reason = CASE WHEN CAST(:held_by AS text) = 'dependency' THEN :reason
                  WHEN state IN ('Pending', 'Reserved') OR held_by = 'dependency' THEN ''
                  ELSE reason END,
    expected_start = NULL,
    is_examined = is_examined AND CAST(:blocked_by AS text) IS NOT NULL
WHERE uid = :uid

-- name: set_allocated
-- Sets a state on the way to ``Allocated``.
UPDATE fluxjobs SET state = CAST(:state AS text), reason = '', held_by = NULL, expected_start = NULL,
    allocated_at = now(), reconcile_at = now()
WHERE uid = ANY(CAST(:uids AS text[])) AND state <> CAST(:state AS text)

-- name: reconcile_now
-- Asks for a look at workloads.
UPDATE fluxjobs SET reconcile_at = now() WHERE uid = ANY(CAST(:uids AS text[]))

-- name: mark_examined
-- Marks FluxJobs as examined and admitted.
UPDATE fluxjobs SET is_examined = true, accepted_by = queue WHERE uid = ANY(CAST(:uids AS text[]))

-- name: keep_author_hold
-- Leaves a hold to the author, after an operator has released the job.
UPDATE fluxjobs SET held_by = 'author', reason = :reason WHERE uid = :uid

-- name: vacate
-- Has a workload suspended. It returns to the queue as its pods end. ``words``: why its start failed.
UPDATE fluxjobs SET vacate_by = :by, reason = :reason, release_at = now(), reconcile_at = now(),
    start = start || jsonb_strip_nulls(jsonb_build_object('error', CAST(:words AS text)))
WHERE uid = :uid

-- name: order_deletion
-- Has a workload deleted.
UPDATE fluxjobs SET cancel_by = :by, is_deleting = true, reason = :reason, release_at = now()
WHERE uid = :uid

-- name: give_reasons
-- Writes why rows are in their states, where that has changed and they are in one of these.
UPDATE fluxjobs f SET reason = r.reason
FROM unnest(CAST(:uids AS text[]), CAST(:reasons AS text[])) AS r (uid, reason)
WHERE f.uid = r.uid AND f.reason <> r.reason AND f.state = ANY(CAST(:states AS text[]))

-- name: recompute_priorities
-- Has the priorities in some queues computed anew by the trigger, where they change: of all users,
-- or of those beside the queues. Locks in the order of the UIDs.
UPDATE fluxjobs SET priority_parts = '{}' WHERE uid IN (
    SELECT uid FROM fluxjobs f
    WHERE queue = ANY(CAST(:queues AS text[])) AND fluxjob_has_turn(f)
      AND (CAST(:users AS text[]) IS NULL OR (queue, user_name) IN (
          SELECT * FROM unnest(CAST(:queues AS text[]), CAST(:users AS text[]))))
      AND priority_parts <> fluxjob_priority_parts_of(f)
    ORDER BY uid FOR UPDATE)
