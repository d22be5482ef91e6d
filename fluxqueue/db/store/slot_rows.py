"""Slots and pods as one look at a workload reads them: each field with its SQL, in one list.

``reconciling`` reads them with the row, as JSON arrays, and ``starts`` uses them. Arrays are half
as long as objects with names. Nothing else may rely on positions: ``read`` names them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fluxqueue.db.store.destinations import DESTINATION
from fluxqueue.fluxjob.facts import WorkloadFacts
from fluxqueue.fluxjob.follow import Slot, SlotState
from fluxqueue.fluxjob.pod_facts import PodFact

UNDER_WAY = "interval '10 s'"
"""How long a pod that is being released is left to the worker that releases it.

After that time this worker counts as dead, as in the view ``pending_actions``.
"""

_UP = "coalesce((n.fact ->> 'up')::boolean, false)"
# Slots of a placed BatchJob belong to their indexes before a pod has held them.
_INDEX = (
    "coalesce(s.completion_index, CASE WHEN f.is_placed AND s.number < f.size THEN s.number END)"
)
# A slot of the first allocation. Its index may get a pod as long as it has not ended. An index that
# its author has cut off may come back.
_NAMED = (
    f"f.is_placed AND s.given_at <= f.allocated_at AND (NOT coalesce({_INDEX} <@ x.ended_indexes,"
    " false) OR s.number >= CAST(f.observed -> 'asked' ->> 'size' AS int))"
)
SLOT_SQL = {
    "number": "s.number",
    "node": "s.node",
    "state": "s.state",
    "pod_uid": "s.pod_uid",
    "is_lost": f"NOT ({_UP} AND coalesce((n.fact ->> 'schedulable')::boolean, false))",
    "is_gone": "n.name IS NULL",
    "is_refused": "s.refused_at IS NOT NULL",
    "completion_index": _INDEX,
    "is_spent": f"coalesce({_INDEX} <@ x.ended_indexes, false)",
    "is_named": f"coalesce({_NAMED}, false)",
    "kind": "s.kind",
    "destination": DESTINATION,
    "is_down": f"NOT {_UP}",
    "resources": "s.resources",
    "given_s": "extract(epoch FROM s.given_at)",
    "refused_s": "extract(epoch FROM s.refused_at)",
    "others": """CASE WHEN s.others IS NOT NULL THEN coalesce((
        SELECT jsonb_agg(jsonb_build_array(o.name, o.hostname) ORDER BY o.name) FROM nodes o
        WHERE o.name = ANY(s.others) AND o.hostname IS NOT NULL), '[]') END""",
}
"""Of ``allocation_slots s``, its node ``n`` and its job ``f``. Times are epoch seconds.

``x`` has the ``ended_indexes`` of the job, read once for all of its slots.
"""

POD_SQL = {
    "uid": "p.uid",
    "name": "p.name",
    "phase": "p.phase",
    "is_gated": "p.is_gated",
    "is_terminating": "p.is_terminating",
    "node": "p.node",
    "completion_index": "p.completion_index",
    "kind": "p.slot_kind",
    "namespace": "p.namespace",
    "is_sent": f"coalesce(p.sent_at > now() - {UNDER_WAY}, false)",
    "uses": "coalesce(p.uses, '{}')",
    "is_counted": "p.unmanaged IS NOT NULL",
    "unschedulable": "coalesce(p.unschedulable, '')",
    "stuck_s": "extract(epoch FROM now() - p.unschedulable_at)",
}
"""Of ``pods p``. ``is_counted``: some of what it uses counts as unmanaged."""


class SlotFields(NamedTuple):
    """A slot of a live allocation. The fields are those of ``SLOT_SQL``."""

    number: int
    node: str
    state: str
    pod_uid: str | None
    is_lost: bool
    is_gone: bool
    is_refused: bool
    completion_index: int | None
    is_spent: bool
    is_named: bool
    kind: str
    destination: Any
    is_down: bool
    resources: Mapping[str, Any]
    given_s: float
    refused_s: float | None
    others: Sequence[Sequence[str]] | None

    def may_be_on(self, node: str | None) -> bool:
        """Return whether its pod may be bound to a node."""
        return node == self.node or any(name == node for name, _ in self.others or ())

    def fact(self) -> Slot:
        """Return what ``fluxjob.follow`` must know of it."""
        return Slot(
            self.number,
            self.node,
            SlotState(self.state),
            self.pod_uid,
            is_lost=self.is_lost,
            is_gone=self.is_gone,
            is_refused=self.is_refused,
            index=self.completion_index,
            is_spent=self.is_spent,
            is_named=self.is_named,
            kind=self.kind,
            is_down=self.is_down,
        )


class PodFields(NamedTuple):
    """A pod of a workload. The fields are those of ``POD_SQL``."""

    uid: str
    name: str
    phase: str
    is_gated: bool
    is_terminating: bool
    node: str | None
    completion_index: int | None
    kind: str
    namespace: str
    is_sent: bool
    uses: Mapping[str, Any]
    is_counted: bool
    unschedulable: str
    stuck_s: float | None

    def fact(self) -> PodFact:
        """Return what ``fluxjob.follow`` must know of it."""
        return PodFact(
            uid=self.uid,
            name=self.name,
            phase=self.phase,
            is_gated=self.is_gated,
            is_terminating=self.is_terminating,
            node=self.node,
            index=self.completion_index,
            kind=self.kind,
            is_sent=self.is_sent,
            unschedulable=self.unschedulable,
        )


def array(fields: Mapping[str, str]) -> str:
    """Return the SQL of an array with these fields, in their order."""
    return f"jsonb_build_array({', '.join(fields.values())})"


def read(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a workload with its facts, and with its slots and pods by name."""
    slots: Sequence[Sequence[Any]] = row["slots"] or ()
    pods: Sequence[Sequence[Any]] = row["pods"] or ()
    return {
        **row,
        "facts": WorkloadFacts.of(row["observed"]),
        "slots": [SlotFields(*slot) for slot in slots],
        "pods": [PodFields(*pod) for pod in pods],
    }
