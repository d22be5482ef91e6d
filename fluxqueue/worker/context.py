"""The context that all tasks of one worker process share.

``worker.worker_process`` creates it and passes it to the tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fluxqueue.clock import Clock
from fluxqueue.db.database import Database
from fluxqueue.db.liveness import Liveness
from fluxqueue.kube.client import KubeClient
from fluxqueue.process.endpoint import Heartbeats
from fluxqueue.process.pacing import Lately
from fluxqueue.process.settings import Settings
from fluxqueue.worker.creation_failures import CreationFailures
from fluxqueue.worker.gang_groups import GangGroups


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """Give access to database, cluster and time, and hold the settings.

    ``starts``: the jobs that this worker has released by their pod templates alone, within the time
    between two status updates.
    ``liveness``: when each loop last succeeded. ``failures``: why pods are not created.
    ``groups``: PodGroups of Kubernetes for gangs.
    ``placement_key``: shared with the webhook (``workload.index_placement``). Empty: each pod of an
    Indexed BatchJob is ungated by itself.
    """

    database: Database
    client: KubeClient
    settings: Settings
    clock: Clock
    identity: str
    placement_key: bytes = field(default=b"", repr=False, kw_only=True)
    heartbeats: Heartbeats = field(default_factory=Heartbeats)
    starts: Lately = field(init=False)
    liveness: Liveness = field(init=False)
    failures: CreationFailures = field(init=False)
    groups: GangGroups = field(init=False)

    def __post_init__(self) -> None:
        starts = Lately(self.clock, self.settings.status_interval_s)
        object.__setattr__(self, "starts", starts)
        object.__setattr__(self, "liveness", Liveness(self.clock, self.identity))
        object.__setattr__(self, "failures", CreationFailures(self.client, self.clock))
        object.__setattr__(self, "groups", GangGroups(self.client, self.clock))

    @property
    def patience_s(self) -> float:
        """Return the time limit of one turn of a loop in seconds.

        It is long enough for statements that run into their time-outs.
        """
        return 60 + 3 * (self.settings.statement_timeout_s + self.settings.db_pool_timeout_s)
