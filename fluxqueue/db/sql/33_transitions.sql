-- The transition table of fluxqueue/fluxjob/states.py, enforced for every client. A test compares both
-- edge by edge.
CREATE FUNCTION fluxjob_transition_allowed(old_state text, new_state text) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT old_state = new_state OR new_state = ANY (CASE old_state
        WHEN 'Gathering' THEN ARRAY['Pending', 'Held', 'Completed', 'Failed', 'Cancelled']
        WHEN 'Pending' THEN ARRAY['Gathering', 'Reserved', 'Held', 'Unsatisfiable', 'Allocated', 'Completed', 'Failed', 'Cancelled']
        WHEN 'Reserved' THEN ARRAY['Gathering', 'Pending', 'Held', 'Unsatisfiable', 'Allocated', 'Completed', 'Failed', 'Cancelled']
        WHEN 'Held' THEN ARRAY['Gathering', 'Pending', 'Completed', 'Failed', 'Cancelled']
        WHEN 'Unsatisfiable' THEN ARRAY['Gathering', 'Pending', 'Held', 'Completed', 'Failed', 'Cancelled']
        WHEN 'Allocated' THEN ARRAY['Running', 'Gathering', 'Pending', 'Held', 'Completed', 'Failed', 'Cancelled']
        WHEN 'Running' THEN ARRAY['Gathering', 'Pending', 'Held', 'Completed', 'Failed', 'Cancelled']
        ELSE ARRAY[]::text[]
    END)
$$;

-- Return whether the transaction makes rows from the cluster (db/store/rebuild.py). It sets each row
-- to the state that the cluster shows, without transitions.
CREATE FUNCTION fluxqueue_is_rebuilding() RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce(current_setting('fluxqueue.rebuilding', true), '') = 'on';
END
$$;

-- Every change that the FluxJob object shows raises the version that its status carries.
CREATE FUNCTION fluxjob_with_version(new_row fluxjobs, old_row fluxjobs) RETURNS fluxjobs
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT fluxjob_transition_allowed(old_row.state, new_row.state)
       AND NOT fluxqueue_is_rebuilding()
    THEN
        RAISE EXCEPTION 'FluxJob % (%/%): % -> % is not a transition',
            new_row.jobid, new_row.namespace, new_row.name, old_row.state, new_row.state
            USING ERRCODE = 'check_violation';
    END IF;
    IF new_row.state <> 'Pending' THEN
        new_row.wait_reason := NULL;  -- found by a cycle, of what is in its turn
    END IF;
    IF new_row.state NOT IN ('Pending', 'Reserved') THEN
        new_row.position := NULL;
    END IF;
    -- A refused action that is no longer pending is no longer refused.
    IF new_row.troubles ? 'stalled' THEN
        new_row.troubles := fluxqueue_with(new_row.troubles, 'stalled', nullif(
            (new_row.troubles -> 'stalled') - ARRAY[
                CASE WHEN new_row.ended_at IS NOT NULL THEN 'booking' END,
                CASE WHEN new_row.release_at IS NULL THEN 'release' END,
                CASE WHEN new_row.reconcile_at IS NULL THEN 'reconcile' END,
                CASE WHEN new_row.status_due_at IS NULL THEN 'status' END], '{}'));
    END IF;
    IF (new_row.state, new_row.reason, new_row.wait_reason, new_row.position, new_row.priority,
        new_row.place, new_row.expected_start, new_row.queue, new_row.published -> 'generation',
        new_row.observed -> 'faults', new_row.troubles -> 'stalled')
       IS DISTINCT FROM
       (old_row.state, old_row.reason, old_row.wait_reason, old_row.position, old_row.priority,
        old_row.place, old_row.expected_start, old_row.queue, old_row.published -> 'generation',
        old_row.observed -> 'faults', old_row.troubles -> 'stalled') THEN
        new_row.version := old_row.version + 1;
    END IF;
    IF new_row.observed ? 'faults' OR new_row.troubles ? 'stalled' THEN
        new_row.troubles := jsonb_build_object('since', now()) || new_row.troubles;
    ELSIF new_row.troubles ? 'since' THEN
        new_row.troubles := new_row.troubles - 'since';
    END IF;
    RETURN new_row;
END
$$;

-- The row itself makes its status update pending, so no code path can forget it. A FluxJob gets at
-- most one update in FLUXQUEUE_STATUS_INTERVAL_S, and the end of a job comes a little sooner. Sessions
-- without our settings use two seconds. A new FluxJob shows Pending by a default of its definition.
-- The time is rounded up to a quarter of the interval, so that one task updates many FluxJobs.
CREATE FUNCTION fluxjob_status_due_at(told_at timestamptz, intervals numeric) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT to_timestamp(ceil(4 / s * extract(epoch FROM greatest(
        now() + make_interval(secs => s / 10),
        told_at + make_interval(secs => s * intervals)))) * s / 4)
    FROM (SELECT coalesce(nullif(current_setting('fluxqueue.status_interval_s', true), '')::numeric,
                          2)) AS setting (s)
$$;

CREATE FUNCTION fluxjob_with_status_due(new_row fluxjobs, old_row fluxjobs) RETURNS fluxjobs
LANGUAGE plpgsql AS $$
BEGIN
    IF old_row.uid IS NOT NULL AND new_row.flux_uid IS DISTINCT FROM old_row.flux_uid THEN
        -- One that was made again has an empty status.
        new_row.published := new_row.published - '{version,generation}'::text[];
    END IF;
    -- A release writes the status itself before it releases any pod, or it postpones the status.
    IF new_row.flux_uid IS NULL OR new_row.version <= coalesce((new_row.published ->> 'version')::bigint, 0)
       OR (new_row.state = 'Allocated' AND new_row.release_at IS NOT NULL) THEN
        new_row.status_due_at := NULL;
    ELSIF new_row.status_due_at IS NULL
       OR (new_row.version > old_row.version
           -- A change of slots says itself how long it may wait.
           AND NOT (old_row.status_due_at IS NULL AND new_row.state = old_row.state)
           AND NOT (old_row.state = 'Allocated' AND new_row.state = 'Running'
                    AND new_row.reason = old_row.reason AND new_row.notices = old_row.notices))
    THEN
        -- A due update stays due, and a further change may make it due sooner. The change to
        -- Running is part of the update for the start, also if that was postponed.
        new_row.status_due_at := least(new_row.status_due_at, fluxjob_status_due_at(
            coalesce((new_row.published ->> 'written_at')::timestamptz, new_row.submitted_at),
            CASE WHEN new_row.ended_at IS NULL THEN 1 ELSE 0.5 END));
    END IF;
    RETURN new_row;
END
$$;

-- Write the audit trail and the plan with each transition. The actor is that of the transaction.
CREATE FUNCTION fluxjobs_record() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    old_state text := CASE WHEN TG_OP = 'UPDATE' THEN OLD.state END;
BEGIN
    -- Only the state Reserved has a reservation.
    IF old_state = 'Reserved' AND NEW.state <> 'Reserved' THEN
        DELETE FROM reservations WHERE uid = NEW.uid;
    END IF;
    IF NEW.state IS DISTINCT FROM old_state THEN
        INSERT INTO history (uid, jobid, actor, event, detail)
        VALUES (NEW.uid, NEW.jobid,
                coalesce(nullif(current_setting('fluxqueue.actor', true), ''), session_user),
                NEW.state, jsonb_build_object('from', old_state, 'reason', NEW.reason)
                           || CASE WHEN fluxqueue_is_rebuilding() THEN '{"rebuilt": true}'::jsonb
                                   ELSE '{}'::jsonb END);
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER fluxjobs_record_new AFTER INSERT ON fluxjobs
    FOR EACH ROW EXECUTE FUNCTION fluxjobs_record();

CREATE TRIGGER fluxjobs_record AFTER UPDATE ON fluxjobs FOR EACH ROW
    WHEN (NEW.state IS DISTINCT FROM OLD.state)
    EXECUTE FUNCTION fluxjobs_record();
