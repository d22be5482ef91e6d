"""What every task of one worker process shares; made by ``worker.main``, handed to the tasks."""

from __future__ import annotations

from dataclasses import dataclass

from fluxqueue.clock import Clock
from fluxqueue.db.database import Database
from fluxqueue.kube.client import KubeClient
from fluxqueue.settings import Settings


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The doors to database, cluster and time, and the settings."""

    database: Database
    client: KubeClient
    settings: Settings
    clock: Clock
    identity: str
