-- Written by migrations/freeze.py; not to be edited.

CREATE TABLE fluxjobs (
    uid TEXT NOT NULL,
    jobid BIGINT GENERATED ALWAYS AS IDENTITY,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    workload_kind TEXT NOT NULL,
    workload_name TEXT NOT NULL,
    flux_uid TEXT,
    flux_rv TEXT,
    user_name TEXT DEFAULT '' NOT NULL,
    queue TEXT DEFAULT 'default' NOT NULL,
    set_queue TEXT,
    priority INTEGER DEFAULT '0' NOT NULL,
    asked_priority INTEGER DEFAULT '0' NOT NULL,
    set_priority INTEGER,
    priority_parts JSONB DEFAULT '{}'::jsonb NOT NULL,
    state TEXT DEFAULT 'Pending' NOT NULL,
    reason TEXT DEFAULT '' NOT NULL,
    held_by TEXT,
    request JSONB NOT NULL,
    size INTEGER NOT NULL,
    duration_s INTEGER,
    accepted_by TEXT,
    begin_at TIMESTAMP WITH TIME ZONE,
    depends_on JSONB DEFAULT '[]'::jsonb NOT NULL,
    blocked_by TEXT,
    blocked_reason TEXT DEFAULT '' NOT NULL,
    author_hold TEXT,
    vacate_by TEXT,
    cancel_by TEXT,
    requeues INTEGER DEFAULT '0' NOT NULL,
    let_go_at BIGINT,
    ignored JSONB DEFAULT '[]'::jsonb NOT NULL,
    wanted INTEGER DEFAULT '0' NOT NULL,
    lacking INTEGER DEFAULT '0' NOT NULL,
    ended_indexes INT4MULTIRANGE DEFAULT '{}'::int4multirange NOT NULL,
    result TEXT,
    is_deleting BOOLEAN DEFAULT false NOT NULL,
    is_gone BOOLEAN DEFAULT false NOT NULL,
    is_suspended BOOLEAN DEFAULT false NOT NULL,
    is_examined BOOLEAN DEFAULT false NOT NULL,
    submitted_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    allocated_at TIMESTAMP WITH TIME ZONE,
    started_at TIMESTAMP WITH TIME ZONE,
    ended_at TIMESTAMP WITH TIME ZONE,
    expected_start TIMESTAMP WITH TIME ZONE,
    version BIGINT DEFAULT '1' NOT NULL,
    CONSTRAINT pk_fluxjobs PRIMARY KEY (uid),
    CONSTRAINT ck_fluxjobs_state CHECK (state IN ('Allocated', 'Cancelled', 'Completed', 'Failed', 'Held', 'Pending', 'Reserved', 'Running', 'Unsatisfiable')),
    CONSTRAINT ck_fluxjobs_ended CHECK ((state IN ('Cancelled', 'Completed', 'Failed')) = (ended_at IS NOT NULL)),
    CONSTRAINT ck_fluxjobs_size CHECK (size >= 0),
    CONSTRAINT ck_fluxjobs_blocked_by CHECK (blocked_by IN ('dependency', 'begin-time')),
    CONSTRAINT ck_fluxjobs_lacking CHECK (lacking >= 0),
    CONSTRAINT ck_fluxjobs_duration CHECK (duration_s IS NULL OR duration_s > 0),
    CONSTRAINT uq_fluxjobs_jobid UNIQUE (jobid)
);

CREATE INDEX ix_fluxjobs_ended_at ON fluxjobs (ended_at) WHERE ended_at IS NOT NULL;

CREATE INDEX ix_fluxjobs_lacking ON fluxjobs (jobid) WHERE lacking > 0;

CREATE INDEX ix_fluxjobs_namespace_name ON fluxjobs (namespace, name);

CREATE INDEX ix_fluxjobs_namespace_workload_name ON fluxjobs (namespace, workload_name);

CREATE INDEX ix_fluxjobs_state ON fluxjobs (queue, state) WHERE state NOT IN ('Cancelled', 'Completed', 'Failed');

CREATE INDEX ix_fluxjobs_unexamined ON fluxjobs (jobid) WHERE NOT is_examined AND (state IN ('Pending', 'Reserved') OR held_by = 'queue');

CREATE INDEX ix_fluxjobs_waiting ON fluxjobs (queue, priority DESC, jobid) WHERE state IN ('Pending', 'Reserved') AND is_examined AND blocked_by IS NULL;

COMMENT ON COLUMN fluxjobs.uid IS 'UID of the workload object';

COMMENT ON COLUMN fluxjobs.name IS 'name of the FluxJob object';

COMMENT ON COLUMN fluxjobs.flux_uid IS 'UID of the FluxJob object';

COMMENT ON COLUMN fluxjobs.flux_rv IS 'resourceVersion of the FluxJob after our last write';

COMMENT ON COLUMN fluxjobs.user_name IS 'who submitted it';

COMMENT ON COLUMN fluxjobs.set_queue IS 'where an operator moved it; wins over the author''s';

COMMENT ON COLUMN fluxjobs.priority IS 'see queues.sql';

COMMENT ON COLUMN fluxjobs.set_priority IS 'given by an operator; wins over the author''s';

COMMENT ON COLUMN fluxjobs.held_by IS 'author, or the user who held it';

COMMENT ON COLUMN fluxjobs.accepted_by IS 'queue that took it in; asked again after a move';

COMMENT ON COLUMN fluxjobs.begin_at IS 'not to start before';

COMMENT ON COLUMN fluxjobs.blocked_by IS 'why no cycle considers it yet; null: one does';

COMMENT ON COLUMN fluxjobs.blocked_reason IS 'the same, at length';

COMMENT ON COLUMN fluxjobs.author_hold IS 'how its author holds it, whoever else does';

COMMENT ON COLUMN fluxjobs.vacate_by IS 'who wants its pods gone and it back in the queue';

COMMENT ON COLUMN fluxjobs.cancel_by IS 'who wants its workload deleted';

COMMENT ON COLUMN fluxjobs.let_go_at IS 'generation of the BatchJob that our release made';

COMMENT ON COLUMN fluxjobs.lacking IS 'slots to be added';

COMMENT ON COLUMN fluxjobs.ended_indexes IS 'completion indexes that get no pod any more';

CREATE TABLE allocations (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    uid TEXT NOT NULL,
    term BIGINT NOT NULL,
    starts_at BIGINT NOT NULL,
    until BIGINT,
    is_exclusive BOOLEAN DEFAULT false NOT NULL,
    held TEXT[] DEFAULT '{}' NOT NULL,
    is_live BOOLEAN DEFAULT true NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_allocations PRIMARY KEY (id),
    CONSTRAINT ck_allocations_ended CHECK (is_live = (ended_at IS NULL)),
    CONSTRAINT fk_allocations_uid_fluxjobs FOREIGN KEY(uid) REFERENCES fluxjobs (uid) ON DELETE CASCADE
);

CREATE INDEX ix_allocations_uid ON allocations (uid);

CREATE UNIQUE INDEX uq_allocations_live ON allocations (uid) WHERE is_live;

COMMENT ON COLUMN allocations.term IS 'leadership term that decided it';

COMMENT ON COLUMN allocations.starts_at IS 'epoch seconds';

COMMENT ON COLUMN allocations.until IS 'epoch seconds; null is unlimited';

COMMENT ON COLUMN allocations.held IS 'further nodes held whole, as of an exclusive rack';

CREATE TABLE allocation_slots (
    allocation_id BIGINT NOT NULL,
    number INTEGER NOT NULL,
    node TEXT NOT NULL,
    resources JSONB NOT NULL,
    state TEXT DEFAULT 'free' NOT NULL,
    pod_uid TEXT,
    given_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    returned_at TIMESTAMP WITH TIME ZONE,
    refused_at TIMESTAMP WITH TIME ZONE,
    completion_index INTEGER,
    CONSTRAINT pk_allocation_slots PRIMARY KEY (allocation_id, number),
    CONSTRAINT ck_allocation_slots_state CHECK (state IN ('free', 'held', 'returned')),
    CONSTRAINT ck_allocation_slots_held CHECK ((state = 'held') = (pod_uid IS NOT NULL)),
    CONSTRAINT fk_allocation_slots_allocation_id_allocations FOREIGN KEY(allocation_id) REFERENCES allocations (id) ON DELETE CASCADE
);

CREATE INDEX ix_allocation_slots_node ON allocation_slots (node) WHERE state <> 'returned';

CREATE INDEX ix_allocation_slots_returned_at ON allocation_slots (returned_at) WHERE returned_at IS NOT NULL;

CREATE UNIQUE INDEX uq_allocation_slots_pod ON allocation_slots (pod_uid) WHERE pod_uid IS NOT NULL;

COMMENT ON COLUMN allocation_slots.refused_at IS 'when its node refused a pod';

COMMENT ON COLUMN allocation_slots.completion_index IS 'whose slot it is, once a pod of it has held it';

CREATE TABLE reservations (
    uid TEXT NOT NULL,
    starts_at BIGINT NOT NULL,
    until BIGINT,
    nodes JSONB NOT NULL,
    CONSTRAINT pk_reservations PRIMARY KEY (uid),
    CONSTRAINT fk_reservations_uid_fluxjobs FOREIGN KEY(uid) REFERENCES fluxjobs (uid) ON DELETE CASCADE
);

COMMENT ON COLUMN reservations.starts_at IS 'epoch seconds';

COMMENT ON COLUMN reservations.until IS 'epoch seconds; null is unlimited';

CREATE TABLE pods (
    uid TEXT NOT NULL,
    workload_uid TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    phase TEXT NOT NULL,
    is_gated BOOLEAN NOT NULL,
    is_terminating BOOLEAN NOT NULL,
    node TEXT,
    completion_index INTEGER,
    CONSTRAINT pk_pods PRIMARY KEY (uid)
);

CREATE INDEX ix_pods_workload_uid ON pods (workload_uid);

CREATE TABLE nodes (
    name TEXT NOT NULL,
    fact JSONB NOT NULL,
    seen_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_nodes PRIMARY KEY (name)
);

CREATE TABLE foreign_usage (
    pod_uid TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    node TEXT NOT NULL,
    resources JSONB NOT NULL,
    is_permanent BOOLEAN DEFAULT false NOT NULL,
    CONSTRAINT pk_foreign_usage PRIMARY KEY (pod_uid)
);

CREATE INDEX ix_foreign_usage_node ON foreign_usage (node);

COMMENT ON COLUMN foreign_usage.is_permanent IS 'of a DaemonSet, or static';

CREATE TABLE graph_changes (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    CONSTRAINT pk_graph_changes PRIMARY KEY (id),
    CONSTRAINT ck_graph_changes_kind CHECK (kind IN ('node', 'allocation', 'queue'))
);

COMMENT ON COLUMN graph_changes.kind IS 'node, queue: its name; allocation: its id';

CREATE TABLE outbox (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    payload JSONB DEFAULT '{}'::jsonb NOT NULL,
    attempts INTEGER DEFAULT '0' NOT NULL,
    due_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    last_error TEXT,
    CONSTRAINT pk_outbox PRIMARY KEY (id)
);

CREATE INDEX ix_outbox_kind_due ON outbox (kind, due_at, id);

COMMENT ON COLUMN outbox.kind IS 'the task that drains it';

COMMENT ON COLUMN outbox.key IS 'UID of the workload or pod';

CREATE TABLE leadership (
    role TEXT NOT NULL,
    term BIGINT NOT NULL,
    holder TEXT NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_leadership PRIMARY KEY (role)
);

CREATE TABLE history (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    uid TEXT NOT NULL,
    jobid BIGINT NOT NULL,
    actor TEXT NOT NULL,
    event TEXT NOT NULL,
    detail JSONB DEFAULT '{}'::jsonb NOT NULL,
    CONSTRAINT pk_history PRIMARY KEY (id)
);

CREATE INDEX ix_history_uid ON history (uid, id);

CREATE TABLE fluxqueues (
    name TEXT NOT NULL,
    uid TEXT,
    generation BIGINT DEFAULT '0' NOT NULL,
    spec JSONB DEFAULT '{}'::jsonb NOT NULL,
    namespaces JSONB,
    queue_depth INTEGER,
    priority INTEGER DEFAULT '0' NOT NULL,
    min_priority INTEGER,
    max_priority INTEGER,
    newcomer_points INTEGER DEFAULT '0' NOT NULL,
    fault TEXT,
    CONSTRAINT pk_fluxqueues PRIMARY KEY (name),
    CONSTRAINT ck_fluxqueues_queue_depth CHECK (queue_depth > 0)
);

COMMENT ON COLUMN fluxqueues.uid IS 'UID of the FluxQueue object; null before it was seen';

COMMENT ON COLUMN fluxqueues.namespaces IS 'those allowed, selectors resolved; null: all';

COMMENT ON COLUMN fluxqueues.queue_depth IS 'null: as the settings say';

COMMENT ON COLUMN fluxqueues.newcomer_points IS 'fair share of users without a row; 0: fair share is off';

COMMENT ON COLUMN fluxqueues.fault IS 'why the last spec seen is not the one in force';

CREATE TABLE fair_shares (
    queue TEXT NOT NULL,
    user_name TEXT NOT NULL,
    used FLOAT NOT NULL,
    factor FLOAT NOT NULL,
    points INTEGER NOT NULL,
    computed_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_fair_shares PRIMARY KEY (queue, user_name)
);

COMMENT ON COLUMN fair_shares.used IS 'cpu-seconds, decayed to computed_at';

COMMENT ON COLUMN fair_shares.factor IS '1 is nothing used, 0.5 exactly one''s share';

CREATE TABLE dependencies (
    uid TEXT NOT NULL,
    number INTEGER NOT NULL,
    kind TEXT NOT NULL,
    namespace TEXT NOT NULL,
    job TEXT NOT NULL,
    target_uid TEXT,
    is_satisfied BOOLEAN DEFAULT false NOT NULL,
    CONSTRAINT pk_dependencies PRIMARY KEY (uid, number),
    CONSTRAINT ck_dependencies_kind CHECK (kind IN ('afterok', 'afternotok', 'afterany', 'after')),
    CONSTRAINT fk_dependencies_uid_fluxjobs FOREIGN KEY(uid) REFERENCES fluxjobs (uid) ON DELETE CASCADE
);

CREATE INDEX ix_dependencies_namespace_job ON dependencies (namespace, job);

CREATE INDEX ix_dependencies_target_uid ON dependencies (target_uid);

COMMENT ON COLUMN dependencies.job IS 'name or jobid, as its author wrote it';

COMMENT ON COLUMN dependencies.target_uid IS 'the workload that is meant; null: there is none yet';

CREATE TABLE accounting (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    uid TEXT NOT NULL,
    jobid BIGINT NOT NULL,
    run INTEGER NOT NULL,
    allocation_id BIGINT,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    workload_kind TEXT NOT NULL,
    user_name TEXT NOT NULL,
    queue TEXT NOT NULL,
    size INTEGER NOT NULL,
    queued_at TIMESTAMP WITH TIME ZONE NOT NULL,
    allocated_at TIMESTAMP WITH TIME ZONE,
    started_at TIMESTAMP WITH TIME ZONE,
    ended_at TIMESTAMP WITH TIME ZONE NOT NULL,
    nodes INTEGER NOT NULL,
    slots INTEGER NOT NULL,
    cpu_s DOUBLE PRECISION NOT NULL,
    gpu_s DOUBLE PRECISION NOT NULL,
    result TEXT NOT NULL,
    reason TEXT DEFAULT '' NOT NULL,
    CONSTRAINT pk_accounting PRIMARY KEY (id)
);

CREATE INDEX ix_accounting_ended_at ON accounting (ended_at);

CREATE INDEX ix_accounting_queue_user ON accounting (queue, user_name, ended_at);

CREATE UNIQUE INDEX uq_accounting_run ON accounting (uid, run);

COMMENT ON COLUMN accounting.run IS 'counts from 1; a requeue begins another';

COMMENT ON COLUMN accounting.allocation_id IS 'null: it never had one';

COMMENT ON COLUMN accounting.name IS 'name of the workload';

COMMENT ON COLUMN accounting.started_at IS 'when the first pod was seen running';

COMMENT ON COLUMN accounting.cpu_s IS 'core-seconds given';

COMMENT ON COLUMN accounting.gpu_s IS 'GPU-seconds given';

COMMENT ON COLUMN accounting.result IS 'the final state, or Requeued';

CREATE TABLE schema_floor (
    is_only BOOLEAN DEFAULT true NOT NULL,
    oldest_head TEXT NOT NULL,
    CONSTRAINT pk_schema_floor PRIMARY KEY (is_only),
    CONSTRAINT ck_schema_floor_one_row CHECK (is_only)
);

COMMENT ON COLUMN schema_floor.oldest_head IS 'newest revision that such code knows';

-- accounting.sql
-- Accounting: one row for each run of an allocation, and one for what ended without ever having
-- had one. Written by the row's own transition, in the transaction that ends the run, so no code
-- path can forget it. cpu is kept in millicores, so cpu_s is core-seconds: given time x cores.

-- What counts as a GPU: extended resources whose name matches this pattern. To change it:
-- ALTER DATABASE <name> SET fluxqueue.gpu_resources = 'gpu|/mig-'
CREATE FUNCTION fluxqueue_is_gpu(resource text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT resource LIKE '%/%'
       AND resource ~ coalesce(nullif(current_setting('fluxqueue.gpu_resources', true), ''), 'gpu')
$$;

CREATE FUNCTION fluxjobs_account() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    has_run boolean := OLD.state IN ('Allocated', 'Running');
BEGIN
    INSERT INTO accounting (uid, jobid, run, allocation_id, namespace, name, workload_kind,
                            user_name, queue, size, queued_at, allocated_at, started_at, ended_at,
                            nodes, slots, cpu_s, gpu_s, result, reason)
    SELECT NEW.uid, NEW.jobid, coalesce(last.run, 0) + 1, used.id, NEW.namespace,
           NEW.workload_name, NEW.workload_kind, NEW.user_name, NEW.queue, NEW.size,
           coalesce(last.ended_at, NEW.submitted_at),
           CASE WHEN has_run THEN OLD.allocated_at END,
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
                   extract(epoch FROM coalesce(returned_at, now()) - given_at) AS seconds,
                   coalesce((resources ->> 'cpu')::numeric, 0) / 1000 AS cpu,
                   (SELECT coalesce(sum(r.value::numeric), 0) FROM jsonb_each_text(resources) r
                    WHERE fluxqueue_is_gpu(r.key)) AS gpu
            FROM allocation_slots WHERE allocation_id = a.id) s ON true
        GROUP BY a.id) used ON has_run;
    RETURN NULL;
END
$$;

CREATE TRIGGER fluxjobs_account AFTER UPDATE OF state ON fluxjobs FOR EACH ROW
WHEN ((OLD.state IN ('Allocated', 'Running') AND NEW.state NOT IN ('Allocated', 'Running'))
      OR (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL))
EXECUTE FUNCTION fluxjobs_account();

-- dependencies.sql
-- Dependencies and begin times: what keeps a waiting FluxJob out of the cycles, kept by the rows.
-- The edges of a row and what their names stand for are written with the row; whoever changes what
-- an edge waits for leaves an outbox row for the dependent, in the same transaction. Settling then
-- looks at the dependent under its lock (fluxqueue/db/life/dependencies.py).

-- fluxqueue/fluxjob/dependency.py, repeated for the one decision that is made here; a test
-- compares the two.
CREATE FUNCTION fluxjob_dependency_outcome(
    kind text, state text, started_at timestamptz
) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN state IS NULL THEN 'unknown'
        WHEN kind = 'after' AND (state = 'Running' OR started_at IS NOT NULL) THEN 'satisfied'
        WHEN state NOT IN ('Completed', 'Failed', 'Cancelled') THEN 'waiting'
        WHEN kind = 'afterany' THEN 'satisfied'
        WHEN kind = 'afterok' AND state = 'Completed' THEN 'satisfied'
        WHEN kind = 'afternotok' AND state <> 'Completed' THEN 'satisfied'
        ELSE 'never' END
$$;

-- What a name in a dependency stands for: a number is a jobid, anything else the newest workload
-- of that name (or whose FluxJob has it) that exists.
CREATE FUNCTION fluxjob_dependency_target(in_namespace text, job text) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT uid FROM (
        SELECT uid, jobid FROM fluxjobs
        WHERE job ~ '^[0-9]{1,18}$' AND namespace = in_namespace
          AND jobid = CASE WHEN job ~ '^[0-9]{1,18}$' THEN job::bigint END
        UNION ALL
        SELECT uid, jobid FROM fluxjobs
        WHERE job !~ '^[0-9]+$' AND namespace = in_namespace AND workload_name = job AND NOT is_gone
        UNION ALL
        SELECT uid, jobid FROM fluxjobs
        WHERE job !~ '^[0-9]+$' AND namespace = in_namespace AND name = job AND NOT is_gone) found
    ORDER BY jobid DESC LIMIT 1
$$;

-- Before: the columns of the row itself. What is blocked says why, whoever writes its reason.
CREATE FUNCTION fluxjobs_block() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    old_edges jsonb := CASE WHEN TG_OP = 'UPDATE' THEN OLD.depends_on ELSE '[]' END;
BEGIN
    IF NEW.depends_on IS DISTINCT FROM old_edges THEN
        NEW.blocked_by := 'dependency';
        NEW.blocked_reason := 'its dependencies have yet to be looked at';
    ELSIF NEW.blocked_by IS DISTINCT FROM 'dependency' THEN
        IF NEW.begin_at > now() THEN
            NEW.blocked_by := 'begin-time';
            NEW.blocked_reason := 'is not to start before '
                || to_char(NEW.begin_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"');
        ELSIF NEW.blocked_by = 'begin-time' THEN
            NEW.blocked_by := NULL;
            NEW.is_examined := false;
            IF NEW.reason = NEW.blocked_reason THEN
                NEW.reason := '';
            END IF;
        END IF;
    END IF;
    IF NEW.blocked_by IS NOT NULL AND NEW.state IN ('Pending', 'Reserved') THEN
        NEW.state := 'Pending';
        NEW.expected_start := NULL;
        NEW.reason := NEW.blocked_reason;
    END IF;
    RETURN NEW;
END
$$;

-- Named to come before fluxjobs_guard, which looks at the state; triggers run in that order.
CREATE TRIGGER fluxjobs_block_new BEFORE INSERT ON fluxjobs FOR EACH ROW
    WHEN (NEW.depends_on <> '[]' OR NEW.begin_at IS NOT NULL)
    EXECUTE FUNCTION fluxjobs_block();

CREATE TRIGGER fluxjobs_block BEFORE UPDATE ON fluxjobs FOR EACH ROW
    WHEN (NEW.blocked_by IS NOT NULL OR NEW.depends_on IS DISTINCT FROM OLD.depends_on
          OR NEW.begin_at IS DISTINCT FROM OLD.begin_at)
    EXECUTE FUNCTION fluxjobs_block();

-- After: edges, the names they stand for, and whom to look at again.
CREATE FUNCTION fluxjobs_depend() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    is_new boolean := TG_OP = 'INSERT';
    old_edges jsonb := CASE WHEN TG_OP = 'UPDATE' THEN OLD.depends_on ELSE '[]' END;
    old_begin timestamptz := CASE WHEN TG_OP = 'UPDATE' THEN OLD.begin_at END;
BEGIN
    IF NEW.depends_on IS DISTINCT FROM old_edges THEN
        DELETE FROM dependencies WHERE uid = NEW.uid;
        INSERT INTO dependencies (uid, number, kind, namespace, job, target_uid)
        SELECT NEW.uid, edge.number, edge.value ->> 'type', NEW.namespace, edge.value ->> 'job',
               fluxjob_dependency_target(NEW.namespace, edge.value ->> 'job')
        FROM jsonb_array_elements(NEW.depends_on) WITH ORDINALITY AS edge (value, number);
        -- Those behind it may have waited in a circle that is open now.
        INSERT INTO outbox (kind, key)
        WITH RECURSIVE behind (uid) AS (
            SELECT NEW.uid
            UNION
            SELECT d.uid FROM behind b JOIN dependencies d ON d.target_uid = b.uid
            WHERE NOT d.is_satisfied)
        SELECT 'cleanup', uid FROM behind;
    END IF;
    -- Nobody is to be woken for what is over, or is to begin at another time.
    IF old_begin > now() AND (NEW.begin_at IS DISTINCT FROM old_begin OR NEW.ended_at IS NOT NULL)
    THEN
        DELETE FROM outbox WHERE kind = 'cleanup' AND due_at = old_begin AND key = NEW.uid;
    END IF;
    IF NEW.begin_at IS DISTINCT FROM old_begin AND NEW.begin_at > now() THEN
        INSERT INTO outbox (kind, key, due_at) VALUES ('cleanup', NEW.uid, NEW.begin_at);
    END IF;
    IF is_new THEN
        -- A name stands for the newest workload that has it, until the edge is satisfied.
        WITH renamed AS (
            UPDATE dependencies d SET target_uid = NEW.uid
            WHERE d.namespace = NEW.namespace AND NOT d.is_satisfied
              AND d.job IN (NEW.workload_name, NEW.name, NEW.jobid::text)
              AND (d.job !~ '^[0-9]+$' OR d.job = NEW.jobid::text)
              AND NOT EXISTS (
                SELECT FROM fluxjobs t WHERE t.uid = d.target_uid
                AND (fluxjob_dependency_outcome(d.kind, t.state, t.started_at) = 'satisfied'
                     OR (t.workload_kind <> NEW.workload_kind AND NOT t.is_gone)))
            RETURNING d.uid)
        INSERT INTO outbox (kind, key) SELECT DISTINCT 'cleanup', uid FROM renamed;
        RETURN NULL;
    END IF;
    IF NEW.state IS DISTINCT FROM OLD.state THEN
        IF NEW.state = 'Running' OR NEW.ended_at IS NOT NULL THEN
            -- Further on only through those that are held: they may have waited in a circle.
            INSERT INTO outbox (kind, key)
            WITH RECURSIVE behind (uid) AS (
                SELECT d.uid FROM dependencies d
                WHERE d.target_uid = NEW.uid AND NOT d.is_satisfied
                  AND (d.kind = 'after' OR NEW.ended_at IS NOT NULL)
                UNION
                SELECT d.uid FROM behind b
                JOIN fluxjobs f ON f.uid = b.uid AND f.held_by = 'dependency'
                JOIN dependencies d ON d.target_uid = b.uid AND NOT d.is_satisfied)
            SELECT 'cleanup', uid FROM behind;
        END IF;
        -- Whoever lets it go does not know what else is in its way.
        IF NEW.state = 'Pending' AND OLD.state = 'Held' AND NEW.blocked_by = 'dependency' THEN
            INSERT INTO outbox (kind, key) VALUES ('cleanup', NEW.uid);
        END IF;
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER fluxjobs_depend_new AFTER INSERT ON fluxjobs
    FOR EACH ROW EXECUTE FUNCTION fluxjobs_depend();

CREATE TRIGGER fluxjobs_depend AFTER UPDATE ON fluxjobs FOR EACH ROW
    WHEN (NEW.state IS DISTINCT FROM OLD.state OR NEW.depends_on IS DISTINCT FROM OLD.depends_on
          OR NEW.begin_at IS DISTINCT FROM OLD.begin_at)
    EXECUTE FUNCTION fluxjobs_depend();

-- floor.sql
-- Code whose newest revision is this one works on the schema, and so does all newer code. A revision
-- of kind "post" raises it in its own transaction (migrations/README.md).
INSERT INTO schema_floor (oldest_head) VALUES ('0002');

-- queues.sql
-- The effective priority, computed by the row itself, so no code path can forget a part of it:
-- what the author or an operator asked for, within the queue's bounds, plus the queue's own
-- priority, plus the points of fair share. docs/queues.md explains the parts to users.
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

-- transitions.sql
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

-- views.sql
-- Views for people in psql. `select * from queue` is the first thing to type. What waits for others or
-- for its time has no position: no cycle looks at it.
CREATE VIEW queue AS
SELECT CASE WHEN is_in_turn THEN row_number() OVER (PARTITION BY is_in_turn
                                                    ORDER BY priority DESC, jobid) END AS position,
       jobid, namespace, workload_name AS name, queue, state, size, priority,
       expected_start, date_trunc('second', now() - submitted_at) AS waiting, reason
FROM fluxjobs,
     LATERAL (SELECT state IN ('Pending', 'Reserved') AND blocked_by IS NULL AS is_in_turn) AS turn
WHERE state IN ('Pending', 'Reserved', 'Held', 'Unsatisfiable')
ORDER BY NOT is_in_turn, state NOT IN ('Pending', 'Reserved'), priority DESC, jobid;

CREATE VIEW pending_queue AS
SELECT * FROM queue WHERE state IN ('Pending', 'Reserved');

CREATE VIEW node_usage AS
WITH capacity AS (
    SELECT name AS node, key AS resource, value::numeric AS capacity
    FROM nodes, jsonb_each_text(fact -> 'capacity')
), allocated AS (
    SELECT s.node, r.key AS resource, sum(r.value::numeric) AS amount
    FROM allocation_slots s, jsonb_each_text(s.resources) r
    WHERE s.state <> 'returned' GROUP BY 1, 2
), others AS (
    SELECT f.node, r.key AS resource, sum(r.value::numeric) AS amount
    FROM foreign_usage f, jsonb_each_text(f.resources) r GROUP BY 1, 2
)
SELECT c.node, c.resource, c.capacity,
       coalesce(a.amount, 0) AS allocated, coalesce(o.amount, 0) AS foreign_used,
       c.capacity - coalesce(a.amount, 0) - coalesce(o.amount, 0) AS free
FROM capacity c
LEFT JOIN allocated a USING (node, resource)
LEFT JOIN others o USING (node, resource)
ORDER BY c.node, c.resource;

-- Must be empty: each row is a broken invariant (docs/architecture.md lists them).
CREATE VIEW drift AS
SELECT 'node over capacity' AS invariant, node AS subject,
       format('%s: allocated %s of %s', resource, allocated, capacity) AS detail
FROM node_usage WHERE allocated > capacity
UNION ALL
SELECT 'ended workload holds an allocation', f.namespace || '/' || f.workload_name,
       format('%s with live allocation %s', f.state, a.id)
FROM fluxjobs f JOIN allocations a USING (uid)
WHERE a.is_live AND f.state NOT IN ('Allocated', 'Running')
UNION ALL
SELECT 'running workload without an allocation', f.namespace || '/' || f.workload_name, f.state
FROM fluxjobs f
WHERE f.state IN ('Allocated', 'Running')
  AND NOT EXISTS (SELECT FROM allocations a WHERE a.uid = f.uid AND a.is_live)
UNION ALL
SELECT 'slot of an ended allocation not returned', s.node,
       format('allocation %s slot %s', s.allocation_id, s.number)
FROM allocation_slots s JOIN allocations a ON a.id = s.allocation_id
WHERE NOT a.is_live AND s.state <> 'returned'
UNION ALL
SELECT 'ungated pod without a slot', p.namespace || '/' || p.name, p.phase
FROM pods p
WHERE NOT p.is_gated AND p.phase NOT IN ('Succeeded', 'Failed') AND NOT p.is_terminating
  AND NOT EXISTS (SELECT FROM allocation_slots s WHERE s.pod_uid = p.uid);
