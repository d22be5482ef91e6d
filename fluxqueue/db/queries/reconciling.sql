-- fragment: destination
-- Of a slot s on a node n, which may be gone: the values of Destination. Up to 200 nodes, a pod gets
-- its node by label alone. kube-scheduler then looks at each of them, at 3 microseconds of its time
-- a node. Naming the node in the pod's affinity as well costs a millisecond (measured on 5,000 and
-- on 20 nodes). That is a twentieth of what the pod costs the API server in its life.
jsonb_build_array(s.node, n.hostname,
    NOT EXISTS (SELECT FROM nodes OFFSET 200) AND coalesce(n.hostname = n.name, false)
    AND NOT EXISTS (SELECT FROM nodes o WHERE o.hostname = n.hostname AND o.name <> n.name))

-- fragment: index
-- Slots of a placed BatchJob belong to their indexes before a pod has held them.
coalesce(s.completion_index, CASE WHEN f.is_placed AND s.number < f.size THEN s.number END)

-- fragment: is_up
coalesce((n.fact ->> 'up')::boolean, false)

-- fragment: slot_array
-- The fields of StoredSlot, of a slot s, its node n and its job f. Times are epoch seconds. x has the
-- ended_indexes of the job, read once for all of its slots.
jsonb_build_array(
    s.number,
    s.node,
    s.state,
    s.pod_uid,
    -- is_lost
    NOT (-- include: is_up
         AND coalesce((n.fact ->> 'schedulable')::boolean, false)),
    -- is_gone
    n.name IS NULL,
    -- is_refused
    s.refused_at IS NOT NULL,
    -- index
    -- include: index
    ,
    -- is_spent
    coalesce(-- include: index
             <@ x.ended_indexes, false),
    -- is_named: it is of the first allocation, and its index may get a pod as long as it has not
    -- ended. An index that its author has cut off may come back.
    coalesce(f.is_placed AND s.given_at <= f.allocated_at
        AND (NOT coalesce(-- include: index
                          <@ x.ended_indexes, false)
             OR s.number >= CAST(f.observed -> 'asked' ->> 'size' AS int)), false),
    s.kind,
    -- is_down
    NOT -- include: is_up
    ,
    -- include: destination
    ,
    s.resources,
    extract(epoch FROM s.given_at),
    extract(epoch FROM s.refused_at),
    -- others
    CASE WHEN s.others IS NOT NULL THEN coalesce((
        SELECT jsonb_agg(jsonb_build_array(o.name, o.hostname) ORDER BY o.name) FROM nodes o
        WHERE o.name = ANY(s.others) AND o.hostname IS NOT NULL), '[]') END)

-- fragment: under_way
-- How long a pod that is being released is left to the worker that releases it. After that time this
-- worker counts as dead, as in the view pending_actions.
interval '10 s'

-- fragment: pod_array
-- The fields of StoredPod, of a pod p, as workload_rows names them.
jsonb_build_array(
    p.uid,
    p.name,
    p.phase,
    p.is_gated,
    p.is_terminating,
    p.node,
    p.completion_index,
    p.slot_kind,
    -- is_sent
    coalesce(p.sent_at > now() - -- include: under_way
             , false),
    coalesce(p.unschedulable, ''),
    p.namespace,
    -- amounts
    coalesce(p.uses, '{}'),
    -- is_counted
    p.unmanaged IS NOT NULL,
    -- stuck_s
    extract(epoch FROM now() - p.unschedulable_at))

-- name: workloads_to_reconcile
-- Workloads with their slots and pods. They are locked already.
SELECT f.uid, f.jobid, f.state, f.observed, f.lacking, f.result, f.is_deleting, f.reason,
       f.held_by, f.author_hold, f.vacate_by, f.cancel_by, f.blocked_by, f.blocked_reason,
       f.reconcile_at, f.pinned_to, f.is_placed, f.is_started,
       f.start -> 'trouble' AS starting, CAST(f.start ->> 'group_s' AS float8) AS group_s, f.start ->> 'error' AS start_error,
       coalesce((f.start ->> 'tries')::int, 0) AS start_tries, f.released_generation, f.namespace, f.workload_kind,
       (SELECT q.spec ->> 'startTimeout' FROM fluxqueues q WHERE q.name = f.queue) AS queue_timeout,
       CAST(extract(epoch FROM now()) AS float8) AS now_s,
       CAST(extract(epoch FROM now() - f.allocated_at) AS float8) AS released_s,
       coalesce((f.start ->> 'retry_at')::timestamptz > now(), false) AS is_retry,
       coalesce(f.begin_at > now(), false) AS is_early,
       CASE WHEN f.started_at IS NULL
            THEN CAST(extract(epoch FROM now() - f.submitted_at) AS float8) END AS waited_s,
       a.id AS allocation_id, coalesce(a.is_independent, false) AS is_independent,
       CASE WHEN a.id IS NOT NULL THEN (
           SELECT coalesce(jsonb_agg(-- include: slot_array
                                     ORDER BY s.number), '[]')
           FROM allocation_slots s LEFT JOIN nodes n ON n.name = s.node
           WHERE s.allocation_id = a.id
             -- A sweep has given back more slots than it has.
             AND (NOT a.is_independent OR s.state <> 'returned' OR s.refused_at IS NOT NULL)
           ) END AS slot_arrays,
       CASE WHEN a.id IS NOT NULL THEN (
           SELECT coalesce(jsonb_agg(-- include: pod_array
                                    ), '[]')
           FROM pods p WHERE p.workload_uid = f.uid) END AS pod_arrays
FROM fluxjobs f LEFT JOIN allocations a ON a.uid = f.uid AND a.is_live
CROSS JOIN LATERAL (SELECT CAST(f.observed ->> 'ended_indexes' AS int4multirange) AS ended_indexes
                    OFFSET 0) x
WHERE f.uid = ANY(CAST(:uids AS text[]))
  AND (NOT CAST(:if_observed AS bool) OR fluxqueue_is_observed())
ORDER BY f.uid

-- name: note_sent
-- Marks pods as sent, so that another look at the same workloads leaves them out.
UPDATE pods SET sent_at = now() WHERE uid = ANY(CAST(:pods AS text[]))

-- name: finish_looks
-- Writes which pods have no gate any more, and ends the looks that are finished with that. What was
-- not released is pending from now on, by its pod if not by its row. Another look may have cleared
-- the row's.
WITH locked AS (
    SELECT uid FROM fluxjobs WHERE uid = ANY(CAST(:uids AS text[])) ORDER BY uid FOR NO KEY UPDATE
), let_go AS (
    UPDATE pods SET is_gated = is_gated AND NOT uid = ANY(CAST(:pods AS text[])),
                    sent_at = CASE WHEN NOT uid = ANY(CAST(:pods AS text[]))
                                   THEN now() - -- include: under_way
                                   END
    WHERE uid = ANY(CAST(:sent AS text[])) AND workload_uid IN (SELECT uid FROM locked)
)
UPDATE fluxjobs f SET reconcile_at = NULL, troubles = f.troubles - 'last_error'
FROM unnest(CAST(:uids AS text[]), CAST(:pending_actions AS timestamptz[])) AS o (uid, reconcile_at)
WHERE f.uid = o.uid AND f.reconcile_at = o.reconcile_at
  AND f.uid IN (SELECT uid FROM locked)
  AND NOT f.uid = ANY(CAST(:failed AS text[]))

-- fragment: has_choice
EXISTS (SELECT FROM allocations c JOIN allocation_slots o ON o.allocation_id = c.id
        WHERE c.uid = f.uid AND c.is_live AND o.others IS NOT NULL)

-- name: pending_releases
-- Rows with a pending release, and where their pods go, while a controller compares rows and
-- cluster. The template of a BatchJob that is not suspended cannot be changed any more. After a start
-- that failed each pod is gated, so that one of them can be sent elsewhere, unless all of them are
-- bound together (is_retry). The same where kube-scheduler chooses among several nodes.
SELECT f.uid, f.namespace, f.workload_kind, f.workload_name, f.state, f.author_hold, f.vacate_by,
       f.cancel_by, f.is_gone, f.is_deleting, f.release_at, f.pinned_to, f.is_placed, f.observed,
       f.jobid, f.size,
       CAST(extract(epoch FROM f.allocated_at) AS float8) AS allocated_s,
       CASE WHEN f.started_at IS NULL
            THEN CAST(extract(epoch FROM now() - f.submitted_at) AS float8) END AS waited_s,
       CASE WHEN f.observed ? 'is_gathered' AND f.cancel_by IS NOT NULL THEN (
           SELECT jsonb_agg(jsonb_build_array(p.uid, p.name) ORDER BY p.uid)
           FROM pods p WHERE p.workload_uid = f.uid) END AS members,
       CASE WHEN f.observed ? 'is_pinnable' AND NOT f.start ? 'tries'
                 AND (f.observed ? 'is_suspended' OR f.pinned_to IS NOT NULL)
                 AND f.state IN ('Allocated', 'Running') AND NOT -- include: has_choice
            THEN (
           SELECT -- include: destination
           FROM (SELECT min(s.node) AS node
                 FROM allocations a JOIN allocation_slots s ON s.allocation_id = a.id
                 WHERE a.uid = f.uid AND a.is_live AND s.state <> 'returned'
                 HAVING count(DISTINCT s.node) = 1) s
           LEFT JOIN nodes n ON n.name = s.node) END AS pin,
       CASE WHEN f.observed ?& '{is_placeable,is_suspended}'
                 AND f.state IN ('Allocated', 'Running') AND NOT -- include: has_choice
            THEN (
           SELECT jsonb_agg(jsonb_build_array(s.number, -- include: destination
                                              , s.resources) ORDER BY s.number)
           FROM allocations a JOIN allocation_slots s ON s.allocation_id = a.id
           LEFT JOIN nodes n ON n.name = s.node
           WHERE a.uid = f.uid AND a.is_live AND s.state <> 'returned') END AS places,
       f.is_placed AND (f.is_started OR EXISTS (
           SELECT FROM pods p WHERE p.workload_uid = f.uid AND p.node IS NOT NULL)) AS is_bound,
       f.start ? 'tries' AS is_retry, f.released_generation IS NOT NULL AS is_released
FROM fluxjobs f WHERE f.uid = ANY(CAST(:uids AS text[]))
  AND f.release_at IS NOT NULL AND fluxqueue_is_observed()

-- name: write_reconciled
-- Writes what becomes of reconciled FluxJobs. NULL leaves a column as it is.
UPDATE fluxjobs f SET
    state = coalesce(r.state, f.state), reason = coalesce(r.reason, f.reason),
    lacking = coalesce(r.lacking, f.lacking),
    started_at = CASE WHEN r.has_run THEN coalesce(f.started_at, clock_timestamp())
                      ELSE f.started_at END,
    ended_at = CASE WHEN NOT fluxjob_lives(r.state) THEN clock_timestamp() ELSE f.ended_at END,
    expected_start = CASE WHEN NOT fluxjob_lives(r.state) THEN NULL ELSE f.expected_start END,
    reconcile_at = CASE WHEN r.is_done THEN now() + make_interval(secs => r.look_in_s)
                        ELSE f.reconcile_at END,
    release_at = CASE WHEN r.must_release THEN now() ELSE f.release_at END,
    start = fluxqueue_with(f.start, 'trouble', nullif(coalesce(r.starting, f.start -> 'trouble'), '{}'))
            || CASE WHEN r.must_release
                    THEN jsonb_build_object('group_s', extract(epoch FROM now())) ELSE '{}' END
            - CASE WHEN r.is_started THEN 'tries' ELSE '' END,
    is_started = f.is_started OR r.is_started,
    version = f.version + CAST(r.is_resized AS int),
    status_due_at = CASE WHEN r.is_resized THEN fluxjob_resized_due_at(f)
                         ELSE f.status_due_at END
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    uid text, state text, reason text, lacking int, has_run bool, is_done bool,
    look_in_s float8, starting jsonb, is_started bool, is_resized bool, must_release bool)
WHERE f.uid = r.uid

-- name: show_resized
-- Has a look taken at FluxJobs that got more slots, and has them show it.
UPDATE fluxjobs f SET reconcile_at = now(), version = version + 1,
    status_due_at = fluxjob_resized_due_at(f)
WHERE uid = ANY(CAST(:uids AS text[]))

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
