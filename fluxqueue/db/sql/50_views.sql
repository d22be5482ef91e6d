-- Views for people in psql. `select * from queue` is the first one to try. Jobs that wait for others or
-- for their begin time have no position, because no cycle examines them.
CREATE VIEW queue AS
SELECT CASE WHEN is_in_turn THEN row_number() OVER (PARTITION BY is_in_turn
                                                    ORDER BY priority DESC, place) END AS position,
       jobid, namespace, workload_name AS name, queue, state, size, priority,
       expected_start, date_trunc('second', now() - submitted_at) AS waiting, reason
FROM fluxjobs,
     LATERAL (SELECT state IN ('Pending', 'Reserved') AND blocked_by IS NULL AS is_in_turn) AS turn
WHERE state IN ('Gathering', 'Pending', 'Reserved', 'Held', 'Unsatisfiable')
ORDER BY NOT is_in_turn, state NOT IN ('Pending', 'Reserved'), priority DESC, place;

CREATE VIEW pending_queue AS
SELECT * FROM queue WHERE state IN ('Pending', 'Reserved');

-- Jobs and objects that are set aside, so that all others continue. held_by says why.
-- quarantine, too-complex: the cycle could not read or decide the job. It waits for another request,
-- for other software or for `fluxqueue release`. input: the last good values count.
-- stalled: the API server refuses an action, and it is tried again. Others: the kind of an object.
CREATE VIEW quarantine AS
SELECT jobid, namespace, workload_name AS name, queue, user_name, held_by, reason, quarantined_by,
       uid, date_trunc('second', now() - submitted_at) AS waiting
FROM fluxjobs WHERE state = 'Held' AND held_by IN ('quarantine', 'too-complex')
UNION ALL
SELECT jobid, namespace, workload_name, queue, user_name, 'input',
       (SELECT string_agg(f ->> 'message', '; ') FROM jsonb_array_elements(observed -> 'faults') f), NULL,
       uid, date_trunc('second', now() - (troubles ->> 'since')::timestamptz)
FROM fluxjobs WHERE observed ? 'faults' AND state NOT IN ('Completed', 'Failed', 'Cancelled')
UNION ALL
SELECT jobid, namespace, workload_name, queue, user_name, 'stalled',
       (SELECT string_agg(format('%s: %s', t.key, t.value), '; ') FROM jsonb_each_text(troubles -> 'stalled') t), NULL,
       uid, date_trunc('second', now() - (troubles ->> 'since')::timestamptz)
FROM fluxjobs WHERE troubles ? 'stalled'
UNION ALL
SELECT NULL, s.namespace, s.name, NULL, '', s.kind, s.reason, NULL, s.key,
       date_trunc('second', now() - s.since)
FROM quarantined_objects s
WHERE s.kind <> 'workload' OR NOT EXISTS (SELECT FROM fluxjobs f WHERE f.uid = s.key AND f.observed ? 'faults')
ORDER BY jobid, namespace, name;

CREATE VIEW node_usage AS
WITH capacity AS (
    SELECT name AS node, key AS resource, value::numeric AS capacity
    FROM nodes, jsonb_each_text(fact -> 'capacity')
), allocated AS (
    SELECT s.node, r.key AS resource, sum(r.value::numeric) AS amount
    FROM allocation_slots s, jsonb_each_text(s.resources) r
    WHERE s.state <> 'returned' GROUP BY 1, 2
), others AS (
    -- What no slot covers of a pod that counts with a managed workload.
    SELECT f.node, r.key AS resource, sum(r.value::numeric) AS amount
    FROM (SELECT node, resources FROM foreign_usage
          UNION ALL SELECT node, unmanaged FROM pods WHERE unmanaged IS NOT NULL) f,
         jsonb_each_text(f.resources) r GROUP BY 1, 2
)
SELECT c.node, c.resource, c.capacity,
       coalesce(a.amount, 0) AS allocated, coalesce(o.amount, 0) AS foreign_used,
       c.capacity - coalesce(a.amount, 0) - coalesce(o.amount, 0) AS free
FROM capacity c
LEFT JOIN allocated a USING (node, resource)
LEFT JOIN others o USING (node, resource)
ORDER BY c.node, c.resource;

-- Must be empty: each row is a broken invariant (docs/architecture.md lists them).
CREATE VIEW drift AS
SELECT 'node over capacity' AS invariant, node AS subject,
       format('%s: allocated %s of %s', resource, allocated, capacity) AS detail
FROM node_usage WHERE allocated > capacity
UNION ALL
SELECT 'ended workload holds an allocation', f.namespace || '/' || f.workload_name,
       format('%s with live allocation %s', f.state, a.id)
FROM fluxjobs f JOIN allocations a USING (uid)
WHERE a.is_live AND f.state NOT IN ('Allocated', 'Running')
UNION ALL
SELECT 'running workload without an allocation', f.namespace || '/' || f.workload_name, f.state
FROM fluxjobs f
WHERE f.state IN ('Allocated', 'Running')
  AND NOT EXISTS (SELECT FROM allocations a WHERE a.uid = f.uid AND a.is_live)
UNION ALL
SELECT 'slot of an ended allocation not returned', s.node,
       format('allocation %s slot %s', s.allocation_id, s.number)
FROM allocation_slots s JOIN allocations a ON a.id = s.allocation_id
WHERE NOT a.is_live AND s.state <> 'returned'
UNION ALL
-- The pods of a BatchJob that is pinned or placed by its template have no gate. They get their slots when they
-- are observed. A replacement gets its slot after the pod before it is gone. A pod with an end
-- that is observed first is about to go.
SELECT 'ungated pod without a slot', p.namespace || '/' || p.name, p.phase
FROM pods p LEFT JOIN fluxjobs f ON f.uid = p.workload_uid
WHERE NOT p.is_gated AND p.phase NOT IN ('Succeeded', 'Failed') AND NOT p.is_terminating
  AND NOT EXISTS (SELECT FROM allocation_slots s WHERE s.pod_uid = p.uid)
  AND ((f.pinned_to IS NULL AND NOT f.is_placed) OR (f.reconcile_at IS NULL AND f.ended_at IS NULL AND NOT EXISTS (
        SELECT FROM pods t WHERE t.workload_uid = p.workload_uid AND t.is_terminating)));

-- The actions that are pending, and since when. A sweep defers those without a task.
CREATE VIEW pending_actions AS
SELECT 'status' AS task, uid, jobid, status_due_at AS since, troubles ->> 'last_error' AS last_error
FROM fluxjobs WHERE status_due_at IS NOT NULL
UNION ALL
SELECT 'release', uid, jobid, release_at, troubles ->> 'last_error' FROM fluxjobs WHERE release_at IS NOT NULL
UNION ALL
SELECT 'reconcile', uid, jobid, reconcile_at, troubles ->> 'last_error' FROM fluxjobs WHERE reconcile_at IS NOT NULL
UNION ALL
-- Pods that a worker began to ungate without a result, or with a failure.
SELECT 'reconcile', f.uid, f.jobid, min(p.sent_at), f.troubles ->> 'last_error'
FROM pods p JOIN fluxjobs f ON f.uid = p.workload_uid
WHERE p.is_gated AND p.sent_at <= now() - interval '10 s' AND f.state IN ('Allocated', 'Running')
GROUP BY f.uid, f.jobid, f.troubles
UNION ALL
-- Dependencies that are decided: the time is that of the last change of a target.
SELECT 'reconcile', f.uid, f.jobid, max(coalesce(t.ended_at, t.started_at, t.submitted_at)), NULL
FROM fluxjobs f JOIN dependencies d USING (uid) JOIN fluxjobs t ON t.uid = d.target_uid
WHERE f.blocked_by = 'dependency' AND f.state IN ('Pending', 'Reserved') AND NOT d.is_satisfied
  AND fluxjob_dependency_outcome(d.kind, t.state, t.started_at) <> 'waiting'
GROUP BY f.uid, f.jobid
UNION ALL
-- Free slots on nodes that take no pods, and pods that were pinned to nodes that are gone.
SELECT DISTINCT 'reconcile', f.uid, f.jobid, f.allocated_at, f.troubles ->> 'last_error'
FROM allocation_slots s JOIN allocations a ON a.id = s.allocation_id AND a.is_live
JOIN fluxjobs f ON f.uid = a.uid LEFT JOIN nodes n ON n.name = s.node
WHERE (s.state = 'free'
       AND NOT coalesce((n.fact ->> 'up')::boolean AND (n.fact ->> 'schedulable')::boolean, false))
   OR (s.state = 'held' AND n.name IS NULL AND EXISTS (
        SELECT FROM pods p WHERE p.uid = s.pod_uid AND p.node IS NULL AND NOT p.is_gated
          AND NOT p.is_terminating))
UNION ALL
-- Some of its pods do not run a while after its release. A look says what keeps them, and says when to look again.
SELECT 'reconcile', uid, jobid, allocated_at + interval '5 s', troubles ->> 'last_error'
FROM fluxjobs WHERE state IN ('Allocated', 'Running') AND NOT is_started AND reconcile_at IS NULL
  AND allocated_at < now() - interval '5 s';

-- Comments for \d+ in psql. words.py has those of tables and their columns.
COMMENT ON VIEW queue IS 'What waits, in the order of its turn';
COMMENT ON COLUMN queue.position IS 'Its turn; null: no cycle looks at it';
COMMENT ON COLUMN queue.jobid IS 'Its number';
COMMENT ON COLUMN queue.namespace IS 'Namespace of the workload';
COMMENT ON COLUMN queue.name IS 'Name of the workload';
COMMENT ON COLUMN queue.queue IS 'Queue it is in';
COMMENT ON COLUMN queue.state IS 'Gathering, Pending, Reserved, Held or Unsatisfiable';
COMMENT ON COLUMN queue.size IS 'Pods that run at once';
COMMENT ON COLUMN queue.priority IS 'Higher goes first';
COMMENT ON COLUMN queue.expected_start IS 'When it will start, as far as is known';
COMMENT ON COLUMN queue.waiting IS 'Since it was submitted';
COMMENT ON COLUMN queue.reason IS 'Why it waits';
COMMENT ON VIEW quarantine IS 'What could not be used, read, decided or carried out, and is set aside';
COMMENT ON COLUMN quarantine.jobid IS 'Its number; null: no FluxJob stands for it';
COMMENT ON COLUMN quarantine.namespace IS 'Namespace of the workload';
COMMENT ON COLUMN quarantine.name IS 'Name of the workload';
COMMENT ON COLUMN quarantine.queue IS 'Queue it is in';
COMMENT ON COLUMN quarantine.user_name IS 'Who submitted it';
COMMENT ON COLUMN quarantine.held_by IS 'too-complex or quarantine: it is held; input, stalled, or the kind of an object';
COMMENT ON COLUMN quarantine.reason IS 'Why it is set aside, and the way out';
COMMENT ON COLUMN quarantine.quarantined_by IS 'Version of the software that could not decide it';
COMMENT ON COLUMN quarantine.uid IS 'UID of the workload, or what tells an object from others of its kind';
COMMENT ON COLUMN quarantine.waiting IS 'Since it was submitted, or set aside';
COMMENT ON VIEW pending_queue IS 'Of queue, what is in its turn or promised a start';
COMMENT ON COLUMN pending_queue.position IS 'Its turn';
COMMENT ON COLUMN pending_queue.jobid IS 'Its number';
COMMENT ON COLUMN pending_queue.namespace IS 'Namespace of the workload';
COMMENT ON COLUMN pending_queue.name IS 'Name of the workload';
COMMENT ON COLUMN pending_queue.queue IS 'Queue it is in';
COMMENT ON COLUMN pending_queue.state IS 'Pending or Reserved';
COMMENT ON COLUMN pending_queue.size IS 'Pods that run at once';
COMMENT ON COLUMN pending_queue.priority IS 'Higher goes first';
COMMENT ON COLUMN pending_queue.expected_start IS 'When it will start, as far as is known';
COMMENT ON COLUMN pending_queue.waiting IS 'Since it was submitted';
COMMENT ON COLUMN pending_queue.reason IS 'Why it waits';
COMMENT ON VIEW node_usage IS 'What each node has of each resource, and who uses it';
COMMENT ON COLUMN node_usage.node IS 'Name of the node';
COMMENT ON COLUMN node_usage.resource IS 'cpu (millicores), memory (bytes), others (pieces)';
COMMENT ON COLUMN node_usage.capacity IS 'What pods may use';
COMMENT ON COLUMN node_usage.allocated IS 'What is allocated to FluxJobs';
COMMENT ON COLUMN node_usage.foreign_used IS 'What pods of others ask for';
COMMENT ON COLUMN node_usage.free IS 'What is neither';
COMMENT ON VIEW drift IS 'Broken invariants; to be empty';
COMMENT ON COLUMN drift.invariant IS 'Which one';
COMMENT ON COLUMN drift.subject IS 'Of what';
COMMENT ON COLUMN drift.detail IS 'In figures';
COMMENT ON VIEW pending_actions IS 'What the workers still have to do';
COMMENT ON COLUMN pending_actions.task IS 'status, release or reconcile';
COMMENT ON COLUMN pending_actions.uid IS 'For which workload: fluxjobs.uid';
COMMENT ON COLUMN pending_actions.jobid IS 'Its number';
COMMENT ON COLUMN pending_actions.since IS 'Since when it has been due';
COMMENT ON COLUMN pending_actions.last_error IS 'Why it has failed last';
