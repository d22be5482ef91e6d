-- Groups that are not complete. Such a group gathers instead of waiting in the queue, and joins the queue
-- when its last pod has come. The observation says how many pods are missing and why. A deadline says
-- when they are overdue. Only this step enters or leaves the state Gathering.
CREATE FUNCTION fluxjob_with_gathering(new_row fluxjobs, old_row fluxjobs) RETURNS fluxjobs
LANGUAGE plpgsql AS $$
DECLARE
    patience interval := make_interval(secs => coalesce((new_row.observed ->> 'gather_s')::integer, 0));
    former interval := make_interval(secs => coalesce((old_row.observed ->> 'gather_s')::integer, 0));
    its_reason text := coalesce(new_row.observed ->> 'gather_reason', '');
BEGIN
    IF new_row.observed ? 'missing' AND new_row.state IN ('Pending', 'Reserved', 'Unsatisfiable', 'Gathering') THEN
        IF new_row.gather_until IS NULL THEN
            new_row.gather_until := now() + patience;
        ELSIF patience <> former THEN
            -- Its PodGroup was seen after its first pod, or was changed.
            new_row.gather_until := new_row.gather_until + patience - former;
        END IF;
        new_row.state := 'Gathering';
        new_row.expected_start := NULL;
        new_row.reason := its_reason;
        IF new_row.gather_until <= now() THEN
            new_row.reason := its_reason || '; overdue: it has gathered for more than '
                || extract(epoch FROM patience)::integer || ' s';
        ELSIF new_row.reconcile_at IS NULL OR new_row.reconcile_at > new_row.gather_until THEN
            new_row.reconcile_at := new_row.gather_until;
        END IF;
    ELSE
        IF new_row.state = 'Gathering' THEN
            new_row.state := 'Pending';
            new_row.is_examined := false;
            new_row.reason := CASE WHEN new_row.blocked_by IS NULL THEN '' ELSE new_row.blocked_reason END;
        END IF;
        new_row.gather_until := NULL;
    END IF;
    RETURN new_row;
END
$$;
