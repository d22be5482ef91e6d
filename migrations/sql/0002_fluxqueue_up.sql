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
    begin_at TIMESTAMP WITH TIME ZONE,
    depends_on JSONB DEFAULT '[]'::jsonb NOT NULL,
    blocked_by TEXT,
    ignored JSONB DEFAULT '[]'::jsonb NOT NULL,
    wanted INTEGER DEFAULT '0' NOT NULL,
    lacking INTEGER DEFAULT '0' NOT NULL,
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

CREATE INDEX ix_fluxjobs_unexamined ON fluxjobs (jobid) WHERE NOT is_examined AND state IN ('Pending', 'Reserved');

CREATE INDEX ix_fluxjobs_waiting ON fluxjobs (queue, priority DESC, jobid) WHERE state IN ('Held', 'Pending', 'Reserved', 'Unsatisfiable');

COMMENT ON COLUMN fluxjobs.uid IS 'UID of the workload object';

COMMENT ON COLUMN fluxjobs.name IS 'name of the FluxJob object';

COMMENT ON COLUMN fluxjobs.flux_uid IS 'UID of the FluxJob object';

COMMENT ON COLUMN fluxjobs.flux_rv IS 'resourceVersion of the FluxJob after our last write';

COMMENT ON COLUMN fluxjobs.user_name IS 'who submitted it';

COMMENT ON COLUMN fluxjobs.set_queue IS 'where an operator moved it; wins over the author''s';

COMMENT ON COLUMN fluxjobs.set_priority IS 'given by an operator; wins over the author''s';

COMMENT ON COLUMN fluxjobs.held_by IS 'author, or the user who held it';

COMMENT ON COLUMN fluxjobs.begin_at IS 'not to start before';

COMMENT ON COLUMN fluxjobs.blocked_by IS 'why no cycle considers it yet; null: one does';

COMMENT ON COLUMN fluxjobs.lacking IS 'slots to be added';

CREATE TABLE allocations (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    uid TEXT NOT NULL,
    term BIGINT NOT NULL,
    starts_at BIGINT NOT NULL,
    until BIGINT,
    is_exclusive BOOLEAN DEFAULT false NOT NULL,
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

CREATE TABLE allocation_slots (
    allocation_id BIGINT NOT NULL,
    number INTEGER NOT NULL,
    node TEXT NOT NULL,
    resources JSONB NOT NULL,
    state TEXT DEFAULT 'free' NOT NULL,
    pod_uid TEXT,
    given_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    returned_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_allocation_slots PRIMARY KEY (allocation_id, number),
    CONSTRAINT ck_allocation_slots_state CHECK (state IN ('free', 'held', 'returned')),
    CONSTRAINT ck_allocation_slots_held CHECK ((state = 'held') = (pod_uid IS NOT NULL)),
    CONSTRAINT fk_allocation_slots_allocation_id_allocations FOREIGN KEY(allocation_id) REFERENCES allocations (id) ON DELETE CASCADE
);

CREATE INDEX ix_allocation_slots_node ON allocation_slots (node) WHERE state <> 'returned';

CREATE UNIQUE INDEX uq_allocation_slots_pod ON allocation_slots (pod_uid) WHERE pod_uid IS NOT NULL;

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
    CONSTRAINT pk_foreign_usage PRIMARY KEY (pod_uid)
);

CREATE INDEX ix_foreign_usage_node ON foreign_usage (node);

CREATE TABLE graph_changes (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    CONSTRAINT pk_graph_changes PRIMARY KEY (id),
    CONSTRAINT ck_graph_changes_kind CHECK (kind IN ('node', 'allocation'))
);

COMMENT ON COLUMN graph_changes.kind IS 'node: its name; allocation: its id';

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
        WHEN 'Allocated' THEN ARRAY['Running', 'Pending', 'Completed', 'Failed', 'Cancelled']
        WHEN 'Running' THEN ARRAY['Pending', 'Completed', 'Failed', 'Cancelled']
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
            jsonb_build_object('old', old_state, 'new', NEW.state, 'reason', NEW.reason));
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
-- Views for people in psql. `select * from queue` is the first thing to type.
CREATE VIEW queue AS
SELECT CASE WHEN state IN ('Pending', 'Reserved')
            THEN row_number() OVER (PARTITION BY state IN ('Pending', 'Reserved')
                                    ORDER BY priority DESC, jobid) END AS position,
       jobid, namespace, workload_name AS name, queue, state, size, priority,
       expected_start, date_trunc('second', now() - submitted_at) AS waiting, reason
FROM fluxjobs
WHERE state IN ('Pending', 'Reserved', 'Held', 'Unsatisfiable')
ORDER BY state NOT IN ('Pending', 'Reserved'), priority DESC, jobid;

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
