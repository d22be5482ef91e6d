"""Recalling: what a spoilt workload said before, where this process has not seen that itself.

Part of ``observer``, asked by ``writing`` and ``comparing`` for the few workloads that cannot be
read as they are. The row knows it. Of a database that was lost, the FluxJob does.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from fluxqueue.db.database import Database
from fluxqueue.db.life.past import Asked, Past, read_past
from fluxqueue.errors import ApiError, InvalidInput
from fluxqueue.jobspec.stored import read_stored
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import FLUXJOBS
from fluxqueue.objects import Object
from fluxqueue.workload import labels
from fluxqueue.workload.fluxjob_object import fluxjob_name, is_fluxjob_of

logger = logging.getLogger(__name__)


async def recall(
    database: Database, client: KubeClient, uids: Collection[str], objects: Mapping[str, Object]
) -> dict[str, Past]:
    """Return what is known of the past of workloads, by UID.

    Parameters: ``objects`` gives what stands for each.

    Raises
    ------
    DatabaseUnavailable, ApiUnavailable
        It has to be asked again.
    """
    found = await read_past(database, uids)
    for uid in uids:
        if uid not in found and uid in objects:
            found[uid] = await _published(client, objects[uid])
    return found


async def _published(client: KubeClient, workload: Object) -> Past:
    """What its FluxJob tells. Nothing where there is none, or it cannot be read."""
    try:
        name = fluxjob_name(workload)
        fluxjob = await client.get(FLUXJOBS, workload["metadata"]["namespace"], name)
        return past_in(fluxjob) if is_fluxjob_of(fluxjob, workload) else Past()
    except (ApiError, InvalidInput, ValueError, TypeError, KeyError) as error:
        uid = workload["metadata"]["uid"]
        logger.info("no FluxJob tells its past", extra={"uid": uid, "error": str(error)})
        return Past()


def past_in(fluxjob: Mapping[str, Any]) -> Past:
    """What a FluxJob tells of its workload's past: the values it shows, and its spec.

    Raises
    ------
    InvalidInput, ValueError, TypeError, KeyError
        It is none of ours.
    """
    spec, status = fluxjob["spec"], fluxjob.get("status") or {}
    said = _said(spec) | {
        key: value
        for key, value in (status.get("lastGood") or {}).items()
        if isinstance(value, str)
    }
    request = spec["jobspec"]
    size = read_stored(request).size
    return Past(said, Asked(request, size, spec.get("durationSeconds")))


def _said(spec: Mapping[str, Any]) -> dict[str, str]:
    """The annotations from which a spec was made, as far as it tells them."""
    edges = ",".join(f"{edge['type']}:{edge['job']}" for edge in spec.get("dependsOn") or ())
    told = {
        labels.QUEUE: spec.get("queue"),
        labels.PRIORITY: spec.get("priority"),
        labels.DURATION: spec.get("durationSeconds"),
        labels.BEGIN_TIME: spec.get("beginTime"),
        labels.DEPENDS_ON: edges or None,
        labels.HOLD: "true" if spec.get("hold") else None,
    }
    return {key: str(value) for key, value in told.items() if value is not None}
