-- name: due_queues
-- Which queues have a task that is due: one look for all loops of a process (``db.doorbell``).
SELECT queue FROM unnest(%(queues)s::varchar[]) AS queue
WHERE EXISTS (
    SELECT FROM procrastinate_jobs
    WHERE queue_name = queue AND status = 'todo'
      AND (scheduled_at IS NULL OR scheduled_at <= now())
)

-- name: fetch_task
-- One task, and whether there is another: most loops would otherwise fetch twice for each task
-- (``task_queue.PatientManager``).
SELECT task.*, EXISTS (
    SELECT FROM procrastinate_jobs other
    WHERE (%(queues)s::varchar[] IS NULL OR other.queue_name = ANY(%(queues)s::varchar[]))
      AND other.status = 'todo' AND other.id <> task.id
      AND (other.scheduled_at IS NULL OR other.scheduled_at <= now())
) AS is_more
FROM procrastinate_fetch_job_v2(%(queues)s::varchar[], %(worker_id)s) task

-- name: count_crash
-- How often the worker of a review has died with it (``task_queue.rescue_stalled``).
UPDATE procrastinate_jobs SET args = args || jsonb_build_object(
    'crashes', coalesce((args ->> 'crashes')::int, 0) + 1)
WHERE id = %(task_id)s AND status = 'doing'

-- name: count_tasks
-- Tasks that have not ended. What has ended stays for long, so each state is counted by the partial
-- index that has it.
SELECT (SELECT count(*) FROM procrastinate.procrastinate_jobs WHERE status = 'todo') AS todo,
       (SELECT count(*) FROM procrastinate.procrastinate_jobs WHERE status = 'doing') AS doing

-- name: delete_tasks
-- Tasks that are over, in steps.
DELETE FROM procrastinate.procrastinate_jobs WHERE id = ANY(ARRAY(
    SELECT id FROM procrastinate.procrastinate_jobs j
    WHERE status IN ('succeeded', 'cancelled', 'aborted') OR (status = 'failed' AND NOT EXISTS (
        SELECT FROM procrastinate.procrastinate_events e
        WHERE e.job_id = j.id AND e.at > now() - make_interval(secs => :retention_s)))
    -- Their worker lives and has lost them; what they were for was deferred anew.
    OR (status = 'doing' AND EXISTS (SELECT FROM procrastinate.procrastinate_events e
        WHERE e.job_id = j.id AND e.type = 'started' AND e.at < now() - interval '1 h'))
    LIMIT :step))

-- name: defer_task
-- Defers a task for workloads with rows that the transaction has not locked.
SELECT fluxqueue_defer(:task, CAST(:uids AS text[]))

-- name: wake_matcher
-- Asks for a cycle for a reason that no row shows.
SELECT fluxqueue_wake_matcher()

-- name: take_changes
-- Takes the changes of the graph, and the waiting tasks along. Race: a transaction that commits
-- before this statement is covered by this cycle. One that commits later has a task that remains.
WITH woken AS (
    DELETE FROM procrastinate.procrastinate_jobs
    WHERE queue_name = 'schedule' AND status = 'todo')
DELETE FROM graph_changes RETURNING kind, key
