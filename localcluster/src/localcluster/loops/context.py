"""What every controller gets: the client, the shared informers, events, times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from localcluster.client.calls import Client
from localcluster.loops.event_recorder import EventRecorder
from localcluster.loops.informers import InformerSet
from localcluster.loops.objects import key_of
from localcluster.loops.options import ControllerOptions
from localcluster.loops.workqueue import WorkQueue
from localcluster.obj import Obj


@dataclass(frozen=True, slots=True)
class Context:
    """What all controllers of one process share."""

    client: Client
    informers: InformerSet
    events: EventRecorder
    options: ControllerOptions
    ca_pem: str = ""
    """The cluster's authority, which every namespace gets."""

    def client_of(self, controller: str) -> Client:
        """Return a client that acts as a built-in controller, for webhooks and audit."""
        return self.client.acting_as(f"system:serviceaccount:kube-system:{controller}")


class Controller(Protocol):
    """A controller. Constructors register informers and handlers.

    Work begins with ``start``, after the informers have synced.
    """

    def start(self) -> None:
        """Start working. All informers have listed."""
        ...

    async def stop(self) -> None:
        """Stop working."""
        ...


class QueueController:
    """A controller with one queue of keys."""

    _queue: WorkQueue[Any]

    def start(self) -> None:
        """Start working."""
        self._queue.start()

    async def stop(self) -> None:
        """Stop working."""
        await self._queue.stop()

    def _changed(self, _old: Obj | None, new: Obj | None) -> None:
        if new is not None:
            self._queue.add(key_of(new))
