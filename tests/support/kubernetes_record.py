"""What the newest minor of Kubernetes serves and knows, recorded for ``test_kubernetes_features``.

    python -m tests.support.kubernetes_record      also: make kubernetes-record

It starts the programs in ``$KUBEBUILDER_ASSETS`` with all versions of their API, and writes
``tests/unit/kube/kubernetes.json``: feature gates, kinds, and the fields of what pods and Jobs are.
Run it with the programs of a new minor. The test then says what is new and what is gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from fluxqueue.kube.client import KubeClient
from tests.support.control_plane import ASSETS_ENV, ControlPlane, Options
from tests.support.kubernetes_minors import Feature, minor_of

RECORD = Path(__file__).parents[1] / "unit" / "kube" / "kubernetes.json"
EVERYTHING = Feature(gates=("AllAlpha", "AllBeta"), served=("api/all",))
SHAPES = {
    "api/v1": ("core.v1.PodSpec",),
    "apis/batch/v1": ("batch.v1.JobSpec", "batch.v1.JobSchedulingConfiguration"),
    "apis/scheduling.k8s.io/v1beta1": ("scheduling.v1beta1.PodGroupSpec",),
    "apis/scheduling.k8s.io/v1alpha3": ("scheduling.v1alpha3.CompositePodGroupSpec",),
}
"""The schemas with recorded fields, by the version of the API that they are in."""
_GATE = re.compile(r"kube:(\w+)=true\|false \((\w+) - default=(\w+)\)")


def read_record() -> dict[str, Any]:
    """Return what was recorded last."""
    found: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


async def record() -> dict[str, Any]:
    """Return what the programs of ``$KUBEBUILDER_ASSETS`` serve and know."""
    told = _said_by("--version")
    gates = {name: f"{stage}, {on}" for name, stage, on in _GATE.findall(_said_by("--help"))}
    async with (
        ControlPlane(options=Options(feature=EVERYTHING)) as plane,
        KubeClient(plane.config) as client,
    ):
        return {
            "version": told.split()[-1],
            "minor": minor_of(told),
            "gates": dict(sorted(gates.items())),
            "kinds": await _kinds(client),
            "fields": await _fields(client),
        }


def _said_by(option: str) -> str:
    program = Path(os.environ[ASSETS_ENV]) / "kube-apiserver"
    return subprocess.run([program, option], capture_output=True, text=True, check=True).stdout


async def _kinds(client: KubeClient) -> list[str]:
    """Return each kind as ``GROUP/VERSION/PLURAL``."""
    groups = (await client.request("GET", "/apis"))["groups"]
    versions = [one["groupVersion"] for group in groups for one in group["versions"]]
    found: list[str] = []
    for path in ("api/v1", *(f"apis/{one}" for one in versions)):
        where = path.removeprefix("apis/").removeprefix("api")
        listed = (await client.request("GET", f"/{path}"))["resources"]
        found += [f"{where}/{one['name']}" for one in listed if "/" not in one["name"]]
    return sorted(found)


async def _fields(client: KubeClient) -> dict[str, list[str]]:
    found = {}
    for path, names in SHAPES.items():
        schemas = (await client.request("GET", f"/openapi/v3/{path}"))["components"]["schemas"]
        for name in names:
            (shape,) = (one for key, one in schemas.items() if key.endswith(f".{name}"))
            found[name] = sorted(shape["properties"])
    return found


def main() -> None:
    """Write the record."""
    found = asyncio.run(record())
    RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{RECORD}: Kubernetes {found['version']}")


if __name__ == "__main__":
    main()
