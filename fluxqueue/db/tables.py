"""The tables: what was decided, what was last seen, and what is still to be done.

This is the only description of the schema, and ``migrations/`` is checked against it. Rows are the
decisions. A process may crash between any two statements, and the next one resumes from the rows.

Ended rows are kept for long (``retention``) and must cost nothing meanwhile. A statement that looks
for live rows therefore filters by ``state`` (``LIVING``) or ``is_gone``, which have partial
indexes. A condition on ``ended_at`` means the same, but reads every row that was ever kept.
``tests/integration/db/test_retained_rows.py`` counts the rows that each reader touches.

- ``fluxjobs``: one row per workload UID: request, state, the workload as last seen
- ``allocations``: one live row per running workload, with an R that is rendered from its slots
- ``allocation_slots``: one row per slot: node, resources, and the pod that holds it
- ``reservations``: planned starts of the last cycle, replaced as a whole by each cycle
- ``expected_starts``: the same where no limit guarantees the start
- ``preemptions``: pairs of victim and preemptor, until the preemptor has started
- ``pods``: managed pods as last seen (only non-final ones)
- ``nodes``: nodes as last seen
- ``foreign_usage``: unmanaged pods that are bound to a node
- ``graph_changes``: changes that no cycle has read yet, consumed by the next one
- ``leadership``: which process may match, and which may observe, under which term
- ``history``: which actor did what to which FluxJob, and when
- ``quarantined_objects``: objects that the controller cannot read or write down
- ``learned_sizes``: what pods ask for beyond their templates, since admission changes them
- ``loops``: when each loop of fluxqueue last succeeded
- ``cluster``: the cluster that all rows are about
- ``schema_floor``: the oldest code that still works on this schema
- ``dependencies``: edges of depends_on, each with the workload its name stands for
- ``accounting``: one row per run: when, where to, how much, and how it ended
- ``fluxqueues``: one row per named queue (``default`` always exists)
- ``sharing_policies``: one row per ResourceSharingPolicy: what of nodes jobs may have
- ``node_pools``: one row per FluxNodePool: what nodes may be asked for
- ``node_requests``: nodes that were asked for, for one job each, until they are used or given up
- ``pool_nodes``: the nodes of pools, and the request that each came for
- ``fair_shares``: decayed use by queue and user, and the points it is worth
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    DateTime,
    Double,
    Float,
    ForeignKey,
    Identity,
    Index,
    Integer,
    MetaData,
    Numeric,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, INT4MULTIRANGE, JSONB

from fluxqueue.db import words
from fluxqueue.fluxjob.follow import SlotState
from fluxqueue.fluxjob.states import FINAL, PROVISIONING, FluxJobState
from fluxqueue.workload import labels

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _quoted(values: object) -> str:
    return ", ".join(f"'{value}'" for value in sorted(values))  # type: ignore[call-overload]


_FINAL = _quoted(FINAL)
LIVING = f"state NOT IN ({_FINAL})"
"""Condition of a FluxJob that has not ended, as its partial index has it."""
RANK = """
CASE
    WHEN state = ANY (ARRAY['Running'::text, 'Allocated'::text]) THEN 0
    WHEN (state = ANY (ARRAY['Pending'::text, 'Reserved'::text])) AND blocked_by IS NULL THEN 1
    WHEN state = ANY (ARRAY['Pending'::text, 'Reserved'::text]) THEN 2
    ELSE 3
END"""
"""Ranks running FluxJobs, those in their turn, those that wait for others or for a time, the rest.

The index of the displayed list (``reading.fluxjobs.living``) contains the same expression, in the
words in which Postgres gives it back.
"""
SHOWN_STATE = f"""
CASE WHEN state = 'Pending' AND wait_reason = '{PROVISIONING}' AND blocked_by IS NULL
     THEN wait_reason ELSE state END"""
"""The word for the state that users read, as ``states.shown_state`` has it."""
FALLING = "- priority::bigint"
"""Sorts the highest priority first, in one direction with what follows it."""
_NOW = text("now()")

fluxjobs = Table(
    "fluxjobs",
    metadata,
    Column("uid", Text, primary_key=True, comment="UID of the workload object"),
    Column("jobid", BigInteger, Identity(always=True), unique=True, nullable=False),
    Column("place", BigInteger, nullable=False, comment="order in one priority, see 32_place.sql"),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False, comment="name of the FluxJob object"),
    Column("workload_kind", Text, nullable=False),
    Column("workload_name", Text, nullable=False),
    Column("flux_uid", Text, comment="UID of the FluxJob object"),
    Column(
        "flux_version", Text, comment="resourceVersion that it had when we wrote it last, if known"
    ),
    Column(
        "written_version",
        BigInteger,
        nullable=False,
        server_default="0",
        comment="version that the FluxJob object shows",
    ),
    Column(
        "observed_generation",
        BigInteger,
        nullable=False,
        server_default="1",
        comment="generation of the FluxJob's spec that was applied last",
    ),
    Column(
        "status_written_at", DateTime(timezone=True), comment="when that was written, or put off"
    ),
    Column("told", Text, comment="reason of the last Event"),
    Column(
        "told_version",
        BigInteger,
        nullable=False,
        server_default="0",
        comment="version of the row when that became the reason",
    ),
    Column(
        "notices",
        JSONB,
        nullable=False,
        server_default=text("'[]'::jsonb"),
        comment="what else is to be told by Events, with the next status",
    ),
    Column(
        "status_due_at",
        DateTime(timezone=True),
        comment="pending_actions: its status is to be written, from then on",
    ),
    Column(
        "release_at",
        DateTime(timezone=True),
        comment="pending_actions: its workload object is to be made what the row says",
    ),
    Column(
        "reconcile_at",
        DateTime(timezone=True),
        comment="pending_actions: a look at its pods, slots or begin time, from then on",
    ),
    Column(
        "said",
        JSONB,
        nullable=False,
        server_default=text("'{}'::jsonb"),
        comment="what its author says that counts, by annotation: the last good value of each",
    ),
    Column(
        "faults",
        JSONB,
        nullable=False,
        server_default=text("'[]'::jsonb"),
        comment="what of its objects cannot be used since it was admitted",
    ),
    Column(
        "stalled",
        JSONB,
        nullable=False,
        server_default=text("'{}'::jsonb"),
        comment="why what is pending_actions is refused, by task",
    ),
    Column("troubled_at", DateTime(timezone=True), comment="since when it has faults, or stalls"),
    Column("last_error", Text, comment="why what is pending_actions has failed last"),
    Column("user_name", Text, nullable=False, server_default="", comment="who submitted it"),
    Column("queue", Text, nullable=False, server_default="default"),
    Column("set_queue", Text, comment="where an operator moved it; wins over the author's"),
    Column(
        "priority", BigInteger, nullable=False, server_default="0", comment="see 30_priority.sql"
    ),
    Column("asked_priority", Integer, nullable=False, server_default="0"),
    Column(
        "is_priority_granted",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="a class that an administrator made gives what its author asked for",
    ),
    Column("set_priority", Integer, comment="given by an operator; wins over the author's"),
    Column("priority_parts", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("state", Text, nullable=False, server_default=FluxJobState.PENDING),
    Column("reason", Text, nullable=False, server_default=""),
    Column("wait_reason", Text, comment="kind of what keeps it from its turn; null: only room"),
    Column("position", Integer, comment="place in its queue, roughly, as far as it was planned"),
    Column("held_by", Text, comment="author, or the user who held it"),
    Column("quarantined_by", Text, comment="version of the software that could not decide it"),
    Column("request", JSONB, nullable=False),
    Column("size", Integer, nullable=False),
    Column("duration_s", Integer),
    Column(
        "grace_s",
        Integer,
        nullable=False,
        server_default="0",
        comment="how long its pods may take to end, in seconds",
    ),
    Column(
        "is_limited",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="Kubernetes ends its pods after duration_s",
    ),
    Column("accepted_by", Text, comment="queue that took it in; asked again after a move"),
    Column("begin_at", DateTime(timezone=True), comment="not to start before"),
    Column("set_begin_at", DateTime(timezone=True), comment="set by hand; wins over the author's"),
    Column(
        "steered", JSONB, comment="what its FluxJob's spec said by hand when it was last applied"
    ),
    Column("depends_on", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    Column("blocked_by", Text, comment="why no cycle considers it yet; null: one does"),
    Column(
        "blocked_reason", Text, nullable=False, server_default="", comment="the same, at length"
    ),
    Column(
        "is_gathered",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="no object stands for it: it is made by its pods",
    ),
    Column("made_by", Text, comment="who makes its pods, where they cannot be deleted one by one"),
    Column("owner", JSONB, comment="what makes its pods, of a kind that is no entry: where it is"),
    Column("missing", Integer, nullable=False, server_default="0", comment="pods yet to come"),
    Column("gather_reason", Text, nullable=False, server_default="", comment="the same, in words"),
    Column(
        "gather_s", Integer, nullable=False, server_default="0", comment="they may take so long"
    ),
    Column("gather_until", DateTime(timezone=True), comment="when they are overdue"),
    Column("further", JSONB, comment="kinds of slots that further pods may need; null: as request"),
    Column("asked", JSONB, comment="what it came to ask for since it was given its nodes"),
    Column("author_hold", Text, comment="how its author holds it, whoever else does"),
    Column("vacate_by", Text, comment="who wants its pods gone and it back in the queue"),
    Column("cancel_by", Text, comment="who wants its workload deleted"),
    Column("requeues", Integer, nullable=False, server_default="0"),
    Column(
        "released_generation",
        BigInteger,
        comment="generation of the BatchJob that our release made",
    ),
    Column(
        "idle_in", BigInteger, comment="generation in which it was seen suspended, without pods"
    ),
    Column(
        "has_affinity",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="its pods require node affinity of their own",
    ),
    Column(
        "is_pinnable",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="its pod template may name the one node of all its slots",
    ),
    Column(
        "is_placeable",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="its pod template may name the node of each index",
    ),
    Column(
        "is_placed",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="its pod template names the node of each index since its release",
    ),
    Column(
        "is_suspendable",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="its kind is held by being suspended",
    ),
    Column(
        "replaces_pods",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="another pod is made for one that is deleted",
    ),
    Column(
        "restarts_on_loss",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="where a pod is lost with its node, all of them start anew",
    ),
    Column(
        "is_sweep",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="its pods are independent: each takes its own turn",
    ),
    Column(
        "waits_gated",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="it is not suspended while it waits: its pods exist, gated",
    ),
    Column("pinned_to", Text, comment="node that its pod template names since its release"),
    Column(
        "is_started",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="all of its pods have run since its nodes were allocated",
    ),
    Column("starting", JSONB, comment="what keeps its pods from running; null: nothing is known"),
    Column("start_error", Text, comment="why its last start failed"),
    Column(
        "start_tries",
        Integer,
        nullable=False,
        server_default="0",
        comment="starts that failed since it last started",
    ),
    Column("retry_at", DateTime(timezone=True), comment="it is not tried again before"),
    Column(
        "start_timeout_s", Integer, comment="how long a start may take; null: as its queue says"
    ),
    Column("provision", Text, comment="whether nodes may be asked for; null: when needed"),
    Column(
        "spare_failures",
        Integer,
        comment="how many of its pods may be deleted before it fails; null: any number",
    ),
    Column("ignored", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    Column("wanted", Integer, nullable=False, server_default="0"),
    Column("wanted_of", JSONB, comment="the same by kind of slots, where that is known"),
    Column("lacking", Integer, nullable=False, server_default="0", comment="slots to be added"),
    Column(
        "ended_indexes",
        INT4MULTIRANGE,
        nullable=False,
        server_default=text("'{}'::int4multirange"),
        comment="completion indexes that get no pod any more",
    ),
    Column("result", Text),
    Column("is_deleting", Boolean, nullable=False, server_default=text("false")),
    Column("is_gone", Boolean, nullable=False, server_default=text("false")),
    Column("is_suspended", Boolean, nullable=False, server_default=text("false")),
    Column("is_examined", Boolean, nullable=False, server_default=text("false")),
    Column("submitted_at", DateTime(timezone=True), nullable=False, server_default=_NOW),
    Column("allocated_at", DateTime(timezone=True)),
    Column("started_at", DateTime(timezone=True)),
    Column("ended_at", DateTime(timezone=True)),
    Column("expected_start", DateTime(timezone=True)),
    Column("version", BigInteger, nullable=False, server_default="1"),
    CheckConstraint(f"state IN ({_quoted(FluxJobState)})", name="state"),
    CheckConstraint(f"(state IN ({_FINAL})) = (ended_at IS NOT NULL)", name="ended"),
    CheckConstraint("size >= 0", name="size"),
    CheckConstraint("blocked_by IN ('dependency', 'begin-time', 'start-retry')", name="blocked_by"),
    CheckConstraint("lacking >= 0", name="lacking"),
    CheckConstraint("missing >= 0", name="missing"),
    CheckConstraint("duration_s IS NULL OR duration_s > 0", name="duration"),
)
Index(
    "ix_fluxjobs_waiting",
    fluxjobs.c.queue,
    fluxjobs.c.priority.desc(),
    fluxjobs.c.place,
    # Exactly those that a cycle looks at, so that held and blocked ones cost it nothing.
    postgresql_where=text(
        "state IN ('Pending', 'Reserved') AND is_examined AND blocked_by IS NULL"
    ),
)
Index(
    "ix_fluxjobs_unexamined",
    fluxjobs.c.jobid,
    postgresql_where=text(
        "NOT is_examined AND (state IN ('Pending', 'Reserved') OR held_by = 'queue')"
    ),
)
Index(
    "ix_fluxjobs_state",
    fluxjobs.c.queue,
    fluxjobs.c.state,
    postgresql_where=text(LIVING),
)
Index(
    "ix_fluxjobs_turn",
    text(f"({RANK})"),
    text(f"({FALLING})"),
    fluxjobs.c.place,
    postgresql_where=text(LIVING),
)
# Those that are examined until all of their pods run.
Index(
    "ix_fluxjobs_starting",
    fluxjobs.c.allocated_at,
    postgresql_where=text("state IN ('Allocated', 'Running') AND NOT is_started"),
)
Index("ix_fluxjobs_lacking", fluxjobs.c.jobid, postgresql_where=text("lacking > 0"))
Index(
    "ix_fluxjobs_pending_actions",
    fluxjobs.c.uid,
    postgresql_where=text(
        "status_due_at IS NOT NULL OR release_at IS NOT NULL OR reconcile_at IS NOT NULL"
    ),
)
Index("ix_fluxjobs_namespace_name", fluxjobs.c.namespace, fluxjobs.c.name)
Index("ix_fluxjobs_namespace_workload_name", fluxjobs.c.namespace, fluxjobs.c.workload_name)
Index("ix_fluxjobs_present", fluxjobs.c.uid, postgresql_where=text(f"NOT is_gone OR {LIVING}"))
Index("ix_fluxjobs_gone", fluxjobs.c.ended_at, postgresql_where=text("is_gone"))

allocations = Table(
    "allocations",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("uid", Text, ForeignKey(fluxjobs.c.uid, ondelete="CASCADE"), nullable=False),
    Column("term", BigInteger, nullable=False, comment="leadership term that decided it"),
    Column("starts_at", BigInteger, nullable=False, comment="epoch seconds"),
    Column("until", BigInteger, comment="epoch seconds; null is unlimited"),
    Column("is_exclusive", Boolean, nullable=False, server_default=text("false")),
    Column(
        "held",
        ARRAY(Text),
        nullable=False,
        server_default=text("'{}'"),
        comment="further nodes held whole, as of an exclusive rack",
    ),
    Column("is_live", Boolean, nullable=False, server_default=text("true")),
    Column("ended_at", DateTime(timezone=True)),
    CheckConstraint("is_live = (ended_at IS NULL)", name="ended"),
)
Index(
    "uq_allocations_live",
    allocations.c.uid,
    unique=True,
    postgresql_where=text("is_live"),
)
Index("ix_allocations_uid", allocations.c.uid)

allocation_slots = Table(
    "allocation_slots",
    metadata,
    Column(
        "allocation_id",
        BigInteger,
        ForeignKey(allocations.c.id, ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("number", Integer, primary_key=True),
    Column("node", Text, nullable=False),
    Column("resources", JSONB, nullable=False),
    Column("state", Text, nullable=False, server_default=SlotState.FREE),
    Column("pod_uid", Text),
    Column("given_at", DateTime(timezone=True), nullable=False, server_default=_NOW),
    Column("returned_at", DateTime(timezone=True)),
    Column("refused_at", DateTime(timezone=True), comment="when its node refused a pod"),
    Column("completion_index", Integer, comment="whose slot it is, once a pod of it has held it"),
    Column("kind", Text, nullable=False, server_default="", comment="label in the request"),
    Column("granted", JSONB, comment="what it was before its pod was resized in place"),
    Column("others", ARRAY(Text), comment="further nodes that its pod may be bound to"),
    Column(
        "past_s",
        Double,
        nullable=False,
        server_default="0",
        comment="seconds for which a sweep had it before it was given again",
    ),
    CheckConstraint(f"state IN ({_quoted(SlotState)})", name="state"),
    CheckConstraint(f"(state = '{SlotState.HELD}') = (pod_uid IS NOT NULL)", name="held"),
)
Index(
    "uq_allocation_slots_pod",
    allocation_slots.c.pod_uid,
    unique=True,
    postgresql_where=text("pod_uid IS NOT NULL"),
)
Index(
    "ix_allocation_slots_others",
    allocation_slots.c.allocation_id,
    postgresql_where=text("others IS NOT NULL AND state <> 'returned'"),
)
Index(
    "ix_allocation_slots_returned_at",
    allocation_slots.c.returned_at,
    postgresql_where=text("returned_at IS NOT NULL"),
)
# By allocation first. Before the planner knows how many rows there are, it also takes this index
# for the slots of one allocation. If the index began with the node, each such look-up would read
# all of it.
Index(
    "ix_allocation_slots_live",
    allocation_slots.c.allocation_id,
    allocation_slots.c.node,
    postgresql_where=text(f"state <> '{SlotState.RETURNED}'"),
)

reservations = Table(
    "reservations",
    metadata,
    Column("uid", Text, ForeignKey(fluxjobs.c.uid, ondelete="CASCADE"), primary_key=True),
    Column("starts_at", BigInteger, nullable=False, comment="epoch seconds"),
    Column("until", BigInteger, comment="epoch seconds; null is unlimited"),
    Column("nodes", JSONB, nullable=False),
)

expected_starts = Table(
    "expected_starts",
    metadata,
    Column("uid", Text, ForeignKey(fluxjobs.c.uid, ondelete="CASCADE"), primary_key=True),
    Column("latest_start", BigInteger, nullable=False, comment="epoch seconds; by plan only"),
    Column("nodes", JSONB, nullable=False),
)

# No foreign keys: they lock the rows that they refer to. A cycle that decides this must not wait
# for a transaction that reconciles these rows.
preemptions = Table(
    "preemptions",
    metadata,
    Column("victim", Text, primary_key=True, comment="UID of who makes way"),
    Column("allocation_id", BigInteger, nullable=False, comment="what it is to give back"),
    Column("preemptor", Text, nullable=False, comment="UID of whom it makes way for"),
    Column("jobid", BigInteger, nullable=False, comment="of the preemptor"),
    Column("vacate_at", BigInteger, nullable=False, comment="epoch seconds: not to leave before"),
    Column(
        "decided_at",
        DateTime(timezone=True),
        nullable=False,
        server_default=_NOW,
        comment="when a cycle wanted it",
    ),
    Column(
        "is_told",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="both sides have been told",
    ),
    Column(
        "is_vacated",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="it has been asked to leave",
    ),
    Column(
        "is_off",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="over: the preemptor has started, or does not want it any more",
    ),
    Column(
        "reason_before",
        Text,
        nullable=False,
        server_default="",
        comment="what the victim said before it was told",
    ),
)
Index("ix_preemptions_preemptor", preemptions.c.preemptor)

pods = Table(
    "pods",
    metadata,
    Column("uid", Text, primary_key=True),
    Column("workload_uid", Text, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("phase", Text, nullable=False),
    Column("is_gated", Boolean, nullable=False),
    Column("is_terminating", Boolean, nullable=False),
    Column("node", Text),
    Column("completion_index", Integer),
    # When its release was last sent. A release that is under way is not sent again.
    Column("sent_at", DateTime(timezone=True)),
    Column(
        "slot_kind", Text, nullable=False, server_default="", comment="kind of slot that it needs"
    ),
    Column("uses", JSONB, comment="what it asks for by its own words"),
    Column("used_first", JSONB, comment="the same when it was seen first"),
    Column("unmanaged", JSONB, comment="what of it no slot covers, once bound"),
    Column(
        "unschedulable",
        Text,
        comment="why kube-scheduler cannot bind it, in its own words, or what scheduler is missing",
    ),
    Column("unschedulable_at", DateTime(timezone=True), comment="since when"),
)
Index("ix_pods_workload_uid", pods.c.workload_uid)
Index("ix_pods_unmanaged", pods.c.node, postgresql_where=text("unmanaged IS NOT NULL"))
Index("ix_pods_sent_at", pods.c.sent_at, postgresql_where=text("is_gated AND sent_at IS NOT NULL"))

nodes = Table(
    "nodes",
    metadata,
    Column("name", Text, primary_key=True),
    Column("fact", JSONB, nullable=False),
    Column("seen_at", DateTime(timezone=True), nullable=False, server_default=_NOW),
    Column(
        "hostname",
        Text,
        Computed(f"fact -> 'labels' ->> '{labels.HOSTNAME}'", persisted=True),
        comment="value of the label by which pods choose it; need not be its name",
    ),
)
Index("ix_nodes_hostname", nodes.c.hostname)

foreign_usage = Table(
    "foreign_usage",
    metadata,
    Column("pod_uid", Text, primary_key=True),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("node", Text, nullable=False),
    Column("resources", JSONB, nullable=False),
    Column(
        "is_permanent",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="of a DaemonSet, or static",
    ),
)
Index("ix_foreign_usage_node", foreign_usage.c.node)

graph_changes = Table(
    "graph_changes",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column(
        "kind",
        Text,
        nullable=False,
        comment="node, queue, sharing, pool: name; foreign: its node's; allocation: its id;"
        " fluxjob: uid",
    ),
    Column("key", Text, nullable=False),
    CheckConstraint(
        "kind IN ('node', 'foreign', 'allocation', 'queue', 'fluxjob', 'sharing', 'pool',"
        " 'cluster')",
        name="kind",
    ),
)

leadership = Table(
    "leadership",
    metadata,
    Column("role", Text, primary_key=True),
    Column("term", BigInteger, nullable=False),
    Column("holder", Text, nullable=False),
    Column("expires_at", DateTime(timezone=True), nullable=False),
    Column("commits", BigInteger, nullable=False, server_default=text("0")),
    Column("timeline", Text),
    Column("since", DateTime(timezone=True), nullable=False, server_default=text("now()")),
)

history = Table(
    "history",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("at", DateTime(timezone=True), nullable=False, server_default=_NOW),
    Column("uid", Text, nullable=False),
    Column("jobid", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("event", Text, nullable=False),
    Column("detail", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
)
Index("ix_history_uid", history.c.uid, history.c.id)

fluxqueues = Table(
    "fluxqueues",
    metadata,
    Column("name", Text, primary_key=True),
    Column("uid", Text, comment="UID of the FluxQueue object; null before it was seen"),
    Column("generation", BigInteger, nullable=False, server_default="0"),
    Column("spec", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("namespaces", JSONB, comment="those allowed, selectors resolved; null: all"),
    Column("queue_depth", Integer, comment="null: as the settings say"),
    Column("priority", Integer, nullable=False, server_default="0"),
    Column("min_priority", Integer),
    Column("max_priority", Integer),
    Column(
        "newcomer_points",
        Integer,
        nullable=False,
        server_default="0",
        comment="fair share of users without a row; 0: fair share is off",
    ),
    Column("fault", Text, comment="why the last spec seen is not the one in force"),
    CheckConstraint("queue_depth > 0", name="queue_depth"),
)

sharing_policies = Table(
    "sharing_policies",
    metadata,
    Column("name", Text, primary_key=True),
    Column("uid", Text, nullable=False, comment="UID of the ResourceSharingPolicy object"),
    Column("generation", BigInteger, nullable=False, server_default="0"),
    Column("spec", JSONB, comment="the spec in force; null: there was no valid one yet"),
    Column("fault", Text, comment="why the last spec seen is not the one in force"),
)

node_pools = Table(
    "node_pools",
    metadata,
    Column("name", Text, primary_key=True),
    Column("uid", Text, nullable=False, comment="UID of the FluxNodePool object"),
    Column("generation", BigInteger, nullable=False, server_default="0"),
    Column("spec", JSONB, comment="the spec in force; null: there was no valid one yet"),
    Column("fault", Text, comment="why the last spec seen is not the one in force"),
    Column("failures", Integer, nullable=False, server_default="0", comment="failures in a row"),
    Column("retry_at", BigInteger, nullable=False, server_default="0"),
    Column("failed_because", Text, nullable=False, server_default=""),
    Column(
        "learned",
        JSONB,
        nullable=False,
        server_default=text("'[]'::jsonb"),
        comment="seconds that its last nodes took to come, the newest last",
    ),
    Column(
        "missing",
        JSONB,
        nullable=False,
        server_default=text("'{}'::jsonb"),
        comment="names that did not come when they were asked for: epoch seconds by name",
    ),
)

node_requests = Table(
    "node_requests",
    metadata,
    Column("number", BigInteger, Identity(always=True), primary_key=True),
    Column("pool", Text, nullable=False),
    Column("uid", Text, nullable=False, comment="the job that they are for: fluxjobs.uid"),
    Column("queue", Text, nullable=False),
    Column("count", Integer, nullable=False, comment="nodes asked for"),
    Column("price", Numeric, nullable=False, server_default="0", comment="of a node and hour"),
    Column("asked_at", BigInteger, nullable=False),
    Column("ready_at", BigInteger, nullable=False),
    Column(
        "kept",
        JSONB,
        nullable=False,
        server_default=text("'[]'::jsonb"),
        comment="slots of the job on present nodes, held for it: node and resources of each",
    ),
    Column("refused", Text, comment="why its provider refuses it for good"),
    Column(
        "pool_spec",
        JSONB,
        nullable=False,
        server_default=text("'{}'::jsonb"),
        comment="spec of the pool at that time; by it the request is taken back",
    ),
    Column(
        "names",
        ARRAY(Text),
        nullable=False,
        server_default=text("'{}'::text[]"),
        comment="the names that its nodes will have; empty: the provider chooses them",
    ),
    Column("ended", Text, comment="used, failed or withdrawn; null: it is open"),
    Column("reason", Text, nullable=False, server_default=""),
    Column("ended_at", DateTime(timezone=True)),
    Column(
        "is_settled",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="pending_actions: false until the provider has taken it back after its end",
    ),
    CheckConstraint("count > 0", name="count"),
    CheckConstraint("ended IN ('used', 'failed', 'withdrawn')", name="ended"),
)
Index(
    "ix_node_requests_open",
    node_requests.c.number,
    postgresql_where=text("ended IS NULL OR NOT is_settled"),
)
Index("ix_node_requests_uid", node_requests.c.uid)

pool_nodes = Table(
    "pool_nodes",
    metadata,
    Column("node", Text, primary_key=True),
    Column("pool", Text, nullable=False),
    Column("request", BigInteger, comment="node_requests.number that it came for; null: none"),
    Column(
        "returned_at",
        BigInteger,
        comment="pending_actions: since when its provider is to take it back (epoch seconds)",
    ),
    Column("seen_at", DateTime(timezone=True), nullable=False, server_default=_NOW),
)
Index("ix_pool_nodes_request", pool_nodes.c.request)

fair_shares = Table(
    "fair_shares",
    metadata,
    Column("queue", Text, primary_key=True),
    Column("user_name", Text, primary_key=True),
    Column("used", Float, nullable=False, comment="cpu-seconds, decayed to computed_at"),
    Column("factor", Float, nullable=False, comment="1 is nothing used, 0.5 exactly one's share"),
    Column("points", Integer, nullable=False),
    Column("computed_at", DateTime(timezone=True), nullable=False),
)

dependencies = Table(
    "dependencies",
    metadata,
    Column("uid", Text, ForeignKey(fluxjobs.c.uid, ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("job", Text, nullable=False, comment="name or jobid, as its author wrote it"),
    Column("target_uid", Text, comment="the workload that is meant; null: there is none yet"),
    Column("is_satisfied", Boolean, nullable=False, server_default=text("false")),
    CheckConstraint("kind IN ('afterok', 'afternotok', 'afterany', 'after')", name="kind"),
)
Index("ix_dependencies_namespace_job", dependencies.c.namespace, dependencies.c.job)
Index("ix_dependencies_target_uid", dependencies.c.target_uid)

accounting = Table(
    "accounting",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("uid", Text, nullable=False),
    Column("jobid", BigInteger, nullable=False),
    Column("run", Integer, nullable=False, comment="counts from 1; a requeue begins another"),
    Column("allocation_id", BigInteger, comment="null: it never had one"),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False, comment="name of the workload"),
    Column("workload_kind", Text, nullable=False),
    Column("user_name", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("size", Integer, nullable=False),
    Column("queued_at", DateTime(timezone=True), nullable=False),
    Column("allocated_at", DateTime(timezone=True)),
    Column("started_at", DateTime(timezone=True), comment="when the first pod was seen running"),
    Column("ended_at", DateTime(timezone=True), nullable=False),
    Column("nodes", Integer, nullable=False),
    Column("slots", Integer, nullable=False),
    Column("cpu_s", Double, nullable=False, comment="core-seconds given"),
    Column("gpu_s", Double, nullable=False, comment="GPU-seconds given"),
    Column("result", Text, nullable=False, comment="the final state, or Requeued"),
    Column("reason", Text, nullable=False, server_default=""),
)
Index("uq_accounting_run", accounting.c.uid, accounting.c.run, unique=True)
Index(
    "ix_accounting_queue_user",
    accounting.c.queue,
    accounting.c.user_name,
    accounting.c.ended_at,
)
Index("ix_accounting_ended_at", accounting.c.ended_at)
Index("ix_accounting_jobid", accounting.c.jobid)
Index("ix_accounting_namespace_name", accounting.c.namespace, accounting.c.name)

quarantined_objects = Table(
    "quarantined_objects",
    metadata,
    Column("kind", Text, primary_key=True, comment="workload, node, queue, foreign, ..."),
    Column("key", Text, primary_key=True, comment="its UID, or its name"),
    Column("namespace", Text, nullable=False, server_default=""),
    Column("name", Text, nullable=False, server_default=""),
    Column("reason", Text, nullable=False),
    Column("since", DateTime(timezone=True), nullable=False, server_default=_NOW),
)

learned_sizes = Table(
    "learned_sizes",
    metadata,
    Column("namespace", Text, primary_key=True),
    Column("template", Text, primary_key=True, comment="digest of what admission decides by"),
    Column("extra", JSONB, nullable=False, comment="what each pod asks for beyond the template"),
    Column("learned_at", Text, nullable=False, comment="creation time of the pod that showed it"),
    Column("written_at", DateTime(timezone=True), nullable=False, server_default=_NOW),
)

loops = Table(
    "loops",
    metadata,
    Column("loop", Text, primary_key=True, comment="cycle, observe, publish, sweep, ..."),
    Column("holder", Text, nullable=False, comment="the process that wrote this last"),
    Column(
        "began_at",
        DateTime(timezone=True),
        nullable=False,
        server_default=_NOW,
        comment="since when it has been run without a pause",
    ),
    Column("written_at", DateTime(timezone=True), nullable=False, server_default=_NOW),
    Column(
        "succeeded_at",
        DateTime(timezone=True),
        comment="when it last succeeded, or had nothing to do",
    ),
    Column("failed_at", DateTime(timezone=True), comment="when it last failed"),
    Column("error", Text, comment="why it has failed since it last succeeded"),
    Column(
        "patience_s", Integer, nullable=False, comment="so long without success, and it is late"
    ),
)

schema_floor = Table(
    "schema_floor",
    metadata,
    Column("is_only", Boolean, primary_key=True, server_default=text("true")),
    Column("oldest_head", Text, nullable=False, comment="newest revision that such code knows"),
    Column("digest", Text, comment="SHA-256 of the text of the revisions that made the schema"),
    CheckConstraint("is_only", name="one_row"),
)

cluster = Table(
    "cluster",
    metadata,
    Column("is_only", Boolean, primary_key=True, server_default=text("true")),
    Column("uid", Text, nullable=False),
    Column("server", Text, nullable=False),
    Column("bound_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    Column("autoscaler", Text, nullable=False, server_default=""),
    CheckConstraint("is_only", name="one_row"),
)

for _name, _table in metadata.tables.items():
    _table.comment = words.TABLES.get(_name)
    for _column, _text in words.COLUMNS.get(_name, {}).items():
        _table.c[_column].comment = _text
