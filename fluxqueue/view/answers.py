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
    _f("jobid", COUNT, "Its number"),
    _f("namespace", TEXT, "Namespace of the workload"),
    _f("name", TEXT, "Name of the workload"),
)
_BOOKED = (
    _f("user", TEXT, "Who submitted it"),
    _f("queue", TEXT, "Queue it is in"),
)
_JOB = (
    *_WHOSE,
    _f("kind", TEXT, "Kind of the workload"),
    _f("fluxJob", TEXT, "Name of its FluxJob", "fluxjob"),
    *_BOOKED,
    _f("state", STATE, "Where it is in its life"),
    _f("reason", TEXT, "Why it is in this state"),
    _f("size", COUNT, "Pods that run at once, all or none"),
    _f("priority", COUNT, "Higher goes first"),
    _f("nodes", TEXT_OR_NULL, "Where it runs or ran, a hostlist: n[1-3]"),
    _f("expectedStart", TIME_OR_NULL, "When it will start, as far as is known", "expected_start"),
    _f("heldBy", TEXT_OR_NULL, "Who holds it", "held_by"),
    _f("blockedBy", TEXT_OR_NULL, "Why no cycle looks at it yet", "blocked_by"),
    _f("requeues", COUNT, "How often it went back to the queue"),
    _f("submittedAt", TIME, "When it was first seen", "submitted_at"),
    _f("allocatedAt", TIME_OR_NULL, "When its nodes were given to it", "allocated_at"),
    _f("startedAt", TIME_OR_NULL, "When its first pod was seen running", "started_at"),
    _f("endedAt", TIME_OR_NULL, "When it had returned everything", "ended_at"),
)

JOB = Item("Job", "A FluxJob", _JOB)
QUEUED = Item(
    "QueuedJob",
    "A FluxJob that has not ended",
    (*_JOB, _f("position", COUNT_OR_NULL, "Its turn among all that wait; null: it has none")),
)
START = Item(
    "ExpectedStart",
    "A FluxJob that waits, and when it is expected to start",
    (
        *_WHOSE,
        *_BOOKED,
        _f("state", STATE, "Pending or Reserved"),
        _f("size", COUNT, "Pods that run at once"),
        _f("priority", COUNT, "Higher goes first"),
        _f("expectedStart", TIME, "When it will start, as far as is known", "expected_start"),
        _f("promisedStart", TIME_OR_NULL, "When it has a reservation", "promised_start"),
        _f("nodes", TEXT_OR_NULL, "Where it has a reservation, a hostlist"),
        _f("reason", TEXT, "Why it waits"),
    ),
)
NODE = Item(
    "Node",
    "A node, and who uses how much of it",
    (
        _f("name", TEXT, "Its name"),
        _f("state", {"type": "string", "enum": list(NODE_STATES)}, "As `fluxqueue nodes` has it"),
        _f("resources", RESOURCES, "By resource, in base units: millicores, bytes, pieces"),
        _f("labels", LABELS, "Its labels"),
    ),
)
LINE = Item(
    "HistoryLine",
    "Something that happened to a FluxJob, or that somebody did to it",
    (
        _f("id", COUNT, "In the order of writing"),
        _f("at", TIME, "When"),
        _f("jobid", COUNT, "To which FluxJob"),
        _f("name", TEXT, "Name of the workload"),
        _f("actor", TEXT, "Who: a user, or a part of fluxqueue"),
        _f("event", TEXT, "What: the state it came to, or a command"),
        _f("detail", ANYTHING, "From which state, why, and what else belongs to it"),
    ),
)
RUN = Item(
    "Run",
    "One run of a FluxJob that has ended",
    (
        _f("id", COUNT, "In the order of writing"),
        *_WHOSE,
        _f("run", COUNT, "Counts from 1; a requeue begins another"),
        *_BOOKED,
        _f("result", TEXT, "The final state, or Requeued"),
        _f("size", COUNT, "Pods that ran at once"),
        _f("nodes", COUNT, "How many nodes it had"),
        _f("slots", COUNT, "How many slots it had"),
        _f("queuedAt", TIME, "When this run began to wait", "queued_at"),
        _f("allocatedAt", TIME_OR_NULL, "When it was given its nodes; null: never", "allocated_at"),
        _f("startedAt", TIME_OR_NULL, "When its first pod was seen running", "started_at"),
        _f("endedAt", TIME, "When it had returned everything", "ended_at"),
        _f("cpuSeconds", AMOUNT, "Core-seconds given", "cpu_s"),
        _f("gpuSeconds", AMOUNT, "GPU-seconds given", "gpu_s"),
        _f("reason", TEXT, "Why it ended so"),
    ),
)
SUM = Item(
    "Use",
    "A sum of runs; it has the fields that it is summed by",
    (
        *(
            Field(name, TEXT, f"The {name} of all these runs", name, is_there=False)
            for name in ("user", "queue", "namespace", "result", "day", "month")
        ),
        _f("runs", COUNT, "How many"),
        _f("cpuHours", AMOUNT, "Core-hours given", "cpu_h"),
        _f("gpuHours", AMOUNT, "GPU-hours given", "gpu_h"),
        _f("waitSeconds", AMOUNT_OR_NULL, "Mean wait of those that were given nodes", "wait_s"),
    ),
)
CHANGE = Item(
    "Change",
    "What the server sends as the data of an event `change`",
    (
        _f("id", COUNT, "Number of the line in the history"),
        _f("at", TIME, "When"),
        *_WHOSE,
        *_BOOKED,
        _f("state", STATE, "Where it is now"),
        _f("event", TEXT, "What happened: the state it came to, or a command"),
        _f("actor", TEXT, "Who: a user, or a part of fluxqueue"),
        _f("reason", TEXT_OR_NULL, "Why"),
    ),
)
CALLER = Item(
    "Caller",
    "Who asks, and what he may see",
    (
        _f("user", TEXT, "His name"),
        _f("groups", {"type": "array", "items": TEXT}, "His groups"),
        _f("seesAllNamespaces", {"type": "boolean"}, "FluxJobs in all namespaces", "sees_all"),
        _f("seesNodes", {"type": "boolean"}, "Nodes", "sees_nodes"),
    ),
)
ITEMS = (JOB, QUEUED, START, NODE, LINE, RUN, SUM, CHANGE, CALLER)
