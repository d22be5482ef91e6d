-- name: run_times_after
-- Runs that were written after number :after, at most :of_owner of each owner in a queue, the newest
-- of them. In their order.
SELECT id, queue, owner, template, limit_s, seconds, result FROM (
    SELECT *, row_number() OVER (PARTITION BY queue, owner ORDER BY id DESC) AS place
    FROM run_times WHERE id > :after) placed
WHERE place <= :of_owner ORDER BY id
