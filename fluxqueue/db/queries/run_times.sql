-- name: run_times_after
-- Runs that were written after number :after, the newest :most of them, in their order.
SELECT * FROM (
    SELECT id, queue, owner, template, limit_s, seconds, result
    FROM run_times WHERE id > :after ORDER BY id DESC LIMIT :most) newest
ORDER BY id
