"""``kubectl get fluxjob -o jsonpath={.spec.jobspec} | fluxqueue resource-query …`` before the fact:
what it answers is what the queue then does, for every way of asking."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import pytest

from fluxqueue.cli.graph import ask_cluster
from fluxqueue.fluxjob.hostlist import compress
from fluxqueue.kube.resources import JOBS
from fluxqueue.scheduler.resource_set import read_resource_set
from tests.support.e2e.objects import FOR_EVER, Obj, bare_pod, job
from tests.support.e2e.space import Space

GPU = "nvidia.com/gpu"
SOME = {"min": 1, "max": 4, "operator": "+", "operand": 1}


def _own(*tree: tuple[str, object]) -> str:
    """A jobspec of our own: levels from the top down, then slots of two cores."""
    below: list[Obj] = [{"type": "core", "count": 2}]
    for kind, count in reversed(tree):
        below = [{"type": kind, "count": count, "with": below}]
        if kind == "slot":
            below[0]["label"] = "w"
    return json.dumps(below)


def _held(name: str, wishes: Mapping[str, str] | None = None, **more: object) -> Obj:
    """A Job that runs until the test's end once it is released."""
    asked = {"hold": "true", "duration": "1h", **(wishes or {})}
    return job(name, wishes=asked, run=FOR_EVER, **more)  # type: ignore[arg-type]


ASKED = [
    _held("plain", pods=3, pool="main"),
    _held("moldable", {"jobspec": _own(("node", SOME), ("slot", SOME))}, pods=4, pool="main"),
    _held("within", {"within": "zone"}, pods=4, pool="main"),
    _held("prefer-within", {"prefer-within": "node"}, pods=2, cpu="9", pool="main"),
    _held("spread", {"spread": "node"}, pods=4, pool="main"),
    _held("packed", {"match-policy": "pack"}, pods=2, pool="main"),
    _held("levels", {"jobspec": _own(("zone", 2), ("node", 1), ("slot", 1))}, pods=2, pool="main"),
    _held("gpus", pods=2, requests={GPU: "3"}),
    _held("exclusive", {"exclusive": "true"}, pool="single"),
    _held("after-others", pods=1, cpu="16", pool="single"),
    _held("never", {"within": "zone"}, pods=5, cpu="8", pool="main"),
]


@pytest.mark.long("eleven Jobs one after the other, each in the state that those before it leave")
async def test_the_answer_before_is_what_happens(
    space: Space, unmanaged: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each Job is held, asked about and released: it runs on these nodes, or waits, or never can.
    Others' pods, and those of the Jobs before it, are there on both sides."""
    monkeypatch.setenv("KUBECONFIG", str(space.world.kubeconfig))
    await unmanaged.create(bare_pod("other", cpu="5", run=FOR_EVER, nodeName="node-1"))
    answers = {}
    await space.create_all(ASKED)
    for name in (body["metadata"]["name"] for body in ASKED):
        fluxjob = await space.until_state(name, "Held")
        question = json.dumps(fluxjob["spec"]["jobspec"]).encode()
        answers[name] = status, text = await asyncio.to_thread(ask_cluster, question, None)
        note = {"metadata": {"annotations": {"fluxqueue/hold": None}}}
        await space.client.patch(JOBS, space.name, name, note)
        expected = {0: ("Running",), 3: ("Pending", "Reserved"), 4: ("Unsatisfiable",)}[status]
        told = await space.until_state(name, *expected)
        if status == 0:
            ran = [node for node, _ in read_resource_set(told["status"]["R"]).slots]
            assert text.endswith(f" on {compress(dict.fromkeys(ran))}"), told["status"]
    assert [status for status, _ in answers.values()] == [0] * 9 + [3, 4], answers
    assert "none is so large" in answers["never"][1]
