"""Pods that the API server refuses for a while, as a quota or PodSecurity does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fluxqueue.errors import ApiError, Conflict, Invalid
from fluxqueue.kube.resources import PODS, ApiResource
from tests.support.e2e.objects import Obj, bare_pod
from tests.support.e2e.space import Space
from tests.support.waiting import eventually

_GROUP = ("admissionregistration.k8s.io", "v1")
POLICIES = ApiResource(*_GROUP, "validatingadmissionpolicies", "ValidatingAdmissionPolicy", False)
BINDINGS = ApiResource(
    *_GROUP, "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", False
)
REFUSAL = "quota of the team is used up"


@asynccontextmanager
async def refused_pods(space: Space, *, label: str) -> AsyncIterator[None]:
    """Refuse new pods of a namespace that bear ``label: "true"``, inside the context."""
    name = f"refuse-{space.name}"
    has_label = (
        f'has(object.metadata.labels) && "{label}" in object.metadata.labels'
        f' && object.metadata.labels["{label}"] == "true"'
    )
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"]}
    policy: Obj = {
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{**rule, "resources": ["pods"]}]},
            "validations": [{"expression": f"!({has_label})", "message": REFUSAL}],
        },
    }
    selector = {"matchLabels": {"kubernetes.io/metadata.name": space.name}}
    binding: Obj = {
        "metadata": {"name": name},
        "spec": {
            "policyName": name,
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": selector},
        },
    }
    await space.client.create(POLICIES, None, policy)
    await space.client.create(BINDINGS, None, binding)
    try:
        await eventually(lambda: _refuses(space, label), "the policy is in force")
        yield
    finally:
        await space.client.delete(BINDINGS, None, name)
        await space.client.delete(POLICIES, None, name)


async def _refuses(space: Space, label: str) -> bool:
    probe = bare_pod("probe")
    probe["metadata"]["labels"] = {label: "true", "fluxqueue/managed": "false"}
    try:
        await space.client.create(PODS, space.name, probe, dry_run=True)
    except (ApiError, Conflict, Invalid):
        return True
    return False


async def was_refused(space: Space, name: str) -> bool:
    """Whether a pod of the Job was left unbound for a while."""
    fluxjob = await space.fluxjob(name)
    assert fluxjob is not None
    told = await space.events_on(fluxjob["spec"]["workload"]["uid"])
    return "Unschedulable" in {one["reason"] for one in told}
