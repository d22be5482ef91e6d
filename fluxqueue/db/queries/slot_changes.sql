-- name: write_reconciled
-- Writes what becomes of reconciled FluxJobs. NULL leaves a column as it is.
UPDATE fluxjobs f SET
    state = coalesce(r.state, f.state), reason = coalesce(r.reason, f.reason),
    lacking = coalesce(r.lacking, f.lacking),
    started_at = CASE WHEN r.has_run THEN coalesce(f.started_at, clock_timestamp())
                      ELSE f.started_at END,
    ended_at = CASE WHEN r.is_ended THEN clock_timestamp() ELSE f.ended_at END,
    expected_start = CASE WHEN r.is_ended THEN NULL ELSE f.expected_start END,
    reconcile_at = CASE WHEN r.is_done THEN now() + make_interval(secs => r.look_in_s)
                        ELSE f.reconcile_at END,
    start = fluxqueue_with(f.start, 'trouble', nullif(coalesce(r.starting, f.start -> 'trouble'), '{}'))
            - CASE WHEN r.is_started THEN 'tries' ELSE '' END,
    is_started = f.is_started OR r.is_started,
    version = f.version + CAST(r.is_resized AS int),
    status_due_at = CASE WHEN r.is_resized THEN fluxjob_resized_due_at(f)
                         ELSE f.status_due_at END
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    uid text, state text, reason text, lacking int, has_run bool, is_ended bool, is_done bool,
    look_in_s float8, starting jsonb, is_started bool, is_resized bool)
WHERE f.uid = r.uid

-- name: release_slots
-- Takes slots from their pods. The next pod of a slot is as large as the first one was, before it
-- was resized.
UPDATE allocation_slots s SET pod_uid = NULL,
    resources = coalesce(s.granted, s.resources), granted = NULL,
    state = CASE WHEN g.is_back THEN 'returned' ELSE 'free' END,
    returned_at = CASE WHEN g.is_back THEN now() END
FROM unnest(CAST(:ids AS bigint[]), CAST(:numbers AS int[]), CAST(:back AS bool[]))
     AS g (id, number, is_back)
JOIN allocation_slots o ON o.allocation_id = g.id AND o.number = g.number
WHERE s.allocation_id = g.id AND s.number = g.number
RETURNING s.allocation_id, o.granted IS NOT NULL AS was_resized

-- name: give_slots
-- Gives slots to pods.
UPDATE allocation_slots s SET state = 'held', pod_uid = g.pod, returned_at = NULL,
    resources = coalesce(s.granted, s.resources), granted = NULL
FROM unnest(CAST(:ids AS bigint[]), CAST(:numbers AS int[]), CAST(:pods AS text[]))
     AS g (id, number, pod)
JOIN allocation_slots o ON o.allocation_id = g.id AND o.number = g.number
WHERE s.allocation_id = g.id AND s.number = g.number
RETURNING s.allocation_id, o.granted IS NOT NULL AS was_resized

-- name: index_slots
-- Writes the completion indexes of slots that pods hold. An index has one slot, the last it was
-- given.
WITH given AS (
    SELECT s.allocation_id AS id, s.number, p.completion_index AS index
    FROM unnest(CAST(:ids AS bigint[]), CAST(:numbers AS int[])) AS g (id, number)
    JOIN allocation_slots s ON s.allocation_id = g.id AND s.number = g.number
    JOIN pods p ON p.uid = s.pod_uid)
UPDATE allocation_slots s
SET completion_index = (SELECT g.index FROM given g
                        WHERE g.id = s.allocation_id AND g.number = s.number)
WHERE EXISTS (SELECT FROM given g WHERE g.id = s.allocation_id
              AND (g.number = s.number OR g.index = s.completion_index))
  AND s.allocation_id = ANY(CAST(:ids AS bigint[]))

-- name: show_resized
-- Has a look taken at FluxJobs that got more slots, and has them show it.
UPDATE fluxjobs f SET reconcile_at = now(), version = version + 1,
    status_due_at = fluxjob_resized_due_at(f)
WHERE uid = ANY(CAST(:uids AS text[]))
