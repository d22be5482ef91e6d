"""Jobs as the webhook leaves them."""

from __future__ import annotations

from typing import Any

from fluxqueue.workload.labels import GATE, MANAGED


def job(name: str) -> dict[str, Any]:
    """A Job as admission lets it pass."""
    pod = {
        "schedulingGates": [{"name": GATE}],
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "none"}],
    }
    meta = {"name": name, "labels": {MANAGED: "true"}}
    return {"metadata": meta, "spec": {"suspend": True, "template": {"spec": pod}}}
