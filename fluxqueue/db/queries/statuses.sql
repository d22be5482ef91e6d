-- fragment: columns
f.uid, f.jobid, f.place, f.namespace, f.name, f.workload_kind, f.workload_name, f.flux_uid,
f.published ->> 'flux_version' AS flux_version, f.state, f.reason, f.size, f.version,
coalesce((f.published ->> 'version')::bigint, 0) AS written_version,
f.published ->> 'told' AS told,
coalesce((f.published ->> 'told_version')::bigint, 0) AS told_version,
f.observed, f.submitted_at, f.allocated_at, f.started_at, f.ended_at, f.expected_start,
(SELECT t.shown_by FROM told_starts t WHERE t.uid = f.uid) AS expected_by,
a.starts_at, a.until,
coalesce((SELECT jsonb_agg(jsonb_build_object('node', s.node, 'resources', s.resources, 'kind',
                           -- Of other workloads no pod asks for a kind of slots.
                           CASE WHEN f.observed ?| '{is_gathered,owner}' THEN s.kind ELSE '' END,
                           'is_returned', s.state = 'returned' AND a.ended_at IS NULL)
                           ORDER BY s.number)
          FROM allocation_slots s WHERE s.allocation_id = a.id
            -- Of a sweep: what it has, or had at its end.
            AND (NOT a.is_independent OR s.state <> 'returned' OR s.returned_at >= a.ended_at)
         ), '[]'::jsonb) AS slots,
coalesce((SELECT jsonb_agg(jsonb_build_object('node', h.node, 'resources',
                                              coalesce(n.fact -> 'capacity', '{}'::jsonb))
                           ORDER BY h.number)
          FROM unnest(a.held) WITH ORDINALITY AS h (node, number)
          LEFT JOIN nodes n ON n.name = h.node), '[]'::jsonb) AS held,
f.held_by, f.author_hold, f.vacate_by, f.cancel_by, f.accepted_by,
(f.overrides ->> 'priority')::int AS set_priority, f.overrides ->> 'queue' AS set_queue,
f.overrides -> 'spec' ->> 'requeue' AS requeue, f.queue, f.priority, f.priority_parts,
coalesce(f.gather_until <= now(), false) AS is_overdue,
since.queued_at, since.unqueued_at, since.reserved_at, since.unreserved_at, f.wait_reason,
f.blocked_by, coalesce((f.published ->> 'generation')::bigint, 1) AS observed_generation,
f.position, f.notices,
a.id IS NOT NULL AND NOT EXISTS (
    SELECT FROM allocations b WHERE b.uid = f.uid AND b.id < a.id) AS is_first,
f.troubles -> 'stalled' AS stalled, (f.troubles ->> 'since')::timestamptz AS troubled_at,
f.start -> 'trouble' ->> 'fault' AS start_fault

-- fragment: from
FROM fluxjobs f LEFT JOIN LATERAL (
    SELECT id, starts_at, until, held, is_independent, ended_at FROM allocations a WHERE a.uid = f.uid
    ORDER BY id DESC LIMIT 1) a ON f.allocated_at IS NOT NULL
CROSS JOIN LATERAL (
    SELECT max(h.at) FILTER (WHERE h.is_in AND NOT h.was_in) AS queued_at,
           max(h.at) FILTER (WHERE h.was_in AND NOT h.is_in) AS unqueued_at,
           max(h.at) FILTER (WHERE h.event = 'Reserved') AS reserved_at,
           max(h.at) FILTER (WHERE h.former = 'Reserved') AS unreserved_at
    FROM (SELECT at, event, detail ->> 'from' AS former, event IN ('Pending', 'Reserved') AS is_in,
                 coalesce(detail ->> 'from', '') IN ('Pending', 'Reserved') AS was_in
          FROM history h WHERE h.uid = f.uid AND h.detail ? 'from') h) since

-- fragment: patience
-- How long a status can wait that says no more than that the job runs (seconds).
CASE f.state WHEN 'Allocated' THEN CAST(:patience_unseen_s AS int)
             ELSE CAST(:patience_s AS int) END

-- fragment: published
-- What ``w`` has written and reported, unless a later reader of the row has set it since.
f.published || jsonb_strip_nulls(jsonb_build_object(
    'version', greatest(coalesce((f.published ->> 'version')::bigint, 0), w.version),
    'flux_version', CASE WHEN w.version >= coalesce((f.published ->> 'version')::bigint, 0)
                         THEN w.flux_version END))
|| CASE WHEN w.told IS DISTINCT FROM f.published ->> 'told'
             AND w.told_version >= coalesce((f.published ->> 'told_version')::bigint, 0)
        THEN jsonb_build_object('told', w.told, 'told_version', w.told_version) ELSE '{}' END

-- fragment: written_at
-- When its status was written or put off.
(f.published ->> 'written_at')::timestamptz

-- name: read_statuses
-- FluxJobs as users are to see them, with the slots of the last allocation.
SELECT -- include: columns
-- include: from
WHERE f.uid = ANY(CAST(:uids AS text[]))

-- name: due_statuses
-- FluxJobs with a status update that is due. The statement also takes the due tasks for
-- other FluxJobs, because many transactions request a status update at the same moment. A status
-- that is not written stays pending, and the sweep finds it.
WITH along AS (
    DELETE FROM procrastinate.procrastinate_jobs
    WHERE queue_name = 'later' AND task_name = 'status' AND status = 'todo'
      AND scheduled_at <= now() AND attempts = 0
    RETURNING args
), due AS (
    -- Those that can wait until later than anything that is due from now on.
    SELECT uid, state IN ('Allocated', 'Running') AND -- include: written_at
                >= allocated_at
                AND reason = '' AND notices = '[]'
                AND fluxjob_status_due_at(-- include: written_at
                    , -- include: patience
                    ) > fluxjob_status_due_at(-- include: written_at
                    , 0) AS can_wait
    FROM fluxjobs f
    WHERE uid = ANY(CAST(:uids AS text[]) || ARRAY(
            SELECT jsonb_array_elements_text(args -> 'uids') FROM along))
      AND status_due_at <= now() AND flux_uid IS NOT NULL AND fluxqueue_is_observed()
), patient AS (
    SELECT uid FROM due WHERE can_wait AND (SELECT count(*) FROM due WHERE can_wait) > :calm
), put_off AS (
    -- Arrays: the planner expects one row otherwise, and would look through all of them for each.
    UPDATE fluxjobs f SET status_due_at = least(
        fluxjob_status_due_at(-- include: written_at
        , -- include: patience
        ), fluxjob_status_due_at(now(), :patience_s))
    WHERE f.uid = ANY(ARRAY(
            SELECT uid FROM fluxjobs WHERE uid = ANY(ARRAY(SELECT uid FROM patient))
            ORDER BY uid FOR NO KEY UPDATE))
      AND f.state IN ('Allocated', 'Running')
    RETURNING f.uid
)
SELECT -- include: columns
-- include: from
WHERE f.uid IN (SELECT uid FROM due EXCEPT SELECT uid FROM put_off)

-- name: remember_written
-- Keeps what was published. The row's trigger keeps changes that came meanwhile pending. Locks in
-- the order of the UIDs.
UPDATE fluxjobs f SET status_due_at = NULL, troubles = f.troubles - 'last_error',
    notices = CASE WHEN w.noticed = '[]' THEN f.notices ELSE (
        SELECT coalesce(jsonb_agg(n ORDER BY i), '[]')
        FROM jsonb_array_elements(f.notices) WITH ORDINALITY t (n, i)
        WHERE NOT w.noticed ? (n ->> 'key')) END,
    published = -- include: published
        || jsonb_build_object('written_at', now())
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS w (
    uid text, version bigint, told text, told_version bigint, noticed jsonb, flux_version text)
WHERE f.uid IN (SELECT uid FROM fluxjobs WHERE uid = ANY(CAST(:uids AS text[]))
                ORDER BY uid FOR NO KEY UPDATE)
  AND f.uid = w.uid

-- name: rewrite_statuses
-- Has statuses written once more.
UPDATE fluxjobs SET published = published - 'version'
WHERE uid IN (SELECT uid FROM fluxjobs WHERE uid = ANY(CAST(:uids AS text[]))
              ORDER BY uid FOR NO KEY UPDATE)

-- name: finish_release
-- Writes down what a release did. Race: another transaction may have cleared the release meanwhile,
-- perhaps after doing the opposite. A further look then decides.
UPDATE fluxjobs f SET
    release_at = CASE WHEN f.release_at = w.release_at THEN NULL
                      ELSE coalesce(f.release_at, now()) END,
    released_generation = CASE WHEN f.state IN ('Allocated', 'Running')
                     THEN greatest(f.released_generation, w.generation)
                     ELSE f.released_generation END,
    reconcile_at = CASE WHEN f.vacate_by IS NULL AND w.groupless = '' THEN f.reconcile_at
                        ELSE now() END,
    start = CASE WHEN w.groupless = '' OR f.vacate_by IS NOT NULL THEN f.start
                 ELSE f.start || jsonb_build_object('trouble', jsonb_build_object(
                     'fault', 'NoPodGroup', 'words', w.groupless, 'since_s',
                     CASE WHEN f.start -> 'trouble' ->> 'fault' = 'NoPodGroup'
                          THEN f.start -> 'trouble' -> 'since_s'
                          ELSE to_jsonb(extract(epoch FROM now())) END)) END,
    pinned_to = CASE WHEN w.is_made THEN w.pinned_to ELSE f.pinned_to END,
    is_placed = CASE WHEN w.is_made THEN w.is_placed ELSE f.is_placed END,
    -- A status that is put off is pending, as after one written just now (a trigger's rule).
    published = -- include: published
        || CASE WHEN w.version > 0 OR w.is_put_off
                THEN jsonb_build_object('written_at', now()) ELSE '{}' END,
    status_due_at = CASE WHEN w.is_put_off AND f.state IN ('Allocated', 'Running')
                      THEN fluxjob_status_due_at(now(), :patience_s)
                      WHEN w.version > 0 OR w.is_put_off THEN NULL ELSE f.status_due_at END,
    troubles = f.troubles - 'last_error'
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS w (
    uid text, release_at timestamptz, is_made bool, generation bigint, pinned_to text,
    is_put_off bool, is_placed bool, groupless text, version bigint, told text, told_version bigint,
    flux_version text)
WHERE f.uid IN (SELECT uid FROM fluxjobs WHERE uid = ANY(CAST(:uids AS text[]))
                ORDER BY uid FOR NO KEY UPDATE)
  AND f.uid = w.uid

-- name: leave_notices
-- Writes notices into the audit trail and the rows. A status update emits the Events.
WITH news AS (
    SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
        uid text, event text, message text, key text, is_warning bool)
), noted AS (
    INSERT INTO history (uid, jobid, actor, event, detail)
    SELECT f.uid, f.jobid,
           coalesce(nullif(current_setting('fluxqueue.actor', true), ''), session_user),
           news.event, jsonb_build_object('message', news.message)
    FROM news JOIN fluxjobs f USING (uid)
)
UPDATE fluxjobs f SET version = version + 1, notices = f.notices || (
    SELECT jsonb_agg(to_jsonb(news) - 'uid') FROM news WHERE news.uid = f.uid)
WHERE f.uid IN (SELECT uid FROM news)

-- name: show_again
-- Has the status written again: it has the nodes that were booked first.
UPDATE fluxjobs SET version = version + 1 WHERE uid = ANY(CAST(:uids AS text[]))
