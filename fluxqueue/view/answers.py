"""The fields of each kind of item in answers, as JSON and as schema. Pure.

One table serves both, so the OpenAPI document always matches what is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fluxqueue.fluxjob.states import FluxJobState

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
COUNT: Schema = {"type": "integer"}
COUNT_OR_NULL: Schema = {"type": ["integer", "null"]}
AMOUNT: Schema = {"type": "number"}
AMOUNT_OR_NULL: Schema = {"type": ["number", "null"]}
TIME: Schema = {"type": "string", "format": "date-time"}
TIME_OR_NULL: Schema = {"type": ["string", "null"], "format": "date-time"}
STATE: Schema = {"type": "string", "enum": [state.value for state in FluxJobState]}
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

    ``key`` is its key in the row. ``is_there``: it is in every answer, not only if asked for.
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

    def render(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return one item as JSON, with times still as datetimes."""
        return {one.name: row[one.key] for one in self.fields if one.is_there or one.key in row}

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
    _f("priority", COUNT, "Higher goes first"),
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
ITEMS = (JOB, QUEUED, START, NODE, LINE, RUN, SUM, CHANGE, CALLER)
