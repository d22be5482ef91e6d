-- name: set_actor
-- Names the actor of this transaction for the audit trail.
SELECT set_config('fluxqueue.actor', :actor, true)

-- name: note_command
-- Adds a command to the audit trail. The row's trigger adds the transition that it causes.
INSERT INTO history (uid, jobid, actor, event, detail)
VALUES (:uid, :jobid, :actor, :event, CAST(:detail AS jsonb))

-- name: set_priority
-- Overrides the author's priority, or restores it with NULL.
UPDATE fluxjobs
SET overrides = fluxqueue_with(overrides, 'priority', to_jsonb(CAST(:priority AS int))),
    is_examined = is_examined AND state NOT IN ('Pending', 'Reserved')
WHERE uid = :uid RETURNING priority

-- name: move_fluxjob
-- Moves a waiting job into another queue.
UPDATE fluxjobs SET overrides = overrides || jsonb_build_object('queue', CAST(:queue AS text)),
    queue = :queue, is_examined = false
WHERE uid = :uid

-- name: keep_steered
-- Keeps the values of a spec that were carried out.
UPDATE fluxjobs SET overrides = overrides || jsonb_build_object('spec', CAST(:values AS jsonb)),
    published = published || jsonb_build_object('generation', greatest(
        coalesce((published ->> 'generation')::bigint, 1), CAST(:generation AS bigint)))
WHERE uid = :uid

-- name: lock_steered
-- Locks the row that belongs to a FluxJob and its workload.
SELECT uid, jobid, workload_name AS name, workload_kind AS kind,
       observed ? 'is_suspendable' AS is_suspendable, observed ->> 'made_by' AS made_by,
       state, held_by, author_hold, vacate_by, cancel_by, is_deleting, result, queue,
       (overrides ->> 'priority')::int AS set_priority, overrides -> 'spec' AS steered,
       coalesce((published ->> 'generation')::bigint, 1) AS observed_generation
FROM fluxjobs WHERE uid = :uid AND namespace = :namespace AND name = :name FOR UPDATE

-- name: unset_queue
-- Restores the author's queue.
UPDATE fluxjobs SET overrides = overrides - 'queue' WHERE uid = :uid

-- name: set_begin
-- Overrides the author's begin time.
UPDATE fluxjobs
SET overrides = fluxqueue_with(overrides, 'begin_at', to_jsonb(CAST(:at AS timestamptz))),
    begin_at = CAST(:at AS timestamptz), is_examined = false
WHERE uid = :uid
