-- fragment: seen
jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    uid text, namespace text, name text, workload_kind text, workload_name text, user_name text,
    flux_uid text, flux_version text, request jsonb, begin_at timestamptz, queue text,
    observed jsonb, size int, duration_s int, state text, reason text, held_by text,
    author_hold text, vacate_by text, released_generation bigint, result text, pinned_to text,
    is_placed bool, is_deleting bool, is_examined bool, is_started bool, must_reconcile bool,
    must_release bool, leaves_quarantine bool, asks_for_more bool, jobid bigint, position int)

-- name: lock_seen
-- Locks the rows of workloads, and compares what orders the queue with what was seen. An absent key
-- of what was seen is NULL. Locks are taken in the order of the UIDs, as everywhere. Another order
-- could deadlock.
SELECT f.uid, f.observed -> 'faults' AS faults, f.state, f.reason, f.held_by, f.author_hold,
       f.vacate_by, f.released_generation, f.result, f.pinned_to, f.is_placed, f.size, f.duration_s,
       f.grace_s, f.observed ? 'is_limited' AS is_limited, f.is_examined, f.is_started,
       extract(epoch FROM f.allocated_at)::bigint AS allocated_at_s,
       extract(epoch FROM now() - f.allocated_at)::bigint AS elapsed_s,
       f.cancel_by IS NOT NULL AS is_cancelled,
       coalesce(f.request = r.request, false) AS is_same_request,
       CASE WHEN coalesce(f.observed -> 'asked' -> 'request', f.request) <> r.request
            THEN coalesce(f.observed -> 'asked' -> 'request', f.request) END AS former_request,
       coalesce(f.queue = coalesce(f.overrides ->> 'queue', r.queue), false)
           AND f.begin_at IS NOT DISTINCT FROM
               coalesce((f.overrides ->> 'begin_at')::timestamptz, r.begin_at)
           AND f.observed -> 'priority' IS NOT DISTINCT FROM r.observed -> 'priority'
           AND f.observed -> 'depends_on' IS NOT DISTINCT FROM r.observed -> 'depends_on'
           AND f.observed ? 'is_priority_granted' = r.observed ? 'is_priority_granted'
           AS is_same_turn,
       (SELECT fluxqueue_room_is_awaited()) AS is_awaited
FROM fluxjobs f LEFT JOIN -- include: seen
USING (uid)
WHERE f.uid = ANY(CAST(:uids AS text[])) ORDER BY f.uid FOR UPDATE OF f

-- name: update_seen
-- Writes what was seen of workloads with rows, and what lifecycle decides.
UPDATE fluxjobs f SET
    observed = r.observed, size = r.size, duration_s = r.duration_s, state = r.state,
    reason = r.reason, held_by = r.held_by, author_hold = r.author_hold, vacate_by = r.vacate_by,
    released_generation = r.released_generation, result = r.result, pinned_to = r.pinned_to,
    is_placed = r.is_placed, is_deleting = r.is_deleting, is_examined = r.is_examined,
    is_started = r.is_started, is_gone = false,
    flux_uid = coalesce(r.flux_uid, f.flux_uid),
    published = f.published || jsonb_strip_nulls(jsonb_build_object('flux_version', r.flux_version)),
    -- Only a changed request is sent. It may change only while nothing has been given for it.
    request = coalesce(r.request, f.request),
    place = CASE WHEN r.asks_for_more THEN fluxjob_next_place() ELSE f.place END,
    -- What a user set by hand wins over what the author wrote.
    begin_at = coalesce((f.overrides ->> 'begin_at')::timestamptz, r.begin_at),
    queue = coalesce(f.overrides ->> 'queue', r.queue),
    start = f.start - CASE WHEN r.is_started OR r.leaves_quarantine THEN 'tries' ELSE '' END,
    quarantined_by = CASE WHEN r.leaves_quarantine THEN NULL ELSE f.quarantined_by END,
    -- A look clears what was reported of its start. Here its other reasons are not known.
    reconcile_at = CASE WHEN r.must_reconcile
                          OR (r.is_started AND NOT f.is_started AND f.start ? 'trouble')
                        THEN now() ELSE f.reconcile_at END,
    release_at = CASE WHEN r.must_release THEN now() ELSE f.release_at END
FROM -- include: seen
WHERE f.uid = r.uid

-- fragment: insert_columns
uid, namespace, name, workload_kind, workload_name, user_name, flux_uid, request, begin_at,
queue, observed, size, duration_s, state, reason, held_by, author_hold, vacate_by,
released_generation, result, pinned_to, is_placed, is_deleting, is_examined, is_started

-- fragment: insert_values
-- include: insert_columns
, jsonb_strip_nulls(jsonb_build_object('flux_version', flux_version)),
CASE WHEN must_reconcile THEN now() END, CASE WHEN must_release THEN now() END
FROM -- include: seen
ORDER BY position

-- name: insert_seen
-- Writes rows of workloads that have none. Not an upsert: that would draw a jobid for every row that
-- it only updates.
INSERT INTO fluxjobs (-- include: insert_columns
, published, reconcile_at, release_at)
SELECT -- include: insert_values

-- name: insert_numbered
-- The same for those that had a number before, in a database that was lost.
INSERT INTO fluxjobs (jobid, -- include: insert_columns
, published, reconcile_at, release_at) OVERRIDING SYSTEM VALUE
SELECT jobid, -- include: insert_values

-- name: workloads_gone
-- Writes that workloads no longer exist.
UPDATE fluxjobs f SET is_gone = true, is_deleting = true, observed = f.observed - 'wanted',
    result = coalesce(f.result, g.result),
    reason = CASE WHEN f.state IN ('Allocated', 'Running') AND NOT g.is_seen
                       AND f.cancel_by IS NULL AND coalesce(f.result, g.result) IS NULL
                  THEN CAST(:unseen AS text) ELSE f.reason END,
    reconcile_at = CASE WHEN f.ended_at IS NULL THEN now() ELSE f.reconcile_at END
FROM unnest(CAST(:uids AS text[]), CAST(:results AS text[]), CAST(:seen AS bool[]))
     AS g (uid, result, is_seen)
WHERE f.uid = g.uid

-- name: lock_observed
-- The facts of a workload, locked.
SELECT observed FROM fluxjobs WHERE uid = :uid FOR UPDATE

-- name: note_faults
-- Notes on its row what of a workload cannot be used.
UPDATE fluxjobs SET observed = observed || jsonb_build_object('faults', CAST(:faults AS jsonb))
WHERE uid = :uid
