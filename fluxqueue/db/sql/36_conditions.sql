-- Conditions and times that many statements have. The server puts the text of most in place of their
-- calls, so the partial indexes of fluxjobs serve them.

-- Whether a FluxJob has not ended.
CREATE FUNCTION fluxjob_lives(state text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT state NOT IN ('Cancelled', 'Completed', 'Failed')
$$;

-- The word for the state that users read, as shown_state of fluxqueue/fluxjob/states.py has it.
CREATE FUNCTION fluxjob_shown_state(state text, wait_reason text, blocked_by text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN state = 'Pending' AND wait_reason = 'Provisioning' AND blocked_by IS NULL
                THEN wait_reason ELSE state END
$$;

-- Whether no controller has yet to compare the rows with the cluster. Pending effects wait for that.
CREATE FUNCTION fluxqueue_is_observed() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT NOT EXISTS (SELECT FROM leadership WHERE role = 'controller'
                       AND (expires_at <= now() OR timeline <> fluxqueue_timeline()))
$$;

-- Ranks running FluxJobs, those in their turn, those that wait for others or for a time, the rest.
-- The index of the displayed list has the same expression (ix_fluxjobs_turn).
CREATE FUNCTION fluxjob_rank(state text, blocked_by text) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN state IN ('Running', 'Allocated') THEN 0
                WHEN state IN ('Pending', 'Reserved') AND blocked_by IS NULL THEN 1
                WHEN state IN ('Pending', 'Reserved') THEN 2
                ELSE 3 END
$$;

-- The longest run that a queue accepts (seconds), NULL without a limit.
CREATE FUNCTION fluxqueue_most_s(spec jsonb) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN jsonb_typeof(spec #> '{limits,perJob,durationSeconds}') = 'number'
                THEN (spec #>> '{limits,perJob,durationSeconds}')::numeric::bigint END
$$;

-- Until when its queue accepted a running job (epoch seconds): its limit, at most that of the queue,
-- and its grace. One with independent slots has none, because they have ends of their own.
CREATE FUNCTION fluxjob_granted_until(job fluxjobs, run allocations, spec jsonb) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN NOT run.is_independent
                THEN run.starts_at + least(job.duration_s, fluxqueue_most_s(spec)) + job.grace_s END
$$;

-- Whether the pods of a job are independent, so that it starts with one and grows in its turn.
CREATE FUNCTION fluxjob_is_independent(job fluxjobs) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT job.observed ? 'is_sweep'
$$;

-- An allocation keeps that for as long as it lasts.
CREATE FUNCTION allocations_before_insert() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.is_independent := (SELECT fluxjob_is_independent(f) FROM fluxjobs f WHERE f.uid = NEW.uid);
    RETURN NEW;
END
$$;

CREATE TRIGGER allocations_before_insert BEFORE INSERT ON allocations
    FOR EACH ROW EXECUTE FUNCTION allocations_before_insert();

-- Whether the priority of a FluxJob counts: those that wait, and running sweeps that still grow.
CREATE FUNCTION fluxjob_has_turn(job fluxjobs) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT job.state IN ('Gathering', 'Pending', 'Reserved', 'Held', 'Unsatisfiable')
        OR (job.lacking > 0 AND fluxjob_is_independent(job))
$$;

-- When a FluxJob shows that it holds other slots. Most end soon after they return one.
CREATE FUNCTION fluxjob_resized_due_at(job fluxjobs) RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT coalesce(job.status_due_at,
                    fluxjob_status_due_at(now(), CASE WHEN fluxjob_is_independent(job) THEN 5 ELSE 1 END))
$$;

-- A document with a key, or without it where its value is NULL.
CREATE FUNCTION fluxqueue_with(document jsonb, key text, value jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN value IS NULL THEN document - key
                ELSE document || jsonb_build_object(key, value) END
$$;
