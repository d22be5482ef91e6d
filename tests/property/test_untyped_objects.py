"""Objects whose fields have any types at all are refused in words or left alone: never a crash.

An API server checks custom resources only after mutating admission, and anything may be sent to the
port. Valid requests of every kind are damaged at random places with random values.
"""

from __future__ import annotations

import copy
import json
import os
import random
import time
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from fluxqueue.errors import InvalidInput
from fluxqueue.workload.owner_kinds import OwnerKinds
from tests.support.owners import job_set_spec
from tests.support.workloads import admission_review, bare_pod, batch_job, container
from webhook.admit import admit

COUNT = int(os.environ.get("FLUXQUEUE_TEST_HOSTILE", "3000"))
"""How many damaged requests; 50000 by hand."""
CPU_MAX_S = 0.5
GROUP = "jobs.converged-computing.org"
NOTES = {
    "fluxqueue/duration": "1h",
    "fluxqueue/begin-time": "+2h",
    "fluxqueue/depends-on": "afterok:a",
    "fluxqueue/jobspec": '{"version":1,"resources":[{"type":"slot","count":1,"label":"a",'
    '"with":[{"type":"core","count":1}]}]}',
}
JUNK: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**31, 2**63, 2**200, 1.5, "", "x", "\0", "\ud800", "-1", "9" * 5000),
    *([], {}, [None], [[]], [{}], {"": None}, {"a": []}, "x" * 70000, ["a"] * 3000),
    *({"fluxqueue/duration": 7}, {"fluxqueue/hold": None}, [1, "a", {}], {"name": ["fluxqueue"]}),
)


def _valid() -> Iterator[dict[str, Any]]:
    pod = {
        "containers": [container(requests={"cpu": "1", "memory": "1Gi"})],
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "nodeSelector": {"a": "b"},
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}
                    ]
                }
            }
        },
    }
    meta = {"name": "a", "namespace": "t", "annotations": NOTES, "labels": {"a": "b"}}
    made_by = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u"}]
    yield batch_job(meta=meta, pod=pod)
    yield bare_pod(meta={**meta, "ownerReferences": made_by}, **pod)
    for kind, spec, status in (
        ("FluxJob", {"hold": True, "priority": 3, "queue": "q", "steeredBy": {"hold": "a"}}, {}),
        ("PlacementReview", {"fluxJob": "a", "changes": {"size": 3, "requests": {"cpu": 1}}}, {}),
        ("PlacementReview", {"manifest": batch_job(meta=meta, pod=pod)}, {}),
        ("PlacementReview", {"jobspec": {"version": 1, "resources": []}}, {"verdict": "Now"}),
    ):
        api = {"apiVersion": f"{GROUP}/v1alpha1", "kind": kind}
        yield {**api, "metadata": dict(meta), "spec": spec, "status": status}
    wants = {**meta, "labels": {"fluxqueue/managed": "true"}}
    for entry in OwnerKinds():
        api = {"apiVersion": f"{entry.group}/v1", "kind": entry.kind}
        spec = job_set_spec() if entry.kind == "JobSet" else {"template": {"spec": pod}}
        yield {**api, "metadata": dict(wants), "spec": spec}


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    pairs = value.items() if isinstance(value, dict) else ()
    pairs = enumerate(value) if isinstance(value, list) else pairs
    for key, inner in pairs:
        yield from _places(inner, (*path, key))


def _damage(chance: random.Random, review: dict[str, Any]) -> None:
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        places = list(_places(review["request"]))
        *way, last = chance.choice(places)
        here = review["request"]
        for key in way:
            here = here[key]
        here[last] = copy.deepcopy(chance.choice(JUNK))


@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_request_is_answered(seed: int) -> None:
    """In words, within half a second of processor time, and as JSON that can be sent."""
    chance, valid = random.Random(seed), list(_valid())
    refused = 0
    for number in range(COUNT // 3):
        obj = copy.deepcopy(chance.choice(valid))
        group, _, version = obj["apiVersion"].rpartition("/")
        review = admission_review(obj, operation=chance.choice(("CREATE", "UPDATE")))
        review["request"]["kind"] = {"group": group, "version": version, "kind": obj["kind"]}
        if chance.random() < 0.5:
            review["request"]["oldObject"] = copy.deepcopy(obj)
        _damage(chance, review)
        body = json.dumps(review)
        began = time.process_time()
        try:
            answer = admit(orjson.loads(body), all_ask=chance.random() < 0.2)
            orjson.dumps(answer.review)
            refused += answer.verdict == "refused"
        except (InvalidInput, orjson.JSONDecodeError):  # the server answers 400
            refused += 1
        except Exception as error:
            error.add_note(f"seed {seed}, number {number}: {repr(review)[:3000]}")
            raise
        assert time.process_time() - began < CPU_MAX_S
    assert refused > COUNT // 30
