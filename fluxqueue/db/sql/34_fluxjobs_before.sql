-- The only BEFORE trigger of fluxjobs calls its steps in their required order. Most updates concern
-- none of the first three steps, so a step without work is not called.
CREATE FUNCTION fluxjobs_before_insert() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    nothing fluxjobs;
BEGIN
    NEW.place := coalesce(NEW.place, NEW.jobid);
    NEW := fluxjob_with_priority(NEW);
    IF NEW.observed ? 'depends_on' OR NEW.begin_at IS NOT NULL THEN
        NEW := fluxjob_with_block(NEW, nothing);
    END IF;
    -- After the block: a group that is complete takes the reason of what blocks it.
    IF NEW.observed ? 'missing' THEN
        NEW := fluxjob_with_gathering(NEW, nothing);
    END IF;
    -- Last: it reads the version and the state.
    RETURN fluxjob_with_status_due(NEW, nothing);
END
$$;

CREATE TRIGGER fluxjobs_before_insert BEFORE INSERT ON fluxjobs
    FOR EACH ROW EXECUTE FUNCTION fluxjobs_before_insert();

CREATE FUNCTION fluxjobs_before_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (NEW.queue, NEW.user_name, NEW.observed -> 'priority', NEW.observed -> 'is_priority_granted',
        NEW.overrides -> 'priority', NEW.priority, NEW.priority_parts)
       IS DISTINCT FROM
       (OLD.queue, OLD.user_name, OLD.observed -> 'priority', OLD.observed -> 'is_priority_granted',
        OLD.overrides -> 'priority', OLD.priority, OLD.priority_parts)
    THEN
        NEW := fluxjob_with_priority(NEW);
    END IF;
    IF NEW.blocked_by IS NOT NULL
       OR (NEW.observed -> 'depends_on') IS DISTINCT FROM (OLD.observed -> 'depends_on')
       OR NEW.begin_at IS DISTINCT FROM OLD.begin_at
       OR (NEW.start -> 'retry_at') IS DISTINCT FROM (OLD.start -> 'retry_at')
    THEN
        NEW := fluxjob_with_block(NEW, OLD);
    END IF;
    -- After the block: a group that is complete takes the reason of what blocks it.
    IF NEW.observed ? 'missing' OR NEW.state = 'Gathering' OR NEW.gather_until IS NOT NULL THEN
        NEW := fluxjob_with_gathering(NEW, OLD);
    END IF;
    -- After the steps that change the state.
    IF (OLD.blocked_by IS NOT NULL OR OLD.author_hold IS NOT NULL
        OR OLD.state IN ('Held', 'Gathering', 'Unsatisfiable'))
       AND NEW.ended_at IS NULL AND NOT fluxqueue_is_rebuilding()
    THEN
        NEW := fluxjob_with_place(NEW, OLD);
    END IF;
    -- After the steps that change state, reason, priority or place: each of these raises the version.
    NEW := fluxjob_with_version(NEW, OLD);
    -- Last: it reads the version.
    RETURN fluxjob_with_status_due(NEW, OLD);
END
$$;

CREATE TRIGGER fluxjobs_before_update BEFORE UPDATE ON fluxjobs
    FOR EACH ROW EXECUTE FUNCTION fluxjobs_before_update();
