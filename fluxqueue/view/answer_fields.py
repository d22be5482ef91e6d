"""The fields of each kind of item in answers, as JSON and as schema. Pure.

One table serves both, so the OpenAPI document always matches what is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fluxqueue.fluxjob.states import SHOWN

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
COUNT: Schema = {"type": "integer"}
COUNT_OR_NULL: Schema = {"type": ["integer", "null"]}
AMOUNT: Schema = {"type": "number"}
AMOUNT_OR_NULL: Schema = {"type": ["number", "null"]}
TIME: Schema = {"type": "string", "format": "date-time"}
TIME_OR_NULL: Schema = {"type": ["string", "null"], "format": "date-time"}
STATE: Schema = {"type": "string", "enum": list(SHOWN)}
_OF_RESOURCE = dict.fromkeys(("total", "ours", "others", "free"), AMOUNT)
RESOURCES: Schema = {
    "type": "object",
    "additionalProperties": {
        "type": "object",
        "properties": _OF_RESOURCE,
        "required": list(_OF_RESOURCE),
        "additionalProperties": False,
    },
}
LABELS: Schema = {"type": "object", "additionalProperties": TEXT}
ANYTHING: Schema = {"type": "object"}

NODE_STATES = ("idle", "mixed", "allocated", "draining", "drained", "down")


@dataclass(frozen=True, slots=True)
class Field:
    """One field of an item.

    ``key`` is that of the row. ``is_there``: it is in every answer, not only if asked for.
    """

    name: str
    schema: Schema
    text: str
    key: str
    is_there: bool = True


@dataclass(frozen=True, slots=True)
class Item:
    """A kind of items."""

    name: str
    text: str
    fields: Sequence[Field]

    def render(self, row: object) -> dict[str, Any]:
        """Return one item as JSON, with times still as datetimes. ``row`` has the fields."""
        found = ((one, getattr(row, one.key)) for one in self.fields)
        return {one.name: value for one, value in found if one.is_there or value is not None}

    def schema(self) -> dict[str, Any]:
        """Return its JSON Schema."""
        return {
            "type": "object",
            "description": self.text,
            "properties": {
                one.name: {**one.schema, "description": one.text} for one in self.fields
            },
            "required": [one.name for one in self.fields if one.is_there],
            "additionalProperties": False,
        }


def _f(name: str, schema: Schema, text: str, key: str = "") -> Field:
    return Field(name, schema, text, key or name)


_WHOSE = (
    _f("jobid", COUNT, "Number of the job"),
    _f("namespace", TEXT, "Namespace of the workload"),
    _f("name", TEXT, "Name of the workload"),
)
_BOOKED = (
    _f("user", TEXT, "User that submitted it"),
    _f("queue", TEXT, "Queue of the job"),
)
_JOB = (
    *_WHOSE,
    _f("kind", TEXT, "Kind of the workload"),
    _f("fluxJob", TEXT, "Name of its FluxJob", "fluxjob"),
    *_BOOKED,
    _f("state", STATE, "State of the job"),
    _f("reason", TEXT, "Reason of this state"),
    _f("size", COUNT, "Pods that run at once, as one unit"),
    _f("shape", TEXT, "What it asks for: 4 slots of 16 cpu"),
    _f("priority", COUNT, "Higher goes first"),
    _f(
        "priorityParts",
        {"type": ["object", "null"]},
        "What the priority is the sum of: asked (bounded by the queue), queue, fair share",
        "priority_parts",
    ),
    _f("nodes", TEXT_OR_NULL, "Nodes where it runs or ran, as a hostlist: n[1-3]"),
    _f("expectedStart", TIME_OR_NULL, "Expected start, if known", "expected_start"),
    _f("heldBy", TEXT_OR_NULL, "What holds it", "held_by"),
    _f("blockedBy", TEXT_OR_NULL, "Why no cycle examines it yet", "blocked_by"),
    _f("requeues", COUNT, "How often it returned to the queue"),
    _f("submittedAt", TIME, "Time when it was first seen", "submitted_at"),
    _f("allocatedAt", TIME_OR_NULL, "Time when its nodes were allocated", "allocated_at"),
    _f("startedAt", TIME_OR_NULL, "Time when its first pod was seen running", "started_at"),
    _f("endedAt", TIME_OR_NULL, "Time when everything was returned", "ended_at"),
)

JOB = Item("Job", "A FluxJob", _JOB)
QUEUED = Item(
    "QueuedJob",
    "A FluxJob that has not ended",
    (*_JOB, _f("position", COUNT_OR_NULL, "Its turn among all waiting jobs, null if it has none")),
)
START = Item(
    "ExpectedStart",
    "A waiting FluxJob with its expected start",
    (
        *_WHOSE,
        *_BOOKED,
        _f("state", STATE, "Pending or Reserved"),
        _f("size", COUNT, "Pods that run at once"),
        _f("priority", COUNT, "Higher goes first"),
        _f("expectedStart", TIME, "Expected start, if known", "expected_start"),
        _f("expectedBy", TIME_OR_NULL, "Nine of ten such jobs start by then", "expected_by"),
        _f("promisedStart", TIME_OR_NULL, "Start of its reservation", "promised_start"),
        _f("nodes", TEXT_OR_NULL, "Nodes of its reservation, as a hostlist"),
        _f("reason", TEXT, "Reason why it waits"),
    ),
)
NODE = Item(
    "Node",
    "A node with its use",
    (
        _f("name", TEXT, "Its name"),
        _f(
            "state",
            {"type": "string", "enum": list(NODE_STATES)},
            "The state that `fluxqueue nodes` shows",
        ),
        _f("resources", RESOURCES, "By resource, in base units: millicores, bytes, units"),
        _f("labels", LABELS, "Its labels"),
    ),
)
LINE = Item(
    "HistoryLine",
    "An event or a command in the history of a FluxJob",
    (
        _f("id", COUNT, "Number in the order of writing"),
        _f("at", TIME, "Time"),
        _f("jobid", COUNT, "Number of the FluxJob"),
        _f("name", TEXT, "Name of the workload"),
        _f("actor", TEXT, "A user, or a part of fluxqueue"),
        _f("event", TEXT, "The new state, or a command"),
        _f("detail", ANYTHING, "The old state, the reason, and further details"),
    ),
)
RUN = Item(
    "Run",
    "One run of a FluxJob that has ended",
    (
        _f("id", COUNT, "Number in the order of writing"),
        *_WHOSE,
        _f("run", COUNT, "Counts from 1. A requeue begins another run"),
        *_BOOKED,
        _f("result", TEXT, "The final state, or Requeued"),
        _f("size", COUNT, "Pods that ran at once"),
        _f("nodes", COUNT, "Number of nodes"),
        _f("slots", COUNT, "Number of slots"),
        _f("queuedAt", TIME, "Time when this run began to wait", "queued_at"),
        _f(
            "allocatedAt",
            TIME_OR_NULL,
            "Time when its nodes were allocated, null if never",
            "allocated_at",
        ),
        _f("startedAt", TIME_OR_NULL, "Time when its first pod was seen running", "started_at"),
        _f("endedAt", TIME, "Time when everything was returned", "ended_at"),
        _f("cpuSeconds", AMOUNT, "Core-seconds allocated", "cpu_s"),
        _f("gpuSeconds", AMOUNT, "GPU-seconds allocated", "gpu_s"),
        _f("reason", TEXT, "Reason of the result"),
    ),
)
SUM = Item(
    "Use",
    "A sum of runs, with the fields that it is grouped by",
    (
        *(
            Field(name, TEXT, f"The {name} of all these runs", name, is_there=False)
            for name in ("user", "queue", "namespace", "result", "day", "month")
        ),
        _f("runs", COUNT, "Number of runs"),
        _f("cpuHours", AMOUNT, "Core-hours allocated", "cpu_h"),
        _f("gpuHours", AMOUNT, "GPU-hours allocated", "gpu_h"),
        _f("waitSeconds", AMOUNT_OR_NULL, "Mean wait of the runs that got nodes", "wait_s"),
    ),
)
CHANGE = Item(
    "Change",
    "The data of an event `change`",
    (
        _f("id", COUNT, "Number of the line in the history"),
        _f("at", TIME, "Time"),
        *_WHOSE,
        *_BOOKED,
        _f("state", STATE, "Present state of the job"),
        _f("event", TEXT, "The new state, or a command"),
        _f("actor", TEXT, "A user, or a part of fluxqueue"),
        _f("reason", TEXT_OR_NULL, "Reason"),
    ),
)
CALLER = Item(
    "Caller",
    "The calling user and their rights",
    (
        _f("user", TEXT, "Name of the user"),
        _f("groups", {"type": "array", "items": TEXT}, "Groups of the user"),
        _f(
            "seesAllNamespaces",
            {"type": "boolean"},
            "Whether they may list FluxJobs in all namespaces",
            "sees_all",
        ),
        _f("seesNodes", {"type": "boolean"}, "Whether they may list nodes", "sees_nodes"),
    ),
)
_PAIRS: Schema = {
    "type": "object",
    "additionalProperties": {"type": "array", "items": AMOUNT, "minItems": 2, "maxItems": 2},
}
MAP_NODE = Item(
    "MapNode",
    "A node on the map",
    (
        _f("name", TEXT, "Its name"),
        _f("path", {"type": "array", "items": TEXT}, "Its place in each level, empty if unknown"),
        _f("isUp", {"type": "boolean"}, "Whether it is ready", "is_up"),
        _f("isOpen", {"type": "boolean"}, "Whether it takes new work", "is_open"),
        _f("taints", COUNT, "Number of its taints"),
        _f("resources", _PAIRS, "By resource: capacity, and use by unmanaged pods, in base units"),
    ),
)
COMING_NODE = Item(
    "ComingNode",
    "A node that was asked for and has yet to come",
    (
        _f("name", TEXT, "A name that no node can have"),
        _f("pool", TEXT, "Its FluxNodePool"),
        _f("path", {"type": "array", "items": TEXT}, "Its place in each level, empty if unknown"),
        _f("resources", _PAIRS, "By resource: capacity, and 0, in base units"),
        _f("askedAt", TIME, "Time when it was asked for", "asked_at"),
        _f("expectedAt", TIME, "Time when it can be used", "expected_at"),
    ),
)
MAP = Item(
    "Map",
    "All nodes with their places in the levels",
    (
        _f("levels", {"type": "array", "items": TEXT}, "Names of the levels, from the top"),
        _f(
            "nodes",
            {"type": "array", "items": {"$ref": "#/components/schemas/MapNode"}},
            "The nodes in the order of their names",
        ),
        _f(
            "coming",
            {"type": "array", "items": {"$ref": "#/components/schemas/ComingNode"}},
            "Nodes that were asked for and have yet to come, the earliest first",
        ),
    ),
)
FOUND = Item(
    "Found",
    "What the API server answers",
    (_f("item", {}, "The object, a list in short, or the text of a log. Null after a change"),),
)
_OF_NODES: Schema = {
    "type": "object",
    "additionalProperties": {"type": "object", "additionalProperties": AMOUNT},
}
PLACE = Item(
    "Place",
    "Nodes that a job has, had, or was promised. Jobs that you may not see have no name",
    (
        _f("id", COUNT, "Number in the order of allocation"),
        _f("kind", {"type": "string", "enum": ["running", "ended", "promised"]}, "Which of these"),
        _f("jobid", COUNT_OR_NULL, "Number of the job"),
        _f("namespace", TEXT_OR_NULL, "Namespace of the workload"),
        _f("name", TEXT_OR_NULL, "Name of the workload"),
        _f("user", TEXT_OR_NULL, "User that submitted it"),
        _f("queue", TEXT_OR_NULL, "Queue of the job"),
        _f("state", TEXT_OR_NULL, "State of the job"),
        _f("startsAt", TIME, "Begin of the allocation or of the promise", "starts_at"),
        _f("until", TIME_OR_NULL, "Planned end, null without a limit", "until"),
        _f("endedAt", TIME_OR_NULL, "Time of the end", "ended_at"),
        _f("isExclusive", {"type": "boolean"}, "Whether it holds its nodes whole", "is_exclusive"),
        _f("held", {"type": "array", "items": TEXT}, "Further nodes that it holds whole"),
        _f("nodes", _OF_NODES, "By node the amounts in base units, empty for a promise"),
    ),
)
QUEUE_USE = Item(
    "QueueUse",
    "What a user has in a queue",
    (
        _f("queue", TEXT, "Queue"),
        _f("user", TEXT, "User"),
        _f("running", COUNT, "Jobs with nodes"),
        _f("waiting", COUNT, "Jobs that wait for nodes"),
        _f("held", COUNT, "Jobs that wait for something else"),
        _f("cpu", AMOUNT, "Millicores of running slots", "cpu_m"),
        _f("nodes", COUNT, "Nodes with running slots"),
        _f("factor", AMOUNT_OR_NULL, "Fair share: 1 is nothing used, 0.5 exactly the share"),
        _f("points", COUNT_OR_NULL, "Points of the fair share in the priority"),
        _f("usedHours", AMOUNT_OR_NULL, "Core-hours of the fair share, decayed", "used_h"),
    ),
)
QUEUE_RULES = Item(
    "QueueRules",
    "A queue",
    (
        _f("name", TEXT, "Its name"),
        _f("spec", ANYTHING, "The spec in force"),
        _f("priority", COUNT, "Added to the priority of its jobs"),
        _f("fault", TEXT_OR_NULL, "Why a newer spec is not in force"),
    ),
)
WAIT = Item(
    "Wait",
    "A sum of ended runs of one size within one step of time",
    (
        _f("at", TIME, "Begin of the step"),
        _f("sizeClass", TEXT, "Number of nodes, in classes", "size_class"),
        _f("runs", COUNT, "Number of runs"),
        _f("cpuHours", AMOUNT, "Core-hours allocated", "cpu_h"),
        _f("gpuHours", AMOUNT, "GPU-hours allocated", "gpu_h"),
        _f("waitSeconds", AMOUNT_OR_NULL, "Median wait", "wait_s"),
        _f("waitP95Seconds", AMOUNT_OR_NULL, "95th percentile of the wait", "wait_p95_s"),
    ),
)
PROMISES = Item(
    "PromisesKept",
    "Promised starts of ended runs within one step of time",
    (
        _f("at", TIME, "Begin of the step"),
        _f("promised", COUNT, "Runs that had a promised start"),
        _f("kept", COUNT, "Runs that started then, or earlier"),
        _f("excused", COUNT, "Runs that started later, for a reason in their history"),
    ),
)
UTILISATION = Item(
    "Utilisation",
    "Work within one step of time",
    (
        _f("at", TIME, "Begin of the step"),
        _f("cpuHours", AMOUNT, "Core-hours that jobs had in it", "cpu_h"),
        _f("gpuHours", AMOUNT, "GPU-hours that jobs had in it", "gpu_h"),
    ),
)
_LIST: Schema = {"type": "array"}
_FIGURES: Schema = {
    "type": "object",
    "properties": {
        "waits": {
            "type": "object",
            "description": "By size: jobs, and seconds as mean, median, p95",
        },
        "utilisation": {"type": "object", "description": "Used share of `cpu` and `gpu`"},
        "unstarted": COUNT,
    },
    "required": ["waits", "utilisation", "unstarted"],
}
REPLAY = Item(
    "Replay",
    "A recorded time, as it was and as it was replayed",
    (
        _f("since", COUNT, "Begin in epoch seconds"),
        _f("until", COUNT, "End in epoch seconds"),
        _f("changes", TEXT, "The changes in words"),
        _f("recorded", _FIGURES, "Figures of the record"),
        _f("replayed", _FIGURES, "Figures of the replay"),
        _f("notes", {"type": "array", "items": TEXT}, "What of the record the replay lacks"),
        _f("levels", {"type": "array", "items": TEXT}, "Names of the levels, from the top"),
        _f("nodes", _LIST, "Each node: name, places in the levels, millicores"),
        _f("added", COUNT, "How many of these nodes, at the end, were added"),
        _f(
            "jobs",
            _LIST,
            "Each job: jobid, namespace, name, user, queue, submission, recorded start, end and "
            "nodes, replayed start, end and nodes. Times in epoch seconds, nodes as index and "
            "millicores",
        ),
    ),
)
ITEMS = (
    *(JOB, QUEUED, START, NODE, LINE, RUN, SUM, CHANGE, CALLER),
    *(MAP_NODE, COMING_NODE, MAP, FOUND, PLACE, QUEUE_USE, QUEUE_RULES, WAIT, PROMISES, REPLAY),
    UTILISATION,
)
