-- The transition table of fluxqueue/fluxjob/states.py, repeated where nobody can pass it by.
-- A test reads both and compares them edge by edge.
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

CREATE FUNCTION fluxjobs_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT fluxjob_transition_allowed(OLD.state, NEW.state) THEN
        RAISE EXCEPTION 'FluxJob % (%/%): % -> % is not a transition',
            NEW.jobid, NEW.namespace, NEW.name, OLD.state, NEW.state
            USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.state <> 'Pending' THEN
        NEW.kept_back := NULL;  -- found by a cycle, of what is in its turn
    END IF;
    IF NEW.state NOT IN ('Pending', 'Reserved') THEN
        NEW.position := NULL;
    END IF;
    -- Every change that the FluxJob object shows raises the version its status carries.
    IF (NEW.state, NEW.reason, NEW.kept_back, NEW.position, NEW.priority, NEW.expected_start, NEW.queue,
        NEW.observed_generation)
       IS DISTINCT FROM
       (OLD.state, OLD.reason, OLD.kept_back, OLD.position, OLD.priority, OLD.expected_start, OLD.queue,
        OLD.observed_generation) THEN
        NEW.version := OLD.version + 1;
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER fluxjobs_guard BEFORE UPDATE ON fluxjobs
    FOR EACH ROW EXECUTE FUNCTION fluxjobs_guard();

-- What a user can see of a FluxJob is owed by the row itself, so no code path can forget it. A state
-- that is overtaken within a moment is not told by itself: no FluxJob is told of more than once in
-- FLUXQUEUE_STATUS_INTERVAL_S (two seconds; whoever connects without our settings means those), of
-- its end a little sooner; a new one shows Pending by itself (a default of the definition). Rounded
-- up to a quarter of it, so that many are told by one task.
CREATE FUNCTION fluxjob_publish_at(told_at timestamptz, intervals numeric) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT to_timestamp(ceil(4 / s * extract(epoch FROM greatest(
        now() + make_interval(secs => s / 10),
        told_at + make_interval(secs => s * intervals)))) * s / 4)
    FROM (SELECT coalesce(nullif(current_setting('fluxqueue.status_interval_s', true), '')::numeric,
                          2)) AS setting (s)
$$;

-- Named to come after fluxjobs_guard, which raises the version; triggers run in that order.
CREATE FUNCTION fluxjobs_owe_status() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND NEW.flux_uid IS DISTINCT FROM OLD.flux_uid THEN
        NEW.published := 0;  -- one that was made again has an empty status
        NEW.observed_generation := 1;
    END IF;
    -- A release writes the status itself, before anything is let go, or puts it off.
    IF NEW.flux_uid IS NULL OR NEW.version <= NEW.published
       OR (NEW.state = 'Allocated' AND NEW.release_at IS NOT NULL) THEN
        NEW.publish_at := NULL;
    ELSIF NEW.publish_at IS NULL
       OR (NEW.version > OLD.version AND NOT (OLD.state = 'Allocated' AND NEW.state = 'Running'
                                              AND NEW.reason = OLD.reason AND NEW.notices = OLD.notices))
    THEN
        -- What is due stays due; with more to tell it may come sooner. That one has come to run is
        -- told with its start, also where that was put off.
        NEW.publish_at := least(NEW.publish_at, fluxjob_publish_at(
            coalesce(NEW.published_at, NEW.submitted_at),
            CASE WHEN NEW.ended_at IS NULL THEN 1 ELSE 0.5 END));
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER fluxjobs_owe_status BEFORE INSERT OR UPDATE ON fluxjobs
    FOR EACH ROW EXECUTE FUNCTION fluxjobs_owe_status();

-- The plan and the audit trail go with each transition; the actor is the transaction's.
CREATE FUNCTION fluxjobs_record() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    old_state text := CASE WHEN TG_OP = 'UPDATE' THEN OLD.state END;
BEGIN
    -- A reservation belongs to the state of that name alone.
    IF old_state = 'Reserved' AND NEW.state <> 'Reserved' THEN
        DELETE FROM reservations WHERE uid = NEW.uid;
    END IF;
    IF NEW.state IS DISTINCT FROM old_state THEN
        INSERT INTO history (uid, jobid, actor, event, detail)
        VALUES (NEW.uid, NEW.jobid,
                coalesce(nullif(current_setting('fluxqueue.actor', true), ''), session_user),
                NEW.state, jsonb_build_object('from', old_state, 'reason', NEW.reason));
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER fluxjobs_record_new AFTER INSERT ON fluxjobs
    FOR EACH ROW EXECUTE FUNCTION fluxjobs_record();

CREATE TRIGGER fluxjobs_record AFTER UPDATE ON fluxjobs FOR EACH ROW
    WHEN (NEW.state IS DISTINCT FROM OLD.state)
    EXECUTE FUNCTION fluxjobs_record();
