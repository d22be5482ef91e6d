-- name: put_back_allocations
-- Gives running pods the slots back that their workloads held last.
WITH last AS (
    SELECT DISTINCT ON (f.uid) f.uid, a.id, a.ended_at,
           EXISTS (SELECT FROM pods p WHERE p.workload_uid = f.uid AND p.slot_kind <> '')
               AS has_kinds
    FROM fluxjobs f JOIN allocations a USING (uid)
    WHERE f.uid = ANY(CAST(:uids AS text[])) AND f.state IN ('Allocated', 'Running')
      AND NOT EXISTS (SELECT FROM allocations b WHERE b.uid = f.uid AND b.is_live)
    ORDER BY f.uid, a.id DESC
), places AS (
    SELECT *, row_number() OVER (
               PARTITION BY id, node, kind ORDER BY completion_index, number) AS n
    FROM (SELECT l.uid, l.id, s.number, s.node, s.completion_index,
                 CASE WHEN l.has_kinds THEN s.kind ELSE '' END AS kind
          FROM last l JOIN allocation_slots s
            ON s.allocation_id = l.id AND s.returned_at = l.ended_at) taken
), holders AS (
    SELECT p.workload_uid AS uid, p.uid AS pod, p.node, p.slot_kind AS kind,
           row_number() OVER (PARTITION BY p.workload_uid, p.node, p.slot_kind
                              ORDER BY p.completion_index, p.name) AS n
    FROM pods p JOIN last l ON l.uid = p.workload_uid
    WHERE p.node IS NOT NULL AND NOT p.is_gated AND p.phase NOT IN ('Succeeded', 'Failed')
), held AS (
    UPDATE allocation_slots s SET state = 'held', pod_uid = h.pod, returned_at = NULL
    FROM places JOIN holders h USING (uid, node, kind, n)
    WHERE s.allocation_id = places.id AND s.number = places.number
)
UPDATE allocations a SET is_live = true, ended_at = NULL FROM last WHERE a.id = last.id
RETURNING a.id

-- name: rebuild_states
-- Sets rows to their states and times. The session is marked, so no guard asks for the way.
UPDATE fluxjobs f SET
    state = r.state, expected_start = NULL, is_examined = false, lacking = 0,
    reason = CASE WHEN r.state IN ('Pending', 'Held') AND f.state = r.state THEN f.reason
                  ELSE '' END,
    held_by = CASE WHEN r.state = 'Held' AND r.held_by IS NOT NULL THEN r.held_by
                   WHEN f.held_by = 'author' THEN f.held_by END,
    allocated_at = CASE WHEN r.has_slots THEN coalesce(to_timestamp(r.allocated_at), now()) END,
    started_at = CASE WHEN r.state IN ('Pending', 'Held', 'Allocated') THEN f.started_at
                      ELSE coalesce(to_timestamp(r.started_at), f.started_at,
                                    CASE WHEN r.state = 'Running' THEN now() END) END,
    ended_at = CASE WHEN r.is_final THEN coalesce(to_timestamp(r.ended_at), now()) END,
    submitted_at = least(f.submitted_at, coalesce(to_timestamp(r.submitted_at), f.submitted_at))
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    uid text, state text, is_final bool, has_slots bool, held_by text, allocated_at bigint,
    started_at bigint, ended_at bigint, submitted_at bigint)
WHERE f.uid = r.uid

-- name: rebuild_records
-- Sets what the record of an object says of earlier decisions.
UPDATE fluxjobs f SET
    flux_uid = coalesce(r.flux_uid, f.flux_uid),
    place = coalesce(r.place, f.place),
    overrides = jsonb_build_object('spec', jsonb_build_object('requeue', r.requeue)) || f.overrides
        || jsonb_strip_nulls(jsonb_build_object('priority', r.set_priority, 'queue', r.set_queue)),
    queue = coalesce(r.set_queue, f.queue),
    accepted_by = coalesce(r.accepted_by, f.accepted_by),
    vacate_by = coalesce(r.vacate_by, f.vacate_by),
    cancel_by = coalesce(r.cancel_by, f.cancel_by),
    is_deleting = f.is_deleting OR r.cancel_by IS NOT NULL,
    reason = coalesce(r.reason, f.reason),
    author_hold = coalesce(f.author_hold, r.author_hold),
    released_generation = coalesce(f.released_generation, r.released_generation)
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    uid text, flux_uid text, place bigint, set_priority int, set_queue text, author_hold text,
    released_generation bigint,
    accepted_by text, requeue text, vacate_by text, cancel_by text, reason text)
WHERE f.uid = r.uid

-- name: rebuild_versions
-- A separate statement: the guard counts on from the version before wherever something that is
-- shown changes.
UPDATE fluxjobs f SET version = greatest(f.version, r.version + 1)
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (uid text, version bigint)
WHERE f.uid = r.uid

-- name: begin_rebuilding
-- Marks the transaction: rows are set to their states, and history says that they were rebuilt.
SELECT set_config('fluxqueue.rebuilding', 'on', true)

-- name: end_rebuilding
-- Removes the mark.
SELECT set_config('fluxqueue.rebuilding', '', true)

-- name: forget_ended
-- Deletes ended rows of workloads that wait. Locks in the order of the UIDs, as everywhere.
DELETE FROM fluxjobs
WHERE uid IN (
    SELECT uid FROM fluxjobs WHERE uid = ANY(CAST(:uids AS text[])) AND NOT fluxjob_lives(state)
      AND cancel_by IS NULL ORDER BY uid FOR UPDATE)
RETURNING uid, jobid, state

-- name: note_queued_anew
-- Notes in the audit trail that a workload has got another row.
INSERT INTO history (uid, jobid, actor, event, detail)
SELECT r.uid, r.jobid,
       coalesce(nullif(current_setting('fluxqueue.actor', true), ''), session_user), 'QueuedAnew',
       jsonb_build_object('from', r.state)
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (uid text, jobid bigint, state text)

-- name: rebuild_preemptions
-- Writes again which victims leave for which preemptors.
INSERT INTO preemptions (victim, allocation_id, preemptor, jobid, vacate_at, is_told, is_vacated)
SELECT v.uid, a.id, h.uid, h.jobid, extract(epoch FROM now())::bigint, true, true
FROM fluxjobs v JOIN allocations a ON a.uid = v.uid AND a.is_live
JOIN fluxjobs h ON v.vacate_by = :for_job || h.jobid
WHERE v.vacate_by IS NOT NULL AND v.state IN ('Allocated', 'Running')
  AND h.state IN ('Pending', 'Reserved')
ON CONFLICT (victim) DO NOTHING

-- name: lock_states
-- Locks rows in the order of their UIDs.
SELECT uid, state FROM fluxjobs WHERE uid = ANY(CAST(:uids AS text[])) ORDER BY uid FOR UPDATE

-- name: jobids_taken
-- Those of some numbers that are taken.
SELECT jobid FROM fluxjobs WHERE jobid = ANY(CAST(:jobids AS bigint[]))

-- name: reserve_jobids
-- Has new numbers begin behind a number and behind all existing ones.
SELECT setval(seq.name, greatest(
    CAST(:highest AS bigint),
    (SELECT coalesce(max(greatest(jobid, place)), 1) FROM fluxjobs), nextval(seq.name) - 1))
FROM (SELECT CAST(pg_get_serial_sequence('fluxjobs', 'jobid') AS regclass) AS name) seq

-- name: retire_allocations
-- Ends the allocations of older rows.
UPDATE allocations SET is_live = false, ended_at = now()
WHERE is_live AND uid = ANY(CAST(:uids AS text[])) RETURNING id

-- name: retire_slots
-- Returns the slots of ended allocations.
UPDATE allocation_slots SET state = 'returned', pod_uid = NULL, returned_at = now()
WHERE allocation_id = ANY(CAST(:ids AS bigint[])) AND state <> 'returned'

-- name: free_slots_of_pods
-- Frees the slots of some pods.
UPDATE allocation_slots SET state = 'free', pod_uid = NULL
WHERE pod_uid = ANY(CAST(:pods AS text[]))

-- name: rebuild_allocations
-- Adds allocations as the cluster shows them.
INSERT INTO allocations
    (uid, term, starts_at, until, is_exclusive, held, is_live, ended_at)
SELECT r.uid, coalesce((SELECT term FROM leadership WHERE role = 'matcher'), 0),
       coalesce(r.starts_at, extract(epoch FROM now())::bigint), r.until,
       r.is_exclusive, r.held, r.is_live,
       CASE WHEN NOT r.is_live THEN coalesce(to_timestamp(r.ended_at), now()) END
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    uid text, starts_at bigint, until bigint, is_exclusive bool, held text[],
    is_live bool, ended_at bigint)
RETURNING id, uid

-- name: rebuild_slots
-- Adds their slots.
INSERT INTO allocation_slots
    (allocation_id, number, node, resources, state, pod_uid, given_at, returned_at,
     completion_index, kind)
SELECT a.id, s.n, s.node, s.r, s.state, s.pod, to_timestamp(a.starts_at),
       CASE WHEN s.state = 'returned' THEN coalesce(a.ended_at, now()) END, s.i, s.kind
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS s (
    a bigint, n int, node text, r jsonb, state text, pod text, i int, kind text)
JOIN allocations a ON a.id = s.a

-- name: free_amounts
-- What is free on some nodes.
SELECT node, resource, free FROM node_usage WHERE node = ANY(CAST(:nodes AS text[]))

-- name: delete_allocation
-- Removes an allocation that has no slot.
DELETE FROM allocations WHERE id = :id

-- name: mark_told
-- Marks transitions as reported, because their Events were emitted when they happened.
UPDATE fluxjobs f SET published = f.published || jsonb_build_object(
    'told', coalesce(r.word, f.state), 'told_version', f.version)
FROM fluxjobs one
LEFT JOIN unnest(CAST(:states AS text[]), CAST(:words AS text[])) AS r (state, word) USING (state)
WHERE f.uid = one.uid AND one.uid = ANY(CAST(:uids AS text[]))

-- name: set_missing
-- Writes how many pods of a group are missing.
UPDATE fluxjobs f SET observed = f.observed || jsonb_build_object('missing', r.missing)
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (uid text, missing int) WHERE f.uid = r.uid

-- name: ask_for_effects
-- Requests what is pending: unfinished releases, suspensions, a look at what runs or ends.
UPDATE fluxjobs SET
    release_at = CASE WHEN uid = ANY(CAST(:release AS text[])) THEN now()
                      WHEN state IN ('Allocated', 'Running') OR ended_at IS NOT NULL THEN NULL
                      ELSE release_at END,
    reconcile_at = CASE WHEN uid = ANY(CAST(:reconcile AS text[])) THEN now()
                        ELSE reconcile_at END
WHERE uid = ANY(CAST(:uids AS text[]))

-- name: analyze_filled
-- Has the planner analyze tables that were just filled.
ANALYZE fluxjobs, pods, allocations, allocation_slots, nodes
