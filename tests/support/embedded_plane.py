"""The embedded cluster as a process of its own, reached as a real control plane is.

Used where a test of rights runs on both: by ``tests/support/e2e/rights.py`` and ``tests/chart``.
A test with a :class:`Plane` must not ask which of the two it is.
"""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import yaml

from fluxqueue.kube.config import ClusterConfig
from tests.support.control_plane import Server

START_TIMEOUT_S = 60.0
POLL_S = 0.05


class Plane(Protocol):
    """What tests of rights need of a cluster, embedded or real."""

    @property
    def config(self) -> ClusterConfig:
        """The administrator's access."""

    @property
    def kubeconfig_path(self) -> Path:
        """A kubeconfig file with it."""

    def config_with(self, token: str | None) -> ClusterConfig:
        """Access by another token."""

    def kubeconfig(self, token: str) -> dict[str, Any]:
        """A kubeconfig with another token, as data."""


class EmbeddedPlane:
    """One that runs. Made by :func:`embedded_plane`."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig_path = kubeconfig
        self._admin: dict[str, Any] = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))

    @property
    def config(self) -> ClusterConfig:
        """The administrator's access."""
        return self.config_with(self._admin["users"][0]["user"]["token"])

    def config_with(self, token: str | None) -> ClusterConfig:
        """Access by another token."""
        cluster = self._admin["clusters"][0]["cluster"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        return ClusterConfig(server=cluster["server"], ca_pem=authority, token=token)

    def kubeconfig(self, token: str) -> dict[str, Any]:
        """A kubeconfig with another token, as data."""
        user = {"name": self._admin["users"][0]["name"], "user": {"token": token}}
        return {**self._admin, "users": [user]}


@contextmanager
def embedded_plane(folder: Path, arguments: Sequence[str] = ()) -> Iterator[EmbeddedPlane]:
    """A cluster that listens. ``arguments`` are further ones of the command ``localcluster``."""
    folder.mkdir(parents=True, exist_ok=True)
    kubeconfig = folder / "kubeconfig"
    command = [sys.executable, "-m", "localcluster", "--kubeconfig-out", str(kubeconfig)]
    server = Server([*command, *arguments], folder)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not kubeconfig.exists():
            if server.has_ended.is_set() or time.monotonic() > deadline:
                raise RuntimeError(f"the cluster did not start: {server.log_tail()}")
            time.sleep(POLL_S)
        yield EmbeddedPlane(kubeconfig)
    finally:
        server.end()
