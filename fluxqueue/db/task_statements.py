"""All statements on procrastinate's tables, beside the functions of ``db/sql/20_tasks.sql``.

A row says what is pending, a trigger defers a task in the same transaction, and procrastinate
carries the task (``docs/developer/concurrency.md``, pending actions). The modules that need more of
its tables than its own functions give take the statement from here. Those of procrastinate's
connector have its kind of parameters, ``%(name)s``.
"""

from __future__ import annotations

# Which queues have a task that is due: one look for all loops of a process (``db.doorbell``).
DUE_QUEUES = """
SELECT queue FROM unnest(%(queues)s::varchar[]) AS queue
WHERE EXISTS (
    SELECT FROM procrastinate_jobs
    WHERE queue_name = queue AND status = 'todo'
      AND (scheduled_at IS NULL OR scheduled_at <= now())
)
"""

# One task, and whether there is another: most loops would otherwise fetch twice for each task
# (``task_queue.PatientManager``).
FETCH_TASK = """
SELECT task.*, EXISTS (
    SELECT FROM procrastinate_jobs other
    WHERE (%(queues)s::varchar[] IS NULL OR other.queue_name = ANY(%(queues)s::varchar[]))
      AND other.status = 'todo' AND other.id <> task.id
      AND (other.scheduled_at IS NULL OR other.scheduled_at <= now())
) AS is_more
FROM procrastinate_fetch_job_v2(%(queues)s::varchar[], %(worker_id)s) task
"""

# How often the worker of a review has died with it (``task_queue.rescue_stalled``).
COUNT_CRASH = """
UPDATE procrastinate_jobs SET args = args || jsonb_build_object(
    'crashes', coalesce((args ->> 'crashes')::int, 0) + 1)
WHERE id = %(task_id)s AND status = 'doing'
"""

TAKE_CYCLES = """
DELETE FROM procrastinate.procrastinate_jobs WHERE queue_name = 'schedule' AND status = 'todo'
"""
"""Takes the waiting cycles along with the changes, in the same statement (``store.decisions``)."""

TAKE_STATUSES = """
DELETE FROM procrastinate.procrastinate_jobs
WHERE queue_name = 'later' AND task_name = 'status' AND status = 'todo'
  AND scheduled_at <= now() AND attempts = 0
RETURNING args
"""
"""Takes the due tasks for other FluxJobs along (``store.statuses``)."""

TASK_ATTEMPTS = """
SELECT j.task_name, u.uid, max(j.attempts) AS attempts
FROM procrastinate.procrastinate_jobs j, jsonb_array_elements_text(j.args -> 'uids') AS u (uid)
WHERE j.status IN ('todo', 'doing') GROUP BY 1, 2
"""
"""How often the tasks of each workload were tried (``reading.snapshot``)."""

# What has ended stays for long: each state by the partial index that has it (``reading.gauges``).
COUNT_TASKS = """
SELECT (SELECT count(*) FROM procrastinate.procrastinate_jobs WHERE status = 'todo') AS todo,
       (SELECT count(*) FROM procrastinate.procrastinate_jobs WHERE status = 'doing') AS doing
"""

# In steps (``db.retention``).
DELETE_TASKS = """
DELETE FROM procrastinate.procrastinate_jobs WHERE id = ANY(ARRAY(
    SELECT id FROM procrastinate.procrastinate_jobs j
    WHERE status IN ('succeeded', 'cancelled', 'aborted') OR (status = 'failed' AND NOT EXISTS (
        SELECT FROM procrastinate.procrastinate_events e
        WHERE e.job_id = j.id AND e.at > now() - make_interval(secs => :retention_s)))
    -- Their worker lives and has lost them; what they were for was deferred anew.
    OR (status = 'doing' AND EXISTS (SELECT FROM procrastinate.procrastinate_events e
        WHERE e.job_id = j.id AND e.type = 'started' AND e.at < now() - interval '1 h'))
    LIMIT :step))
"""
