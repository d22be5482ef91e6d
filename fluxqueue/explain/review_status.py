"""Render an answer as the status of a PlacementReview. Pure.

The worker calls it. The definition is ``chart/crds/placementreviews.yaml``. The status names only
jobs that the asking user may read, which ``names`` contains. All others appear as "another
namespace's job".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fluxqueue.explain.answer import (
    Answer,
    Blocker,
    Counted,
    LevelAnswer,
    PlacementOutcome,
    Variant,
)
from fluxqueue.fluxjob.hostlist import compress
from fluxqueue.fluxjob.request import describe
from fluxqueue.fluxjob.times import to_rfc3339

HIDDEN = "another namespace's job"
TEXT_MAX = 1024


@dataclass(frozen=True, slots=True)
class Named:
    """A job that the asking user may read, by the name of its workload."""

    jobid: int
    namespace: str
    name: str


def render_answer(
    answer: Answer, names: Mapping[str, Named], now: int, *, known: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Render a whole status.

    Parameters
    ----------
    names : The blockers that the asking user may read, by UID of the workload.
    now : When it was answered, in epoch seconds.
    known : The jobid and state of the FluxJob in question, if there is one.
    """
    status: dict[str, Any] = {
        "answeredAt": to_rfc3339(now),
        **_outcome(answer.outcome),
        **(known or {}),
        "request": answer.request[:TEXT_MAX],
        "clusterNodes": {"total": answer.nodes_total, "usable": answer.nodes_usable},
        "kinds": [_counted(one) for one in answer.kinds],
    }
    if answer.place is not None:
        status["queue"] = {
            "name": answer.place.queue,
            "priority": answer.place.priority,
            "position": answer.place.position,
            "waiting": answer.place.waiting,
        }
    if answer.levels:
        status["levels"] = [_level(one) for one in answer.levels]
    if answer.outcome.blockers:
        status["blockers"] = [_blocker(one, names) for one in answer.outcome.blockers]
    if answer.outcome.further_blockers:
        status["furtherBlockers"] = answer.outcome.further_blockers
    if answer.variants:
        status["variants"] = [_variant(one) for one in answer.variants]
    return status


def render_refusal(reason: str, message: str, now: int, **more: Any) -> dict[str, Any]:
    """Render the status of a review that is not answered. ``more`` are further fields."""
    return {"answeredAt": to_rfc3339(now), "reason": reason, "message": message[:TEXT_MAX], **more}


def _outcome(outcome: PlacementOutcome) -> dict[str, Any]:
    found: dict[str, Any] = {
        "verdict": outcome.verdict.value,
        "reason": outcome.reason.value,
        "message": outcome.message[:TEXT_MAX],
    }
    if outcome.starts_at is not None:
        found["expectedStart"] = to_rfc3339(outcome.starts_at)
    if outcome.expected_by is not None:
        found["expectedBy"] = to_rfc3339(outcome.expected_by)
    if outcome.certainty is not None:
        found["certainty"] = outcome.certainty.value
    if outcome.nodes:
        found["nodes"] = compress(sorted(set(outcome.nodes)))
    return found


def _counted(one: Counted) -> dict[str, Any]:
    units = one.together
    return {
        "label": one.label,
        "unit": "Node" if one.is_distinct else "Slot",
        "slotsPerUnit": one.per_unit,
        "needs": describe(one.needs),
        "wanted": one.wanted,
        "checks": [
            {"kind": check.kind, "name": check.name, "nodes": check.nodes, "freeNodes": check.free}
            for check in one.checks
        ],
        "together": {
            "nodes": units.nodes,
            "units": units.units,
            "freeNodes": units.free_nodes,
            "freeUnits": units.free_units,
            "unpromisedNodes": units.open_nodes,
            "unpromisedUnits": units.open_units,
        },
    }


def _level(one: LevelAnswer) -> dict[str, Any]:
    return {
        "level": one.level,
        "contents": one.contents,
        "wanted": one.wanted,
        "places": one.places,
        "couldHold": one.could,
        "canHoldNow": one.can,
    }


def _blocker(one: Blocker, names: Mapping[str, Named]) -> dict[str, Any]:
    named = names.get(one.uid)
    found: dict[str, Any] = {
        "state": "Running" if one.is_running else "Before",
        "nodes": one.nodes,
        "name": HIDDEN,
    }
    if named is not None:
        found |= {"name": named.name, "namespace": named.namespace, "jobid": named.jobid}
    if one.until is not None:
        found["until"] = to_rfc3339(one.until)
    return found


def _variant(one: Variant) -> dict[str, Any]:
    return {
        "field": one.change.field,
        "value": one.change.value,
        "text": one.change.text,
        **_outcome(one.outcome),
    }
