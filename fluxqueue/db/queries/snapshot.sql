-- name: now_s
-- The time of the database, in epoch seconds.
SELECT extract(epoch FROM now())::bigint AS now_s

-- name: kept_fluxjobs
-- FluxJobs that are not forgotten: not final, or with an object still in the cluster. Times are
-- epoch seconds.
SELECT uid, jobid, namespace, name, workload_kind, workload_name, flux_uid, state, reason,
       size, is_gone, extract(epoch FROM allocated_at)::bigint AS allocated_at_s,
       EXISTS (SELECT FROM reservations r WHERE r.uid = f.uid) AS has_reservation,
       vacate_by IS NOT NULL AS is_vacating, cancel_by IS NOT NULL AS is_cancelled,
       coalesce((SELECT string_agg(f ->> 'message', '; ')
                 FROM jsonb_array_elements(observed -> 'faults') AS t (f)), '')
       || coalesce((SELECT string_agg(format('%s is refused: %s', t.key, t.value), '; ')
                    FROM jsonb_each_text(troubles -> 'stalled') AS t), '') AS trouble
FROM fluxjobs f
WHERE NOT is_gone OR fluxjob_lives(state) OR uid = ANY(CAST(:uids AS text[]))

-- name: slot_members
-- Pods of workloads without an object of their own, and the kind of slot that each needs.
SELECT p.uid AS pod_uid, p.workload_uid AS uid, p.slot_kind
FROM pods p JOIN fluxjobs f ON f.uid = p.workload_uid WHERE f.observed ? 'is_gathered'
  OR f.observed -> 'owner' ->> 'suspend' <> ''

-- name: live_allocations
-- Live allocations, with the time until which their queues accepted them.
SELECT a.id, a.uid, a.until AS until_s,
       fluxjob_granted_until(f, a, q.spec) AS granted_s, fluxqueue_most_s(q.spec) AS most_s
FROM allocations a LEFT JOIN fluxjobs f USING (uid)
LEFT JOIN fluxqueues q ON q.name = f.queue WHERE a.is_live

-- name: live_slots
-- Slots of live allocations.
SELECT s.allocation_id, a.uid, s.number, s.node, s.resources, s.state, s.pod_uid
FROM allocations a JOIN allocation_slots s ON s.allocation_id = a.id WHERE a.is_live

-- name: node_use
-- The view ``node_usage``, in base units.
SELECT node, resource, capacity, allocated, foreign_used, free FROM node_usage

-- name: planned_starts
-- Reservations.
SELECT uid, starts_at AS starts_at_s FROM reservations

-- name: first_promises
-- The first start promised in each wait, and what the matcher blamed when its plan fell behind.
SELECT p.uid, (p.detail ->> 'starts_at')::bigint AS starts_at_s,
       CASE WHEN n.event = 'Allocated' THEN extract(epoch FROM n.at)::bigint END
           AS allocated_at_s,
       (SELECT x.detail ->> 'excuse' FROM history x
        WHERE x.uid = p.uid AND x.id > p.id AND x.event = 'PromiseExcused'
          AND (n.id IS NULL OR x.id < n.id) ORDER BY x.id LIMIT 1) AS excuse
FROM fluxjobs f JOIN history p ON p.uid = f.uid AND p.event = 'Promised'
LEFT JOIN LATERAL (
    SELECT h.id, h.event, h.at FROM history h
    WHERE h.uid = p.uid AND h.id > p.id
      AND h.event NOT IN ('Pending', 'Reserved', 'Preempting', 'PromiseExcused',
                          'ExpectedStartDelayed')
    ORDER BY h.id LIMIT 1) n ON true
WHERE (NOT f.is_gone OR fluxjob_lives(f.state))
  AND (n.event = 'Allocated' OR n.event IS NULL AND f.state IN ('Pending', 'Reserved'))

-- name: start_figures
-- Of the last week: how many have started that were shown when, how many of them by then, and the
-- median of what these took, as a share of their plan by ended runs.
SELECT (SELECT count(*) FROM told_starts t WHERE t.started_at > w.since) AS started,
       (SELECT count(*) FROM told_starts t
        WHERE t.started_at > w.since AND t.started_at <= t.expected) AS by_expected,
       (SELECT count(*) FROM told_starts t
        WHERE t.started_at > w.since AND t.started_at <= t.expected_by) AS by_latest,
       (SELECT percentile_cont(0.5) WITHIN GROUP (
            ORDER BY (extract(epoch FROM a.ended_at) - a.starts_at) / a.plan_s)::float8
        FROM told_starts t CROSS JOIN LATERAL (
            SELECT starts_at, ended_at, plan_s FROM allocations
            WHERE uid = t.uid AND plan_s > 0 AND ended_at IS NOT NULL
            ORDER BY id DESC LIMIT 1) a
        WHERE t.started_at > w.since) AS of_plan
FROM (SELECT extract(epoch FROM now())::bigint - 7 * 86400 AS since) w

-- name: loop_times
-- Loops of controller and worker. Silence counts from the last success or the beginning.
SELECT loop,
       extract(epoch FROM now() - greatest(succeeded_at, began_at))::bigint AS silent_s,
       patience_s, error
FROM loops

-- name: quarantined
-- Objects that the controller cannot read or write down.
SELECT kind, key, namespace, name, reason FROM quarantined_objects

-- name: drift
-- Broken invariants, none in health.
SELECT invariant, subject, detail FROM drift
