-- Pending actions are columns of rows. These functions make tasks of procrastinate from them, in the
-- transaction that makes the action pending, so no code path can forget it. A task names its
-- workloads and reads their rows when it runs. A task that comes twice or too late finds no work.
-- Triggers call functions in plpgsql, because their plans are kept. Functions in SQL are planned at
-- each call.
-- Releases come first, and looks at jobs that wait for others come last: one user may cause many
-- looks, and none of them starts a job of another user. If there are many at once, only the first 20
-- of each namespace are in the queue "effects". The rest is in the queue "crowded", like looks at jobs
-- that wait for others. A worker runs few tasks of that queue at once, and namespaces take turns.
CREATE FUNCTION fluxqueue_defer(
    task text, uids text[], at timestamptz DEFAULT NULL, is_blocked boolean DEFAULT false
) RETURNS void LANGUAGE plpgsql SET search_path = public, procrastinate AS $$
DECLARE
    rank integer := CASE WHEN is_blocked THEN 0 WHEN task = 'release' THEN 4 ELSE 3 END;
    rest text[];
BEGIN
    IF NOT is_blocked AND cardinality(uids) > 20 THEN
        SELECT array_agg(uid ORDER BY n) FILTER (WHERE place <= 20),
               array_agg(uid ORDER BY n) FILTER (WHERE place > 20)
        INTO uids, rest
        FROM (SELECT u.uid, u.n, row_number() OVER (PARTITION BY f.namespace ORDER BY u.n) AS place
              FROM unnest(uids) WITH ORDINALITY AS u (uid, n) LEFT JOIN fluxjobs f ON f.uid = u.uid) AS placed;
        PERFORM fluxqueue_defer_batches(task, rest, at, rank - 2);
    END IF;
    PERFORM fluxqueue_defer_batches(task, uids, at, rank);
END
$$;

CREATE FUNCTION fluxqueue_defer_batches(
    task text, uids text[], at timestamptz, rank integer
) RETURNS void LANGUAGE plpgsql SET search_path = public, procrastinate AS $$
BEGIN
    IF cardinality(uids) > 0 AND rank < 3 AND task <> 'status' THEN
        PERFORM fluxqueue_defer_crowded(task, uids, at, rank);
    ELSIF cardinality(uids) > 0 THEN
        PERFORM procrastinate_defer_jobs_v1(array_agg(
            ROW(CASE WHEN task = 'status' THEN 'later' ELSE 'effects' END, task, rank, NULL, NULL,
                jsonb_build_object('uids', batch), at)::procrastinate_job_to_defer_v1))
        FROM (SELECT jsonb_agg(uid ORDER BY n) AS batch
              FROM unnest(uids) WITH ORDINALITY AS u (uid, n) GROUP BY (n - 1) / 50) AS batches;
    END IF;
END
$$;

-- Tasks of one namespace, rank and kind of time are a lane. Each task has the turn after the last
-- waiting one of its lane. The first one of a lane has the turn of the task that is next. So one task
-- comes before the thousands of another namespace, and no lane comes first for long. The priority of
-- a task falls with its turn. Within a turn, the rank decides. Tasks for later have their own lanes:
-- they must not put off what is due now.
-- Race: two transactions may give the same turn, because neither sees the tasks of the other. Then
-- this lane has one more task in that turn.
CREATE FUNCTION fluxqueue_defer_crowded(
    task text, uids text[], at timestamptz, rank integer
) RETURNS void LANGUAGE plpgsql SET search_path = public, procrastinate AS $$
DECLARE
    next_turn integer := coalesce((
        SELECT (2 - priority) / 3 FROM procrastinate_jobs
        WHERE queue_name = 'crowded' AND status = 'todo' AND scheduled_at IS NULL
        ORDER BY priority DESC LIMIT 1), 0);
    lane text;
    batch text[];
    turn integer;
BEGIN
    FOR lane, batch IN
        SELECT f.namespace, array_agg(u.uid ORDER BY u.n)
        FROM unnest(uids) WITH ORDINALITY AS u (uid, n) LEFT JOIN fluxjobs f USING (uid) GROUP BY 1
    LOOP
        lane := concat_ws('/', coalesce(lane, ''), rank, CASE WHEN at IS NOT NULL THEN 'later' END);
        turn := greatest(next_turn, 1 + (
            SELECT (2 - priority) / 3 FROM procrastinate_jobs
            WHERE queue_name = 'crowded' AND status = 'todo' AND args ->> 'lane' = lane
            ORDER BY priority LIMIT 1));
        PERFORM procrastinate_defer_jobs_v1(ARRAY(
            SELECT ROW('crowded', task, rank - 3 * least(turn + n, 700000000), NULL, NULL,
                       jsonb_build_object('uids', batch[50 * n + 1:50 * n + 50], 'lane', lane),
                       at)::procrastinate_job_to_defer_v1
            FROM generate_series(0, (cardinality(batch) - 1) / 50) AS n));
    END LOOP;
END
$$;

-- One cycle reads all changes, whichever transactions made them. It takes all waiting tasks with it
-- when it begins (db/store/matcher_rows.py). If no worker matches, 20 waiting tasks are enough.
CREATE FUNCTION fluxqueue_wake_matcher() RETURNS void
LANGUAGE plpgsql SET search_path = public, procrastinate AS $$
BEGIN
    IF (SELECT count(*) FROM (
            SELECT FROM procrastinate_jobs WHERE queue_name = 'schedule' AND status = 'todo'
            LIMIT 20) AS waiting) < 20
    THEN
        PERFORM procrastinate_defer_jobs_v1(ARRAY[
            ROW('schedule', 'schedule', 0, NULL, NULL, '{}', NULL)::procrastinate_job_to_defer_v1]);
    END IF;
END
$$;

-- Return whether an examined job waits for free capacity. An index answers each of the two queries.
CREATE FUNCTION fluxqueue_room_is_awaited() RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM fluxjobs WHERE state IN ('Pending', 'Reserved') AND is_examined AND blocked_by IS NULL)
        OR EXISTS (SELECT FROM fluxjobs WHERE lacking > 0);
END
$$;

-- Return whether a job could use capacity that becomes free.
CREATE FUNCTION fluxqueue_has_waiting() RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN fluxqueue_room_is_awaited()
        OR EXISTS (SELECT FROM fluxjobs WHERE NOT is_examined AND (state IN ('Pending', 'Reserved') OR held_by = 'queue'));
END
$$;

-- The safety net: defer actions that are pending for a while and have no task. Without a controller
-- nothing is deferred, because its rows may differ from the cluster.
CREATE FUNCTION fluxqueue_sweep(grace interval) RETURNS TABLE (task text, number bigint)
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM leadership WHERE role = 'controller' AND expires_at <= now()) THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH under_way AS (
        SELECT t.task_name, u.uid FROM procrastinate.procrastinate_jobs t,
               jsonb_array_elements_text(t.args -> 'uids') AS u (uid)
        WHERE t.status = 'todo' OR (t.status = 'doing' AND EXISTS (
            SELECT FROM procrastinate.procrastinate_events e
            WHERE e.job_id = t.id AND e.type = 'started' AND e.at > now() - interval '10 min'))
    ), lost AS (
        SELECT o.task, array_agg(DISTINCT o.uid) AS uids FROM pending_actions o
        WHERE o.since < now() - grace
          AND NOT EXISTS (SELECT FROM under_way w WHERE w.task_name = o.task AND w.uid = o.uid)
        GROUP BY o.task
    ), deferred AS MATERIALIZED (
        SELECT l.task, l.uids, fluxqueue_defer(l.task, l.uids) FROM lost l
    )
    SELECT d.task, cardinality(d.uids)::bigint FROM deferred d;
    IF NOT EXISTS (SELECT FROM procrastinate.procrastinate_jobs
                   WHERE queue_name = 'schedule' AND status IN ('todo', 'doing'))
       AND (EXISTS (SELECT FROM graph_changes WHERE kind NOT IN ('allocation', 'foreign'))
            OR (EXISTS (SELECT FROM graph_changes) AND fluxqueue_has_waiting())
            -- Without any job the changes must not grow for ever.
            OR EXISTS (SELECT FROM graph_changes OFFSET 1000)
            OR EXISTS (SELECT FROM fluxjobs WHERE NOT is_examined
                       AND (state IN ('Pending', 'Reserved') OR held_by = 'queue'))
            -- Preemptions with a victim that must get its notice, must leave, or is spared.
            OR EXISTS (SELECT FROM preemptions WHERE NOT is_told OR is_off
                       OR (NOT is_vacated AND vacate_at <= extract(epoch FROM now()))))
    THEN
        PERFORM fluxqueue_wake_matcher();
        RETURN QUERY SELECT 'schedule', 1::bigint;
    END IF;
END
$$;

-- Free capacity without a waiting job, and changes of unmanaged pods, do not wake the matcher: the
-- next job does. Race: a job that is examined before this commits misses the change. The sweep
-- catches it.
CREATE FUNCTION graph_changes_wake() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM new_rows WHERE kind NOT IN ('allocation', 'foreign'))
       OR (EXISTS (SELECT FROM new_rows) AND fluxqueue_has_waiting())
    THEN
        PERFORM fluxqueue_wake_matcher();
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER graph_changes_wake AFTER INSERT ON graph_changes
    REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION graph_changes_wake();

CREATE FUNCTION fluxjobs_defer_new() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    pending_actions record;
BEGIN
    FOR pending_actions IN
        SELECT o.task, o.at, n.blocked_by IS NOT NULL AS is_blocked, array_agg(n.uid) AS uids
        FROM new_rows n CROSS JOIN LATERAL (VALUES
            ('release', n.release_at), ('reconcile', n.reconcile_at), ('status', n.status_due_at)
        ) AS o (task, at)
        WHERE o.at IS NOT NULL GROUP BY o.task, o.at, is_blocked
    LOOP
        PERFORM fluxqueue_defer(pending_actions.task, pending_actions.uids,
            CASE WHEN pending_actions.at > now() THEN pending_actions.at END,
            pending_actions.is_blocked);
    END LOOP;
    IF EXISTS (SELECT FROM new_rows WHERE NOT is_examined
               AND (state IN ('Pending', 'Reserved') OR held_by = 'queue'))
    THEN
        PERFORM fluxqueue_wake_matcher();
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER fluxjobs_defer_new AFTER INSERT ON fluxjobs
    REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION fluxjobs_defer_new();

CREATE FUNCTION fluxjobs_defer() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    pending_actions record;
BEGIN
    FOR pending_actions IN
        SELECT o.task, o.at, n.blocked_by IS NOT NULL AS is_blocked, array_agg(n.uid) AS uids
        FROM new_rows n JOIN old_rows b USING (uid) CROSS JOIN LATERAL (VALUES
            ('release', n.release_at, b.release_at), ('reconcile', n.reconcile_at, b.reconcile_at),
            ('status', n.status_due_at, b.status_due_at)
        ) AS o (task, at, before)
        WHERE o.at IS NOT NULL AND o.at IS DISTINCT FROM o.before GROUP BY o.task, o.at, is_blocked
    LOOP
        PERFORM fluxqueue_defer(pending_actions.task, pending_actions.uids,
            CASE WHEN pending_actions.at > now() THEN pending_actions.at END,
            pending_actions.is_blocked);
    END LOOP;
    -- A job that leaves the queue may let others move up. A cycle gives slots to a job that lacks them.
    INSERT INTO graph_changes (kind, key)
    SELECT 'fluxjob', n.uid FROM new_rows n JOIN old_rows b USING (uid)
    WHERE n.lacking > b.lacking
       OR (b.state IN ('Pending', 'Reserved') AND b.is_examined AND b.blocked_by IS NULL
           AND n.state IN ('Held', 'Gathering', 'Completed', 'Failed', 'Cancelled'));
    IF EXISTS (
        SELECT FROM new_rows n JOIN old_rows b USING (uid)
        WHERE NOT n.is_examined AND (n.state IN ('Pending', 'Reserved') OR n.held_by = 'queue')
          AND (b.is_examined
               OR NOT coalesce(b.state IN ('Pending', 'Reserved') OR b.held_by = 'queue', false)))
    THEN
        PERFORM fluxqueue_wake_matcher();
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER fluxjobs_defer AFTER UPDATE ON fluxjobs
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION fluxjobs_defer();

-- For the turns of the queue "crowded": the next task, and the last one of each lane.
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX fluxqueue_crowded_next ON procrastinate.procrastinate_jobs (priority)
    WHERE queue_name = 'crowded' AND status = 'todo' AND scheduled_at IS NULL;
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX fluxqueue_crowded_lanes ON procrastinate.procrastinate_jobs ((args ->> 'lane'), priority)
    WHERE queue_name = 'crowded' AND status = 'todo';

-- Tasks live for seconds. With the defaults of a server, vacuum waits for a fifth of a table to be
-- dead (60_storage.sql).
ALTER TABLE procrastinate.procrastinate_jobs SET (autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE procrastinate.procrastinate_events SET (autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
