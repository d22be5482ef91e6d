"""A world with parts that run under the chart's own service accounts, embedded or real.

Chosen for the whole suite on a real control plane by ``FLUXQUEUE_E2E_RBAC=chart``, and always by
``test_rights`` and ``test_three_users``.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fluxqueue.kube.client import KubeClient
from tests.support import chart_rights
from tests.support.control_plane import ControlPlane
from tests.support.e2e.world import GATED, World, embedded_world, real_world
from tests.support.embedded_plane import Plane


@dataclass(frozen=True, slots=True)
class RightsWorld:
    """The world, the accounts' kubeconfigs, and the folder with the audit log."""

    world: World
    kubeconfigs: dict[str, Path]
    folder: Path

    def uses(self) -> list[chart_rights.Use]:
        """What the accounts have asked so far."""
        return chart_rights.read_uses(self.folder)


def is_under_rights(kind: str) -> bool:
    """Whether worlds on this kind of cluster have the chart's rights instead of all."""
    return kind == "real" and os.environ.get("FLUXQUEUE_E2E_RBAC") == "chart"


@asynccontextmanager
async def own_world(kind: str, folder: Path, **more: Any) -> AsyncIterator[World]:
    """A world on a cluster of its own. ``more`` are further options of the stack."""
    if kind == "embedded":
        async with embedded_world(folder, **more) as world:
            yield world
    elif is_under_rights(kind):
        async with sufficient_rights(folder, **more) as world:
            yield world
    else:
        async with ControlPlane() as control_plane, real_world(folder, control_plane, **more) as w:
            yield w


@asynccontextmanager
async def rights_world(
    kind: str, folder: Path, *, follows_pools: bool = False, **more: Any
) -> AsyncIterator[RightsWorld]:
    """Everything running under the chart's rights. What is refused shows in ``uses``.

    ``follows_pools``: with the rights to change discovered node pools.
    """
    with chart_rights.audited_plane(kind, folder) as control_plane:
        kubeconfigs = await _install(control_plane, folder, follows_pools=follows_pools)
        async with real_world(
            folder,
            control_plane,
            kind=kind,
            kubeconfigs=kubeconfigs,
            environ={**GATED, **chart_rights.ENVIRON},
            **more,
        ) as world:
            yield RightsWorld(world, kubeconfigs, folder)


@asynccontextmanager
async def kept_rights_world(
    kind: str, name: str, temporary: pytest.TempPathFactory, **more: Any
) -> AsyncIterator[RightsWorld]:
    """The same in a folder of its own. Its logs are kept in pytest's folder for ``name``."""
    logs = temporary.mktemp(f"logs-{name}")
    with tempfile.TemporaryDirectory(prefix=f"fluxqueue-{name}-") as made:
        folder = Path(made)
        folder.chmod(0o755)  # where the server runs as another user it must reach its data
        try:
            async with rights_world(kind, folder, **more) as running:
                yield running
        finally:
            shutil.copytree(folder / "logs", logs, dirs_exist_ok=True)


@asynccontextmanager
async def sufficient_rights(folder: Path, **more: Any) -> AsyncIterator[World]:
    """The same for a whole suite. At its end nothing may have been refused."""
    async with rights_world("real", folder, follows_pools=True, **more) as rights:
        yield rights.world
        # Kinds that no chart knows are asked for their owners. A refusal changes nothing.
        asked = chart_rights.missing(rights.uses())
        missing = {one for one in asked if "example.org" not in one}
        assert not missing, f"the chart's rights do not suffice: {missing}"


async def _install(control_plane: Plane, folder: Path, *, follows_pools: bool) -> dict[str, Path]:
    async with KubeClient(control_plane.config) as client:
        await chart_rights.install(client, follows_pools=follows_pools)
        return await chart_rights.write_kubeconfigs(client, control_plane, folder)
