"""AdmissionReviews that a tenant may cause, drawn from a seed: typed and hostile, and untyped.

Typed ones are what an API server would take, with the worst values of each field. Untyped ones are
valid requests that are damaged at random places: custom resources reach admission before their
schema, and anything may be sent to the port. Used by ``tests/property/test_untyped_objects.py`` and
by ``make adversary``.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from fluxqueue.workload.owner_kinds import OwnerKinds
from tests.support.hostile_jobspecs import above, series, slot
from tests.support.owners import job_set_spec
from tests.support.workloads import admission_review, bare_pod, batch_job, container, owner

Obj = dict[str, Any]
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
_OWN_KEYS = (
    *("duration", "priority", "exclusive", "spread", "within", "prefer-within", "cores"),
    *("match-policy", "jobspec", "depends-on", "begin-time", "hold", "on-node-loss"),
    *("group-users", "pod-group", "group-size", "queue", "managed", "user", "group", "slots"),
    *("author-suspended", "suspended", "jobid", "nodes", "Duration", "", "x" * 60),
)
_WORDS = (
    *("true", "false", "1h", "2h30m", "+1d", "now+2h", "90", "0", "-1", "1e9", "node", "rack"),
    *("afterok:a,b", "afterany:1:2", "whole", "pack", "requeue", "3-5", "5", "a/b", "default"),
    *("2030-01-31T08:00:00Z", "0001-01-01T00:00:00Z", "٣h", "１h", "\u202e", "é́", "🦀", " ", "\t"),
    *(",", ":", "[", "{", "- a", "a: &x [*x]", "!!python/object:os.system", "<<: {}", "2147483648"),
)
_AMOUNTS = ("1", "100m", "0", "1.5", "4Gi", "1e3", "9" * 25, "1E", "1n", "0.0001", "16", "64Ti")


def untyped(chance: random.Random) -> Obj:
    """A damaged request."""
    obj = copy.deepcopy(chance.choice(VALID))
    review = _review(chance, obj)
    if chance.random() < 0.5:
        review["request"]["oldObject"] = copy.deepcopy(obj)
    _damage(chance, review)
    return review


def typed(chance: random.Random) -> Obj:
    """A request with right types."""
    obj = chance.choice(_TYPED)(chance)
    review = _review(chance, obj)
    review["request"]["userInfo"] = {"username": _text(chance), "groups": [_text(chance)]}
    if review["request"]["operation"] == "UPDATE":
        old = chance.choice(_TYPED)(chance)
        review["request"]["oldObject"] = old if old["kind"] == obj["kind"] else copy.deepcopy(obj)
    return review


def _review(chance: random.Random, obj: Obj) -> Obj:
    group, _, version = obj["apiVersion"].rpartition("/")
    review = admission_review(obj, operation=chance.choice(("CREATE", "UPDATE")))
    review["request"]["kind"] = {"group": group, "version": version, "kind": obj["kind"]}
    return review


# --- damaged -------------------------------------------------------------------------------------


def _valid() -> Iterator[Obj]:
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


VALID = tuple(_valid())


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    pairs = value.items() if isinstance(value, dict) else ()
    pairs = enumerate(value) if isinstance(value, list) else pairs
    for key, inner in pairs:
        yield from _places(inner, (*path, key))


def _damage(chance: random.Random, review: Obj) -> None:
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        places = list(_places(review["request"]))
        *way, last = chance.choice(places)
        here = review["request"]
        for key in way:
            here = here[key]
        here[last] = copy.deepcopy(chance.choice(JUNK))


# --- typed ---------------------------------------------------------------------------------------


def _text(chance: random.Random) -> str:
    """Words put together, repeated or cut. Never with NUL, which no API server takes there."""
    text = "".join(chance.choice(_WORDS) for _ in range(chance.choice((0, 1, 1, 1, 2, 5))))
    return text * chance.choice((1, 1, 1, 1, 3, 4000)) if len(text) < 60 else text


def _notes(chance: random.Random) -> Obj:
    found = {}
    for _ in range(chance.choice((0, 1, 1, 2, 4))):
        key = f"fluxqueue/{chance.choice(_OWN_KEYS)}"
        found[key] = jobspec(chance) if key.endswith("jobspec") else _text(chance)
    return found


def _meta(chance: random.Random) -> Obj:
    made: Obj = {
        "name": chance.choice(("a", "a" * 253, "0.a")),
        "namespace": "t",
        "uid": "u",
        "annotations": _notes(chance),
        "labels": {"fluxqueue/managed": chance.choice(("true", "true", "false", ""))},
    }
    if chance.random() < 0.3:
        made["ownerReferences"] = [owner(chance.choice(("Job", "ReplicaSet", "CronJob", "X")))]
    return made


def _count(chance: random.Random) -> Any:
    if chance.random() < 0.4:
        return chance.choice((1, 2, 7, 1000, 2**31 - 1, 2**31, 2**32, 0, -1))
    operator = chance.choice(("+", "*", "^", "-", "x", ""))
    low, high = chance.choice((1, 2, 3, 50)), chance.choice((1, 60, 2**20, 2**31, 2**32 - 1))
    return series(low, high, operator, chance.choice((1, 2, 3, 7, 0, -1, 2**31)))


def _resources(chance: random.Random, depth: int) -> list[Obj]:
    found = []
    for number in range(chance.choice((1, 1, 2, 3, 12 if depth < 2 else 2))):
        if depth > 4 or chance.random() < 0.5:
            inside = {"type": chance.choice(("core", "gpu", "memory", "x")), "count": 1 + number}
            found.append(slot(_count(chance), f"s{chance.randrange(9)}", inside))
        else:
            kind = chance.choice(("node", "rack", "block", "slot", "cluster"))
            found.append(above(kind, _count(chance), *_resources(chance, depth + 1)))
    return found


def _constraint(chance: random.Random, depth: int = 0) -> Any:
    if depth > chance.choice((1, 3, 40)):
        word = chance.choice(("properties", "hostlist", "ranks", "x"))
        return {
            word: [chance.choice(("a", "^a", "n[1-9]", "n[0-99999]", "0-5", "[", _text(chance)))]
        }
    inner = [_constraint(chance, depth + 1) for _ in range(chance.choice((0, 1, 1, 2)))]
    return {chance.choice(("and", "or", "not")): inner}


def jobspec(chance: random.Random) -> str:
    """A jobspec as an author may write it."""
    resources = _resources(chance, 0)
    document: Any = {"version": chance.choice((1, 1, 9999, 2)), "resources": resources}
    if chance.random() < 0.4:
        system = {"duration": chance.choice((0, 1, -1, 1e308, 3600))}
        document["attributes"] = {"system": {**system, "constraints": _constraint(chance)}}
    if chance.random() < 0.3:
        count = {chance.choice(("per_slot", "total")): chance.choice((1, 2**31, 0))}
        document["tasks"] = [{"command": ["x"], "slot": "s0", "count": count}]
    text = json.dumps(chance.choice((document, resources)))
    return text if chance.random() < 0.9 else text[: chance.randrange(len(text))]


def _pod(chance: random.Random) -> Obj:
    made: Obj = {
        "containers": [
            container(f"c{n}", **{part: _amounts(chance) for part in ("requests", "limits")})
            for n in range(chance.choice((1, 1, 2, 40)))
        ],
        "nodeSelector": {_text(chance)[:60]: _text(chance)[:60]},
        "tolerations": [
            {"key": _text(chance)[:40], "operator": chance.choice(("Exists", "Equal", "Gt", ""))}
        ],
        "priority": chance.choice((0, -(2**31), 2**31 - 1)),
        "schedulerName": chance.choice(("", "default-scheduler", "fluxion", "x")),
    }
    if chance.random() < 0.4:
        terms = [
            {
                "matchExpressions": [
                    {
                        "key": _text(chance)[:60],
                        "operator": chance.choice(("In", "NotIn", "Exists", "Gt", "Lt", "Like")),
                        "values": [_text(chance)[:60] for _ in range(chance.choice((0, 1, 30)))],
                    }
                ]
            }
            for _ in range(chance.choice((0, 1, 1, 50)))
        ]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        made["affinity"] = {"nodeAffinity": required}
    if chance.random() < 0.2:
        made["schedulingGates"] = [{"name": chance.choice(("fluxqueue", "x", ""))}]
    return made


def _amounts(chance: random.Random) -> Obj:
    names = ("cpu", "memory", "nvidia.com/gpu", "example.com/x", "hugepages-2Mi", "pods", "")
    return {chance.choice(names): chance.choice(_AMOUNTS) for _ in range(chance.choice((0, 1, 3)))}


def _some_job(chance: random.Random) -> Obj:
    numbers = (0, 1, 2, 480, 5000, 2**31 - 1)
    made = batch_job(
        meta=_meta(chance),
        pod=_pod(chance),
        parallelism=chance.choice(numbers),
        completions=chance.choice((None, *numbers)),
        completionMode=chance.choice(("Indexed", "NonIndexed")),
        activeDeadlineSeconds=chance.choice((None, 1, 2**31, 2**63 - 1)),
        suspend=chance.random() < 0.3,
        template_meta={"labels": {}, "annotations": _notes(chance)},
    )
    if chance.random() < 0.1:
        made["spec"]["managedBy"] = chance.choice(("kubernetes.io/job-controller", "x/y"))
    return made


def _some_pod(chance: random.Random) -> Obj:
    return bare_pod(meta=_meta(chance), **_pod(chance))


def _some_fluxjob(chance: random.Random) -> Obj:
    spec = {
        "hold": chance.random() < 0.5,
        "priority": chance.choice((0, -(2**31), 2**31 - 1)),
        "queue": _text(chance),
        "requeue": _text(chance),
        "beginTime": _text(chance),
        "user": _text(chance),
    }
    return {**_ours("FluxJob"), "metadata": _meta(chance), "spec": spec, "status": {}}


def _some_review(chance: random.Random) -> Obj:
    spec: Obj = chance.choice(
        (
            {"fluxJob": _text(chance)},
            {"manifest": chance.choice((_some_job, _some_pod))(chance)},
            {"jobspec": {"version": 9999, "resources": _resources(chance, 0)}},
        )
    )
    if chance.random() < 0.5:
        spec["changes"] = {
            "size": chance.choice((0, 1, -1, 2**31, 2**63 - 1)),
            "durationSeconds": chance.choice((0, 1, 2**63 - 1)),
            "requests": _amounts(chance),
            "within": _text(chance),
        }
    return {**_ours("PlacementReview"), "metadata": _meta(chance), "spec": spec}


def _some_owner(chance: random.Random) -> Obj:
    entry = chance.choice(list(OwnerKinds()))
    template = {"metadata": {"annotations": _notes(chance)}, "spec": _pod(chance)}
    spec = (
        job_set_spec(a=(chance.choice((0, 1, 2**31 - 1)), template))
        if entry.kind == "JobSet"
        else {"replicas": chance.choice((0, 3, 2**31 - 1)), "template": template}
    )
    api = {"apiVersion": f"{entry.group}/v1", "kind": entry.kind}
    return {**api, "metadata": _meta(chance), "spec": spec}


def _ours(kind: str) -> Obj:
    return {"apiVersion": f"{GROUP}/v1alpha1", "kind": kind}


_TYPED: tuple[Callable[[random.Random], Obj], ...] = (
    *(_some_job, _some_job, _some_job, _some_pod, _some_fluxjob, _some_review, _some_owner),
)
