"""The loops of the matcher's role beside the matching, and the status of objects that they write.

``queue_keeping``, ``sharing_keeping``, ``node_pool_keeping`` and ``calendar_keeping`` keep what
administrators write this way. Conditions of FluxJobs are written elsewhere (``fluxjob``), because
they follow the lifecycle.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from prometheus_client import Gauge

from fluxqueue.errors import (
    ApiError,
    ApiUnavailable,
    DatabaseUnavailable,
    LostLeadership,
    NotFound,
)
from fluxqueue.fluxjob.times import to_rfc3339
from fluxqueue.kube.client import KubeClient, PatchKind
from fluxqueue.kube.resources import ApiResource
from fluxqueue.process import metrics
from fluxqueue.worker.context import WorkerContext

logger = logging.getLogger(__name__)

Status = Mapping[str, Any]
Wanted = tuple[str, bool, str, str]
"""A condition: its type, whether it holds, the reason and the message."""


async def keep(
    context: WorkerContext,
    loop: str,
    turn: Callable[[], Awaitable[object]],
    rest: Callable[[], Awaitable[object]],
) -> None:
    """Run the turns of a loop until cancelled, or until the term is over.

    Parameters
    ----------
    loop : its name where the times of loops are reported.
    rest : waits for the next turn.
    """
    while True:
        try:
            with context.liveness.turn(loop):
                await turn()
        except LostLeadership:
            return
        except (DatabaseUnavailable, ApiUnavailable, ApiError) as error:
            logger.warning("will try again", extra={"action": loop, "error": str(error)})
        except Exception:
            # A defect here may lose a count, but must not stop the matching beside it.
            logger.exception("turn failed", extra={"action": loop})
        await rest()


class ObjectStatuses:
    """The status of all objects of one kind, each written only when it changes.

    Parameters
    ----------
    step : the label of objects that are left out (``fluxqueue_rows_skipped_total``).
    gauges : figures of each object, by its name.
    """

    def __init__(
        self, client: KubeClient, resource: ApiResource, step: str, gauges: Sequence[Gauge] = ()
    ) -> None:
        self._client, self._resource, self._step = client, resource, step
        self._gauges = gauges
        self._written: dict[str, Status] = {}
        self.names: set[str] = set()
        """The objects that there are."""

    def forget_others(self, names: Collection[str], uids: Collection[str]) -> None:
        """Forget all objects but these, and remove their figures."""
        for name in self.names - set(names):
            for gauge in self._gauges:
                with suppress(KeyError):
                    gauge.remove(name)
        self.names = set(names)
        self._written = {uid: one for uid, one in self._written.items() if uid in uids}

    def count(self, name: str, *figures: int) -> None:
        """Set the gauges of one object."""
        self.names.add(name)
        for gauge, figure in zip(self._gauges, figures, strict=True):
            gauge.labels(name).set(figure)

    async def write(
        self,
        name: str,
        uid: str,
        render: Callable[[Status], Status],
        as_merge: Callable[[Status, Status], Status] | None = None,
    ) -> Status | None:
        """Write the status of one object. Return the former one, or None if nothing was written.

        A defect of one object does not affect the others.

        Parameters
        ----------
        render : returns the whole status. It receives the former one.
        as_merge : returns the merge patch from the former status to the new one, by default the
            new one.

        Raises
        ------
        ApiUnavailable
            The API server cannot be reached.
        """
        try:
            before = self._written.get(uid)
            if before is None:
                before = (await self._client.get(self._resource, None, name)).get("status") or {}
            status = render(before)
            if status != before:
                body = {"status": status if as_merge is None else as_merge(before, status)}
                at = (self._resource, None, name)
                merge = PatchKind.MERGE
                await self._client.patch(
                    *at, body, kind=merge, subresource="status", metadata_only=True
                )
        except NotFound:
            return None
        except (ApiUnavailable, DatabaseUnavailable):
            raise
        except Exception as error:  # noqa: BLE001  one object must not block the others
            metrics.ROWS_SKIPPED.labels(self._step).inc()
            extra = {"action": self._step, "object": name, "error": str(error)}
            logger.warning("status of %s not written", self._resource.kind, extra=extra)
            return None
        self._written[uid] = status
        return None if status == before else before


def conditions(before: Status, wanted: Iterable[Wanted], at_s: int) -> list[dict[str, Any]]:
    """Return conditions at ``at_s`` (epoch seconds). One that does not change keeps its time."""
    old = {one["type"]: one for one in before.get("conditions") or ()}
    found = []
    for name, holds, reason, message in wanted:
        status, former = "True" if holds else "False", old.get(name)
        is_same = former is not None and former["status"] == status
        since = former["lastTransitionTime"] if is_same and former else to_rfc3339(at_s)
        one = {"type": name, "status": status, "reason": reason, "message": message}
        found.append({**one, "lastTransitionTime": since})
    return found


def is_valid(fault: str | None, refused: str = "SetAside") -> Wanted:
    """Return the condition Valid of an object with a spec that is in force, or not."""
    return "Valid", fault is None, "InForce" if fault is None else refused, fault or ""
