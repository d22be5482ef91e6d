"""The Job that a ``ScriptRequest`` describes, as a manifest.

``submit`` and ``explain`` call it. Pure. The Job is an ordinary Indexed one with fluxqueue's
annotations, so that a user can write the same by hand.
"""

from __future__ import annotations

import json
import math
from typing import Any

from fluxqueue.client.batch.batch_step import (
    RUN,
    VOLUME,
    command_of,
    environment_of,
    needs_folder,
)
from fluxqueue.client.batch.node_choice import ANYWHERE, Alternatives
from fluxqueue.client.batch.pod_connections import connect
from fluxqueue.client.batch.script_request import ScriptRequest
from fluxqueue.workload import labels
from fluxqueue.workload.annotations import SWEEP_PODS_USUAL
from fluxqueue.workload.quantity import parse_quantity

_DISRUPTION = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}


def manifest_of(request: ScriptRequest) -> dict[str, Any]:
    """Return the Job for ``request``, which names an image."""
    spec = _array_spec(request) if request.array else _gang_spec(request)
    pod: dict[str, Any] = {"restartPolicy": "Never", "containers": [_container(request)]}
    if needs_folder(request):
        pod["volumes"] = [{"name": VOLUME, "emptyDir": {}}]
    if request.layout.has_agents:
        connect(pod, request)
    if request.grace_s:
        pod["terminationGracePeriodSeconds"] = request.grace_s
    if request.nodes_allowed != ANYWHERE:
        pod["affinity"] = _affinity(request.nodes_allowed)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": request.name,
            "labels": {labels.QUEUE: request.queue} if request.queue else {},
            "annotations": {key: one for key, one in _annotations(request).items() if one},
        },
        "spec": {**spec, "template": {"spec": pod}},
    }


def _annotations(request: ScriptRequest) -> dict[str, str]:
    is_array = bool(request.array)
    found = {
        labels.DURATION: request.duration,
        labels.PRIORITY: request.priority,
        labels.DEPENDS_ON: request.depends_on,
        labels.BEGIN_TIME: request.begin,
        labels.WITHIN: "" if is_array else request.within,
        labels.GANG: "false" if is_array else "",
        labels.HOLD: "true" if request.is_held else "",
        labels.EXCLUSIVE: "true" if request.is_exclusive else "",
        labels.ON_NODE_LOSS: labels.REQUEUE if request.restarts_on_loss and not is_array else "",
        labels.JOB_NAME: request.original_name,
        labels.ACCOUNT: request.account,
        labels.COMMENT: request.comment,
    }
    return found | _shape(request)


def _shape(request: ScriptRequest) -> dict[str, str]:
    """Return the annotation that places the pods on their nodes."""
    layout = request.layout
    if request.takes_node_memory:
        return {labels.JOBSPEC: _jobspec(request)}
    if layout.pods == 1 or not layout.nodes:
        return {}
    if layout.nodes == layout.pods:
        return {labels.SPREAD: "node"}
    if layout.nodes == 1 and not request.within:
        return {labels.WITHIN: "node"}
    return {labels.JOBSPEC: _jobspec(request)}


def _jobspec(request: ScriptRequest) -> str:
    """Return the nodes and their slots, one for each pod. The nodes are different ones."""
    cpu_m = math.ceil(parse_quantity(request.cpus, where="cpu") * 1000)
    pools: list[dict[str, Any]] = [{"type": "cpu", "count": cpu_m, "unit": "m"}]
    if request.takes_node_memory:
        pools.append({"type": "memory", "count": 1, "unit": "MiB", "exclusive": True})
    layout = request.layout
    parts = layout.parts
    if layout.pods == 1 or layout.is_once or not parts:
        parts = ((layout.pods, 1),)
    nodes = [
        {
            "type": "node",
            "count": count,
            "with": [{"type": "slot", "count": each, "label": f"task{number}", "with": pools}],
        }
        for number, (count, each) in enumerate(parts)
    ]
    return json.dumps(nodes, separators=(",", ":"))


def _gang_spec(request: ScriptRequest) -> dict[str, Any]:
    pods = request.layout.pods
    return {
        "parallelism": pods,
        "completions": pods,
        "completionMode": "Indexed",
        "backoffLimit": 0,
    }


def _array_spec(request: ScriptRequest) -> dict[str, Any]:
    """Return the part for independent tasks: one that fails leaves the others alone.

    ``parallelism`` is how many pods exist, those that wait included.
    """
    count = len(request.array)
    return {
        "parallelism": min(count, request.array_limit or SWEEP_PODS_USUAL),
        "completions": count,
        "completionMode": "Indexed",
        "backoffLimitPerIndex": 0,
        **({"podFailurePolicy": _DISRUPTION} if request.restarts_on_loss else {}),
    }


def _affinity(allowed: Alternatives) -> dict[str, Any]:
    terms = [
        {
            "matchExpressions": [
                {"key": one.key, "operator": one.operator, "values": list(one.values)}
                for one in term
            ]
        }
        for term in allowed
    ]
    required = {"nodeSelectorTerms": terms}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def _container(request: ScriptRequest) -> dict[str, Any]:
    resources = {"cpu": request.cpus, "memory": request.memory}
    requests = {key: one for key, one in resources.items() if one}
    limits = {name: str(count) for name, count in request.devices.items()}
    environment = environment_of(request)
    environment += [{"name": n, "value": _literal(v)} for n, v in request.environment]
    return {
        "name": "main",
        "image": request.image,
        "command": [_literal(word) for word in command_of(request)],
        **({"workingDir": request.folder} if request.folder else {}),
        **({"env": environment} if environment else {}),
        **({"volumeMounts": [{"name": VOLUME, "mountPath": RUN}]} if needs_folder(request) else {}),
        "resources": {"requests": {**requests, **limits}, **({"limits": limits} if limits else {})},
    }


def _literal(text: str) -> str:
    """Escape a text: Kubernetes expands $(NAME) and turns $$ into $."""
    return text.replace("$", "$$")
