-- The effective priority. The row computes it itself, so no code path can forget a part. It is what
-- the author or an operator requested, within the bounds of the queue, plus the priority of the queue,
-- plus the points of fair share. Where the queue sets no maxPriority, users can only lower what they
-- write themselves. docs/admin/queues.md explains the parts to users.
CREATE FUNCTION fluxjob_priority_parts(
    in_queue text, of_user text, asked integer, given integer, is_granted boolean
) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
DECLARE
    rules record;
    wanted integer := coalesce(given, asked);
    most integer := CASE WHEN given IS NULL AND NOT is_granted THEN 0 ELSE 2147483647 END;
    share integer := 0;
BEGIN
    -- Two plain look-ups with kept plans: this runs at each insert.
    SELECT q.priority, q.min_priority, q.max_priority, q.newcomer_points INTO rules
    FROM fluxqueues q WHERE q.name = in_queue;
    IF rules.newcomer_points <> 0 THEN
        share := coalesce((SELECT s.points FROM fair_shares s
                           WHERE s.queue = in_queue AND s.user_name = of_user),
                          rules.newcomer_points);
    END IF;
    RETURN jsonb_build_object(
        'asked', wanted,
        'bounded', greatest(coalesce(rules.min_priority, -2147483647),
                            least(coalesce(rules.max_priority, most), wanted)),
        'queue', coalesce(rules.priority, 0),
        'fairShare', share);
END
$$;

-- The sum of three integers is a bigint, so it never reaches an end at which all are equal.
CREATE FUNCTION fluxjob_with_priority(new_row fluxjobs) RETURNS fluxjobs LANGUAGE plpgsql AS $$
BEGIN
    new_row.priority_parts := fluxjob_priority_parts(
        new_row.queue, new_row.user_name, coalesce((new_row.observed ->> 'priority')::integer, 0),
        (new_row.overrides ->> 'priority')::integer, new_row.observed ? 'is_priority_granted');
    new_row.priority := (new_row.priority_parts ->> 'bounded')::bigint
        + (new_row.priority_parts ->> 'queue')::bigint
        + (new_row.priority_parts ->> 'fairShare')::bigint;
    RETURN new_row;
END
$$;

-- Return the same parts of a stored row, which may be older than the rules of its queue.
CREATE FUNCTION fluxjob_priority_parts_of(old_row fluxjobs) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (fluxjob_with_priority(old_row)).priority_parts;
END
$$;

-- There is always a default queue, for jobs that name no queue. The settings of the workers fill in
-- what it leaves open.
INSERT INTO fluxqueues (name) VALUES ('default');
