"""Kinds of other projects, as definitions that the tests install, and what is made of them."""

from __future__ import annotations

from contextlib import suppress

from fluxqueue.errors import Conflict, NotFound
from fluxqueue.kube.resources import CRDS, ApiResource
from tests.support.e2e.objects import Obj
from tests.support.e2e.space import Space
from tests.support.waiting import eventually

POD_GROUP = ApiResource("scheduling.sigs.k8s.io", "v1alpha1", "podgroups", "PodGroup", True)

POD_GROUPS = (
    ApiResource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup", True),
    POD_GROUP,
)
"""Of coscheduling, and of coscheduling as it was called before."""
APPROVED = {"api-approved.kubernetes.io": "unapproved, of the structure of what once was"}
MPI_JOB = ApiResource("kubeflow.org", "v2beta1", "mpijobs", "MPIJob", True)


def definition(resource: ApiResource) -> Obj:
    """A definition of the same structure as the original."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": resource.key, "annotations": APPROVED},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced",
            "names": {
                "plural": resource.plural,
                "singular": resource.kind.lower(),
                "kind": resource.kind,
            },
            "versions": [
                {
                    "name": resource.version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


async def define(space: Space, resource: ApiResource) -> None:
    """Install a definition, and wait until it is served."""
    with suppress(Conflict):
        await space.client.create(CRDS, None, definition(resource))

    async def is_served() -> bool:
        try:
            await space.client.list(resource)
        except NotFound:
            return False
        return True

    await eventually(is_served, what=f"{resource.key} is served")


JOB_SET = ApiResource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet", True)

MINI_CLUSTER = ApiResource("flux-framework.org", "v1alpha2", "miniclusters", "MiniCluster", True)

TRAIN_JOB = ApiResource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob", True)

WORKFLOW = ApiResource("argoproj.io", "v1alpha1", "workflows", "Workflow", True)

RAY_CLUSTER = ApiResource("ray.io", "v1", "rayclusters", "RayCluster", True)

RAY_JOB = ApiResource("ray.io", "v1", "rayjobs", "RayJob", True)

GANG = ApiResource("example.org", "v1", "gangs", "Gang", True)
