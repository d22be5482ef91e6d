"""Find what an unreadable workload said before this process saw it.

Part of ``observer``. ``flusher`` and ``resync_schedule`` ask for the few workloads that cannot be
read as they are. The row has the answer. If the database was lost, the FluxJob has it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from fluxqueue.db.database import Database
from fluxqueue.db.store.last_readings import LastRequest, Past, read_past
from fluxqueue.errors import ApiError, InvalidInput
from fluxqueue.jobspec.parse import read_stored
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import FLUXJOBS
from fluxqueue.workload import labels
from fluxqueue.workload.fluxjob_object import fluxjob_name, is_fluxjob_of
from fluxqueue.workload.objects import Object

logger = logging.getLogger(__name__)


async def recall(
    database: Database, client: KubeClient, uids: Collection[str], objects: Mapping[str, Object]
) -> dict[str, Past]:
    """Return what is known of the past of workloads, by UID.

    Parameters
    ----------
    objects : the object of each workload, by UID.

    Raises
    ------
    DatabaseUnavailable, ApiUnavailable
        The recall must be repeated.
    """
    # Rows first: a FluxJob's status may lag behind its row.
    found = await read_past(database, uids)
    for uid in uids:
        if uid not in found and uid in objects:
            found[uid] = await _published(client, objects[uid])
    return found


async def _published(client: KubeClient, workload: Object) -> Past:
    """Return what the FluxJob shows of the past. Empty if there is none, or it is unreadable."""
    try:
        name = fluxjob_name(workload)
        fluxjob = await client.get(FLUXJOBS, workload["metadata"]["namespace"], name)
        return past_in(fluxjob) if is_fluxjob_of(fluxjob, workload) else Past()
    except (ApiError, InvalidInput, ValueError, TypeError, KeyError) as error:
        uid = workload["metadata"]["uid"]
        logger.info("no FluxJob tells its past", extra={"uid": uid, "error": str(error)})
        return Past()


def past_in(fluxjob: Mapping[str, Any]) -> Past:
    """Return what a FluxJob shows of its workload's past: the last good values, and its spec.

    Raises
    ------
    InvalidInput, ValueError, TypeError, KeyError
        The FluxJob was not made by fluxqueue.
    """
    spec, status = fluxjob["spec"], fluxjob.get("status") or {}
    said = _said(spec) | {
        key: value
        for key, value in (status.get("lastGood") or {}).items()
        if isinstance(value, str)
    }
    request = spec["jobspec"]
    size = read_stored(request).size
    return Past(said, LastRequest(request, size, spec.get("durationSeconds")))


def _said(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the annotations from which a spec was made, as far as the spec shows them."""
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
