-- Dependencies and begin times keep a waiting FluxJob out of the cycles. The edges of a row and the
-- targets of their names are written with the row. A change of a target defers a reconcile task for
-- its dependents, in the same transaction. That task decides under the lock of the dependent
-- (fluxqueue/db/store/dependencies.py). The change must not write the dependent's row, because another
-- transaction may hold its lock and wait for ours.

-- The same table as fluxqueue/fluxjob/dependency.py, for the one decision that is made here. A test
-- compares the two.
CREATE FUNCTION fluxjob_dependency_outcome(
    kind text, state text, started_at timestamptz
) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN state IS NULL THEN CASE kind WHEN 'singleton' THEN 'satisfied' ELSE 'unknown' END
        WHEN kind = 'after' AND (state = 'Running' OR started_at IS NOT NULL) THEN 'satisfied'
        WHEN state NOT IN ('Completed', 'Failed', 'Cancelled') THEN 'waiting'
        WHEN kind IN ('afterany', 'singleton') THEN 'satisfied'
        WHEN kind = 'afterok' AND state = 'Completed' THEN 'satisfied'
        WHEN kind = 'afternotok' AND state <> 'Completed' THEN 'satisfied'
        ELSE 'never' END
$$;

-- Return the target of a name in a dependency. A number is a jobid. Any other text is the newest
-- existing workload or FluxJob of that name.
CREATE FUNCTION fluxjob_dependency_target(in_namespace text, job text) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT uid FROM (
        SELECT uid, jobid FROM fluxjobs
        WHERE job ~ '^[0-9]{1,18}$' AND namespace = in_namespace
          AND jobid = CASE WHEN job ~ '^[0-9]{1,18}$' THEN job::bigint END
        UNION ALL
        SELECT uid, jobid FROM fluxjobs
        WHERE job !~ '^[0-9]+$' AND namespace = in_namespace AND workload_name = job AND NOT is_gone
        UNION ALL
        SELECT uid, jobid FROM fluxjobs
        WHERE job !~ '^[0-9]+$' AND namespace = in_namespace AND name = job AND NOT is_gone) found
    ORDER BY jobid DESC LIMIT 1
$$;

-- Return a job that a singleton waits for. Those of the same user and namespace that have its name, or
-- share it as singletons, are ahead of it if they came earlier or have slots.
CREATE FUNCTION fluxjob_singleton_ahead(waiting fluxjobs, shared_name text) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT f.uid FROM (
        SELECT uid FROM dependencies
        WHERE namespace = (waiting).namespace AND job = shared_name AND kind = 'singleton'
        UNION
        SELECT uid FROM fluxjobs WHERE namespace = (waiting).namespace AND workload_name = shared_name) found
    JOIN fluxjobs f USING (uid)
    WHERE f.user_name = (waiting).user_name AND f.ended_at IS NULL AND f.uid <> (waiting).uid
      AND (f.jobid < (waiting).jobid OR f.state IN ('Allocated', 'Running'))
    ORDER BY f.jobid < (waiting).jobid DESC, f.jobid DESC LIMIT 1
$$;

-- Set the columns of the row itself. The reason of a block replaces every other reason.
CREATE FUNCTION fluxjob_with_block(new_row fluxjobs, old_row fluxjobs) RETURNS fluxjobs
LANGUAGE plpgsql AS $$
DECLARE
    retry_at timestamptz := new_row.start ->> 'retry_at';
BEGIN
    IF (new_row.observed -> 'depends_on') IS DISTINCT FROM (old_row.observed -> 'depends_on') THEN
        new_row.blocked_by := 'dependency';
        new_row.blocked_reason := 'its dependencies have yet to be looked at';
        new_row.reconcile_at := now();
    ELSIF new_row.blocked_by IS DISTINCT FROM 'dependency' THEN
        IF new_row.begin_at > now() AND new_row.ended_at IS NULL THEN
            new_row.blocked_by := 'begin-time';
            new_row.blocked_reason := 'is not to start before '
                || to_char(new_row.begin_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"');
            IF new_row.reconcile_at IS NULL OR new_row.reconcile_at > now() THEN
                new_row.reconcile_at := new_row.begin_at;
            END IF;
        ELSIF retry_at > now() AND new_row.state IN ('Pending', 'Reserved', 'Gathering', 'Held') THEN
            new_row.blocked_by := 'start-retry';
            new_row.blocked_reason := coalesce(new_row.start ->> 'error', 'its pods did not start')
                || '; it is tried again from '
                || to_char(retry_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"');
            IF new_row.reconcile_at IS NULL OR new_row.reconcile_at > now() THEN
                new_row.reconcile_at := retry_at;
            END IF;
        ELSIF new_row.blocked_by IN ('begin-time', 'start-retry') THEN
            new_row.blocked_by := NULL;
            new_row.is_examined := false;
            IF new_row.reconcile_at > now() THEN
                new_row.reconcile_at := NULL;
            END IF;
            IF new_row.reason = new_row.blocked_reason THEN
                new_row.reason := '';
            END IF;
        END IF;
    END IF;
    IF new_row.blocked_by = 'dependency' AND old_row.state IN ('Allocated', 'Running')
            AND new_row.state IN ('Pending', 'Held', 'Gathering') THEN
        -- Dependencies that change while a job runs are not evaluated. Now the job waits again.
        new_row.reconcile_at := now();
    END IF;
    IF new_row.blocked_by IS NOT NULL AND new_row.state IN ('Pending', 'Reserved') THEN
        new_row.state := 'Pending';
        new_row.expected_start := NULL;
        new_row.reason := new_row.blocked_reason;
    END IF;
    RETURN new_row;
END
$$;

-- After the row: write its edges and their targets, and defer the dependents.
CREATE FUNCTION fluxjobs_depend() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    is_new boolean := TG_OP = 'INSERT';
    renamed text[];
    old_edges jsonb := CASE WHEN TG_OP = 'UPDATE' THEN OLD.observed -> 'depends_on' END;
BEGIN
    IF (NEW.observed -> 'depends_on') IS DISTINCT FROM old_edges THEN
        DELETE FROM dependencies WHERE uid = NEW.uid;
        INSERT INTO dependencies (uid, number, kind, namespace, job, target_uid)
        SELECT NEW.uid, edge.number, edge.value ->> 'type', NEW.namespace, edge.value ->> 'job',
               CASE edge.value ->> 'type'
                   WHEN 'singleton' THEN fluxjob_singleton_ahead(NEW, edge.value ->> 'job')
                   ELSE fluxjob_dependency_target(NEW.namespace, edge.value ->> 'job') END
        FROM jsonb_array_elements(NEW.observed -> 'depends_on') WITH ORDINALITY AS edge (value, number);
        -- Dependents may have waited in a circle that is now open. All jobs of a circle are held, so a
        -- chain that only waits is not walked: an author could change its first job again and again.
        -- A singleton that waited for this one may have it no longer ahead.
        PERFORM fluxqueue_defer('reconcile', ARRAY(
            WITH RECURSIVE behind (uid) AS (
                SELECT NEW.uid
                UNION
                SELECT d.uid FROM behind b JOIN dependencies d ON d.target_uid = b.uid
                JOIN fluxjobs f ON f.uid = d.uid AND f.held_by = 'dependency'
                WHERE NOT d.is_satisfied)
            SELECT uid FROM (SELECT uid FROM behind LIMIT 1000) b WHERE uid <> NEW.uid
            UNION
            SELECT uid FROM dependencies
            WHERE target_uid = NEW.uid AND kind = 'singleton' AND NOT is_satisfied),
            is_blocked => true);
    END IF;
    IF is_new THEN
        -- A name means its newest workload, until the edge is satisfied.
        WITH renamed_edges AS (
            UPDATE dependencies d SET target_uid = NEW.uid
            WHERE d.namespace = NEW.namespace AND NOT d.is_satisfied AND d.kind <> 'singleton'
              AND d.job IN (NEW.workload_name, NEW.name, NEW.jobid::text)
              AND (d.job !~ '^[0-9]+$' OR d.job = NEW.jobid::text)
              AND NOT EXISTS (
                SELECT FROM fluxjobs t WHERE t.uid = d.target_uid
                AND (fluxjob_dependency_outcome(d.kind, t.state, t.started_at) = 'satisfied'
                     OR (t.workload_kind <> NEW.workload_kind AND NOT t.is_gone)))
            RETURNING d.uid)
        SELECT array_agg(DISTINCT uid) INTO renamed FROM renamed_edges;
        PERFORM fluxqueue_defer('reconcile', renamed, is_blocked => true);
        RETURN NULL;
    END IF;
    IF NEW.state IS DISTINCT FROM OLD.state THEN
        IF NEW.state = 'Running' OR NEW.ended_at IS NOT NULL THEN
            -- Go further only through held jobs: they may have waited in a circle.
            PERFORM fluxqueue_defer('reconcile', ARRAY(
                WITH RECURSIVE behind (uid) AS (
                    SELECT d.uid FROM dependencies d
                    WHERE d.target_uid = NEW.uid AND NOT d.is_satisfied
                      AND (d.kind = 'after' OR NEW.ended_at IS NOT NULL)
                    UNION
                    SELECT d.uid FROM behind b
                    JOIN fluxjobs f ON f.uid = b.uid AND f.held_by = 'dependency'
                    JOIN dependencies d ON d.target_uid = b.uid AND NOT d.is_satisfied)
                SELECT uid FROM behind), is_blocked => true);
        END IF;
        IF NEW.ended_at IS NOT NULL THEN
            -- It takes no turn any more. What it waited for had to end.
            UPDATE dependencies SET kind = 'afterany' WHERE uid = NEW.uid AND kind = 'singleton';
        END IF;
        -- A release of a hold does not know the other dependencies.
        IF NEW.state IN ('Pending', 'Gathering') AND OLD.state = 'Held' AND NEW.blocked_by = 'dependency' THEN
            PERFORM fluxqueue_defer('reconcile', ARRAY[NEW.uid], is_blocked => true);
        END IF;
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER fluxjobs_depend_new AFTER INSERT ON fluxjobs
    FOR EACH ROW EXECUTE FUNCTION fluxjobs_depend();

CREATE TRIGGER fluxjobs_depend AFTER UPDATE ON fluxjobs FOR EACH ROW
    WHEN (NEW.state IS DISTINCT FROM OLD.state
          OR (NEW.observed -> 'depends_on') IS DISTINCT FROM (OLD.observed -> 'depends_on'))
    EXECUTE FUNCTION fluxjobs_depend();
