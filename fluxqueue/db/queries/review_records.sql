-- name: has_news
-- What a cycle would read before it decides anything (``worker.schedule``).
SELECT EXISTS (SELECT FROM graph_changes)
    OR EXISTS (SELECT FROM fluxjobs WHERE NOT is_examined
               AND (state IN ('Pending', 'Reserved') OR held_by = 'queue')) AS has_news

-- name: asked_fluxjob
-- The newest FluxJob of a name. Times are epoch seconds.
SELECT uid, state, reason, held_by, blocked_by, blocked_reason,
       extract(epoch FROM CASE WHEN blocked_by = 'start-retry'
                               THEN (start ->> 'retry_at')::timestamptz ELSE begin_at END)::bigint
           AS begin_at,
       extract(epoch FROM allocated_at)::bigint AS allocated_at,
       coalesce(overrides ->> 'priority', observed ->> 'priority', '0')::integer AS asked_priority,
       observed ? 'is_priority_granted' OR overrides ? 'priority' AS is_priority_granted, accepted_by,
       ARRAY(SELECT s.node FROM allocations a JOIN allocation_slots s
                 ON s.allocation_id = a.id
             WHERE a.uid = f.uid AND a.is_live AND s.state <> 'returned'
             ORDER BY s.number) AS nodes
FROM fluxjobs f WHERE namespace = :namespace AND name = :name
ORDER BY is_gone, jobid DESC LIMIT 1

-- name: priorities_of
-- The priority that a job of a user would have in each queue (``30_priority.sql``).
SELECT q.name, (p.parts ->> 'bounded')::bigint + (p.parts ->> 'queue')::bigint
    + (p.parts ->> 'fairShare')::bigint AS priority
FROM fluxqueues q CROSS JOIN LATERAL fluxjob_priority_parts(
    q.name, :user, CAST(:asked AS integer), NULL, :is_granted) AS p (parts)

-- name: standing_of
-- What of its priority counts for preemption: all but the points of fair share.
SELECT (p.parts ->> 'bounded')::bigint + (p.parts ->> 'queue')::bigint AS standing
FROM fluxjob_priority_parts(
    :queue, :user, CAST(:asked AS integer), NULL, :is_granted) AS p (parts)

-- name: place_of
-- The turn of a job among all that wait in its queue, even further back than a cycle looks.
SELECT count(*) AS others,
       count(*) FILTER (WHERE priority > :priority
                        OR (priority = :priority AND place < :place)) AS before
FROM fluxjobs WHERE queue = :queue AND uid <> :uid AND is_examined AND blocked_by IS NULL
  AND state IN ('Pending', 'Reserved') AND NOT is_deleting AND result IS NULL
