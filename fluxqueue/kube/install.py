"""Putting our objects into a cluster: namespace, FluxJob definition, webhook configuration.

Called by ``fluxqueue up``; a chart does the same in production. Every step may be repeated and
brings what is there to what it should be.
"""

from __future__ import annotations

import asyncio
import importlib.resources
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fluxqueue.errors import Conflict, InvalidSettings, NotFound
from fluxqueue.kube.client import KubeClient, PatchKind
from fluxqueue.kube.resources import CRDS, FLUXJOBS, MUTATING_WEBHOOKS, NAMESPACES, Resource

CRD_FILE = "fluxjobs.yaml"
ESTABLISHED_TIMEOUT_S = 30.0
_POLL_S = 0.1


def read_crd() -> dict[str, Any]:
    """Read the FluxJob definition: from the wheel, or from the chart of a source checkout.

    Raises
    ------
    InvalidSettings
        Neither place has it: the installation is incomplete.
    """
    packaged = importlib.resources.files("fluxqueue") / "crds" / CRD_FILE
    source = Path(__file__).resolve().parents[2] / "chart" / "crds" / CRD_FILE
    for place in (packaged, source):
        if place.is_file():
            definition: dict[str, Any] = yaml.safe_load(place.read_text(encoding="utf-8"))
            return definition
    raise InvalidSettings(
        "the FluxJob definition is missing",
        where=str(packaged),
        hint="install fluxqueue from its wheel or its source tree",
    )


async def install_definitions(client: KubeClient, namespace: str) -> None:
    """Create our namespace and the FluxJob definition, and wait until it is served.

    Raises
    ------
    ApiUnavailable, ApiError
        The API server cannot be reached or refuses.
    TimeoutError
        The definition was accepted but is not served.
    """
    await put(client, NAMESPACES, {"metadata": {"name": namespace}})
    await put(client, CRDS, read_crd())
    async with asyncio.timeout(ESTABLISHED_TIMEOUT_S):
        while True:
            try:
                await client.list(FLUXJOBS)
                return
            except NotFound:
                # Right after its creation the path is still unknown to the server.
                await asyncio.sleep(_POLL_S)


async def install_webhook(client: KubeClient, configuration: Mapping[str, Any]) -> None:
    """Create or correct our MutatingWebhookConfiguration."""
    await put(client, MUTATING_WEBHOOKS, configuration)


async def remove_webhook(client: KubeClient, name: str) -> None:
    """Remove our MutatingWebhookConfiguration; nothing to do where it is gone."""
    try:
        await client.delete(MUTATING_WEBHOOKS, None, name)
    except NotFound:
        return


async def put(client: KubeClient, resource: Resource, body: Mapping[str, Any]) -> None:
    """Create an object, or merge ``body`` into the one that is there."""
    whole = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
    try:
        await client.create(resource, None, whole)
    except Conflict:
        name = body["metadata"]["name"]
        await client.patch(resource, None, name, whole, kind=PatchKind.MERGE)
