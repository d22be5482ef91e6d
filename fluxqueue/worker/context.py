"""What every task of one worker process shares; made by ``worker.main``, handed to the tasks."""

from __future__ import annotations

from dataclasses import dataclass, field

from fluxqueue.clock import Clock, Lately
from fluxqueue.db.database import Database
from fluxqueue.db.liveness import Liveness
from fluxqueue.endpoint import Heartbeats
from fluxqueue.kube.client import KubeClient
from fluxqueue.settings import Settings


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The doors to database, cluster and time, and the settings. ``starts`` are those that this
    worker has let go, by their pod templates alone, within the time between two statuses.
    ``liveness``: when each loop last succeeded."""

    database: Database
    client: KubeClient
    settings: Settings
    clock: Clock
    identity: str
    heartbeats: Heartbeats = field(default_factory=Heartbeats)
    starts: Lately = field(init=False)
    liveness: Liveness = field(init=False)

    def __post_init__(self) -> None:
        starts = Lately(self.clock, self.settings.status_interval_s)
        object.__setattr__(self, "starts", starts)
        object.__setattr__(self, "liveness", Liveness(self.clock, self.identity))

    @property
    def patience_s(self) -> float:
        """How long one turn of a loop may take: its statements may run into their time-outs."""
        return 60 + 3 * (self.settings.statement_timeout_s + self.settings.db_pool_timeout_s)
