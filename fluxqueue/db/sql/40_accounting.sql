-- Accounting: one row for each run of an allocation, and one for each job that ended without a run. The
-- transition of the row writes it, in the transaction that ends the run, so no code path can forget
-- it. cpu is in millicores, so cpu_s is core-seconds: given time x cores.

-- Extended resources with a matching name count as GPUs. To change the pattern:
-- ALTER DATABASE <name> SET fluxqueue.gpu_resources = 'gpu|/mig-'
CREATE FUNCTION fluxqueue_is_gpu(resource text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT resource LIKE '%/%'
       AND resource ~ coalesce(nullif(current_setting('fluxqueue.gpu_resources', true), ''), 'gpu')
$$;

-- Whose runs are alike: those of one user, or of a namespace where admission named no user.
CREATE FUNCTION fluxjob_owner(job fluxjobs) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(nullif(job.user_name, ''), 'namespace ' || job.namespace)
$$;

CREATE FUNCTION fluxjobs_account() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    has_run boolean := OLD.state IN ('Allocated', 'Running');
    began_at timestamptz := OLD.allocated_at;
BEGIN
    IF fluxqueue_is_rebuilding() THEN
        -- A job that waits again has not run: its row was older than the cluster. An ended job
        -- comes with the record of its run, whatever its row said before.
        IF NEW.ended_at IS NULL THEN
            RETURN NULL;
        END IF;
        has_run := NEW.allocated_at IS NOT NULL;
        began_at := NEW.allocated_at;
    END IF;
    INSERT INTO accounting (uid, jobid, run, allocation_id, namespace, name, workload_kind,
                            user_name, queue, size, queued_at, allocated_at, started_at, ended_at,
                            nodes, slots, cpu_s, gpu_s, result, reason)
    SELECT NEW.uid, NEW.jobid, coalesce(last.run, 0) + 1, used.id, NEW.namespace,
           NEW.workload_name, NEW.workload_kind, NEW.user_name, NEW.queue, NEW.size,
           coalesce(last.ended_at, NEW.submitted_at),
           CASE WHEN has_run THEN began_at END,
           CASE WHEN has_run THEN coalesce(NEW.started_at, OLD.started_at) END,
           coalesce(NEW.ended_at, now()),
           coalesce(used.nodes, 0), coalesce(used.slots, 0),
           coalesce(used.cpu_s, 0), coalesce(used.gpu_s, 0),
           CASE WHEN NEW.ended_at IS NULL THEN 'Requeued' ELSE NEW.state END, NEW.reason
    FROM (SELECT 1) one
    LEFT JOIN LATERAL (
        SELECT a.run, a.ended_at FROM accounting a WHERE a.uid = NEW.uid
        ORDER BY a.run DESC LIMIT 1) last ON true
    LEFT JOIN LATERAL (
        SELECT a.id, count(DISTINCT s.node) AS nodes, count(s.number) AS slots,
               sum(s.seconds * s.cpu) AS cpu_s, sum(s.seconds * s.gpu) AS gpu_s
        FROM (SELECT id FROM allocations WHERE uid = NEW.uid ORDER BY id DESC LIMIT 1) a
        LEFT JOIN LATERAL (
            SELECT number, node,
                   past_s + extract(epoch FROM coalesce(returned_at, now()) - given_at) AS seconds,
                   coalesce((resources ->> 'cpu')::numeric, 0) / 1000 AS cpu,
                   (SELECT coalesce(sum(r.value::numeric), 0) FROM jsonb_each_text(resources) r
                    WHERE fluxqueue_is_gpu(r.key)) AS gpu
            FROM allocation_slots WHERE allocation_id = a.id) s ON true
        GROUP BY a.id) used ON has_run;
    IF has_run AND began_at IS NOT NULL THEN
        PERFORM fluxjob_learn(NEW, began_at);
    END IF;
    RETURN NULL;
END
$$;

-- Remembers how long a run held its slots, for predictions. A class of alike work keeps its last 8
-- runs, so a burst of one user does not displace what is known of others. No two transactions wait
-- for each other here: what another one deletes is left to it.
CREATE FUNCTION fluxjob_learn(job fluxjobs, began_at timestamptz) RETURNS void LANGUAGE sql AS $$
    INSERT INTO run_times (queue, owner, template, limit_s, seconds, result, ended_at)
    SELECT job.queue, fluxjob_owner(job), coalesce(job.observed ->> 'template', ''),
           CASE WHEN job.observed ? 'is_limited' THEN job.duration_s END,
           CASE WHEN job.observed ? 'is_sweep' THEN coalesce((
               SELECT avg(s.past_s + extract(epoch FROM
                                             coalesce(s.returned_at, now()) - s.given_at))
               FROM allocation_slots s WHERE s.allocation_id = (
                   SELECT a.id FROM allocations a WHERE a.uid = job.uid ORDER BY a.id DESC LIMIT 1)
           ), 0) ELSE extract(epoch FROM coalesce(job.ended_at, now()) - began_at) END,
           CASE WHEN job.ended_at IS NULL THEN 'Requeued' ELSE job.state END,
           coalesce(job.ended_at, now());
    DELETE FROM run_times WHERE id = ANY(ARRAY(
        SELECT id FROM run_times WHERE id = ANY(ARRAY(
            SELECT id FROM run_times r
            WHERE r.queue = job.queue AND r.owner = fluxjob_owner(job)
              AND r.template = coalesce(job.observed ->> 'template', '')
            ORDER BY id DESC OFFSET 8))
        FOR UPDATE SKIP LOCKED));
$$;

CREATE TRIGGER fluxjobs_account AFTER UPDATE OF state ON fluxjobs FOR EACH ROW
WHEN ((OLD.state IN ('Allocated', 'Running') AND NEW.state NOT IN ('Allocated', 'Running'))
      OR (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL))
EXECUTE FUNCTION fluxjobs_account();
