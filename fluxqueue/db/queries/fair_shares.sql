-- name: shares
-- The use of each user of each queue as it was last summed up.
SELECT queue, user_name AS user, used, factor, points,
       extract(epoch FROM computed_at)::float8 AS at_s
FROM fair_shares

-- name: seconds_now
-- The time of the database, in epoch seconds with fractions.
SELECT extract(epoch FROM now())::float8 AS now_s

-- name: held_cpu
-- What was held in some queues since a time: the cpu of each slot from when it was given.
SELECT f.queue, f.user_name AS "user",
       sum((s.resources ->> 'cpu')::numeric / 1000)::float8 AS cpus,
       extract(epoch FROM s.given_at)::float8 AS begin_s,
       extract(epoch FROM coalesce(s.returned_at, now()))::float8 AS end_s
FROM allocation_slots s JOIN allocations a ON a.id = s.allocation_id
JOIN fluxjobs f USING (uid)
WHERE f.queue = ANY(CAST(:queues AS text[])) AND s.resources ? 'cpu'
  AND (s.state <> 'returned' OR s.returned_at > to_timestamp(:since))
GROUP BY 1, 2, 4, 5

-- name: users_in_turn
-- Users with FluxJobs that have a turn.
SELECT DISTINCT queue, user_name FROM fluxjobs f
WHERE queue = ANY(CAST(:queues AS text[])) AND fluxjob_has_turn(f)

-- name: store_shares
-- Writes the shares of all users.
INSERT INTO fair_shares (queue, user_name, used, factor, points, computed_at)
SELECT queue, user_name, used, factor, points, now()
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    queue text, user_name text, used float8, factor float8, points int)

-- name: plan_anew
-- For the next statements of this transaction: a recent time needs another plan than one long ago.
SET LOCAL plan_cache_mode = force_custom_plan

-- name: delete_shares
-- Removes all shares. They are written anew in the same transaction.
DELETE FROM fair_shares
