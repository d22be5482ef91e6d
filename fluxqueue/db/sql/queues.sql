-- The effective priority, computed by the row itself, so no code path can forget a part of it:
-- what the author or an operator asked for, within the queue's bounds, plus the queue's own
-- priority, plus the points of fair share. docs/queues.md explains the parts to users.
CREATE FUNCTION fluxjob_priority_parts(
    in_queue text, of_user text, asked integer, given integer
) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object(
        'asked', coalesce(given, asked),
        'bounded', least(coalesce(q.max_priority, 2147483647),
                         greatest(coalesce(q.min_priority, -2147483647), coalesce(given, asked))),
        'queue', coalesce(q.priority, 0),
        'fairShare', CASE WHEN q.newcomer_points <> 0
                          THEN coalesce(s.points, q.newcomer_points) ELSE 0 END)
    FROM (SELECT 1) one
    LEFT JOIN fluxqueues q ON q.name = in_queue
    LEFT JOIN fair_shares s ON s.queue = in_queue AND s.user_name = of_user
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
