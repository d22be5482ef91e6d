"""Wrapping: each managed workload gets its FluxJob object, exactly one, and of its own UID.

Called by ``observer`` with stored objects. Creating is idempotent: a FluxJob that exists already is
ours only after its owner's UID is the same; one of an older workload of the same name must be
collected first, so the caller tries again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fluxqueue.errors import ApiError, ApiUnavailable, Conflict, InvalidInput, NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.events import Involved, build_event, tell_event
from fluxqueue.kube.resources import FLUXJOBS
from fluxqueue.workload import batch, pods
from fluxqueue.workload.annotations import read_wishes
from fluxqueue.workload.fluxjob_object import build, fluxjob_name, is_fluxjob_of
from fluxqueue.workload.managed import JOB, kind_of
from fluxqueue.workload.site import Site

logger = logging.getLogger(__name__)

Object = Mapping[str, Any]


@dataclass(slots=True)
class Wrapped:
    """Outcome by workload UID: FluxJob UIDs, refusals, and whom to try again."""

    flux_uids: dict[str, str] = field(default_factory=dict)
    invalid: dict[str, InvalidInput] = field(default_factory=dict)
    again: list[str] = field(default_factory=list)


async def ensure_fluxjobs(
    client: KubeClient,
    workloads: Mapping[str, Object],
    class_values: Mapping[str, int],
    site: Site,
) -> Wrapped:
    """Create the FluxJobs of ``workloads`` (by UID) that do not exist yet, all at once."""
    outcome = Wrapped()

    async def one(uid: str, workload: Object) -> None:
        try:
            body = _build(workload, class_values, site)
            flux_uid = await _create(client, workload, body)
        except InvalidInput as error:
            outcome.invalid[uid] = error
        except (ApiUnavailable, ApiError) as error:
            if isinstance(error, ApiError) and error.is_namespace_ending:
                return  # the workload goes too, and what it holds is given back then
            logger.warning(
                "FluxJob not created", extra={"action": "wrap", "uid": uid, "error": str(error)}
            )
            outcome.again.append(uid)
        else:
            if flux_uid is None:
                outcome.again.append(uid)
            else:
                outcome.flux_uids[uid] = flux_uid

    await asyncio.gather(*(one(uid, workload) for uid, workload in workloads.items()))
    return outcome


def _build(workload: Object, class_values: Mapping[str, int], site: Site) -> dict[str, Any]:
    words = batch if kind_of(workload) == JOB else pods
    wishes = read_wishes(workload)
    return build(
        workload,
        words.to_request(workload, site=site),
        priority=words.priority(workload, class_values=class_values),
        queue=wishes.queue or "default",
        wishes=wishes,
    )


async def _create(client: KubeClient, workload: Object, body: dict[str, Any]) -> str | None:
    """Create, or find the one that is there; None where another's stands in the way."""
    namespace = workload["metadata"]["namespace"]
    try:
        created = await client.create(FLUXJOBS, namespace, body)
        return str(created["metadata"]["uid"])
    except Conflict:
        pass
    try:
        found = await client.get(FLUXJOBS, namespace, fluxjob_name(workload))
    except NotFound:
        return None
    if not is_fluxjob_of(found, workload) or found["metadata"].get("deletionTimestamp"):
        return None
    return str(found["metadata"]["uid"])


async def report_invalid(
    client: KubeClient, workload: Object, error: InvalidInput, at_s: int
) -> None:
    """Tell on the workload itself, once, why it is not queued (admission was passed by)."""
    kind = kind_of(workload)
    uid = workload["metadata"]["uid"]
    logger.warning("invalid workload", extra={"uid": uid, "error": str(error)})
    event = build_event(
        Involved.of(workload, api_version="batch/v1" if kind == JOB else "v1", kind=kind),
        key=f"invalid/{error}",
        reason="InvalidRequest",
        message=f"is not queued: {error}",
        at_s=at_s,
        is_warning=True,
    )
    await tell_event(client, event)
