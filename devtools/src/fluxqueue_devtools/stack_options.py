"""The options of ``up`` and ``demo`` as plain values, so that the command line starts fast."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fluxqueue_devtools.localpg.held_port import LOOPBACK


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """The nodes of the embedded cluster, which are all alike."""

    nodes: int = 4
    cpu: str = "16"
    memory: str = "64Gi"
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class StackOptions:
    """The options of ``up``.

    ``kubeconfig`` names an existing cluster instead of the embedded one, ``database_url`` an
    existing database. ``environ`` is passed to controller and workers (``FLUXQUEUE_*``).
    ``kubeconfigs`` gives ``controller``, ``worker`` or ``view`` its own account on that cluster.
    The admission policies let each of these accounts release work, except that of ``view``.
    ``has_view``: start a view server as well.
    """

    data_dir: Path
    shape: ClusterShape = field(default_factory=ClusterShape)
    kubeconfig: Path | None = None
    database_url: str = ""
    workers: int = 1
    controllers: int = 1
    webhook_host: str = LOOPBACK
    environ: dict[str, str] = field(default_factory=dict)
    kubeconfigs: dict[str, Path] = field(default_factory=dict)
    cluster_arguments: tuple[str, ...] = ()
    has_view: bool = False
