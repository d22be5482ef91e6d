-- Groups that are not complete: whatever puts one into the queue, it gathers instead, and joins the queue
-- when its last pod has come. The observation says how many pods are missing (and why that is so, in
-- words); a deadline says when they are overdue. Nobody but this trigger enters or leaves the state.
CREATE FUNCTION fluxjobs_gather() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.missing > 0 AND NEW.state IN ('Pending', 'Reserved', 'Unsatisfiable', 'Gathering') THEN
        IF TG_OP = 'INSERT' OR NEW.gather_until IS NULL THEN
            NEW.gather_until := now() + make_interval(secs => NEW.gather_s);
        ELSIF NEW.gather_s <> OLD.gather_s THEN
            -- Its PodGroup was seen after its first pod, or was changed.
            NEW.gather_until := NEW.gather_until + make_interval(secs => NEW.gather_s - OLD.gather_s);
        END IF;
        NEW.state := 'Gathering';
        NEW.expected_start := NULL;
        NEW.reason := NEW.gather_reason;
        IF NEW.gather_until <= now() THEN
            NEW.reason := NEW.gather_reason || '; overdue: it has gathered for more than '
                || NEW.gather_s || ' s';
        ELSIF NEW.settle_at IS NULL OR NEW.settle_at > NEW.gather_until THEN
            NEW.settle_at := NEW.gather_until;
        END IF;
    ELSE
        IF NEW.state = 'Gathering' THEN
            NEW.state := 'Pending';
            NEW.is_examined := false;
            NEW.reason := CASE WHEN NEW.blocked_by IS NULL THEN '' ELSE NEW.blocked_reason END;
        END IF;
        NEW.gather_until := NULL;
    END IF;
    RETURN NEW;
END
$$;

-- Named to come after fluxjobs_block, which gives what is blocked its reason, and before
-- fluxjobs_guard, which looks at the state; triggers run in that order.
CREATE TRIGGER fluxjobs_gather_new BEFORE INSERT ON fluxjobs FOR EACH ROW
    WHEN (NEW.missing > 0) EXECUTE FUNCTION fluxjobs_gather();

CREATE TRIGGER fluxjobs_gather BEFORE UPDATE ON fluxjobs FOR EACH ROW
    WHEN (NEW.missing > 0 OR NEW.state = 'Gathering' OR NEW.gather_until IS NOT NULL)
    EXECUTE FUNCTION fluxjobs_gather();
