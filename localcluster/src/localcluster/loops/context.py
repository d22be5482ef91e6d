"""What every controller is given: the client, the shared informers, events, times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from localcluster.client.calls import Client
from localcluster.loops.event_recorder import EventRecorder
from localcluster.loops.informers import InformerSet
from localcluster.loops.options import ControllerOptions


@dataclass(frozen=True, slots=True)
class Context:
    """Shared by all controllers of one process."""

    client: Client
    informers: InformerSet
    events: EventRecorder
    options: ControllerOptions
    ca_pem: str = ""
    """The cluster's authority, which every namespace is told of."""

    def client_of(self, controller: str) -> Client:
        """A client in the name of a built-in controller, as webhooks and audit see it."""
        return self.client.acting_as(f"system:serviceaccount:kube-system:{controller}")


class Controller(Protocol):
    """Constructors register informers and handlers; work begins with ``start``, after the sync."""

    def start(self) -> None:
        """Begin to work; all informers have listed."""
        ...

    async def stop(self) -> None:
        """Stop working."""
        ...
