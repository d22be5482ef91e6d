-- The effective priority, computed by the row itself, so no code path can forget a part of it:
-- what the author or an operator asked for, within the queue's bounds, plus the queue's own
-- priority, plus the points of fair share. docs/admin/queues.md explains the parts to users.
CREATE FUNCTION fluxjob_priority_parts(
    in_queue text, of_user text, asked integer, given integer
) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
DECLARE
    rules record;
    wanted integer := coalesce(given, asked);
    share integer := 0;
BEGIN
    -- Two plain look-ups with kept plans: this runs with each insert.
    SELECT q.priority, q.min_priority, q.max_priority, q.newcomer_points INTO rules
    FROM fluxqueues q WHERE q.name = in_queue;
    IF rules.newcomer_points <> 0 THEN
        share := coalesce((SELECT s.points FROM fair_shares s
                           WHERE s.queue = in_queue AND s.user_name = of_user),
                          rules.newcomer_points);
    END IF;
    RETURN jsonb_build_object(
        'asked', wanted,
        'bounded', least(coalesce(rules.max_priority, 2147483647),
                         greatest(coalesce(rules.min_priority, -2147483647), wanted)),
        'queue', coalesce(rules.priority, 0),
        'fairShare', share);
END
$$;

CREATE FUNCTION fluxjobs_appraise() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.priority_parts := fluxjob_priority_parts(
        NEW.queue, NEW.user_name, NEW.asked_priority, NEW.set_priority);
    NEW.priority := greatest(-2147483647, least(2147483647,
        (NEW.priority_parts ->> 'bounded')::bigint + (NEW.priority_parts ->> 'queue')::bigint
        + (NEW.priority_parts ->> 'fairShare')::bigint));
    RETURN NEW;
END
$$;

-- Named to come before fluxjobs_guard, which looks at the priority; triggers run in that order.
CREATE TRIGGER fluxjobs_appraise_new BEFORE INSERT ON fluxjobs
    FOR EACH ROW EXECUTE FUNCTION fluxjobs_appraise();

CREATE TRIGGER fluxjobs_appraise BEFORE UPDATE ON fluxjobs FOR EACH ROW
    WHEN ((NEW.queue, NEW.user_name, NEW.asked_priority, NEW.set_priority,
           NEW.priority, NEW.priority_parts)
          IS DISTINCT FROM
          (OLD.queue, OLD.user_name, OLD.asked_priority, OLD.set_priority,
           OLD.priority, OLD.priority_parts))
    EXECUTE FUNCTION fluxjobs_appraise();

-- There is always a default queue: what names none goes there. What it leaves open is as the
-- settings of the workers say.
INSERT INTO fluxqueues (name) VALUES ('default');
