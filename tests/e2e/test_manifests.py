"""Manifests that others wrote: what asks to be queued runs queued, the rest is left alone.

They are read from ``<repository>/../shared/manifests`` (``FLUXQUEUE_SHARED`` overrides) and never
copied. The images need not exist: the simulated nodes decide how pods end.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from fluxqueue.errors import NotFound
from fluxqueue.kube.resources import (
    DEPLOYMENTS,
    FLUXJOBS,
    JOBS,
    PODS,
    REPLICASETS,
    STATEFULSETS,
    ApiResource,
)
from tests.support.e2e.objects import Obj
from tests.support.e2e.space import Space, make_space, remove_space
from tests.support.upstream import MANIFESTS
from tests.support.waiting import eventually

FILES = sorted(MANIFESTS.rglob("*.yaml")) if MANIFESTS.is_dir() else []
SETS = {
    "Deployment": DEPLOYMENTS,
    "ReplicaSet": REPLICASETS,
    "StatefulSet": STATEFULSETS,
}
FOREIGN_KINDS = {"PodGroup", "MPIJob"}


def _documents() -> list[Any]:
    return [
        pytest.param(document, id=f"{path.relative_to(MANIFESTS)}-{document['kind']}")
        for path in FILES
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    ]


@pytest.mark.cases_long("the other cases are variations of the first")
@pytest.mark.skipif(not FILES, reason=f"{MANIFESTS} has no manifests")
@pytest.mark.parametrize("document", _documents())
async def test_a_manifest_runs(space: Space, document: Obj) -> None:
    """Jobs to their end, Pods (which never end by themselves) to Running."""
    kind, name = document["kind"], document["metadata"]["name"]
    if kind == "Job":
        await space.create(document)
        await space.until_job(name)
        await space.until_state(name, "Completed")
    elif kind == "Pod":
        await space.create(document)
        await space.until_state(name, "Running")
    elif kind in SETS and "schedulerName" in document["spec"]["template"]["spec"]:
        await _assert_queued(space, SETS[kind], document)
    elif kind in SETS:
        await _assert_left_alone(space, SETS[kind], document)
    else:
        assert kind in FOREIGN_KINDS, f"what is a {kind}?"
        await _assert_unknown(space, document)


@pytest.mark.cases_long("the other cases are variations of the first")
@pytest.mark.skipif(not FILES, reason=f"{MANIFESTS} has no manifests")
@pytest.mark.parametrize("document", [one for one in _documents() if one.values[0]["kind"] in SETS])
async def test_a_set_runs_queued_where_its_namespace_says_so(space: Space, document: Obj) -> None:
    """Unchanged, whatever scheduler it names, and what it had is given back when it goes."""
    managed = await make_space(space.world, {"fluxqueue/sets": "managed"})
    try:
        await _assert_queued(managed, SETS[document["kind"]], document)
    finally:
        await remove_space(managed)


async def _assert_queued(space: Space, resource: ApiResource, document: Obj) -> None:
    """It asks, or names a scheduler of before: queued, and never left waiting for that."""
    name = document["metadata"]["name"]
    fluxjob = f"{name}-{document['kind'].lower()}"
    await space.client.create(resource, space.name, document)

    async def all_run() -> bool:
        pods = (await space.client.list(PODS, space.name)).items
        phases = [pod["status"].get("phase") for pod in pods]
        return phases == ["Running"] * document["spec"].get("replicas", 1)

    await eventually(all_run, what=f"all pods of {name} run")
    assert await space.client.get(FLUXJOBS, space.name, fluxjob)
    await space.delete(name, resource)
    await space.until_gone(FLUXJOBS, fluxjob)


async def _assert_left_alone(space: Space, resource: ApiResource, document: Obj) -> None:
    """It does not ask to be queued: accepted as it is, and in no queue."""
    made = await space.client.create(resource, space.name, document)
    assert "schedulingGates" not in made["spec"]["template"]["spec"]
    assert "fluxqueue/managed" not in (made["metadata"].get("labels") or {})
    pods = (await space.client.list(PODS, space.name)).items
    assert not [pod for pod in pods if pod["spec"].get("schedulingGates")]
    assert not (await space.client.list(FLUXJOBS, space.name)).items
    assert not (await space.client.list(JOBS, space.name)).items


async def _assert_unknown(space: Space, document: Obj) -> None:
    """Needs a definition. Where no test has brought it, the API server says so."""
    group, _, version = document["apiVersion"].partition("/")
    plural = f"{document['kind'].lower()}s"
    resource = ApiResource(group, version, plural, document["kind"], True)
    try:
        await space.client.list(resource, space.name)
    except NotFound:
        with pytest.raises(NotFound):
            await space.client.create(resource, space.name, document)
    else:
        await space.client.create(resource, space.name, document)
