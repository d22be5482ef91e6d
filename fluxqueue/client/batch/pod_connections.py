"""What connects the pods of a script that runs once on several nodes: a Service and a token.

``job_of_script`` adds the parts of the pods. ``submit`` and the clients create a Job and what goes
with it. The pods find each other by a headless Service. Each side of a connection proves that it
knows a token, which only a Secret of the Job has. ``agent.sh`` makes the connections by a static
busybox, which an init container copies: images of jobs need only a shell.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from fluxqueue.client.batch.batch_step import RUN, VOLUME
from fluxqueue.errors import ApiError
from fluxqueue.kube.resources import JOBS, SECRETS, SERVICES
from fluxqueue.workload import labels

if TYPE_CHECKING:
    from fluxqueue.client.batch.script_request import ScriptRequest
    from fluxqueue.kube.client import KubeClient

PORT = 6818
"""The port of the first pod. It is that of slurmd."""
TOKEN_VOLUME = "fluxqueue-token"  # noqa: S105  # a name
TOKEN_FOLDER = "/run/fluxqueue-token"  # noqa: S105  # a folder
Object = dict[str, Any]


def connect(pod: Object, request: ScriptRequest) -> None:
    """Add to a pod what it needs to reach the others."""
    container = pod["containers"][0]
    requests = container["resources"]["requests"]
    pod["subdomain"] = request.service
    pod["volumes"].append({"name": TOKEN_VOLUME, "secret": {"secretName": request.service}})
    container["volumeMounts"].append(
        {"name": TOKEN_VOLUME, "mountPath": TOKEN_FOLDER, "readOnly": True}
    )
    pod["initContainers"] = [
        {
            "name": "busybox",
            "image": request.busybox,
            "command": ["/bin/busybox", "cp", "/bin/busybox", f"{RUN}/busybox"],
            "volumeMounts": [{"name": VOLUME, "mountPath": RUN}],
            # It runs before the container, so the pod asks for no more.
            "resources": {
                "requests": {key: one for key, one in requests.items() if key in {"cpu", "memory"}}
            },
        }
    ]


def companions_of(job: Object) -> list[tuple[Any, Object]]:
    """Return the Secret and the Service of a Job, which go with it. Most Jobs have none."""
    pod = job["spec"]["template"]["spec"]
    named = [one["secret"] for one in pod.get("volumes") or () if one["name"] == TOKEN_VOLUME]
    if not named:
        return []
    uid = job["metadata"].get("uid", "")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": uid}
    metadata = {"name": named[0]["secretName"], **({"ownerReferences": [owner]} if uid else {})}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "immutable": True,
        "stringData": {"token": secrets.token_hex(32)},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "clusterIP": "None",
            # The agents try until the first pod listens.
            "publishNotReadyAddresses": True,
            "selector": {labels.OF_A_BATCH_JOB: uid},
            "ports": [{"name": "steps", "port": PORT}],
        },
    }
    return [(SECRETS, secret), (SERVICES, service)]


async def create_job(
    client: KubeClient, namespace: str, job: Object, *, field_manager: str, dry_run: bool = False
) -> Object:
    """Create a Job, then its Secret and its Service, and return the Job.

    Raises
    ------
    ApiError
        One of them is refused. Then none of them is left.
    """
    for resource, one in companions_of(job):
        await client.create(resource, namespace, one, field_manager=field_manager, dry_run=True)
    made = await client.create(JOBS, namespace, job, field_manager=field_manager, dry_run=dry_run)
    if dry_run:
        return made
    try:
        for resource, one in companions_of(made):
            await client.create(resource, namespace, one, field_manager=field_manager)
    except ApiError:
        name, uid = made["metadata"]["name"], made["metadata"]["uid"]
        await client.delete(JOBS, namespace, name, uid=uid, propagation="Background")
        raise
    return made
