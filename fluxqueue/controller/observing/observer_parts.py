"""What the parts of one observer share: its term, its connections and its memory.

``observer`` makes it. ``flusher`` and ``resync_schedule`` take it as one argument.
"""

from __future__ import annotations

from dataclasses import dataclass

from fluxqueue.clock import Clock
from fluxqueue.controller.observing.dirty_set import DirtySet
from fluxqueue.controller.observing.event_router import EventRouter
from fluxqueue.controller.observing.fluxjob_creator import FluxJobCreator
from fluxqueue.controller.observing.quarantine import Quarantine
from fluxqueue.controller.observing.watches import Watches
from fluxqueue.controller.observing.workloads import Workloads
from fluxqueue.controller.term import Term
from fluxqueue.db.liveness import Liveness
from fluxqueue.kube.client import KubeClient


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverParts:
    """All that was made before the loops that write rows."""

    term: Term
    client: KubeClient
    clock: Clock
    liveness: Liveness
    workloads: Workloads
    dirty: DirtySet
    quarantine: Quarantine
    creator: FluxJobCreator
    router: EventRouter
    watches: Watches
