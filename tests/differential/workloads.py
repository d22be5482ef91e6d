"""Random Jobs with everything that binds pods, alone and combined."""

from __future__ import annotations

import random
from typing import Any

from fluxqueue.workload.labels import HOSTNAME
from tests.differential.scenery import POOLS, RACK, TAINT, ZONE

Obj = dict[str, Any]

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
FIRST_PORT = 20_000
TRY = "example.org/try"
"""A label of all pods of a workload, beside the one that selects them."""


def random_job(
    dice: random.Random,
    number: int,
    namespace: str,
    runtime: str,
    *,
    density: float,
    device: str | None = None,
) -> Obj:
    """A Job of one to eight pods. Its label is its own, and a host port may be that of others.

    ``density`` says how often its pods bind each other. ``device``: a resource of devices.
    """
    pods, app = dice.choice((1, 2, 2, 3, 3, 4, 5, 6, 8)), f"w{number}"
    spec: Obj = {"restartPolicy": "Never", **_containers(dice)}
    _choose_nodes(dice, spec, runtime)
    _bind_each_other(dice, spec, app, density)
    if dice.random() < 0.12:
        spec["containers"][0]["ports"] = [_port(dice)]
    if dice.random() < 0.15:
        claim = {"claimName": f"data-{dice.randint(0, 3)}"}
        spec["volumes"] = [{"name": "data", "persistentVolumeClaim": claim}]
    elif pods == 1 and dice.random() < 0.25:
        claim = {"claimName": f"one-{dice.randint(0, 1)}"}
        spec["volumes"] = [{"name": "data", "persistentVolumeClaim": claim}]
    if device is not None and dice.random() < 0.15:
        amount = str(dice.choice((1, 1, 2, 3)))
        resources = spec["containers"][0]["resources"]
        for part in ("requests", "limits"):
            resources[part] = {**(resources.get(part) or {}), device: amount}
    return {
        "kind": "Job",
        "metadata": {"name": app, "namespace": namespace, "uid": app},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "template": {"metadata": {"labels": {"app": app, TRY: "1"}}, "spec": spec},
        },
    }


def _port(dice: random.Random) -> Obj:
    """A port of the node, of a few, sometimes of one address."""
    port: Obj = {"containerPort": 80, "hostPort": FIRST_PORT + dice.randint(0, 3)}
    if dice.random() < 0.4:
        port["hostIP"] = dice.choice(("10.0.0.1", "10.0.0.2"))
    if dice.random() < 0.3:
        port["protocol"] = "UDP"
    return port


def _containers(dice: random.Random) -> Obj:
    found: Obj = {"containers": [_container(dice, f"c{n}") for n in range(dice.choice((1, 1, 2)))]}
    if dice.random() < 0.2:
        more = {"restartPolicy": "Always"} if dice.random() < 0.5 else {}
        found["initContainers"] = [{**_container(dice, "i"), **more}]
    if dice.random() < 0.1:
        found["resources"] = {"limits": {"cpu": "4", "memory": "8Gi"}}
    return found


def _container(dice: random.Random, name: str) -> Obj:
    amounts = {"cpu": dice.choice(("100m", "500m", "1")), "memory": dice.choice(("64Mi", "256Mi"))}
    resources: Obj = dice.choice(
        ({}, {"requests": amounts}, {"limits": amounts}, {"requests": {"cpu": amounts["cpu"]}})
    )
    return {"name": name, "image": "registry.example/app:1", "resources": resources}


def _choose_nodes(dice: random.Random, spec: Obj, runtime: str) -> None:
    if dice.random() < 0.2:
        spec["nodeSelector"] = {"pool": dice.choice(POOLS)}
    elif dice.random() < 0.15:
        spec["runtimeClassName"] = runtime
    if dice.random() < 0.3:
        more = dice.choice(({}, {}, {"effect": "NoSchedule"}, {"effect": "NoExecute"}))
        spec["tolerations"] = [{"key": TAINT["key"], "operator": "Exists", **more}]
    if dice.random() < 0.15:
        term = {"key": "size", "operator": dice.choice(("Gt", "Lt")), "values": ["4"]}
        required = {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
        spec["affinity"] = {"nodeAffinity": {REQUIRED: required}}


def _bind_each_other(dice: random.Random, spec: Obj, app: str, density: float) -> None:
    own = {"labelSelector": {"matchLabels": {"app": app}}}
    affinity: Obj = spec.get("affinity") or {}
    if dice.random() < 0.2 * density:
        key = dice.choice((HOSTNAME, HOSTNAME, ZONE, RACK))
        affinity["podAntiAffinity"] = {REQUIRED: [{**own, "topologyKey": key}]}
    if dice.random() < 0.12 * density:
        key = dice.choice((HOSTNAME, ZONE, RACK))
        affinity["podAffinity"] = {REQUIRED: [{**own, "topologyKey": key}]}
    if affinity:
        spec["affinity"] = affinity
    rules = []
    for key in (ZONE, HOSTNAME):
        if dice.random() < 0.12 * density:
            rule = {**own, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule"}
            rule |= {"maxSkew": dice.choice((1, 1, 1, 2))}
            if dice.random() < 0.3:
                rule["nodeTaintsPolicy"] = "Honor"
            if dice.random() < 0.2:
                rule["nodeAffinityPolicy"] = "Ignore"
            if dice.random() < 0.2 and rule["maxSkew"] == 1:
                rule["minDomains"] = dice.choice((1, 2, 3, 4))
            if dice.random() < 0.2:
                rule["matchLabelKeys"] = [TRY]
            rules.append(rule)
    if rules:
        spec["topologySpreadConstraints"] = rules
