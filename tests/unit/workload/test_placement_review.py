"""PlacementReviews as they are read: what may be asked, and how the rest is refused."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.request import CPU, MEMORY
from fluxqueue.jobspec.shape import describe, slot_needs
from fluxqueue.workload.placement_review import Asker, read_asker, read_review
from fluxqueue.workload.site import DEFAULT_SITE
from tests.support.e2e.objects import bare_pod, job

JOBSPEC = {
    "version": 1,
    "resources": [
        {"type": "slot", "count": 4, "label": "a", "with": [{"type": "core", "count": 2}]}
    ],
    "tasks": [],
    "attributes": {"system": {"duration": 60}},
}


def test_a_manifest_is_read_as_the_queue_reads_it() -> None:
    """Size, needs, queue, priority, duration. What holds it back."""
    body = job("a", pods=4, cpu="2", wishes={"priority": "5", "duration": "1h", "hold": "true"})
    body["metadata"]["labels"] = {"fluxqueue/queue": "gold"}
    asked = read_review({"manifest": body}, DEFAULT_SITE)
    assert asked.request is not None
    assert (asked.request.size, asked.request.duration_s) == (4, 3600)
    assert (asked.queue, asked.priority, asked.wishes.is_held) == ("gold", 5, True)
    pod = read_review({"manifest": bare_pod("p", cpu="2")}, DEFAULT_SITE).request
    assert pod is not None
    assert pod.size == 1


def test_a_jobspec_and_changes_to_it() -> None:
    """In Flux's words or in ours. Each field of it."""
    changes = {
        "size": 2,
        "durationSeconds": 0,
        "queue": "gold",
        "priority": 7,
        "within": "rack",
        "requests": {"cpu": "500m"},
    }
    asked = read_review({"jobspec": JOBSPEC, "changes": changes}, DEFAULT_SITE)
    assert asked.request is not None
    assert describe(asked.request) == "2 slots of 0.5 cpu, in one rack"
    assert (asked.request.duration_s, asked.queue, asked.priority) == (0, "gold", 7)
    wider = read_review({"jobspec": JOBSPEC, "changes": {"within": "node"}}, DEFAULT_SITE).request
    assert wider is not None
    assert describe(wider) == "4 slots of 2 cpu, on one node"


def test_changes_of_a_fluxjob_wait_for_its_request() -> None:
    asked = read_review({"fluxJob": "a-job", "changes": {"size": 2}}, DEFAULT_SITE)
    assert (asked.fluxjob, asked.request) == ("a-job", None)
    plain = read_review({"manifest": job("a", pods=3, cpu="1")}, DEFAULT_SITE).request
    assert plain is not None
    assert asked.changes.apply(plain).size == 2
    assert {dict(one)[CPU] for one in slot_needs(plain)} == {1000}


@pytest.mark.parametrize(
    ("spec", "where", "words"),
    [
        ({}, "spec", "says nothing to be asked about"),
        ({"fluxjob": "a"}, "spec.fluxjob", "unknown field"),
        ({"manifest": job("a"), "jobspec": JOBSPEC}, "spec.jobspec", "stands beside"),
        ({"manifest": []}, "spec.manifest", "is no object"),
        ({"manifest": {"kind": "Job"}}, "spec.manifest.kind", "not queued by itself"),
        ({"manifest": {"apiVersion": "batch/v1", "kind": "Job"}}, "spec.manifest", "is no Job"),
        (
            {"manifest": {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": 3}}},
            "spec.manifest",
            "is no Job",
        ),
        (
            {"manifest": job("a", wishes={"duration": "soon"})},
            "spec.manifest.metadata.annotations[fluxqueue/duration]",
            "",
        ),
        ({"manifest": job("a", wishes={"within": "moon"})}, "spec.manifest.", "no level"),
        ({"jobspec": 3}, "spec.jobspec", ""),
        ({"jobspec": {"resources": []}}, "spec.jobspec", ""),
        ({"fluxJob": "a", "changes": {"color": 1}}, "spec.changes.color", "cannot be changed"),
        ({"fluxJob": "a", "changes": {"size": 0}}, "spec.changes.size", "not usable"),
        ({"fluxJob": "a", "changes": {"size": True}}, "spec.changes.size", "not usable"),
        ({"fluxJob": "a", "changes": {"within": "moon"}}, "spec.changes.within", "no level"),
        ({"fluxJob": "a", "changes": {"requests": {CPU: "x"}}}, "spec.changes.requests.cpu", ""),
        ({"fluxJob": "a", "changes": {"requests": {CPU: 0}}}, "spec.changes.requests.cpu", ""),
        (
            {"jobspec": JOBSPEC, "changes": {"requests": {MEMORY: "1Gi"}}},
            "spec.changes.requests.memory",
            "is not asked for",
        ),
        ({"jobspec": JOBSPEC, "changes": {"within": ""}}, "spec.changes.within", "does not ask"),
        (
            {
                "manifest": job("a", pods=4, wishes={"spread": "node"}),
                "changes": {"size": 0},
            },
            "spec.changes.size",
            "not usable",
        ),
    ],
)
def test_what_cannot_be_asked_names_its_field(spec: dict[str, Any], where: str, words: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        read_review(spec, DEFAULT_SITE)
    assert refusal.value.where.startswith(where)
    assert words in str(refusal.value)


def test_an_asker_is_written_and_read_back() -> None:
    asker = Asker("ada", "u1", ("a", "b"), {"scopes": ("x",)})
    assert read_asker(asker.to_json()) == asker
    assert Asker("ada").to_json() == {"username": "ada"}
