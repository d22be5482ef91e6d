-- Written by migrations/freeze.py; not to be edited.

CREATE TABLE fluxjobs (
    uid TEXT NOT NULL,
    jobid BIGINT GENERATED ALWAYS AS IDENTITY,
    place BIGINT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    workload_kind TEXT NOT NULL,
    workload_name TEXT NOT NULL,
    flux_uid TEXT,
    published JSONB DEFAULT '{}'::jsonb NOT NULL,
    notices JSONB DEFAULT '[]'::jsonb NOT NULL,
    status_due_at TIMESTAMP WITH TIME ZONE,
    release_at TIMESTAMP WITH TIME ZONE,
    reconcile_at TIMESTAMP WITH TIME ZONE,
    troubles JSONB DEFAULT '{}'::jsonb NOT NULL,
    user_name TEXT DEFAULT '' NOT NULL,
    queue TEXT DEFAULT 'default' NOT NULL,
    priority BIGINT DEFAULT '0' NOT NULL,
    priority_parts JSONB DEFAULT '{}'::jsonb NOT NULL,
    state TEXT DEFAULT 'Pending' NOT NULL,
    reason TEXT DEFAULT '' NOT NULL,
    wait_reason TEXT,
    position INTEGER,
    held_by TEXT,
    quarantined_by TEXT,
    observed JSONB DEFAULT '{}'::jsonb NOT NULL,
    request JSONB NOT NULL,
    size INTEGER NOT NULL,
    duration_s INTEGER,
    grace_s INTEGER GENERATED ALWAYS AS (coalesce((observed ->> 'grace_s')::integer, 0)) STORED,
    accepted_by TEXT,
    begin_at TIMESTAMP WITH TIME ZONE,
    overrides JSONB DEFAULT '{}'::jsonb NOT NULL,
    blocked_by TEXT,
    blocked_reason TEXT DEFAULT '' NOT NULL,
    gather_until TIMESTAMP WITH TIME ZONE,
    author_hold TEXT,
    vacate_by TEXT,
    cancel_by TEXT,
    requeues INTEGER DEFAULT '0' NOT NULL,
    released_generation BIGINT,
    is_placed BOOLEAN DEFAULT false NOT NULL,
    pinned_to TEXT,
    is_started BOOLEAN DEFAULT false NOT NULL,
    start JSONB DEFAULT '{}'::jsonb NOT NULL,
    lacking INTEGER DEFAULT '0' NOT NULL,
    result TEXT,
    is_deleting BOOLEAN DEFAULT false NOT NULL,
    is_gone BOOLEAN DEFAULT false NOT NULL,
    is_examined BOOLEAN DEFAULT false NOT NULL,
    submitted_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    allocated_at TIMESTAMP WITH TIME ZONE,
    started_at TIMESTAMP WITH TIME ZONE,
    ended_at TIMESTAMP WITH TIME ZONE,
    expected_start TIMESTAMP WITH TIME ZONE,
    version BIGINT DEFAULT '1' NOT NULL,
    CONSTRAINT pk_fluxjobs PRIMARY KEY (uid),
    CONSTRAINT ck_fluxjobs_state CHECK (state IN ('Allocated', 'Cancelled', 'Completed', 'Failed', 'Gathering', 'Held', 'Pending', 'Reserved', 'Running', 'Unsatisfiable')),
    CONSTRAINT ck_fluxjobs_ended CHECK ((state IN ('Cancelled', 'Completed', 'Failed')) = (ended_at IS NOT NULL)),
    CONSTRAINT ck_fluxjobs_size CHECK (size >= 0),
    CONSTRAINT ck_fluxjobs_blocked_by CHECK (blocked_by IN ('dependency', 'begin-time', 'start-retry')),
    CONSTRAINT ck_fluxjobs_lacking CHECK (lacking >= 0),
    CONSTRAINT ck_fluxjobs_duration CHECK (duration_s IS NULL OR duration_s > 0),
    CONSTRAINT uq_fluxjobs_jobid UNIQUE (jobid)
);

CREATE INDEX ix_fluxjobs_gone ON fluxjobs (ended_at) WHERE is_gone;

CREATE INDEX ix_fluxjobs_lacking ON fluxjobs (jobid) WHERE lacking > 0;

CREATE INDEX ix_fluxjobs_namespace_name ON fluxjobs (namespace, name);

CREATE INDEX ix_fluxjobs_namespace_workload_name ON fluxjobs (namespace, workload_name);

CREATE INDEX ix_fluxjobs_pending_actions ON fluxjobs (uid) WHERE status_due_at IS NOT NULL OR release_at IS NOT NULL OR reconcile_at IS NOT NULL;

CREATE INDEX ix_fluxjobs_present ON fluxjobs (uid) WHERE NOT is_gone OR state NOT IN ('Cancelled', 'Completed', 'Failed');

CREATE INDEX ix_fluxjobs_starting ON fluxjobs (allocated_at) WHERE state IN ('Allocated', 'Running') AND NOT is_started;

CREATE INDEX ix_fluxjobs_state ON fluxjobs (queue, state) WHERE state NOT IN ('Cancelled', 'Completed', 'Failed');

CREATE INDEX ix_fluxjobs_turn ON fluxjobs ((
CASE
    WHEN state = ANY (ARRAY['Running'::text, 'Allocated'::text]) THEN 0
    WHEN (state = ANY (ARRAY['Pending'::text, 'Reserved'::text])) AND blocked_by IS NULL THEN 1
    WHEN state = ANY (ARRAY['Pending'::text, 'Reserved'::text]) THEN 2
    ELSE 3
END), (- priority::bigint), place) WHERE state NOT IN ('Cancelled', 'Completed', 'Failed');

CREATE INDEX ix_fluxjobs_unexamined ON fluxjobs (jobid) WHERE NOT is_examined AND (state IN ('Pending', 'Reserved') OR held_by = 'queue');

CREATE INDEX ix_fluxjobs_waiting ON fluxjobs (queue, priority DESC, place) WHERE state IN ('Pending', 'Reserved') AND is_examined AND blocked_by IS NULL;

CREATE TABLE allocations (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    uid TEXT NOT NULL,
    term BIGINT NOT NULL,
    starts_at BIGINT NOT NULL,
    until BIGINT,
    plan_s BIGINT,
    is_exclusive BOOLEAN DEFAULT false NOT NULL,
    held TEXT[] DEFAULT '{}' NOT NULL,
    is_independent BOOLEAN DEFAULT false NOT NULL,
    is_live BOOLEAN DEFAULT true NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_allocations PRIMARY KEY (id),
    CONSTRAINT ck_allocations_ended CHECK (is_live = (ended_at IS NULL)),
    CONSTRAINT fk_allocations_uid_fluxjobs FOREIGN KEY(uid) REFERENCES fluxjobs (uid) ON DELETE CASCADE
);

CREATE INDEX ix_allocations_uid ON allocations (uid);

CREATE UNIQUE INDEX uq_allocations_live ON allocations (uid) WHERE is_live;

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
    kind TEXT DEFAULT '' NOT NULL,
    granted JSONB,
    others TEXT[],
    past_s DOUBLE PRECISION DEFAULT '0' NOT NULL,
    CONSTRAINT pk_allocation_slots PRIMARY KEY (allocation_id, number),
    CONSTRAINT ck_allocation_slots_state CHECK (state IN ('free', 'held', 'returned')),
    CONSTRAINT ck_allocation_slots_held CHECK ((state = 'held') = (pod_uid IS NOT NULL)),
    CONSTRAINT fk_allocation_slots_allocation_id_allocations FOREIGN KEY(allocation_id) REFERENCES allocations (id) ON DELETE CASCADE
);

CREATE INDEX ix_allocation_slots_live ON allocation_slots (allocation_id, node) WHERE state <> 'returned';

CREATE INDEX ix_allocation_slots_others ON allocation_slots (allocation_id) WHERE others IS NOT NULL AND state <> 'returned';

CREATE INDEX ix_allocation_slots_returned_at ON allocation_slots (returned_at) WHERE returned_at IS NOT NULL;

CREATE UNIQUE INDEX uq_allocation_slots_pod ON allocation_slots (pod_uid) WHERE pod_uid IS NOT NULL;

CREATE TABLE reservations (
    uid TEXT NOT NULL,
    starts_at BIGINT NOT NULL,
    until BIGINT,
    kept_from BIGINT,
    nodes JSONB NOT NULL,
    CONSTRAINT pk_reservations PRIMARY KEY (uid),
    CONSTRAINT fk_reservations_uid_fluxjobs FOREIGN KEY(uid) REFERENCES fluxjobs (uid) ON DELETE CASCADE
);

CREATE TABLE expected_starts (
    uid TEXT NOT NULL,
    latest_start BIGINT NOT NULL,
    kept_from BIGINT,
    nodes JSONB NOT NULL,
    CONSTRAINT pk_expected_starts PRIMARY KEY (uid),
    CONSTRAINT fk_expected_starts_uid_fluxjobs FOREIGN KEY(uid) REFERENCES fluxjobs (uid) ON DELETE CASCADE
);

CREATE TABLE told_starts (
    uid TEXT NOT NULL,
    told_at BIGINT NOT NULL,
    planned BIGINT NOT NULL,
    expected BIGINT NOT NULL,
    expected_by BIGINT NOT NULL,
    shown_by BIGINT NOT NULL,
    started_at BIGINT,
    CONSTRAINT pk_told_starts PRIMARY KEY (uid),
    CONSTRAINT fk_told_starts_uid_fluxjobs FOREIGN KEY(uid) REFERENCES fluxjobs (uid) ON DELETE CASCADE
);

CREATE INDEX ix_told_starts_started_at ON told_starts (started_at);

CREATE TABLE preemptions (
    victim TEXT NOT NULL,
    allocation_id BIGINT NOT NULL,
    preemptor TEXT NOT NULL,
    jobid BIGINT NOT NULL,
    vacate_at BIGINT NOT NULL,
    decided_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    is_told BOOLEAN DEFAULT false NOT NULL,
    is_vacated BOOLEAN DEFAULT false NOT NULL,
    is_off BOOLEAN DEFAULT false NOT NULL,
    reason_before TEXT DEFAULT '' NOT NULL,
    CONSTRAINT pk_preemptions PRIMARY KEY (victim)
);

CREATE INDEX ix_preemptions_preemptor ON preemptions (preemptor);

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
    sent_at TIMESTAMP WITH TIME ZONE,
    slot_kind TEXT DEFAULT '' NOT NULL,
    uses JSONB,
    used_first JSONB,
    unmanaged JSONB,
    unschedulable TEXT,
    unschedulable_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_pods PRIMARY KEY (uid)
);

CREATE INDEX ix_pods_sent_at ON pods (sent_at) WHERE is_gated AND sent_at IS NOT NULL;

CREATE INDEX ix_pods_unmanaged ON pods (node) WHERE unmanaged IS NOT NULL;

CREATE INDEX ix_pods_workload_uid ON pods (workload_uid);

CREATE TABLE nodes (
    name TEXT NOT NULL,
    fact JSONB NOT NULL,
    seen_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    hostname TEXT GENERATED ALWAYS AS (fact -> 'labels' ->> 'kubernetes.io/hostname') STORED,
    CONSTRAINT pk_nodes PRIMARY KEY (name)
);

CREATE INDEX ix_nodes_hostname ON nodes (hostname);

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

CREATE TABLE graph_changes (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    CONSTRAINT pk_graph_changes PRIMARY KEY (id),
    CONSTRAINT ck_graph_changes_kind CHECK (kind IN ('node', 'foreign', 'allocation', 'queue', 'fluxjob', 'sharing', 'pool', 'reservation', 'cluster'))
);

CREATE TABLE leadership (
    role TEXT NOT NULL,
    term BIGINT NOT NULL,
    holder TEXT NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
    commits BIGINT DEFAULT 0 NOT NULL,
    timeline TEXT,
    since TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
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

CREATE TABLE rules (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    uid TEXT NOT NULL,
    generation BIGINT DEFAULT '0' NOT NULL,
    spec JSONB,
    fault TEXT,
    record JSONB DEFAULT '{}'::jsonb NOT NULL,
    CONSTRAINT pk_rules PRIMARY KEY (kind, name),
    CONSTRAINT ck_rules_kind CHECK (kind IN ('sharing', 'pool', 'reservation'))
);

CREATE TABLE node_requests (
    number BIGINT GENERATED ALWAYS AS IDENTITY,
    pool TEXT NOT NULL,
    uid TEXT NOT NULL,
    queue TEXT NOT NULL,
    count INTEGER NOT NULL,
    price NUMERIC DEFAULT '0' NOT NULL,
    asked_at BIGINT NOT NULL,
    ready_at BIGINT NOT NULL,
    kept JSONB DEFAULT '[]'::jsonb NOT NULL,
    refused TEXT,
    pool_spec JSONB DEFAULT '{}'::jsonb NOT NULL,
    ended TEXT,
    reason TEXT DEFAULT '' NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    is_settled BOOLEAN DEFAULT false NOT NULL,
    CONSTRAINT pk_node_requests PRIMARY KEY (number),
    CONSTRAINT ck_node_requests_count CHECK (count > 0),
    CONSTRAINT ck_node_requests_ended CHECK (ended IN ('used', 'failed', 'withdrawn'))
);

CREATE INDEX ix_node_requests_open ON node_requests (number) WHERE ended IS NULL OR NOT is_settled;

CREATE INDEX ix_node_requests_uid ON node_requests (uid);

CREATE TABLE pool_nodes (
    node TEXT NOT NULL,
    pool TEXT NOT NULL,
    request BIGINT,
    returned_at BIGINT,
    seen_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_pool_nodes PRIMARY KEY (node)
);

CREATE INDEX ix_pool_nodes_request ON pool_nodes (request);

CREATE TABLE fair_shares (
    queue TEXT NOT NULL,
    user_name TEXT NOT NULL,
    used FLOAT NOT NULL,
    factor FLOAT NOT NULL,
    points INTEGER NOT NULL,
    computed_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_fair_shares PRIMARY KEY (queue, user_name)
);

CREATE TABLE dependencies (
    uid TEXT NOT NULL,
    number INTEGER NOT NULL,
    kind TEXT NOT NULL,
    namespace TEXT NOT NULL,
    job TEXT NOT NULL,
    target_uid TEXT,
    is_satisfied BOOLEAN DEFAULT false NOT NULL,
    CONSTRAINT pk_dependencies PRIMARY KEY (uid, number),
    CONSTRAINT ck_dependencies_kind CHECK (kind IN ('after', 'afterany', 'afternotok', 'afterok', 'singleton')),
    CONSTRAINT fk_dependencies_uid_fluxjobs FOREIGN KEY(uid) REFERENCES fluxjobs (uid) ON DELETE CASCADE
);

CREATE INDEX ix_dependencies_namespace_job ON dependencies (namespace, job);

CREATE INDEX ix_dependencies_target_uid ON dependencies (target_uid);

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

CREATE INDEX ix_accounting_jobid ON accounting (jobid);

CREATE INDEX ix_accounting_namespace_name ON accounting (namespace, name);

CREATE INDEX ix_accounting_queue_user ON accounting (queue, user_name, ended_at);

CREATE UNIQUE INDEX uq_accounting_run ON accounting (uid, run);

CREATE TABLE run_times (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    queue TEXT NOT NULL,
    owner TEXT NOT NULL,
    template TEXT NOT NULL,
    limit_s BIGINT,
    seconds DOUBLE PRECISION NOT NULL,
    result TEXT NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_run_times PRIMARY KEY (id)
);

CREATE INDEX ix_run_times_class ON run_times (queue, owner, template, id);

CREATE INDEX ix_run_times_ended_at ON run_times (ended_at);

CREATE TABLE quarantined_objects (
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    namespace TEXT DEFAULT '' NOT NULL,
    name TEXT DEFAULT '' NOT NULL,
    reason TEXT NOT NULL,
    since TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_quarantined_objects PRIMARY KEY (kind, key)
);

CREATE TABLE learned_sizes (
    namespace TEXT NOT NULL,
    template TEXT NOT NULL,
    extra JSONB NOT NULL,
    learned_at TEXT NOT NULL,
    written_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_learned_sizes PRIMARY KEY (namespace, template)
);

CREATE TABLE loops (
    loop TEXT NOT NULL,
    holder TEXT NOT NULL,
    began_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    written_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    succeeded_at TIMESTAMP WITH TIME ZONE,
    failed_at TIMESTAMP WITH TIME ZONE,
    error TEXT,
    patience_s INTEGER NOT NULL,
    CONSTRAINT pk_loops PRIMARY KEY (loop)
);

CREATE TABLE schema_floor (
    is_only BOOLEAN DEFAULT true NOT NULL,
    oldest_head TEXT NOT NULL,
    digest TEXT,
    CONSTRAINT pk_schema_floor PRIMARY KEY (is_only),
    CONSTRAINT ck_schema_floor_one_row CHECK (is_only)
);

CREATE TABLE cluster (
    is_only BOOLEAN DEFAULT true NOT NULL,
    uid TEXT NOT NULL,
    server TEXT NOT NULL,
    bound_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    autoscaler TEXT DEFAULT '' NOT NULL,
    CONSTRAINT pk_cluster PRIMARY KEY (is_only),
    CONSTRAINT ck_cluster_one_row CHECK (is_only)
);

-- 05_comments.sql
-- What `\d+ TABLE` shows in psql: what a row is, and what each column holds. Readers of the database
-- see these sentences (docs/admin/psql.md). A test finds the table or column that lacks one.

COMMENT ON TABLE fluxjobs IS
    'One row per workload: what it asks for, its state, the workload as last seen';
COMMENT ON COLUMN fluxjobs.uid IS 'UID of the workload object';
COMMENT ON COLUMN fluxjobs.jobid IS 'number in the order of submission; what users see';
COMMENT ON COLUMN fluxjobs.place IS 'order in one priority, see 32_place.sql';
COMMENT ON COLUMN fluxjobs.namespace IS 'namespace of the workload';
COMMENT ON COLUMN fluxjobs.name IS 'name of the FluxJob object';
COMMENT ON COLUMN fluxjobs.workload_kind IS 'Job, Pod, PodGroup, or what makes pods: JobSet, ...';
COMMENT ON COLUMN fluxjobs.workload_name IS 'name of the workload';
COMMENT ON COLUMN fluxjobs.flux_uid IS 'UID of the FluxJob object';
COMMENT ON COLUMN fluxjobs.published IS
    'what the FluxJob object shows: version, written_at (or put off), the generation of its spec '
    'that was applied last, flux_version (resourceVersion of our last write), told (reason of the last '
    'Event) and told_version (version of the row at that time)';
COMMENT ON COLUMN fluxjobs.notices IS 'further Events to emit with the next status update';
COMMENT ON COLUMN fluxjobs.status_due_at IS 'pending action: write its status, from then on';
COMMENT ON COLUMN fluxjobs.release_at IS
    'pending action: change its workload object to what the row says, from then on';
COMMENT ON COLUMN fluxjobs.reconcile_at IS
    'pending action: reconcile its pods, slots and begin time, from then on';
COMMENT ON COLUMN fluxjobs.troubles IS
    'stalled (why each pending action is refused, by task), since (when its present faults or '
    'refusals began) and last_error (why a pending action failed last)';
COMMENT ON COLUMN fluxjobs.user_name IS 'user that submitted it';
COMMENT ON COLUMN fluxjobs.queue IS 'queue it is in';
COMMENT ON COLUMN fluxjobs.priority IS 'see 30_priority.sql';
COMMENT ON COLUMN fluxjobs.priority_parts IS 'parts of the priority';
COMMENT ON COLUMN fluxjobs.state IS 'its state (docs/developer/state-machine.md)';
COMMENT ON COLUMN fluxjobs.reason IS 'why it is in this state, as a sentence';
COMMENT ON COLUMN fluxjobs.wait_reason IS
    'kind of reason why it waits; null: it waits for capacity';
COMMENT ON COLUMN fluxjobs.position IS
    'estimated position in its queue, as far as the plan reaches';
COMMENT ON COLUMN fluxjobs.held_by IS 'author, or the user that held it';
COMMENT ON COLUMN fluxjobs.quarantined_by IS 'version of the software that could not decide it';
COMMENT ON COLUMN fluxjobs.observed IS
    'facts of its workload as last seen, without those that have their default';
COMMENT ON COLUMN fluxjobs.request IS 'the jobspec';
COMMENT ON COLUMN fluxjobs.size IS 'pods that run at once, all or none';
COMMENT ON COLUMN fluxjobs.duration_s IS 'the longest it runs, in seconds; null: without limit';
COMMENT ON COLUMN fluxjobs.grace_s IS 'how long its pods may take to end, in seconds';
COMMENT ON COLUMN fluxjobs.accepted_by IS 'queue that accepted it; checked again after a move';
COMMENT ON COLUMN fluxjobs.begin_at IS 'earliest start';
COMMENT ON COLUMN fluxjobs.overrides IS
    'queue, priority and begin_at that an operator set instead of the author, and spec, the changes '
    'by users that were applied last';
COMMENT ON COLUMN fluxjobs.blocked_by IS 'why cycles do not consider it yet; null: they do';
COMMENT ON COLUMN fluxjobs.blocked_reason IS 'the same as a sentence';
COMMENT ON COLUMN fluxjobs.gather_until IS 'when they are overdue';
COMMENT ON COLUMN fluxjobs.author_hold IS 'how its author holds it, beside other holds';
COMMENT ON COLUMN fluxjobs.vacate_by IS
    'what ends its pods and returns it to the queue: a user, author, a preemptor or a fault';
COMMENT ON COLUMN fluxjobs.cancel_by IS 'user that cancelled it';
COMMENT ON COLUMN fluxjobs.requeues IS 'how often it went back to the queue';
COMMENT ON COLUMN fluxjobs.released_generation IS
    'generation of the BatchJob that our release made';
COMMENT ON COLUMN fluxjobs.is_placed IS
    'its pod template names the node of each index since its release';
COMMENT ON COLUMN fluxjobs.pinned_to IS 'node that its pod template names since its release';
COMMENT ON COLUMN fluxjobs.is_started IS 'all of its pods have run since its nodes were allocated';
COMMENT ON COLUMN fluxjobs.start IS
    'trouble (what keeps its pods from running), error (why its last start failed), tries (starts '
    'that failed since it last started) and retry_at (earliest time of the next try)';
COMMENT ON COLUMN fluxjobs.lacking IS 'number of slots that the matcher must add';
COMMENT ON COLUMN fluxjobs.result IS 'how its workload ended; null: not yet';
COMMENT ON COLUMN fluxjobs.is_deleting IS 'its workload is being deleted';
COMMENT ON COLUMN fluxjobs.is_gone IS 'its workload no longer exists';
COMMENT ON COLUMN fluxjobs.is_examined IS 'a cycle has checked whether it can ever fit';
COMMENT ON COLUMN fluxjobs.submitted_at IS 'when it was first seen';
COMMENT ON COLUMN fluxjobs.allocated_at IS 'when its nodes were allocated';
COMMENT ON COLUMN fluxjobs.started_at IS 'when its first pod was seen running';
COMMENT ON COLUMN fluxjobs.ended_at IS 'when it had ended and returned all its slots';
COMMENT ON COLUMN fluxjobs.expected_start IS 'expected start, if known';
COMMENT ON COLUMN fluxjobs.version IS 'rises with each change that its status shows';

COMMENT ON TABLE allocations IS
    'One live row per workload that holds resources, and those of before';
COMMENT ON COLUMN allocations.id IS 'number of the allocation';
COMMENT ON COLUMN allocations.uid IS 'its workload: fluxjobs.uid';
COMMENT ON COLUMN allocations.term IS 'leadership term that decided it';
COMMENT ON COLUMN allocations.starts_at IS 'epoch seconds';
COMMENT ON COLUMN allocations.until IS 'epoch seconds; null is unlimited';
COMMENT ON COLUMN allocations.plan_s IS 'how long it is planned to run by ended runs; null: as declared';
COMMENT ON COLUMN allocations.is_exclusive IS 'its nodes are held whole';
COMMENT ON COLUMN allocations.held IS
    'further nodes held whole, such as those of an exclusive rack';
COMMENT ON COLUMN allocations.is_independent IS
    'its slots come and go one by one, each with an end of its own: a sweep';
COMMENT ON COLUMN allocations.is_live IS 'it has not ended';
COMMENT ON COLUMN allocations.ended_at IS 'when it ended';

COMMENT ON TABLE allocation_slots IS
    'One row per slot of an allocation: its node, resources and pod';
COMMENT ON COLUMN allocation_slots.allocation_id IS 'its allocation: allocations.id';
COMMENT ON COLUMN allocation_slots.number IS 'counts from 0 within the allocation';
COMMENT ON COLUMN allocation_slots.node IS 'name of the node';
COMMENT ON COLUMN allocation_slots.resources IS 'amounts in base units: millicores, bytes, pieces';
COMMENT ON COLUMN allocation_slots.state IS
    'free (no pod holds it), held, or returned to the cluster';
COMMENT ON COLUMN allocation_slots.pod_uid IS 'UID of the pod that holds it';
COMMENT ON COLUMN allocation_slots.given_at IS 'when it was given to the workload';
COMMENT ON COLUMN allocation_slots.returned_at IS 'when it went back to the cluster';
COMMENT ON COLUMN allocation_slots.refused_at IS 'when its node refused a pod';
COMMENT ON COLUMN allocation_slots.completion_index IS
    'completion index that owns the slot, once a pod of it has held it';
COMMENT ON COLUMN allocation_slots.kind IS 'label in the request';
COMMENT ON COLUMN allocation_slots.granted IS 'what it was before its pod was resized in place';
COMMENT ON COLUMN allocation_slots.others IS 'further nodes that its pod may be bound to';
COMMENT ON COLUMN allocation_slots.past_s IS
    'seconds for which a sweep had it before it was given again';

COMMENT ON TABLE reservations IS 'Planned starts of the last cycle: promises';
COMMENT ON COLUMN reservations.uid IS 'its workload: fluxjobs.uid';
COMMENT ON COLUMN reservations.starts_at IS 'epoch seconds';
COMMENT ON COLUMN reservations.until IS 'epoch seconds; null is unlimited';
COMMENT ON COLUMN reservations.kept_from IS 'from when its nodes are kept free by plan, if that is before its start';
COMMENT ON COLUMN reservations.nodes IS 'the slots that are planned';

COMMENT ON TABLE expected_starts IS
    'Latest starts of blocked jobs that wait for jobs without a limit';
COMMENT ON COLUMN expected_starts.uid IS 'its workload: fluxjobs.uid';
COMMENT ON COLUMN expected_starts.latest_start IS 'epoch seconds; by plan only';
COMMENT ON COLUMN expected_starts.kept_from IS 'its planned start, after plans that were wrong have used up its slack';
COMMENT ON COLUMN expected_starts.nodes IS 'the slots that are kept from then on';

COMMENT ON TABLE told_starts IS 'What jobs were shown of their starts, and whether it was true';
COMMENT ON COLUMN told_starts.uid IS 'its workload: fluxjobs.uid';
COMMENT ON COLUMN told_starts.told_at IS 'when it was first shown (epoch seconds, as all here)';
COMMENT ON COLUMN told_starts.planned IS 'the start by plan then';
COMMENT ON COLUMN told_starts.expected IS 'the expected start then: half start by it';
COMMENT ON COLUMN told_starts.expected_by IS 'nine of ten start by it, as of then';
COMMENT ON COLUMN told_starts.shown_by IS 'the same, as shown now';
COMMENT ON COLUMN told_starts.started_at IS 'when it started; null: it waits';

COMMENT ON TABLE preemptions IS 'Victims and their preemptors, until the preemptor has started';
COMMENT ON COLUMN preemptions.victim IS 'UID of who makes way';
COMMENT ON COLUMN preemptions.allocation_id IS 'what it is to give back';
COMMENT ON COLUMN preemptions.preemptor IS 'UID of whom it is preempted for';
COMMENT ON COLUMN preemptions.jobid IS 'of the preemptor';
COMMENT ON COLUMN preemptions.vacate_at IS 'epoch seconds: not to leave before';
COMMENT ON COLUMN preemptions.decided_at IS 'when a cycle wanted it';
COMMENT ON COLUMN preemptions.is_told IS 'both sides have been told';
COMMENT ON COLUMN preemptions.is_vacated IS 'it has been asked to leave';
COMMENT ON COLUMN preemptions.is_off IS
    'over: the preemptor has started, or does not want it any more';
COMMENT ON COLUMN preemptions.reason_before IS 'what the victim said before it was told';

COMMENT ON TABLE pods IS 'Pods of our workloads that have not ended, as last seen';
COMMENT ON COLUMN pods.uid IS 'UID of the pod';
COMMENT ON COLUMN pods.workload_uid IS 'its workload: fluxjobs.uid';
COMMENT ON COLUMN pods.namespace IS 'namespace of the pod';
COMMENT ON COLUMN pods.name IS 'name of the pod';
COMMENT ON COLUMN pods.phase IS 'its phase in Kubernetes';
COMMENT ON COLUMN pods.is_gated IS 'it has the scheduling gate fluxqueue';
COMMENT ON COLUMN pods.is_terminating IS 'it is being deleted';
COMMENT ON COLUMN pods.node IS 'the node that it is bound to';
COMMENT ON COLUMN pods.completion_index IS 'its completion index, if its Job is Indexed';
COMMENT ON COLUMN pods.sent_at IS 'when a worker last began to ungate it';
COMMENT ON COLUMN pods.slot_kind IS 'kind of slot that it needs';
COMMENT ON COLUMN pods.uses IS 'its own resource requests';
COMMENT ON COLUMN pods.used_first IS 'its resource requests when it was first seen';
COMMENT ON COLUMN pods.unmanaged IS 'resources of a bound pod beyond its slot';
COMMENT ON COLUMN pods.unschedulable IS
    'why kube-scheduler cannot bind it, in its own words, or what scheduler is missing';
COMMENT ON COLUMN pods.unschedulable_at IS 'since when';

COMMENT ON TABLE nodes IS 'Nodes as last seen';
COMMENT ON COLUMN nodes.name IS 'name of the node';
COMMENT ON COLUMN nodes.fact IS
    'capacity (base units), labels, taints, whether it is up and schedulable';
COMMENT ON COLUMN nodes.seen_at IS 'when that was written';
COMMENT ON COLUMN nodes.hostname IS
    'value of kubernetes.io/hostname, which may differ from the name';

COMMENT ON TABLE foreign_usage IS 'Unmanaged pods that are bound to a node';
COMMENT ON COLUMN foreign_usage.pod_uid IS 'UID of the pod';
COMMENT ON COLUMN foreign_usage.namespace IS 'namespace of the pod';
COMMENT ON COLUMN foreign_usage.name IS 'name of the pod';
COMMENT ON COLUMN foreign_usage.node IS 'name of its node';
COMMENT ON COLUMN foreign_usage.resources IS 'amounts in base units: millicores, bytes, pieces';
COMMENT ON COLUMN foreign_usage.is_permanent IS 'it belongs to a DaemonSet, or is a static pod';

COMMENT ON TABLE graph_changes IS 'Changes that no cycle has read yet';
COMMENT ON COLUMN graph_changes.id IS 'in the order of writing';
COMMENT ON COLUMN graph_changes.kind IS
    'node, queue, sharing, pool: name; foreign: its node''s; allocation: its id; fluxjob: uid';
COMMENT ON COLUMN graph_changes.key IS 'the object that changed';

COMMENT ON TABLE leadership IS 'The processes that may match and observe, each with its term';
COMMENT ON COLUMN leadership.role IS 'matcher or controller';
COMMENT ON COLUMN leadership.term IS 'rises with each holder; an older one commits nothing';
COMMENT ON COLUMN leadership.holder IS 'name of the process';
COMMENT ON COLUMN leadership.expires_at IS 'until when, unless it is renewed';
COMMENT ON COLUMN leadership.commits IS
    'transactions that decided, of all terms; never falls in one database';
COMMENT ON COLUMN leadership.timeline IS
    'timeline of Postgres that the term began on; null: not known';
COMMENT ON COLUMN leadership.since IS
    'of the controller: since when rows are compared without a gap';

COMMENT ON TABLE history IS 'Changes of FluxJobs: who, what and when';
COMMENT ON COLUMN history.id IS 'in the order of writing';
COMMENT ON COLUMN history.at IS 'when';
COMMENT ON COLUMN history.uid IS 'the workload: fluxjobs.uid';
COMMENT ON COLUMN history.jobid IS 'its number';
COMMENT ON COLUMN history.actor IS 'a user, or a part of fluxqueue';
COMMENT ON COLUMN history.event IS 'the new state, or a command';
COMMENT ON COLUMN history.detail IS 'the former state, the reason, and further facts';

COMMENT ON TABLE fluxqueues IS 'One row per named queue';
COMMENT ON COLUMN fluxqueues.name IS 'name of the FluxQueue';
COMMENT ON COLUMN fluxqueues.uid IS 'UID of the FluxQueue object; null before it was seen';
COMMENT ON COLUMN fluxqueues.generation IS 'generation of the spec in force';
COMMENT ON COLUMN fluxqueues.spec IS 'the spec in force';
COMMENT ON COLUMN fluxqueues.namespaces IS 'allowed namespaces, with selectors resolved; null: all';
COMMENT ON COLUMN fluxqueues.queue_depth IS
    'jobs that a cycle examines; null: the value of the settings';
COMMENT ON COLUMN fluxqueues.priority IS 'added to the priority of its FluxJobs';
COMMENT ON COLUMN fluxqueues.min_priority IS 'lowest priority that can be requested';
COMMENT ON COLUMN fluxqueues.max_priority IS 'highest priority that can be requested';
COMMENT ON COLUMN fluxqueues.newcomer_points IS
    'fair share of users without a row; 0: fair share is off';
COMMENT ON COLUMN fluxqueues.fault IS 'why the last spec seen is not the one in force';

COMMENT ON TABLE rules IS
    'One row per ResourceSharingPolicy, FluxNodePool and FluxReservation: what administrators want of nodes';
COMMENT ON COLUMN rules.kind IS 'sharing: a ResourceSharingPolicy, pool: a FluxNodePool, reservation: a FluxReservation';
COMMENT ON COLUMN rules.name IS 'name of the object';
COMMENT ON COLUMN rules.uid IS 'UID of the object';
COMMENT ON COLUMN rules.generation IS 'generation of the spec that is in force, or was refused';
COMMENT ON COLUMN rules.spec IS 'the spec in force; null: there was no valid one yet';
COMMENT ON COLUMN rules.fault IS 'why the last spec seen is not the one in force';
COMMENT ON COLUMN rules.record IS
    'of a pool: learned (seconds until its last nodes were ready, the newest last), failures in a row, retry_at (earliest next request, epoch seconds), why (the last failure)';

COMMENT ON TABLE node_requests IS 'Requests for new nodes, each for one job, and how each ended';
COMMENT ON COLUMN node_requests.number IS 'in the order of the requests';
COMMENT ON COLUMN node_requests.pool IS 'name of the FluxNodePool';
COMMENT ON COLUMN node_requests.uid IS 'the job that they are for: fluxjobs.uid';
COMMENT ON COLUMN node_requests.queue IS 'queue of the job, with the budget that pays';
COMMENT ON COLUMN node_requests.count IS 'number of requested nodes';
COMMENT ON COLUMN node_requests.price IS 'price of a node for an hour';
COMMENT ON COLUMN node_requests.asked_at IS 'when (epoch seconds)';
COMMENT ON COLUMN node_requests.ready_at IS 'expected arrival of its nodes (epoch seconds)';
COMMENT ON COLUMN node_requests.kept IS
    'slots of the job on present nodes that are reserved for it: node and resources of each';
COMMENT ON COLUMN node_requests.refused IS 'why its provider refuses it permanently';
COMMENT ON COLUMN node_requests.pool_spec IS
    'spec of the pool at that time, used to withdraw the request';
COMMENT ON COLUMN node_requests.ended IS 'used, failed or withdrawn; null: it is open';
COMMENT ON COLUMN node_requests.reason IS 'why it ended';
COMMENT ON COLUMN node_requests.ended_at IS 'when it ended';
COMMENT ON COLUMN node_requests.is_settled IS
    'pending action: false until the provider has withdrawn it after its end';

COMMENT ON TABLE pool_nodes IS 'Nodes of pools, each with the request that it came for';
COMMENT ON COLUMN pool_nodes.node IS 'name of the node';
COMMENT ON COLUMN pool_nodes.pool IS 'name of the FluxNodePool';
COMMENT ON COLUMN pool_nodes.request IS 'node_requests.number that it came for; null: none';
COMMENT ON COLUMN pool_nodes.returned_at IS
    'pending action: its provider removes it, since then (epoch seconds)';
COMMENT ON COLUMN pool_nodes.seen_at IS 'when it was first usable';

COMMENT ON TABLE fair_shares IS 'Decayed use by queue and user, and the points it is worth';
COMMENT ON COLUMN fair_shares.queue IS 'name of the queue';
COMMENT ON COLUMN fair_shares.user_name IS 'the user';
COMMENT ON COLUMN fair_shares.used IS 'cpu-seconds, decayed to computed_at';
COMMENT ON COLUMN fair_shares.factor IS '1: nothing used, 0.5: exactly the share';
COMMENT ON COLUMN fair_shares.points IS 'points that are added to the priority';
COMMENT ON COLUMN fair_shares.computed_at IS 'when they were computed';

COMMENT ON TABLE dependencies IS 'Edges of depends_on, each with the workload its name stands for';
COMMENT ON COLUMN dependencies.uid IS 'the waiting workload: fluxjobs.uid';
COMMENT ON COLUMN dependencies.number IS 'counts from 0 within the workload';
COMMENT ON COLUMN dependencies.kind IS 'afterok, afternotok, afterany, after or singleton';
COMMENT ON COLUMN dependencies.namespace IS 'namespace of the name';
COMMENT ON COLUMN dependencies.job IS 'name or jobid, as its author wrote it';
COMMENT ON COLUMN dependencies.target_uid IS 'UID of the workload that it names, or of the newest ahead of a singleton; null: none yet';
COMMENT ON COLUMN dependencies.is_satisfied IS 'it is satisfied, and stays so';

COMMENT ON TABLE accounting IS 'One row per run: when, where, how much, and how it ended';
COMMENT ON COLUMN accounting.id IS 'in the order of writing';
COMMENT ON COLUMN accounting.uid IS 'UID of the workload';
COMMENT ON COLUMN accounting.jobid IS 'its number';
COMMENT ON COLUMN accounting.run IS 'counts from 1; a requeue begins another';
COMMENT ON COLUMN accounting.allocation_id IS 'null: it never had one';
COMMENT ON COLUMN accounting.namespace IS 'its namespace';
COMMENT ON COLUMN accounting.name IS 'name of the workload';
COMMENT ON COLUMN accounting.workload_kind IS 'Job, Pod, PodGroup, or what makes pods: JobSet, ...';
COMMENT ON COLUMN accounting.user_name IS 'user that submitted it';
COMMENT ON COLUMN accounting.queue IS 'its queue';
COMMENT ON COLUMN accounting.size IS 'pods that ran at once';
COMMENT ON COLUMN accounting.queued_at IS 'when this run began to wait';
COMMENT ON COLUMN accounting.allocated_at IS 'when its nodes were allocated; null: never';
COMMENT ON COLUMN accounting.started_at IS 'when the first pod was seen running';
COMMENT ON COLUMN accounting.ended_at IS 'when it had returned all its slots';
COMMENT ON COLUMN accounting.nodes IS 'how many nodes it had';
COMMENT ON COLUMN accounting.slots IS 'how many slots it had';
COMMENT ON COLUMN accounting.cpu_s IS 'core-seconds given';
COMMENT ON COLUMN accounting.gpu_s IS 'GPU-seconds given';
COMMENT ON COLUMN accounting.result IS 'the final state, or Requeued';
COMMENT ON COLUMN accounting.reason IS 'why it ended, as a sentence';
COMMENT ON TABLE run_times IS 'How long the last runs of alike work held their slots';
COMMENT ON COLUMN run_times.id IS 'in the order of writing';
COMMENT ON COLUMN run_times.queue IS 'its queue';
COMMENT ON COLUMN run_times.owner IS 'user that submitted it, or its namespace';
COMMENT ON COLUMN run_times.template IS 'fingerprint of its pods: images, commands, arguments, requests';
COMMENT ON COLUMN run_times.limit_s IS 'limit of the run in seconds; null: nothing ends it';
COMMENT ON COLUMN run_times.seconds IS 'how long it held its slots; the mean of its pods if they are independent';
COMMENT ON COLUMN run_times.result IS 'the final state, or Requeued';
COMMENT ON COLUMN run_times.ended_at IS 'when the run ended';

COMMENT ON TABLE quarantined_objects IS 'Objects that the controller cannot read or store, and why';
COMMENT ON COLUMN quarantined_objects.kind IS 'workload, node, queue, foreign, ...';
COMMENT ON COLUMN quarantined_objects.key IS 'its UID, or its name';
COMMENT ON COLUMN quarantined_objects.namespace IS
    'namespace of the object; empty where it has none';
COMMENT ON COLUMN quarantined_objects.name IS 'its name';
COMMENT ON COLUMN quarantined_objects.reason IS 'why it cannot be used';
COMMENT ON COLUMN quarantined_objects.since IS 'since when';

COMMENT ON TABLE learned_sizes IS
    'Requests of pods beyond their templates, by namespace and template';
COMMENT ON COLUMN learned_sizes.namespace IS 'namespace of the workload';
COMMENT ON COLUMN learned_sizes.template IS 'digest of what admission decides by';
COMMENT ON COLUMN learned_sizes.extra IS 'requests of each pod beyond the template';
COMMENT ON COLUMN learned_sizes.learned_at IS 'creation time of the pod that showed it';
COMMENT ON COLUMN learned_sizes.written_at IS 'when this was written';

COMMENT ON TABLE loops IS 'When each loop of controller and worker last succeeded';
COMMENT ON COLUMN loops.loop IS 'cycle, observe, publish, sweep, ...';
COMMENT ON COLUMN loops.holder IS 'process that wrote this last';
COMMENT ON COLUMN loops.began_at IS 'when it began to run without a pause';
COMMENT ON COLUMN loops.written_at IS 'when this was written';
COMMENT ON COLUMN loops.succeeded_at IS 'when it last succeeded, or had nothing to do';
COMMENT ON COLUMN loops.failed_at IS 'when it last failed';
COMMENT ON COLUMN loops.error IS 'why it has failed since it last succeeded';
COMMENT ON COLUMN loops.patience_s IS 'seconds without success after which it is late';

COMMENT ON TABLE schema_floor IS 'The oldest code that still works on this schema';
COMMENT ON COLUMN schema_floor.is_only IS 'there is one row';
COMMENT ON COLUMN schema_floor.oldest_head IS 'newest revision that such code knows';
COMMENT ON COLUMN schema_floor.digest IS
    'SHA-256 of the text of the revisions that made the schema';

COMMENT ON TABLE cluster IS 'The cluster that all rows are about';
COMMENT ON COLUMN cluster.is_only IS 'there is one row';
COMMENT ON COLUMN cluster.uid IS 'UID of its namespace kube-system';
COMMENT ON COLUMN cluster.server IS 'address of its API server at that time';
COMMENT ON COLUMN cluster.bound_at IS 'since when';
COMMENT ON COLUMN cluster.autoscaler IS 'autoscaler that adds nodes to it; empty: none seen';

-- 10_floor.sql
-- Code with this newest revision works on the schema. So does all newer code. A revision of
-- kind "post" raises it in its own transaction (migrations/README.md).
INSERT INTO schema_floor (oldest_head) VALUES ('0002');

-- The timeline of the server. Each promotion of a replica and each recovery to a point in time begins
-- another one, which may lack the last commits of the former.
CREATE FUNCTION fluxqueue_timeline() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END
$$;

-- 20_tasks.sql
-- Pending actions are columns of rows. These functions make tasks of procrastinate from them, in the
-- transaction that makes the action pending, so no code path can forget it. A task names its
-- workloads and reads their rows when it runs. A task that comes twice or too late finds no work.
-- Triggers call functions in plpgsql, because their plans are kept. Functions in SQL are planned at
-- each call.
-- Releases come first, and looks at jobs that wait for others come last: one user may cause many
-- looks, and none of them starts a job of another user. If there are many at once, only the first 20
-- of each namespace are in the queue "effects". The rest is in the queue "crowded", like looks at jobs
-- that wait for others. A worker runs few tasks of that queue at once, and namespaces take turns.
CREATE FUNCTION fluxqueue_defer(
    task text, uids text[], at timestamptz DEFAULT NULL, is_blocked boolean DEFAULT false
) RETURNS void LANGUAGE plpgsql SET search_path = public, procrastinate AS $$
DECLARE
    rank integer := CASE WHEN is_blocked THEN 0 WHEN task = 'release' THEN 4 ELSE 3 END;
    rest text[];
BEGIN
    IF NOT is_blocked AND cardinality(uids) > 20 THEN
        SELECT array_agg(uid ORDER BY n) FILTER (WHERE place <= 20),
               array_agg(uid ORDER BY n) FILTER (WHERE place > 20)
        INTO uids, rest
        FROM (SELECT u.uid, u.n, row_number() OVER (PARTITION BY f.namespace ORDER BY u.n) AS place
              FROM unnest(uids) WITH ORDINALITY AS u (uid, n) LEFT JOIN fluxjobs f ON f.uid = u.uid) AS placed;
        PERFORM fluxqueue_defer_batches(task, rest, at, rank - 2);
    END IF;
    PERFORM fluxqueue_defer_batches(task, uids, at, rank);
END
$$;

CREATE FUNCTION fluxqueue_defer_batches(
    task text, uids text[], at timestamptz, rank integer
) RETURNS void LANGUAGE plpgsql SET search_path = public, procrastinate AS $$
BEGIN
    IF cardinality(uids) > 0 AND rank < 3 AND task <> 'status' THEN
        PERFORM fluxqueue_defer_crowded(task, uids, at, rank);
    ELSIF cardinality(uids) > 0 THEN
        PERFORM procrastinate_defer_jobs_v1(array_agg(
            ROW(CASE WHEN task = 'status' THEN 'later' ELSE 'effects' END, task, rank, NULL, NULL,
                jsonb_build_object('uids', batch), at)::procrastinate_job_to_defer_v1))
        FROM (SELECT jsonb_agg(uid ORDER BY n) AS batch
              FROM unnest(uids) WITH ORDINALITY AS u (uid, n) GROUP BY (n - 1) / 50) AS batches;
    END IF;
END
$$;

-- Tasks of one namespace, rank and kind of time are a lane. Each task has the turn after the last
-- waiting one of its lane. The first one of a lane has the turn of the task that is next. So one task
-- comes before the thousands of another namespace, and no lane comes first for long. The priority of
-- a task falls with its turn. Within a turn, the rank decides. Tasks for later have their own lanes:
-- they must not put off what is due now.
-- Race: two transactions may give the same turn, because neither sees the tasks of the other. Then
-- this lane has one more task in that turn.
CREATE FUNCTION fluxqueue_defer_crowded(
    task text, uids text[], at timestamptz, rank integer
) RETURNS void LANGUAGE plpgsql SET search_path = public, procrastinate AS $$
DECLARE
    next_turn integer := coalesce((
        SELECT (2 - priority) / 3 FROM procrastinate_jobs
        WHERE queue_name = 'crowded' AND status = 'todo' AND scheduled_at IS NULL
        ORDER BY priority DESC LIMIT 1), 0);
    lane text;
    batch text[];
    turn integer;
BEGIN
    FOR lane, batch IN
        SELECT f.namespace, array_agg(u.uid ORDER BY u.n)
        FROM unnest(uids) WITH ORDINALITY AS u (uid, n) LEFT JOIN fluxjobs f USING (uid) GROUP BY 1
    LOOP
        lane := concat_ws('/', coalesce(lane, ''), rank, CASE WHEN at IS NOT NULL THEN 'later' END);
        turn := greatest(next_turn, 1 + (
            SELECT (2 - priority) / 3 FROM procrastinate_jobs
            WHERE queue_name = 'crowded' AND status = 'todo' AND args ->> 'lane' = lane
            ORDER BY priority LIMIT 1));
        PERFORM procrastinate_defer_jobs_v1(ARRAY(
            SELECT ROW('crowded', task, rank - 3 * least(turn + n, 700000000), NULL, NULL,
                       jsonb_build_object('uids', batch[50 * n + 1:50 * n + 50], 'lane', lane),
                       at)::procrastinate_job_to_defer_v1
            FROM generate_series(0, (cardinality(batch) - 1) / 50) AS n));
    END LOOP;
END
$$;

-- One cycle reads all changes, whichever transactions made them. It takes all waiting tasks with it
-- when it begins (db/store/matcher_rows.py). If no worker matches, 20 waiting tasks are enough.
CREATE FUNCTION fluxqueue_wake_matcher() RETURNS void
LANGUAGE plpgsql SET search_path = public, procrastinate AS $$
BEGIN
    IF (SELECT count(*) FROM (
            SELECT FROM procrastinate_jobs WHERE queue_name = 'schedule' AND status = 'todo'
            LIMIT 20) AS waiting) < 20
    THEN
        PERFORM procrastinate_defer_jobs_v1(ARRAY[
            ROW('schedule', 'schedule', 0, NULL, NULL, '{}', NULL)::procrastinate_job_to_defer_v1]);
    END IF;
END
$$;

-- Return whether an examined job waits for free capacity. An index answers each of the two queries.
CREATE FUNCTION fluxqueue_room_is_awaited() RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM fluxjobs WHERE state IN ('Pending', 'Reserved') AND is_examined AND blocked_by IS NULL)
        OR EXISTS (SELECT FROM fluxjobs WHERE lacking > 0);
END
$$;

-- Return whether a job could use capacity that becomes free.
CREATE FUNCTION fluxqueue_has_waiting() RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN fluxqueue_room_is_awaited()
        OR EXISTS (SELECT FROM fluxjobs WHERE NOT is_examined AND (state IN ('Pending', 'Reserved') OR held_by = 'queue'));
END
$$;

-- The safety net: defer actions that are pending for a while and have no task. Without a controller
-- nothing is deferred, because its rows may differ from the cluster.
CREATE FUNCTION fluxqueue_sweep(grace interval) RETURNS TABLE (task text, number bigint)
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM leadership WHERE role = 'controller' AND expires_at <= now()) THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH under_way AS (
        SELECT t.task_name, u.uid FROM procrastinate.procrastinate_jobs t,
               jsonb_array_elements_text(t.args -> 'uids') AS u (uid)
        WHERE t.status = 'todo' OR (t.status = 'doing' AND EXISTS (
            SELECT FROM procrastinate.procrastinate_events e
            WHERE e.job_id = t.id AND e.type = 'started' AND e.at > now() - interval '10 min'))
    ), lost AS (
        SELECT o.task, array_agg(DISTINCT o.uid) AS uids FROM pending_actions o
        WHERE o.since < now() - grace
          AND NOT EXISTS (SELECT FROM under_way w WHERE w.task_name = o.task AND w.uid = o.uid)
        GROUP BY o.task
    ), deferred AS MATERIALIZED (
        SELECT l.task, l.uids, fluxqueue_defer(l.task, l.uids) FROM lost l
    )
    SELECT d.task, cardinality(d.uids)::bigint FROM deferred d;
    IF NOT EXISTS (SELECT FROM procrastinate.procrastinate_jobs
                   WHERE queue_name = 'schedule' AND status IN ('todo', 'doing'))
       AND (EXISTS (SELECT FROM graph_changes WHERE kind NOT IN ('allocation', 'foreign'))
            OR (EXISTS (SELECT FROM graph_changes) AND fluxqueue_has_waiting())
            -- Without any job the changes must not grow for ever.
            OR EXISTS (SELECT FROM graph_changes OFFSET 1000)
            OR EXISTS (SELECT FROM fluxjobs WHERE NOT is_examined
                       AND (state IN ('Pending', 'Reserved') OR held_by = 'queue'))
            -- Preemptions with a victim that must get its notice, must leave, or is spared.
            OR EXISTS (SELECT FROM preemptions WHERE NOT is_told OR is_off
                       OR (NOT is_vacated AND vacate_at <= extract(epoch FROM now()))))
    THEN
        PERFORM fluxqueue_wake_matcher();
        RETURN QUERY SELECT 'schedule', 1::bigint;
    END IF;
END
$$;

-- Free capacity without a waiting job, and changes of unmanaged pods, do not wake the matcher: the
-- next job does. Race: a job that is examined before this commits misses the change. The sweep
-- catches it.
CREATE FUNCTION graph_changes_wake() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM new_rows WHERE kind NOT IN ('allocation', 'foreign'))
       OR (EXISTS (SELECT FROM new_rows) AND fluxqueue_has_waiting())
    THEN
        PERFORM fluxqueue_wake_matcher();
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER graph_changes_wake AFTER INSERT ON graph_changes
    REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION graph_changes_wake();

CREATE FUNCTION fluxjobs_defer_new() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    pending_actions record;
BEGIN
    FOR pending_actions IN
        SELECT o.task, o.at, n.blocked_by IS NOT NULL AS is_blocked, array_agg(n.uid) AS uids
        FROM new_rows n CROSS JOIN LATERAL (VALUES
            ('release', n.release_at), ('reconcile', n.reconcile_at), ('status', n.status_due_at)
        ) AS o (task, at)
        WHERE o.at IS NOT NULL GROUP BY o.task, o.at, is_blocked
    LOOP
        PERFORM fluxqueue_defer(pending_actions.task, pending_actions.uids,
            CASE WHEN pending_actions.at > now() THEN pending_actions.at END,
            pending_actions.is_blocked);
    END LOOP;
    IF EXISTS (SELECT FROM new_rows WHERE NOT is_examined
               AND (state IN ('Pending', 'Reserved') OR held_by = 'queue'))
    THEN
        PERFORM fluxqueue_wake_matcher();
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER fluxjobs_defer_new AFTER INSERT ON fluxjobs
    REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION fluxjobs_defer_new();

CREATE FUNCTION fluxjobs_defer() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    pending_actions record;
BEGIN
    FOR pending_actions IN
        SELECT o.task, o.at, n.blocked_by IS NOT NULL AS is_blocked, array_agg(n.uid) AS uids
        FROM new_rows n JOIN old_rows b USING (uid) CROSS JOIN LATERAL (VALUES
            ('release', n.release_at, b.release_at), ('reconcile', n.reconcile_at, b.reconcile_at),
            ('status', n.status_due_at, b.status_due_at)
        ) AS o (task, at, before)
        WHERE o.at IS NOT NULL AND o.at IS DISTINCT FROM o.before GROUP BY o.task, o.at, is_blocked
    LOOP
        PERFORM fluxqueue_defer(pending_actions.task, pending_actions.uids,
            CASE WHEN pending_actions.at > now() THEN pending_actions.at END,
            pending_actions.is_blocked);
    END LOOP;
    -- A job that leaves the queue may let others move up. A cycle gives slots to a job that lacks them.
    INSERT INTO graph_changes (kind, key)
    SELECT 'fluxjob', n.uid FROM new_rows n JOIN old_rows b USING (uid)
    WHERE n.lacking > b.lacking
       OR (b.state IN ('Pending', 'Reserved') AND b.is_examined AND b.blocked_by IS NULL
           AND n.state IN ('Held', 'Gathering', 'Completed', 'Failed', 'Cancelled'));
    IF EXISTS (
        SELECT FROM new_rows n JOIN old_rows b USING (uid)
        WHERE NOT n.is_examined AND (n.state IN ('Pending', 'Reserved') OR n.held_by = 'queue')
          AND (b.is_examined
               OR NOT coalesce(b.state IN ('Pending', 'Reserved') OR b.held_by = 'queue', false)))
    THEN
        PERFORM fluxqueue_wake_matcher();
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER fluxjobs_defer AFTER UPDATE ON fluxjobs
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION fluxjobs_defer();

-- For the turns of the queue "crowded": the next task, and the last one of each lane.
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX fluxqueue_crowded_next ON procrastinate.procrastinate_jobs (priority)
    WHERE queue_name = 'crowded' AND status = 'todo' AND scheduled_at IS NULL;
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX fluxqueue_crowded_lanes ON procrastinate.procrastinate_jobs ((args ->> 'lane'), priority)
    WHERE queue_name = 'crowded' AND status = 'todo';

-- Tasks live for seconds. With the defaults of a server, vacuum waits for a fifth of a table to be
-- dead (60_storage.sql).
ALTER TABLE procrastinate.procrastinate_jobs SET (autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE procrastinate.procrastinate_events SET (autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

-- 30_priority.sql
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

-- 31_dependencies.sql
-- Dependencies and begin times keep a waiting FluxJob out of the cycles. The edges of a row and the
-- targets of their names are written with the row. A change of a target defers a reconcile task for
-- its dependents, in the same transaction. That task decides under the lock of the dependent
-- (fluxqueue/db/store/dependencies.py). The change must not write the dependent's row, because another
-- transaction may hold its lock and wait for ours.

-- The same table as fluxqueue/fluxjob/dependency.py, for the one decision that is made here. A test
-- compares the two.
CREATE FUNCTION fluxjob_dependency_outcome(
    kind text, state text, started_at timestamptz
) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN state IS NULL THEN CASE kind WHEN 'singleton' THEN 'satisfied' ELSE 'unknown' END
        WHEN kind = 'after' AND (state = 'Running' OR started_at IS NOT NULL) THEN 'satisfied'
        WHEN state NOT IN ('Completed', 'Failed', 'Cancelled') THEN 'waiting'
        WHEN kind IN ('afterany', 'singleton') THEN 'satisfied'
        WHEN kind = 'afterok' AND state = 'Completed' THEN 'satisfied'
        WHEN kind = 'afternotok' AND state <> 'Completed' THEN 'satisfied'
        ELSE 'never' END
$$;

-- Return the target of a name in a dependency. A number is a jobid. Any other text is the newest
-- existing workload or FluxJob of that name.
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

-- Return a job that a singleton waits for. Those of the same user and namespace that have its name, or
-- share it as singletons, are ahead of it if they came earlier or have slots.
CREATE FUNCTION fluxjob_singleton_ahead(waiting fluxjobs, shared_name text) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT f.uid FROM (
        SELECT uid FROM dependencies
        WHERE namespace = (waiting).namespace AND job = shared_name AND kind = 'singleton'
        UNION
        SELECT uid FROM fluxjobs WHERE namespace = (waiting).namespace AND workload_name = shared_name) found
    JOIN fluxjobs f USING (uid)
    WHERE f.user_name = (waiting).user_name AND f.ended_at IS NULL AND f.uid <> (waiting).uid
      AND (f.jobid < (waiting).jobid OR f.state IN ('Allocated', 'Running'))
    ORDER BY f.jobid < (waiting).jobid DESC, f.jobid DESC LIMIT 1
$$;

-- Set the columns of the row itself. The reason of a block replaces every other reason.
CREATE FUNCTION fluxjob_with_block(new_row fluxjobs, old_row fluxjobs) RETURNS fluxjobs
LANGUAGE plpgsql AS $$
DECLARE
    retry_at timestamptz := new_row.start ->> 'retry_at';
BEGIN
    IF (new_row.observed -> 'depends_on') IS DISTINCT FROM (old_row.observed -> 'depends_on') THEN
        new_row.blocked_by := 'dependency';
        new_row.blocked_reason := 'its dependencies have yet to be looked at';
        new_row.reconcile_at := now();
    ELSIF new_row.blocked_by IS DISTINCT FROM 'dependency' THEN
        IF new_row.begin_at > now() AND new_row.ended_at IS NULL THEN
            new_row.blocked_by := 'begin-time';
            new_row.blocked_reason := 'is not to start before '
                || to_char(new_row.begin_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"');
            IF new_row.reconcile_at IS NULL OR new_row.reconcile_at > now() THEN
                new_row.reconcile_at := new_row.begin_at;
            END IF;
        ELSIF retry_at > now() AND new_row.state IN ('Pending', 'Reserved', 'Gathering', 'Held') THEN
            new_row.blocked_by := 'start-retry';
            new_row.blocked_reason := coalesce(new_row.start ->> 'error', 'its pods did not start')
                || '; it is tried again from '
                || to_char(retry_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"');
            IF new_row.reconcile_at IS NULL OR new_row.reconcile_at > now() THEN
                new_row.reconcile_at := retry_at;
            END IF;
        ELSIF new_row.blocked_by IN ('begin-time', 'start-retry') THEN
            new_row.blocked_by := NULL;
            new_row.is_examined := false;
            IF new_row.reconcile_at > now() THEN
                new_row.reconcile_at := NULL;
            END IF;
            IF new_row.reason = new_row.blocked_reason THEN
                new_row.reason := '';
            END IF;
        END IF;
    END IF;
    IF new_row.blocked_by = 'dependency' AND old_row.state IN ('Allocated', 'Running')
            AND new_row.state IN ('Pending', 'Held', 'Gathering') THEN
        -- Dependencies that change while a job runs are not evaluated. Now the job waits again.
        new_row.reconcile_at := now();
    END IF;
    IF new_row.blocked_by IS NOT NULL AND new_row.state IN ('Pending', 'Reserved') THEN
        new_row.state := 'Pending';
        new_row.expected_start := NULL;
        new_row.reason := new_row.blocked_reason;
    END IF;
    RETURN new_row;
END
$$;

-- After the row: write its edges and their targets, and defer the dependents.
CREATE FUNCTION fluxjobs_depend() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    is_new boolean := TG_OP = 'INSERT';
    renamed text[];
    old_edges jsonb := CASE WHEN TG_OP = 'UPDATE' THEN OLD.observed -> 'depends_on' END;
BEGIN
    IF (NEW.observed -> 'depends_on') IS DISTINCT FROM old_edges THEN
        DELETE FROM dependencies WHERE uid = NEW.uid;
        INSERT INTO dependencies (uid, number, kind, namespace, job, target_uid)
        SELECT NEW.uid, edge.number, edge.value ->> 'type', NEW.namespace, edge.value ->> 'job',
               CASE edge.value ->> 'type'
                   WHEN 'singleton' THEN fluxjob_singleton_ahead(NEW, edge.value ->> 'job')
                   ELSE fluxjob_dependency_target(NEW.namespace, edge.value ->> 'job') END
        FROM jsonb_array_elements(NEW.observed -> 'depends_on') WITH ORDINALITY AS edge (value, number);
        -- Dependents may have waited in a circle that is now open. All jobs of a circle are held, so a
        -- chain that only waits is not walked: an author could change its first job again and again.
        -- A singleton that waited for this one may have it no longer ahead.
        PERFORM fluxqueue_defer('reconcile', ARRAY(
            WITH RECURSIVE behind (uid) AS (
                SELECT NEW.uid
                UNION
                SELECT d.uid FROM behind b JOIN dependencies d ON d.target_uid = b.uid
                JOIN fluxjobs f ON f.uid = d.uid AND f.held_by = 'dependency'
                WHERE NOT d.is_satisfied)
            SELECT uid FROM (SELECT uid FROM behind LIMIT 1000) b WHERE uid <> NEW.uid
            UNION
            SELECT uid FROM dependencies
            WHERE target_uid = NEW.uid AND kind = 'singleton' AND NOT is_satisfied),
            is_blocked => true);
    END IF;
    IF is_new THEN
        -- A name means its newest workload, until the edge is satisfied.
        WITH renamed_edges AS (
            UPDATE dependencies d SET target_uid = NEW.uid
            WHERE d.namespace = NEW.namespace AND NOT d.is_satisfied AND d.kind <> 'singleton'
              AND d.job IN (NEW.workload_name, NEW.name, NEW.jobid::text)
              AND (d.job !~ '^[0-9]+$' OR d.job = NEW.jobid::text)
              AND NOT EXISTS (
                SELECT FROM fluxjobs t WHERE t.uid = d.target_uid
                AND (fluxjob_dependency_outcome(d.kind, t.state, t.started_at) = 'satisfied'
                     OR (t.workload_kind <> NEW.workload_kind AND NOT t.is_gone)))
            RETURNING d.uid)
        SELECT array_agg(DISTINCT uid) INTO renamed FROM renamed_edges;
        PERFORM fluxqueue_defer('reconcile', renamed, is_blocked => true);
        RETURN NULL;
    END IF;
    IF NEW.state IS DISTINCT FROM OLD.state THEN
        IF NEW.state = 'Running' OR NEW.ended_at IS NOT NULL THEN
            -- Go further only through held jobs: they may have waited in a circle.
            PERFORM fluxqueue_defer('reconcile', ARRAY(
                WITH RECURSIVE behind (uid) AS (
                    SELECT d.uid FROM dependencies d
                    WHERE d.target_uid = NEW.uid AND NOT d.is_satisfied
                      AND (d.kind = 'after' OR NEW.ended_at IS NOT NULL)
                    UNION
                    SELECT d.uid FROM behind b
                    JOIN fluxjobs f ON f.uid = b.uid AND f.held_by = 'dependency'
                    JOIN dependencies d ON d.target_uid = b.uid AND NOT d.is_satisfied)
                SELECT uid FROM behind), is_blocked => true);
        END IF;
        IF NEW.ended_at IS NOT NULL THEN
            -- It takes no turn any more. What it waited for had to end.
            UPDATE dependencies SET kind = 'afterany' WHERE uid = NEW.uid AND kind = 'singleton';
        END IF;
        -- A release of a hold does not know the other dependencies.
        IF NEW.state IN ('Pending', 'Gathering') AND OLD.state = 'Held' AND NEW.blocked_by = 'dependency' THEN
            PERFORM fluxqueue_defer('reconcile', ARRAY[NEW.uid], is_blocked => true);
        END IF;
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER fluxjobs_depend_new AFTER INSERT ON fluxjobs
    FOR EACH ROW EXECUTE FUNCTION fluxjobs_depend();

CREATE TRIGGER fluxjobs_depend AFTER UPDATE ON fluxjobs FOR EACH ROW
    WHEN (NEW.state IS DISTINCT FROM OLD.state
          OR (NEW.observed -> 'depends_on') IS DISTINCT FROM (OLD.observed -> 'depends_on'))
    EXECUTE FUNCTION fluxjobs_depend();

-- 32_gathering.sql
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

-- 32_place.sql
-- The place of a FluxJob among those of equal priority. It is the jobid, and is drawn again from the
-- same numbers when a user made the job wait outside of the order, so that it stands behind all that
-- was in the order meanwhile. A larger request does the same (fluxqueue/db/store/observations.py).
CREATE FUNCTION fluxjob_next_place() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT nextval(pg_get_serial_sequence('fluxjobs', 'jobid'))
$$;

CREATE FUNCTION fluxjob_with_place(new_row fluxjobs, old_row fluxjobs) RETURNS fluxjobs
LANGUAGE plpgsql AS $$
DECLARE
    -- What fluxqueue holds keeps its place, unless its author changes the request meanwhile.
    is_refused boolean := old_row.state = 'Unsatisfiable' OR coalesce(
        old_row.held_by IN ('queue', 'too-complex', 'quarantine', 'start'), false);
BEGIN
    IF (old_row.author_hold IS NOT NULL AND new_row.author_hold IS NULL)
       OR (old_row.state = 'Held' AND new_row.state <> 'Held' AND NOT is_refused)
       OR (old_row.state = 'Gathering' AND new_row.state = 'Pending')
       OR (old_row.blocked_by IN ('dependency', 'begin-time') AND new_row.blocked_by IS NULL)
       OR (is_refused AND new_row.request IS DISTINCT FROM old_row.request)
    THEN
        new_row.place := fluxjob_next_place();
    END IF;
    RETURN new_row;
END
$$;

-- 33_transitions.sql
-- The transition table of fluxqueue/fluxjob/states.py, enforced for every client. A test compares both
-- edge by edge.
CREATE FUNCTION fluxjob_transition_allowed(old_state text, new_state text) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT old_state = new_state OR new_state = ANY (CASE old_state
        WHEN 'Gathering' THEN ARRAY['Pending', 'Held', 'Completed', 'Failed', 'Cancelled']
        WHEN 'Pending' THEN ARRAY['Gathering', 'Reserved', 'Held', 'Unsatisfiable', 'Allocated', 'Completed', 'Failed', 'Cancelled']
        WHEN 'Reserved' THEN ARRAY['Gathering', 'Pending', 'Held', 'Unsatisfiable', 'Allocated', 'Completed', 'Failed', 'Cancelled']
        WHEN 'Held' THEN ARRAY['Gathering', 'Pending', 'Completed', 'Failed', 'Cancelled']
        WHEN 'Unsatisfiable' THEN ARRAY['Gathering', 'Pending', 'Held', 'Completed', 'Failed', 'Cancelled']
        WHEN 'Allocated' THEN ARRAY['Running', 'Gathering', 'Pending', 'Held', 'Completed', 'Failed', 'Cancelled']
        WHEN 'Running' THEN ARRAY['Gathering', 'Pending', 'Held', 'Completed', 'Failed', 'Cancelled']
        ELSE ARRAY[]::text[]
    END)
$$;

-- Return whether the transaction makes rows from the cluster (db/store/rebuild.py). It sets each row
-- to the state that the cluster shows, without transitions.
CREATE FUNCTION fluxqueue_is_rebuilding() RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce(current_setting('fluxqueue.rebuilding', true), '') = 'on';
END
$$;

-- Every change that the FluxJob object shows raises the version that its status carries.
CREATE FUNCTION fluxjob_with_version(new_row fluxjobs, old_row fluxjobs) RETURNS fluxjobs
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT fluxjob_transition_allowed(old_row.state, new_row.state)
       AND NOT fluxqueue_is_rebuilding()
    THEN
        RAISE EXCEPTION 'FluxJob % (%/%): % -> % is not a transition',
            new_row.jobid, new_row.namespace, new_row.name, old_row.state, new_row.state
            USING ERRCODE = 'check_violation';
    END IF;
    IF new_row.state <> 'Pending' THEN
        new_row.wait_reason := NULL;  -- found by a cycle, of what is in its turn
    END IF;
    IF new_row.state NOT IN ('Pending', 'Reserved') THEN
        new_row.position := NULL;
    END IF;
    -- A refused action that is no longer pending is no longer refused.
    IF new_row.troubles ? 'stalled' THEN
        new_row.troubles := fluxqueue_with(new_row.troubles, 'stalled', nullif(
            (new_row.troubles -> 'stalled') - ARRAY[
                CASE WHEN new_row.ended_at IS NOT NULL THEN 'booking' END,
                CASE WHEN new_row.release_at IS NULL THEN 'release' END,
                CASE WHEN new_row.reconcile_at IS NULL THEN 'reconcile' END,
                CASE WHEN new_row.status_due_at IS NULL THEN 'status' END], '{}'));
    END IF;
    IF (new_row.state, new_row.reason, new_row.wait_reason, new_row.position, new_row.priority,
        new_row.place, new_row.expected_start, new_row.queue, new_row.published -> 'generation',
        new_row.observed -> 'faults', new_row.troubles -> 'stalled')
       IS DISTINCT FROM
       (old_row.state, old_row.reason, old_row.wait_reason, old_row.position, old_row.priority,
        old_row.place, old_row.expected_start, old_row.queue, old_row.published -> 'generation',
        old_row.observed -> 'faults', old_row.troubles -> 'stalled') THEN
        new_row.version := old_row.version + 1;
    END IF;
    IF new_row.observed ? 'faults' OR new_row.troubles ? 'stalled' THEN
        new_row.troubles := jsonb_build_object('since', now()) || new_row.troubles;
    ELSIF new_row.troubles ? 'since' THEN
        new_row.troubles := new_row.troubles - 'since';
    END IF;
    RETURN new_row;
END
$$;

-- The row itself makes its status update pending, so no code path can forget it. A FluxJob gets at
-- most one update in FLUXQUEUE_STATUS_INTERVAL_S, and the end of a job comes a little sooner. Sessions
-- without our settings use two seconds. A new FluxJob shows Pending by a default of its definition.
-- The time is rounded up to a quarter of the interval, so that one task updates many FluxJobs.
CREATE FUNCTION fluxjob_status_due_at(told_at timestamptz, intervals numeric) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT to_timestamp(ceil(4 / s * extract(epoch FROM greatest(
        now() + make_interval(secs => s / 10),
        told_at + make_interval(secs => s * intervals)))) * s / 4)
    FROM (SELECT coalesce(nullif(current_setting('fluxqueue.status_interval_s', true), '')::numeric,
                          2)) AS setting (s)
$$;

CREATE FUNCTION fluxjob_with_status_due(new_row fluxjobs, old_row fluxjobs) RETURNS fluxjobs
LANGUAGE plpgsql AS $$
BEGIN
    IF old_row.uid IS NOT NULL AND new_row.flux_uid IS DISTINCT FROM old_row.flux_uid THEN
        -- One that was made again has an empty status.
        new_row.published := new_row.published - '{version,generation}'::text[];
    END IF;
    -- A release writes the status itself before it releases any pod, or it postpones the status.
    IF new_row.flux_uid IS NULL OR new_row.version <= coalesce((new_row.published ->> 'version')::bigint, 0)
       OR (new_row.state = 'Allocated' AND new_row.release_at IS NOT NULL) THEN
        new_row.status_due_at := NULL;
    ELSIF new_row.status_due_at IS NULL
       OR (new_row.version > old_row.version
           -- A change of slots says itself how long it may wait.
           AND NOT (old_row.status_due_at IS NULL AND new_row.state = old_row.state)
           AND NOT (old_row.state = 'Allocated' AND new_row.state = 'Running'
                    AND new_row.reason = old_row.reason AND new_row.notices = old_row.notices))
    THEN
        -- A due update stays due, and a further change may make it due sooner. The change to
        -- Running is part of the update for the start, also if that was postponed.
        new_row.status_due_at := least(new_row.status_due_at, fluxjob_status_due_at(
            coalesce((new_row.published ->> 'written_at')::timestamptz, new_row.submitted_at),
            CASE WHEN new_row.ended_at IS NULL THEN 1 ELSE 0.5 END));
    END IF;
    RETURN new_row;
END
$$;

-- Write the audit trail and the plan with each transition. The actor is that of the transaction.
CREATE FUNCTION fluxjobs_record() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    old_state text := CASE WHEN TG_OP = 'UPDATE' THEN OLD.state END;
BEGIN
    -- Only the state Reserved has a reservation.
    IF old_state = 'Reserved' AND NEW.state <> 'Reserved' THEN
        DELETE FROM reservations WHERE uid = NEW.uid;
    END IF;
    IF NEW.state IS DISTINCT FROM old_state THEN
        INSERT INTO history (uid, jobid, actor, event, detail)
        VALUES (NEW.uid, NEW.jobid,
                coalesce(nullif(current_setting('fluxqueue.actor', true), ''), session_user),
                NEW.state, jsonb_build_object('from', old_state, 'reason', NEW.reason)
                           || CASE WHEN fluxqueue_is_rebuilding() THEN '{"rebuilt": true}'::jsonb
                                   ELSE '{}'::jsonb END);
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER fluxjobs_record_new AFTER INSERT ON fluxjobs
    FOR EACH ROW EXECUTE FUNCTION fluxjobs_record();

CREATE TRIGGER fluxjobs_record AFTER UPDATE ON fluxjobs FOR EACH ROW
    WHEN (NEW.state IS DISTINCT FROM OLD.state)
    EXECUTE FUNCTION fluxjobs_record();

-- 34_fluxjobs_before.sql
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

-- 35_starts.sql
-- Nodes that refused a pod of a workload, or that no pod of it could be bound to, since it last started.
-- A cycle places it elsewhere if it can. It asks only for workloads with a failed start.
CREATE FUNCTION fluxjob_refused_nodes(of_uid text) RETURNS text[]
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT coalesce(array_agg(DISTINCT n.node), '{}')
            FROM allocations a JOIN allocation_slots s ON s.allocation_id = a.id
            CROSS JOIN LATERAL unnest(array_append(s.others, s.node)) AS n (node)
            WHERE a.uid = of_uid AND s.refused_at IS NOT NULL);
END
$$;

-- 36_conditions.sql
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

-- 40_accounting.sql
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

-- 50_views.sql
-- Views for people in psql. `select * from queue` is the first one to try. Jobs that wait for others or
-- for their begin time have no position, because no cycle examines them.
CREATE VIEW queue AS
SELECT CASE WHEN is_in_turn THEN row_number() OVER (PARTITION BY is_in_turn
                                                    ORDER BY priority DESC, place) END AS position,
       jobid, namespace, workload_name AS name, queue, state, size, priority,
       expected_start, date_trunc('second', now() - submitted_at) AS waiting, reason
FROM fluxjobs,
     LATERAL (SELECT state IN ('Pending', 'Reserved') AND blocked_by IS NULL AS is_in_turn) AS turn
WHERE state IN ('Gathering', 'Pending', 'Reserved', 'Held', 'Unsatisfiable')
ORDER BY NOT is_in_turn, state NOT IN ('Pending', 'Reserved'), priority DESC, place;

CREATE VIEW pending_queue AS
SELECT * FROM queue WHERE state IN ('Pending', 'Reserved');

-- Jobs and objects that are set aside, so that all others continue. held_by says why.
-- quarantine, too-complex: the cycle could not read or decide the job. It waits for another request,
-- for other software or for `fluxqueue release`. input: the last good values count.
-- stalled: the API server refuses an action, and it is tried again. Others: the kind of an object.
CREATE VIEW quarantine AS
SELECT jobid, namespace, workload_name AS name, queue, user_name, held_by, reason, quarantined_by,
       uid, date_trunc('second', now() - submitted_at) AS waiting
FROM fluxjobs WHERE state = 'Held' AND held_by IN ('quarantine', 'too-complex')
UNION ALL
SELECT jobid, namespace, workload_name, queue, user_name, 'input',
       (SELECT string_agg(f ->> 'message', '; ') FROM jsonb_array_elements(observed -> 'faults') f), NULL,
       uid, date_trunc('second', now() - (troubles ->> 'since')::timestamptz)
FROM fluxjobs WHERE observed ? 'faults' AND state NOT IN ('Completed', 'Failed', 'Cancelled')
UNION ALL
SELECT jobid, namespace, workload_name, queue, user_name, 'stalled',
       (SELECT string_agg(format('%s: %s', t.key, t.value), '; ') FROM jsonb_each_text(troubles -> 'stalled') t), NULL,
       uid, date_trunc('second', now() - (troubles ->> 'since')::timestamptz)
FROM fluxjobs WHERE troubles ? 'stalled'
UNION ALL
SELECT NULL, s.namespace, s.name, NULL, '', s.kind, s.reason, NULL, s.key,
       date_trunc('second', now() - s.since)
FROM quarantined_objects s
WHERE s.kind <> 'workload' OR NOT EXISTS (SELECT FROM fluxjobs f WHERE f.uid = s.key AND f.observed ? 'faults')
ORDER BY jobid, namespace, name;

CREATE VIEW node_usage AS
WITH capacity AS (
    SELECT name AS node, key AS resource, value::numeric AS capacity
    FROM nodes, jsonb_each_text(fact -> 'capacity')
), allocated AS (
    SELECT s.node, r.key AS resource, sum(r.value::numeric) AS amount
    FROM allocation_slots s, jsonb_each_text(s.resources) r
    WHERE s.state <> 'returned' GROUP BY 1, 2
), others AS (
    -- What no slot covers of a pod that counts with a managed workload.
    SELECT f.node, r.key AS resource, sum(r.value::numeric) AS amount
    FROM (SELECT node, resources FROM foreign_usage
          UNION ALL SELECT node, unmanaged FROM pods WHERE unmanaged IS NOT NULL) f,
         jsonb_each_text(f.resources) r GROUP BY 1, 2
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
-- The pods of a BatchJob that is pinned or placed by its template have no gate. They get their slots when they
-- are observed. A replacement gets its slot after the pod before it is gone. A pod with an end
-- that is observed first is about to go.
SELECT 'ungated pod without a slot', p.namespace || '/' || p.name, p.phase
FROM pods p LEFT JOIN fluxjobs f ON f.uid = p.workload_uid
WHERE NOT p.is_gated AND p.phase NOT IN ('Succeeded', 'Failed') AND NOT p.is_terminating
  AND NOT EXISTS (SELECT FROM allocation_slots s WHERE s.pod_uid = p.uid)
  AND ((f.pinned_to IS NULL AND NOT f.is_placed) OR (f.reconcile_at IS NULL AND f.ended_at IS NULL AND NOT EXISTS (
        SELECT FROM pods t WHERE t.workload_uid = p.workload_uid AND t.is_terminating)));

-- The actions that are pending, and since when. A sweep defers those without a task.
CREATE VIEW pending_actions AS
SELECT 'status' AS task, uid, jobid, status_due_at AS since, troubles ->> 'last_error' AS last_error
FROM fluxjobs WHERE status_due_at IS NOT NULL
UNION ALL
SELECT 'release', uid, jobid, release_at, troubles ->> 'last_error' FROM fluxjobs WHERE release_at IS NOT NULL
UNION ALL
SELECT 'reconcile', uid, jobid, reconcile_at, troubles ->> 'last_error' FROM fluxjobs WHERE reconcile_at IS NOT NULL
UNION ALL
-- Pods that a worker began to ungate without a result, or with a failure.
SELECT 'reconcile', f.uid, f.jobid, min(p.sent_at), f.troubles ->> 'last_error'
FROM pods p JOIN fluxjobs f ON f.uid = p.workload_uid
WHERE p.is_gated AND p.sent_at <= now() - interval '10 s' AND f.state IN ('Allocated', 'Running')
GROUP BY f.uid, f.jobid, f.troubles
UNION ALL
-- Dependencies that are decided: the time is that of the last change of a target.
SELECT 'reconcile', f.uid, f.jobid, max(coalesce(t.ended_at, t.started_at, t.submitted_at)), NULL
FROM fluxjobs f JOIN dependencies d USING (uid) JOIN fluxjobs t ON t.uid = d.target_uid
WHERE f.blocked_by = 'dependency' AND f.state IN ('Pending', 'Reserved') AND NOT d.is_satisfied
  AND fluxjob_dependency_outcome(d.kind, t.state, t.started_at) <> 'waiting'
GROUP BY f.uid, f.jobid
UNION ALL
-- Free slots on nodes that take no pods, and pods that were pinned to nodes that are gone.
SELECT DISTINCT 'reconcile', f.uid, f.jobid, f.allocated_at, f.troubles ->> 'last_error'
FROM allocation_slots s JOIN allocations a ON a.id = s.allocation_id AND a.is_live
JOIN fluxjobs f ON f.uid = a.uid LEFT JOIN nodes n ON n.name = s.node
WHERE (s.state = 'free'
       AND NOT coalesce((n.fact ->> 'up')::boolean AND (n.fact ->> 'schedulable')::boolean, false))
   OR (s.state = 'held' AND n.name IS NULL AND EXISTS (
        SELECT FROM pods p WHERE p.uid = s.pod_uid AND p.node IS NULL AND NOT p.is_gated
          AND NOT p.is_terminating))
UNION ALL
-- Some of its pods do not run a while after its release. A look says what keeps them, and says when to look again.
SELECT 'reconcile', uid, jobid, allocated_at + interval '5 s', troubles ->> 'last_error'
FROM fluxjobs WHERE state IN ('Allocated', 'Running') AND NOT is_started AND reconcile_at IS NULL
  AND allocated_at < now() - interval '5 s';

-- Comments for \d+ in psql. words.py has those of tables and their columns.
COMMENT ON VIEW queue IS 'What waits, in the order of its turn';
COMMENT ON COLUMN queue.position IS 'Its turn; null: no cycle looks at it';
COMMENT ON COLUMN queue.jobid IS 'Its number';
COMMENT ON COLUMN queue.namespace IS 'Namespace of the workload';
COMMENT ON COLUMN queue.name IS 'Name of the workload';
COMMENT ON COLUMN queue.queue IS 'Queue it is in';
COMMENT ON COLUMN queue.state IS 'Gathering, Pending, Reserved, Held or Unsatisfiable';
COMMENT ON COLUMN queue.size IS 'Pods that run at once';
COMMENT ON COLUMN queue.priority IS 'Higher goes first';
COMMENT ON COLUMN queue.expected_start IS 'When it will start, as far as is known';
COMMENT ON COLUMN queue.waiting IS 'Since it was submitted';
COMMENT ON COLUMN queue.reason IS 'Why it waits';
COMMENT ON VIEW quarantine IS 'What could not be used, read, decided or carried out, and is set aside';
COMMENT ON COLUMN quarantine.jobid IS 'Its number; null: no FluxJob stands for it';
COMMENT ON COLUMN quarantine.namespace IS 'Namespace of the workload';
COMMENT ON COLUMN quarantine.name IS 'Name of the workload';
COMMENT ON COLUMN quarantine.queue IS 'Queue it is in';
COMMENT ON COLUMN quarantine.user_name IS 'Who submitted it';
COMMENT ON COLUMN quarantine.held_by IS 'too-complex or quarantine: it is held; input, stalled, or the kind of an object';
COMMENT ON COLUMN quarantine.reason IS 'Why it is set aside, and the way out';
COMMENT ON COLUMN quarantine.quarantined_by IS 'Version of the software that could not decide it';
COMMENT ON COLUMN quarantine.uid IS 'UID of the workload, or what tells an object from others of its kind';
COMMENT ON COLUMN quarantine.waiting IS 'Since it was submitted, or set aside';
COMMENT ON VIEW pending_queue IS 'Of queue, what is in its turn or promised a start';
COMMENT ON COLUMN pending_queue.position IS 'Its turn';
COMMENT ON COLUMN pending_queue.jobid IS 'Its number';
COMMENT ON COLUMN pending_queue.namespace IS 'Namespace of the workload';
COMMENT ON COLUMN pending_queue.name IS 'Name of the workload';
COMMENT ON COLUMN pending_queue.queue IS 'Queue it is in';
COMMENT ON COLUMN pending_queue.state IS 'Pending or Reserved';
COMMENT ON COLUMN pending_queue.size IS 'Pods that run at once';
COMMENT ON COLUMN pending_queue.priority IS 'Higher goes first';
COMMENT ON COLUMN pending_queue.expected_start IS 'When it will start, as far as is known';
COMMENT ON COLUMN pending_queue.waiting IS 'Since it was submitted';
COMMENT ON COLUMN pending_queue.reason IS 'Why it waits';
COMMENT ON VIEW node_usage IS 'What each node has of each resource, and who uses it';
COMMENT ON COLUMN node_usage.node IS 'Name of the node';
COMMENT ON COLUMN node_usage.resource IS 'cpu (millicores), memory (bytes), others (pieces)';
COMMENT ON COLUMN node_usage.capacity IS 'What pods may use';
COMMENT ON COLUMN node_usage.allocated IS 'What is allocated to FluxJobs';
COMMENT ON COLUMN node_usage.foreign_used IS 'What pods of others ask for';
COMMENT ON COLUMN node_usage.free IS 'What is neither';
COMMENT ON VIEW drift IS 'Broken invariants; to be empty';
COMMENT ON COLUMN drift.invariant IS 'Which one';
COMMENT ON COLUMN drift.subject IS 'Of what';
COMMENT ON COLUMN drift.detail IS 'In figures';
COMMENT ON VIEW pending_actions IS 'What the workers still have to do';
COMMENT ON COLUMN pending_actions.task IS 'status, release or reconcile';
COMMENT ON COLUMN pending_actions.uid IS 'For which workload: fluxjobs.uid';
COMMENT ON COLUMN pending_actions.jobid IS 'Its number';
COMMENT ON COLUMN pending_actions.since IS 'Since when it has been due';
COMMENT ON COLUMN pending_actions.last_error IS 'Why it has failed last';

-- 60_storage.sql
-- When Postgres vacuums each table. The defaults wait for a fifth of a table to be dead. For a table
-- that keeps a month of ended jobs, that is days of work. The settings are part of the schema, because
-- the server may belong to another team.

-- Rows that change several times: free space beside them, so that an update touches no index.
ALTER TABLE fluxjobs SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.01,
    autovacuum_analyze_threshold = 500);
ALTER TABLE allocations SET (autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.01);
ALTER TABLE allocation_slots SET (autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.01);

-- Small tables of what lives now. All their rows change within minutes.
ALTER TABLE pods SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE graph_changes SET (autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE reservations SET (autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE foreign_usage SET (autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE leadership SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0);

-- Written once, and deleted once, much later.
ALTER TABLE history SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE accounting SET (autovacuum_vacuum_scale_factor = 0.02);

-- 70_reader.sql
-- The role that may read and change nothing. Grant it: GRANT fluxqueue_reader TO a_role. Roles belong
-- to the server, so it may exist already. The migrating role may lack the right to create it.
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'fluxqueue_reader') THEN
        CREATE ROLE fluxqueue_reader NOLOGIN;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE WARNING 'role fluxqueue_reader is not there and may not be made here; docs/admin/psql.md says how';
END $$;
-- Without a login of its own, the view server logs in as the migrating role and then acts as this
-- role. From Postgres 16 on, a role that is not a superuser is no member of a role that it created.
DO $$ BEGIN
    IF NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
        GRANT fluxqueue_reader TO CURRENT_USER;
    END IF;
EXCEPTION
    WHEN undefined_object OR insufficient_privilege THEN NULL;
END $$;
DO $$ BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'fluxqueue_reader') THEN
        GRANT SELECT ON ALL TABLES IN SCHEMA public TO fluxqueue_reader;
    END IF;
END $$;
