-- The transition table of fluxqueue/fluxjob/states.py, repeated where nobody can pass it by.
-- A test reads both and compares them edge by edge.
CREATE FUNCTION fluxjob_transition_allowed(old_state text, new_state text) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT old_state = new_state OR new_state = ANY (CASE old_state
        WHEN 'Pending' THEN ARRAY['Reserved', 'Held', 'Unsatisfiable', 'Allocated', 'Completed', 'Failed', 'Cancelled']
        WHEN 'Reserved' THEN ARRAY['Pending', 'Held', 'Unsatisfiable', 'Allocated', 'Completed', 'Failed', 'Cancelled']
        WHEN 'Held' THEN ARRAY['Pending', 'Completed', 'Failed', 'Cancelled']
        WHEN 'Unsatisfiable' THEN ARRAY['Pending', 'Held', 'Completed', 'Failed', 'Cancelled']
        WHEN 'Allocated' THEN ARRAY['Running', 'Pending', 'Held', 'Completed', 'Failed', 'Cancelled']
        WHEN 'Running' THEN ARRAY['Pending', 'Held', 'Completed', 'Failed', 'Cancelled']
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
    -- Every change that the FluxJob object shows raises the version its status carries.
    IF (NEW.state, NEW.reason, NEW.priority, NEW.expected_start, NEW.queue)
        IS DISTINCT FROM (OLD.state, OLD.reason, OLD.priority, OLD.expected_start, OLD.queue) THEN
        NEW.version := OLD.version + 1;
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER fluxjobs_guard BEFORE UPDATE ON fluxjobs
    FOR EACH ROW EXECUTE FUNCTION fluxjobs_guard();

-- What a user can see of a FluxJob is published by the row itself, so no code path can forget it:
-- an outbox row for its status and event, and an audit line that names the actor.
CREATE FUNCTION fluxjobs_publish() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    old_state text := CASE WHEN TG_OP = 'UPDATE' THEN OLD.state END;
BEGIN
    IF TG_OP = 'UPDATE' AND NEW.version = OLD.version THEN
        RETURN NULL;
    END IF;
    INSERT INTO outbox (kind, key, payload)
    VALUES ('status', NEW.uid,
            jsonb_build_object('old', old_state, 'new', NEW.state, 'reason', NEW.reason,
                               'held_by', NEW.held_by));
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

CREATE TRIGGER fluxjobs_publish AFTER INSERT OR UPDATE ON fluxjobs
    FOR EACH ROW EXECUTE FUNCTION fluxjobs_publish();
