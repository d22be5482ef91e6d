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

-- name: vacate_lost
-- Has a workload suspended, matched anew and released again. Its template names a node that is lost.
UPDATE fluxjobs SET vacate_by = :by, reason = :reason, release_at = now() WHERE uid = :uid

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
