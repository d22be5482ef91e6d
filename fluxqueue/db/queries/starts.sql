-- name: keep_start_words
-- One statement for all, so that their next look is one task. A workload whose pods have come
-- meanwhile is left alone, and without words nothing is known to be wrong.
UPDATE fluxjobs f SET
    start = f.start || jsonb_build_object('trouble', jsonb_build_object(
        'fault', 'FailedCreate', 'since_s', extract(epoch FROM now()))
        || coalesce(f.start -> 'trouble', '{}')
        || jsonb_build_object('words', w.words, 'asked_s', extract(epoch FROM now()))),
    reconcile_at = now()
FROM unnest(CAST(:uids AS text[]), CAST(:words AS text[])) AS w (uid, words)
WHERE f.uid = w.uid AND f.uid IN (
    SELECT uid FROM fluxjobs WHERE uid = ANY(CAST(:uids AS text[])) ORDER BY uid FOR NO KEY UPDATE)
  AND (f.start -> 'trouble' ->> 'fault' = 'FailedCreate'
       OR (NOT f.start ? 'trouble' AND w.words <> '' AND f.state IN ('Allocated', 'Running')
           AND NOT f.is_started AND f.vacate_by IS NULL))

-- name: mark_refused
-- Records that the nodes of these pods' slots did not take them.
UPDATE allocation_slots SET refused_at = now()
WHERE pod_uid = ANY(CAST(:pods AS text[])) AND refused_at IS NULL

-- name: vacate_not_started
-- Has a workload suspended that does not start.
UPDATE fluxjobs
SET vacate_by = :by, reason = :reason, release_at = now(), reconcile_at = now(),
    start = start || jsonb_build_object('error', CAST(:words AS text))
WHERE uid = :uid
