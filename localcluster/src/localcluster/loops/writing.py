"""Writes that several controllers share: slow-start creation, deletion, finalizer removal.

Each stores the answer in the informer at once, so that the controller's next decision knows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from localcluster.client.calls import Client, PatchKind
from localcluster.client.informer import Informer
from localcluster.client.resources import PODS
from localcluster.errors import ApiError, ClientError, Conflict, Invalid, NotFound
from localcluster.loops.objects import key_of, uid_of
from localcluster.obj import Obj

SLOW_START = 1


async def create_all(
    client: Client, informer: Informer, bodies: list[Obj], created: Callable[[Obj], None]
) -> tuple[int, ClientError | None]:
    """Create in batches of 1, 2, 4, ... and stop after the first batch with a failure.

    Returns how many were created, and the first error. A quota or webhook that refuses one pod
    would refuse five hundred too.
    """
    done, size = 0, SLOW_START
    rest = list(bodies)
    while rest:
        batch, rest = rest[:size], rest[size:]
        results = await asyncio.gather(
            *(client.create(informer.resource, key_namespace(body), body) for body in batch),
            return_exceptions=True,
        )
        failure: ClientError | None = None
        for result in results:
            if isinstance(result, ClientError):
                failure = failure or result
            elif isinstance(result, BaseException):
                raise result
            else:
                done += 1
                informer.observe(result)
                created(result)
        if failure is not None:
            return done, failure
        size *= 2
    return done, None


def key_namespace(obj: Obj) -> str:
    """Return the namespace of an object to be created."""
    namespace: str = obj["metadata"].get("namespace", "")
    return namespace


async def delete_object(client: Client, informer: Informer, obj: Obj) -> bool:
    """Delete exactly this object. Return False if it was already deleted."""
    namespace, name = key_of(obj)
    try:
        answer = await client.delete(
            informer.resource, namespace, name, uid=uid_of(obj), propagation="Background"
        )
    except (NotFound, Conflict):
        return False
    if answer.get("kind") == informer.resource.kind:
        informer.observe(answer)
    return True


async def strip_finalizer(client: Client, pods: Informer, pod: Obj, finalizer: str) -> bool:
    """Remove one finalizer from a pod. Return True if it is removed now (or the pod is deleted)."""
    namespace, name = key_of(pod)
    # JSON Patch with tests: the list and the pod must still be those that were read.
    finalizers = pod["metadata"].get("finalizers") or []
    body: list[Obj] = [
        {"op": "test", "path": "/metadata/uid", "value": uid_of(pod)},
        {"op": "test", "path": "/metadata/finalizers", "value": finalizers},
    ]
    left = [entry for entry in finalizers if entry != finalizer]
    if left:
        body.append({"op": "replace", "path": "/metadata/finalizers", "value": left})
    else:
        body.append({"op": "remove", "path": "/metadata/finalizers"})
    try:
        answer = await client.patch(PODS, namespace, name, body, kind=PatchKind.JSON)
    except NotFound:
        return True
    except (Invalid, Conflict):
        return False  # Changed meanwhile: the next sync tries again.
    pods.observe(answer)
    return True


def message_of(error: ClientError) -> str:
    """Return the API server's message, for events."""
    if isinstance(error, ApiError):
        return str(error.body.get("message") or error)
    return str(error)
