"""What a user can do with a FluxJob: hold, release, requeue, cancel, priority and queue.

Each is one change of the FluxJob's spec. Admission checks it in the user's own name, and the
controller carries it out. The command line and the view server call it, each with
the credentials of the user.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.holders import ANNOTATION, PAUSED, RELEASABLE
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import FLUXJOBS
from fluxqueue.workload.kinds.table import kind_of_fluxjob
from fluxqueue.workload.labels import HOLD
from fluxqueue.workload.steered import read_steered

FIELD_MANAGER = "kubectl-fluxqueue"
FluxJobObject = Mapping[str, Any]


async def change_spec(
    client: KubeClient, fluxjob: FluxJobObject, spec: Mapping[str, Any], *, dry_run: bool = False
) -> None:
    """Change fields of the spec of exactly this FluxJob.

    Raises
    ------
    ApiError
        The API server refuses it, or the FluxJob has been replaced.
    """
    meta = fluxjob["metadata"]
    await client.patch(
        FLUXJOBS,
        meta["namespace"],
        meta["name"],
        # The UID limits the patch to this FluxJob: a later one of the same name gives 409.
        {"metadata": {"uid": meta["uid"]}, "spec": dict(spec)},
        field_manager=FIELD_MANAGER,
        dry_run=dry_run,
    )


async def hold(client: KubeClient, fluxjob: FluxJobObject, *, dry_run: bool = False) -> None:
    """Keep a waiting job from starting until it is released."""
    if fluxjob["spec"].get("hold") and not _is_held_by_hand(fluxjob):
        # The field is of its author, or of before a release: only a change of it has an effect.
        await change_spec(client, fluxjob, {"hold": None}, dry_run=dry_run)
    await change_spec(client, fluxjob, {"hold": True}, dry_run=dry_run)


async def release(client: KubeClient, fluxjob: FluxJobObject, *, dry_run: bool = False) -> None:
    """Return a job to the queue that a user holds, or that fluxqueue has set aside.

    Raises
    ------
    InvalidInput
        Something else holds it. The hint is the way to release it.
    """
    if is_held(fluxjob) and not _is_held_by_hand(fluxjob) and _holder(fluxjob) not in RELEASABLE:
        reason = fluxjob["status"].get("reason")
        raise InvalidInput(f"is not held by hand: {reason}", hint=_way_out(fluxjob))
    # What its author has set does not count as said: only a change of the field has an effect.
    steered = read_steered(fluxjob)
    is_said = steered is not None and "hold" in steered.values
    await change_spec(client, fluxjob, {"hold": None if is_said else False}, dry_run=dry_run)


async def requeue(client: KubeClient, fluxjob: FluxJobObject, *, dry_run: bool = False) -> None:
    """End the pods of a running job and return it to its old place in the queue."""
    await change_spec(client, fluxjob, {"requeue": new_requeue()}, dry_run=dry_run)


def new_requeue() -> str:
    """Return a name for a request. The same one is not carried out twice."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}"


async def cancel(client: KubeClient, fluxjob: FluxJobObject, *, dry_run: bool = False) -> None:
    """Have the workload of a job deleted, waiting or running.

    A deletion of the FluxJob does the same, but an API server does not tell which user deleted it.
    """
    await change_spec(client, fluxjob, {"cancel": True}, dry_run=dry_run)


def is_held(fluxjob: FluxJobObject) -> bool:
    """Return whether it waits to be released."""
    return bool((fluxjob.get("status") or {}).get("state") == "Held")


def _holder(fluxjob: FluxJobObject) -> str | None:
    return ((fluxjob.get("status") or {}).get("operator") or {}).get("heldBy")


def _is_held_by_hand(fluxjob: FluxJobObject) -> bool:
    is_by_user = (fluxjob.get("status") or {}).get("reason") == f"held by {_holder(fluxjob)}"
    return is_held(fluxjob) and is_by_user


def _way_out(fluxjob: FluxJobObject) -> str:
    """Return the command with which its author releases it, empty for other holders."""
    how = (fluxjob.get("status") or {}).get("authorHold")
    workload = fluxjob["spec"]["workload"]
    name = f"{str(workload['kind']).lower()} {workload['name']}"
    if how == ANNOTATION:
        return f"kubectl annotate {name} {HOLD}-"
    if how == PAUSED:
        return f'kubectl patch {name} -p \'{{"spec":{{"parallelism":1}}}}\''
    kind = kind_of_fluxjob(fluxjob)
    if how is not None and kind.can_be_suspended and kind.is_built_in:
        return f'kubectl patch {name} -p \'{{"spec":{{"suspend":false}}}}\''
    return ""
