"""Jobs and Pods of up to 3 MB, as an API server still takes them: many or long of each field.

Used by the adversary suite and by ``make adversary``. Keys are names for test ids.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.workloads import batch_job, container

Obj = dict[str, Any]
MAX_BYTES = 3 << 20


def _job(pod: Obj | None = None, meta: Obj | None = None, **spec: Any) -> Obj:
    return batch_job("large", meta=meta, pod=pod, parallelism=1, completions=1, **spec)


def _containers(number: int, **more: Any) -> list[Obj]:
    return [
        {**container(f"c{n}", requests={"cpu": f"{n + 1}m", "memory": f"{n + 1}Ki"}), **more}
        for n in range(number)
    ]


def _terms(number: int, expressions: int) -> Obj:
    term = {
        "matchExpressions": [
            {"key": f"example.com/k{n}", "operator": "NotIn", "values": [f"v{n}", "w"]}
            for n in range(expressions)
        ]
    }
    required = {"nodeSelectorTerms": [term] * number}
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    }


def _numbers(number: int) -> list[Obj]:
    return [{"name": f"V{n}", "value": "x" * 90} for n in range(number)]


LARGE: dict[str, Callable[[], Obj]] = {
    "20,000 variables": lambda: _job({"containers": _containers(1, env=_numbers(20_000))}),
    "10,000 node selector terms": lambda: _job(_terms(10_000, 1)),
    "terms of 2,000 expressions": lambda: _job(_terms(10, 2_000)),
    "values of one expression": lambda: _job(
        {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {
                                "matchExpressions": [
                                    {
                                        "key": "a",
                                        "operator": "In",
                                        "values": [f"v{n}" for n in range(150_000)],
                                    }
                                ]
                            }
                        ]
                    }
                }
            }
        }
    ),
    "30,000 tolerations": lambda: _job(
        {"tolerations": [{"key": f"k{n}", "operator": "Exists"} for n in range(30_000)]}
    ),
    "20,000 node selectors": lambda: _job(
        {"nodeSelector": {f"example.com/k{n}": f"v{n}" for n in range(20_000)}}
    ),
    "10,000 containers": lambda: _job({"containers": _containers(10_000)}),
    "10,000 init containers": lambda: _job(
        {"initContainers": _containers(10_000, restartPolicy="Always")}
    ),
    "10,000 sidecars of a resource each": lambda: _job(
        {
            "initContainers": [
                {
                    **container(f"s{n}", requests={f"example.com/s{n}": "1"}),
                    "restartPolicy": "Always",
                }
                for n in range(10_000)
            ]
        }
    ),
    "95,000 resources": lambda: _job(
        {"containers": [container(requests={f"example.com/r{n}": "1Ki" for n in range(95_000)})]}
    ),
    "700,000 empty containers": lambda: _job({"containers": [{}] * 700_000}),
    "30,000 resources": lambda: _job(
        {"containers": [container(requests={f"example.com/r{n}": str(n) for n in range(30_000)})]}
    ),
    "quantities of a thousand digits": lambda: _job(
        {
            "containers": [
                container(requests={f"example.com/q{n}": "9" * 1000 for n in range(2_500)})
            ]
        }
    ),
    "40,000 volumes": lambda: _job({"volumes": [{"name": f"v{n}"} for n in range(40_000)]}),
    "30,000 labels": lambda: _job(
        meta={"labels": {f"example.com/l{n}": "v" * 60 for n in range(30_000)}}
    ),
    "15,000 annotations of ours": lambda: _job(
        meta={"annotations": {f"fluxqueue/note-{n}": "v" for n in range(15_000)}}
    ),
    "an annotation of 2 MB": lambda: _job(
        meta={"annotations": {"fluxqueue/depends-on": "afterok:" + "a," * (1 << 20)}}
    ),
    "a jobspec of 2 MB": lambda: _job(
        meta={"annotations": {"fluxqueue/jobspec": '{"resources":[' + '{"a":1},' * 250_000 + "1]}"}}
    ),
    "a jobspec of many lines": lambda: _job(
        meta={"annotations": {"fluxqueue/jobspec": "- a\n" * 600_000}}
    ),
    "20,000 owners": lambda: _job(
        meta={
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": f"p{n}", "uid": f"u{n}"}
                for n in range(20_000)
            ]
        }
    ),
    "50,000 gates": lambda: _job(
        {"schedulingGates": [{"name": f"example.com/g{n}"} for n in range(50_000)]}
    ),
    "50,000 gates and ours last": lambda: _job(
        {
            "schedulingGates": [
                *({"name": f"example.com/g{n}"} for n in range(50_000)),
                {"name": "fluxqueue"},
            ]
        }
    ),
}

BOUNDLESS = ("duration", "priority", "exclusive", "spread", "within", "prefer-within", "cores",
    "match-policy", "jobspec", "depends-on", "begin-time", "hold", "on-node-loss", "group-users",
    "pod-group", "group-size", "queue", "user", "group", "nodes")  # fmt: skip
LONG = ("1h", "1", "+", "a,", "afterok:a ", "[", "{", "- ", "a:", " ", "\t", "é", "-", "9.", "=,")


def long_notes() -> dict[str, Obj]:
    """Each annotation of ours, each with texts of 1 MB that are nearly right."""
    return {
        f"{key} of {piece!r}": _job(
            meta={"annotations": {f"fluxqueue/{key}": piece * (2**20 // len(piece)) + "!"}}
        )
        for key in BOUNDLESS
        for piece in LONG
    }
