"""Kubeflow's Trainer for the suite: its definitions, a runtime, and the operators of the tests.

``test_engines`` starts it around the program of the SDK. The SDK reads and writes objects only, so
an operator that is played is enough.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fluxqueue.kube.resources import ApiResource
from tests.support.e2e.custom_kinds import define
from tests.support.e2e.operators import Operators
from tests.support.e2e.space import Space
from tests.support.owners import job_set_spec

RUNTIME = ApiResource(
    "trainer.kubeflow.org", "v1alpha1", "trainingruntimes", "TrainingRuntime", True
)
NAME = "engine"
ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"


def _job_set(pool: str, seconds: str) -> dict[str, Any]:
    container = {
        "name": "node",
        "image": "busybox",
        "command": ["sleep", seconds],
        "resources": {"requests": {"cpu": "4"}},
    }
    pod = {"restartPolicy": "Never", "nodeSelector": {"pool": pool}, "containers": [container]}
    spec = job_set_spec(node=(1, {"spec": pod}))
    template = spec["replicatedJobs"][0]["template"]
    template["metadata"] = {"labels": {ANCESTOR: "trainer"}}
    # As the webhook of JobSet sets it. The SDK finds a pod by its index.
    template["spec"]["completionMode"] = "Indexed"
    return spec


@asynccontextmanager
async def played_trainer(space: Space, pool: str, seconds: str) -> AsyncIterator[None]:
    """Play the Trainer in a namespace, with the runtime ``engine``."""
    spec = _job_set(pool, seconds)
    await define(space, RUNTIME)
    body = {
        "apiVersion": RUNTIME.api_version,
        "kind": RUNTIME.kind,
        "metadata": {"name": NAME, "labels": {"trainer.kubeflow.org/framework": "torch"}},
        "spec": {"mlPolicy": {"numNodes": 1, "torch": {}}, "template": {"spec": spec}},
    }
    await space.client.create(RUNTIME, space.name, body)
    async with Operators(space, {NAME: spec}):
        yield
    await space.client.delete(RUNTIME, space.name, NAME)
